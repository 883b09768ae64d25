//! What `doctor` finds out: versions, processor, memory, CUDA, and whether a training step really runs.

mod data;

pub use data::{Bad, DataFindings, Part, examine_data, load_parts, preview};

use crate::error::{Error, Result};
use crate::machine::{Cpu, Memory};
use crate::torch::{self, AdamArgs, CudaStatus, LIBTORCH_FOLDER, SUPPORTED_LIBTORCH, cuda_status, fused_adam};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tch::{Device, Kind, Reduction, Tensor};

/// The version of tch that Cargo.toml pins.
const TCH: &str = "0.24.0";

/// Everything that was found.
#[derive(Debug, Serialize)]
pub struct Findings {
    /// Version of this crate.
    pub weince: &'static str,
    /// Version of tch.
    pub tch: &'static str,
    /// LibTorch's versions.
    pub libtorch: LibTorch,
    /// The processor.
    pub cpu: Cpu,
    /// Threads.
    pub threads: Threads,
    /// Memory of the machine, if the system tells.
    pub memory: Option<Memory>,
    /// CUDA devices, or why there are none.
    pub cuda: Cuda,
    /// One tiny training step on the CPU, and one on the first CUDA device if there is one.
    pub training_steps: Vec<TrainingStep>,
}

/// LibTorch's versions; all three should agree.
#[derive(Debug, Serialize)]
pub struct LibTorch {
    /// The one that the crate is made for.
    pub supported: &'static str,
    /// That of the headers at compile time.
    pub compiled: String,
    /// That of the libraries in use, if their folder tells.
    pub loaded: Option<String>,
    /// The folder of the libraries in use.
    pub folder: PathBuf,
}

/// Threads.
#[derive(Debug, Serialize)]
pub struct Threads {
    /// How many LibTorch uses inside an operation.
    pub libtorch: i32,
    /// How many this process may run at once.
    pub available: usize,
}

/// CUDA.
#[derive(Debug, Serialize)]
pub struct Cuda {
    /// The number of devices that LibTorch can use.
    pub devices: usize,
    /// The devices, or the reason why there are none.
    pub status: String,
}

/// A training step.
#[derive(Debug, Serialize)]
pub struct TrainingStep {
    /// Where it ran.
    pub device: String,
    /// Loss before and after the step, if it ran.
    pub losses: Option<(f64, f64)>,
    /// Its time, the start of the device included.
    pub milliseconds: f64,
    /// Why it did not run.
    pub error: Option<String>,
}

/// Examines the machine and runs the steps.
///
/// # Errors
/// LibTorch does not tell the processor's capability; what else goes wrong is part of the findings.
pub fn examine() -> Result<Findings> {
    let folder = loaded_folder().unwrap_or_else(|| PathBuf::from(LIBTORCH_FOLDER));
    let status = cuda_status();
    let mut devices = vec![Device::Cpu];
    let mut count = 0;
    if let CudaStatus::Available(found) = &status {
        count = found.len();
        devices.push(Device::Cuda(0));
    }
    Ok(Findings {
        weince: env!("CARGO_PKG_VERSION"),
        tch: TCH,
        libtorch: LibTorch {
            supported: SUPPORTED_LIBTORCH,
            compiled: torch::libtorch_version(),
            loaded: folder_version(&folder),
            folder,
        },
        cpu: Cpu::of_this_machine()?,
        threads: Threads {
            libtorch: tch::get_num_threads(),
            available: std::thread::available_parallelism().map_or(1, usize::from),
        },
        memory: Memory::of_this_machine(),
        cuda: Cuda { devices: count, status: status.to_string() },
        training_steps: devices.into_iter().map(try_step).collect(),
    })
}

impl Findings {
    /// What is not as it should be, though it may not keep training from running.
    pub fn warnings(&self) -> Vec<String> {
        let LibTorch { supported, compiled, loaded, folder } = &self.libtorch;
        let mut warnings = Vec::new();
        if compiled != supported {
            warnings.push(format!(
                "compiled with LibTorch {compiled}, but {supported} is the supported version; run scripts/setup.sh, unset \
                 LIBTORCH if it is set, and rebuild"
            ));
        }
        match loaded {
            // A wheel's version says with which CUDA it was built: 2.11.0+cu130.
            Some(version) if version.split('+').next() != Some(compiled) => warnings.push(format!(
                "compiled with LibTorch {compiled}, but {version} is loaded from {}; check LD_LIBRARY_PATH, or rebuild",
                folder.display()
            )),
            None => warnings.push(format!("{} does not tell the version of its LibTorch", folder.display())),
            Some(_) => {}
        }
        warnings
    }

