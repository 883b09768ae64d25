//! The loss scale of float16 training: it keeps small gradients above float16's smallest number, and steps whose gradients
//! overflow are skipped.

use crate::checkpoint::Value;
use crate::error::{Error, Result};
use crate::torch::unscale;
use tch::{Device, Kind, Tensor};

const INITIAL: f64 = 65536.0;
const GROWTH: f64 = 2.0;
const BACKOFF: f64 = 0.5;
const INTERVAL: i64 = 2000;

/// `torch.amp.GradScaler` with its defaults. Everything stays on the device; nothing waits for it.
///
/// The scale begins at 65536, doubles after 2000 steps in a row without overflow, and halves with each step that overflows.
///
/// # Source
/// <https://docs.pytorch.org/docs/2.11/amp.html#gradient-scaling>
#[derive(Debug)]
pub struct GradScaler {
    scale: Tensor,
    growth_tracker: Tensor,
    /// Steps whose gradients were not finite.
    skipped: Tensor,
}

impl GradScaler {
    /// A scaler as before the first step.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn new(device: Device) -> Result<GradScaler> {
        Ok(GradScaler {
            scale: Tensor::f_full([0i64; 0], INITIAL, (Kind::Float, device))?,
            growth_tracker: Tensor::f_zeros([0i64; 0], (Kind::Int, device))?,
            skipped: Tensor::f_zeros([0i64; 0], (Kind::Float, device))?,
        })
    }

    /// The loss to call `backward` on.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn scale(&self, loss: &Tensor) -> Result<Tensor> {
        Ok(loss.f_mul(&self.scale)?)
    }

    /// Brings the gradients back to their size, in place, and gives 1 if an element of them is not finite, else 0 (float32,
    /// 0-dim): the optimizer's `found_inf`.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn unscale(&self, grads: &[Tensor]) -> Result<Tensor> {
        let found_inf = self.scale.f_zeros_like()?;
        // The reciprocal in float64, as PyTorch takes it.
        let inverse = self.scale.f_to_kind(Kind::Double)?.f_reciprocal()?.f_to_kind(Kind::Float)?;
        unscale(grads, &inverse, &found_inf)?;
        Ok(found_inf)
    }

    /// Moves the scale after a step whose gradients gave `found_inf`.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn update(&mut self, found_inf: &Tensor) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let _ = self.skipped.f_add_(found_inf)?;
        let _ = self.scale.f_internal_amp_update_scale_(&self.growth_tracker, found_inf, GROWTH, BACKOFF, INTERVAL)?;
        Ok(())
    }

    /// The scale and the number of skipped steps, each 0-dim float32 on the device.
    pub fn measurements(&self) -> [&Tensor; 2] {
        [&self.scale, &self.skipped]
    }

    /// The state as `torch.amp.GradScaler.state_dict()` gives it, and `skipped_steps` beside it. Reads from the device.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn state_dict(&self) -> Result<Value> {
        Ok(Value::dict([
            ("scale", self.scale.f_double_value(&[])?.into()),
            ("growth_factor", GROWTH.into()),
            ("backoff_factor", BACKOFF.into()),
            ("growth_interval", INTERVAL.into()),
            ("_growth_tracker", self.growth_tracker.f_int64_value(&[])?.into()),
            ("skipped_steps", (self.skipped.f_double_value(&[])? as i64).into()),
        ]))
    }

    /// Takes over what [`GradScaler::state_dict`] or PyTorch's scaler gave.
    ///
    /// # Errors
    /// Numbers that are missing or out of range.
    pub fn load_state_dict(&mut self, value: &Value) -> Result<()> {
        let scale = value.get("scale").and_then(Value::as_f64).filter(|s| s.is_finite() && *s > 0.0);
        let tracker = value.get("_growth_tracker").and_then(Value::as_u64).and_then(|n| i32::try_from(n).ok());
        let (Some(scale), Some(tracker)) = (scale, tracker) else {
            return Err(Error::Input(
                "the gradient scaler's state does not fit: expected a positive `scale` and a `_growth_tracker`".into(),
            ));
        };
        let skipped = value.get("skipped_steps").and_then(Value::as_f64).unwrap_or(0.0);
        let _guard = tch::no_grad_guard();
        let _ = self.scale.f_fill_(scale)?;
        let _ = self.growth_tracker.f_fill_(i64::from(tracker))?;
        let _ = self.skipped.f_fill_(skipped)?;
        Ok(())
    }
}
