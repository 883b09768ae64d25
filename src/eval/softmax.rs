//! The cross-entropy of a linear softmax classifier and its gradient, in float32, on a CPU.
//!
//! Logits are kept a class to a row, so that each step of the softmax takes many samples at once and no sum runs across a
//! vector register.

use super::panels::Panels;
use pulp::{Arch, Simd, WithSimd};

/// Samples of a block: with some hundred classes, its logits stay in a core's own cache.
pub(super) const BLOCK: usize = 512;
/// Exponentials of less than this are as small as that of it, 4e-38.
const LEAST: f32 = -86.0;

/// Samples, packed for both products.
pub(super) struct Block {
    /// [rows, d]
    x: Panels,
    /// [d, rows]
    turned: Panels,
    /// Class numbers.
    y: Vec<usize>,
}

/// The loss of some blocks, with its gradient.
pub(super) struct Sums {
    /// Summed cross-entropy, in nats.
    pub loss: f64,
    /// [classes, d]
    pub gradient: Vec<f32>,
    /// Memory for a block's logits.
    logits: Vec<f32>,
}

impl Block {
    /// Samples [rows, d] with their classes.
    pub fn new(x: &[f32], d: usize, y: &[usize]) -> Block {
        Block { x: Panels::right(x, d), turned: Panels::right_of_columns(x, d), y: y.to_vec() }
    }

    /// The number of samples.
    pub fn rows(&self) -> usize {
        self.y.len()
    }
}

impl Sums {
    /// Of no block, for `parameters` weights.
    pub fn new(parameters: usize) -> Sums {
        Sums { loss: 0.0, gradient: vec![0.0; parameters], logits: Vec::new() }
    }

    /// Adds a block's loss, and its gradient, for weights [classes, d].
    pub fn add(&mut self, block: &Block, weights: &Panels) {
        let rows = block.y.len();
        self.logits.clear();
        self.logits.resize(weights.rows() * rows, 0.0);
        weights.add_products(&block.x, &mut self.logits);
        self.loss += Arch::new().dispatch(Residuals { logits: &mut self.logits, y: &block.y });
        Panels::left(&self.logits, rows).add_products(&block.turned, &mut self.gradient);
    }
}

/// Makes logits [classes, rows] the gradient of the cross-entropy by them, which is its result.
struct Residuals<'a> {
    logits: &'a mut [f32],
    y: &'a [usize],
}

impl WithSimd for Residuals<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> f64 {
        let Residuals { logits, y } = self;
        let rows = y.len();
        let mut most = logits[..rows].to_vec();
        for logits in logits.chunks_exact(rows).skip(1) {
            most.iter_mut().zip(logits).for_each(|(most, v)| *most = if *v > *most { *v } else { *most });
        }
        let own: f64 = y.iter().enumerate().map(|(i, y)| f64::from(logits[y * rows + i] - most[i])).sum();
        let mut sums = vec![0f32; rows];
        for logits in logits.chunks_exact_mut(rows) {
            for ((v, most), sum) in logits.iter_mut().zip(&most).zip(&mut sums) {
                *v = exp(*v - most);
                *sum += *v;
            }
        }
        let loss = sums.iter().map(|sum| f64::from(*sum).ln()).sum::<f64>() - own;
        sums.iter_mut().for_each(|sum| *sum = 1.0 / *sum);
        for logits in logits.chunks_exact_mut(rows) {
            logits.iter_mut().zip(&sums).for_each(|(v, share)| *v *= share);
        }
        y.iter().enumerate().for_each(|(i, y)| logits[y * rows + i] -= 1.0);
        loss
    }
}

/// The exponential of a number that is not above 0, to a relative 2e-7; that of NaN is NaN.
///
/// 2^n e^r with n the nearest integer to x / ln 2, found by a sum that leaves no bits for a fraction; ln 2 is taken in two
/// parts, so that r is exact, and e^r is its Taylor polynomial, which for |r| <= ln 2 / 2 is within 1e-8.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const WHOLE: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = if x < LEAST { LEAST } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, WHOLE);
    let n = shifted - WHOLE;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let terms = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let power = terms.iter().fold(0f32, |sum, term| sum.mul_add(r, *term));
    power * f32::from_bits((shifted.to_bits() << 23).wrapping_add(1f32.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn exponentials_are_those_of_float64() {
        let steps = (0..=860_000).map(|i| -(i as f32) * 1e-4);
        let small = (0..100).map(|i| -(0.5f32.powi(i)));
        for x in steps.chain(small) {
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) - exact).abs() <= 2e-7 * exact, "{x}: {} {exact}", exp(x));
        }
        assert!(exp(f32::NAN).is_nan() && exp(f32::NEG_INFINITY) < 1e-37 && exp(0.0) == 1.0);
    }

    #[test]
    fn loss_and_gradient_are_those_of_float64() {
        let mut rng = ChaCha8Rng::seed_from_u64(5);
        for (rows, classes, d) in [(1, 2, 1), (7, 3, 5), (40, 19, 33), (BLOCK, 10, 17)] {
            let x: Vec<f32> = (0..rows * d).map(|_| rng.random_range(-2.0..2.0)).collect();
            let w: Vec<f32> = (0..classes * d).map(|_| rng.random_range(-2.0..2.0)).collect();
            let y: Vec<usize> = (0..rows).map(|_| rng.random_range(0..classes)).collect();
            let (mut loss, mut gradient) = (0.0, vec![0f64; classes * d]);
            for (x, &y) in x.chunks_exact(d).zip(&y) {
                let dot = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum::<f64>();
                let logits: Vec<f64> = w.chunks_exact(d).map(dot).collect();
                let sum: f64 = logits.iter().map(|v| v.exp()).sum();
                loss += sum.ln() - logits[y];
                for (class, gradient) in gradient.chunks_exact_mut(d).enumerate() {
                    let residual = logits[class].exp() / sum - f64::from(u8::from(class == y));
                    gradient.iter_mut().zip(x).for_each(|(g, x)| *g += residual * f64::from(*x));
                }
            }
            let mut got = Sums::new(classes * d);
            got.add(&Block::new(&x, d, &y), &Panels::left(&w, d));
            // float32's rounding in sums of d and of `rows` terms, of size 4 and 2.
            assert!((got.loss - loss).abs() <= 1e-6 * (d * rows) as f64, "{rows} {classes} {d}: {} {loss}", got.loss);
            for (got, exact) in got.gradient.iter().zip(gradient) {
                assert!((f64::from(*got) - exact).abs() <= 1e-6 * (d * rows) as f64, "{got} {exact}");
            }
        }
    }

    #[test]
    fn what_is_beyond_float32_is_no_number() {
        for w in [f32::NAN, f32::INFINITY, 3e38] {
            let mut sums = Sums::new(4);
            sums.add(&Block::new(&[1.0, 2.0], 2, &[0]), &Panels::left(&[w, w, 0.0, 0.0], 2));
            assert!(!sums.loss.is_finite(), "{w}: {}", sums.loss);
        }
    }
}
