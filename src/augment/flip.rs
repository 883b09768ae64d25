//! Horizontal flip.

use super::Planes;

/// Mirrors left and right.
///
/// # Source
/// `torchvision.transforms.functional.hflip`.
pub fn horizontal(image: &mut Planes) {
    image.bytes.chunks_exact_mut(image.width.max(1)).for_each(<[u8]>::reverse);
}
