//! Anchors, candidates and their shortfalls: who is compared with whom, how far apart they are, and how a gradient with
//! respect to the similarities goes back to the embeddings.
//!
//! Legend: A anchors (rows), C candidates (columns), B anchors of a block, K negatives an anchor, d dimensions. Nothing here
//! depends on the loss.

use super::Layout;
use crate::error::Result;
use std::ops::Range;
use tch::{Device, Kind, Tensor};

/// A row with a norm below this counts as zero.
pub(super) const ZERO_NORM: f64 = 1e-8;

/// The shortfall that stands where there is no negative (the anchor itself, its positive): that of a similarity of -1e9,
/// which the reference writes there and which shows in its top-M lists.
pub(super) const ABSENT: f64 = 1e9 + 1.0;

/// Entries of an [A, C] matrix that the processor works on at a time: they stay in its cache between operations.
const BLOCK: i64 = 1 << 17;

/// The same for matrix products, which read the other matrix once for each block.
const PRODUCT_BLOCK: i64 = 1 << 19;

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

/// Sizes of a batch in a layout.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub layout: Layout,
    /// Samples in the batch: the rows of a view that are anchors.
    pub samples: i64,
    /// A.
    pub anchors: i64,
    /// C.
    pub candidates: i64,
    /// K.
    pub negatives: i64,
    /// Whether pieces that fit a cache are of use.
    cached: bool,
}

/// Some rows of an [A, C] matrix, and where in them the positives and the anchors themselves lie.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub rows: Range<i64>,
    /// Offset of the diagonal of the positives.
    positive: i64,
    /// Offset of the diagonal of the anchors themselves, where they are candidates.
    itself: Option<i64>,
}

impl Shape {
    /// `samples` and `others` are the rows of the two views; they differ one way only.
    pub fn new(layout: Layout, samples: i64, others: i64, device: Device) -> Shape {
        let (anchors, candidates, negatives) = match layout {
            Layout::TwoView => (2 * samples, 2 * samples, 2 * samples - 2),
            Layout::OneWay | Layout::BothWays => (samples, others, others - 1),
        };
        Shape { layout, samples, anchors, candidates, negatives, cached: device == Device::Cpu }
    }

    /// The shape of the transposed matrix of similarities; one way its blocks tell only rows.
    fn transposed(&self) -> Shape {
        match self.layout {
            Layout::TwoView => *self,
            Layout::OneWay | Layout::BothWays => {
                Shape { samples: self.candidates, anchors: self.candidates, candidates: self.anchors, ..*self }
            }
        }
    }

    /// All rows in blocks for elementwise work.
    pub fn blocks(&self) -> Vec<Block> {
        self.blocks_of(BLOCK)
    }

    /// Blocks of about so many entries. A block is of one view, so that its positives lie on one diagonal.
    fn blocks_of(&self, entries: i64) -> Vec<Block> {
        let length = if self.cached { (entries / self.candidates).max(1) } else { self.samples };
        let mut blocks = Vec::new();
        for view in (0..self.anchors).step_by(self.samples as usize) {
            for start in (view..view + self.samples).step_by(length as usize) {
                let rows = start..(start + length).min(view + self.samples);
                blocks.push(match self.layout {
                    Layout::TwoView => {
                        let other_view = if view == 0 { self.samples } else { -self.samples };
                        Block { rows, positive: start + other_view, itself: Some(start) }
                    }
                    Layout::OneWay | Layout::BothWays => Block { rows, positive: start, itself: None },
                });
            }
        }
        blocks
    }
}

impl Block {
    /// The block's rows of a tensor with a row for each anchor, or the tensor itself if one row serves all.
    pub fn of(&self, tensor: &Tensor) -> Tensor {
        if tensor.size()[0] == 1 {
            return tensor.shallow_clone();
        }
        tensor.narrow(0, self.rows.start, self.rows.end - self.rows.start)
    }

    /// A buffer for the rows of any of these blocks, [B, C]: the first is the longest.
    pub fn buffer(blocks: &[Block], candidates: i64, kind: Kind, device: Device) -> Result<Tensor> {
        let longest = blocks.first().map_or(0, |b| b.rows.end - b.rows.start);
        Ok(Tensor::f_empty([longest, candidates], (kind, device))?)
    }

    /// The part of a buffer that the block's rows take.
    pub fn part(&self, buffer: &Tensor) -> Tensor {
        buffer.narrow(0, 0, self.rows.end - self.rows.start)
    }

    /// View of the positives' entries of the block's rows [B, C].
    pub fn positives(&self, rows: &Tensor) -> Tensor {
        rows.diagonal(self.positive, 0, 1)
    }

    /// Writes `value` where an anchor would meet itself.
    pub fn fill_self(&self, rows: &Tensor, value: f64) {
        if let Some(offset) = self.itself {
            let _ = rows.diagonal(offset, 0, 1).fill_(value);
        }
    }

