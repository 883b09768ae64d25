//! The configuration of a text pretraining run: one file, one experiment.

use super::at_least_one;
use super::checkpoint::{Asked, BestBy, CheckpointConfig};
use super::loss::LossConfig;
use super::optim::{OptimConfig, ScheduleConfig};
use super::precision::Precision;
use super::run::{Length, RunConfig, check_numbers, validate_steps};
use super::sts::StsConfig;
use super::text_data::CorpusConfig;
use super::text_model::TextModelConfig;
use super::vision::ten;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use tch::Device;

/// Everything that decides a run. What is written to `config.resolved.yaml` has every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextConfig {
    /// Seed of initialisation, data order and dropout; 0 unless given.
    #[serde(default)]
    pub seed: u64,
    /// The sentences.
    pub data: CorpusConfig,
    /// The encoder to train on.
    pub model: TextModelConfig,
    /// The contrastive loss.
    pub loss: LossConfig,
    /// The optimizer.
    pub optim: OptimConfig,
    /// How the learning rate moves; constant unless given.
    #[serde(default)]
    pub schedule: ScheduleConfig,
    /// Length and batches of the run.
    pub train: TextTrainConfig,
    /// What the encoder computes in; `fp32` unless given.
    #[serde(default)]
    pub precision: Precision,
    /// Whether CUDA's float32 products of the encoder may use TensorFloat-32; false unless given.
    #[serde(default)]
    pub tf32: bool,
    /// When the state is saved, and what is kept.
    #[serde(default)]
    pub checkpoint: CheckpointConfig,
    /// Evaluation while training; none unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval: Option<StsConfig>,
}

/// Length and batches of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextTrainConfig {
    /// Passes over the sentences.
    pub epochs: u64,
    /// Sentences a step. The last, incomplete batch of an epoch is dropped.
    pub batch_size: usize,
    /// Steps between lines in `metrics.jsonl` and points in TensorBoard; 10 unless given. Every step is checked.
    #[serde(default = "ten")]
    pub log_every: u64,
    /// The largest norm of the gradient over all parameters; a longer one is shortened to it, as by PyTorch's `clip_grad_norm_`. None
    /// unless given; transformers' `Trainer` has 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
}

impl RunConfig for TextConfig {
    fn validate(&self) -> Result<()> {
        self.data.validate()?;
        if let Some(column) = &self.data.hard_negative {
            return Err(Error::Config(format!(
                "data.hard_negative: `{column}` cannot be trained with: the losses take negatives from the batch alone; leave it out"
            )));
        }
        self.model.validate()?;
        self.loss.validate()?;
        self.optim.validate()?;
        self.schedule.validate()?;
        let asked = if self.eval.is_some() { Asked::Yes } else { Asked::No("add the section eval") };
        self.checkpoint.validate(BestBy::Spearman, asked)?;
        if let Some(eval) = &self.eval {
            at_least_one("eval.every_steps", eval.every_steps)?;
        }
        validate_steps(self.length(), self.train.clip_norm, "sentences")
    }

    fn check_device(&self, device: Device) -> Result<()> {
        check_numbers(self.precision, self.tf32, device)
    }

    /// Length (`train.epochs`), logging, checkpoints and evaluation may change.
    fn with_what_may_change(&self, before: &TextConfig) -> TextConfig {
        let mut comparable = self.clone();
        comparable.train.epochs = before.train.epochs;
        comparable.train.log_every = before.train.log_every;
        comparable.checkpoint = before.checkpoint.clone();
        comparable.eval = before.eval.clone();
        comparable
    }

    fn seed(&self) -> u64 {
        self.seed
    }
    fn length(&self) -> Length {
        let &TextTrainConfig { epochs, batch_size, log_every, .. } = &self.train;
        Length { epochs, batch_size, log_every }
    }
    fn loss(&self) -> &LossConfig {
        &self.loss
    }
    fn optim(&self) -> &OptimConfig {
        &self.optim
    }
    fn schedule(&self) -> &ScheduleConfig {
        &self.schedule
    }
    fn checkpoint(&self) -> &CheckpointConfig {
        &self.checkpoint
    }
    fn precision(&self) -> Precision {
        self.precision
    }
    fn tf32(&self) -> bool {
        self.tf32
    }
    fn clip_norm(&self) -> Option<f64> {
        self.train.clip_norm
    }
}
