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

/// What an image is made into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The image as evaluation sees it, with no random change.
    Plain,
    /// A random view of it: a pure function of seed, number, and the image's index in its set. No run trains on one of them.
    View {
        /// The seed.
        seed: u64,
        /// The number of the view, from 0.
        number: u64,
    },
}

/// The number that [`Look::View`] has among the views of an epoch: a run trains on 0 and 1.
const BESIDE_TRAINING: u32 = 2;

/// Pictures of some images of a set, made side by side on all processors. `buffer` is for numbers, to be used again.
///
/// # Shapes
/// `[indices, 3, size, size]`, float32, with the size of the views.
///
/// # Units
/// Pixels from 0 to 1, or normalised as `views` does.
///
/// # Errors
/// A file that cannot be read or is no whole image; an image that there is not.
pub fn pictures(set: &ImageSet, views: &Views, indices: &[usize], look: Look, buffer: &mut Vec<f32>) -> Result<Tensor> {
    if let Some(index) = indices.iter().find(|&&index| index >= set.len()) {
        return Err(Error::Input(format!("image {index}, counted from 0, was asked for, of {}", set.len())));
    }
    let (size, fit) = (views.size(), fit_of(set));
    buffer.resize(indices.len() * 3 * size * size, 0.0);
    buffer.par_chunks_exact_mut(3 * size * size).zip(indices).try_for_each_init(
        <(Decoder, Canvas)>::default,
        |(decoder, canvas), (out, &index)| {
            let image = set.image(index, decoder)?;
            match look {
                Look::Plain => views.plain(image, fit, canvas, out),
                Look::View { seed, number } => {
                    views.make(image, [seed, number, index as u64], BESIDE_TRAINING, canvas, out);
                }
            }
            Ok::<(), Error>(())
        },
    )?;
    image_tensor(buffer, [indices.len() as i64, 3, size as i64, size as i64])
}

/// The batches of a set; the last one may be smaller.
#[derive(Debug)]
pub struct EvalBatches<'a> {
    set: &'a ImageSet,
    views: Views,
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
    Ok(EvalBatches { set, views, batch, next: 0, buffer: Vec::new() })
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
    fn make(&mut self, first: usize, end: usize) -> Result<EvalBatch> {
        let indices: Vec<usize> = (first..end).collect();
        let images = pictures(self.set, &self.views, &indices, Look::Plain, &mut self.buffer)?;
        Ok(EvalBatch { first, images, labels: Tensor::f_from_slice(&self.set.labels[first..end])? })
    }
}

/// A tensor of its own with these numbers.
pub(crate) fn image_tensor(numbers: &[f32], shape: [i64; 4]) -> Result<Tensor> {
    Ok(Tensor::f_from_slice(numbers)?.f_view(shape)?)
}
