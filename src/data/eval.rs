//! Images as evaluation sees them: every one once, in order, with no random change.

use super::vision::{Decoder, ImageSet};
use crate::augment::{Canvas, Fit, Views};
use crate::config::augment::{AugmentConfig, NormalizeConfig};
use crate::error::{Error, Result};
use rayon::prelude::*;
use tch::Tensor;

/// A part of a set, in order.
#[derive(Debug)]
pub struct EvalBatch {
    /// Index of the first sample.
    pub first: usize,
    /// The images.
    ///
    /// # Shapes
    /// `[n, 3, size, size]`, float32.
    pub images: Tensor,
    /// Their classes.
    ///
    /// # Shapes
    /// `[n]`, int64.
    pub labels: Tensor,
}

/// The batches of a set; the last one may be smaller.
#[derive(Debug)]
pub struct EvalBatches<'a> {
    set: &'a ImageSet,
    views: Views,
    fit: Fit,
    batch: usize,
    next: usize,
    buffer: Vec<f32>,
}

/// How evaluation brings the images of a set to one size.
pub fn fit_of(set: &ImageSet) -> Fit {
    if set.shape().is_some() { Fit::Whole } else { Fit::Central }
}

/// Batches of a set for evaluation, `size` pixels an edge.
///
/// # Units
/// Pixels from 0 to 1, or normalised as `normalize` says.
///
/// # Errors
/// A batch of 0, a size or values for the normalisation out of range.
pub fn eval_batches<'a>(
    set: &'a ImageSet,
    size: usize,
    normalize: Option<&NormalizeConfig>,
    batch: usize,
) -> Result<EvalBatches<'a>> {
    if batch == 0 {
        return Err(Error::Config("the evaluation batch has 0 samples; expected 1 or more".to_string()));
    }
    let config = AugmentConfig { normalize: normalize.cloned(), ..AugmentConfig::default() };
    let views = Views::new(&config, size)?;
    Ok(EvalBatches { set, views, fit: fit_of(set), batch, next: 0, buffer: Vec::new() })
}

impl Iterator for EvalBatches<'_> {
    type Item = Result<EvalBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let first = self.next;
        let end = first.saturating_add(self.batch).min(self.set.len());
        if first == end {
            return None;
        }
        self.next = end;
        Some(self.make(first, end))
    }
}

impl EvalBatches<'_> {
    /// Makes a batch, its images side by side on all processors.
    fn make(&mut self, first: usize, end: usize) -> Result<EvalBatch> {
        let (set, views, fit) = (self.set, &self.views, self.fit);
        let size = views.size();
        self.buffer.resize((end - first) * 3 * size * size, 0.0);
        self.buffer.par_chunks_exact_mut(3 * size * size).enumerate().try_for_each_init(
            <(Decoder, Canvas)>::default,
            |(decoder, canvas), (index, out)| {
                views.plain(set.image(first + index, decoder)?, fit, canvas, out);
                Ok::<(), Error>(())
            },
        )?;
        let shape = [(end - first) as i64, 3, size as i64, size as i64];
        let images = image_tensor(&self.buffer, shape)?;
        Ok(EvalBatch { first, images, labels: Tensor::f_from_slice(&set.labels[first..end])? })
    }
}

/// A tensor of its own with these numbers.
pub(crate) fn image_tensor(numbers: &[f32], shape: [i64; 4]) -> Result<Tensor> {
    Ok(Tensor::f_from_slice(numbers)?.f_view(shape)?)
}
