//! The state of LibTorch's random generators.

use super::ffi::{RawTensor, check, weince_generator_state};
use crate::error::{Error, Result};
use tch::{Device, Tensor};

/// The generator's state as bytes on the CPU, as Python's `torch.get_rng_state()` or `torch.cuda.get_rng_state()` gives it.
///
/// # Errors
/// A device without generator, and whatever LibTorch reports.
pub fn generator_state(device: Device) -> Result<Tensor> {
    let cuda = match device {
        Device::Cpu => -1,
        Device::Cuda(index) => i32::try_from(index).unwrap_or(i32::MAX),
        other => return Err(Error::Input(format!("expected the CPU or a CUDA device, found {other:?}"))),
    };
    let mut out: RawTensor = std::ptr::null_mut();
    // SAFETY: `out` receives a new tensor that we own.
    check(unsafe { weince_generator_state(cuda, &mut out) })?;
    // SAFETY: on success `out` is a fresh torch::Tensor* that nobody else holds.
    Ok(unsafe { Tensor::from_ptr(out) })
}
