//! Anchors, candidates and their shortfalls: who is compared with whom, how far apart they are, and how a gradient with
//! respect to the similarities goes back to the embeddings.
//!
//! Legend: A anchors (rows), C candidates (columns), K negatives an anchor, d dimensions. Nothing here depends on the loss.

use super::Layout;
use crate::error::Result;
use tch::{Kind, Tensor};

/// A row with a norm below this counts as zero.
pub(super) const ZERO_NORM: f64 = 1e-8;

/// The shortfall that stands where there is no negative (the anchor itself, its positive): that of a similarity of -1e9,
/// which the reference writes there and which shows in its top-M lists.
pub(super) const ABSENT: f64 = 1e9 + 1.0;

/// What a row of (almost) zero norm becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ZeroRows {
    /// Similarity 0 with everything, gradient 0. No norm overflows.
    Neutral,
    /// The row divided by max(norm, 1e-8) with the gradient that torch gives it, which is 1e8 times too large.
    AsTorch,
}

/// Unit rows and what their gradient needs.
pub(super) struct Side {
    /// [rows, d] float64.
    pub unit: Tensor,
    /// The radial direction, which the gradient lacks: `unit`, but for rows that are no unit vectors. [rows, d] float64.
    direction: Tensor,
    /// 1 / norm, or what stands for it in zero rows. [rows, 1] float64.
    inverse_norm: Tensor,
    /// Number of zero rows, 0-dim int64.
    pub zero_rows: Tensor,
}

impl Side {
    /// `z` [rows, d] of any floating-point kind.
    pub fn new(z: &Tensor, zero_rows: ZeroRows) -> Side {
        let z = z.to_kind(Kind::Double);
        match zero_rows {
            ZeroRows::Neutral => {
                // The largest entry is divided out first: squares can neither overflow nor vanish.
                let scale = z.abs().amax([-1], true).clamp_min(f64::MIN_POSITIVE);
                let scaled = z / &scale;
                // The largest entry is now 1, so a length below 1 is that of a row of zeros.
                let length = scaled.norm_scalaropt_dim(2.0, [-1], true).clamp_min(1.0);
                let norm = &length * scale;
                let zero = norm.lt(ZERO_NORM);
                let unit = (scaled / length).masked_fill_(&zero, 0.0);
                let inverse_norm = norm.reciprocal().masked_fill_(&zero, 0.0);
                Side { direction: unit.shallow_clone(), unit, inverse_norm, zero_rows: zero.sum(Kind::Int64) }
            }
            ZeroRows::AsTorch => {
                let norm = z.norm_scalaropt_dim(2.0, [-1], true);
                let zero = norm.lt(ZERO_NORM);
                let inverse_norm = norm.clamp_min(ZERO_NORM).reciprocal();
                let direction = (&z / &norm).masked_fill_(&norm.eq(0.0), 0.0);
                Side { unit: z * &inverse_norm, direction, inverse_norm, zero_rows: zero.sum(Kind::Int64) }
            }
        }
    }

    fn shallow_clone(&self) -> Side {
        Side {
            unit: self.unit.shallow_clone(),
            direction: self.direction.shallow_clone(),
            inverse_norm: self.inverse_norm.shallow_clone(),
            zero_rows: self.zero_rows.shallow_clone(),
        }
    }

    /// From the gradient with respect to the unit rows to that with respect to the rows themselves.
    fn pull_back(&self, gradient: &Tensor) -> Tensor {
        let radial = (gradient * &self.unit).sum_dim_intlist([-1i64].as_slice(), true, Kind::Double);
        (gradient - &self.direction * radial) * &self.inverse_norm
    }
}

/// Sizes of a batch in a layout, and where in an [A, C] matrix its positives and the anchors themselves lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub layout: Layout,
    /// Samples in the batch.
    pub samples: i64,
    /// A.
    pub anchors: i64,
    /// C.
    pub candidates: i64,
    /// K.
    pub negatives: i64,
}

impl Shape {
    pub fn new(layout: Layout, samples: i64) -> Shape {
        match layout {
            Layout::TwoView => {
                let rows = 2 * samples;
                Shape { layout, samples, anchors: rows, candidates: rows, negatives: rows - 2 }
            }
            Layout::OneWay => {
                Shape { layout, samples, anchors: samples, candidates: samples, negatives: samples - 1 }
            }
        }
    }

    /// The positives' entries of an [A, C] matrix, as one or two views in the order of the rows.
    fn positive_diagonals(&self, matrix: &Tensor) -> Vec<Tensor> {
        match self.layout {
            Layout::TwoView => [self.samples, -self.samples].iter().map(|&o| matrix.diagonal(o, 0, 1)).collect(),
            Layout::OneWay => vec![matrix.diagonal(0, 0, 1)],
        }
    }

