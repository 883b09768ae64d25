//! Batches that pass the encoder in chunks: cached gradients, the same step in less memory for one more forward pass.
//!
//! The embeddings of all chunks are made without gradients, the loss over all of them gives their gradients, and each chunk passes
//! once more to hand its share on to the parameters. What a pass draws from LibTorch's generator, and what it does to running
//! statistics, must be the same both times and must not depend on what other chunks did: that is kept here.
//!
//! # Source
//! L. Gao, Y. Zhang, J. Han, J. Callan, *Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup*, 2021,
//! arXiv 2101.06983.

use crate::error::Result;
use crate::model::is_float;
use std::ops::Range;
use tch::{Kind, Tensor};

/// Consecutive samples of a batch, `chunk` at a time; the last ones may be fewer.
pub(super) fn ranges(samples: i64, chunk: i64) -> Vec<Range<i64>> {
    (0..samples).step_by(chunk as usize).map(|begin| begin..(begin + chunk).min(samples)).collect()
}

/// The seed of LibTorch's generator for a chunk, the first of which has the step's own.
///
/// The generator of a CPU looks at the lower 32 bits alone. Steps number these from below (`Plan::step_seed`), chunks from
/// above: as long as both together have fewer than 2^32 of them, no two chunks of a run have the same seed.
pub(super) fn seed(step_seed: i64, number: usize) -> i64 {
    step_seed ^ i64::from((number as u32).reverse_bits())
}

/// Rows of some samples out of `[g N, d]`, where row i of each N rows is of sample i.
pub(super) fn rows(z: &Tensor, all: i64, samples: &Range<i64>) -> Result<Tensor> {
    let groups = z.f_view([-1, all, z.size()[z.dim() - 1]])?;
    Ok(groups.f_narrow(1, samples.start, samples.end - samples.start)?.f_flatten(0, 1)?)
}

/// The rows of all chunks in the order of the whole batch: the inverse of [`rows`].
pub(super) fn joined(chunks: &[Tensor], ranges: &[Range<i64>]) -> Result<Tensor> {
    let grouped = chunks.iter().zip(ranges).map(|(z, samples)| {
        let width = z.size().last().copied().unwrap_or(0);
        Ok(z.f_view([-1, samples.end - samples.start, width])?)
    });
    Ok(Tensor::f_cat(&grouped.collect::<Result<Vec<Tensor>>>()?, 1)?.f_flatten(0, 1)?)
}

/// What a chunk of a size that is larger than `chunk`, and leaves no single sample over, would be.
pub(super) fn without_single(samples: i64, chunk: i64) -> i64 {
    (chunk + 1..samples).find(|chunk| samples % chunk != 1).unwrap_or(samples)
}

/// A model's buffers in a step of chunks. Each chunk finds them as they were before the step. In the end floating-point ones, such as
/// running statistics, are the mean of what the chunks made of them, by their samples; others, such as counts of passes, are as the last
/// chunk left them.
pub(super) struct Buffers {
    handles: Vec<Tensor>,
    before: Vec<Tensor>,
    /// How far the floating-point ones have moved, one after the other, times samples; float64.
    moved: Option<Tensor>,
}

impl Buffers {
    /// Notes how a model's buffers are.
    pub fn of(handles: Vec<Tensor>) -> Result<Buffers> {
        let before = handles.iter().map(|t| Ok(t.f_detach_copy()?)).collect::<Result<_>>()?;
        Ok(Buffers { handles, before, moved: None })
    }

    /// Puts them back.
    pub fn rewind(&self) -> Result<()> {
        let _guard = tch::no_grad_guard();
        for (handle, before) in self.handles.iter().zip(&self.before) {
            handle.shallow_clone().f_copy_(before)?;
        }
        Ok(())
    }

