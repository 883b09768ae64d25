//! Batch normalisation on a CPU with precise statistics.

use super::ffi::{RawTensor, check, raw};
use crate::error::Result;
use std::ffi::c_char;
use tch::Tensor;

// SAFETY: this signature is that of cpp/norm.cpp, compiled with this crate.
unsafe extern "C" {
    fn weince_batch_norm(
        x: RawTensor,
        weight: RawTensor,
        bias: RawTensor,
        running_mean: RawTensor,
        running_var: RawTensor,
        momentum: f64,
        eps: f64,
        out: *mut RawTensor,
    ) -> *mut c_char;
}

/// Batch normalisation in training of `x` [B, C, H, W] on a CPU, with a gradient; running statistics move. As LibTorch's own, but with channels last as
/// precise as otherwise. At least two values a channel.
///
/// # Errors
/// Whatever LibTorch reports.
pub fn batch_norm(
    x: &Tensor,
    (weight, bias): (&Tensor, &Tensor),
    (running_mean, running_var): (&Tensor, &Tensor),
    momentum: f64,
    eps: f64,
) -> Result<Tensor> {
    let mut out = std::ptr::null_mut();
    // SAFETY: the tensors are alive; `out` is a new tensor unless there is a message.
    let answer = unsafe {
        weince_batch_norm(raw(x), raw(weight), raw(bias), raw(running_mean), raw(running_var), momentum, eps, &mut out)
    };
    check(answer)?;
    // SAFETY: a tensor that the bridge made for us.
    Ok(unsafe { Tensor::from_ptr(out.cast()) })
}