    /// Why training cannot run on some device, if so.
    pub fn failure(&self) -> Option<String> {
        let failed = self.training_steps.iter().filter_map(|s| Some(format!("{}: {}", s.device, s.error.as_ref()?)));
        let failed: Vec<String> = failed.collect();
        (!failed.is_empty()).then(|| format!("no training step can run on {}", failed.join("; ")))
    }

    /// The findings for a terminal.
    pub fn to_text(&self) -> String {
        let gib = |bytes: u64| bytes as f64 / (1u64 << 30) as f64;
        let LibTorch { supported, compiled, loaded, folder } = &self.libtorch;
        let loaded = loaded.as_deref().unwrap_or("unknown");
        let mut lines = vec![
            ("weince", self.weince.to_string()),
            ("LibTorch", format!("{loaded} in {}", folder.display())),
            ("", format!("compiled with {compiled}, made for {supported}")),
            ("tch", self.tch.to_string()),
            ("CPU", self.cpu.model.clone()),
            ("", format!("LibTorch uses {}; {}", self.cpu.capability, self.cpu.features.join(" "))),
            ("threads", format!("{} in LibTorch, {} available", self.threads.libtorch, self.threads.available)),
        ];
        lines.push(match &self.memory {
            Some(m) => ("memory", format!("{:.1} GiB, {:.1} GiB available", gib(m.total), gib(m.available))),
            None => ("memory", "unknown".to_string()),
        });
        lines.push(("CUDA", self.cuda.status.clone()));
        for step in &self.training_steps {
            let outcome = match (&step.losses, &step.error) {
                (Some((before, after)), None) => {
                    format!(
                        "a step runs on {}: loss {before:.4}, then {after:.4} ({:.0} ms)",
                        step.device, step.milliseconds
                    )
                }
                (_, error) => format!("no step on {}: {}", step.device, error.as_deref().unwrap_or("unknown reason")),
            };
            lines.push(("training", outcome));
        }
        lines.into_iter().map(|(name, text)| format!("{name:<9} {text}\n")).collect()
    }
}

fn try_step(device: Device) -> TrainingStep {
    let name = match device {
        Device::Cuda(index) => format!("cuda:{index}"),
        _ => "cpu".to_string(),
    };
    let start = Instant::now();
    let outcome = training_step(device);
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    match outcome {
        Ok(losses) => TrainingStep { device: name, losses: Some(losses), milliseconds, error: None },
        Err(error) => {
            // LibTorch's first line is the reason; advice and a stack follow it.
            let reason = error.to_string().lines().next().unwrap_or_default().to_string();
            TrainingStep { device: name, losses: None, milliseconds, error: Some(reason) }
        }
    }
}