    /// Takes what a chunk of so many samples made of them into the mean.
    pub fn add(&mut self, samples: i64) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let (Some(now), Some(before)) = (flat(&self.handles)?, flat(&self.before)?) else { return Ok(()) };
        // What has not moved may be infinite.
        let moved = now.f_sub(&before)?.f_masked_fill(&now.f_eq_tensor(&before)?, 0.0)?.f_mul_scalar(samples)?;
        self.moved = Some(match &self.moved {
            Some(sum) => sum.f_add(&moved)?,
            None => moved,
        });
        Ok(())
    }

    /// Sets them to the mean over so many samples.
    pub fn settle(self, samples: i64) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let (Some(before), Some(moved)) = (flat(&self.before)?, self.moved) else { return Ok(()) };
        let mean = before.f_add(&moved.f_div_scalar(samples)?)?;
        let mut begin = 0;
        for handle in self.handles.iter().filter(|t| is_float(t.kind())) {
            let length = handle.numel() as i64;
            handle.shallow_clone().f_copy_(&mean.f_narrow(0, begin, length)?.f_view(&handle.size()[..])?)?;
            begin += length;
        }
        Ok(())
    }
}

/// The floating-point ones, one after the other, in float64; none where there are none.
fn flat(tensors: &[Tensor]) -> Result<Option<Tensor>> {
    let floats = tensors.iter().filter(|t| is_float(t.kind()));
    let flat = floats.map(|t| Ok(t.f_flatten(0, -1)?)).collect::<Result<Vec<Tensor>>>()?;
    Ok(if flat.is_empty() { None } else { Some(Tensor::f_cat(&flat, 0)?.f_to_kind(Kind::Double)?) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use tch::Device;

    #[test]
    fn chunks_are_all_samples_in_their_order() {
        assert_eq!(ranges(8, 3), [0..3, 3..6, 6..8]);
        assert_eq!(ranges(6, 3), [0..3, 3..6]);
        assert_eq!((without_single(257, 64), without_single(8, 7), without_single(8, 1)), (65, 8, 2));
    }

    #[test]
    fn the_first_chunk_has_the_steps_seed_and_no_two_the_same() {
        assert_eq!(seed(-7, 0), -7);
        // The lower halves, which are all that a CPU's generator looks at.
        let seeds =
            (0..1000i64).flat_map(|step| (0..1000).map(move |number| seed(0x1234_5678_9abc ^ step, number) as u32));
        assert_eq!(seeds.collect::<HashSet<u32>>().len(), 1_000_000);
    }

    #[test]
    fn rows_of_chunks_come_back_in_the_order_of_the_batch() {
        let z = Tensor::arange(30, (Kind::Float, Device::Cpu)).view([15, 2]);
        let of = ranges(5, 2);
        let cut: Vec<Tensor> = of.iter().map(|samples| rows(&z, 5, samples).unwrap()).collect();
        assert_eq!(Vec::<f32>::try_from(cut[2].flatten(0, -1)).unwrap(), [8.0, 9.0, 18.0, 19.0, 28.0, 29.0]);
        assert!(joined(&cut, &of).unwrap().equal(&z));
        assert!(rows(&z, 4, &(0..2)).is_err());
    }

    #[test]
    fn buffers_are_means_by_samples_counts_are_the_last_and_what_stays_is_not_touched() {
        let mean = Tensor::from_slice(&[1f32, f32::NEG_INFINITY, 0.1]);
        let (half, count) = (Tensor::from_slice(&[2.0, 4.0]).to_kind(Kind::Half).view([2, 1]), Tensor::from(5i64));
        let mut buffers = Buffers::of([&mean, &half, &count].map(Tensor::shallow_clone).into()).unwrap();
        for (samples, step) in [(3, 1.0), (1, 5.0)] {
            buffers.rewind().unwrap();
            let _ = mean.get(0).f_add_scalar_(step).unwrap();
            let _ = half.shallow_clone().f_add_scalar_(step).unwrap();
            let _ = count.shallow_clone().f_add_scalar_(2).unwrap();
            buffers.add(samples).unwrap();
        }
        buffers.settle(4).unwrap();
        assert_eq!(Vec::<f32>::try_from(&mean).unwrap(), [3.0, f32::NEG_INFINITY, 0.1]);
        assert_eq!(Vec::<f32>::try_from(half.flatten(0, -1).to_kind(Kind::Float)).unwrap(), [4.0, 6.0]);
        assert_eq!((half.kind(), count.int64_value(&[])), (Kind::Half, 7));
    }
}
