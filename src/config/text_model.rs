//! The `model` section of a text run: how sentences become vectors.

use crate::error::{Error, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The encoder to train on: a BERT with a pooler, or a TorchScript module.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextModelConfig {
    /// The folder of a BERT as transformers or sentence-transformers write it, with its tokenizer; for a TorchScript module, its
    /// tokenizer's.
    pub path: PathBuf,
    /// What makes one vector of a BERT's hidden states.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pooler: Option<Pooler>,
    /// A TorchScript module in place of the folder's BERT: token ids and mask, int64 [B, L] with 1 where there is a token and not
    /// padding, to one vector a sentence, [B, F].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub torchscript: Option<PathBuf>,
    /// With the pooler `cls`: whether its layer is for training alone, and evaluation takes the first token's state before it, as in
    /// SimCSE's unsupervised runs; true unless given.
    #[serde(default = "yes")]
    pub mlp_only_train: bool,
    /// The most tokens of a sentence; 32 unless given.
    #[serde(default = "max_length")]
    pub max_length: usize,
}

fn yes() -> bool {
    true
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
        let refuse = |message: String| Err(Error::Config(message));
        match (self.pooler, &self.torchscript) {
            (None, None) => refuse(format!(
                "model.pooler: expected one of {}, or a module in model.torchscript, found neither",
                Pooler::NAMES.join(", ")
            )),
            (Some(_), Some(_)) => refuse(
                "model.pooler: is for a BERT, and model.torchscript makes its vectors itself; leave one of them out"
                    .into(),
            ),
            (pooler, _) if !self.mlp_only_train && pooler != Some(Pooler::Cls) => refuse(
                "model.mlp_only_train: false is for the pooler `cls`, whose layer it is about; leave it out".into(),
            ),
            _ => Ok(()),
        }
    }

    /// The pooler of evaluations, for a pooler of training.
    pub fn evaluated(&self, trained: Pooler) -> Pooler {
        match trained {
            Pooler::Cls if self.mlp_only_train => Pooler::ClsBeforePooler,
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
