//! Which LibTorch this is, and what it makes of the processor.

use super::ffi::{check, take_string, weince_cpu_capability, weince_torch_version};
use crate::error::Result;
use std::ffi::{CStr, c_char};

/// The one LibTorch version that this crate is built and tested with.
pub const SUPPORTED_LIBTORCH: &str = "2.11.0";

/// The folder of the LibTorch that this crate was linked with.
pub const LIBTORCH_FOLDER: &str = env!("WEINCE_LIBTORCH");

/// The version in the headers that the bridge was compiled with, such as `2.11.0`.
pub fn libtorch_version() -> String {
    // SAFETY: a string literal of the bridge: NUL-terminated and never freed.
    unsafe { CStr::from_ptr(weince_torch_version()) }.to_string_lossy().into_owned()
}

/// The instruction set that LibTorch's CPU kernels use here, such as `AVX512`.
///
/// # Errors
/// Whatever LibTorch reports.
pub fn cpu_capability() -> Result<String> {
    let mut out: *mut c_char = std::ptr::null_mut();
    // SAFETY: `out` receives a string made by strdup for us.
    check(unsafe { weince_cpu_capability(&mut out) })?;
    // SAFETY: as above.
    Ok(unsafe { take_string(out) })
}
