//! From the figures of runs to the rows of the table: choice by validation, means with intervals, paired differences.
//!
//! Probe seeds are averaged within a run first, as they share its encoder: what repeats is the encoder's seed, and the
//! intervals are over those. A setting takes part only when all seeds of the sweep are there, so that no setting is chosen or
//! compared on fewer, perhaps luckier, seeds. The choice sees validation figures alone.

use super::grid::{Arm, Sweep};
use super::records::{Record, metrics};
use crate::stats::Spread;

/// The table: what every arm reached in every metric.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// The metrics, in order.
    pub metrics: Vec<String>,
    /// The rows, in the order of the arms.
    pub rows: Vec<Row>,
    /// Settings that are left out because figures of some seeds are missing: arm, setting, metric, seeds there.
    pub incomplete: Vec<(String, String, String, usize)>,
    /// Encoder seeds that a setting must have.
    pub seeds: usize,
    /// Seeds of the linear probe that are averaged.
    pub probe_seeds: usize,
    /// The arm that differences are taken from.
    pub baseline: String,
}

/// An arm at its chosen settings, or at the setting that it has without its grid.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The arm.
    pub arm: String,
    /// Whether this is the setting that the arm has without its grid, and nothing was chosen.
    pub default: bool,
    /// Settings that there are to choose from.
    pub settings: usize,
    /// One cell a metric; none where no setting is complete.
    pub cells: Vec<Option<Cell>>,
}

/// A figure of a row. Fractions, not percents.
#[derive(Debug, Clone, PartialEq)]
pub struct Cell {
    /// The setting.
    pub setting: String,
    /// Complete settings that it was chosen from.
    pub candidates: usize,
    /// Its figure on validation, by which it was chosen: the mean over seeds, where something was held out.
    pub val: Option<f64>,
    /// By encoder seed, in the order of the sweep's seeds: seed and figure on the test samples.
    pub tests: Vec<(u64, f64)>,
    /// Over the seeds, on the test samples.
    pub test: Spread,
    /// From the baseline, seed by seed; none for the baseline itself, and where it has no figure.
    pub difference: Option<Spread>,
}

/// A setting whose figures are all there.
struct Complete<'a> {
    setting: &'a str,
    val: Option<f64>,
    tests: Vec<(u64, f64)>,
}

/// Makes the table of a sweep from the figures of its runs.
pub fn summarize(sweep: &Sweep, records: &[Record]) -> Summary {
    let (metrics, baseline) = (metrics(sweep), sweep.baseline());
    let mut incomplete = Vec::new();
    // By metric and arm, then by setting.
    let mut complete: Vec<Vec<Vec<Option<Complete>>>> = Vec::new();
    for metric in &metrics {
        let of_arm = |arm| settings(sweep, arm, metric, records, &mut incomplete);
        complete.push(sweep.arms.iter().map(of_arm).collect());
    }
    let mut rows = Vec::new();
    for (a, arm) in sweep.arms.iter().enumerate() {
        let row = |default: bool, choose: &dyn Fn(&[Option<Complete>]) -> Option<usize>| {
            let cell = |arms: &Vec<Vec<Option<Complete>>>| {
                let of = &arms[a];
                let candidates = if default { 1 } else { of.iter().flatten().count() };
                let chosen = choose(of).and_then(|index| of[index].as_ref())?;
                let from = best(&arms[baseline]).and_then(|index| arms[baseline][index].as_ref());
                Some(Cell {
                    setting: chosen.setting.to_string(),
                    candidates,
                    val: chosen.val,
                    tests: chosen.tests.clone(),
                    test: Spread::of(&chosen.tests.iter().map(|t| t.1).collect::<Vec<_>>())?,
                    difference: from.filter(|_| a != baseline || default).and_then(|from| paired(chosen, from)),
                })
            };
            let settings = if default { 1 } else { arm.settings.len() };
            Row { arm: arm.name.clone(), default, settings, cells: complete.iter().map(cell).collect() }
        };
        rows.push(row(false, &|of| best(of)));
        if let Some(default) = arm.default.filter(|_| arm.settings.len() > 1) {
            rows.push(row(true, &|_| Some(default)));
        }
    }
    let probe_seeds = sweep.config.evaluate.linear.as_ref().map_or(0, |probe| probe.seeds.len());
    let baseline = sweep.config.baseline.clone();
    Summary { metrics, rows, incomplete, seeds: sweep.config.seeds.len(), probe_seeds, baseline }
}

/// The settings of an arm in one metric; `None` for those that lack a seed, which are noted if they have any.
fn settings<'a>(
    sweep: &Sweep,
    arm: &'a Arm,
    metric: &str,
    records: &[Record],
    incomplete: &mut Vec<(String, String, String, usize)>,
) -> Vec<Option<Complete<'a>>> {
    let probes: Vec<Option<u64>> = match &sweep.config.evaluate.linear {
        Some(probe) if metric == "linear_accuracy" => probe.seeds.iter().copied().map(Some).collect(),
        _ => vec![None],
    };
    let of_this: Vec<&Record> = records.iter().filter(|r| r.arm == arm.name && r.metric == metric).collect();
    let mut found = Vec::new();
    for setting in &arm.settings {
        let mut tests = Vec::new();
        let mut vals = Vec::new();
        for &seed in &sweep.config.seeds {
            let is_of = |r: &&&Record| r.setting == setting.name && r.seed == seed && probes.contains(&r.probe_seed);
            let here: Vec<&&Record> = of_this.iter().filter(is_of).collect();
            if here.len() == probes.len() {
                tests.push((seed, mean(here.iter().map(|r| r.test))));
                let held: Option<Vec<f64>> = here.iter().map(|r| r.val).collect();
                vals.extend(held.map(|held| mean(held.into_iter())));
            }
        }
        let seeds = sweep.config.seeds.len();
        if tests.len() == seeds {
            let val = (vals.len() == seeds).then(|| mean(vals.into_iter()));
            found.push(Some(Complete { setting: &setting.name, val, tests }));
        } else {
            incomplete.push((arm.name.clone(), setting.name.clone(), metric.to_string(), tests.len()));
            found.push(None);
        }
    }
    found
}

/// Means of the same counts in another order differ by rounding, and are equal; one sample more or less of a million is 1e-6.
const SAME: f64 = 1e-12;

/// The complete setting with the highest validation figure, the first among equals.
fn best(settings: &[Option<Complete>]) -> Option<usize> {
    let complete = settings.iter().enumerate().filter_map(|(i, s)| Some((i, s.as_ref()?.val)));
    // A setting without a validation figure is chosen only where there is nothing to choose.
    let value = |val: Option<f64>| val.unwrap_or(f64::NEG_INFINITY);
    let is_better = |a: Option<f64>, b: Option<f64>| value(a) > value(b) + SAME;
    complete.reduce(|best, next| if is_better(next.1, best.1) { next } else { best }).map(|(i, _)| i)
}

/// The differences over the seeds that both have.
fn paired(of: &Complete, from: &Complete) -> Option<Spread> {
    let other = |seed: u64| from.tests.iter().find(|(s, _)| *s == seed).map(|(_, test)| *test);
    let differences: Vec<f64> = of.tests.iter().filter_map(|(seed, test)| Some(test - other(*seed)?)).collect();
    Spread::of(&differences)
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let n = values.len() as f64;
    values.sum::<f64>() / n
}
