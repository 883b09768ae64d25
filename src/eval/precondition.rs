//! Cholesky factors, for the preconditioner of the logistic regression.
//!
//! Own code rather than LAPACK's: its results depend on the thread count, and with them the path of the minimisation.

use super::lbfgs::{axpy, dot};
use crate::error::{Error, Result};
use rayon::prelude::*;

/// Columns that are factored together; the rows below them are then independent.
const BLOCK: usize = 64;

/// A lower triangular factor, row after row.
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
    fn an_indefinite_matrix_is_refused() {
        assert!(Cholesky::factor(vec![1.0, 2.0, 2.0, 1.0], 2).is_err());
    }
}
