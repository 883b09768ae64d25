//! The `checkpoint` section: when the state of a run is saved, and which states are kept.

use super::at_least_one;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// When a run saves its state, and what it keeps. The end of a run and an interruption are always saved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CheckpointConfig {
    /// Epochs between checkpoints.
    pub every_epochs: u64,
    /// Steps between further checkpoints, within epochs too; none where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_steps: Option<u64>,
    /// How many of the newest are kept.
    pub keep: u64,
    /// Keeps the best one too, as `best.pt`, by this measurement; none where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best_by: Option<BestBy>,
}

impl Default for CheckpointConfig {
    fn default() -> Self {
        CheckpointConfig { every_epochs: 1, every_steps: None, keep: 2, best_by: None }
    }
}

/// What tells the best checkpoint; the first of equals stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BestBy {
    /// The nearest-neighbour accuracy on the test images, which `eval.knn_every` asks for.
    KnnAccuracy,
    /// Spearman's correlation on the pairs of a text run's section `eval`.
    Spearman,
}

impl CheckpointConfig {
    /// Checks values beyond their types. `measured` is what runs of this kind can be asked to measure; `missing` says what to set where
    /// this one is not.
    ///
    /// # Errors
    /// A value out of its range, with its key; a best by what is not measured.
    pub fn validate(&self, measured: BestBy, missing: Option<&str>) -> Result<()> {
        at_least_one("checkpoint.every_epochs", self.every_epochs)?;
        self.every_steps.map_or(Ok(()), |steps| at_least_one("checkpoint.every_steps", steps))?;
        at_least_one("checkpoint.keep", self.keep)?;
        let name = |by: BestBy| if by == BestBy::Spearman { "spearman" } else { "knn_accuracy" };
        match (self.best_by, missing) {
            (Some(by), _) if by != measured => Err(Error::Config(format!(
                "checkpoint.best_by: {} is not what such runs measure; expected {}",
                name(by),
                name(measured)
            ))),
            (Some(by), Some(remedy)) => {
                Err(Error::Config(format!("checkpoint.best_by: {} is not measured in this run; {remedy}", name(by))))
            }
            _ => Ok(()),
        }
    }
}
