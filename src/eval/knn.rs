//! Nearest neighbours: the weighted vote of Wu et al. (2018) with cosine similarity, and recall among the nearest.
//!
//! The neighbours are exact and the same for every block size, thread count and device. Blocks of float32 products only
//! propose: every rounding of a float32 dot product of unit vectors is at most (d + 4) 2^-24, so whatever lies within twice
//! that of the k-th best is kept and scored again in float64, in one fixed order. Ties go to the lower bank index, so
//! duplicates in the bank rank by their place in it. Features that have collapsed to a point make everything a candidate:
//! slow, and still right.

use super::features::{Classes, Features};
use super::split::stratified;
use crate::augment::dispatch;
use crate::config::eval::{AUTHORS_BATCH, Bank, KnnConfig};
use crate::error::{Error, Result};
use crate::torch::{with_floats, workers};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use tch::{Device, Tensor};

/// The sizes of neighbourhoods whose recall is reported.
pub const RECALL_AT: [usize; 6] = [1, 2, 5, 10, 20, 50];
/// Test rows of a block unless the caller says otherwise.
pub const DEFAULT_BATCH: usize = 384;
/// Bank rows of a block on a CPU: with 384 test rows, similarities that stay in a core's own cache.
const BANK_BLOCK: usize = 512;
/// The same on other devices, which want large products.
const DEVICE_BANK_BLOCK: usize = 8192;

/// What the nearest neighbours tell. Fractions of all test samples, not percents.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct KnnResult {
    /// Accuracy of the vote of the largest k.
    pub test_accuracy: f64,
    /// Accuracy of the weighted vote, by k as it was asked for.
    pub accuracy_at_k: BTreeMap<usize, f64>,
    /// By R: test samples with a neighbour of their class among the nearest R.
    #[serde(skip)]
    pub recall_at: BTreeMap<usize, f64>,
    /// The same of samples that were held out of the bank and asked the rest of it; none where nothing was held out.
    #[serde(skip)]
    pub validation: Option<Validation>,
    /// The largest number of neighbours there was: k and R above it were reduced to it.
    pub bank: usize,
    /// Training and test samples that the figures are of.
    pub samples: [usize; 2],
    /// Training samples of norm 0; their similarity to everything is 0.
    pub zero_train: usize,
    /// Test samples of norm 0.
    pub zero_test: usize,
}

/// What held-out samples of the bank find in the rest of it. Fractions, not percents.
#[derive(Debug, Clone, PartialEq)]
pub struct Validation {
    /// Accuracy of the vote of the largest k.
    pub accuracy: f64,
    /// Accuracy of the weighted vote, by k as it was asked for.
    pub accuracy_at_k: BTreeMap<usize, f64>,
    /// By R: samples with a neighbour of their class among the nearest R.
    pub recall_at: BTreeMap<usize, f64>,
    /// The number of samples held out.
    pub samples: usize,
}

