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
    /// Settings that are left out because figures of some seeds are missing.
    pub incomplete: Vec<Incomplete>,
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

/// A setting whose figures are not all there.
#[derive(Debug, Clone, PartialEq)]
pub struct Incomplete {
    /// The arm.
    pub arm: String,
    /// The setting.
    pub setting: String,
    /// Encoder seeds that are there.
    pub seeds: usize,
    /// In these metrics.
    pub metrics: Vec<String>,
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
    incomplete: &mut Vec<Incomplete>,
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
            let (arm, setting, seeds) = (arm.name.clone(), setting.name.clone(), tests.len());
            match incomplete.iter_mut().find(|i| i.arm == arm && i.setting == setting && i.seeds == seeds) {
                Some(known) => known.metrics.push(metric.to_string()),
                None => incomplete.push(Incomplete { arm, setting, seeds, metrics: vec![metric.to_string()] }),
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::grid::tests::sweep;
    use crate::sweep::records::from_csv;
    use std::path::Path;

    const SWEEP: &str = "base: base.yaml
seeds: [0, 1, 2, 3]
baseline: plain
evaluate: {linear: {seeds: [0, 1]}}
arms:
- {name: plain}
- name: weince
  set: {loss.kind: weince}
  grid: {loss.gate.margin: [0, 2, 6]}
";

    /// Lines of one setting: a figure on validation and on test a seed, with which the two probes' agree on average.
    fn lines(arm: &str, setting: &str, figures: &[(f64, f64)]) -> String {
        let line = |seed: usize, probe: usize, (val, test): (f64, f64)| {
            let off = if probe == 0 { 0.001 } else { -0.001 };
            format!("{arm},{setting},{seed},linear_accuracy,{probe},{},{}\n", val + off, test - off)
        };
        let of_seed = |(seed, figure): (usize, &(f64, f64))| line(seed, 0, *figure) + &line(seed, 1, *figure);
        figures.iter().enumerate().map(of_seed).collect()
    }

    fn summary(text: &str) -> Summary {
        let sweep = sweep(SWEEP).unwrap();
        let text = format!("arm,setting,seed,metric,probe_seed,val,test\n{text}");
        summarize(&sweep, &from_csv(&text, Path::new("runs.csv"), &sweep).unwrap())
    }

    const PLAIN: [(f64, f64); 4] = [(0.80, 0.817), (0.81, 0.823), (0.82, 0.809), (0.81, 0.831)];
    const TWO: [(f64, f64); 4] = [(0.84, 0.822), (0.85, 0.826), (0.83, 0.818), (0.84, 0.829)];

    #[test]
    fn the_choice_is_by_validation_over_complete_settings() {
        // Margin 0 is best on test and worst on validation, margin 6 best on validation and lacks a probe of the last seed.
        let zero = [(0.70, 0.90), (0.70, 0.91), (0.70, 0.92), (0.70, 0.93)];
        let mut six = lines("weince", "margin6", &[(0.99, 0.5), (0.99, 0.5), (0.99, 0.5), (0.99, 0.5)]);
        six.truncate(six[..six.len() - 1].rfind('\n').unwrap() + 1);
        let text =
            lines("plain", "-", &PLAIN) + &lines("weince", "margin0", &zero) + &lines("weince", "margin2", &TWO) + &six;
        let got = summary(&text);
        assert_eq!((got.metrics.len(), got.rows.len(), got.seeds, got.probe_seeds), (1, 3, 4, 2));
        let [plain, weince, untuned] = [0, 1, 2].map(|row: usize| got.rows[row].cells[0].clone().unwrap());
        assert_eq!((weince.setting.as_str(), weince.candidates, got.rows[1].settings), ("margin2", 2, 3));
        // The default margin is 2: the row that was not tuned is the same setting, from one.
        assert_eq!((untuned.setting.as_str(), untuned.candidates, got.rows[2].default), ("margin2", 1, true));
        let metrics = vec!["linear_accuracy".to_string()];
        let left = Incomplete { arm: "weince".into(), setting: "margin6".into(), seeds: 3, metrics };
        assert_eq!(got.incomplete, [left]);
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        close(weince.val.unwrap(), 0.84);
        // scipy.stats.t.interval(0.95, 3, 0.82, sem) of PLAIN's test figures, and scipy.stats.ttest_rel(TWO, PLAIN)
        // .confidence_interval(0.95), SciPy 1.17.1.
        close(plain.test.mean, 0.82);
        let [low, high] = plain.test.interval_95().unwrap();
        close(low, 0.8051865186222043);
        close(high, 0.8348134813777957);
        let difference = weince.difference.unwrap();
        let [low, high] = difference.interval_95().unwrap();
        close(difference.mean, 0.00375);
        close(low, -0.0035274181061312714);
        close(high, 0.011027418106131223);
        assert_eq!((plain.difference, untuned.difference), (None, weince.difference));
    }

    #[test]
    fn equal_settings_give_the_first_and_no_complete_one_gives_none() {
        // The same counts in another order: their means differ in the last bit.
        let swapped = [TWO[2], TWO[3], TWO[0], TWO[1]];
        let text = lines("weince", "margin6", &TWO)
            + &lines("weince", "margin2", &swapped)
            + &lines("plain", "-", &PLAIN[..3]);
        let got = summary(&text);
        assert_eq!(got.rows[1].cells[0].as_ref().unwrap().setting, "margin2");
        assert_eq!(got.rows[0].cells[0], None);
        // Without a baseline there is no difference.
        assert_eq!(got.rows[1].cells[0].as_ref().unwrap().difference, None);
        let left_out: Vec<(&str, usize)> = got.incomplete.iter().map(|i| (i.setting.as_str(), i.seeds)).collect();
        assert_eq!(left_out, [("-", 3), ("margin0", 0)]);
    }

    #[test]
    fn lines_that_are_not_the_sweeps_are_refused() {
        let sweep = sweep(SWEEP).unwrap();
        let refused = |line: &str, expected: &str| {
            let text = format!("arm,setting,seed,metric,probe_seed,val,test\n{line}\n");
            let e = from_csv(&text, Path::new("runs.csv"), &sweep).unwrap_err().to_string();
            assert!(e.starts_with("runs.csv: line 2") && e.contains(expected), "{e}");
        };
        refused("plain,-,0,linear_accuracy,0,0.5", "7 fields");
        refused("plain,-,0,linear_accuracy,0,0.5,50", "fractions");
        refused("plain,-,0,linear_accuracy,0,NaN,0.5", "fractions");
        refused("plain,-,x,linear_accuracy,0,0.5,0.5", "whole number");
        refused("plain,-,9,linear_accuracy,0,0.5,0.5", "no such");
        refused("plain,margin0,0,linear_accuracy,0,0.5,0.5", "no such");
        refused("plain,-,0,knn_accuracy,,0.5,0.5", "no such");
        let e = from_csv("a,b\n", Path::new("runs.csv"), &sweep).unwrap_err().to_string();
        assert!(e.contains("expected the first line"), "{e}");
        let line = lines("plain", "-", &PLAIN[..1]);
        let text = format!("arm,setting,seed,metric,probe_seed,val,test\n{line}{line}");
        assert!(
            from_csv(&text, Path::new("r"), &sweep)
                .unwrap_err()
                .to_string()
                .contains("line 4: this figure is there twice")
        );
    }
}
