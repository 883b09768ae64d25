//! Time and memory of work on a device, by the device's own account.

use super::ffi::check;
use crate::error::Result;
use std::ffi::{c_char, c_int};
use std::time::Instant;
use tch::Device;

/// A `c10::Event`.
enum RawEvent {}

// SAFETY: these signatures are those of cpp/bridge.cpp, compiled with this crate.
unsafe extern "C" {
    fn weince_event_record(cuda: c_int, out: *mut *mut RawEvent) -> *mut c_char;
    fn weince_event_elapsed(from: *mut RawEvent, to: *mut RawEvent, milliseconds: *mut f64) -> *mut c_char;
    fn weince_event_free(event: *mut RawEvent);
    fn weince_allocated_bytes() -> usize;
    fn weince_device_memory(cuda: c_int, now: *mut i64, peak: *mut i64) -> *mut c_char;
}

/// A moment in the work of a device. On CUDA it is an event on the current stream, and nothing waits until the time is read.
pub struct Mark {
    host: Instant,
    event: *mut RawEvent,
}

impl Mark {
    /// Now, after all work that the device has been given.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn now(device: Device) -> Result<Mark> {
        let mut event = std::ptr::null_mut();
        if let Device::Cuda(index) = device {
            // SAFETY: `event` receives a new event that we own.
            check(unsafe { weince_event_record(index as c_int, &mut event) })?;
        }
        Ok(Mark { host: Instant::now(), event })
    }

    /// Seconds from this moment to a later one of the same device; waits for the device.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn seconds_to(&self, later: &Mark) -> Result<f64> {
        if self.event.is_null() || later.event.is_null() {
            return Ok((later.host - self.host).as_secs_f64());
        }
        let mut milliseconds = 0.0;
        // SAFETY: both events live as long as their marks.
        check(unsafe { weince_event_elapsed(self.event, later.event, &mut milliseconds) })?;
        Ok(milliseconds / 1e3)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        // SAFETY: null, or an event of ours that is freed once.
        unsafe { weince_event_free(self.event) }
    }
}

/// Bytes that tensors take on a CUDA device, now and at most so far; none for the CPU, where LibTorch does not count.
///
/// # Errors
/// Whatever LibTorch reports.
pub fn device_memory(device: Device) -> Result<Option<(u64, u64)>> {
    let Device::Cuda(index) = device else { return Ok(None) };
    let (mut now, mut peak) = (0, 0);
    // SAFETY: both pointers are to live integers.
    check(unsafe { weince_device_memory(index as c_int, &mut now, &mut peak) })?;
    Ok(Some((now as u64, peak as u64)))
}

/// Bytes of the processor's memory that this process has in use, LibTorch's tensors included; none where the C library does not tell.
pub fn allocated_bytes() -> Option<usize> {
    // SAFETY: it takes nothing, and gives a number.
    Some(unsafe { weince_allocated_bytes() }).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_of_the_cpu_are_moments() {
        let first = Mark::now(Device::Cpu).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
        let second = Mark::now(Device::Cpu).unwrap();
        let seconds = first.seconds_to(&second).unwrap();
        assert!((0.005..5.0).contains(&seconds), "{seconds}");
        assert_eq!(device_memory(Device::Cpu).unwrap(), None);
    }

    #[test]
    fn what_tensors_take_is_counted_whatever_was_freed_before() {
        let mebibytes = |n: i64| tch::Tensor::ones([n << 18], (tch::Kind::Float, Device::Cpu));
        drop(mebibytes(40));
        let Some(before) = allocated_bytes() else { return };
        let kept = mebibytes(30);
        let grown = allocated_bytes().unwrap().abs_diff(before) >> 20;
        // Other tests run beside this one.
        assert!((25..100).contains(&grown), "{grown}");
        drop(kept);
    }
}
