//! The state of a run in one file: weights, buffers, optimizer, running loss state, position.

use super::step::Stepper;
use crate::checkpoint::safetensors::{self, Contents};
use crate::error::{Error, Result};
use std::path::Path;
use tch::{Kind, Tensor};

const FORMAT: &str = "weince-train-state-1";
const LOSS_STATE: &str = "loss.beta_ema";

/// Writes the state after `step` updates: beside its place, synced, renamed.
///
/// # Errors
/// What the system refuses.
pub fn save(path: &Path, stepper: &Stepper, step: u64) -> Result<()> {
    let mut tensors = stepper.model.state_dict();
    tensors.extend(stepper.optimizer.state().into_iter().map(|(name, t)| (format!("optim.{name}"), t)));
    if let Some(ema) = stepper.loss.state() {
        tensors.push((LOSS_STATE.to_string(), Tensor::from(ema).to_kind(Kind::Float)));
    }
    let metadata =
        [("format", FORMAT.into()), ("step", step.to_string()), ("weince", env!("CARGO_PKG_VERSION").into())];
    safetensors::save(path, &tensors, &metadata.map(|(key, value)| (key.to_string(), value)).into())
}

/// Restores a state into freshly built parts; gives the number of updates behind it.
///
/// # Errors
/// A file of another kind or another model, and what the system refuses.
pub fn load(path: &Path, stepper: &mut Stepper) -> Result<u64> {
    let Contents { tensors, metadata } = safetensors::load(path)?;
    if metadata.get("format").map(String::as_str) != Some(FORMAT) {
        return Err(Error::data(
            path,
            None,
            format!("no training state: expected format {FORMAT}, found {:?}", metadata.get("format")),
        ));
    }
    let step = metadata.get("step").and_then(|s| s.parse().ok());
    let step = step.ok_or_else(|| Error::data(path, None, "the training state does not say its step"))?;
    let mut weights = Vec::new();
    let mut optim = Vec::new();
    let mut ema = None;
    for (name, tensor) in tensors {
        match name.strip_prefix("optim.") {
            Some(rest) => optim.push((rest.to_string(), tensor)),
            None if name == LOSS_STATE => ema = Some(tensor.f_double_value(&[])?),
            None => weights.push((name, tensor)),
        }
    }
    stepper.model.load(&weights)?;
    stepper.optimizer.load_state(&optim)?;
    stepper.loss.set_state(ema)?;
    Ok(step)
}
