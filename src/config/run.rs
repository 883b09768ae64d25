//! What the configurations of all runs have, whatever they train on.

use super::at_least_one;
use super::checkpoint::{BestBy, CheckpointConfig};
use super::loss::LossConfig;
use super::optim::{OptimConfig, ScheduleConfig};
use super::precision::Precision;
use super::text::TextConfig;
use super::vision::VisionConfig;
use crate::error::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_yaml::Value;
use std::path::Path;
use tch::Device;

/// The values that every run has.
#[derive(Debug, Clone, Copy)]
pub struct Common<'a> {
    /// Seed of initialisation, data order and augmentation.
    pub seed: u64,
    /// Passes over the training samples.
    pub epochs: u64,
    /// Samples a step.
    pub batch_size: usize,
    /// Steps between lines in `metrics.jsonl`.
    pub log_every: u64,
    /// The largest norm of the gradient that a step keeps; none where nothing is cut.
    pub clip_norm: Option<f64>,
    /// Samples that pass the encoder at a time; none where a batch passes whole.
    pub chunk: Option<u32>,
    /// The contrastive loss.
    pub loss: &'a LossConfig,
    /// The optimizer.
    pub optim: &'a OptimConfig,
    /// How the learning rate moves.
    pub schedule: &'a ScheduleConfig,
    /// When the state is saved.
    pub checkpoint: &'a CheckpointConfig,
    /// What the encoder computes in.
    pub precision: Precision,
    /// Whether CUDA's float32 products may use TensorFloat-32.
    pub tf32: bool,
}

/// The configuration of a run.
pub trait RunConfig: Clone + Serialize + DeserializeOwned {
    /// The command that runs it.
    const COMMAND: &'static str;

    /// Checks values beyond their types.
    ///
    /// # Errors
    /// A value out of its range, with its key.
    fn validate(&self) -> Result<()>;

    /// Whether a device can run this.
    ///
    /// # Errors
    /// A precision or memory layout that the device does not have.
    fn check_device(&self, device: Device) -> Result<()>;

    /// The configuration of a run that goes on as this one, with what a resumed run may change taken from `before`.
    fn with_what_may_change(&self, before: &Self) -> Self;

    /// The values that every run has.
    fn common(&self) -> Common<'_>;

    /// The keys, with both values, in which `new` differs from `self` where a resumed run may not differ.
    ///
    /// # Errors
    /// None in practice: both serialise.
    fn forbidden_changes(&self, new: &Self) -> Result<Vec<String>> {
        let mut differences = Vec::new();
        diff("", &to_value(self)?, &to_value(&new.with_what_may_change(self))?, &mut differences);
        Ok(differences)
    }

    /// As [`RunConfig::forbidden_changes`], for runs that are to end at the same weights: the length may not change either.
    ///
    /// # Errors
    /// As there.
    fn changes_of_the_outcome(&self, new: &Self) -> Result<Vec<String>> {
        let mut changes = self.forbidden_changes(new)?;
        let (before, now) = (self.common().epochs, new.common().epochs);
        if before != now {
            changes.push(format!("train.epochs was {before} and is now {now}"));
        }
        Ok(changes)
    }
}

impl Common<'_> {
    /// Checks the values. The run can measure `measured`; where it is not set up to, `missing` says what to set. `samples` is what its
    /// samples are called.
    pub(super) fn validate(&self, measured: BestBy, missing: Option<&str>, samples: &str) -> Result<()> {
        self.loss.validate()?;
        self.optim.validate()?;
        self.schedule.validate()?;
        self.checkpoint.validate(measured, missing)?;
        at_least_one("train.epochs", self.epochs)?;
        at_least_one("train.log_every", self.log_every)?;
        if self.batch_size < 2 {
            return Err(Error::Config(format!(
                "train.batch_size: a contrastive batch needs at least 2 {samples}, found {}: with one there are no negatives",
                self.batch_size
            )));
        }
        if self.chunk == Some(0) {
            return Err(Error::Config(format!(
                "train.chunk: expected at least 1 of the {} {samples} of a batch, found 0; leave it out to take all at once",
                self.batch_size
            )));
        }
        match self.clip_norm {
            Some(norm) if !(norm > 0.0 && norm.is_finite()) => {
                Err(Error::Config(format!("train.clip_norm: expected a finite number above 0, found {norm}")))
            }
            _ => Ok(()),
        }
    }

    /// Refuses numbers that a device does not have.
    pub(super) fn check_device(&self, device: Device) -> Result<()> {
        self.precision.check(device)?;
        if self.tf32 && !device.is_cuda() {
            return Err(Error::Config("tf32: true is for CUDA, and this run is on the CPU; leave it out".into()));
        }
        Ok(())
    }
}

/// Reads the configuration of a run, with `--set` assignments.
///
/// # Errors
/// As [`super::load`]; a configuration of the other command is named so.
pub fn load<C: RunConfig>(path: &Path, sets: &[String]) -> Result<C> {
    super::load(path, sets).map_err(|e| match super::load::<Value>(path, sets) {
        Ok(tree) if command_of(&tree) != C::COMMAND => Error::Config(format!(
            "{}: this looks like a configuration of {}, expected one of {} ({e})",
            path.display(),
            command_of(&tree),
            C::COMMAND
        )),
        _ => e,
    })
}

/// The command that runs such a configuration.
pub(crate) fn command_of(tree: &Value) -> &'static str {
    let of_text = tree.get("model").and_then(|model| model.get("path")).is_some();
    if of_text { TextConfig::COMMAND } else { VisionConfig::COMMAND }
}

fn to_value<T: Serialize>(config: &T) -> Result<serde_yaml::Value> {
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
