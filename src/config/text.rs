//! The configuration of a text pretraining run: one file, one experiment.

use super::at_least_one;
use super::checkpoint::{BestBy, CheckpointConfig};
use super::kind::read_named;
use super::loss::{InfonceConfig, LossConfig};
use super::optim::{OptimConfig, ScheduleConfig};
use super::precision::Precision;
use super::run::{Common, RunConfig};
use super::sts::StsConfig;
use super::text_data::CorpusConfig;
use super::text_model::TextModelConfig;
use super::vision::ten;
use crate::error::Result;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_yaml::{Mapping, Value};
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
    /// The contrastive loss; InfoNCE unless given. What is not given of it is as in SimCSE and not as for images: a temperature of
    /// 0.05, and with WEINCE a tail of a fifth of the negatives and at least 10, since a batch of 64 has 63.
    #[serde(default = "infonce", deserialize_with = "loss_of_text")]
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

fn infonce() -> LossConfig {
    LossConfig::Infonce(InfonceConfig { temperature: TEMPERATURE, tile: None })
}

/// SimCSE's.
const TEMPERATURE: f64 = 0.05;

/// A loss with the defaults of text.
fn loss_of_text<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<LossConfig, D::Error> {
    let mut value = Value::deserialize(deserializer)?;
    if let Value::Mapping(map) = &mut value {
        map.entry("temperature".into()).or_insert(TEMPERATURE.into());
        if map.get("kind").and_then(Value::as_str) == Some("weince")
            && let Value::Mapping(tail) = map.entry("tail".into()).or_insert(Mapping::new().into())
        {
            tail.entry("fraction".into()).or_insert(0.2.into());
            tail.entry("min_points".into()).or_insert(10.into());
        }
    }
    read_named(value).map_err(D::Error::custom)
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
    /// Whether second views are anchors too, with the first views as their candidates, and the loss is the mean over both directions;
    /// false unless given, as in SimCSE. Hard negatives are candidates of the first views alone.
    #[serde(default)]
    pub both_directions: bool,
    /// Whether sentences of like length share a batch, which saves padding; false unless given. Of every 50 batches of the plain
    /// order the sentences are sorted by their number of tokens, cut into batches anew, and the batches shuffled: an epoch sees the same
    /// sentences, though negatives are then of about their anchor's length.
    #[serde(default)]
    pub group_by_length: bool,
    /// The largest norm of the gradient over all parameters; a longer one is shortened to it, as by PyTorch's `clip_grad_norm_`. None
    /// unless given; transformers' `Trainer` has 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f64>,
    /// Sentences that pass the encoder at a time, where a batch does not fit in memory: cached gradients (arXiv 2101.06983), for one
    /// more forward pass. The loss is over the whole batch. Each chunk has dropout masks of its own, and a BatchNorm's statistics are those of a chunk.
    /// All of a batch unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<u32>,
}

impl TextConfig {
    /// An anchor's candidates in a batch: the second views, and the hard negatives of all.
    pub fn batch_candidates(&self) -> usize {
        let samples = self.train.batch_size;
        if self.data.hard_negative.is_some() { 2 * samples } else { samples }
    }

    /// Those of them that are negatives.
    pub fn batch_negatives(&self) -> usize {
        self.batch_candidates() - 1
    }
}

impl RunConfig for TextConfig {
    const COMMAND: &'static str = "pretrain-text";

    fn validate(&self) -> Result<()> {
        self.data.validate()?;
        self.model.validate()?;
        if let Some(eval) = &self.eval {
            at_least_one("eval.every_steps", eval.every_steps)?;
        }
        let missing = self.eval.is_none().then_some("add the section eval");
        self.common().validate(BestBy::Spearman, missing, "sentences")
    }

    fn check_device(&self, device: Device) -> Result<()> {
        self.common().check_device(device)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn loss(given: &str) -> Result<LossConfig> {
        let rest = "data: {path: a.txt}\nmodel: {path: m, pooler: cls}\noptim: {kind: adamw, lr: 1e-3}\ntrain: {epochs: 1, batch_size: 64}";
        Ok(parse::<TextConfig>(&format!("{given}\n{rest}"), "c.yaml", &[])?.loss)
    }

    #[test]
    fn a_loss_has_the_defaults_of_text() {
        let expected: LossConfig = parse("{kind: infonce, temperature: 0.05}", "", &[]).unwrap();
        assert_eq!(loss("").unwrap(), expected);
        assert_eq!(loss("loss: {kind: infonce}").unwrap(), expected);
        let weince = |more: &str| parse::<LossConfig>(&format!("{{kind: weince{more}}}"), "", &[]).unwrap();
        let tail = ", tail: {fraction: 0.2, min_points: 10}";
        assert_eq!(loss("loss: {kind: weince}").unwrap(), weince(&format!(", temperature: 0.05{tail}")));
        let given = loss("loss: {kind: weince, temperature: 0.1, tail: {fraction: 0.5}}").unwrap();
        assert_eq!(given, weince(", temperature: 0.1, tail: {fraction: 0.5, min_points: 10}"));
        let e = loss("loss: {kind: weince, gate: {margn: 3}}").unwrap_err().to_string();
        assert!(e.contains("c.yaml: loss: gate.margn: ") && e.contains("did you mean `margin`?"), "{e}");
        let e = loss("loss: {kind: wince}").unwrap_err().to_string();
        assert!(e.contains("loss") && e.contains("did you mean `weince`?"), "{e}");
        assert!(loss("loss:").unwrap_err().to_string().contains("give its `kind`"));
    }
}
