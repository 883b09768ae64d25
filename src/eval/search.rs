//! Exact search for the nearest rows of a bank by cosine similarity.
//!
//! The neighbours are the same for every batch size, thread count, processor and device. Products in float32 only propose:
//! every rounding of a float32 dot product of unit vectors is at most (d + 4) 2^-24, so whatever lies within twice that of the
//! k-th best is kept and scored again in float64, in one fixed order. Ties go to the lower bank index, so duplicates in the
//! bank rank by their place in it. Features that have collapsed to a point make everything a candidate: slow, and still right.

use super::panels::{Panels, Reader};
use super::rows::{Rows, product_error};
use crate::augment::dispatch;
use crate::error::Result;
use crate::torch::{with_floats, workers};
use rayon::prelude::*;
use tch::{Device, Tensor};

/// Bank rows that all rows of a batch ask before the next: they stay in the cache that the cores share.
const STRIPE: usize = 1024;
/// Bank rows that all candidates among them are scored with before the next: they stay in the cache that the cores share.
const SCORED: usize = 1024;
/// Candidates of a row that are scored at once, so that one's numbers are summed while another's are on their way.
const TOGETHER: usize = 4;
/// Bank rows of the sample that tells where the nearest may begin; a bank of fewer than eight times as many is asked without it.
const SAMPLE: usize = 1024;
/// Rows of a batch that ask a stripe before the next: they stay in a core's own cache.
const PART: usize = 24;
/// Bank rows of a block on other devices, which want large products.
const DEVICE_BLOCK: usize = 8192;
/// Similarities that are compared with the floor at once.
const CHUNK: usize = 32;

/// Similarity and bank index.
pub(super) type Neighbour = (f64, u32);

/// Unit rows of a bank as the products want them.
enum Units {
    /// For a CPU.
    Panels(Sampled),
    /// For LibTorch: transposed, [d, rows], a block each.
    Blocks(Vec<Tensor>, Device),
}

/// Unit rows of a bank, of which the first tell where the nearest may begin.
struct Sampled {
    panels: Panels,
    /// The bank row at each place of the panels.
    order: Vec<u32>,
    /// How many are the sample; 0 if the bank is asked without one.
    sample: usize,
}

impl Sampled {
    fn new(bank: &Rows) -> Sampled {
        let (rows, stride) = (bank.count() as u32, bank.count() / SAMPLE);
        if stride < 8 {
            return Sampled::with(bank, (0..rows).collect(), 0);
        }
        // One of every `stride` rows, somewhere among them: banks may be sorted, or their classes take turns.
        let place = |i: u32| i * stride as u32 + i.wrapping_mul(0x9E37_79B1) % stride as u32;
        let mut order: Vec<u32> = (0..SAMPLE as u32).map(place).collect();
        let mut others = vec![true; rows as usize];
        order.iter().for_each(|i| others[*i as usize] = false);
        order.extend((0..rows).filter(|i| others[*i as usize]));
        Sampled::with(bank, order, SAMPLE)
    }

    fn with(bank: &Rows, order: Vec<u32>, sample: usize) -> Sampled {
        let panels =
            Panels::right_of(order.len(), bank.dim(), |place, row| bank.write_unit(order[place] as usize, row));
        Sampled { panels, order, sample }
    }
}

/// Exact search in a bank.
pub(super) struct Search<'a> {
    ranking: Ranking<'a>,
    units: Units,
}

impl<'a> Search<'a> {
    pub fn new(bank: &'a Rows, device: Device) -> Result<Search<'a>> {
        let units = if device == Device::Cpu {
            Units::Panels(Sampled::new(bank))
        } else {
            Units::Blocks(bank.blocks(DEVICE_BLOCK, device)?, device)
        };
        Ok(Search::with(bank, units))
    }

    fn with(bank: &'a Rows, units: Units) -> Search<'a> {
        Search { ranking: Ranking { bank, margin: (2.0 * product_error(bank.dim())) as f32 }, units }
    }

    /// The nearest `k` bank rows of all rows, nearest first, at most `batch` rows at a time and in their order, for `take`. On
    /// a CPU each worker has a batch of its own.
    pub fn all(&self, rows: &Rows, batch: usize, k: usize, take: &mut dyn FnMut(Vec<Vec<Neighbour>>)) -> Result<()> {
        let (count, ranking) = (rows.count(), self.ranking);
        match &self.units {
            Units::Panels(bank) => {
                let pool = workers()?;
                // As many batches for each worker, of nearly as many rows.
                let lanes = pool.current_num_threads();
                let batch = count.div_ceil(count.div_ceil(batch).next_multiple_of(lanes)).max(1);
                for begin in (0..count).step_by(batch * lanes) {
                    let begins: Vec<usize> = (begin..count.min(begin + batch * lanes)).step_by(batch).collect();
                    let nearest = |begin| ranking.by_panels(bank, rows, begin, count.min(begin + batch), k);
                    let found: Vec<_> = pool.install(|| begins.into_par_iter().map(nearest).collect());
                    found.into_iter().for_each(&mut *take);
                }
                Ok(())
            }
            Units::Blocks(blocks, device) => (0..count).step_by(batch).try_for_each(|begin| {
                take(ranking.by_blocks(blocks, *device, rows, begin, count.min(begin + batch), k)?);
                Ok(())
            }),
        }
    }
}

/// What is done with products.
#[derive(Clone, Copy)]
struct Ranking<'a> {
    bank: &'a Rows,
    /// Twice the largest error of a float32 product of unit rows.
    margin: f32,
}

impl Ranking<'_> {
    fn candidates(&self, count: usize, k: usize) -> Vec<Candidates> {
        (0..count).map(|_| Candidates::new(k, self.margin)).collect()
    }

