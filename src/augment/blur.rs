//! Gaussian blur.

use super::Planes;
use super::simd::dispatch;

/// Buffers that a blur needs, to be used again.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    kernel: Vec<f32>,
    columns: Vec<f32>,
    padded: Vec<f32>,
    sums: Vec<f32>,
}

/// SimCLR's kernel for an image size: the odd number of pixels at or next above a tenth of it, 3 at least.
///
/// # Source
/// SimCLR, appendix A.
pub fn kernel_size(size: usize) -> usize {
    ((size / 10) | 1).max(3)
}

/// Blurs with a Gaussian cut to `kernel` pixels; the borders mirror the image.
///
/// # Numerics
/// Columns and rows are done one after another in single precision, where torchvision multiplies out the kernel: a byte can differ
/// by one where both are next to a half.
///
/// # Panics
/// If `kernel` is even or an edge of the image is not longer than half the kernel.
///
/// # Source
/// `torchvision.transforms.functional.gaussian_blur`.
pub fn gaussian(image: &mut Planes, kernel: usize, sigma: f64, scratch: &mut Scratch) {
    let reach = kernel / 2;
    assert!(kernel % 2 == 1 && reach < image.height && reach < image.width, "kernel {kernel} does not fit the image");
    let Scratch { kernel: weights, columns, padded, sums } = scratch;
    weights.clear();
    weights.extend((0..kernel).map(|i| (-0.5 * ((i as f64 - reach as f64) / sigma).powi(2)).exp() as f32));
    let total: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|w| *w /= total);

    let (height, width) = (image.height, image.width);
    let mirror = |at: usize, len: usize| {
        // `at` counts from `reach` before the first pixel.
        let inside = at.abs_diff(reach);
        inside.min(2 * (len - 1) - inside.min(2 * (len - 1)))
    };
    columns.resize(width, 0.0);
    padded.resize(width + 2 * reach, 0.0);
    sums.resize(height * width, 0.0);
    for plane in image.bytes.chunks_exact_mut(height * width) {
        for (y, sums) in sums.chunks_exact_mut(width).enumerate() {
            dispatch(
                #[inline(always)]
                || {
                    columns.fill(0.0);
                    for (tap, weight) in weights.iter().enumerate() {
                        let row = &plane[mirror(y + tap, height) * width..][..width];
                        for (sum, value) in columns.iter_mut().zip(row) {
                            *sum += weight * f32::from(*value);
                        }
                    }
                    padded[reach..reach + width].copy_from_slice(columns);
                    for edge in 0..reach {
                        padded[edge] = columns[mirror(edge, width)];
                        padded[width + reach + edge] = columns[mirror(width + reach + edge, width)];
                    }
                    sums.fill(0.0);
                    for (tap, weight) in weights.iter().enumerate() {
                        for (sum, value) in sums.iter_mut().zip(&padded[tap..]) {
                            *sum += weight * value;
                        }
                    }
                },
            );
        }
        dispatch(
            #[inline(always)]
            || {
                for (byte, sum) in plane.iter_mut().zip(sums.iter()) {
                    // 1.5 * 2^23 pushes the fraction out of the number: rounded to even, the integer is in the low bits.
                    *byte = (sum + 12_582_912.0).to_bits() as u8;
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_a_tenth_and_odd() {
        // SimCLR's sizes for CIFAR, Fashion-MNIST, STL-10 and ImageNet.
        assert_eq!([32, 28, 96, 224].map(kernel_size), [3, 3, 9, 23]);
    }
}
