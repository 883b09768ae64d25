//! The configuration of a vision pretraining run: one file, one experiment.

use super::augment::AugmentConfig;
use super::checkpoint::{BestBy, CheckpointConfig};
use super::data::DataConfig;
use super::loss::LossConfig;
use super::model::ModelConfig;
use super::optim::{OptimConfig, ScheduleConfig};
use super::precision::Precision;
use super::run::{Common, RunConfig};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use tch::Device;

/// Everything that decides a run. What is written to `config.resolved.yaml` has every default filled in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VisionConfig {
    /// Seed of initialisation, data order and augmentation; 0 unless given.
    #[serde(default)]
    pub seed: u64,
    /// The images.
    pub data: DataConfig,
    /// How the two views of an image are made.
    #[serde(default)]
    pub augment: AugmentConfig,
    /// Encoder and projector.
    pub model: ModelConfig,
    /// The contrastive loss.
    #[serde(default)]
    pub loss: LossConfig,
    /// The optimizer.
    pub optim: OptimConfig,
    /// How the learning rate moves; constant unless given.
    #[serde(default)]
    pub schedule: ScheduleConfig,
    /// Length and batches of the run.
    pub train: TrainConfig,
    /// What the encoder computes in; `fp32` unless given.
    #[serde(default)]
    pub precision: Precision,
    /// Whether CUDA's float32 products and convolutions of the encoder may use TensorFloat-32; false unless given.
    #[serde(default)]
    pub tf32: bool,
    /// Whether images and convolutions lie channels last in memory, which is faster in mixed precision on CUDA; false unless given.
    #[serde(default)]
    pub channels_last: bool,
    /// When the state is saved, and what is kept.
    #[serde(default)]
    pub checkpoint: CheckpointConfig,
    /// Evaluation while training.
    #[serde(default)]
    pub eval: EvalConfig,
}

/// Length and batches of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// Passes over the training images.
    pub epochs: u64,
    /// Images a step; each gives two views. The last, incomplete batch of an epoch is dropped.
    pub batch_size: usize,
    /// How the views pass the encoder; `separate` unless given.
    #[serde(default)]
    pub views: Views,
    /// Steps between lines in `metrics.jsonl` and points in TensorBoard; 10 unless given. Every step is checked.
    #[serde(default = "ten")]
    pub log_every: u64,
    /// The largest norm of the gradient over all parameters; a longer one is shortened to it, as by PyTorch's `clip_grad_norm_`. None
    /// unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// Images that pass the encoder at a time, where a batch does not fit in memory: cached gradients (arXiv 2101.06983), for one
    /// more forward pass. The loss is over the whole batch. Each chunk has dropout masks of its own, and BatchNorm's statistics are those of a chunk.
    /// All of a batch unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<u32>,
    /// Of several processes: whether BatchNorm takes its statistics over the images of all, as one process with the whole batch would;
    /// true unless given. Otherwise each has those of its own share, and the first one's running statistics are kept.
    #[serde(default = "yes")]
    pub sync_batch_norm: bool,
}

fn yes() -> bool {
    true
}

pub(super) fn ten() -> u64 {
    10
}

/// How the two views of a batch pass the encoder. BatchNorm takes its statistics over one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Views {
    /// Two passes, one a view, as in the authors' code.
    #[default]
    Separate,
    /// One pass over both views together.
    Joint,
}

/// Evaluation while training.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvalConfig {
    /// Epochs between kNN evaluations on the test images; 0, the default, means none.
    #[serde(default)]
    pub knn_every: u64,
}

impl VisionConfig {
    /// An anchor's negatives in a batch: both views of the other samples.
    pub fn batch_negatives(&self) -> usize {
        2 * self.train.batch_size - 2
    }
}

impl RunConfig for VisionConfig {
    const COMMAND: &'static str = "pretrain-vision";

    fn validate(&self) -> Result<()> {
        self.data.validate()?;
        self.augment.validate()?;
        self.model.validate()?;
        let missing = (self.eval.knn_every == 0).then_some("set eval.knn_every, such as 1");
        self.common().validate(BestBy::KnnAccuracy, missing, "images")
    }

    fn check_device(&self, device: Device) -> Result<()> {
        self.common().check_device(device)?;
        if self.channels_last && !device.is_cuda() {
            return Err(Error::Config(
                "channels_last: true is for CUDA, and this run is on the CPU, where ResNets lie so by themselves and other \
                 encoders gain nothing; leave it out"
                    .into(),
            ));
        }
        Ok(())
    }

    /// Length (`train.epochs`), logging, checkpoints, evaluation, loader threads and the images' cache may change.
    fn with_what_may_change(&self, before: &VisionConfig) -> VisionConfig {
        let mut comparable = self.clone();
        comparable.train.epochs = before.train.epochs;
        comparable.train.log_every = before.train.log_every;
        comparable.checkpoint = before.checkpoint.clone();
        comparable.eval = before.eval.clone();
        comparable.data.take_over_means(&before.data);
        comparable
    }

    fn common(&self) -> Common<'_> {
        Common {
            seed: self.seed,
            epochs: self.train.epochs,
            batch_size: self.train.batch_size,
            log_every: self.train.log_every,
            clip_norm: self.train.clip_norm,
            chunk: self.train.chunk,
            loss: &self.loss,
            optim: &self.optim,
            schedule: &self.schedule,
            checkpoint: &self.checkpoint,
            precision: self.precision,
            tf32: self.tf32,
        }
    }
}
