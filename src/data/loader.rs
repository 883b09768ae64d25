//! Batches made ahead of the training step by worker threads.
//!
//! A worker takes the next batch that no one has begun, makes all of it, and puts it on a shelf, from which the consumer takes the
//! batches in order. A worker begins a batch only if it is at most a few ahead of the consumer, so memory is bounded. Since a
//! batch is a pure function of the run's seed and its place, the number of workers changes the time and nothing else.

use super::sampler::{Position, Sampler};
use crate::error::{Error, Result};
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What batches are made of.
pub trait Source: Send + Sync + 'static {
    /// What a training step sees.
    type Batch: Send + 'static;
    /// A worker's buffers.
    type Bench: Default;

    /// Makes the batch at `position`; `order` is its whole epoch's.
    ///
    /// # Errors
    /// What cannot be read.
    fn make(
        &self,
        sampler: &Sampler,
        position: Position,
        order: &[u32],
        bench: &mut Self::Bench,
    ) -> Result<Self::Batch>;
}

/// The batches of a run from some step on, across the ends of epochs, until a number of epochs is complete.
///
/// Iteration ends after the last batch or after the first error. Dropping the loader stops its threads.
pub struct Loader<S: Source> {
    shared: Arc<Shared<S>>,
    workers: Vec<JoinHandle<()>>,
    next: u64,
    end: u64,
    waited: Duration,
}

struct Shared<S: Source> {
    source: S,
    sampler: Sampler,
    state: Mutex<State<S::Batch>>,
    /// Signalled when a batch may be begun or the workers are to stop.
    room: Condvar,
    /// Signalled when a batch was put on the shelf.
    made: Condvar,
}

struct State<B> {
    /// The first step that no worker has begun.
    begin: u64,
    /// No step from here on may be begun yet.
    limit: u64,
    /// No step from here on exists; lowered to stop.
    end: u64,
    /// Batches that wait for the consumer.
    shelf: BTreeMap<u64, Result<B>>,
    /// The order of the latest epoch that was begun.
    order: Option<(u64, Arc<Vec<u32>>)>,
}

impl<S: Source> Loader<S> {
    /// Starts `threads` workers on the batches from `start` until `epochs` epochs are complete. A worker makes a whole batch, and
    /// `threads` + 1 batches at most are in the making or waiting.
    ///
    /// # Errors
    /// No thread; more steps than can be counted; a thread that can't be started.
    pub fn of(source: S, sampler: Sampler, start: Position, epochs: u64, threads: usize) -> Result<Self> {
        if threads == 0 {
            return Err(Error::Config("data.threads: 0 threads can't make batches; expected 1 or more".to_string()));
        }
        let steps = sampler.steps_per_epoch();
        let count = |epochs: u64, step: u64| {
            epochs.checked_mul(steps).and_then(|n| n.checked_add(step)).ok_or_else(|| {
                Error::Config(format!(
                    "{epochs} epochs of {steps} steps are more than can be counted; expected fewer epochs"
                ))
            })
        };
        let (next, end) = (count(start.epoch, start.step)?, count(epochs, 0)?);
        let state = State {
            begin: next,
            limit: next.saturating_add(threads as u64 + 1),
            end,
            shelf: BTreeMap::new(),
            order: None,
        };
        let shared =
            Arc::new(Shared { source, sampler, state: Mutex::new(state), room: Condvar::new(), made: Condvar::new() });
        let mut loader = Loader { shared, workers: Vec::with_capacity(threads), next, end, waited: Duration::ZERO };
        for number in 0..threads {
            let shared = Arc::clone(&loader.shared);
            let worker = std::thread::Builder::new()
                .name(format!("loader-{number}"))
                .spawn(move || shared.work())
                .map_err(|e| Error::Input(format!("thread {number} of {threads} for loading can't be started: {e}")))?;
            loader.workers.push(worker);
        }
        Ok(loader)
    }

    /// How long the consumer has waited for batches so far.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl<S: Source> Iterator for Loader<S> {
    type Item = Result<S::Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            return None;
        }
        let asked = Instant::now();
        let mut state = self.shared.lock();
        let batch = loop {
            if let Some(batch) = state.shelf.remove(&self.next) {
                break batch;
            }
            state = self.shared.made.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        self.next += 1;
        state.limit += 1;
        if batch.is_err() {
            self.end = self.next;
            state.end = 0;
            state.shelf.clear();
        }
        drop(state);
        self.shared.room.notify_all();
        self.waited += asked.elapsed();
        Some(batch)
    }
}

impl<S: Source> Drop for Loader<S> {
    fn drop(&mut self) {
        self.shared.lock().end = 0;
        self.shared.room.notify_all();
        for worker in self.workers.drain(..) {
            // A worker turns its panics into an error of the batch: there is nothing more to learn here.
            let _ = worker.join();
        }
    }
}

impl<S: Source> Shared<S> {
    /// The state; no code that holds the lock can panic half way through a change.
    fn lock(&self) -> MutexGuard<'_, State<S::Batch>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes batches until there are no more.
    fn work(&self) {
        let mut bench = S::Bench::default();
        while let Some((step, order)) = self.begin() {
            let position = self.sampler.position(step);
            let make = || self.source.make(&self.sampler, position, &order, &mut bench);
            let made = catch_unwind(AssertUnwindSafe(make));
            let batch = made.unwrap_or_else(|panic| Err(panic_error(step, panic.as_ref())));
            self.lock().shelf.insert(step, batch);
            self.made.notify_one();
        }
    }

    /// Waits until a batch may be begun: its step and its epoch's order. `None` at the end.
    fn begin(&self) -> Option<(u64, Arc<Vec<u32>>)> {
        let mut state = self.lock();
        loop {
            if state.begin >= state.end {
                return None;
            }
            if state.begin < state.limit {
                break;
            }
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let step = state.begin;
        state.begin += 1;
        let epoch = self.sampler.position(step).epoch;
        let order = match &state.order {
            Some((known, order)) if *known == epoch => Arc::clone(order),
            _ => {
                let order = Arc::new(self.sampler.order(epoch));
                state.order = Some((epoch, Arc::clone(&order)));
                order
            }
        };
        Some((step, order))
    }
}

/// What a panic in a worker becomes.
fn panic_error(step: u64, panic: &(dyn Any + Send)) -> Error {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    Error::Input(format!(
        "a loader thread failed while making the batch of step {step}: {}",
        text.unwrap_or("no message")
    ))
}
