//! The learning rate as a pure function of the step, so that resuming needs no state.

use crate::config::optim::ScheduleConfig;
use crate::error::{Error, Result};
use std::f64::consts::PI;

/// Linear warm-up, then a constant rate, half a cosine, or a line.
///
/// With W warm-up steps of T in all and base rate b: for t < W the rate is b * (1/W + (1 - 1/W) * t/W), then b, or
/// final + (b - final) * (1 + cos(pi * (t - W) / (T - W))) / 2. With a line it is b t / W, then b (T - t) / (T - W). After the last
/// step it stays at the final rate.
///
/// # Source
/// PyTorch's `SequentialLR([LinearLR(start_factor=1/W, total_iters=W), CosineAnnealingLR(T_max=T-W)], [W])`; the line:
/// transformers' `get_linear_schedule_with_warmup`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    base: f64,
    warmup: u64,
    decay: Decay,
}

/// What comes after the warm-up; with the number of all steps.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Decay {
    None,
    /// To this rate.
    Cosine(f64, u64),
    Linear(u64),
}

impl Schedule {
    /// The schedule of a run of `total_steps`, counted in steps of which an epoch has `steps_per_epoch`.
    ///
    /// # Errors
    /// Values that the configuration does not allow; a warm-up as long as the run or longer.
    pub fn new(config: &ScheduleConfig, base_lr: f64, steps_per_epoch: u64, total_steps: u64) -> Result<Schedule> {
        config.validate()?;
        let warmup = match config.warmup() {
            (Some(epochs), _) => (epochs * steps_per_epoch as f64).round() as u64,
            (None, steps) => steps.unwrap_or(0),
        };
        if warmup > 0 && warmup >= total_steps {
            return Err(Error::Config(format!(
                "schedule: a warm-up of {warmup} steps leaves nothing of a run of {total_steps}; shorten \
                 schedule.warmup_epochs or schedule.warmup_steps, or train longer"
            )));
        }
        let decay = match config {
            ScheduleConfig::Constant(_) => Decay::None,
            ScheduleConfig::Cosine(c) => Decay::Cosine(c.final_lr, total_steps),
            ScheduleConfig::Linear(_) => Decay::Linear(total_steps),
        };
        Ok(Schedule { base: base_lr, warmup, decay })
    }

    /// The rate of step `step`, counted from 0.
    pub fn lr(&self, step: u64) -> f64 {
        if step < self.warmup {
            let (w, t) = (self.warmup as f64, step as f64);
            return match self.decay {
                Decay::Linear(_) => self.base * (t / w),
                _ => self.base * (1.0 / w + (1.0 - 1.0 / w) * (t / w)),
            };
        }
        match self.decay {
            Decay::None => self.base,
            Decay::Linear(total) => {
                self.base * (total.saturating_sub(step) as f64 / (total - self.warmup).max(1) as f64)
            }
            Decay::Cosine(last, total) if step >= total => last,
            Decay::Cosine(last, total) => {
                let done = (step - self.warmup) as f64 / (total - self.warmup) as f64;
                last + (self.base - last) * (1.0 + (PI * done).cos()) / 2.0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::optim::{CosineConfig, WarmupConfig};

    #[test]
    fn a_warm_up_in_epochs_equals_the_same_in_steps() {
        let cosine = |warmup_epochs, warmup_steps| {
            let c = ScheduleConfig::Cosine(CosineConfig { warmup_epochs, warmup_steps, final_lr: 0.0 });
            Schedule::new(&c, 0.1, 7, 70).unwrap()
        };
        assert_eq!(cosine(Some(1.5), None), cosine(None, Some(11)));
        assert_eq!(cosine(None, None).lr(0), 0.1);
        assert_eq!(cosine(None, Some(1)).lr(0), 0.1);
    }

    #[test]
    fn after_the_last_step_the_rate_stays() {
        let c = ScheduleConfig::Cosine(CosineConfig { warmup_epochs: None, warmup_steps: Some(2), final_lr: 0.01 });
        let s = Schedule::new(&c, 0.1, 5, 10).unwrap();
        assert_eq!((s.lr(10), s.lr(1000)), (0.01, 0.01));
        let s = Schedule::new(&ScheduleConfig::default(), 0.1, 5, 0).unwrap();
        assert_eq!((s.lr(0), s.lr(9)), (0.1, 0.1));
    }

    #[test]
    fn a_warm_up_that_fills_the_run_is_refused() {
        let c = ScheduleConfig::Constant(WarmupConfig { warmup_epochs: Some(2.0), warmup_steps: None });
        let e = Schedule::new(&c, 0.1, 5, 10).unwrap_err().to_string();
        assert!(e.contains("10 steps") && e.contains("warmup_epochs"), "{e}");
    }
}
