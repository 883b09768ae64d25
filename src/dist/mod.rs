//! The processes of one run: how they find one another, what they exchange, and what the others say when one is gone.
//!
//! All of it is PyTorch's own c10d: a TCPStore to meet at, Gloo for the CPU, NCCL for CUDA, the Reducer of
//! DistributedDataParallel for gradients.

mod gradients;
mod group;
mod place;

pub use gradients::Gradients;
pub use group::Group;
pub(crate) use group::stopped;
pub use place::Place;

use std::ops::Range;

/// The share of a rank in so many samples: shares lie one after the other, and the first ones may be one longer than the last.
pub fn share(samples: usize, rank: usize, size: usize) -> Range<usize> {
    let (each, more) = (samples / size, samples % size);
    let start = rank * each + rank.min(more);
    start..start + each + usize::from(rank < more)
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn shares_are_even_and_make_up_the_whole() {
        for samples in 0..40 {
            for size in 1..9 {
                let shares: Vec<_> = (0..size).map(|rank| share(samples, rank, size)).collect();
                assert!(shares.iter().cloned().flatten().eq(0..samples), "{samples} {size}: {shares:?}");
                let lengths = shares.iter().map(ExactSizeIterator::len);
                assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1);
            }
        }
    }
}
