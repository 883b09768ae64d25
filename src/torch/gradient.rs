//! A scalar whose gradient is already known, as a node of LibTorch's graph.

use super::ffi::{RawTensor, check, raw, weince_known_gradient};
use crate::error::Result;
use tch::Tensor;

/// `value` as a function of `a` and `b` whose gradients are `grad_a` and `grad_b`: `backward` on the result adds them,
/// scaled by the gradient that arrives, to what `a` and `b` depend on.
///
/// The gradient itself is a constant: differentiating twice gives an error from LibTorch.
///
/// # Shapes
/// `grad_a` as `a`, `grad_b` as `b`, `value` 0-dim.
///
/// # Errors
/// Whatever LibTorch reports.
pub fn known_gradient(a: &Tensor, b: &Tensor, value: &Tensor, grad_a: &Tensor, grad_b: &Tensor) -> Result<Tensor> {
    let mut out: RawTensor = std::ptr::null_mut();
    // SAFETY: the five tensors live through the call; `out` receives a new tensor that we own.
    check(unsafe { weince_known_gradient(raw(a), raw(b), raw(value), raw(grad_a), raw(grad_b), &mut out) })?;
    // SAFETY: on success `out` is a fresh torch::Tensor* that nobody else holds.
    Ok(unsafe { Tensor::from_ptr(out) })
}
