//! What the evaluation commands share: where features come from, where the result goes, and progress.

use super::features::Classes;
use super::record::check_target;
use super::source::{Inputs, Source};
use crate::checkpoint::{refuse_same_file, write_bytes};
use crate::error::{Error, Result};
use crate::run::RunFolder;
use serde_json::{Map, Value};
use std::path::PathBuf;
use tch::Device;

/// The arguments that every evaluation command has.
#[derive(Debug, Clone, clap::Args)]
pub struct CommonArgs {
    /// A pretraining run: its encoder over its own training and test images
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Weights to take instead of the run's own: a safetensors or torch.save file, the encoder alone or a training state
    #[arg(long, value_name = "FILE", requires = "run")]
    checkpoint: Option<PathBuf>,
    /// Features to fit on: safetensors with `features` [n, d] and `labels` [n]
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    train_features: Option<PathBuf>,
    /// Features to test on, of the same encoder
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    test_features: Option<PathBuf>,
    /// Where to write the result and the whole protocol as JSON [default with --run alone: its results folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: String,
}

impl CommonArgs {
    /// Checks what can be checked before the work, and loads the features. Says on stderr what the figures do not show.
    ///
    /// # Errors
    /// An unknown or missing device, a result path that cannot be written, and what the source reports.
    pub fn load(&self) -> Result<(Inputs, Classes, Device)> {
        let device = crate::device::parse(&self.device, None)?;
        if let Some(out) = &self.out {
            check_target(out)?;
            for input in [&self.train_features, &self.test_features, &self.checkpoint].into_iter().flatten() {
                refuse_same_file(out, input)?;
            }
        }
        let inputs = self.source()?.load(device)?;
        let classes = Classes::of(&inputs.train, &inputs.test)?;
        if !classes.only_in_test.is_empty() {
            let shown: Vec<String> = classes.only_in_test.iter().take(10).map(i64::to_string).collect();
            eprintln!(
                "note: {} of the test classes do not occur in training and always count as wrong: {}{}",
                classes.only_in_test.len(),
                shown.join(", "),
                if classes.only_in_test.len() > 10 { ", ..." } else { "" }
            );
        }
        Ok((inputs, classes, device))
    }

    fn source(&self) -> Result<Source> {
        match (&self.run, &self.train_features, &self.test_features) {
            (Some(folder), None, None) => {
                Ok(Source::Run { folder: folder.clone(), checkpoint: self.checkpoint.clone() })
            }
            (None, Some(train), Some(test)) => Ok(Source::Files { train: train.clone(), test: test.clone() }),
            _ => Err(Error::Config(
                "features are needed: give --run DIR, or both --train-features FILE and --test-features FILE".into(),
            )),
        }
    }

    /// Where the result goes: `--out`, else `results/NAME.json` in the run's folder for the run's own weights, else nowhere.
    fn target(&self, name: &str) -> Result<Option<PathBuf>> {
        match (&self.out, &self.run) {
            (Some(out), _) => Ok(Some(out.clone())),
            (None, Some(_)) if self.checkpoint.is_some() => {
                eprintln!("note: the result is of --checkpoint and not of the run's own weights: --out FILE keeps it");
                Ok(None)
            }
            (None, Some(run)) => {
                let results = RunFolder::open(run)?.results();
                std::fs::create_dir_all(&results).map_err(Error::io(&results, "cannot make the folder of results"))?;
                Ok(Some(results.join(format!("{name}.json"))))
            }
            (None, None) => Ok(None),
        }
    }

    /// Writes the result file where one is wanted, and prints the object or the table.
    ///
    /// # Errors
    /// What the file system refuses; then nothing is printed either.
    pub fn deliver(&self, record: &Map<String, Value>, table: &[(String, String)]) -> Result<()> {
        let text = serde_json::to_string_pretty(record)
            .map_err(|e| Error::Input(format!("the result cannot be written as JSON: {e}")))?;
        let name = record.get("evaluation").and_then(Value::as_str).unwrap_or("result");
        if let Some(path) = self.target(name)? {
            write_bytes(&path, format!("{text}\n"))?;
        }
        if self.json {
            println!("{text}");
        } else {
            let width = table.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
            for (name, value) in table {
                println!("{name:<width$}  {value}");
            }
        }
        Ok(())
    }
}

/// `0.9123`, with `± 0.0012 (n = 3)` where there is a spread.
pub fn with_spread(mean: f64, std: Option<f64>, n: usize) -> String {
    match std {
        Some(std) => format!("{mean:.4} ± {std:.4} (n = {n})"),
        None => format!("{mean:.4}"),
    }
}
