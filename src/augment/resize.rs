//! Antialiased bilinear resize of a part of an image, with PIL's arithmetic: the rows first, rounded to bytes, then the columns.
//!
//! One kernel serves both passes: it makes each output row as a weighted sum of whole input rows, which the compiler turns into
//! vector code. The horizontal pass works on the transposed image, so that its columns are rows.

use super::crop::Crop;
use super::simd::dispatch;
use super::{Planes, PlanesRef};

/// Bits after the point of a weight: PIL leaves room for a byte and two more bits in 32.
const PRECISION: u32 = 32 - 8 - 2;

/// Buffers that a resize needs, to be used again.
#[derive(Clone, Debug, Default)]
pub struct Scratch {
    windows: Vec<Window>,
    weights: Vec<i32>,
    line: Line,
    turned: Vec<u8>,
    narrowed: Vec<u8>,
}

/// One output row in the making.
#[derive(Clone, Debug, Default)]
struct Line {
    sums: Vec<i32>,
    bytes: Vec<u8>,
}

/// The inputs that one output row is made of: `count` rows from `first` on, their weights at `weights[at..]`.
#[derive(Clone, Copy, Debug)]
struct Window {
    first: usize,
    count: usize,
    at: usize,
}

/// Resizes the part `crop` of an image to `height` x `width`, as if the part were an image of its own; `out` takes that shape.
///
/// # Panics
/// If the crop is empty or sticks out of the image.
///
/// # Source
/// `torchvision.transforms.functional.resized_crop` on a PIL image (bilinear), bit for bit.
pub fn resized_crop(
    image: PlanesRef<'_>,
    crop: Crop,
    [height, width]: [usize; 2],
    scratch: &mut Scratch,
    out: &mut Planes,
) {
    let channels = image.channels;
    out.reshape(channels, height, width);
    let Scratch { windows, weights, line, turned, narrowed } = scratch;

    // Columns as rows: turned[x] holds column x of each channel, one after another.
    let tall = channels * crop.height;
    turned.resize(crop.width * tall, 0);
    for channel in 0..channels {
        for y in 0..crop.height {
            let from = (channel * image.height + crop.top + y) * image.width + crop.left;
            let row = &image.bytes[from..from + crop.width];
            for (column, value) in turned.chunks_exact_mut(tall).zip(row) {
                column[channel * crop.height + y] = *value;
            }
        }
    }
    narrowed.resize(width * tall, 0);
    plan(crop.width, width, windows, weights);
    weighted_rows(turned, tall, windows, weights, line, |x, row| narrowed[x * tall..][..tall].copy_from_slice(row));

    // Back to rows: turned[y] holds row y of each channel, one after another.
    let wide = channels * width;
    turned.resize(crop.height * wide, 0);
    for channel in 0..channels {
        for y in 0..crop.height {
            let row = &mut turned[y * wide + channel * width..][..width];
            for (value, column) in row.iter_mut().zip(narrowed.chunks_exact(tall)) {
                *value = column[channel * crop.height + y];
            }
        }
    }
    plan(crop.height, height, windows, weights);
    weighted_rows(turned, wide, windows, weights, line, |y, row| {
        for (channel, row) in row.chunks_exact(width).enumerate() {
            out.bytes[(channel * height + y) * width..][..width].copy_from_slice(row);
        }
    });
}

/// The windows and weights that take `from` inputs to `to` outputs: a triangle as wide as the scale, at least one input wide.
fn plan(from: usize, to: usize, windows: &mut Vec<Window>, weights: &mut Vec<i32>) {
    windows.clear();
    weights.clear();
    let scale = from as f64 / to as f64;
    let support = scale.max(1.0);
    let slope = 1.0 / support;
    let mut triangle = Vec::with_capacity(2 * support.ceil() as usize + 1);
    for output in 0..to {
        let center = (output as f64 + 0.5) * scale;
        // A negative value becomes 0, as in PIL.
        let first = (center - support + 0.5) as usize;
        let end = ((center + support + 0.5) as usize).min(from);
        triangle.clear();
        triangle.extend((first..end).map(|x| (1.0 - ((x as f64 - center + 0.5) * slope).abs()).max(0.0)));
        let total: f64 = triangle.iter().sum();
        windows.push(Window { first, count: end - first, at: weights.len() });
        weights.extend(triangle.iter().map(|w| (0.5 + w / total * f64::from(1 << PRECISION)) as i32));
    }
}

/// Makes each output row as the weighted sum of the input rows of its window, rounded to bytes, and hands it to `emit`.
fn weighted_rows(
    rows: &[u8],
    len: usize,
    windows: &[Window],
    weights: &[i32],
    Line { sums, bytes }: &mut Line,
    mut emit: impl FnMut(usize, &[u8]),
) {
    sums.resize(len, 0);
    bytes.resize(len, 0);
    for (output, window) in windows.iter().enumerate() {
        dispatch(
            #[inline(always)]
            || {
                sums.fill(1 << (PRECISION - 1));
                let inputs = rows[window.first * len..].chunks_exact(len);
                for (row, weight) in inputs.zip(&weights[window.at..window.at + window.count]) {
                    for (sum, value) in sums.iter_mut().zip(row) {
                        *sum += i32::from(*value) * weight;
                    }
                }
                for (byte, sum) in bytes.iter_mut().zip(sums.iter()) {
                    *byte = (sum >> PRECISION).clamp(0, 255) as u8;
                }
            },
        );
        emit(output, bytes);
    }
}