    fn by_panels(&self, bank: &Sampled, rows: &Rows, begin: usize, end: usize, k: usize) -> Vec<Vec<Neighbour>> {
        let units = rows.units(begin, end);
        let parts = parts(&units, rows.dim());
        let mut candidates = self.candidates(end - begin, k);
        let asked = self.sample(bank, &parts, &mut candidates);
        self.ask(bank, asked, &parts, &mut candidates);
        candidates.iter_mut().for_each(|c| c.finish(|place| bank.order[place as usize]));
        // Those of which the sample promised too much ask again without it.
        let failed: Vec<usize> = (0..candidates.len()).filter(|row| !candidates[*row].complete()).collect();
        if !failed.is_empty() {
            let units: Vec<f32> =
                failed.iter().flat_map(|row| &units[row * rows.dim()..][..rows.dim()]).copied().collect();
            let mut again = self.candidates(failed.len(), k);
            self.ask(bank, 0, &self::parts(&units, rows.dim()), &mut again);
            again.iter_mut().for_each(|c| c.finish(|place| bank.order[place as usize]));
            failed.into_iter().zip(again).for_each(|(row, found)| candidates[row] = found);
        }
        self.score(rows, begin, candidates)
    }

    /// Asks the sample what the candidates may expect, where it tells enough; returns the places asked.
    fn sample(&self, bank: &Sampled, parts: &[Panels], candidates: &mut [Candidates]) -> usize {
        let (size, Some(k)) = (bank.sample, candidates.first().map(|c| c.k)) else { return 0 };
        // Of so many of the nearest k one is in the sample; a few more are near enough in all but one of a million cases.
        let expected = (k * size) as f64 / self.bank.count() as f64;
        let rank = (expected + 3.5 * expected.sqrt() + 4.0) as usize;
        if rank >= size / 4 {
            return 0;
        }
        let mut ranked = vec![0.0; size];
        for (part, candidates) in parts.iter().zip(candidates.chunks_mut(PART)) {
            let mut found = vec![0.0; candidates.len() * size];
            part.add_products(&bank.panels, &mut found);
            for (candidates, found) in candidates.iter_mut().zip(found.chunks_exact(size)) {
                ranked.copy_from_slice(found);
                candidates.expect(*ranked.select_nth_unstable_by(rank, |a, b| b.total_cmp(a)).1);
                candidates.add_above(found, 0);
            }
        }
        size
    }

    /// Gives the products of all parts with the bank from a place on to their candidates.
    fn ask(&self, bank: &Sampled, begin: usize, parts: &[Panels], candidates: &mut [Candidates]) {
        let (step, count) = (bank.panels.whole(STRIPE), self.bank.count());
        for first in (begin..count).step_by(step) {
            for (part, candidates) in parts.iter().zip(candidates.chunks_mut(PART)) {
                part.products(&bank.panels, first, count.min(first + step), &mut Several(candidates));
            }
        }
    }

    fn by_blocks(
        &self,
        blocks: &[Tensor],
        device: Device,
        rows: &Rows,
        begin: usize,
        end: usize,
        k: usize,
    ) -> Result<Vec<Vec<Neighbour>>> {
        let _guard = tch::no_grad_guard();
        let queries = rows.unit_tensor(begin, end, device)?;
        let mut candidates = self.candidates(end - begin, k);
        let mut first = 0;
        for block in blocks {
            let width = block.size2()?.1 as usize;
            with_floats(&queries.f_matmul(block)?, |products| {
                let rows = candidates.par_iter_mut().zip(products.par_chunks(width)).with_min_len(64);
                rows.for_each(|(candidates, products)| candidates.add_above(products, first as u32));
                Ok(())
            })?;
            first += width;
        }
        candidates.par_iter_mut().with_min_len(64).for_each(|c| c.finish(|i| i));
        Ok(self.score(rows, begin, candidates))
    }

