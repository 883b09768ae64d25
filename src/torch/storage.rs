//! Tensors whose elements come from somewhere else, without a copy between.

use crate::error::Result;
use tch::{Device, Kind, Tensor};

/// A new one-dimensional uint8 tensor of `length` bytes on the CPU, which `fill` writes. It gets them as zeros.
///
/// # Errors
/// What `fill` reports, and LibTorch where there is no memory.
pub fn filled(length: usize, fill: impl FnOnce(&mut [u8]) -> Result<()>) -> Result<Tensor> {
    let tensor = Tensor::f_zeros([length as i64], (Kind::Uint8, Device::Cpu))?;
    if length > 0 {
        // SAFETY: the tensor was made above with `length` contiguous bytes, all of them initialised, and nobody else knows it.
        fill(unsafe { std::slice::from_raw_parts_mut(tensor.data_ptr().cast::<u8>(), length) })?;
    }
    Ok(tensor)
}
