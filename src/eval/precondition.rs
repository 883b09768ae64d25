//! Approximate inverses of the logistic regression's Hessian.

use super::lbfgs::{axpy, dot};
use super::panels::Panels;
use crate::error::{Error, Result};
use rayon::prelude::*;

/// Columns that are factored together; the rows below them are then independent.
const BLOCK: usize = 64;

/// A lower triangular factor, row after row.
///
/// Own code rather than LAPACK's: its results depend on the thread count, and with them the path of the minimisation.
pub(super) struct Cholesky {
    rows: Vec<f64>,
    n: usize,
}

impl Cholesky {
    /// Factors a symmetric matrix of which the lower triangle is read.
    ///
    /// # Errors
    /// [`Error::NonFinite`] for a matrix that is not positive definite in float64.
    pub fn factor(mut matrix: Vec<f64>, n: usize) -> Result<Cholesky> {
        for begin in (0..n).step_by(BLOCK) {
            let end = (begin + BLOCK).min(n);
            let (head, tail) = matrix.split_at_mut(end * n);
            for i in begin..end {
                let (above, row) = head.split_at_mut(i * n);
                let row = &mut row[..n];
                for j in begin..i {
                    eliminate(row, &above[j * n..][..=j], j);
                }
                let pivot = row[i] - dot(&row[..i], &row[..i]);
                if pivot.is_nan() || pivot <= 0.0 {
                    return Err(Error::NonFinite(format!(
                        "the Hessian of the logistic regression has the pivot {pivot} at {i}; expected > 0"
                    )));
                }
                row[i] = pivot.sqrt();
            }
            tail.par_chunks_mut(n).for_each(|row| {
                for j in begin..end {
                    eliminate(row, &head[j * n..][..=j], j);
                }
            });
        }
        Ok(Cholesky { rows: matrix, n })
    }

    /// The number of unknowns.
    pub fn n(&self) -> usize {
        self.n
    }

    /// Solves for one right-hand side, in place.
    pub fn solve(&self, b: &mut [f64]) {
        for i in 0..self.n {
            let row = &self.rows[i * self.n..][..=i];
            b[i] = (b[i] - dot(&row[..i], &b[..i])) / row[i];
        }
        for i in (0..self.n).rev() {
            let row = &self.rows[i * self.n..][..=i];
            b[i] /= row[i];
            let (before, at) = b.split_at_mut(i);
            axpy(-at[0], &row[..i], before);
        }
    }
}

/// Element `j` of a row of the factor, from the finished row `j`.
fn eliminate(row: &mut [f64], finished: &[f64], j: usize) {
    row[j] = (row[j] - dot(&row[..j], &finished[..j])) / finished[j];
}

/// Classes that are solved together.
const CLASSES: usize = 24;
/// Least curvature, as a share of a class's most: float32 has no use for less.
const LEAST_CURVATURE: f64 = 1e-12;

/// Each class's own block of the Hessian, where the samples that bend it differ in their mean and, along axes that all
/// classes share, in their variances.
///
/// Such a block is `c (diag(s) + m m') + l2` in the axes' coordinates: a diagonal matrix and one of rank one, whose inverse is
/// known (Sherman and Morrison). It costs two rotations in float32.
pub(super) struct ByClass {
    /// To the axes' coordinates, and back.
    axes: Panels,
    back: Panels,
    d: usize,
    classes: Vec<Class>,
}

/// `(D + c m m')^-1 = D^-1 - share (D^-1 m) (D^-1 m)'`
struct Class {
    /// The diagonal of D^-1.
    inverse: Vec<f32>,
    /// D^-1 m
    mean: Vec<f32>,
    share: f32,
}

impl ByClass {
    /// From orthonormal axes in the columns of [d, d], and for each class its mean weight, and mean and variance along the
    /// axes by its weights, [classes, d].
    pub fn new(axes: &[f64], weights: &[f64], means: &[f64], variances: &[f64], l2: f64) -> ByClass {
        let d = means.len() / weights.len();
        let class = |((weight, mean), variance): ((&f64, &[f64]), &[f64])| {
            let most = variance.iter().fold(0.0, |most: f64, v| most.max(weight * v)) + l2;
            let diagonal: Vec<f64> = variance.iter().map(|v| (weight * v + l2).max(LEAST_CURVATURE * most)).collect();
            let scaled: Vec<f64> = mean.iter().zip(&diagonal).map(|(m, v)| m / v).collect();
            Class {
                share: (weight / (1.0 + weight * dot(mean, &scaled))) as f32,
                inverse: diagonal.iter().map(|v| (1.0 / v) as f32).collect(),
                mean: scaled.iter().map(|v| *v as f32).collect(),
            }
        };
        let axes: Vec<f32> = axes.iter().map(|v| *v as f32).collect();
        let classes = weights.iter().zip(means.chunks_exact(d)).zip(variances.chunks_exact(d)).map(class).collect();
        ByClass { axes: Panels::right_of_columns(&axes, d), back: Panels::right(&axes, d), d, classes }
    }

