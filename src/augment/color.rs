//! Brightness, contrast, saturation and grey, with the rounding of PIL's `ImageEnhance`; and hue through its HSV.
//!
//! A grey image stays one plane: PIL's operations on the RGB image of three equal planes leave them equal, saturation and hue even
//! unchanged.

use super::random::Keyed;
use super::simd::{cut, dispatch};
use super::{Planes, hue};

/// One operation of a colour jitter with its factor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Adjustment {
    /// 0 is black, 1 the image.
    Brightness(f64),
    /// 0 is the mean grey, 1 the image.
    Contrast(f64),
    /// 0 is grey, 1 the image.
    Saturation(f64),
    /// A turn of the colour circle, from -0.5 to 0.5.
    Hue(f64),
}

impl Adjustment {
    /// Changes an image.
    ///
    /// # Source
    /// `adjust_brightness`, `adjust_contrast`, `adjust_saturation`, `adjust_hue` of torchvision on PIL images, bit for bit.
    pub fn apply(self, image: &mut Planes) {
        match self {
            Adjustment::Brightness(factor) => blend_with(image, 0, factor as f32),
            Adjustment::Contrast(factor) => {
                let mean = mean_grey(image);
                blend_with(image, mean, factor as f32);
            }
            Adjustment::Saturation(factor) => saturate(image, factor as f32),
            Adjustment::Hue(factor) => {
                // The cast to an integer cuts towards zero, the one to a byte wraps, so that -1 is 255.
                let turn = (factor * 255.0) as i32 as u8;
                if let Some(rgb) = image.rgb_mut() {
                    dispatch(
                        #[inline(always)]
                        || hue::rotate(rgb, turn),
                    );
                }
            }
        }
    }
}

/// Draws a colour jitter: the factors uniformly around 1 (hue: around 0), the order uniformly. A strength of 0 leaves its operation out.
///
/// # Source
/// `torchvision.transforms.ColorJitter.get_params`.
pub fn jitter(strengths: [f64; 4], rng: &mut Keyed) -> [Option<Adjustment>; 4] {
    let [brightness, contrast, saturation, hue] = strengths;
    let around_one = |strength: f64| [(1.0 - strength).max(0.0), 1.0 + strength];
    let mut steps = [
        Adjustment::Brightness(rng.uniform(around_one(brightness))),
        Adjustment::Contrast(rng.uniform(around_one(contrast))),
        Adjustment::Saturation(rng.uniform(around_one(saturation))),
        Adjustment::Hue(rng.uniform([-hue, hue])),
    ]
    .map(Some);
    for (step, strength) in steps.iter_mut().zip(strengths) {
        if strength == 0.0 {
            *step = None;
        }
    }
    rng.shuffle(&mut steps);
    steps
}

/// Makes an RGB image grey, in three equal planes.
///
/// # Source
/// `torchvision.transforms.functional.to_grayscale(img, 3)`, bit for bit.
pub fn to_grey(image: &mut Planes) {
    let Some([r, g, b]) = image.rgb_mut() else { return };
    dispatch(
        #[inline(always)]
        || {
            for ((r, g), b) in r.iter_mut().zip(g.iter()).zip(b.iter()) {
                *r = luma(*r, *g, *b);
            }
        },
    );
    g.copy_from_slice(r);
    b.copy_from_slice(r);
}

/// ITU-R 601-2 luma in PIL's fixed point; equal channels give that value itself.
#[inline(always)]
fn luma(r: u8, g: u8, b: u8) -> u8 {
    ((u32::from(r) * 19595 + u32::from(g) * 38470 + u32::from(b) * 7471 + 0x8000) >> 16) as u8
}

/// `Image.blend` of two bytes: in single precision, cut towards zero, clipped.
#[inline(always)]
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    let x = f32::from(from) + factor * (i32::from(to) - i32::from(from)) as f32;
    let x = if x < 0.0 { 0.0 } else { x };
    cut(if x > 255.0 { 255.0 } else { x })
}

fn blend_with(image: &mut Planes, from: u8, factor: f32) {
    dispatch(
        #[inline(always)]
        || {
            for value in &mut image.bytes {
                *value = blend(from, *value, factor);
            }
        },
    );
}

/// The mean of the grey image, rounded.
fn mean_grey(image: &mut Planes) -> u8 {
    let area = image.area();
    let total: u64 = match image.rgb_mut() {
        // Blocks of 2^16 pixels keep the sums in 32 bits.
        Some([r, g, b]) => dispatch(
            #[inline(always)]
            || {
                let blocks = r.chunks(1 << 16).zip(g.chunks(1 << 16)).zip(b.chunks(1 << 16));
                blocks
                    .map(|((r, g), b)| {
                        let greys = r.iter().zip(g).zip(b).map(|((r, g), b)| u32::from(luma(*r, *g, *b)));
                        u64::from(greys.sum::<u32>())
                    })
                    .sum()
            },
        ),
        None => image.bytes.iter().map(|v| u64::from(*v)).sum(),
    };
    (total as f64 / area.max(1) as f64 + 0.5) as u8
}

fn saturate(image: &mut Planes, factor: f32) {
    let Some([r, g, b]) = image.rgb_mut() else { return };
    dispatch(
        #[inline(always)]
        || {
            for ((r, g), b) in r.iter_mut().zip(g.iter_mut()).zip(b.iter_mut()) {
                let grey = luma(*r, *g, *b);
                *r = blend(grey, *r, factor);
                *g = blend(grey, *g, factor);
                *b = blend(grey, *b, factor);
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::random::Purpose;

    fn every_grey() -> Planes {
        Planes { channels: 1, height: 16, width: 16, bytes: (0..=255).collect() }
    }

    #[test]
    fn one_plane_stands_for_three_equal_ones() {
        for step in [
            Adjustment::Brightness(1.37),
            Adjustment::Contrast(0.41),
            Adjustment::Contrast(1.8),
            Adjustment::Saturation(0.2),
            Adjustment::Saturation(1.8),
            Adjustment::Hue(0.17),
        ] {
            let mut grey = every_grey();
            let mut rgb = Planes { channels: 3, bytes: grey.bytes.repeat(3), ..grey.clone() };
            step.apply(&mut grey);
            step.apply(&mut rgb);
            assert_eq!(rgb.bytes, grey.bytes.repeat(3), "{step:?}");
        }
    }

    #[test]
    fn a_strength_of_zero_leaves_its_operation_out() {
        let mut rng = Keyed::new(0, 0, Purpose::Order);
        let steps = jitter([0.0, 0.4, 0.0, 0.1], &mut rng);
        let kept: Vec<_> = steps.iter().flatten().collect();
        assert_eq!(kept.len(), 2);
        assert!(kept.iter().all(|s| matches!(s, Adjustment::Contrast(_) | Adjustment::Hue(_))));
    }
}
