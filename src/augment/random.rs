//! Randomness as a pure function of what it is for: no generator is shared, so neither the number of threads nor a restart in the
//! middle of an epoch can change a choice.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// What a generator is for. Two purposes never share a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The order of an epoch's samples.
    Order,
    /// The choices for one view of one sample in one epoch.
    View {
        /// Index of the sample in its set.
        sample: u64,
        /// Number of the view, from 0.
        view: u32,
    },
    /// The content of a sample of the synthetic set.
    Synthetic {
        /// Index of the sample in its split.
        sample: u64,
        /// Number of the split.
        split: u32,
    },
    /// The order of the batches in a part of an epoch that is sorted by length.
    Window {
        /// Number of the part in its epoch.
        number: u64,
    },
}

/// A ChaCha8 generator whose 32-byte key spells out the run's seed, the epoch and the purpose.
///
/// # Numerics
/// Key: seed, epoch, sample (u64 each), purpose, view or split (u32 each), little endian. The streams of different keys are
/// independent, so similar seeds or neighbouring samples have nothing in common.
#[derive(Clone, Debug)]
pub struct Keyed(ChaCha8Rng);

impl Keyed {
    /// The generator for a purpose.
    pub fn new(seed: u64, epoch: u64, purpose: Purpose) -> Self {
        let (kind, sample, view) = match purpose {
            Purpose::Order => (0_u32, 0, 0),
            Purpose::View { sample, view } => (1, sample, view),
            Purpose::Synthetic { sample, split } => (2, sample, split),
            Purpose::Window { number } => (3, number, 0),
        };
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&epoch.to_le_bytes());
        key[16..24].copy_from_slice(&sample.to_le_bytes());
        key[24..28].copy_from_slice(&kind.to_le_bytes());
        key[28..].copy_from_slice(&view.to_le_bytes());
        Keyed(ChaCha8Rng::from_seed(key))
    }

    /// Uniform in `[0, 1)`, 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in `[range[0], range[1])`.
    pub fn uniform(&mut self, range: [f64; 2]) -> f64 {
        range[0] + (range[1] - range[0]) * self.unit()
    }

    /// True with the given probability; 0 is never and 1 is always.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Uniform in `0..bound`, without bias; 0 for a bound of 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        // The high half of a 64-bit product is uniform once the low halves that would favour some values are drawn again.
        let unfair = bound.wrapping_neg().checked_rem(bound).unwrap_or(0);
        loop {
            let product = u64::from(self.0.next_u32()) * u64::from(bound);
            if product as u32 >= unfair {
                return (product >> 32) as u32;
            }
        }
    }

    /// Standard normal, by Box and Muller's formula.
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Puts a slice into a uniformly random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u32 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_gives_one_stream_and_each_part_of_it_counts() {
        let first = |seed, epoch, purpose| Keyed::new(seed, epoch, purpose).unit();
        let view = |sample, view| Purpose::View { sample, view };
        let all = [
            first(1, 0, view(0, 0)),
            first(2, 0, view(0, 0)),
            first(1, 1, view(0, 0)),
            first(1, 0, view(1, 0)),
            first(1, 0, view(0, 1)),
            first(1, 0, Purpose::Order),
            first(1, 0, Purpose::Synthetic { sample: 0, split: 0 }),
            first(1, 0, Purpose::Window { number: 0 }),
        ];
        assert_eq!(all[0], first(1, 0, view(0, 0)));
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b), "{all:?}");
        }
    }

    #[test]
    fn bounded_integers_are_uniform() {
        let mut rng = Keyed::new(7, 0, Purpose::Order);
        let mut counts = [0_u32; 7];
        (0..70_000).for_each(|_| counts[rng.below(7) as usize] += 1);
        // Six standard deviations of a binomial count: sqrt(70000 / 7 * 6 / 7) = 93.
        assert!(counts.iter().all(|c| c.abs_diff(10_000) < 6 * 93), "{counts:?}");
        assert_eq!((rng.below(1), rng.below(0)), (0, 0));
    }

    #[test]
    fn extreme_probabilities_are_certain() {
        let mut rng = Keyed::new(7, 0, Purpose::Order);
        assert!((0..1000).all(|_| rng.chance(1.0) && !rng.chance(0.0)));
    }
}
