//! Batches of two views, made ahead of the training step by worker threads.
//!
//! A worker takes the next batch that no one has begun, makes all of it, and puts it on a shelf, from which the consumer takes the
//! batches in order. A worker begins a batch only if it is at most a few ahead of the consumer, so memory is bounded. Since each
//! view is a pure function of (seed, epoch, sample, view), the number of workers changes the time and nothing else.

use super::eval::image_tensor;
use super::sampler::{Position, Sampler};
use super::vision::{Decoder, ImageSet};
use crate::augment::{Canvas, Views};
use crate::config::augment::AugmentConfig;
use crate::error::{Error, Result};
use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tch::Tensor;

/// What a training step sees.
#[derive(Debug)]
pub struct Batch {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The step in the epoch, from 0.
    pub step_in_epoch: u64,
    /// Index of each sample in its set.
    pub indices: Vec<i64>,
    /// One view of each sample.
    ///
    /// # Shapes
    /// `[batch, 3, size, size]`, float32.
    pub view_1: Tensor,
    /// Another view of each sample, of the same shape.
    pub view_2: Tensor,
    /// The class of each sample.
    ///
    /// # Shapes
    /// `[batch]`, int64.
    pub labels: Tensor,
}

/// The batches of a run from some step on, across the ends of epochs, until a number of epochs is complete.
///
/// Iteration ends after the last batch or after the first error. Dropping the loader stops its threads.
#[derive(Debug)]
pub struct Loader {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    next: u64,
    end: u64,
    waited: Duration,
}

/// What the workers need to make a batch.
#[derive(Debug)]
struct Source {
    set: Arc<ImageSet>,
    views: Views,
    sampler: Sampler,
}

#[derive(Debug)]
struct Shared {
    source: Source,
    state: Mutex<State>,
    /// Signalled when a batch may be begun or the workers are to stop.
    room: Condvar,
    /// Signalled when a batch was put on the shelf.
    made: Condvar,
}

#[derive(Debug)]
struct State {
    /// The first step that no worker has begun.
    begin: u64,
    /// No step from here on may be begun yet.
    limit: u64,
    /// No step from here on exists; lowered to stop.
    end: u64,
    /// Batches that wait for the consumer.
    shelf: BTreeMap<u64, Result<Batch>>,
    /// The order of the latest epoch that was begun.
    order: Option<(u64, Arc<Vec<u32>>)>,
}

impl Loader {
    /// Starts `threads` workers on the batches from `start` until `epochs` epochs are complete. A worker makes a whole batch, and
    /// `threads` + 1 batches at most are in the making or waiting.
    ///
    /// # Errors
    /// No thread; a sampler for another number of samples; values of the augmentation out of range; a thread that can't be started.
    pub fn new(
        set: Arc<ImageSet>,
        augment: &AugmentConfig,
        sampler: Sampler,
        start: Position,
        epochs: u64,
        threads: usize,
    ) -> Result<Self> {
        if threads == 0 {
            return Err(Error::Config("data.threads: 0 threads can't make views; expected 1 or more".to_string()));
        }
        if sampler.samples() != set.len() {
            return Err(Error::Input(format!(
                "the sampler orders {} samples, but the set has {}; make the sampler from the set's length",
                sampler.samples(),
                set.len()
            )));
        }
        let views = Views::new(augment, augment.view_size(set.shape())?)?;
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
        let shared = Arc::new(Shared {
            source: Source { set, views, sampler },
            state: Mutex::new(state),
            room: Condvar::new(),
            made: Condvar::new(),
        });
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

impl Iterator for Loader {
    type Item = Result<Batch>;

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

impl Drop for Loader {
    fn drop(&mut self) {
        self.shared.lock().end = 0;
        self.shared.room.notify_all();
        for worker in self.workers.drain(..) {
            // A worker turns its panics into an error of the batch: there is nothing more to learn here.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The state; no code that holds the lock can panic half way through a change.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes batches until there are no more.
    fn work(&self) {
        let mut bench = Bench::default();
        while let Some((step, order)) = self.begin() {
            let made = catch_unwind(AssertUnwindSafe(|| self.source.make(step, &order, &mut bench)));
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
        let epoch = self.source.sampler.position(step).epoch;
        let order = match &state.order {
            Some((known, order)) if *known == epoch => Arc::clone(order),
            _ => {
                let order = Arc::new(self.source.sampler.order(epoch));
                state.order = Some((epoch, Arc::clone(&order)));
                order
            }
        };
        Some((step, order))
    }
}

/// A worker's buffers.
#[derive(Default)]
struct Bench {
    decoder: Decoder,
    canvas: Canvas,
    numbers: [Vec<f32>; 2],
}

impl Source {
    /// Makes the batch of a step, counted from the run's first one. An image is decoded once for both of its views.
    fn make(&self, step: u64, order: &[u32], bench: &mut Bench) -> Result<Batch> {
        let Position { epoch, step } = self.sampler.position(step);
        let samples = self.sampler.step(order, step);
        let size = self.views.size();
        let length = 3 * size * size;
        let Bench { decoder, canvas, numbers } = bench;
        numbers.iter_mut().for_each(|numbers| numbers.resize(samples.len() * length, 0.0));
        for (place, sample) in samples.iter().enumerate() {
            let image = self.set.image(*sample as usize, decoder)?;
            for (view, numbers) in (0..).zip(numbers.iter_mut()) {
                let key = [self.sampler.seed(), epoch, u64::from(*sample)];
                self.views.make(image, key, view, canvas, &mut numbers[place * length..][..length]);
            }
        }
        let shape = [samples.len() as i64, 3, size as i64, size as i64];
        let labels: Vec<i64> = samples.iter().map(|sample| self.set.labels[*sample as usize]).collect();
        Ok(Batch {
            epoch,
            step_in_epoch: step,
            indices: samples.iter().map(|sample| i64::from(*sample)).collect(),
            view_1: image_tensor(&numbers[0], shape)?,
            view_2: image_tensor(&numbers[1], shape)?,
            labels: Tensor::f_from_slice(&labels)?,
        })
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
