//! L-BFGS with a preconditioner, for smooth convex functions of a few thousand to a few million numbers.
//!
//! Plain float64 vectors and sums in a fixed order: the path is the same for every thread count.

use crate::error::{Error, Result};
use std::collections::VecDeque;

/// How many pairs of steps and gradient changes are kept.
const HISTORY: usize = 10;
/// Sufficient decrease and curvature of the weak Wolfe conditions.
const DECREASE: f64 = 1e-4;
const CURVATURE: f64 = 0.9;
const LINE_SEARCH_TRIALS: usize = 40;

/// Where a minimisation ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Minimum {
    /// The point.
    pub x: Vec<f64>,
    /// The function's value there.
    pub value: f64,
    /// The gradient's Euclidean norm there.
    pub gradient_norm: f64,
    /// Steps taken.
    pub iterations: usize,
    /// Whether the caller's criterion was met; otherwise the steps ran out or rounding stopped the line search.
    pub converged: bool,
}

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    // Eight partial sums: vectorised, and in an order that only the length decides.
    let mut sums = [0.0; 8];
    let (mut left, mut right) = (a.chunks_exact(8), b.chunks_exact(8));
    for (x, y) in left.by_ref().zip(right.by_ref()) {
        for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
            *sum += x * y;
        }
    }
    let rest: f64 = left.remainder().iter().zip(right.remainder()).map(|(x, y)| x * y).sum();
    sums.iter().sum::<f64>() + rest
}

