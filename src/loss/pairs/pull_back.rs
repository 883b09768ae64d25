//! How a gradient with respect to the similarities goes back to the embeddings: from the whole matrix, or tile by tile.

use super::{Block, Pairs, Shape, Side};
use crate::error::Result;
use crate::loss::Layout;
use tch::{Kind, Tensor};

impl Pairs {
    /// Room for the gradients of the unit rows, to which tiles add theirs, and what they multiply with, in `kind`.
    pub fn gathered(&self, kind: Kind) -> (Gathered, Centred) {
        let zeros = |side: &Side| {
            let [rows, d] = side.unit.size()[..] else { return (side.unit.zeros_like(), side.unit.zeros_like()) };
            let options = (Kind::Double, side.unit.device());
            (Tensor::zeros([rows, d], options), Tensor::zeros([rows, 1], options))
        };
        let (rows, columns) = (centred(&self.rows, kind), centred(&self.columns, kind));
        let gathered = Gathered { rows: zeros(&self.rows), columns: zeros(&self.columns), means: (rows.1, columns.1) };
        (gathered, Centred(rows.0, columns.0))
    }

    /// From what tiles gathered to the gradients of this process's rows of the two views, float64 in their shapes.
    pub fn pull_back_gathered(self, gathered: Gathered) -> Result<(Tensor, Tensor)> {
        let Gathered { rows, columns, means, .. } = gathered;
        // What belongs to a row's gradient is measured from the mean of the other side.
        let rows = rows.0 + rows.1 * means.1;
        let mut columns = columns.0 + columns.1 * means.0;
        // A candidate has gradients from the anchors of all processes.
        self.ranks.group.sum(&mut columns)?;
        let (own, samples) = (self.ranks.own(), self.shape.samples);
        if self.shape.layout == Layout::TwoView {
            let both = rows + columns;
            let of_view = |first: i64| self.rows.pull_back(&both, first + own.start..first + own.end);
            return Ok((of_view(0), of_view(samples)));
        }
        let further = self.ranks.own_further();
        let further = self.columns.pull_back(&columns, samples + further.start..samples + further.end);
        let seconds = self.columns.pull_back(&columns, own.clone());
        Ok((self.rows.pull_back(&rows, own), Tensor::f_cat(&[seconds, further], 0)?))
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
            let both = rows.pull_back(&product(&turned, sum, &rows, kind)?, 0..shape.anchors);
            return Ok((both.narrow(0, 0, shape.samples), both.narrow(0, shape.samples, shape.samples)));
        }
        let panels = Panels::new(turned, g, kind)?;
        let as_is = |block: &Block| Ok(block.of(g).to_kind(kind));
        let transposed = |block: &Block| panels.transposed(block);
        Ok((
            rows.pull_back(&product(&shape, as_is, &columns, kind)?, 0..shape.anchors),
            columns.pull_back(&product(&turned, transposed, &rows, kind)?, 0..shape.candidates),
        ))
    }
}

/// Gradients of the unit rows of both sides, tile by tile: each as a product with the other side's rows less their mean, and a sum
/// that the mean is multiplied with, in float64.
pub(in crate::loss) struct Gathered {
    rows: (Tensor, Tensor),
    columns: (Tensor, Tensor),
    means: (Tensor, Tensor),
}

/// What the gradient of a tile gives: products and sums of its rows, [T, d] and [T, 1], and of its columns, [C, d] and [C, 1].
pub(in crate::loss) struct Products {
    start: i64,
    rows: (Tensor, Tensor),
    columns: (Tensor, Tensor),
}

/// The rows of both sides less their means, with which a worker multiplies.
pub(in crate::loss) struct Centred(Tensor, Tensor);

impl Centred {
    /// The same for another worker.
    pub fn shallow_clone(&self) -> Centred {
        Centred(self.0.shallow_clone(), self.1.shallow_clone())
    }

    /// What G = dL/dS [T, C] of the anchors from `start` on gives.
    ///
    /// # Numerics
    /// As in [`product`].
    pub fn products(&self, g: &Tensor, start: i64) -> Result<Products> {
        let kind = self.0.kind();
        let g = g.f_to_kind(kind)?;
        let sum = |dim: i64| -> Result<Tensor> { Ok(g.f_sum_dim_intlist([dim].as_slice(), true, kind)?) };
        let anchors = self.0.f_narrow(0, start, g.size()[0])?;
        Ok(Products { start, rows: (g.f_mm(&self.1)?, sum(1)?), columns: (g.tr().f_mm(&anchors)?, sum(0)?.tr()) })
    }
}

impl Gathered {
    /// Adds what a tile gives.
    pub fn add(&mut self, Products { start, rows, columns }: Products) -> Result<()> {
        let anchors = rows.0.size()[0];
        let of = |t: &Tensor| t.narrow(0, start, anchors);
        of(&self.rows.0).f_copy_(&rows.0)?;
        of(&self.rows.1).f_copy_(&rows.1)?;
        let _ = self.columns.0.f_add_(&columns.0)?;
        let _ = self.columns.1.f_add_(&columns.1)?;
        Ok(())
    }
}

/// A side's unit rows less their mean, [rows, d] in `kind`, and the mean, [1, d] float64.
fn centred(side: &Side, kind: Kind) -> (Tensor, Tensor) {
    let mean = side.unit.mean_dim([0i64].as_slice(), true, Kind::Double);
    ((&side.unit - &mean).to_kind(kind), mean)
}

/// A matrix of this shape [A, C] times the unit rows of `side` [C, d], computed in `kind`; float64. `rows` gives the matrix by blocks
/// of its rows.
///
/// # Numerics
/// The product is of the rows' differences from their mean: where all embeddings lie in one small cap, most of every
/// row is the mean, which the projection in [`Side::pull_back`] takes away again.
fn product(shape: &Shape, rows: impl Fn(&Block) -> Result<Tensor>, side: &Side, kind: Kind) -> Result<Tensor> {
    let (centred, mean) = centred(side, kind);
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
