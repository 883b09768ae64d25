//! How sentences become vectors.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// What makes one vector of a sentence's hidden states: SimCSE's `--pooler_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Pooler {
    /// The first token's last state through a linear layer and a tanh.
    Cls,
    /// The first token's last state.
    ClsBeforePooler,
    /// The mean of the last states.
    Avg,
    /// The mean of the embeddings' and the last states.
    AvgFirstLast,
    /// The mean of the last two layers' states.
    AvgTop2,
}

impl Pooler {
    /// All of them, as configurations name them.
    pub const NAMES: [&str; 5] = ["cls", "cls_before_pooler", "avg", "avg_first_last", "avg_top2"];
}
