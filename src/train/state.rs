//! The state of a run in one file: weights, buffers, optimizer, running loss state, position.

use super::step::Stepper;
use crate::checkpoint::bytes;
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
    let step = step.to_string();
    let checksum = checksum(&tensors, &step)?;
    let metadata =
        [("format", FORMAT.into()), ("step", step), ("crc32c", checksum), ("weince", env!("CARGO_PKG_VERSION").into())];
    safetensors::save(path, &tensors, &metadata.map(|(key, value)| (key.to_string(), value)).into())
}

/// CRC-32C of step, names and elements, whatever order the tensors lie in.
fn checksum(tensors: &[(String, Tensor)], step: &str) -> Result<String> {
    let mut sorted: Vec<&(String, Tensor)> = tensors.iter().collect();
    sorted.sort_by_key(|(name, _)| name);
    let mut crc = crc32c::crc32c(step.as_bytes());
    for (name, tensor) in sorted {
        crc = crc32c::crc32c_append(crc, name.as_bytes());
        crc = crc32c::crc32c_append(crc, &bytes(tensor)?);
    }
    Ok(format!("{crc:08x}"))
}

/// Restores a state into freshly built parts; gives the number of updates behind it.
///
/// # Errors
/// A damaged file, one of another kind or another model, and what the system refuses.
pub fn load(path: &Path, stepper: &mut Stepper) -> Result<u64> {
    let Contents { tensors, metadata } = safetensors::load(path)?;
    if metadata.get("format").map(String::as_str) != Some(FORMAT) {
        return Err(Error::data(
            path,
            None,
            format!("no training state: expected format {FORMAT}, found {:?}", metadata.get("format")),
        ));
    }
    let step = metadata.get("step").map_or("", String::as_str);
    let (expected, found) = (metadata.get("crc32c").map_or("none", String::as_str), checksum(&tensors, step)?);
    if expected != found {
        return Err(Error::data(
            path,
            None,
            format!(
                "the training state is damaged: its checksum is {found}, expected {expected}; restore the file, or start a new run"
            ),
        ));
    }
    let step = step.parse().map_err(|_| Error::data(path, None, "the training state does not say its step"))?;
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
