//! The bytes of tensors, without a copy between.

use crate::error::{Error, Result};
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

/// Gives the elements of a tensor as bytes, row by row, to `take`; copied only where the tensor is not so in memory already, on
/// the CPU.
///
/// # Errors
/// What `take` reports, and LibTorch.
pub fn with_bytes<T>(tensor: &Tensor, take: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
    let tensor = tensor.detach().f_to_device(Device::Cpu)?.f_contiguous()?;
    let length = tensor.numel() * tensor.f_kind()?.elt_size_in_bytes();
    if length == 0 {
        return take(&[]);
    }
    // SAFETY: a contiguous tensor on the CPU has that many initialised bytes from its data pointer on, `tensor` keeps them alive
    // through the call, and nothing writes to them meanwhile: this thread is here, and LibTorch starts no work on the CPU that
    // outlives the call that started it.
    take(unsafe { std::slice::from_raw_parts(tensor.data_ptr().cast::<u8>(), length) })
}

/// Gives the elements of a float32 tensor, row by row, to `take`; copied only where they are not so in memory already, on the CPU.
///
/// # Errors
/// A tensor of another type, what `take` reports, and LibTorch.
pub fn with_floats<T>(tensor: &Tensor, take: impl FnOnce(&[f32]) -> Result<T>) -> Result<T> {
    let kind = tensor.f_kind()?;
    if kind != Kind::Float {
        return Err(Error::Input(format!("elements are {kind:?}; expected float32")));
    }
    with_bytes(tensor, |bytes| {
        // SAFETY: every pattern of bytes is a float32, and the part that is aligned to one is taken alone.
        let (before, floats, after) = unsafe { bytes.align_to::<f32>() };
        if !before.is_empty() || !after.is_empty() {
            return Err(Error::Input("a float32 tensor whose elements are not aligned".into()));
        }
        take(floats)
    })
}

/// The bytes of a tensor's numbers as a tensor on its device, [bytes] uint8; a view where the tensor is contiguous.
pub(crate) fn as_bytes(t: &Tensor) -> Result<Tensor> {
    let flat = t.detach().f_contiguous()?.f_view([-1])?;
    Ok(if flat.numel() == 0 { flat.f_to_kind(Kind::Uint8)? } else { flat.f_view_dtype(Kind::Uint8)? })
}