    /// Of the candidates of the rows from `begin` on the nearest, by similarity downwards, then by index.
    fn score(&self, rows: &Rows, begin: usize, candidates: Vec<Candidates>) -> Vec<Vec<Neighbour>> {
        let mut scored: Vec<Vec<Neighbour>> = candidates.iter().map(|c| Vec::with_capacity(c.kept.len())).collect();
        for stripe in (0..self.bank.count()).step_by(SCORED) {
            let rows_left = candidates.par_iter().zip(&mut scored).enumerate().with_min_len(64);
            rows_left.for_each(|(row, (candidates, scored))| {
                let (left, _) = candidates.kept[scored.len()..].as_chunks::<TOGETHER>();
                // Of those scored together the last may lie in the next stripe.
                for together in left.iter().take_while(|left| (left[0].1 as usize) < stripe + SCORED) {
                    let indices = together.map(|(_, i)| i);
                    scored.extend(rows.similarities(begin + row, self.bank, indices).into_iter().zip(indices));
                }
            });
        }
        let rows_left = scored.par_iter_mut().zip(&candidates).enumerate().with_min_len(64);
        rows_left.for_each(|(row, (scored, candidates))| {
            let left = candidates.kept[scored.len()..].iter();
            scored.extend(left.map(|&(_, i)| (rows.similarities(begin + row, self.bank, [i])[0], i)));
            scored.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            scored.truncate(candidates.k);
        });
        scored
    }
}

/// The bank rows that may be among the nearest k of one row.
struct Candidates {
    kept: Vec<(f32, u32)>,
    k: usize,
    margin: f32,
    /// Below it a similarity cannot be among the nearest k, if `expected` is right.
    floor: f32,
    /// What at least k similarities are expected to reach.
    expected: f32,
    /// Pruned when as many are kept.
    full: usize,
}

impl Candidates {
    fn new(k: usize, margin: f32) -> Candidates {
        let full = 2 * k + 64;
        Candidates { kept: Vec::new(), k, margin, floor: f32::NEG_INFINITY, expected: f32::NEG_INFINITY, full }
    }

    /// Takes it for granted that k similarities are at least `similarity`, until [`Candidates::complete`] tells.
    fn expect(&mut self, similarity: f32) {
        self.expected = similarity;
        self.floor = similarity - self.margin;
    }

    /// Whether all that may be among the nearest k are here, once finished.
    fn complete(&self) -> bool {
        self.kept.iter().filter(|(similarity, _)| *similarity >= self.expected).count() >= self.k
    }

    /// Takes the similarities of the bank rows from `first` on.
    #[inline(always)]
    fn add(&mut self, similarities: &[f32], first: u32) {
        let above = similarities.iter().zip(first..).filter(|(similarity, _)| **similarity >= self.floor);
        self.kept.extend(above.map(|(similarity, i)| (*similarity, i)));
        if self.kept.len() >= self.full {
            self.prune();
            self.full = 2 * self.kept.len().max(self.k) + 64;
        }
    }

    /// The same of many similarities, of which most are below the floor.
    fn add_above(&mut self, similarities: &[f32], first: u32) {
        for (chunk, first) in similarities.chunks(CHUNK).zip((first..).step_by(CHUNK)) {
            let floor = self.floor;
            let any = dispatch(
                #[inline(always)]
                || chunk.iter().fold(false, |any, x| any | (*x >= floor)),
            );
            if any {
                self.add(chunk, first);
            }
        }
    }

    /// Leaves those that may be among the nearest, sorted by their index in the bank, which `index` tells.
    fn finish(&mut self, index: impl Fn(u32) -> u32) {
        self.prune();
        self.kept.iter_mut().for_each(|(_, i)| *i = index(*i));
        self.kept.sort_unstable_by_key(|(_, i)| *i);
    }

    fn prune(&mut self) {
        if self.kept.len() > self.k {
            self.kept.select_nth_unstable_by(self.k - 1, |a, b| b.0.total_cmp(&a.0));
            self.floor = self.floor.max(self.kept[self.k - 1].0 - self.margin);
            self.kept.retain(|(similarity, _)| *similarity >= self.floor);
        }
    }
}

/// Unit rows as panels of at most [`PART`] rows.
fn parts(units: &[f32], d: usize) -> Vec<Panels> {
    units.chunks(PART * d).map(|part| Panels::left(part, d)).collect()
}

/// The candidates of some rows.
struct Several<'a>(&'a mut [Candidates]);