/// `y += a * x`
pub(super) fn axpy(a: f64, x: &[f64], y: &mut [f64]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// Minimises a convex function from `start` until `enough(value, gradient norm)`.
///
/// `function` gives the value and the gradient; `precondition` applies an approximate inverse Hessian, symmetric and
/// positive definite, in place. `rounding` is that of the value, relative: smaller differences say nothing about decrease. The
/// line search bisects for the weak Wolfe conditions, which keep every curvature pair positive.
///
/// # Errors
/// What `function` reports, and [`Error::NonFinite`] for a value or gradient that is not finite at `start`.
pub(super) fn minimise(
    start: Vec<f64>,
    mut function: impl FnMut(&[f64]) -> Result<(f64, Vec<f64>)>,
    precondition: impl Fn(&mut [f64]),
    enough: impl Fn(f64, f64) -> bool,
    rounding: f64,
    most_iterations: usize,
) -> Result<Minimum> {
    let mut x = start;
    let (mut value, mut gradient) = function(&x)?;
    let mut pairs: VecDeque<(Vec<f64>, Vec<f64>, f64)> = VecDeque::new();
    let mut iterations = 0;
    loop {
        let norm = dot(&gradient, &gradient).sqrt();
        if !(value.is_finite() && norm.is_finite()) {
            return Err(Error::NonFinite(format!(
                "the function to minimise is {value} with a gradient of norm {norm}"
            )));
        }
        let converged = enough(value, norm);
        if converged || iterations == most_iterations {
            return Ok(Minimum { x, value, gradient_norm: norm, iterations, converged });
        }
        let direction = direction(&gradient, &pairs, &precondition);
        let Some((step, next, next_value, next_gradient)) =
            line_search(&x, value, &gradient, &direction, &mut function, rounding)?
        else {
            if pairs.is_empty() {
                return Ok(Minimum { x, value, gradient_norm: norm, iterations, converged });
            }
            pairs.clear();
            continue;
        };
        let change: Vec<f64> = direction.iter().map(|d| step * d).collect();
        let bend: Vec<f64> = next_gradient.iter().zip(&gradient).map(|(a, b)| a - b).collect();
        let curvature = dot(&change, &bend);
        if curvature > f64::EPSILON * dot(&bend, &bend).sqrt() * dot(&change, &change).sqrt() {
            if pairs.len() == HISTORY {
                pairs.pop_front();
            }
            pairs.push_back((change, bend, 1.0 / curvature));
        }
        (x, value, gradient) = (next, next_value, next_gradient);
        iterations += 1;
    }
}

/// The two-loop recursion: minus the approximate inverse Hessian times the gradient.
fn direction(
    gradient: &[f64],
    pairs: &VecDeque<(Vec<f64>, Vec<f64>, f64)>,
    precondition: &impl Fn(&mut [f64]),
) -> Vec<f64> {
    let mut q: Vec<f64> = gradient.iter().map(|g| -g).collect();
    let mut weights = Vec::with_capacity(pairs.len());
    for (change, bend, rho) in pairs.iter().rev() {
        let weight = rho * dot(change, &q);
        axpy(-weight, bend, &mut q);
        weights.push(weight);
    }
    precondition(&mut q);
    if let Some((_, bend, rho)) = pairs.back() {
        // The preconditioner's scale is corrected by the last curvature seen.
        let mut mapped = bend.clone();
        precondition(&mut mapped);
        let scale = 1.0 / (rho * dot(bend, &mapped));
        q.iter_mut().for_each(|v| *v *= scale);
    }
    for ((change, bend, rho), weight) in pairs.iter().zip(weights.iter().rev()) {
        axpy(weight - rho * dot(bend, &q), change, &mut q);
    }
    q
}

type Trial = (f64, Vec<f64>, f64, Vec<f64>);

/// A step that meets the weak Wolfe conditions (up to the value's rounding), its point, value and gradient.
fn line_search(
    x: &[f64],
    value: f64,
    gradient: &[f64],
    direction: &[f64],
    function: &mut impl FnMut(&[f64]) -> Result<(f64, Vec<f64>)>,
    rounding: f64,
) -> Result<Option<Trial>> {
    let slope = dot(gradient, direction);
    // A NaN slope is no descent either.
    if slope.is_nan() || slope >= 0.0 {
        return Ok(None);
    }
    let (mut low, mut high, mut step) = (0.0, f64::INFINITY, 1.0);
    for _ in 0..LINE_SEARCH_TRIALS {
        let mut next = x.to_vec();
        axpy(step, direction, &mut next);
        let (next_value, next_gradient) = function(&next)?;
        let fell = next_value <= value + DECREASE * step * slope + rounding * value.abs();
        if !(fell && dot(&next_gradient, &next_gradient).is_finite()) {
            high = step;
        } else if dot(&next_gradient, direction) < CURVATURE * slope {
            low = step;
        } else {
            return Ok(Some((step, next, next_value, next_gradient)));
        }
        step = if high.is_finite() { 0.5 * (low + high) } else { 2.0 * low };
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ill_conditioned_quadratic_is_solved() {
        // 0.5 sum h_i (x_i - i)^2 with h from 1e-2 to 1e2.
        let h: Vec<f64> = (0..30).map(|i| 10f64.powf(-2.0 + 4.0 * i as f64 / 29.0)).collect();
        let function = |x: &[f64]| {
            let gradient: Vec<f64> = x.iter().zip(&h).enumerate().map(|(i, (x, h))| h * (x - i as f64)).collect();
            let value = x.iter().zip(&h).enumerate().map(|(i, (x, h))| 0.5 * h * (x - i as f64).powi(2)).sum();
            Ok((value, gradient))
        };
        let solve = |precondition: &dyn Fn(&mut [f64])| {
            minimise(vec![0.0; 30], function, precondition, |_, norm| norm < 1e-9, 1e-13, 5000).unwrap()
        };
        let plain = solve(&|_| ());
        let exact = solve(&|g| g.iter_mut().zip(&h).for_each(|(g, h)| *g /= h));
        for got in [&plain, &exact] {
            assert!(got.converged);
            // A gradient of 1e-9 over the least curvature of 1e-2.
            assert!(got.x.iter().enumerate().all(|(i, x)| (x - i as f64).abs() < 2e-7), "{:?}", got.x);
        }
        assert!(exact.iterations <= 2 && plain.iterations > exact.iterations);
    }

    #[test]
    fn rosenbrock_is_solved() {
        let function = |x: &[f64]| {
            let (a, b) = (x[0], x[1]);
            let value = (1.0 - a).powi(2) + 100.0 * (b - a * a).powi(2);
            Ok((value, vec![-2.0 * (1.0 - a) - 400.0 * a * (b - a * a), 200.0 * (b - a * a)]))
        };
        let got = minimise(vec![-1.2, 1.0], function, |_| (), |_, norm| norm < 1e-8, 1e-13, 500).unwrap();
        assert!(got.converged && (got.x[0] - 1.0).abs() < 1e-6 && (got.x[1] - 1.0).abs() < 1e-6, "{got:?}");
    }

    #[test]
    fn a_function_that_is_not_finite_is_an_error() {
        assert!(minimise(vec![0.0], |_| Ok((f64::NAN, vec![0.0])), |_| (), |_, _| false, 1e-13, 5).is_err());
    }
}
