//! Nearest neighbours: the weighted vote of Wu et al. (2018) with cosine similarity, and recall among the nearest.
//!
//! The neighbours are exact and the same for every block size, thread count and device. Blocks of float32 products only
//! propose: every rounding of a float32 dot product of unit vectors is at most (d + 2) 2^-24, so whatever lies within twice
//! that of the k-th best is kept and scored again in float64, in one fixed order. Ties go to the lower bank index, so
//! duplicates in the bank rank by their place in it. Features that have collapsed to a point make everything a candidate:
//! slow, and still right.

use super::features::{Classes, Features};
use crate::config::eval::KnnConfig;
use crate::error::{Error, Result};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use tch::{Device, Tensor};

/// The sizes of neighbourhoods whose recall is reported.
pub const RECALL_AT: [usize; 6] = [1, 2, 5, 10, 20, 50];
/// Test rows of a block unless the caller says otherwise.
pub const DEFAULT_BATCH: usize = 256;
/// Bank rows of a block: with 256 test rows, 8 MiB of similarities.
const BANK_BLOCK: usize = 8192;

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
    /// The largest number of neighbours there was: k and R above it were reduced to it.
    pub bank: usize,
    /// Training samples of norm 0; their similarity to everything is 0.
    pub zero_train: usize,
    /// Test samples of norm 0.
    pub zero_test: usize,
}

/// Votes with the training samples as the bank. `batch` is the number of test rows multiplied at once, and does not change
/// the result; `progress` gets the test samples done and in all.
///
/// The vote of a neighbour is exp(similarity / temperature) for its class; the class with the largest sum wins, the lowest
/// label among equals. k larger than the bank is the whole bank. A test sample of a class that the bank lacks counts as wrong.
///
/// # Errors
/// Values out of range, and features that do not belong together.
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
    let classes = Classes::of(train, test)?;
    let _guard = tch::no_grad_guard();
    let (bank_rows, zero_train) = unit_rows(train)?;
    let (test_rows, zero_test) = unit_rows(test)?;
    let most = config.k.iter().chain(&RECALL_AT).copied().max().unwrap_or(1).min(train.samples());
    let search = Search::new(&bank_rows, train.dim(), device)?;
    let (mut right, mut found) = (vec![0usize; config.k.len()], [0usize; RECALL_AT.len()]);
    for (b, rows) in test_rows.chunks(batch * train.dim()).enumerate() {
        let targets = &classes.test[b * batch..][..rows.len() / train.dim()];
        let verdicts: Vec<_> = search
            .nearest(rows, most)?
            .into_par_iter()
            .zip(targets)
            .map(|(neighbours, target)| judge(config, &neighbours, *target, &classes))
            .collect();
        for (votes, hits) in verdicts {
            right.iter_mut().zip(votes).for_each(|(sum, v)| *sum += usize::from(v));
            found.iter_mut().zip(hits).for_each(|(sum, v)| *sum += usize::from(v));
        }
        progress((b * batch + targets.len()) as u64, test.samples() as u64);
    }
    let share = |count: usize| count as f64 / test.samples() as f64;
    let accuracy_at_k: BTreeMap<usize, f64> = config.k.iter().copied().zip(right.into_iter().map(share)).collect();
    Ok(KnnResult {
        test_accuracy: accuracy_at_k.values().next_back().copied().unwrap_or(f64::NAN),
        accuracy_at_k,
        recall_at: RECALL_AT.into_iter().zip(found.map(share)).collect(),
        bank: train.samples(),
        zero_train,
        zero_test,
    })
}

/// Similarity and bank index.
type Neighbour = (f64, u32);

/// For each k whether the vote is right, and for each R whether the class is among the nearest R.
fn judge(
    config: &KnnConfig,
    neighbours: &[Neighbour],
    target: Option<usize>,
    classes: &Classes,
) -> (Vec<bool>, [bool; RECALL_AT.len()]) {
    let class = |n: &Neighbour| classes.train[n.1 as usize];
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

/// Rows of norm 1 (in float32), and how many have norm 0 and stay 0. The norm is taken in float64, where no square of a
/// float32 number overflows or vanishes.
fn unit_rows(features: &Features) -> Result<(Vec<f32>, usize)> {
    let mut rows = Vec::<f32>::try_from(&features.features().f_flatten(0, -1)?)?;
    let zeros = rows
        .par_chunks_mut(features.dim())
        .map(|row| {
            let norm = row.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>().sqrt();
            if norm > 0.0 {
                row.iter_mut().for_each(|v| *v = (f64::from(*v) / norm) as f32);
            }
            usize::from(norm == 0.0)
        })
        .sum();
    Ok((rows, zeros))
}

/// Exact search in a bank of unit rows.
struct Search<'a> {
    bank: &'a [f32],
    d: usize,
    blocks: Vec<Tensor>,
    device: Device,
    /// Twice the largest error of a float32 product.
    margin: f32,
}