/// One step of a tiny encoder with a contrastive loss, through the kernels that training uses; the loss before and after.
fn training_step(device: Device) -> Result<(f64, f64)> {
    let float = (Kind::Float, device);
    // The same numbers everywhere, and LibTorch's generator stays untouched.
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let mut numbers = |shape: &[i64], scale: f32| -> Result<Tensor> {
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|_: i64| scale * random.random_range(-1.0..1.0f32)).collect();
        Ok(Tensor::f_from_slice(&values)?.f_reshape(shape)?.f_to_device(device)?)
    };
    let images = numbers(&[8, 3, 12, 12], 1.0)?;
    let other = images.f_add(&numbers(&[8, 3, 12, 12], 0.3)?)?;
    let params =
        [numbers(&[8, 3, 3, 3], 0.3)?.f_set_requires_grad(true)?, numbers(&[16, 8], 0.5)?.f_set_requires_grad(true)?];
    let targets = Tensor::f_arange(8, (Kind::Int64, device))?;
    let loss = || -> Result<Tensor> {
        let embed = |x: &Tensor| -> Result<Tensor> {
            let hidden = x.f_conv2d(&params[0], None::<&Tensor>, 1, 1, 1, 1)?.f_relu()?;
            let pooled = hidden.f_mean_dim([2i64, 3].as_slice(), false, Kind::Float)?;
            let z = pooled.f_linear(&params[1], None::<&Tensor>)?;
            let norm = z.f_norm_scalaropt_dim(2, [1], true)?;
            Ok(z.f_div(&norm.f_clamp_min(1e-8)?)?)
        };
        let logits = embed(&images)?.f_matmul(&embed(&other)?.f_transpose(0, 1)?)?.f_div_scalar(0.5)?;
        Ok(logits.f_cross_entropy_loss(&targets, None::<&Tensor>, Reduction::Mean, -100, 0.0)?)
    };
    let before = loss()?;
    before.f_backward()?;
    let grads: Vec<Tensor> = params.iter().map(Tensor::f_grad).collect::<std::result::Result<_, _>>()?;
    let zeros = || params.iter().map(Tensor::f_zeros_like).collect::<std::result::Result<Vec<_>, _>>();
    let steps = [Tensor::f_zeros([0; 0], float)?, Tensor::f_zeros([0; 0], float)?];
    let args = AdamArgs { decoupled: false, lr: 1e-2, beta1: 0.9, beta2: 0.999, weight_decay: 0.0, eps: 1e-8 };
    fused_adam(args, &params, &grads, &zeros()?, &zeros()?, &steps, None, None)?;
    let losses = (f64::try_from(&before)?, f64::try_from(&loss()?)?);
    if losses.0.is_finite() && losses.1 < losses.0 {
        return Ok(losses);
    }
    Err(Error::NonFinite(format!("the loss went from {} to {}; a step must lower it", losses.0, losses.1)))
}

/// The folder whose LibTorch this process has loaded, which LD_LIBRARY_PATH may have changed.
fn loaded_folder() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let library = maps
        .lines()
        .find_map(|line| line.find('/').map(|at| &line[at..]).filter(|p| p.ends_with("/libtorch_cpu.so")))?;
    Some(Path::new(library).parent()?.parent()?.to_path_buf())
}

/// The version that a LibTorch folder (`build-version`) or a wheel's (`version.py`) gives.
fn folder_version(folder: &Path) -> Option<String> {
    if let Ok(text) = std::fs::read_to_string(folder.join("build-version")) {
        return Some(text.trim().to_string());
    }
    let text = std::fs::read_to_string(folder.join("version.py")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("__version__ = "))?;
    Some(line.trim_matches(['\'', '"']).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tch_is_the_pinned_one() {
        assert!(include_str!("../../Cargo.toml").contains(&format!("tch = \"={TCH}\"")));
    }

    #[test]
    fn a_step_runs_and_versions_agree() {
        let findings = examine().unwrap();
        assert_eq!(findings.failure(), None);
        assert_eq!(findings.warnings(), Vec::<String>::new());
        assert!(findings.to_text().contains("a step runs on cpu"));
    }

    #[test]
    fn version_mismatches_are_told_with_both_versions() {
        let mut findings = examine().unwrap();
        findings.libtorch.compiled = "2.10.0".into();
        let warnings = findings.warnings();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].contains("2.10.0") && warnings[0].contains(SUPPORTED_LIBTORCH));
        assert!(warnings[1].contains("2.10.0") && warnings[1].contains("is loaded from"));
    }

    #[test]
    fn a_failed_step_is_the_failure() {
        let mut findings = examine().unwrap();
        findings.training_steps[0].error = Some("no memory".into());
        assert_eq!(findings.failure().unwrap(), "no training step can run on cpu: no memory");
    }

    #[test]
    fn versions_of_both_kinds_of_folder_are_read() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(folder_version(folder.path()), None);
        std::fs::write(folder.path().join("version.py"), "x = 1\n__version__ = '2.11.0+cu130'\n").unwrap();
        assert_eq!(folder_version(folder.path()).unwrap(), "2.11.0+cu130");
        std::fs::write(folder.path().join("build-version"), "2.11.0+cpu\n").unwrap();
        assert_eq!(folder_version(folder.path()).unwrap(), "2.11.0+cpu");
    }
}
