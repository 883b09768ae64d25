//! The whole of a view: choices drawn, operations applied, numbers written into the batch.

use super::color::{self, Adjustment};
use super::crop::Crop;
use super::random::Keyed;
use super::simd::dispatch;
use super::{Planes, PlanesRef, blur, flip, resize};
use crate::config::augment::{AugmentConfig, MAX_EDGE, NormalizeConfig};
use crate::error::{Error, Result};

/// Makes views of the images of one set: all images have one shape, all views another.
#[derive(Clone, Debug)]
pub struct Views {
    config: AugmentConfig,
    channels: usize,
    height: usize,
    width: usize,
    size: usize,
}

/// Every random choice of a view.
#[derive(Clone, Debug, PartialEq)]
pub struct ViewChoices {
    /// The part of the image.
    pub crop: Crop,
    /// Whether left and right change places.
    pub flip: bool,
    /// Changes of colour, in this order.
    pub jitter: [Option<Adjustment>; 4],
    /// Whether the view is grey.
    pub grey: bool,
    /// Standard deviation of the blur.
    pub blur: Option<f64>,
}

/// Buffers for making views, to be used again: one for each thread.
#[derive(Clone, Debug, Default)]
pub struct Canvas {
    planes: Planes,
    resize: resize::Scratch,
    blur: blur::Scratch,
}

impl Views {
    /// Views for images of `channels` (1 or 3) planes of `height` x `width` bytes.
    ///
    /// # Errors
    /// Values out of range, a view too small for its blur, images of another number of channels or beyond 4096 pixels.
    pub fn new(config: &AugmentConfig, channels: usize, height: usize, width: usize) -> Result<Self> {
        config.validate()?;
        let edges = 1..=MAX_EDGE;
        if !matches!(channels, 1 | 3) || !edges.contains(&height) || !edges.contains(&width) {
            return Err(Error::Input(format!(
                "views need images of 1 or 3 channels and edges from 1 to {MAX_EDGE} pixels; these are {channels} x {height} x {width}"
            )));
        }
        let size = config.view_size(height, width);
        if config.blur.is_some() && blur::kernel_size(size) / 2 >= size {
            return Err(Error::Config(format!(
                "augment.blur: views of {size} pixels are too small for a kernel of {}; remove the blur or raise augment.size",
                blur::kernel_size(size)
            )));
        }
        Ok(Views { config: config.clone(), channels, height, width, size })
    }

    /// Edge of the square views.
    ///
    /// # Units
    /// Pixels.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Draws the choices for a view.
    ///
    /// # Source
    /// SimCLR, appendix A, in the order that its PyTorch versions share: crop, flip, jitter, grey, blur.
    pub fn draw(&self, rng: &mut Keyed) -> ViewChoices {
        let AugmentConfig { crop, flip, jitter, grayscale, blur, .. } = &self.config;
        let strengths = [jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue];
        ViewChoices {
            crop: Crop::random(self.height, self.width, crop.scale, crop.ratio, rng),
            flip: rng.chance(*flip),
            jitter: if rng.chance(jitter.p) { color::jitter(strengths, rng) } else { [None; 4] },
            grey: rng.chance(*grayscale),
            blur: blur.as_ref().and_then(|b| rng.chance(b.p).then(|| rng.uniform(b.sigma))),
        }
    }

    /// Makes the view that the choices describe.
    ///
    /// # Shapes
    /// `image`: `channels * height * width` bytes, planes one after another. `out`: `3 * size * size` numbers, likewise.
    ///
    /// # Units
    /// From 0 to 1, or normalised where the configuration says so.
    pub fn render(&self, image: &[u8], choices: &ViewChoices, canvas: &mut Canvas, out: &mut [f32]) {
        let Canvas { planes, resize: scratch, blur: blur_scratch } = canvas;
        resize::resized_crop(self.image(image), choices.crop, [self.size; 2], scratch, planes);
        if choices.flip {
            flip::horizontal(planes);
        }
        choices.jitter.iter().flatten().for_each(|step| step.apply(planes));
        if choices.grey {
            color::to_grey(planes);
        }
        if let Some(sigma) = choices.blur {
            blur::gaussian(planes, blur::kernel_size(self.size), sigma, blur_scratch);
        }
        write(planes, self.config.normalize.as_ref(), out);
    }

    /// Writes an image as evaluation sees it: whole, resized where its shape is another, with no random change.
    ///
    /// # Shapes
    /// As [`Views::render`].
    pub fn plain(&self, image: &[u8], canvas: &mut Canvas, out: &mut [f32]) {
        let whole = Crop::whole(self.height, self.width);
        resize::resized_crop(self.image(image), whole, [self.size; 2], &mut canvas.resize, &mut canvas.planes);
        write(&canvas.planes, self.config.normalize.as_ref(), out);
    }

    /// An image of the set.
    fn image<'a>(&self, bytes: &'a [u8]) -> PlanesRef<'a> {
        PlanesRef { channels: self.channels, height: self.height, width: self.width, bytes }
    }
}

/// Writes bytes as numbers from 0 to 1 (normalised on request); a grey plane is written three times.
///
/// # Source
/// torchvision's `to_tensor` and `normalize`, operation for operation.
fn write(planes: &Planes, normalize: Option<&NormalizeConfig>, out: &mut [f32]) {
    let area = planes.area();
    for (channel, out) in out.chunks_exact_mut(area).enumerate() {
        let plane = if planes.channels == 1 { 0 } else { channel };
        let plane = &planes.bytes[plane * area..][..area];
        dispatch(
            #[inline(always)]
            || match normalize {
                None => out.iter_mut().zip(plane).for_each(|(x, byte)| *x = f32::from(*byte) / 255.0),
                Some(NormalizeConfig { mean, std }) => {
                    let (mean, std) = (mean[channel], std[channel]);
                    out.iter_mut().zip(plane).for_each(|(x, byte)| *x = (f32::from(*byte) / 255.0 - mean) / std);
                }
            },
        );
    }
}
