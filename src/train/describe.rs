//! What a run would be, in numbers, before it starts: `--dry-run` and the line that every run opens with.

use super::plan::Plan;
use super::step::Learner;
use super::task::Task;
use crate::config::run::RunConfig;
use crate::device;
use crate::error::Result;
use crate::loss::Layout;
use crate::torch::{allocated_bytes, clear_gradients};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tch::{Device, Kind};

/// Samples of the probe that measures a model's activations.
const PROBE: i64 = 16;

impl<T: Task> Plan<T> {
    /// One line: model, data, steps, device.
    pub fn headline(&self, run_dir: &Path) -> String {
        format!(
            "{} of {} parameters on {} {}: {} epochs of {} steps, batch {}{}, on {}, into {}",
            T::name(self),
            thousands(self.parameter_count() as u64),
            thousands(self.task.samples() as u64),
            T::UNIT,
            self.config.common().epochs,
            thousands(self.steps_per_epoch),
            self.config.common().batch_size,
            self.chunk().map_or(String::new(), |chunk| format!(" in chunks of {chunk}")),
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
        let dimensions = T::dimensions(self).unwrap_or(0) as usize;
        let loss = self.stepper.loss.bytes(anchors, candidates, dimensions);
        let chunk = self.chunk();
        // A chunk's pass has the gradients of those before it beside it.
        let passes = self.pass_bytes()?.map(|b| if chunk.is_some() { b + gradients } else { b.max(gradients) });
        let scaled_to = chunk.map_or("the batch".to_string(), |chunk| {
            format!("a chunk of {chunk} {} of the batch's {}", T::UNIT, self.config.common().batch_size)
        });
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
                    "about {} MiB in use at the height of a step, estimated (a process on the CPU, with LibTorch and what its allocator \
                     keeps, takes 300 MiB more and up to twice that):",
                    mebibytes(weights + optimizer + loss + passes.unwrap_or(gradients) + self.task.memory())
                ),
            ),
            ("  weights, optimizer", format!("{} MiB", mebibytes(weights + optimizer))),
            (
                "  passes, gradients",
                passes.map_or("unknown on this system".to_string(), |b| {
                    format!("{} MiB (measured on {PROBE} {} on the CPU, scaled to {scaled_to})", mebibytes(b), T::UNIT)
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
    /// The samples of a chunk, where a batch has more.
    fn chunk(&self) -> Option<usize> {
        let common = self.config.common();
        common.chunk.map(|chunk| chunk as usize).filter(|chunk| *chunk < common.batch_size)
    }

    /// What the passes of a training step and the gradients take at their height, in bytes: measured on a few samples and on half of them,
    /// and drawn on to what passes at a time. `None` where the system does not tell.
    fn pass_bytes(&self) -> Result<Option<usize>> {
        let at_once = self.chunk().unwrap_or(self.config.common().batch_size);
        let many = (PROBE as usize).min(at_once);
        let few = (many / 2).max(2).min(many);
        // The first pass takes what the kernels keep for themselves.
        let first = T::on_device(&self.batch(0)?, Device::Cpu)?;
        let height = |samples: usize| self.height(&T::Model::part(&first, 0..samples as i64)?);
        height(many)?;
        let (Some(high), Some(low)) = (height(many)?, height(few)?) else { return Ok(None) };
        let more = high.saturating_sub(low) * (at_once - many) / (many - few).max(1);
        Ok(Some(high + more))
    }

    /// The most memory that a forward and a backward pass over a batch have in use at a time.
    fn height(&self, batch: &<T::Model as Learner>::Batch) -> Result<Option<usize>> {
        let parameters: Vec<tch::Tensor> = self.stepper.model.parameters().into_iter().map(|(_, t)| t).collect();
        clear_gradients(&parameters)?;
        let Some(before) = allocated_bytes() else { return Ok(None) };
        let done = AtomicBool::new(false);
        let (most, passed) = std::thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut most = before;
                while !done.load(Ordering::Relaxed) {
                    most = most.max(allocated_bytes().unwrap_or(0));
                    std::thread::sleep(Duration::from_micros(200));
                }
                most
            });
            let passed = self.stepper.model.embed(batch).and_then(|(z_1, z_2)| {
                let sum = z_1.f_square()?.f_sum(Kind::Float)?.f_add(&z_2.f_square()?.f_sum(Kind::Float)?)?;
                Ok(sum.f_backward()?)
            });
            done.store(true, Ordering::Relaxed);
            (watch.join().unwrap_or(before), passed)
        });
        passed?;
        clear_gradients(&parameters)?;
        Ok(Some(most - before))
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
