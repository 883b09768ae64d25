//! One place for a training loop to record a line: `metrics.jsonl` and TensorBoard's `tb/` of a run folder together.

use super::metrics::{MetricsWriter, Record};
use super::tensorboard::EventWriter;
use crate::error::Result;
use std::path::Path;

/// Writes each record to both files; a value `loss` of a training line has the TensorBoard tag `train/loss`.
#[derive(Debug)]
pub struct Recorder {
    metrics: MetricsWriter,
    events: EventWriter,
}

impl Recorder {
    /// Starts the records of a new run in its folder.
    ///
    /// # Errors
    /// There is a `metrics.jsonl` already, or a file cannot be made.
    pub fn create(run_folder: &Path) -> Result<Recorder> {
        let metrics = MetricsWriter::create(&run_folder.join("metrics.jsonl"))?;
        Ok(Recorder { metrics, events: EventWriter::create(&run_folder.join("tb"))? })
    }

    /// Goes on with the records of a run, `first_step` being the first step that will be recorded again.
    ///
    /// # Errors
    /// As [`MetricsWriter::resume`] and [`EventWriter::resume`].
    pub fn resume(run_folder: &Path, first_step: u64) -> Result<Recorder> {
        let metrics = MetricsWriter::resume(&run_folder.join("metrics.jsonl"), first_step)?;
        Ok(Recorder { metrics, events: EventWriter::resume(&run_folder.join("tb"), first_step)? })
    }

    /// Records one line.
    ///
    /// # Errors
    /// As [`MetricsWriter::write`] and [`EventWriter::scalars`].
    pub fn write(&mut self, record: &Record) -> Result<()> {
        self.metrics.write(record)?;
        let tags: Vec<(String, f64)> =
            record.values.iter().map(|(name, value)| (format!("{}/{name}", record.split.name()), *value)).collect();
        let scalars: Vec<(&str, f64)> = tags.iter().map(|(tag, value)| (tag.as_str(), *value)).collect();
        self.events.scalars(record.step, &scalars)
    }
}
