//! The part of an image that a view shows: random area, aspect ratio and place.

use super::random::Keyed;
use super::{Planes, PlanesRef};

/// A rectangle inside an image.
///
/// # Units
/// Pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crop {
    /// First row.
    pub top: usize,
    /// First column.
    pub left: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl Crop {
    /// The whole image.
    pub fn whole(height: usize, width: usize) -> Self {
        Crop { top: 0, left: 0, height, width }
    }

    /// Copies the part of an image as it is.
    ///
    /// # Panics
    /// If the rectangle sticks out of the image.
    pub fn copy(self, image: PlanesRef<'_>, out: &mut Planes) {
        out.reshape(image.channels, self.height, self.width);
        for (channel, plane) in out.bytes.chunks_exact_mut(self.height * self.width).enumerate() {
            for (y, row) in plane.chunks_exact_mut(self.width).enumerate() {
                let from = (channel * image.height + self.top + y) * image.width + self.left;
                row.copy_from_slice(&image.bytes[from..from + self.width]);
            }
        }
    }

    /// A rectangle whose share of the area is uniform in `scale` and whose width over height is log-uniform in `ratio`. Of ten
    /// tries the first that fits is taken; otherwise the largest central part with an allowed ratio.
    ///
    /// # Source
    /// `torchvision.transforms.RandomResizedCrop.get_params`.
    pub fn random(height: usize, width: usize, scale: [f64; 2], ratio: [f64; 2], rng: &mut Keyed) -> Self {
        let (h, w) = (height as f64, width as f64);
        for _ in 0..10 {
            let area = h * w * rng.uniform(scale);
            let aspect = rng.uniform(ratio.map(f64::ln)).exp();
            let crop_width = (area * aspect).sqrt().round_ties_even();
            let crop_height = (area / aspect).sqrt().round_ties_even();
            if (1.0..=w).contains(&crop_width) && (1.0..=h).contains(&crop_height) {
                let (crop_height, crop_width) = (crop_height as usize, crop_width as usize);
                return Crop {
                    top: rng.below((height - crop_height + 1) as u32) as usize,
                    left: rng.below((width - crop_width + 1) as u32) as usize,
                    height: crop_height,
                    width: crop_width,
                };
            }
        }
        let (crop_height, crop_width) = if w / h < ratio[0] {
            (((w / ratio[0]).round_ties_even() as usize).clamp(1, height), width)
        } else if w / h > ratio[1] {
            (height, ((h * ratio[1]).round_ties_even() as usize).clamp(1, width))
        } else {
            (height, width)
        };
        Crop { top: (height - crop_height) / 2, left: (width - crop_width) / 2, height: crop_height, width: crop_width }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::random::Purpose;

    #[test]
    fn the_fallback_is_the_largest_central_part_of_an_allowed_ratio() {
        let mut rng = Keyed::new(0, 0, Purpose::Order);
        // An area above 1 never fits. Expected values: torchvision's get_params for the same sizes and scale (2, 2).
        let mut fallback = |h, w| Crop::random(h, w, [2.0, 2.0], [0.75, 4.0 / 3.0], &mut rng);
        assert_eq!(fallback(32, 32), Crop::whole(32, 32));
        assert_eq!(fallback(100, 30), Crop { top: 30, left: 0, height: 40, width: 30 });
        assert_eq!(fallback(30, 100), Crop { top: 0, left: 30, height: 30, width: 40 });
        assert_eq!(fallback(50, 3), Crop { top: 23, left: 0, height: 4, width: 3 });
    }

    #[test]
    fn crops_lie_inside_even_in_tiny_images() {
        let mut rng = Keyed::new(0, 0, Purpose::Order);
        for (h, w) in [(1, 1), (1, 9), (2, 3), (17, 5), (28, 28)] {
            for _ in 0..500 {
                let c = Crop::random(h, w, [0.08, 1.0], [0.75, 4.0 / 3.0], &mut rng);
                assert!(c.height >= 1 && c.width >= 1 && c.top + c.height <= h && c.left + c.width <= w, "{c:?}");
            }
        }
    }
}
