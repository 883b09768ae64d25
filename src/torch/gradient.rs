//! Gradients of whole parameter lists, and a scalar whose gradient is already known, as a node of LibTorch's graph.

use super::ffi::{RawTensor, check, raw, raws, weince_clear_gradients, weince_known_gradient, weince_total_norm};
use crate::error::{Error, Result};
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

/// The 2-norm over all elements of `tensors`, 0-dim, on their device; nothing waits for the device.
///
/// # Errors
/// An empty list, and whatever LibTorch reports, such as tensors on several devices.
pub fn total_norm(tensors: &[Tensor]) -> Result<Tensor> {
    if tensors.is_empty() {
        return Err(Error::Input("total_norm: expected at least one tensor, found none".into()));
    }
    let list = raws(tensors);
    let mut out: RawTensor = std::ptr::null_mut();
    // SAFETY: `list` holds as many live tensors as its length says; `out` receives a new tensor that we own.
    check(unsafe { weince_total_norm(list.as_ptr(), list.len(), &mut out) })?;
    // SAFETY: on success `out` is a fresh torch::Tensor* that nobody else holds.
    Ok(unsafe { Tensor::from_ptr(out) })
}

/// Drops the gradients of `params`, as `zero_grad(set_to_none=True)`.
///
/// # Errors
/// Whatever LibTorch reports.
pub fn clear_gradients(params: &[Tensor]) -> Result<()> {
    let list = raws(params);
    // SAFETY: `list` holds as many live tensors as its length says; only their gradient fields are written.
    check(unsafe { weince_clear_gradients(list.as_ptr(), list.len()) })
}
