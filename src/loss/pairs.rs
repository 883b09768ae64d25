//! Anchors, candidates and their shortfalls: who is compared with whom, how far apart they are, and how a gradient with
//! respect to the similarities goes back to the embeddings.
//!
//! Legend: A anchors (rows), C candidates (columns), B anchors of a block, K negatives an anchor, d dimensions. Nothing here
//! depends on the loss.

use super::Layout;
use crate::error::{Error, Result};
use crate::torch::{smallest, smallest_with_columns};
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

/// Entries of an [A, C] matrix above which it is not kept whole: 2 GiB of float32. It is no share of a machine's memory, so that a
/// configuration gives the same numbers on every machine.
const WHOLE: i64 = 1 << 29;

/// Entries of a tile where their number is not given.
const TILE: i64 = 1 << 24;

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

    /// Blocks of about so many entries.
    fn blocks_of(&self, entries: i64) -> Vec<Block> {
        self.parts(if self.cached { (entries / self.candidates).max(1) } else { self.samples })
    }

    /// Blocks of so many rows. A block is of one view, so that its positives lie on one diagonal.
    fn parts(&self, length: i64) -> Vec<Block> {
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

    /// The block's rows of a tensor whose first row is that of the anchor `start`.
    pub fn within(&self, tensor: &Tensor, start: i64) -> Tensor {
        tensor.narrow(0, self.rows.start - start, self.rows.end - self.rows.start)
    }

    /// The block in pieces for elementwise work.
    fn pieces(&self, shape: &Shape) -> Vec<Block> {
        let length = if shape.cached { (BLOCK / shape.candidates).max(1) } else { shape.samples };
        let piece = |start: i64| {
            let moved = start - self.rows.start;
            let rows = start..(start + length).min(self.rows.end);
            Block { rows, positive: self.positive + moved, itself: self.itself.map(|offset| offset + moved) }
        };
        self.rows.clone().step_by(length as usize).map(piece).collect()
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

/// How many of the anchors have their shortfalls there at once, where `tile` says so or by themselves.
pub(super) fn anchors_at_once(tile: Option<i64>, anchors: i64, candidates: i64) -> i64 {
    match tile {
        Some(tile) => tile.min(anchors),
        None if anchors * candidates > WHOLE => (TILE / candidates).max(1),
        None => anchors,
    }
}

/// Some anchors' shortfalls.
pub(super) struct Tile {
    /// The first of the anchors.
    pub start: i64,
    /// Their rows in pieces for elementwise work.
    pub blocks: Vec<Block>,
    /// delta = 1 - cosine of every negative, [`ABSENT`] elsewhere; [T, C] in the working kind. Not floored: rounding can
    /// make it slightly negative.
    pub delta: Tensor,
    /// delta of the positive, [T, 1] float64.
    pub positive: Tensor,
}

impl Tile {
    /// A tile that shares the tensors of this one.
    fn shallow_clone(&self) -> Tile {
        Tile {
            start: self.start,
            blocks: self.blocks.clone(),
            delta: self.delta.shallow_clone(),
            positive: self.positive.shallow_clone(),
        }
    }
}

/// A batch as its loss sees it.
pub(super) struct Pairs {
    pub shape: Shape,
    rows: Side,
    columns: Side,
    /// [-u, 1] and [v, 1]^T of the unit rows in the kind of the products: their product is 1 - u v^T.
    factors: (Tensor, Tensor),
    working: Kind,
    /// All anchors in one tile, which is kept, or several, which are made whenever they are asked for.
    tiles: Tiles,
}

enum Tiles {
    Whole(Tile),
    /// The anchors of each.
    Parts(Vec<Block>),
}

impl Pairs {
    /// Normalises the views. Shortfalls are a matrix product in the kind `product`, and are handed on in the kind `working`: all at
    /// once, or where they are many, or `tile` says so, as many anchors at a time.
    ///
    /// # Numerics
    /// For unit rows half the squared distance is 1 - u.v. In float64 the rows are unit to 2e-16, so this has an absolute
    /// error of about 2e-16, 1e-10 of a shortfall of 1e-6. In float32 it would be 6e-8, 5% of it.
    pub fn new(
        shape: Shape,
        z_i: &Tensor,
        z_j: &Tensor,
        zero: ZeroRows,
        (product, working): (Kind, Kind),
        tile: Option<i64>,
    ) -> Result<Pairs> {
        let (rows, columns) = match shape.layout {
            Layout::TwoView => {
                let both = Side::new(&Tensor::f_cat(&[z_i, z_j], 0)?, zero);
                (both.shallow_clone(), both)
            }
            Layout::OneWay | Layout::BothWays => (Side::new(z_i, zero), Side::new(z_j, zero)),
        };
        let one = Tensor::ones([1, 1], (Kind::Double, z_i.device()));
        let with_one = |u: &Tensor| Tensor::cat(&[u, &one.expand([u.size()[0], 1], false)], 1).to_kind(product);
        let factors = (with_one(&rows.unit.neg()), with_one(&columns.unit).tr());
        let mut pairs = Pairs { shape, rows, columns, factors, working, tiles: Tiles::Parts(Vec::new()) };
        let at_once = anchors_at_once(tile, shape.anchors, shape.candidates);
        pairs.tiles = if at_once >= shape.anchors {
            let products = shape.blocks_of(PRODUCT_BLOCK);
            Tiles::Whole(pairs.tile(0..shape.anchors, &products, shape.blocks(), &mut None)?)
        } else {
            Tiles::Parts(shape.parts(at_once))
        };
        Ok(pairs)
    }

    /// The shortfalls of some anchors. `products` are blocks of them that are multiplied at once; `wide` is room for one of the blocks in
    /// the kind of the products, which is made where it is missing.
    fn tile(
        &self,
        anchors: Range<i64>,
        products: &[Block],
        blocks: Vec<Block>,
        wide: &mut Option<Tensor>,
    ) -> Result<Tile> {
        let (left, right) = &self.factors;
        let (product, device) = (left.kind(), left.device());
        let (start, candidates) = (anchors.start, self.shape.candidates);
        let delta = Tensor::f_empty([anchors.end - start, candidates], (self.working, device))?;
        if product != self.working && wide.is_none() {
            *wide = Some(Block::buffer(products, candidates, product, device)?);
        }
        let mut positives = Vec::new();
        for block in products {
            let mut narrow = block.within(&delta, start);
            let wide = match wide {
                Some(buffer) if product != self.working => block.part(buffer),
                _ => narrow.shallow_clone(),
            };
            let _ = block.of(left).f_mm_out(&wide, right)?;
            positives.push(block.positives(&wide).to_kind(Kind::Double).copy());
            if product != self.working {
                narrow.f_copy_(&wide)?;
            }
            block.fill_non_negatives(&narrow, ABSENT);
        }
        Ok(Tile { start, blocks, delta, positive: Tensor::cat(&positives, 0).view([-1, 1]) })
    }

    /// Where the batch is.
    pub fn device(&self) -> Device {
        self.factors.0.device()
    }

    /// Whether the gradient can take the place of the shortfalls and wait there.
    pub fn is_whole(&self) -> bool {
        matches!(self.tiles, Tiles::Whole(_))
    }

    /// Gives all tiles, one after the other.
    pub fn each_tile(&self, mut take: impl FnMut(&Tile) -> Result<()>) -> Result<()> {
        match &self.tiles {
            Tiles::Whole(tile) => take(&tile.shallow_clone()),
            Tiles::Parts(parts) => {
                let mut wide = None;
                parts.iter().try_for_each(|part| {
                    let blocks = part.pieces(&self.shape);
                    take(&self.tile(part.rows.clone(), std::slice::from_ref(part), blocks, &mut wide)?)
                })
            }
        }
    }

    /// What `f` makes of the shortfalls of each tile, [T, k] each; [A, k].
    fn collect(&self, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let mut found = Vec::new();
        self.each_tile(|tile| {
            found.push(f(&tile.delta)?);
            Ok(())
        })?;
        Ok(if found.len() == 1 { found.remove(0) } else { Tensor::f_cat(&found, 0)? })
    }

    /// The `k` smallest shortfalls of each anchor, ascending; [A, k] float64.
    pub fn smallest(&self, k: i64) -> Result<Tensor> {
        Ok(self.collect(|delta| smallest(delta, k))?.to_kind(Kind::Double))
    }

    /// The same with their columns, [A, k] int64.
    pub fn smallest_with_columns(&self, k: i64) -> Result<(Tensor, Tensor)> {
        let (mut values, mut columns) = (Vec::new(), Vec::new());
        self.each_tile(|tile| {
            let (value, column) = smallest_with_columns(&tile.delta, k)?;
            values.push(value);
            columns.push(column);
            Ok(())
        })?;
        Ok((Tensor::f_cat(&values, 0)?.to_kind(Kind::Double), Tensor::f_cat(&columns, 0)?))
    }

    /// The `k` smallest shortfalls of all, ascending; [1, k] float64. Several tiles keep twice as many.
    pub fn smallest_of_all(&self, k: i64) -> Result<Tensor> {
        let mut kept: Option<Tensor> = None;
        self.each_tile(|tile| {
            let all = tile.delta.view([1, -1]);
            let all = match &kept {
                Some(kept) => Tensor::f_cat(&[kept, &smallest(&all, k.min(all.numel() as i64))?], 1)?,
                None => all,
            };
            kept = Some(smallest(&all, k.min(all.numel() as i64))?);
            Ok(())
        })?;
        kept.map(|kept| kept.to_kind(Kind::Double)).ok_or_else(|| Error::Input("a batch without anchors".into()))
    }

    /// Shortfall of each anchor's hardest negative, [A, 1] float64.
    pub fn hardest(&self) -> Result<Tensor> {
        Ok(self.collect(|delta| Ok(delta.f_amin([1i64].as_slice(), true)?))?.to_kind(Kind::Double))
    }

    /// Number of zero rows in both views, 0-dim int64.
    pub fn zero_rows(&self) -> Tensor {
        match self.shape.layout {
            Layout::TwoView => self.rows.zero_rows.shallow_clone(),
            Layout::OneWay | Layout::BothWays => &self.rows.zero_rows + &self.columns.zero_rows,
        }
    }

    /// Room for the gradients of the unit rows, to which tiles add theirs; `kind` is the kind of the products.
    pub fn gathered(&self, kind: Kind) -> Gathered {
        let zeros = |side: &Side| {
            let [rows, d] = side.unit.size()[..] else { return (side.unit.zeros_like(), side.unit.zeros_like()) };
            let options = (Kind::Double, side.unit.device());
            (Tensor::zeros([rows, d], options), Tensor::zeros([rows, 1], options))
        };
        let centred = |side: &Side| {
            let mean = side.unit.mean_dim([0i64].as_slice(), true, Kind::Double);
            ((&side.unit - &mean).to_kind(kind), mean)
        };
        let (rows, columns) = (centred(&self.rows), centred(&self.columns));
        Gathered {
            rows: zeros(&self.rows),
            columns: zeros(&self.columns),
            centred: (rows.0, columns.0),
            means: (rows.1, columns.1),
        }
    }

    /// From what tiles gathered to the gradients of the two views, float64 in their shapes.
    pub fn pull_back_gathered(self, gathered: Gathered) -> (Tensor, Tensor) {
        let Gathered { rows, columns, means, .. } = gathered;
        // What belongs to a row's gradient is measured from the mean of the other side.
        let rows = rows.0 + rows.1 * means.1;
        let columns = columns.0 + columns.1 * means.0;
        if self.shape.layout == Layout::TwoView {
            let both = self.rows.pull_back(&(rows + columns));
            let samples = self.shape.samples;
            return (both.narrow(0, 0, samples), both.narrow(0, samples, samples));
        }
        (self.rows.pull_back(&rows), self.columns.pull_back(&columns))
    }

    /// From G = dL/dS [A, C], which took the place of the shortfalls of a whole batch, to the gradients of the two views, float64 in
    /// their shapes; `kind` is the kind of the products.
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

/// Gradients of the unit rows of both sides, tile by tile: each as a product with the other side's rows less their mean, and a sum
/// that the mean is multiplied with, in float64.
pub(super) struct Gathered {
    rows: (Tensor, Tensor),
    columns: (Tensor, Tensor),
    centred: (Tensor, Tensor),
    means: (Tensor, Tensor),
}

impl Gathered {
    /// Adds G = dL/dS [T, C] of the anchors from `start` on.
    ///
    /// # Numerics
    /// As in [`product`].
    pub fn add(&mut self, g: &Tensor, start: i64) -> Result<()> {
        let g = g.to_kind(self.centred.0.kind());
        let anchors = g.size()[0];
        let sum = |dim: i64| -> Result<Tensor> { Ok(g.f_sum_dim_intlist([dim].as_slice(), true, Kind::Double)?) };
        let of = |t: &Tensor| t.narrow(0, start, anchors);
        of(&self.rows.0).f_copy_(&g.f_mm(&self.centred.1)?)?;
        of(&self.rows.1).f_copy_(&sum(1)?)?;
        let _ = self.columns.0.f_add_(&g.tr().f_mm(&of(&self.centred.0))?)?;
        let _ = self.columns.1.f_add_(&sum(0)?.tr())?;
        Ok(())
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
