//! Whether there is a CUDA device, and if not, the reason and what to do about it.

use super::LIBTORCH_FOLDER;
use super::ffi::{check, take_string};
use std::ffi::{c_char, c_int};
use std::fmt;
use std::path::Path;

// SAFETY: these signatures are those of cpp/cuda.cpp, compiled with this crate.
unsafe extern "C" {
    fn weince_cuda_runtime(status: *mut c_int, devices: *mut c_int) -> c_int;
    fn weince_cuda_error(status: c_int) -> *mut c_char;
    fn weince_cuda_device(
        index: c_int,
        name: *mut *mut c_char,
        major: *mut c_int,
        minor: *mut c_int,
        memory: *mut usize,
    ) -> *mut c_char;
}

/// A CUDA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaDevice {
    /// The driver's name for it.
    pub name: String,
    /// Compute capability: major and minor.
    pub capability: (i32, i32),
    /// Memory in bytes.
    pub memory: u64,
}

/// What there is of CUDA.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CudaStatus {
    /// LibTorch sees these devices, in its order.
    Available(Vec<CudaDevice>),
    /// The LibTorch in use was built without CUDA.
    CpuOnlyLibTorch,
    /// LibTorch has CUDA, but this binary was linked without it.
    NotLinked,
    /// There is no NVIDIA driver on this machine.
    NoDriver,
    /// Everything is there, and yet no device can be used: the CUDA runtime's words.
    Unusable(String),
}

impl fmt::Display for CudaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CudaStatus::Available(devices) => {
                for (index, device) in devices.iter().enumerate() {
                    let separator = if index > 0 { "; " } else { "" };
                    let ((major, minor), gib) = (device.capability, device.memory as f64 / (1u64 << 30) as f64);
                    write!(f, "{separator}cuda:{index} {} (sm_{major}{minor}, {gib:.1} GiB)", device.name)?;
                }
                Ok(())
            }
            CudaStatus::CpuOnlyLibTorch => write!(
                f,
                "none: the LibTorch in {LIBTORCH_FOLDER} was built for the CPU only; install one with CUDA and rebuild"
            ),
            CudaStatus::NotLinked => write!(
                f,
                "none: LibTorch has CUDA, but this binary was linked without libtorch_cuda; rebuild it with this \
                 project's build.rs and check with ldd"
            ),
            CudaStatus::NoDriver => write!(
                f,
                "none: this machine has no NVIDIA driver (no libcuda.so.1); install one that supports the CUDA of LibTorch"
            ),
            CudaStatus::Unusable(reason) => write!(f, "none: the CUDA runtime says: {reason}"),
        }
    }
}

/// Finds out whether CUDA can be used.
pub fn cuda_status() -> CudaStatus {
    let (mut status, mut devices) = (0, 0);
    // SAFETY: both pointers are to live integers.
    if unsafe { weince_cuda_runtime(&mut status, &mut devices) } == 0 {
        let has_cuda = Path::new(LIBTORCH_FOLDER).join("lib/libtorch_cuda.so").exists();
        return if has_cuda { CudaStatus::NotLinked } else { CudaStatus::CpuOnlyLibTorch };
    }
    const NO_DEVICE: c_int = 100;
    const INSUFFICIENT_DRIVER: c_int = 35;
    if status != 0 {
        // Without any driver the runtime reports one that is too old, which would mislead.
        if matches!(status, INSUFFICIENT_DRIVER | NO_DEVICE) && !Path::new("/proc/driver/nvidia/version").exists() {
            return CudaStatus::NoDriver;
        }
        // SAFETY: the text is made by strdup for us.
        let reason = unsafe { take_string(weince_cuda_error(status)) };
        let chosen = std::env::var("CUDA_VISIBLE_DEVICES").map(|v| format!(" (CUDA_VISIBLE_DEVICES is `{v}`)"));
        return CudaStatus::Unusable(reason + &chosen.unwrap_or_default());
    }
    // LibTorch's own count: the devices that `Device::Cuda` can name.
    let count = tch::Cuda::device_count();
    if count == 0 {
        return CudaStatus::Unusable(format!("{devices} devices, of which LibTorch can use none"));
    }
    match (0..count as c_int).map(describe).collect() {
        Ok(devices) => CudaStatus::Available(devices),
        Err(error) => CudaStatus::Unusable(error.to_string()),
    }
}

fn describe(index: c_int) -> crate::error::Result<CudaDevice> {
    let (mut name, mut major, mut minor, mut memory) = (std::ptr::null_mut(), 0, 0, 0);
    // SAFETY: pointers to live variables; `name` receives a string made by strdup for us.
    check(unsafe { weince_cuda_device(index, &mut name, &mut major, &mut minor, &mut memory) })?;
    // SAFETY: as above, set on success.
    let name = unsafe { take_string(name) };
    Ok(CudaDevice { name, capability: (major, minor), memory: memory as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_agrees_with_libtorch_and_says_what_to_do() {
        let status = cuda_status();
        assert_eq!(matches!(status, CudaStatus::Available(_)), tch::Cuda::is_available(), "{status}");
        assert_ne!(status, CudaStatus::NotLinked, "build.rs links libtorch_cuda where there is one");
        assert!(!status.to_string().is_empty());
    }

    #[test]
    fn devices_are_listed_as_libtorch_numbers_them() {
        let device = |name: &str| CudaDevice { name: name.into(), capability: (9, 0), memory: 150 << 30 };
        let text = CudaStatus::Available(vec![device("A"), device("B")]).to_string();
        assert_eq!(text, "cuda:0 A (sm_90, 150.0 GiB); cuda:1 B (sm_90, 150.0 GiB)");
    }
}
