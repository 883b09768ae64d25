//! The configuration of a vision pretraining run: one file, one experiment.

use super::at_least_one;
use super::augment::AugmentConfig;
use super::checkpoint::CheckpointConfig;
use super::data::DataConfig;
use super::loss::LossConfig;
use super::model::ModelConfig;
use super::optim::{OptimConfig, ScheduleConfig};
use super::precision::Precision;
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
}

fn ten() -> u64 {
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
    /// Checks values beyond their types.
    ///
    /// # Errors
    /// A value out of its range, with its key.
    pub fn validate(&self) -> Result<()> {
        self.data.validate()?;
        self.augment.validate()?;
        self.model.validate()?;
        self.loss.validate()?;
        self.optim.validate()?;
        self.schedule.validate()?;
        self.checkpoint.validate(self.eval.knn_every)?;
        at_least_one("train.epochs", self.train.epochs)?;
        at_least_one("train.log_every", self.train.log_every)?;
        if self.train.batch_size < 2 {
            return Err(Error::Config(format!(
                "train.batch_size: a contrastive batch needs at least 2 images, found {}: with one there are no negatives",
                self.train.batch_size
            )));
        }
        Ok(())
    }

    /// Whether a device can run this.
    ///
    /// # Errors
    /// A precision or memory layout that the device does not have.
    pub fn check_device(&self, device: Device) -> Result<()> {
        self.precision.check(device)?;
        if self.tf32 && !device.is_cuda() {
            return Err(Error::Config("tf32: true is for CUDA, and this run is on the CPU; leave it out".into()));
        }
        if self.channels_last && !device.is_cuda() {
            return Err(Error::Config(
                "channels_last: true is for CUDA, and this run is on the CPU, where LibTorch's channels-last convolutions of \
                 few channels are wrong; leave it out"
                    .into(),
            ));
        }
        Ok(())
    }

    /// The keys, with both values, in which `new` differs from `self` where a resumed run may not differ.
    ///
    /// Length (`train.epochs`), logging, checkpoints, evaluation, loader threads and the images' cache may change.
    ///
    /// # Errors
    /// None in practice: both serialise.
    pub fn forbidden_changes(&self, new: &VisionConfig) -> Result<Vec<String>> {
        let mut comparable = new.clone();
        comparable.train.epochs = self.train.epochs;
        comparable.train.log_every = self.train.log_every;
        comparable.checkpoint = self.checkpoint.clone();
        comparable.eval = self.eval.clone();
        comparable.data.take_over_means(&self.data);
        let mut differences = Vec::new();
        diff("", &to_value(self)?, &to_value(&comparable)?, &mut differences);
        Ok(differences)
    }

    /// As [`VisionConfig::forbidden_changes`], for runs that are to end at the same weights: the length may not change either.
    ///
    /// # Errors
    /// As there.
    pub fn changes_of_the_outcome(&self, new: &VisionConfig) -> Result<Vec<String>> {
        let mut changes = self.forbidden_changes(new)?;
        if self.train.epochs != new.train.epochs {
            changes.push(format!("train.epochs was {} and is now {}", self.train.epochs, new.train.epochs));
        }
        Ok(changes)
    }
}

fn to_value(config: &VisionConfig) -> Result<serde_yaml::Value> {
    serde_yaml::to_value(config).map_err(|e| Error::Config(format!("the configuration cannot be written: {e}")))
}

fn diff(path: &str, old: &serde_yaml::Value, new: &serde_yaml::Value, out: &mut Vec<String>) {
    if let (serde_yaml::Value::Mapping(a), serde_yaml::Value::Mapping(b)) = (old, new) {
        let keys = a.keys().chain(b.keys().filter(|k| !a.contains_key(*k)));
        for key in keys {
            let name = key.as_str().unwrap_or("?");
            let at = if path.is_empty() { name.to_string() } else { format!("{path}.{name}") };
            let missing = serde_yaml::Value::Null;
            diff(&at, a.get(key).unwrap_or(&missing), b.get(key).unwrap_or(&missing), out);
        }
    } else if old != new {
        let show = |v: &serde_yaml::Value| serde_yaml::to_string(v).unwrap_or_default().trim().replace('\n', " ");
        out.push(format!("{path} was {} and is now {}", show(old), show(new)));
    }
}
