//! Pairs of sentences with scores: the `eval` section of a text run, and what names a file's part of them.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Semantic textual similarity while training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StsConfig {
    /// The pairs: a folder of the STS Benchmark, SICK or SentEval, or a csv, tsv or jsonl file.
    pub path: PathBuf,
    /// Which file of a folder that has one for each split; `dev` unless given.
    #[serde(default = "dev")]
    pub split: StsSplit,
    /// The columns of a table whose names are none of the usual.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Columns>,
    /// Steps between evaluations. The end of the run is evaluated too.
    pub every_steps: u64,
}

fn dev() -> StsSplit {
    StsSplit::Dev
}

/// Which file of a folder that has one for each split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum StsSplit {
    /// To train on.
    Train,
    /// To choose settings by; SICK calls it trial.
    Dev,
    /// To report.
    Test,
}

/// The names of the columns to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a mapping with the names of the columns a, b and score")]
pub struct Columns {
    /// The first sentence's.
    pub a: String,
    /// The second sentence's.
    pub b: String,
    /// The score's.
    pub score: String,
}
