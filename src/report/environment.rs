//! `environment.json`: on what, with what and by which command a run was made.

use crate::error::{Error, Result};
use crate::machine::Cpu;
use crate::torch;
use serde::Serialize;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tch::Device;

/// What a run's figures depend on beside its configuration.
#[derive(Debug, Clone, Serialize)]
pub struct Environment {
    /// Version of this crate.
    pub weince: String,
    /// Version of LibTorch.
    pub libtorch: String,
    /// Name of the processor.
    pub cpu: String,
    /// The instruction set that LibTorch's CPU kernels use.
    pub cpu_capability: String,
    /// Threads that LibTorch uses inside an operation.
    pub threads: i32,
    /// Where the model is trained, with the device's name.
    pub device: String,
    /// When the run started: RFC 3339, UTC.
    pub started: String,
    /// The command line.
    pub command: Vec<String>,
}

impl Environment {
    /// That of this process.
    ///
    /// # Errors
    /// LibTorch does not tell which instruction set it uses.
    pub fn of_this_process(device: Device) -> Result<Environment> {
        let cpu = Cpu::of_this_machine()?;
        let device = match device {
            Device::Cuda(index) => match torch::cuda_status() {
                torch::CudaStatus::Available(found) if index < found.len() => {
                    format!("cuda:{index} {}", found[index].name)
                }
                _ => format!("cuda:{index}"),
            },
            Device::Cpu => "cpu".to_string(),
            other => format!("{other:?}"),
        };
        Ok(Environment {
            weince: env!("CARGO_PKG_VERSION").to_string(),
            libtorch: torch::libtorch_version(),
            cpu: cpu.model,
            cpu_capability: cpu.capability,
            threads: tch::get_num_threads(),
            device,
            started: rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())),
            command: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
        })
    }

    /// Writes it as JSON.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)
            .map_err(|e| Error::Input(format!("{}: the environment has no JSON form: {e}", path.display())))?;
        std::fs::write(path, json + "\n").map_err(Error::io(path, "cannot write the environment"))
    }
}

/// Seconds since 1970 as `2026-01-31T10:00:00Z`.
fn rfc3339(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_equal_those_of_date() {
        // `date -u -d @N +%FT%TZ`
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), expected);
        }
    }

    #[test]
    fn it_is_written_as_an_object() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("environment.json");
        Environment::of_this_process(Device::Cpu).unwrap().write(&path).unwrap();
        let read: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!((&read["weince"], &read["device"]), (&env!("CARGO_PKG_VERSION").into(), &"cpu".into()));
        assert!(read["command"].as_array().unwrap().len() == std::env::args().count());
    }
}
