//! Nearest neighbours: the weighted vote of Wu et al. (2018) with cosine similarity, and recall among the nearest.
//!
//! The neighbours are exact and the same for every batch size, thread count and device.

use super::features::{Classes, Features};
use super::rows::Rows;
use super::search::{Neighbour, Search};
use super::split::stratified;
use crate::config::eval::{AUTHORS_BATCH, Bank, KnnConfig};
use crate::error::{Error, Result};
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;
use tch::Device;

/// The sizes of neighbourhoods whose recall is reported.
pub const RECALL_AT: [usize; 6] = [1, 2, 5, 10, 20, 50];
/// Test rows that ask the bank at once unless the caller says otherwise.
pub const DEFAULT_BATCH: usize = 1024;

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
    let search = Search::new(&bank, device)?;
    let mut found = Vec::with_capacity(queries.samples());
    search.all(&rows, DEFAULT_BATCH, k.clamp(1, bank.count()), &mut |block| found.extend(block))?;
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
        let search = Search::new(bank, self.device)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use tch::Tensor;

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
    fn the_result_is_the_same_for_every_batch() {
        // Three copies of every bank row, so that each rank is a tie.
        let (once, _) = random(400, 13, 5, 1);
        let labels: Vec<i64> = (0..1200).map(|i| i % 7).collect();
        let (rows, test_labels) = random(61, 13, 5, 2);
        let (train, test) = (features(&once.repeat(3), 13, &labels), features(&rows, 13, &test_labels));
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
