//! Batches of two augmented views of each image.

use super::{Decoder, ImageSet};
use crate::augment::{Canvas, Views};
use crate::config::augment::AugmentConfig;
use crate::data::eval::image_tensor;
use crate::data::loader::{Loader, Source};
use crate::data::sampler::{Position, Sampler};
use crate::error::{Error, Result};
use std::sync::Arc;
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

/// Images, and how views are made of them.
pub struct AugmentedImages {
    set: Arc<ImageSet>,
    views: Views,
}

impl Loader<AugmentedImages> {
    /// Starts `threads` workers, see [`Loader::of`].
    ///
    /// # Errors
    /// As there; a sampler for another number of samples; values of the augmentation out of range.
    pub fn new(
        set: Arc<ImageSet>,
        augment: &AugmentConfig,
        sampler: Sampler,
        start: Position,
        epochs: u64,
        threads: usize,
    ) -> Result<Self> {
        if sampler.samples() != set.len() {
            return Err(Error::Input(format!(
                "the sampler orders {} samples, but the set has {}; make the sampler from the set's length",
                sampler.samples(),
                set.len()
            )));
        }
        Loader::of(AugmentedImages::new(set, augment)?, sampler, start, epochs, threads)
    }
}

impl AugmentedImages {
    /// Views of these images.
    ///
    /// # Errors
    /// Values of the augmentation out of range.
    pub fn new(set: Arc<ImageSet>, augment: &AugmentConfig) -> Result<Self> {
        let views = Views::new(augment, augment.view_size(set.shape())?)?;
        Ok(AugmentedImages { set, views })
    }
}

/// A worker's buffers.
#[derive(Default)]
pub struct Bench {
    decoder: Decoder,
    canvas: Canvas,
    numbers: [Vec<f32>; 2],
}

impl Source for AugmentedImages {
    type Batch = Batch;
    type Bench = Bench;

    /// An image is decoded once for both of its views.
    fn make(&self, sampler: &Sampler, position: Position, order: &[u32], bench: &mut Bench) -> Result<Batch> {
        let Position { epoch, step } = position;
        let samples = sampler.step(order, step);
        let size = self.views.size();
        let length = 3 * size * size;
        let Bench { decoder, canvas, numbers } = bench;
        numbers.iter_mut().for_each(|numbers| numbers.resize(samples.len() * length, 0.0));
        for (place, sample) in samples.iter().enumerate() {
            let image = self.set.image(*sample as usize, decoder)?;
            for (view, numbers) in (0..).zip(numbers.iter_mut()) {
                let key = [sampler.seed(), epoch, u64::from(*sample)];
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
