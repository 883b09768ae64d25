//! What a run would be, in numbers, before it starts: `--dry-run` and the line that every run opens with.

use super::plan::Plan;
use super::step::Learner;
use super::task::Task;
use crate::config::run::RunConfig;
use crate::device;
use crate::error::Result;
use crate::loss::Layout;
use crate::torch::allocated_bytes;
use std::path::Path;
use tch::Device;

/// Samples of the probe that measures a model's activations.
const PROBE: i64 = 16;

impl<T: Task> Plan<T> {
    /// One line: model, data, steps, device.
    pub fn headline(&self, run_dir: &Path) -> String {
        format!(
            "{} of {} parameters on {} {}: {} epochs of {} steps, batch {}, on {}, into {}",
            T::name(self),
            thousands(self.parameter_count() as u64),
            thousands(self.task.samples() as u64),
            T::UNIT,
            self.config.common().epochs,
            thousands(self.steps_per_epoch),
            self.config.common().batch_size,
            device::name(self.device),
            run_dir.display()
        )
    }

    /// What a user should know of the loss before it starts: that most of its negatives count as their tail.
    pub fn note(&self) -> Option<String> {
        let (_, candidates) = T::compared(&self.config);
        let negatives = candidates - if T::layout(&self.config) == Layout::TwoView { 2 } else { 1 };
        let points = self.stepper.loss.tail_points(negatives).filter(|points| 3 * points > negatives)?;
        if points < 3 {
            return Some(format!(
                "note: of {negatives} negatives no tail can be estimated: lambda is 0, and this is InfoNCE; take a larger batch"
            ));
        }
        Some(format!(
            "note: {points} of an anchor's {negatives} negatives count as its tail, by loss.tail; a larger batch or fewer points (10 at \
             least) make it one"
        ))
    }

    /// The resolved configuration, and as comments the run's size on `device`: parameters, steps, memory. The plan itself
    /// is on the CPU, where memory is measured.
    ///
    /// # Errors
    /// What the model reports about the probe.
    pub fn describe(&self, device: Device) -> Result<String> {
        let mut text = self.resolved_config()?;
        let optimizer: usize = self.stepper.optimizer.state().iter().map(|(_, t)| bytes(t)).sum();
        let weights: usize = T::tensors(&self.stepper.model).iter().map(bytes).sum();
        let gradients = 4 * self.parameter_count();
        let (anchors, candidates) = T::compared(&self.config);
        // A float32 matrix of shortfalls that becomes their gradient, and as much for the pieces that are worked on, the tails
        // and the rows in float64.
        let loss = anchors * candidates * 2 * 4;
        let activations = self.activation_bytes()?;
        let memory = &format!("  {}", T::UNIT);
        let lines = [
            (
                "encoder",
                T::name(self) + &T::features(self).map_or(String::new(), |width| format!(" ({width} features)")),
            ),
            ("parameters", thousands(self.parameter_count() as u64)),
            (T::UNIT, thousands(self.task.samples() as u64)),
            (
                "steps",
                format!(
                    "{} ({} epochs of {})",
                    thousands(self.total_steps()),
                    self.config.common().epochs,
                    thousands(self.steps_per_epoch)
                ),
            ),
            ("device", device::name(device)),
            (
                "memory",
                format!(
                    "about {} MiB in all, estimated, beside LibTorch's code and what the backward pass takes for moments:",
                    mebibytes(weights + gradients + optimizer + loss + activations.unwrap_or(0) + self.task.memory())
                ),
            ),
            ("  weights, gradients, optimizer", format!("{} MiB", mebibytes(weights + gradients + optimizer))),
            (
                "  activations",
                activations.map_or("unknown on this system".to_string(), |b| {
                    format!("{} MiB (measured on {PROBE} {} on the CPU, scaled to the batch)", mebibytes(b), T::UNIT)
                }),
            ),
            ("  loss", format!("{} MiB", mebibytes(loss))),
            (memory, format!("{} MiB", mebibytes(self.task.memory()))),
        ];
        text += "\n";
        text += &self.note().map_or(String::new(), |note| format!("# {note}\n"));
        for (name, value) in lines {
            text += &format!("# {name}: {value}\n");
        }
        Ok(text)
    }
}

impl<T: Task> Plan<T> {
    /// What a training step keeps for its backward pass, in bytes: what a forward pass over a few images adds to the
    /// process, scaled to both views of a batch. `None` where the system does not tell.
    fn activation_bytes(&self) -> Result<Option<usize>> {
        let samples = PROBE.min(self.config.common().batch_size as i64);
        let probe = T::probe(&self.batch(0)?, samples)?;
        // The first pass takes what the kernels keep for themselves.
        drop(self.stepper.model.embed(&probe)?);
        let before = allocated_bytes();
        let _kept = self.stepper.model.embed(&probe)?;
        let grown = before.zip(allocated_bytes()).map(|(before, after)| after.saturating_sub(before));
        Ok(grown.map(|bytes| bytes / samples as usize * self.config.common().batch_size))
    }
}

fn bytes(t: &tch::Tensor) -> usize {
    t.numel() * t.kind().elt_size_in_bytes()
}

fn mebibytes(bytes: usize) -> usize {
    bytes.div_ceil(1 << 20)
}

/// 11181642 as `11,181,642`.
fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let groups: Vec<&str> = digits.as_bytes().rchunks(3).rev().filter_map(|g| std::str::from_utf8(g).ok()).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1000), "1,000");
        assert_eq!(thousands(11_181_642), "11,181,642");
    }
}