/// Votes with the training samples as the bank. `batch` is the number of test rows multiplied at once, and does not change
/// the result; `progress` gets the test samples done and in all.
///
/// The vote of a neighbour is exp(similarity / temperature) for its class; the class with the largest sum wins, the lowest
/// label among equals. k larger than the bank is the whole bank. A test sample of a class that the bank lacks counts as wrong.
/// The test figures have the bank that the configuration names, those of validation always the rest.
///
/// # Errors
/// Values out of range, features that do not belong together, and no possible validation split.
pub fn evaluate(
    config: &KnnConfig,
    train: &Features,
    test: &Features,
    batch: usize,
    device: Device,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<KnnResult> {
    config.validate()?;
    if batch == 0 {
        return Err(Error::Config("`batch` is 0; expected at least 1".into()));
    }
    let kept;
    let (train, test) = if config.drop_last {
        kept = (train.drop_last(AUTHORS_BATCH, Some(config.split_seed))?, test.drop_last(AUTHORS_BATCH, None)?);
        (&kept.0, &kept.1)
    } else {
        (train, test)
    };
    let classes = Classes::of(train, test)?;
    let _guard = tch::no_grad_guard();
    let (bank, rows) = (Rows::of(train)?, Rows::of(test)?);
    let split = (config.validation > 0.0)
        .then(|| stratified(&classes.train, classes.count(), config.validation, config.split_seed))
        .transpose()?;
    let held = split.as_ref().map_or(0, |split| split.validation.len());
    let (asked, all) = (test.samples() as u64, (test.samples() + held) as u64);
    let asker = Asker { config, batch, device };
    let label = |&i: &i64| classes.train[i as usize];
    let rest = split.as_ref().map(|split| {
        let labels: Vec<usize> = split.fit.iter().map(label).collect();
        (bank.select(&split.fit), labels)
    });
    let (of_test, labels) = match (&rest, config.bank) {
        (Some((rest, labels)), Bank::Rest) => (rest, labels),
        _ => (&bank, &classes.train),
    };
    let counts = asker.ask(of_test, labels, &rows, &classes.test, &mut |done| progress(done, all))?;
    let size = labels.len();
    let validation = match (&split, &rest) {
        (Some(split), Some((rest, labels))) => {
            let targets: Vec<Option<usize>> = split.validation.iter().map(|i| Some(label(i))).collect();
            let queries = bank.select(&split.validation);
            let counts = asker.ask(rest, labels, &queries, &targets, &mut |done| progress(asked + done, all))?;
            let (accuracy_at_k, recall_at) = counts.shares(config, held);
            Some(Validation { accuracy: headline(&accuracy_at_k), accuracy_at_k, recall_at, samples: held })
        }
        _ => None,
    };
    let (accuracy_at_k, recall_at) = counts.shares(config, test.samples());
    Ok(KnnResult {
        test_accuracy: headline(&accuracy_at_k),
        accuracy_at_k,
        recall_at,
        validation,
        bank: size,
        samples: [train.samples(), test.samples()],
        zero_train: bank.zeros(),
        zero_test: rows.zeros(),
    })
}

/// The `k` nearest of a bank for every query, nearest first: cosine similarity in float64, and index in the bank.
///
/// # Errors
/// Queries of another dimension, and whatever LibTorch reports.
pub fn neighbours(bank: &Features, queries: &Features, k: usize, device: Device) -> Result<Vec<Vec<(f64, u32)>>> {
    Classes::of(bank, queries)?;
    let _guard = tch::no_grad_guard();
    let (bank, rows) = (Rows::of(bank)?, Rows::of(queries)?);
    let search = Search::new(&bank, device);
    let mut found = Vec::with_capacity(queries.samples());
    search.all(&rows, DEFAULT_BATCH, k.clamp(1, bank.norms.len()), &mut |block| found.extend(block))?;
    Ok(found)
}

/// The accuracy of the largest k.
fn headline(accuracy_at_k: &BTreeMap<usize, f64>) -> f64 {
    accuracy_at_k.values().next_back().copied().unwrap_or(f64::NAN)
}

/// How many samples each vote was right for, and how many have their class among the nearest.
struct Counts {
    right: Vec<usize>,
    found: [usize; RECALL_AT.len()],
}

impl Counts {
    /// As shares of all samples: accuracy by k, recall by R.
    fn shares(&self, config: &KnnConfig, samples: usize) -> (BTreeMap<usize, f64>, BTreeMap<usize, f64>) {
        let share = |&count: &usize| count as f64 / samples as f64;
        let by_k = config.k.iter().copied().zip(self.right.iter().map(share)).collect();
        (by_k, RECALL_AT.into_iter().zip(self.found.iter().map(share)).collect())
    }
}

/// How banks are asked.
struct Asker<'a> {
    config: &'a KnnConfig,
    batch: usize,
    device: Device,
}

