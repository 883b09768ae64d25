//! The bridge's C declarations and the two helpers that every call needs.

use crate::error::{Error, Result};
use std::ffi::{CStr, c_char, c_int, c_void};
use tch::Tensor;
use torch_sys::C_tensor;

pub(super) type RawTensor = *mut C_tensor;

// SAFETY: these signatures are those of cpp/bridge.cpp, compiled with this crate.
unsafe extern "C" {
    fn free(p: *mut c_void);
    pub(super) fn weince_known_gradient(
        a: RawTensor,
        b: RawTensor,
        value: RawTensor,
        grad_a: RawTensor,
        grad_b: RawTensor,
        out: *mut RawTensor,
    ) -> *mut c_char;
    pub(super) fn weince_fused_adam(
        decoupled: c_int,
        params: *const RawTensor,
        grads: *const RawTensor,
        exp_avgs: *const RawTensor,
        exp_avg_sqs: *const RawTensor,
        steps: *const RawTensor,
        n: usize,
        lr: f64,
        beta1: f64,
        beta2: f64,
        weight_decay: f64,
        eps: f64,
        grad_scale: RawTensor,
        found_inf: RawTensor,
    ) -> *mut c_char;
    pub(super) fn weince_fused_sgd(
        params: *const RawTensor,
        grads: *const RawTensor,
        momenta: *const RawTensor,
        n: usize,
        weight_decay: f64,
        momentum: f64,
        lr: f64,
        dampening: f64,
        nesterov: c_int,
        first_step: c_int,
        grad_scale: RawTensor,
        found_inf: RawTensor,
    ) -> *mut c_char;
    pub(super) fn weince_total_norm(tensors: *const RawTensor, n: usize, out: *mut RawTensor) -> *mut c_char;
    pub(super) fn weince_clear_gradients(params: *const RawTensor, n: usize) -> *mut c_char;
    pub(super) fn weince_autocast_enter(device: c_int, dtype: c_int, before: *mut AutocastState) -> *mut c_char;
    pub(super) fn weince_autocast_leave(device: c_int, before: *const AutocastState) -> *mut c_char;
    pub(super) fn weince_unscale(
        grads: *const RawTensor,
        n: usize,
        inv_scale: RawTensor,
        found_inf: RawTensor,
    ) -> *mut c_char;
    pub(super) fn weince_allow_tf32(allow: c_int) -> *mut c_char;
    pub(super) fn weince_generator_state(cuda: c_int, out: *mut RawTensor) -> *mut c_char;
    pub(super) fn weince_torch_version() -> *const c_char;
    pub(super) fn weince_cpu_capability(out: *mut *mut c_char) -> *mut c_char;
}

/// What autocast was before a region of it; the layout is that of cpp/bridge.cpp.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AutocastState {
    enabled: c_int,
    dtype: c_int,
    cache: c_int,
}

/// Takes over a malloc'ed C string.
///
/// # Safety
/// `p` is a NUL-terminated string from the bridge's `strdup`, and nobody else frees it.
pub(super) unsafe fn take_string(p: *mut c_char) -> String {
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned();
    // SAFETY: from strdup, freed once.
    unsafe { free(p.cast()) };
    text
}

/// Turns the bridge's answer (null or a message) into a result.
pub(super) fn check(answer: *mut c_char) -> Result<()> {
    if answer.is_null() {
        return Ok(());
    }
    // SAFETY: a non-null answer is a message that the bridge made with strdup for us.
    Err(Error::Bridge(unsafe { take_string(answer) }))
}

pub(super) fn raw(t: &Tensor) -> RawTensor {
    t.as_ptr().cast_mut().cast()
}

pub(super) fn raws(tensors: &[Tensor]) -> Vec<RawTensor> {
    tensors.iter().map(raw).collect()
}

pub(super) fn raw_or_null(t: Option<&Tensor>) -> RawTensor {
    t.map_or(std::ptr::null_mut(), raw)
}
