//! The `model` section of a text run: how sentences become vectors.

use crate::error::{Error, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The encoder to train on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextModelConfig {
    /// The folder of a BERT as transformers or sentence-transformers write it, with its tokenizer.
    pub path: PathBuf,
    /// What makes one vector of a sentence's hidden states.
    pub pooler: Pooler,
    /// With the pooler `cls`: whether its layer is for training alone, and evaluation takes the first token's state before it, as in
    /// SimCSE's unsupervised runs; true unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mlp_only_train: Option<bool>,
    /// The most tokens of a sentence; 32 unless given.
    #[serde(default = "max_length")]
    pub max_length: usize,
}

fn max_length() -> usize {
    32
}

impl TextModelConfig {
    /// Checks values beyond their types.
    ///
    /// # Errors
    /// A key that says nothing for this pooler.
    pub fn validate(&self) -> Result<()> {
        if self.mlp_only_train.is_some() && self.pooler != Pooler::Cls {
            return Err(Error::Config(
                "model.mlp_only_train: is for the pooler `cls`, whose layer it is about; leave it out".into(),
            ));
        }
        Ok(())
    }

    /// The pooler of evaluations.
    pub fn evaluated(&self) -> Pooler {
        match self.pooler {
            Pooler::Cls if self.mlp_only_train.unwrap_or(true) => Pooler::ClsBeforePooler,
            pooler => pooler,
        }
    }
}

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