    /// The positive's entry of each row, [A].
    pub fn positives(&self, matrix: &Tensor) -> Tensor {
        Tensor::cat(&self.positive_diagonals(matrix), 0)
    }

    /// Writes `values` [A] to the positives' entries.
    pub fn set_positives(&self, matrix: &Tensor, values: &Tensor) {
        for (mut diagonal, values) in self.positive_diagonals(matrix).into_iter().zip(values.split(self.samples, 0)) {
            diagonal.copy_(&values);
        }
    }

    /// Writes `value` where there is no negative.
    pub fn fill_non_negatives(&self, matrix: &Tensor, value: f64) {
        self.fill_self(matrix, value);
        for mut diagonal in self.positive_diagonals(matrix) {
            let _ = diagonal.fill_(value);
        }
    }

    /// Writes `value` where an anchor would meet itself.
    pub fn fill_self(&self, matrix: &Tensor, value: f64) {
        if self.layout == Layout::TwoView {
            let _ = matrix.diagonal(0, 0, 1).fill_(value);
        }
    }
}

/// A batch as its loss sees it.
pub(super) struct Pairs {
    pub shape: Shape,
    rows: Side,
    columns: Side,
    /// delta = 1 - cosine of every negative, [`ABSENT`] elsewhere; [A, C] in the working kind. Not floored: rounding can
    /// make it slightly negative.
    pub delta: Tensor,
    /// delta of the positive, [A] float64.
    pub positive: Tensor,
    /// Kind of the similarity product and of the gradient's.
    product: Kind,
}

impl Pairs {
    /// Normalises the views and computes all shortfalls as one matrix product in the kind `product`; they are handed on in
    /// the kind `working`.
    ///
    /// # Numerics
    /// For unit rows half the squared distance is 1 - u.v. In float64 the rows are unit to 2e-16, so this has an absolute
    /// error of about 2e-16, 1e-10 of a shortfall of 1e-6. In float32 it would be 6e-8, 5% of it.
    pub fn new(
        shape: Shape,
        z_i: &Tensor,
        z_j: &Tensor,
        zero: ZeroRows,
        product: Kind,
        working: Kind,
    ) -> Result<Pairs> {
        let (rows, columns) = match shape.layout {
            Layout::TwoView => {
                let both = Side::new(&Tensor::f_cat(&[z_i, z_j], 0)?, zero);
                (both.shallow_clone(), both)
            }
            Layout::OneWay => (Side::new(z_i, zero), Side::new(z_j, zero)),
        };
        let one = Tensor::ones([1, 1], (product, z_i.device()));
        let delta =
            one.f_addmm(&rows.unit.neg().to_kind(product), &columns.unit.to_kind(product).tr())?.to_kind(working);
        let positive = shape.positives(&delta).to_kind(Kind::Double);
        shape.fill_non_negatives(&delta, ABSENT);
        Ok(Pairs { shape, rows, columns, delta, positive, product })
    }

    /// Shortfall of each anchor's hardest negative, [A, 1] float64.
    pub fn hardest(&self) -> Tensor {
        self.delta.amin([1i64].as_slice(), true).to_kind(Kind::Double)
    }

    /// Number of zero rows in both views, 0-dim int64.
    pub fn zero_rows(&self) -> Tensor {
        match self.shape.layout {
            Layout::TwoView => self.rows.zero_rows.shallow_clone(),
            Layout::OneWay => &self.rows.zero_rows + &self.columns.zero_rows,
        }
    }

    /// From G = dL/dS [A, C] to the gradients of the two views, float64 [N, d] each.
    pub fn pull_back(&self, g: Tensor) -> Result<(Tensor, Tensor)> {
        let g = g.to_kind(self.product);
        let (u, v) = (self.rows.unit.to_kind(self.product), self.columns.unit.to_kind(self.product));
        let to_rows = g.f_mm(&v)?;
        match self.shape.layout {
            Layout::TwoView => {
                let both = to_rows.f_addmm(&g.tr(), &u)?;
                let both = self.rows.pull_back(&both.to_kind(Kind::Double));
                Ok((both.narrow(0, 0, self.shape.samples), both.narrow(0, self.shape.samples, self.shape.samples)))
            }
            Layout::OneWay => {
                let to_columns = g.tr().f_mm(&u)?;
                Ok((
                    self.rows.pull_back(&to_rows.to_kind(Kind::Double)),
                    self.columns.pull_back(&to_columns.to_kind(Kind::Double)),
                ))
            }
        }
    }
}
