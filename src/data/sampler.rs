//! The order of an epoch: a pure function of (seed, epoch), so that any step can be gone to directly.

use crate::augment::random::{Keyed, Purpose};
use crate::error::{Error, Result};
use std::ops::Range;

/// Which samples each training step sees. What does not fill a batch at the end of an epoch is left out; each epoch leaves out others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampler {
    samples: usize,
    batch: usize,
    seed: u64,
    /// The part of a batch that this process sees: its first sample, and the one behind its last.
    share: (usize, usize),
}

/// A step of a run, counted from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The epoch.
    pub epoch: u64,
    /// The step in the epoch.
    pub step: u64,
}

impl Sampler {
    /// The order for `samples` samples in batches of `batch`.
    ///
    /// # Errors
    /// A batch below 2, which has no negatives, or above the number of samples.
    pub fn new(samples: usize, batch: usize, seed: u64) -> Result<Self> {
        if batch < 2 {
            return Err(Error::Config(format!(
                "train.batch_size: {batch} is too small; contrastive training needs 2 or more, as a sample alone has no negatives"
            )));
        }
        if batch > samples && samples < 2 {
            return Err(Error::Config(format!(
                "data: expected at least 2 samples, since one alone has no negatives, found {samples}"
            )));
        }
        if batch > samples {
            return Err(Error::Config(format!(
                "train.batch_size: {batch} does not fit {samples} samples; expected 2 to {samples}"
            )));
        }
        if samples > u32::MAX as usize {
            return Err(Error::Config(format!("data: {samples} samples; at most {} are supported", u32::MAX)));
        }
        Ok(Sampler { samples, batch, seed, share: (0, batch) })
    }

    /// The same batches, of which only these samples are seen: those of one of several processes.
    ///
    /// # Errors
    /// No sample, or some that a batch does not have.
    pub fn sharing(self, share: Range<usize>) -> Result<Self> {
        if share.is_empty() || share.end > self.batch {
            return Err(Error::Config(format!(
                "train.batch_size: {} samples have no share {share:?}; expected at least one sample for each process",
                self.batch
            )));
        }
        Ok(Sampler { share: (share.start, share.end), ..self })
    }

    /// The samples of a batch that this process sees.
    pub fn share(&self) -> Range<usize> {
        self.share.0..self.share.1
    }

    /// Samples of the set.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Samples of a batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The run's seed.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Full batches of an epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        (self.samples / self.batch) as u64
    }

    /// The position after `steps` steps of a run.
    pub fn position(&self, steps: u64) -> Position {
        Position { epoch: steps / self.steps_per_epoch(), step: steps % self.steps_per_epoch() }
    }

    /// The samples of an epoch in the order that it sees them.
    pub fn order(&self, epoch: u64) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.samples as u32).collect();
        Keyed::new(self.seed, epoch, Purpose::Order).shuffle(&mut order);
        order
    }

    /// The samples of a step that this process sees, out of its epoch's order.
    pub fn step<'a>(&self, order: &'a [u32], step: u64) -> &'a [u32] {
        &order[step as usize * self.batch..][self.share()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_a_permutation_that_seed_and_epoch_decide() {
        let sampler = Sampler::new(1000, 64, 3).unwrap();
        let order = sampler.order(5);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..1000));
        assert_eq!(order, sampler.order(5));
        assert_ne!(order, sampler.order(6));
        assert_ne!(order, Sampler::new(1000, 64, 4).unwrap().order(5));
        // Another batch size is another cut of the same order.
        assert_eq!(order, Sampler::new(1000, 10, 3).unwrap().order(5));
    }

    #[test]
    fn steps_are_counted_without_the_partial_batch() {
        let sampler = Sampler::new(1000, 64, 3).unwrap();
        assert_eq!(sampler.steps_per_epoch(), 15);
        assert_eq!(sampler.position(31), Position { epoch: 2, step: 1 });
        assert_eq!(sampler.step(&sampler.order(0), 14).len(), 64);
    }

    /// Every sample of every full batch is seen by one process, in the order of one process alone.
    #[test]
    fn shares_make_up_the_batches() {
        let whole = Sampler::new(50, 8, 3).unwrap();
        let order = whole.order(0);
        for ends in [&[8][..], &[4, 8], &[3, 6, 8]] {
            let shares: Vec<_> = [0].iter().chain(ends).zip(ends).map(|(start, end)| *start..*end).collect();
            for step in 0..whole.steps_per_epoch() {
                let seen =
                    shares.iter().flat_map(|share| whole.sharing(share.clone()).unwrap().step(&order, step).to_vec());
                assert_eq!(seen.collect::<Vec<_>>(), whole.step(&order, step));
            }
        }
        for wrong in [3..3, 4..9_usize] {
            assert_eq!(whole.sharing(wrong).unwrap_err().exit_code(), 2);
        }
    }

    #[test]
    fn first_places_are_uniform() {
        // Each of 8 samples comes first in a binomial number of 8000 epochs: 1000, standard deviation 30.
        let sampler = Sampler::new(8, 2, 1).unwrap();
        let mut counts = [0_u32; 8];
        (0..8000).for_each(|epoch| counts[sampler.order(epoch)[0] as usize] += 1);
        assert!(counts.iter().all(|c| c.abs_diff(1000) < 5 * 30), "{counts:?}");
    }

    #[test]
    fn impossible_batches_are_refused_with_the_numbers() {
        let e = Sampler::new(100, 1, 0).unwrap_err();
        assert!(e.exit_code() == 2 && e.to_string().contains("train.batch_size: 1 "), "{e}");
        let e = Sampler::new(100, 101, 0).unwrap_err();
        assert!(e.exit_code() == 2 && e.to_string().contains("101") && e.to_string().contains("100 samples"), "{e}");
        assert!(Sampler::new(100, 100, 0).is_ok());
    }
}