    /// Writes `value` where there is no negative.
    pub fn fill_non_negatives(&self, rows: &Tensor, value: f64) {
        self.fill_self(rows, value);
        let _ = self.positives(rows).fill_(value);
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
    /// delta of the positive, [A, 1] float64.
    pub positive: Tensor,
}

impl Pairs {
    /// Normalises the views and computes all shortfalls as a matrix product in the kind `product`; they are handed on in
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
            Layout::OneWay | Layout::BothWays => (Side::new(z_i, zero), Side::new(z_j, zero)),
        };
        let device = z_i.device();
        // [-u, 1] [v, 1]^T = 1 - u v^T.
        let one = Tensor::ones([1, 1], (Kind::Double, device));
        let with_one = |u: &Tensor| Tensor::cat(&[u, &one.expand([u.size()[0], 1], false)], 1).to_kind(product);
        let left = with_one(&rows.unit.neg());
        let right = with_one(&columns.unit).tr();
        let delta = Tensor::f_empty([shape.anchors, shape.candidates], (working, device))?;
        let blocks = shape.blocks_of(PRODUCT_BLOCK);
        let buffer = match product == working {
            true => None,
            false => Some(Block::buffer(&blocks, shape.candidates, product, device)?),
        };
        let mut positives = Vec::new();
        for block in blocks {
            let mut narrow = block.of(&delta);
            let wide = buffer.as_ref().map_or_else(|| narrow.shallow_clone(), |buffer| block.part(buffer));
            let _ = block.of(&left).f_mm_out(&wide, &right)?;
            positives.push(block.positives(&wide).to_kind(Kind::Double).copy());
            if buffer.is_some() {
                narrow.f_copy_(&wide)?;
            }
            block.fill_non_negatives(&narrow, ABSENT);
        }
        let positive = Tensor::cat(&positives, 0).view([-1, 1]);
        Ok(Pairs { shape, rows, columns, delta, positive })
    }

    /// Shortfall of each anchor's hardest negative, [A, 1] float64.
    pub fn hardest(&self) -> Tensor {
        self.delta.amin([1i64].as_slice(), true).to_kind(Kind::Double)
    }

    /// Number of zero rows in both views, 0-dim int64.
    pub fn zero_rows(&self) -> Tensor {
        match self.shape.layout {
            Layout::TwoView => self.rows.zero_rows.shallow_clone(),
            Layout::OneWay | Layout::BothWays => &self.rows.zero_rows + &self.columns.zero_rows,
        }
    }

    /// From G = dL/dS [A, C] to the gradients of the two views, float64 in their shapes; `kind` is the kind of the products.
    pub fn pull_back(self, g: &Tensor, kind: Kind) -> Result<(Tensor, Tensor)> {
        let Pairs { shape, rows, columns, .. } = self;
        let turned = shape.transposed();
        if shape.layout == Layout::TwoView {
            // Rows and columns are the same embeddings.
            let panels = Panels::new(turned, g, kind)?;
            let sum = |block: &Block| Ok(panels.transposed(block)?.f_add_(&block.of(g))?);
            let both = rows.pull_back(&product(&turned, sum, &rows, kind)?);
            return Ok((both.narrow(0, 0, shape.samples), both.narrow(0, shape.samples, shape.samples)));
        }
        let panels = Panels::new(turned, g, kind)?;
        let as_is = |block: &Block| Ok(block.of(g).to_kind(kind));
        let transposed = |block: &Block| panels.transposed(block);
        Ok((
            rows.pull_back(&product(&shape, as_is, &columns, kind)?),
            columns.pull_back(&product(&turned, transposed, &rows, kind)?),
        ))
    }
}

/// A matrix of this shape [A, C] times the unit rows of `side` [C, d], computed in `kind`; float64. `rows` gives the matrix by blocks
/// of its rows.
///
/// # Numerics
/// The product is of the rows' differences from their mean: where all embeddings lie in one small cap, most of every
/// row is the mean, which the projection in [`Side::pull_back`] takes away again.
fn product(shape: &Shape, rows: impl Fn(&Block) -> Result<Tensor>, side: &Side, kind: Kind) -> Result<Tensor> {
    let mean = side.unit.mean_dim([0i64].as_slice(), true, Kind::Double);
    let centred = (&side.unit - &mean).to_kind(kind);
    let out = Tensor::f_empty([shape.anchors, centred.size()[1]], (kind, centred.device()))?;
    let mut sums = Vec::new();
    for block in shape.blocks() {
        let rows = rows(&block)?;
        sums.push(rows.f_sum_dim_intlist([1i64].as_slice(), true, kind)?);
        let _ = rows.f_mm_out(&block.of(&out), &centred)?;
    }
    Ok(out.to_kind(Kind::Double) + Tensor::f_cat(&sums, 0)?.to_kind(Kind::Double) * mean)
}

/// The transpose of a matrix [A, C], by blocks of its rows.
struct Panels<'a> {
    matrix: &'a Tensor,
    /// Some columns as they are and transposed, [A, B] and [B, A] in the kind of the products. A transposition within a
    /// processor's cache is several times as fast as one that reads a column of the whole matrix.
    buffers: (Tensor, Tensor),
}

impl Panels<'_> {
    /// `turned` is the shape of the transpose.
    fn new(turned: Shape, matrix: &Tensor, kind: Kind) -> Result<Panels<'_>> {
        let buffer = || Block::buffer(&turned.blocks(), turned.candidates, kind, matrix.device());
        Ok(Panels { matrix, buffers: (buffer()?, buffer()?) })
    }

    /// The block's rows of the transpose [B, A]; they stand until the next call.
    fn transposed(&self, block: &Block) -> Result<Tensor> {
        let (rows, columns) = (block.rows.end - block.rows.start, self.matrix.size()[0]);
        let mut upright = block.part(&self.buffers.0).view([columns, rows]);
        upright.f_copy_(&self.matrix.narrow(1, block.rows.start, rows))?;
        let mut turned = block.part(&self.buffers.1);
        turned.f_copy_(&upright.tr())?;
        Ok(turned)
    }
}