impl<'a> Search<'a> {
    fn new(bank: &'a [f32], d: usize, device: Device) -> Result<Search<'a>> {
        let blocks = bank
            .chunks(BANK_BLOCK * d)
            .map(|rows| Ok(Tensor::f_from_slice(rows)?.f_view([-1, d as i64])?.f_to_device(device)?.f_tr()?))
            .collect::<Result<_>>()?;
        // Products of length d in any order: d u / (1 - d u) times the norms, which rounding leaves within 1 + u of 1.
        let unit = f64::from(f32::EPSILON) / 2.0;
        let error = (d as f64 + 2.0) * unit / (1.0 - (d as f64 + 2.0) * unit).max(0.5);
        Ok(Search { bank, d, blocks, device, margin: (2.0 * error) as f32 })
    }

    /// The nearest `k` bank rows of each row, by similarity downwards, then by index.
    fn nearest(&self, rows: &[f32], k: usize) -> Result<Vec<Vec<Neighbour>>> {
        let count = rows.len() / self.d;
        let queries = Tensor::f_from_slice(rows)?.f_view([count as i64, self.d as i64])?.f_to_device(self.device)?;
        let mut candidates: Vec<Candidates> = (0..count).map(|_| Candidates::new(k, self.margin)).collect();
        let mut values = Vec::new();
        for (b, block) in self.blocks.iter().enumerate() {
            let width = block.size()[1] as usize;
            let products = queries.f_matmul(block)?.f_to_device(Device::Cpu)?.f_contiguous()?;
            values.resize(count * width, 0f32);
            products.f_copy_data(&mut values, count * width)?;
            candidates
                .par_iter_mut()
                .zip(values.par_chunks(width))
                .for_each(|(candidates, similarities)| candidates.add(similarities, (b * BANK_BLOCK) as u32));
        }
        let (bank, d) = (self.bank, self.d);
        Ok(candidates
            .into_par_iter()
            .zip(rows.par_chunks(self.d))
            .map(|(mut candidates, row)| {
                candidates.prune();
                let mut scored: Vec<Neighbour> =
                    candidates.kept.iter().map(|&(_, i)| (similarity(row, &bank[i as usize * d..][..d]), i)).collect();
                scored.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
                scored.truncate(k);
                scored
            })
            .collect())
    }
}

/// In float64, where products of float32 numbers are exact, and in an order that only the length decides.
fn similarity(row: &[f32], other: &[f32]) -> f64 {
    let mut sums = [0f64; 8];
    let (mut left, mut right) = (row.chunks_exact(8), other.chunks_exact(8));
    for (x, y) in left.by_ref().zip(right.by_ref()) {
        for ((sum, &x), &y) in sums.iter_mut().zip(x).zip(y) {
            *sum += f64::from(x) * f64::from(y);
        }
    }
    let rest: f64 = left.remainder().iter().zip(right.remainder()).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
    sums.iter().sum::<f64>() + rest
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

    fn add(&mut self, similarities: &[f32], first: u32) {
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
        let (bank, _) = unit_rows(&train).unwrap();
        let (rows, _) = unit_rows(&test).unwrap();
        let search = Search::new(&bank, 13, Device::Cpu).unwrap();
        for k in [1, 2, 50, 1200] {
            let got = search.nearest(&rows, k).unwrap();
            for (row, got) in rows.chunks(13).zip(&got) {
                let mut all: Vec<Neighbour> =
                    (0..1200).map(|i| (similarity(row, &bank[i as usize * 13..][..13]), i)).collect();
                all.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
                assert_eq!(got[..], all[..k]);
            }
        }
        let config = KnnConfig { k: vec![1, 10, 5000], temperature: 0.07 };
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
            let config = KnnConfig { k: vec![k], temperature };
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
        let config = KnnConfig { k: vec![2, 3], temperature: 0.1 };
        let got = evaluate(&config, &train, &test, 8, Device::Cpu, &mut |_, _| ()).unwrap();
        // Row 0: labels 8 and 3 tie, 3 wins. Row 1 (zero): similarity 0 to all; the first two by index are 8 and 3.
        assert_eq!(got.accuracy_at_k.values().copied().collect::<Vec<_>>(), [1.0, 1.0]);
        assert_eq!((got.zero_train, got.zero_test), (1, 1));
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
