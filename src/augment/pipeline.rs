//! The whole of a view: choices drawn, operations applied, numbers written into the batch.

use super::color::{self, Adjustment};
use super::crop::Crop;
use super::random::{Keyed, Purpose};
use super::simd::dispatch;
use super::{Planes, PlanesRef, blur, flip, resize};
use crate::config::augment::{AugmentConfig, MAX_EDGE, NormalizeConfig};
use crate::error::{Error, Result};

/// Makes views of images: of one shape, whatever that of the images is.
#[derive(Clone, Debug)]
pub struct Views {
    config: AugmentConfig,
    size: usize,
}

/// How evaluation brings an image to the size of the views.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The whole image, resized: for sets whose images have one shape.
    Whole,
    /// The shorter edge to [`Fit::shorter_edge`], then the central part: for images of all shapes.
    Central,
}

impl Fit {
    /// The length that the shorter edge gets: 256 for views of 224, and in that ratio.
    ///
    /// # Units
    /// Pixels.
    ///
    /// # Source
    /// torchvision's reference for evaluation on ImageNet: `Resize(256)`, `CenterCrop(224)`.
    pub fn shorter_edge(size: usize) -> usize {
        (size * 256 + 112) / 224
    }
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
    /// An image before its central part is taken.
    larger: Planes,
    resize: resize::Scratch,
    blur: blur::Scratch,
}

impl Views {
    /// Views of `size` x `size` pixels.
    ///
    /// # Errors
    /// Values out of range, a view too small for its blur.
    pub fn new(config: &AugmentConfig, size: usize) -> Result<Self> {
        config.validate()?;
        if !(1..=MAX_EDGE).contains(&size) {
            return Err(Error::Config(format!(
                "augment.size: views of {size} pixels; expected 1 to {MAX_EDGE} (the images' own size where it is left out)"
            )));
        }
        if config.blur.is_some() && blur::kernel_size(size) / 2 >= size {
            return Err(Error::Config(format!(
                "augment.blur: views of {size} pixels are too small for a kernel of {}; remove the blur or raise augment.size",
                blur::kernel_size(size)
            )));
        }
        Ok(Views { config: config.clone(), size })
    }

    /// Edge of the square views.
    ///
    /// # Units
    /// Pixels.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Draws the choices for a view of an image of `height` x `width` pixels.
    ///
    /// # Source
    /// SimCLR, appendix A, in the order that its PyTorch versions share: crop, flip, jitter, grey, blur.
    pub fn draw(&self, [height, width]: [usize; 2], rng: &mut Keyed) -> ViewChoices {
        let AugmentConfig { crop, flip, jitter, grayscale, blur, .. } = &self.config;
        let strengths = [jitter.brightness, jitter.contrast, jitter.saturation, jitter.hue];
        ViewChoices {
            crop: Crop::random(height, width, crop.scale, crop.ratio, rng),
            flip: rng.chance(*flip),
            jitter: if rng.chance(jitter.p) { color::jitter(strengths, rng) } else { [None; 4] },
            grey: rng.chance(*grayscale),
            blur: blur.as_ref().and_then(|b| rng.chance(b.p).then(|| rng.uniform(b.sigma))),
        }
    }

    /// Makes the view that the choices describe.
    ///
    /// # Shapes
    /// `out`: `3 * size * size` numbers, planes one after another.
    ///
    /// # Units
    /// From 0 to 1, or normalised where the configuration says so.
    pub fn render(&self, image: PlanesRef<'_>, choices: &ViewChoices, canvas: &mut Canvas, out: &mut [f32]) {
        let Canvas { planes, resize: scratch, blur: blur_scratch, .. } = canvas;
        resize::resized_crop(image, choices.crop, [self.size; 2], scratch, planes);
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

    /// Makes view number `view` of a sample in an epoch, as training computes with: a pure function of these and the seed.
    ///
    /// # Shapes
    /// As [`Views::render`].
    pub fn make(
        &self,
        image: PlanesRef<'_>,
        [seed, epoch, sample]: [u64; 3],
        view: u32,
        canvas: &mut Canvas,
        out: &mut [f32],
    ) {
        let mut rng = Keyed::new(seed, epoch, Purpose::View { sample, view });
        let choices = self.draw([image.height, image.width], &mut rng);
        self.render(image, &choices, canvas, out);
    }

    /// Writes an image as evaluation sees it, with no random change.
    ///
    /// # Shapes
    /// As [`Views::render`].
    ///
    /// # Source
    /// Pillow's bilinear `resize`, and torchvision's `Resize` and `CenterCrop` on such images.
    pub fn plain(&self, image: PlanesRef<'_>, fit: Fit, canvas: &mut Canvas, out: &mut [f32]) {
        let Canvas { planes, resize: scratch, larger, .. } = canvas;
        let (height, width, size) = (image.height, image.width, self.size);
        let whole = Crop::whole(height, width);
        match fit {
            Fit::Whole => resize::resized_crop(image, whole, [size; 2], scratch, planes),
            Fit::Central => {
                let (short, long) = (height.min(width), height.max(width));
                let shorter = Fit::shorter_edge(size);
                // The longer edge is cut to an integer, the margin rounded half to even, as in torchvision.
                let longer = (shorter as u64 * long as u64 / short as u64) as usize;
                let resized = if height <= width { [shorter, longer] } else { [longer, shorter] };
                resize::resized_crop(image, whole, resized, scratch, larger);
                let margin = |edge: usize| ((edge - size) as f64 / 2.0).round_ties_even() as usize;
                let crop = Crop { top: margin(resized[0]), left: margin(resized[1]), height: size, width: size };
                crop.copy(larger.borrowed(), planes);
            }
        }
        write(planes, self.config.normalize.as_ref(), out);
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
