//! Anchors, candidates and their shortfalls: who is compared with whom, and how far apart they are.
//!
//! Legend: A anchors (rows), C candidates (columns), B anchors of a block, K negatives an anchor, d dimensions. Nothing here
//! depends on the loss.

mod pull_back;

pub(super) use pull_back::{Centred, Gathered, Products};

use super::Layout;
use crate::dist::Group;
use crate::error::{Error, Result};
use crate::torch::{smallest, workers};
use std::ops::Range;
use std::sync::mpsc::sync_channel;
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

/// Entries of a tile where their number is not given: 128 MiB of float32. Smaller ones make more gradients of all candidates to be added.
const TILE: i64 = 1 << 25;

/// Columns of a piece of a product whose kind is not that of the shortfalls: of [`PRODUCT_BLOCK`] entries, it stays in a processor's
/// cache until it is converted.
const PRODUCT_COLUMNS: i64 = 1 << 11;

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

    /// From the gradient with respect to the unit rows to that with respect to the rows themselves, for some of the rows.
    fn pull_back(&self, gradient: &Tensor, rows: Range<i64>) -> Tensor {
        let of = |t: &Tensor| t.narrow(0, rows.start, rows.end - rows.start);
        let gradient = of(gradient);
        let radial = (&gradient * of(&self.unit)).sum_dim_intlist([-1i64].as_slice(), true, Kind::Double);
        (gradient - of(&self.direction) * radial) * of(&self.inverse_norm)
    }
}