impl Asker<'_> {
    /// Asks a bank with classes `labels` for every row; `told` gets the rows done.
    fn ask(
        &self,
        bank: &Rows,
        labels: &[usize],
        rows: &Rows,
        targets: &[Option<usize>],
        told: &mut dyn FnMut(u64),
    ) -> Result<Counts> {
        let (config, batch) = (self.config, self.batch);
        let most = config.k.iter().chain(&RECALL_AT).copied().max().unwrap_or(1).min(labels.len());
        let search = Search::new(bank, self.device);
        let mut counts = Counts { right: vec![0; config.k.len()], found: [0; RECALL_AT.len()] };
        let mut done = 0;
        search.all(rows, batch, most, &mut |block| {
            let targets = &targets[done..done + block.len()];
            let verdicts: Vec<_> = block
                .into_par_iter()
                .zip(targets)
                .map(|(neighbours, target)| judge(config, &neighbours, *target, labels))
                .collect();
            for (votes, hits) in verdicts {
                counts.right.iter_mut().zip(votes).for_each(|(sum, v)| *sum += usize::from(v));
                counts.found.iter_mut().zip(hits).for_each(|(sum, v)| *sum += usize::from(v));
            }
            done += targets.len();
            told(done as u64);
        })?;
        Ok(counts)
    }
}

/// Similarity and bank index.
type Neighbour = (f64, u32);

/// For each k whether the vote is right, and for each R whether the class is among the nearest R; `labels` are the bank's.
fn judge(
    config: &KnnConfig,
    neighbours: &[Neighbour],
    target: Option<usize>,
    labels: &[usize],
) -> (Vec<bool>, [bool; RECALL_AT.len()]) {
    let class = |n: &Neighbour| labels[n.1 as usize];
    let vote = |k: usize| {
        let mut sums: BTreeMap<usize, f64> = BTreeMap::new();
        // Relative to the nearest, so that no weight overflows and the largest is 1.
        let nearest = neighbours.first().map_or(0.0, |n| n.0);
        for n in neighbours.iter().take(k) {
            *sums.entry(class(n)).or_default() += ((n.0 - nearest) / config.temperature).exp();
        }
        // The first of the largest: classes are in the order of their labels.
        sums.into_iter().reduce(|best, next| if next.1 > best.1 { next } else { best }).map(|(class, _)| class)
    };
    let first = target.and_then(|t| neighbours.iter().position(|n| class(n) == t));
    (
        config.k.iter().map(|&k| target.is_some() && vote(k) == target).collect(),
        RECALL_AT.map(|r| first.is_some_and(|place| place < r)),
    )
}

/// Rows as they were given, with their norms in float64, where no square of a float32 number overflows or vanishes.
struct Rows {
    values: Vec<f32>,
    norms: Vec<f64>,
    d: usize,
}

impl Rows {
    fn of(features: &Features) -> Result<Rows> {
        let (values, d) = (Vec::<f32>::try_from(&features.features().f_flatten(0, -1)?)?, features.dim());
        let norm = |row: &[f32]| row.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>().sqrt();
        let norms = values.par_chunks(d).map(norm).collect();
        Ok(Rows { values, norms, d })
    }

    /// Some of the rows, in the order given.
    fn select(&self, indices: &[i64]) -> Rows {
        let row = |&i: &i64| &self.values[i as usize * self.d..][..self.d];
        let values = indices.iter().flat_map(row).copied().collect();
        Rows { values, norms: indices.iter().map(|&i| self.norms[i as usize]).collect(), d: self.d }
    }

    fn zeros(&self) -> usize {
        self.norms.iter().filter(|norm| **norm == 0.0).count()
    }

    /// Some rows divided by their norms, in float32; those of norm 0 stay 0.
    ///
    /// # Shapes
    /// [rows, d]
    fn units(&self, begin: usize, end: usize, device: Device) -> Result<Tensor> {
        let mut units = self.values[begin * self.d..end * self.d].to_vec();
        units.par_chunks_mut(self.d).zip(&self.norms[begin..end]).for_each(|(row, &norm)| {
            if norm > 0.0 {
                row.iter_mut().for_each(|v| *v = (f64::from(*v) / norm) as f32);
            }
        });
        Ok(Tensor::f_from_slice(&units)?.f_view([-1, self.d as i64])?.f_to_device(device)?)
    }

