//! Rows of float32 numbers with their norms, and their cosines in float64.

use super::features::Features;
use crate::augment::dispatch;
use crate::error::Result;
use rayon::prelude::*;
use tch::{Device, Tensor};

/// Rows as they were given, with their norms in float64, where no square of a float32 number overflows or vanishes.
#[derive(Debug)]
pub struct Rows {
    values: Vec<f32>,
    norms: Vec<f64>,
    d: usize,
}

impl Rows {
    /// The rows of features.
    ///
    /// # Errors
    /// What LibTorch reports.
    pub fn of(features: &Features) -> Result<Rows> {
        Ok(Rows::new(Vec::<f32>::try_from(&features.features().f_flatten(0, -1)?)?, features.dim()))
    }

    /// Rows of length `d`, one after the other.
    pub fn new(values: Vec<f32>, d: usize) -> Rows {
        let norms = values.par_chunks(d).map(|row| products(row, [row])[0].sqrt()).collect();
        Rows { values, norms, d }
    }

    /// Some of the rows, in the order given.
    pub fn select(&self, indices: &[i64]) -> Rows {
        let row = |&i: &i64| &self.values[i as usize * self.d..][..self.d];
        let values = indices.iter().flat_map(row).copied().collect();
        Rows { values, norms: indices.iter().map(|&i| self.norms[i as usize]).collect(), d: self.d }
    }

    /// How many rows there are.
    pub fn count(&self) -> usize {
        self.norms.len()
    }

    /// The numbers, row after row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The length of a row.
    pub fn dim(&self) -> usize {
        self.d
    }

    /// The rows' norms.
    pub fn norms(&self) -> &[f64] {
        &self.norms
    }

    /// How many have norm 0.
    pub fn zeros(&self) -> usize {
        self.norms.iter().filter(|norm| **norm == 0.0).count()
    }

    fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.d..][..self.d]
    }

    /// Writes a row divided by its norm, in float32; one of norm 0 stays 0.
    pub fn write_unit(&self, i: usize, unit: &mut [f32]) {
        let norm = if self.norms[i] > 0.0 { self.norms[i] } else { 1.0 };
        dispatch(
            #[inline(always)]
            || unit.iter_mut().zip(self.row(i)).for_each(|(unit, v)| *unit = (f64::from(*v) / norm) as f32),
        );
    }

    /// The rows `begin..end` divided by their norms.
    pub fn units(&self, begin: usize, end: usize) -> Vec<f32> {
        let mut units = vec![0.0; (end - begin) * self.d];
        units.par_chunks_mut(self.d).zip(begin..end).for_each(|(unit, i)| self.write_unit(i, unit));
        units
    }

    /// The same as a tensor.
    ///
    /// # Shapes
    /// [rows, d]
    pub fn unit_tensor(&self, begin: usize, end: usize, device: Device) -> Result<Tensor> {
        Ok(Tensor::f_from_slice(&self.units(begin, end))?.f_view([-1, self.d as i64])?.f_to_device(device)?)
    }

    /// Unit rows, transposed, so many to a block.
    pub fn blocks(&self, rows: usize, device: Device) -> Result<Vec<Tensor>> {
        let count = self.count();
        let block = |begin| Ok(self.unit_tensor(begin, count.min(begin + rows), device)?.f_tr()?);
        (0..count).step_by(rows).map(block).collect()
    }

    /// The cosines of a row and some of other rows, in float64. 0 where a norm is 0.
    pub fn similarities<const N: usize>(&self, row: usize, others: &Rows, indices: [u32; N]) -> [f64; N] {
        let products = products(self.row(row), indices.map(|i| others.row(i as usize)));
        std::array::from_fn(|n| {
            let norms = self.norms[row] * others.norms[indices[n] as usize];
            if norms == 0.0 { 0.0 } else { products[n] / norms }
        })
    }
}

/// The most by which a float32 product of two unit rows of length `d` is off, whatever the order of its sums: d roundings; each of
/// the rows adds one, and one to its norm.
pub(crate) fn product_error(d: usize) -> f64 {
    let roundings = (d as f64 + 4.0) * f64::from(f32::EPSILON) / 2.0;
    roundings / (1.0 - roundings).max(0.5)
}

/// The products of a row and some of others: in float64, where those of float32 numbers are exact, and summed in an order
/// that only the length decides.
fn products<const N: usize>(x: &[f32], others: [&[f32]; N]) -> [f64; N] {
    const LANES: usize = 8;
    let (whole, rest) = x.as_chunks::<LANES>();
    let halves = others.map(|y| y.as_chunks::<LANES>());
    let sums = dispatch(
        #[inline(always)]
        || {
            let mut sums = [[0f64; LANES]; N];
            let columns = halves.map(|(y, _)| &y[..whole.len()]);
            for (i, x) in whole.iter().enumerate() {
                let x = x.map(f64::from);
                for (sums, y) in sums.iter_mut().zip(columns) {
                    sums.iter_mut().zip(x).zip(y[i]).for_each(|((sum, x), y)| *sum += x * f64::from(y));
                }
            }
            sums
        },
    );
    std::array::from_fn(|n| {
        let rest = rest.iter().zip(halves[n].1).map(|(&x, &y)| f64::from(x) * f64::from(y));
        sums[n].iter().sum::<f64>() + rest.sum::<f64>()
    })
}