/// Sizes of a batch in a layout.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub layout: Layout,
    /// Samples in the batch: the rows of a view that are anchors.
    pub samples: i64,
    /// Samples whose anchors this process computes: the first, and the one behind the last.
    own: (i64, i64),
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
        Shape { layout, samples, own: (0, samples), anchors, candidates, negatives, cached: device == Device::Cpu }
    }

    /// The same for a process that computes the anchors of some samples only.
    pub fn of_samples(self, own: Range<i64>) -> Shape {
        Shape { own: (own.start, own.end), ..self }
    }

    /// Views with anchors.
    fn views(&self) -> i64 {
        self.anchors / self.samples
    }

    /// Anchors that this process computes.
    fn own_anchors(&self) -> i64 {
        self.views() * (self.own.1 - self.own.0)
    }

    /// The shape of the transposed matrix of similarities; one way its blocks tell only rows.
    fn transposed(&self) -> Shape {
        match self.layout {
            Layout::TwoView => *self,
            Layout::OneWay | Layout::BothWays => {
                let (samples, candidates) = (self.candidates, self.anchors);
                Shape { samples, own: (0, samples), anchors: samples, candidates, ..*self }
            }
        }
    }

    /// This process's rows in blocks for elementwise work.
    pub fn blocks(&self) -> Vec<Block> {
        self.blocks_of(BLOCK)
    }

    /// Rows and columns of a product of so many rows that are made at once, where it is converted afterwards.
    fn product_piece(&self, rows: i64) -> (i64, i64) {
        if !self.cached {
            return (rows, self.candidates);
        }
        let columns = PRODUCT_COLUMNS.min(self.candidates);
        ((PRODUCT_BLOCK / columns).min(rows), columns)
    }

    /// Blocks of about so many entries.
    fn blocks_of(&self, entries: i64) -> Vec<Block> {
        self.parts(if self.cached { (entries / self.candidates).max(1) } else { self.samples })
    }

    /// Blocks of so many rows. A block is of one view, so that its positives lie on one diagonal.
    fn parts(&self, length: i64) -> Vec<Block> {
        let mut blocks = Vec::new();
        for view in (0..self.anchors).step_by(self.samples as usize) {
            let end = view + self.own.1;
            for start in (view + self.own.0..end).step_by(length as usize) {
                let rows = start..(start + length).min(end);
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

    /// The block in pieces of about so many entries.
    fn pieces(&self, shape: &Shape, entries: i64) -> Vec<Block> {
        let length = if shape.cached { (entries / shape.candidates).max(1) } else { shape.samples };
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
fn anchors_at_once(tile: Option<i64>, anchors: i64, candidates: i64) -> i64 {
    match tile {
        Some(tile) => tile.min(anchors),
        None if anchors * candidates > WHOLE => (TILE / candidates).max(1),
        None => anchors,
    }
}

/// How many workers make tiles of so many rows: what they hold, each a tile and two gradients of all candidates, has together no more
/// entries than a matrix that is kept whole.
fn at_work(threads: usize, rows: i64, candidates: i64, dimensions: i64) -> usize {
    threads.min((WHOLE / (candidates * (rows + 2 * dimensions))).max(1) as usize)
}

/// Bytes of float32 that a loss's matrices take on the CPU at the height of an evaluation: with all anchors at once the shortfalls, whose place
/// the gradient takes, and as much for the pieces that are worked on, the tails and the rows in float64; else what its workers hold, and
/// some six matrices of all rows in float64.
pub(super) fn bytes(tile: Option<i64>, anchors: i64, candidates: i64, dimensions: i64) -> i64 {
    let rows = anchors_at_once(tile, anchors, candidates);
    if rows == anchors {
        return 2 * 4 * anchors * candidates;
    }
    let workers = at_work(tch::get_num_threads().max(1) as usize, rows, candidates, dimensions) as i64;
    4 * workers * candidates * (rows + 2 * dimensions) + 6 * 8 * candidates * dimensions
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
}

/// Tensors that tile after tile is written to: a new one each time would be as many pages that the system has to find.
#[derive(Default)]
struct Room {
    delta: Option<Tensor>,
    wide: Option<Tensor>,
}

impl Room {
    /// For the shortfalls of a tile.
    fn delta(&mut self, rows: i64, columns: i64, options: (Kind, Device)) -> Result<Tensor> {
        room(&mut self.delta, rows, columns, options)
    }

    /// For a piece of a product.
    fn wide(&mut self, rows: i64, columns: i64, options: (Kind, Device)) -> Result<Tensor> {
        room(&mut self.wide, rows, columns, options)
    }
}

/// The first rows of what is there, or of what is made where that is too small.
fn room(there: &mut Option<Tensor>, rows: i64, columns: i64, options: (Kind, Device)) -> Result<Tensor> {
    match there {
        Some(t) if t.size()[0] >= rows && t.size()[1] == columns => Ok(t.f_narrow(0, 0, rows)?),
        _ => Ok(there.insert(Tensor::f_empty([rows, columns], options)?).shallow_clone()),
    }
}

/// Which process computes which samples' anchors.
#[derive(Clone)]
pub(super) struct Ranks {
    pub group: Group,
    /// Samples of each.
    pub samples: Vec<i64>,
    /// Further candidates of each; they lie behind all samples' second views.
    pub further: Vec<i64>,
}

impl Ranks {
    /// One process that computes all.
    pub fn alone(samples: i64, further: i64) -> Ranks {
        Ranks { group: Group::alone(), samples: vec![samples], further: vec![further] }
    }

    /// This process's samples.
    pub fn own(&self) -> Range<i64> {
        of_rank(&self.samples, self.group.rank())
    }

    /// This process's further candidates, counted from the first of all.
    fn own_further(&self) -> Range<i64> {
        of_rank(&self.further, self.group.rank())
    }

    /// All samples.
    pub fn all(&self) -> i64 {
        self.samples.iter().sum()
    }
}

/// The rows of a rank among those of all.
fn of_rank(rows: &[i64], rank: usize) -> Range<i64> {
    let start = rows[..rank].iter().sum();
    start..start + rows[rank]
}

/// A batch as its loss sees it.
pub(super) struct Pairs {
    pub shape: Shape,
    ranks: Ranks,
    rows: Side,
    columns: Side,
    /// [-u, 1] and [v, 1]^T of the unit rows in the kind of the products: their product is 1 - u v^T.
    factors: (Tensor, Tensor),
    /// delta of the positive of each anchor, [A, 1] float64.
    pub positive: Tensor,
    working: Kind,
    tiles: Tiles,
}

/// This process's anchors.
enum Tiles {
    /// All of them in one tile, or one for each view.
    Kept(Vec<Tile>),
    /// Tiles that are made whenever they are asked for: the anchors of each.
    Made(Vec<Block>),
}

impl Pairs {
    /// Normalises the views of a whole batch. Shortfalls are a matrix product in the kind `product`, and are handed on in the kind
    /// `working`: all at once, or where they are many, or `tile` says so, as many anchors at a time.
    ///
    /// # Numerics
    /// For unit rows half the squared distance is 1 - u.v. In float64 the rows are unit to 2e-16, so this has an absolute
    /// error of about 2e-16, 1e-10 of a shortfall of 1e-6. In float32 it would be 6e-8, 5% of it.
    pub fn new(
        shape: Shape,
        (z_i, z_j): (&Tensor, &Tensor),
        zero: ZeroRows,
        (product, working): (Kind, Kind),
        tile: Option<i64>,
        ranks: &Ranks,
    ) -> Result<Pairs> {
        let shape = shape.of_samples(ranks.own());
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
        let of_positives = match shape.layout {
            Layout::TwoView => columns.unit.roll([shape.samples], [0]),
            Layout::OneWay | Layout::BothWays => columns.unit.narrow(0, 0, shape.samples),
        };
        let cosines = (&rows.unit * of_positives).sum_dim_intlist([1i64].as_slice(), true, Kind::Double);
        let (positive, tiles) = (1.0 - cosines, Tiles::Made(Vec::new()));
        let mut pairs = Pairs { shape, ranks: ranks.clone(), rows, columns, factors, positive, working, tiles };
        let own = shape.own_anchors();
        let at_once = anchors_at_once(tile, own, shape.candidates);
        let mut room = Room::default();
        pairs.tiles = if at_once < own {
            Tiles::Made(shape.parts(at_once))
        } else if own == shape.anchors {
            let products = shape.blocks_of(PRODUCT_BLOCK);
            Tiles::Kept(vec![pairs.tile(0..own, &products, shape.blocks(), &mut room)?])
        } else {
            // The own rows of the views do not lie together.
            let of_view = |part: &Block| {
                let (products, blocks) = (part.pieces(&shape, PRODUCT_BLOCK), part.pieces(&shape, BLOCK));
                pairs.tile(part.rows.clone(), &products, blocks, &mut Room::default())
            };
            Tiles::Kept(shape.parts(shape.samples).iter().map(of_view).collect::<Result<_>>()?)
        };
        Ok(pairs)
    }

    /// The shortfalls of some anchors. `products` are blocks of them that are multiplied at once; `room` is for what can be used again.
    fn tile(&self, anchors: Range<i64>, products: &[Block], blocks: Vec<Block>, room: &mut Room) -> Result<Tile> {
        let (left, right) = &self.factors;
        let (product, device) = (left.kind(), left.device());
        let (start, candidates) = (anchors.start, self.shape.candidates);
        let delta = room.delta(anchors.end - start, candidates, (self.working, device))?;
        for block in products {
            let narrow = block.within(&delta, start);
            if product == self.working {
                let _ = block.of(left).f_mm_out(&narrow, right)?;
            } else {
                let rows = narrow.size()[0];
                let (at_once, columns) = self.shape.product_piece(rows);
                let wide = room.wide(at_once, columns, (product, device))?;
                for row in (0..rows).step_by(at_once as usize) {
                    let height = at_once.min(rows - row);
                    let left = block.of(left).narrow(0, row, height);
                    for column in (0..candidates).step_by(columns as usize) {
                        let width = columns.min(candidates - column);
                        let wide = wide.narrow(0, 0, height).narrow(1, 0, width);
                        let _ = left.f_mm_out(&wide, &right.narrow(1, column, width))?;
                        narrow.narrow(0, row, height).narrow(1, column, width).f_copy_(&wide)?;
                    }
                }
            }
            block.fill_non_negatives(&narrow, ABSENT);
        }
        Ok(Tile { start, blocks, delta })
    }

    /// Where the batch is.
    pub fn device(&self) -> Device {
        self.factors.0.device()
    }

    /// Whether one tile has the shortfalls of all anchors, so that the gradient can take their place and wait there.
    pub fn is_whole(&self) -> bool {
        matches!(&self.tiles, Tiles::Kept(tiles) if tiles.len() == 1 && tiles[0].delta.size()[0] == self.shape.anchors)
    }

    /// Hands `take` what there is made of each tile of this process's anchors, in their order. `make` gives the maker of each worker: tiles that
    /// are made when they are asked for are shared among as many workers as LibTorch has threads and memory allows, each of which computes alone.
    pub fn each_tile<X, F>(&self, make: impl Fn() -> F, mut take: impl FnMut(X) -> Result<()>) -> Result<()>
    where
        X: Send,
        F: FnMut(&Pairs, &Tile) -> Result<X> + Send,
    {
        let parts = match &self.tiles {
            Tiles::Kept(tiles) => {
                let mut maker = make();
                return tiles.iter().try_for_each(|tile| take(maker(self, tile)?));
            }
            Tiles::Made(parts) => parts,
        };
        if !self.shape.cached {
            let (mut maker, mut room) = (make(), Room::default());
            return parts.iter().try_for_each(|part| take(maker(self, &self.tile_of(part, &mut room)?)?));
        }
        let pool = workers()?;
        let rows = parts.iter().map(|part| part.rows.end - part.rows.start).max().unwrap_or(1);
        let threads = pool.current_num_threads().min(parts.len());
        let number = at_work(threads, rows, self.shape.candidates, self.rows.unit.size()[1]);
        pool.in_place_scope(|scope| {
            let mut made = Vec::new();
            for worker in 0..number {
                // One result may wait, so that memory is bounded.
                let (sender, receiver) = sync_channel(1);
                made.push(receiver);
                let (pairs, mut maker) = (self.shallow_clone(), make());
                let own: Vec<Block> = parts.iter().skip(worker).step_by(number).cloned().collect();
                scope.spawn(move |_| {
                    let mut room = Room::default();
                    for part in &own {
                        let result = pairs.tile_of(part, &mut room).and_then(|tile| maker(&pairs, &tile));
                        let failed = result.is_err();
                        // Nobody takes any more after an error of another worker.
                        if sender.send(result).is_err() || failed {
                            return;
                        }
                    }
                });
            }
            (0..parts.len()).try_for_each(|number_of_part| {
                let ended = |_| Error::Input("a worker of the loss's tiles ended before its work".into());
                take(made[number_of_part % number].recv().map_err(ended)??)
            })
        })
    }

    fn tile_of(&self, part: &Block, room: &mut Room) -> Result<Tile> {
        let blocks = part.pieces(&self.shape, BLOCK);
        self.tile(part.rows.clone(), std::slice::from_ref(part), blocks, room)
    }

    /// The same batch for a worker; without tiles.
    fn shallow_clone(&self) -> Pairs {
        Pairs {
            shape: self.shape,
            ranks: self.ranks.clone(),
            rows: self.rows.shallow_clone(),
            columns: self.columns.shallow_clone(),
            factors: (self.factors.0.shallow_clone(), self.factors.1.shallow_clone()),
            positive: self.positive.shallow_clone(),
            working: self.working,
            tiles: Tiles::Made(Vec::new()),
        }
    }

    /// What makers make of the shortfalls [T, C] of tiles, [T, ..] each: of all anchors, also those of other processes, [A, ..] each.
    pub fn collect<F>(&self, make: impl Fn() -> F) -> Result<Vec<Tensor>>
    where
        F: FnMut(&Tensor) -> Result<Vec<Tensor>> + Send,
    {
        let mut found: Vec<Vec<Tensor>> = Vec::new();
        let of_tile = || {
            let mut maker = make();
            move |_: &Pairs, tile: &Tile| maker(&tile.delta)
        };
        self.each_tile(of_tile, |made: Vec<Tensor>| {
            found.resize_with(made.len(), Vec::new);
            found.iter_mut().zip(made).for_each(|(of_tiles, t)| of_tiles.push(t));
            Ok(())
        })?;
        found.iter().map(|of_tiles| self.of_all(of_tiles)).collect()
    }

    /// Puts together what there is for this process's anchors, in their order and [T, ..] each, and adds that of others; [A, ..].
    pub fn of_all(&self, own: &[Tensor]) -> Result<Tensor> {
        let own = if let [own] = own { own.shallow_clone() } else { Tensor::f_cat(own, 0)? };
        if self.ranks.group.is_alone() {
            return Ok(own);
        }
        // Of a rank's samples one after the other all views, then of all samples view after view.
        let rest = &own.size()[1..];
        let by_view = own.f_view([&[self.shape.views(), -1], rest].concat().as_slice())?;
        let all = self.ranks.group.gather(&by_view.f_transpose(0, 1)?.f_contiguous()?, &self.ranks.samples)?;
        Ok(all.f_transpose(0, 1)?.f_reshape([&[self.shape.anchors], rest].concat().as_slice())?)
    }

    /// The `k` smallest shortfalls of all, ascending; [1, k] float64. Several tiles keep twice as many, several processes as many for each.
    pub fn smallest_of_all(&self, k: i64) -> Result<Tensor> {
        let mut kept: Option<Tensor> = None;
        let few = |t: &Tensor| smallest(t, k.min(t.numel() as i64));
        let of_tile = || move |_: &Pairs, tile: &Tile| few(&tile.delta.f_view([1, -1])?);
        self.each_tile(of_tile, |of_tile: Tensor| {
            kept = Some(match kept.take() {
                Some(kept) => few(&Tensor::f_cat(&[kept, of_tile], 1)?)?,
                None => of_tile,
            });
            Ok(())
        })?;
        let kept = kept.ok_or_else(|| Error::Input("a batch without anchors".into()))?;
        if self.ranks.group.is_alone() {
            return Ok(kept.to_kind(Kind::Double));
        }
        let entries = |samples: &i64| k.min(samples * self.shape.views() * self.shape.candidates);
        let of_ranks: Vec<i64> = self.ranks.samples.iter().map(entries).collect();
        let all = self.ranks.group.gather(&kept.f_view([-1])?, &of_ranks)?;
        Ok(smallest(&all.f_view([1, -1])?, k)?.to_kind(Kind::Double))
    }

    /// Number of zero rows in both views, 0-dim int64.
    pub fn zero_rows(&self) -> Tensor {
        match self.shape.layout {
            Layout::TwoView => self.rows.zero_rows.shallow_clone(),
            Layout::OneWay | Layout::BothWays => &self.rows.zero_rows + &self.columns.zero_rows,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_hold_no_more_than_a_whole_matrix() {
        let of_itself = |anchors: i64| anchors_at_once(None, anchors, anchors);
        for (anchors, threads, workers) in [(65_536, 2, 2), (65_536, 64, 10), (1 << 20, 64, 1), (32_768, 64, 12)] {
            assert_eq!(at_work(threads, of_itself(anchors), anchors, 128), workers, "{anchors}");
        }
        assert_eq!(at_work(64, 1, 1000, 128), 64);
        // Two views of 11,585 samples are the last that are compared at once.
        assert_eq!((of_itself(23_170), of_itself(23_172)), (23_170, (1 << 25) / 23_172));
    }
}
