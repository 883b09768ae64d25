//! What the evaluation commands share: where features come from, where the result goes, and progress.

use super::features::Classes;
use super::record::{check_target, write_beside};
use super::source::{Inputs, Source};
use crate::error::{Error, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};
use std::path::PathBuf;
use tch::Device;

/// The arguments that every evaluation command has.
#[derive(Debug, Clone, clap::Args)]
pub struct CommonArgs {
    /// Features to fit on: safetensors with `features` [n, d] and `labels` [n]
    #[arg(long, value_name = "FILE")]
    train_features: PathBuf,
    /// Features to test on, of the same encoder
    #[arg(long, value_name = "FILE")]
    test_features: PathBuf,
    /// Write the result and the whole protocol to this JSON file
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
        let device = crate::device::parse(&self.device)?;
        self.out.as_deref().map(check_target).transpose()?;
        let source = Source::Files { train: self.train_features.clone(), test: self.test_features.clone() };
        let inputs = source.load()?;
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

    /// Writes the result file where one is wanted, and prints the object or the table.
    ///
    /// # Errors
    /// What the file system refuses; then nothing is printed either.
    pub fn deliver(&self, record: &Map<String, Value>, table: &[(String, String)]) -> Result<()> {
        let text = serde_json::to_string_pretty(record)
            .map_err(|e| Error::Input(format!("the result cannot be written as JSON: {e}")))?;
        if let Some(path) = &self.out {
            write_beside(path, format!("{text}\n").as_bytes())?;
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

/// A progress bar on stderr that disappears where stderr is no terminal.
pub fn progress_bar(unit: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    let template = format!("{{bar:40}} {{pos}}/{{len}} {unit}  {{elapsed}} (left {{eta}})");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

/// `0.9123`, with `± 0.0012 (n = 3)` where there is a spread.
pub fn with_spread(mean: f64, std: Option<f64>, n: usize) -> String {
    match std {
        Some(std) => format!("{mean:.4} ± {std:.4} (n = {n})"),
        None => format!("{mean:.4}"),
    }
}