    /// The cosine of a row and one of other rows: in float64, where products of float32 numbers are exact, and in an order
    /// that only the length decides. 0 where a norm is 0.
    fn similarity(&self, row: usize, others: &Rows, other: usize) -> f64 {
        let (x, y) = (&self.values[row * self.d..][..self.d], &others.values[other * self.d..][..self.d]);
        let norms = self.norms[row] * others.norms[other];
        if norms == 0.0 {
            return 0.0;
        }
        let (left, left_rest) = x.as_chunks::<8>();
        let (right, right_rest) = y.as_chunks::<8>();
        let sums = dispatch(
            #[inline(always)]
            || {
                let mut sums = [0f64; 8];
                for (x, y) in left.iter().zip(right) {
                    for ((sum, &x), &y) in sums.iter_mut().zip(x).zip(y) {
                        *sum += f64::from(x) * f64::from(y);
                    }
                }
                sums
            },
        );
        let rest = left_rest.iter().zip(right_rest);
        (sums.iter().sum::<f64>() + rest.map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>()) / norms
    }
}

/// Exact search in a bank.
struct Search<'a> {
    bank: &'a Rows,
    device: Device,
    /// Bank rows of a block.
    block: usize,
    /// Twice the largest error of a float32 product of unit rows.
    margin: f32,
}

/// The unit rows of a bank, transposed, a block each.
type Blocks = Vec<Tensor>;

impl<'a> Search<'a> {
    fn new(bank: &'a Rows, device: Device) -> Search<'a> {
        let block = if device == Device::Cpu { BANK_BLOCK } else { DEVICE_BANK_BLOCK };
        // Products of length d in any order: d roundings; each of the two unit rows adds one, and one to its norm.
        let roundings = (bank.d as f64 + 4.0) * f64::from(f32::EPSILON) / 2.0;
        let error = roundings / (1.0 - roundings).max(0.5);
        Search { bank, device, block, margin: (2.0 * error) as f32 }
    }

    fn blocks(&self) -> Result<Blocks> {
        let count = self.bank.norms.len();
        let block = |begin| self.bank.units(begin, (begin + self.block).min(count), self.device);
        (0..count).step_by(self.block).map(|begin| Ok(block(begin)?.f_tr()?)).collect()
    }

    /// The nearest `k` bank rows of all rows, `batch` rows at a time and in their order, for `take`. On a CPU each worker asks with
    /// batches of its own.
    fn all(&self, rows: &Rows, batch: usize, k: usize, take: &mut dyn FnMut(Vec<Vec<Neighbour>>)) -> Result<()> {
        let count = rows.norms.len();
        let begins: Vec<usize> = (0..count).step_by(batch).collect();
        let blocks = self.blocks()?;
        let nearest = |blocks: &Blocks, begin: usize| self.nearest(blocks, rows, begin, (begin + batch).min(count), k);
        if self.device != Device::Cpu {
            return begins.iter().try_for_each(|begin| nearest(&blocks, *begin).map(&mut *take));
        }
        let pool = workers()?;
        let handle = |_| blocks.iter().map(Tensor::shallow_clone).collect();
        let mut lanes: Vec<Blocks> = (0..pool.current_num_threads()).map(handle).collect();
        // Some batches for each worker at a time, so that progress is told.
        for group in begins.chunks(4 * lanes.len()) {
            let share = group.len().div_ceil(lanes.len());
            let asked = |(blocks, begins): (&mut Blocks, &[usize])| {
                begins.iter().map(|begin| nearest(blocks, *begin)).collect::<Result<Vec<_>>>()
            };
            let found: Vec<_> =
                pool.install(|| lanes.par_iter_mut().zip(group.par_chunks(share)).map(asked).collect::<Result<_>>())?;
            found.into_iter().flatten().for_each(&mut *take);
        }
        Ok(())
    }

    /// The nearest `k` bank rows of each of some rows, by similarity downwards, then by index.
    fn nearest(&self, blocks: &Blocks, rows: &Rows, begin: usize, end: usize, k: usize) -> Result<Vec<Vec<Neighbour>>> {
        let _guard = tch::no_grad_guard();
        let queries = rows.units(begin, end, self.device)?;
        let mut candidates: Vec<Candidates> = (begin..end).map(|_| Candidates::new(k, self.margin)).collect();
        for (b, block) in blocks.iter().enumerate() {
            let width = block.size()[1] as usize;
            let first = (b * self.block) as u32;
            with_floats(&queries.f_matmul(block)?, |products| {
                let similarities = products.par_chunks(width);
                candidates.par_iter_mut().zip(similarities).with_min_len(64).for_each(|(c, s)| c.add(s, first));
                Ok(())
            })?;
        }
        Ok(candidates
            .into_par_iter()
            .enumerate()
            .with_min_len(64)
            .map(|(row, mut candidates)| {
                candidates.prune();
                let score = |&(_, i): &(f32, u32)| (rows.similarity(begin + row, self.bank, i as usize), i);
                let mut scored: Vec<Neighbour> = candidates.kept.iter().map(score).collect();
                scored.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
                scored.truncate(k);
                scored
            })
            .collect())
    }
}

/// The bank rows that may be among the nearest k of one test row.
struct Candidates {
    kept: Vec<(f32, u32)>,
    k: usize,
    margin: f32,
    /// Below it a similarity cannot be among the nearest k.
    floor: f32,
    /// Pruned when as many are kept.
    full: usize,
}

impl Candidates {
    fn new(k: usize, margin: f32) -> Candidates {
        Candidates { kept: Vec::new(), k, margin, floor: f32::NEG_INFINITY, full: 2 * k + 64 }
    }

