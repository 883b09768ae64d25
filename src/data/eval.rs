//! Images as evaluation sees them: every one once, in order, with no random change.

use super::vision::ImageSet;
use crate::augment::{Canvas, Views};
use crate::config::augment::{AugmentConfig, NormalizeConfig};
use crate::error::{Error, Result};
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
    batch: usize,
    next: usize,
    canvas: Canvas,
    buffer: Vec<f32>,
}

/// Batches of a set for evaluation, resized to `size` where the images are of another shape.
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
    let config = AugmentConfig { size: Some(size), normalize: normalize.cloned(), ..AugmentConfig::default() };
    let views = Views::new(&config, set.channels, set.height, set.width)?;
    Ok(EvalBatches { set, views, batch, next: 0, canvas: Canvas::default(), buffer: Vec::new() })
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
        let size = self.views.size();
        self.buffer.resize((end - first) * 3 * size * size, 0.0);
        for (sample, out) in (first..end).zip(self.buffer.chunks_exact_mut(3 * size * size)) {
            self.views.plain(self.set.image(sample), &mut self.canvas, out);
        }
        let shape = [(end - first) as i64, 3, size as i64, size as i64];
        let images = image_tensor(&self.buffer, shape);
        let labels = Tensor::f_from_slice(&self.set.labels[first..end]).map_err(Error::from);
        Some(images.and_then(|images| Ok(EvalBatch { first, images, labels: labels? })))
    }
}

/// A tensor of its own with these numbers.
pub(super) fn image_tensor(numbers: &[f32], shape: [i64; 4]) -> Result<Tensor> {
    Ok(Tensor::f_from_slice(numbers)?.f_view(shape)?)
}