    /// Solves in place, for [classes, d].
    pub fn solve(&self, v: &mut [f64]) {
        let parts = v.par_chunks_mut(CLASSES * self.d).zip(self.classes.par_chunks(CLASSES));
        parts.for_each(|(v, classes)| self.solve_part(v, classes));
    }

    fn solve_part(&self, v: &mut [f64], classes: &[Class]) {
        // Numbers of any size fit float32 once the largest is 1.
        let size = v.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
        if size == 0.0 {
            return;
        }
        let rotated = |rows: &[f32], to: &Panels| {
            let mut out = vec![0f32; rows.len()];
            Panels::left(rows, self.d).add_products(to, &mut out);
            out
        };
        let mut turned = rotated(&v.iter().map(|v| (v / size) as f32).collect::<Vec<_>>(), &self.axes);
        for (v, class) in turned.chunks_exact_mut(self.d).zip(classes) {
            let products = class.mean.iter().zip(&*v).map(|(m, v)| f64::from(*m) * f64::from(*v));
            let along = class.share * products.sum::<f64>() as f32;
            for ((v, inverse), mean) in v.iter_mut().zip(&class.inverse).zip(&class.mean) {
                *v = *v * inverse - along * mean;
            }
        }
        v.iter_mut().zip(rotated(&turned, &self.back)).for_each(|(v, solved)| *v = size * f64::from(solved));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn solutions_satisfy_the_system() {
        for n in [1usize, 5, 64, 65, 150] {
            // Symmetric and diagonally dominant.
            let at = |i: usize, j: usize| if i == j { n as f64 + 1.0 } else { 1.0 / (1.0 + (i + j) as f64) };
            let matrix: Vec<f64> = (0..n * n).map(|k| at(k / n, k % n)).collect();
            let factor = Cholesky::factor(matrix, n).unwrap();
            let mut x: Vec<f64> = (0..n).map(|i| (i as f64).sin()).collect();
            factor.solve(&mut x);
            for i in 0..n {
                let got: f64 = (0..n).map(|j| at(i, j) * x[j]).sum();
                assert!((got - (i as f64).sin()).abs() < 1e-12, "n {n}, row {i}: {got}");
            }
        }
    }

    #[test]
    fn each_class_has_its_own_block() {
        let (d, classes, l2) = (5, CLASSES + 3, 0.125);
        // A reflection: orthonormal, and its own inverse.
        let normal: Vec<f64> = (0..d).map(|i| (i as f64 + 1.0).sin()).collect();
        let axes: Vec<f64> = (0..d * d)
            .map(|k| f64::from(u8::from(k / d == k % d)) - 2.0 * normal[k / d] * normal[k % d] / dot(&normal, &normal))
            .collect();
        let wave = |count: usize, by: f64| -> Vec<f64> { (0..count).map(|i| 1.5 + (by * i as f64).sin()).collect() };
        let (weights, means, variances) = (wave(classes, 1.0), wave(classes * d, 2.0), wave(classes * d, 3.0));
        let inverse = ByClass::new(&axes, &weights, &means, &variances, l2);
        let right: Vec<f64> = (0..classes * d).map(|i| 1e-9 * (i as f64).cos()).collect();
        let mut x = right.clone();
        inverse.solve(&mut x);
        for c in 0..classes {
            let [x, mean, variance] = [&x, &means, &variances].map(|v| &v[c * d..][..d]);
            let turn = |v: &[f64]| -> Vec<f64> { axes.chunks_exact(d).map(|axis| dot(axis, v)).collect() };
            let turned = turn(x);
            let along = weights[c] * dot(mean, &turned);
            let product: Vec<f64> =
                (0..d).map(|k| (weights[c] * variance[k] + l2) * turned[k] + along * mean[k]).collect();
            for (got, expected) in turn(&product).iter().zip(&right[c * d..]) {
                // float32, with a condition of a few hundred.
                assert!((got - expected).abs() < 1e-13, "class {c}: {got} {expected}");
            }
        }
        let mut nothing = vec![0.0; classes * d];
        inverse.solve(&mut nothing);
        assert!(nothing.iter().all(|v| *v == 0.0));
    }

    #[test]
    fn an_indefinite_matrix_is_refused() {
        assert!(Cholesky::factor(vec![1.0, 2.0, 2.0, 1.0], 2).is_err());
    }
}
