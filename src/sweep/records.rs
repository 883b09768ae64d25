//! `runs.csv`: the figures of every run, from which alone the tables are made.

use super::folder::{SweepFolder, Task};
use super::grid::{Job, Sweep};
use crate::error::{Error, Result};
use crate::eval::knn::RECALL_AT;
use serde_json::Value;
use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;

/// A figure of a run; fractions, not percents.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The arm's name.
    pub arm: String,
    /// The setting's name.
    pub setting: String,
    /// Seed of the encoder.
    pub seed: u64,
    /// `linear_accuracy`, `knn_accuracy`, `recall_at_1`, ...
    pub metric: String,
    /// Seed of the linear probe; kNN has none.
    pub probe_seed: Option<u64>,
    /// On samples held out of the training part; absent where none were.
    pub val: Option<f64>,
    /// On the test samples.
    pub test: f64,
}

const HEADER: &str = "arm,setting,seed,metric,probe_seed,val,test";

/// The metrics that a sweep measures, in the order of the table.
pub fn metrics(sweep: &Sweep) -> Vec<String> {
    let evaluate = &sweep.config.evaluate;
    let mut metrics = Vec::new();
    if evaluate.linear.is_some() {
        metrics.push("linear_accuracy".to_string());
    }
    if evaluate.knn.is_some() {
        metrics.push("knn_accuracy".to_string());
        metrics.extend(RECALL_AT.iter().map(|r| format!("recall_at_{r}")));
    }
    metrics
}

/// The figures of the evaluations that are there, in the order of the runs; a run that cannot be read is told to `tell`.
pub fn collect(sweep: &Sweep, folder: &SweepFolder, tell: &mut dyn FnMut(String)) -> Vec<Record> {
    let mut records = Vec::new();
    for job in sweep.jobs() {
        match of_run(sweep, folder, &job) {
            Ok(found) => records.extend(found),
            Err(e) => tell(format!("run {} is left out: {e}", job.name)),
        }
    }
    records
}

fn of_run(sweep: &Sweep, folder: &SweepFolder, job: &Job) -> Result<Vec<Record>> {
    let (left, results) = folder.state(sweep, job)?;
    if left.iter().any(|task| matches!(task, Task::Pretrain { .. })) {
        return Ok(Vec::new());
    }
    let root = folder.run(job);
    let (arm, setting) = (&sweep.arms[job.arm], &sweep.arms[job.arm].settings[job.setting]);
    let record = |metric: &str, probe_seed, val: Option<&Value>, test: Option<&Value>| -> Result<Record> {
        let test = test.and_then(Value::as_f64).ok_or_else(|| {
            Error::data(root.join("results"), None, format!("no number for {metric}; evaluate the run again"))
        })?;
        let (arm, setting) = (arm.name.clone(), setting.name.clone());
        let val = val.and_then(Value::as_f64);
        Ok(Record { arm, setting, seed: job.seed, metric: metric.to_string(), probe_seed, val, test })
    };
    let mut records = Vec::new();
    if let Some(linear) =
        results.linear.filter(|_| sweep.config.evaluate.linear.is_some() && !left.contains(&Task::Linear))
    {
        for outcome in linear.get("outcomes").and_then(Value::as_array).into_iter().flatten() {
            let seed = outcome.get("seed").and_then(Value::as_u64);
            let (val, test) = (outcome.get("val_accuracy"), outcome.get("test_accuracy"));
            records.push(record("linear_accuracy", seed, val, test)?);
        }
    }
    if let Some(knn) = results.knn.filter(|_| sweep.config.evaluate.knn.is_some() && !left.contains(&Task::Knn)) {
        records.push(record("knn_accuracy", None, knn.get("val_accuracy"), knn.get("test_accuracy"))?);
        for r in RECALL_AT {
            let key = format!("recall_at_{r}");
            records.push(record(&key, None, knn.get(&format!("val_{key}")), knn.get(&key))?);
        }
    }
    Ok(records)
}

/// The file's text: a line a figure, numbers with all their digits. No field needs quotes.
pub fn to_csv(records: &[Record]) -> String {
    let mut out = format!("{HEADER}\n");
    for r in records {
        let probe = r.probe_seed.map(|s| s.to_string()).unwrap_or_default();
        let val = r.val.map(|v| format!("{v:?}")).unwrap_or_default();
        let _ = writeln!(out, "{},{},{},{},{probe},{val},{:?}", r.arm, r.setting, r.seed, r.metric, r.test);
    }
    out
}

/// Reads such a file; every line must be of the sweep.
///
/// # Errors
/// A line that is none, named by its number; one that is there twice; an arm, setting, seed or metric that the sweep lacks.
pub fn from_csv(text: &str, path: &Path, sweep: &Sweep) -> Result<Vec<Record>> {
    let metrics = metrics(sweep);
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Err(Error::data(path, None, format!("expected the first line `{HEADER}`")));
    }
    let mut seen = HashSet::new();
    let mut records = Vec::new();
    for (i, line) in lines.enumerate() {
        let refuse = |why: &str| Error::data(path, None, format!("line {}: {why}: `{line}`", i + 2));
        let fields: Vec<&str> = line.split(',').collect();
        let [arm, setting, seed, metric, probe_seed, val, test] = fields[..] else {
            return Err(refuse("expected 7 fields"));
        };
        let whole = |text: &str| text.parse::<u64>().map_err(|_| refuse("a seed is a whole number from 0 up"));
        let share = |text: &str| {
            let number = text.parse::<f64>().ok().filter(|v| (0.0..=1.0).contains(v));
            number.ok_or_else(|| refuse("`val` and `test` are fractions from 0 to 1"))
        };
        let given = |text: &str| (!text.is_empty()).then(|| text.to_string());
        let record = Record {
            arm: arm.to_string(),
            setting: setting.to_string(),
            seed: whole(seed)?,
            metric: metric.to_string(),
            probe_seed: given(probe_seed).map(|text| whole(&text)).transpose()?,
            val: given(val).map(|text| share(&text)).transpose()?,
            test: share(test)?,
        };
        let known = sweep.arms.iter().any(|a| a.name == arm && a.settings.iter().any(|s| s.name == setting));
        if !known || !sweep.config.seeds.contains(&record.seed) || !metrics.contains(&record.metric) {
            return Err(refuse("the sweep has no such arm, setting, seed or metric"));
        }
        if !seen.insert((record.arm.clone(), record.setting.clone(), record.seed, metric, record.probe_seed)) {
            return Err(refuse("this figure is there twice"));
        }
        records.push(record);
    }
    Ok(records)
}
