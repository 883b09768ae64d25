//! What machine this is, as the system's files and LibTorch tell.

use crate::error::Result;
use crate::torch;
use serde::Serialize;

/// The processor.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// Its name.
    pub model: String,
    /// The instruction set that LibTorch's kernels use.
    pub capability: String,
    /// Those of its vector features that matter for training.
    pub features: Vec<String>,
}

impl Cpu {
    /// The processor of this machine.
    ///
    /// # Errors
    /// LibTorch does not tell which instruction set it uses.
    pub fn of_this_machine() -> Result<Cpu> {
        let (model, features) = parse_cpuinfo(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
        Ok(Cpu { model, capability: torch::cpu_capability()?, features })
    }
}

/// Memory.
///
/// # Units
/// Bytes.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All of it.
    pub total: u64,
    /// What can be had without swapping.
    pub available: u64,
}

impl Memory {
    /// The memory of this machine, if the system tells.
    pub fn of_this_machine() -> Option<Memory> {
        parse_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)
    }
}

/// Model and features of the first processor; x86 and Arm name the fields differently.
fn parse_cpuinfo(text: &str) -> (String, Vec<String>) {
    const FEATURES: [&str; 11] =
        ["avx", "avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16"];
    let field = |names: &[&str]| {
        text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            names.contains(&name.trim()).then(|| value.trim())
        })
    };
    let flags: Vec<&str> = field(&["flags", "Features"]).unwrap_or_default().split_whitespace().collect();
    let features = FEATURES.iter().filter(|f| flags.contains(f)).map(ToString::to_string).collect();
    (field(&["model name", "Model", "CPU part"]).unwrap_or("unknown").to_string(), features)
}

fn parse_meminfo(text: &str) -> Option<Memory> {
    let field = |name: &str| {
        let kib = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib << 10)
    };
    Some(Memory { total: field("MemTotal")?, available: field("MemAvailable")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_files_are_read() {
        let x86 = "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t\t: fpu avx avx2 fma\n\nprocessor\t: 1\n";
        assert_eq!(parse_cpuinfo(x86), ("Some CPU @ 2.0GHz".into(), vec!["avx".into(), "avx2".into(), "fma".into()]));
        let arm = "processor : 0\nFeatures : fp asimd bf16\nCPU part : 0xd40\n";
        assert_eq!(parse_cpuinfo(arm), ("0xd40".into(), vec!["asimd".into(), "bf16".into()]));
        assert_eq!(parse_cpuinfo(""), ("unknown".into(), vec![]));
        let memory = parse_meminfo("MemTotal:       1024 kB\nMemFree: 1 kB\nMemAvailable:   512 kB\n");
        assert_eq!(memory, Some(Memory { total: 1 << 20, available: 1 << 19 }));
        assert_eq!(parse_meminfo("MemTotal: x kB"), None);
    }
}