impl Reader for Several<'_> {
    #[inline(always)]
    fn floor(&self, row: usize) -> f32 {
        self.0[row].floor
    }

    #[inline(always)]
    fn read(&mut self, row: usize, products: &[f32], first: usize) {
        self.0[row].add(products, first as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn rows(values: &[f32], d: usize) -> Rows {
        Rows::new(values.to_vec(), d)
    }

    fn random(count: usize, seed: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..count).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    fn nearest(search: &Search, rows: &Rows, batch: usize, k: usize) -> Vec<Vec<Neighbour>> {
        let mut found = Vec::new();
        search.all(rows, batch, k, &mut |block| found.extend(block)).unwrap();
        found
    }

    #[test]
    fn neighbours_equal_brute_force_with_duplicates_for_every_batch_and_both_kinds_of_products() {
        // Three copies of every bank row, so that each rank is a tie across blocks; and rows of norm 0.
        let once = [random(400 * 13, 1), vec![0.0; 26]].concat();
        let bank = rows(&once.repeat(3), 13);
        let asking = rows(&random(211 * 13, 2), 13);
        let panels = Search::new(&bank, Device::Cpu).unwrap();
        let blocks = Search::with(&bank, Units::Blocks(bank.blocks(500, Device::Cpu).unwrap(), Device::Cpu));
        for k in [1, 2, 50, 1206] {
            let got = nearest(&panels, &asking, 64, k);
            for (row, got) in got.iter().enumerate() {
                let score = |i| (asking.similarities(row, &bank, [i])[0], i);
                let mut all: Vec<Neighbour> = (0..1206).map(score).collect();
                all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
                assert_eq!(got[..], all[..k]);
            }
            for batch in [1, 2, 7, 211, 1000] {
                assert_eq!(nearest(&panels, &asking, batch, k), got);
                assert_eq!(nearest(&blocks, &asking, batch, k), got);
            }
        }
    }

    #[test]
    fn a_sample_that_promises_too_much_changes_nothing() {
        // All ask from nearly the same place, and the sampled rows are those next to it: all expect k neighbours as near.
        let near = [vec![3.0; 5], vec![-1.0; 2]].concat();
        let mut bank = random(9000 * 7, 3);
        let asking: Vec<f32> = random(40 * 7, 4)
            .chunks(7)
            .flat_map(|r| r.iter().zip(&near).map(|(r, n)| r + n).collect::<Vec<_>>())
            .collect();
        let (plain, asking, near) = (rows(&bank, 7), rows(&asking, 7), rows(&near, 7));
        let mut by_nearness: Vec<u32> = (0..9000).collect();
        by_nearness.sort_by(|a, b| {
            let [a, b] = near.similarities(0, &plain, [*a, *b]);
            b.total_cmp(&a)
        });
        for k in [1, 30, 200] {
            let search = Search::new(&plain, Device::Cpu).unwrap();
            let Units::Panels(sampled) = &search.units else { panic!("no panels") };
            assert_eq!(sampled.sample, SAMPLE);
            let ask = |bank: &Sampled| search.ranking.by_panels(bank, &asking, 0, 40, k);
            let alone = ask(&Sampled::with(&plain, (0..9000).collect(), 0));
            assert_eq!(ask(sampled), alone);
            assert_eq!(ask(&Sampled::with(&plain, by_nearness.clone(), SAMPLE)), alone);
        }
        // And one that is equal to the whole bank: every row is as near as any other.
        bank.iter_mut().for_each(|v| *v = 1.0);
        let bank = rows(&bank, 7);
        let found = nearest(&Search::new(&bank, Device::Cpu).unwrap(), &asking, 40, 30);
        assert!(found.iter().all(|found| found.iter().map(|n| n.1).eq(0..30)));
    }

    #[test]
    fn neighbours_are_right_where_all_similarities_are_nearly_one() {
        // Rows far from the origin: cosines differ by about 1e-9, far below float32's rounding. The nearest by cosine are those
        // with the smallest part across the common direction, which is known here without any large number.
        let (bank, asking) = (random(300 * 4, 7), random(20 * 4, 8));
        let far = |rows: &[f32]| rows.chunks(4).flat_map(|r| [4096.0, r[0], r[1], r[2]]).collect::<Vec<f32>>();
        let (bank, asking) = (far(&bank), far(&asking));
        let bank_rows = rows(&bank, 4);
        let got = nearest(&Search::new(&bank_rows, Device::Cpu).unwrap(), &rows(&asking, 4), 20, 5);
        for (row, got) in asking.chunks(4).zip(&got) {
            // sin^2 of the angle is |cross part|^2 up to a relative 1e-7.
            let across =
                |other: &[f32]| -> f64 { (1..4).map(|c| (f64::from(row[c]) - f64::from(other[c])).powi(2)).sum() };
            let mut all: Vec<(f64, u32)> = bank.chunks(4).zip(0..).map(|(other, i)| (across(other), i)).collect();
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(got.iter().zip(&all).all(|(g, a)| g.1 == a.1), "{got:?} {:?}", &all[..5]);
        }
    }
}