    /// Takes the similarities of the bank rows from `first` on.
    fn add(&mut self, similarities: &[f32], first: u32) {
        // Most have nothing above the floor, which is asked of many at once.
        let (blocks, rest) = similarities.as_chunks::<64>();
        for (b, block) in blocks.iter().enumerate() {
            let floor = self.floor;
            let above: u32 = dispatch(
                #[inline(always)]
                || block.iter().map(|x| u32::from(*x >= floor)).sum(),
            );
            if above > 0 {
                self.add_each(block, first + 64 * b as u32);
            }
        }
        self.add_each(rest, first + 64 * blocks.len() as u32);
    }

    fn add_each(&mut self, similarities: &[f32], first: u32) {
        for (i, &similarity) in similarities.iter().enumerate() {
            if similarity >= self.floor {
                self.kept.push((similarity, first + i as u32));
                if self.kept.len() >= self.full {
                    self.prune();
                    self.full = 2 * self.kept.len().max(self.k) + 64;
                }
            }
        }
    }

    fn prune(&mut self) {
        if self.kept.len() > self.k {
            self.kept.select_nth_unstable_by(self.k - 1, |a, b| b.0.total_cmp(&a.0));
            self.floor = self.kept[self.k - 1].0 - self.margin;
            self.kept.retain(|(similarity, _)| *similarity >= self.floor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn features(rows: &[f32], d: usize, labels: &[i64]) -> Features {
        let rows = Tensor::from_slice(rows).view([-1, d as i64]);
        Features::new(&rows, &Tensor::from_slice(labels)).unwrap()
    }

    fn random(n: usize, d: usize, classes: i64, seed: u64) -> (Vec<f32>, Vec<i64>) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let labels: Vec<i64> = (0..n).map(|_| rng.random_range(0..classes)).collect();
        let rows =
            (0..n * d).map(|i| rng.random_range(-1.0..1.0) + (labels[i / d] == (i % d) as i64) as u8 as f32).collect();
        (rows, labels)
    }

    #[test]
    fn neighbours_equal_brute_force_with_duplicates_for_every_block_size() {
        // Three copies of every bank row, so that each rank is a tie across blocks.
        let (once, _) = random(400, 13, 5, 1);
        let bank: Vec<f32> = once.iter().chain(&once).chain(&once).copied().collect();
        let labels: Vec<i64> = (0..1200).map(|i| i % 7).collect();
        let (rows, test_labels) = random(61, 13, 5, 2);
        let train = features(&bank, 13, &labels);
        let test = features(&rows, 13, &test_labels);
        let (bank, rows) = (Rows::of(&train).unwrap(), Rows::of(&test).unwrap());
        let search = Search::new(&bank, Device::Cpu);
        let blocks = search.blocks().unwrap();
        for k in [1, 2, 50, 1200] {
            let got = search.nearest(&blocks, &rows, 0, 61, k).unwrap();
            for (row, got) in got.iter().enumerate() {
                let mut all: Vec<Neighbour> = (0..1200).map(|i| (rows.similarity(row, &bank, i as usize), i)).collect();
                all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
                assert_eq!(got[..], all[..k]);
            }
        }
        let config = KnnConfig { k: vec![1, 10, 5000], temperature: 0.07, validation: 0.2, ..KnnConfig::default() };
        let run = |batch| evaluate(&config, &train, &test, batch, Device::Cpu, &mut |_, _| ()).unwrap();
        let whole = run(61);
        for batch in [1, 2, 7, 60, 1000] {
            assert_eq!(run(batch), whole);
        }
    }

    #[test]
    fn a_vote_by_hand() {
        // Similarities to (1, 0): 1, 0.8, 0.6, 0.6, 0; labels 4, 9, 9, 9, 2.
        let bank = [1.0, 0.0, 0.8, 0.6, 0.6, 0.8, 0.6, -0.8, 0.0, 1.0];
        let train = features(&bank, 2, &[4, 9, 9, 9, 2]);
        let vote = |k: usize, temperature: f64, label: i64| {
            let config = KnnConfig { k: vec![k], temperature, validation: 0.0, ..KnnConfig::default() };
            let test = features(&[3.0, 0.0], 2, &[label]);
            evaluate(&config, &train, &test, 8, Device::Cpu, &mut |_, _| ()).unwrap()
        };
        // exp(10) > exp(8) + 2 exp(6), but e^2 < e^1.6 + 2 e^1.2.
        assert_eq!(vote(4, 0.1, 4).test_accuracy, 1.0);
        assert_eq!(vote(4, 0.5, 9).test_accuracy, 1.0);
        assert_eq!(vote(4, 1e-4, 4).test_accuracy, 1.0);
        let got = vote(1, 0.1, 9);
        assert_eq!(got.recall_at.values().copied().collect::<Vec<_>>(), [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(vote(1, 0.1, 2).recall_at[&2], 0.0);
        // A class that the bank lacks is never right, although every neighbour is taken.
        let got = vote(5000, 0.1, 7);
        assert_eq!((got.test_accuracy, got.bank, got.recall_at[&50]), (0.0, 5, 0.0));
        assert_eq!(got.accuracy_at_k.keys().copied().collect::<Vec<_>>(), [5000]);
    }

    #[test]
    fn tied_votes_go_to_the_lowest_label_and_zero_rows_are_counted() {
        let train = features(&[1.0, 0.0, 1.0, 0.0, 0.0, 0.0], 2, &[8, 3, 5]);
        let test = features(&[1.0, 0.0, 0.0, 0.0], 2, &[3, 3]);
        let config = KnnConfig { k: vec![2, 3], temperature: 0.1, validation: 0.0, ..KnnConfig::default() };
        let got = evaluate(&config, &train, &test, 8, Device::Cpu, &mut |_, _| ()).unwrap();
        // Row 0: labels 8 and 3 tie, 3 wins. Row 1 (zero): similarity 0 to all; the first two by index are 8 and 3.
        assert_eq!(got.accuracy_at_k.values().copied().collect::<Vec<_>>(), [1.0, 1.0]);
        assert_eq!((got.zero_train, got.zero_test), (1, 1));
    }

    #[test]
    fn held_out_samples_ask_the_rest_of_the_bank() {
        let (rows, labels) = random(90, 6, 3, 5);
        let (test_rows, test_labels) = random(20, 6, 3, 6);
        let (train, test) = (features(&rows, 6, &labels), features(&test_rows, 6, &test_labels));
        let run = |train: &Features, test: &Features, validation| {
            let config = KnnConfig { k: vec![1, 7], temperature: 0.1, validation, ..KnnConfig::default() };
            evaluate(&config, train, test, 16, Device::Cpu, &mut |_, _| ()).unwrap()
        };
        let got = run(&train, &test, 0.3);
        let held = got.validation.clone().unwrap();
        // The split by hand, as two files of their own.
        let classes: Vec<usize> = labels.iter().map(|&l| l as usize).collect();
        let split = stratified(&classes, 3, 0.3, 0).unwrap();
        let part = |of: &[i64]| {
            let values: Vec<f32> = of.iter().flat_map(|&i| rows[i as usize * 6..][..6].to_vec()).collect();
            features(&values, 6, &of.iter().map(|&i| labels[i as usize]).collect::<Vec<_>>())
        };
        let apart = run(&part(&split.fit), &part(&split.validation), 0.0);
        assert_eq!((held.accuracy, &held.accuracy_at_k), (apart.test_accuracy, &apart.accuracy_at_k));
        assert_eq!((&held.recall_at, held.samples), (&apart.recall_at, split.validation.len()));
        assert_eq!(KnnResult { validation: None, ..got }, run(&train, &test, 0.0), "the test figures stay");
    }

    #[test]
    fn neighbours_are_right_where_all_similarities_are_nearly_one() {
        // Rows far from the origin: cosines differ by about 1e-9, far below float32's rounding. The nearest by cosine are those
        // with the smallest part across the common direction, which is known here without any large number.
        let (bank, labels) = random(300, 4, 2, 7);
        let (rows, test_labels) = random(20, 4, 2, 8);
        let far = |rows: &[f32]| rows.chunks(4).flat_map(|r| [4096.0, r[0], r[1], r[2]]).collect::<Vec<f32>>();
        let (bank, rows) = (far(&bank), far(&rows));
        let (train, test) = (features(&bank, 4, &labels), features(&rows, 4, &test_labels));
        let (bank_rows, test_rows) = (Rows::of(&train).unwrap(), Rows::of(&test).unwrap());
        let search = Search::new(&bank_rows, Device::Cpu);
        let got = search.nearest(&search.blocks().unwrap(), &test_rows, 0, 20, 5).unwrap();
        for (row, got) in rows.chunks(4).zip(&got) {
            // sin^2 of the angle is |cross part|^2 up to a relative 1e-7.
            let across =
                |other: &[f32]| -> f64 { (1..4).map(|c| (f64::from(row[c]) - f64::from(other[c])).powi(2)).sum() };
            let mut all: Vec<(f64, u32)> = bank.chunks(4).zip(0..).map(|(other, i)| (across(other), i)).collect();
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(got.iter().zip(&all).all(|(g, a)| g.1 == a.1), "{got:?} {:?}", &all[..5]);
        }
    }

    #[test]
    fn scale_does_not_matter() {
        let (rows, labels) = random(200, 9, 4, 3);
        let (test_rows, test_labels) = random(50, 9, 4, 4);
        let config = KnnConfig::default();
        let run = |scale: f32| {
            let scaled: Vec<f32> = rows.iter().map(|v| v * scale).collect();
            evaluate(
                &config,
                &features(&scaled, 9, &labels),
                &features(&test_rows, 9, &test_labels),
                64,
                Device::Cpu,
                &mut |_, _| (),
            )
            .unwrap()
        };
        let one = run(1.0);
        // Powers of two: the unit rows are the same to the bit, also where float32 squares would overflow or vanish.
        for scale in [2f32.powi(100), 2f32.powi(-100)] {
            assert_eq!(run(scale), one);
        }
    }
}
