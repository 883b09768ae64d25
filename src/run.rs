//! The run folder: one folder holds all that a run was told, did and left.

use crate::checkpoint::write_bytes;
use crate::error::{Error, Result};
use crate::machine::Cpu;
use crate::{device, torch};
use serde::Serialize;
use std::path::{Path, PathBuf};
use tch::Device;

/// A run's folder and the names of what is in it.
#[derive(Debug, Clone)]
pub struct RunFolder {
    root: PathBuf,
}

impl RunFolder {
    /// Makes a new run folder; a folder that has something in it is refused.
    ///
    /// # Errors
    /// A folder that is not empty, a file of that name, or one that cannot be written.
    pub fn create(root: &Path) -> Result<RunFolder> {
        RunFolder::refuse_existing(root)?;
        let folder = RunFolder { root: root.to_path_buf() };
        for sub in [folder.checkpoints(), folder.tensorboard(), folder.report(), folder.results()] {
            std::fs::create_dir_all(&sub).map_err(Error::io(&sub, "cannot make the run folder"))?;
        }
        Ok(folder)
    }

    /// The check of [`RunFolder::create`] alone, for before the long work.
    ///
    /// # Errors
    /// As there.
    pub fn refuse_existing(root: &Path) -> Result<()> {
        match std::fs::read_dir(root).map(|mut entries| entries.next().is_some()) {
            Ok(true) => Err(Error::Config(format!(
                "{}: the run folder exists and is not empty; continue that run with --resume, or choose another with --run-dir",
                root.display()
            ))),
            Ok(false) => Ok(()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(Error::io(root, "cannot use it as run folder")(e)),
        }
    }

    /// An existing run folder.
    ///
    /// # Errors
    /// A folder without `config.resolved.yaml`.
    pub fn open(root: &Path) -> Result<RunFolder> {
        let folder = RunFolder { root: root.to_path_buf() };
        if folder.config().is_file() {
            return Ok(folder);
        }
        Err(Error::Config(format!(
            "{}: no run folder: it has no config.resolved.yaml; name the folder that pretraining wrote (its --run-dir)",
            root.display()
        )))
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// The configuration with every default filled in.
    pub fn config(&self) -> PathBuf {
        self.root.join("config.resolved.yaml")
    }
    /// Versions, processor, device, command.
    pub fn environment(&self) -> PathBuf {
        self.root.join("environment.json")
    }
    /// Measurements, one JSON object a line.
    pub fn metrics(&self) -> PathBuf {
        self.root.join("metrics.jsonl")
    }
    /// TensorBoard's event files.
    pub fn tensorboard(&self) -> PathBuf {
        self.root.join("tb")
    }
    /// Weights and training state.
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }
    /// The state that `--resume` continues from.
    pub fn state(&self) -> PathBuf {
        self.checkpoints().join("last.safetensors")
    }
    /// The trained encoder alone, with torchvision's names.
    pub fn encoder(&self) -> PathBuf {
        self.checkpoints().join("encoder.safetensors")
    }
    /// Pictures.
    pub fn report(&self) -> PathBuf {
        self.root.join("report")
    }
    /// The encoder's features of a part of the images, kept from one evaluation to the next.
    pub fn features(&self, split: &str) -> PathBuf {
        self.results().join(format!("features_{split}.safetensors"))
    }
    /// What the evaluations found.
    pub fn results(&self) -> PathBuf {
        self.root.join("results")
    }

    /// Records where a run takes place: versions, processor, threads, device, command line.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn write_environment(&self, device: Device) -> Result<()> {
        let cpu = Cpu::of_this_machine()?;
        let environment = Environment {
            weince: env!("CARGO_PKG_VERSION"),
            libtorch: torch::libtorch_version(),
            cpu: cpu.model,
            cpu_capability: cpu.capability,
            threads: tch::get_num_threads(),
            device: device::name(device),
            started: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            command: std::env::args().collect(),
        };
        let text =
            serde_json::to_string_pretty(&environment).map_err(|e| Error::Input(format!("environment.json: {e}")))?;
        write_bytes(&self.environment(), text + "\n")
    }
}

#[derive(Serialize)]
struct Environment {
    weince: &'static str,
    libtorch: String,
    cpu: String,
    cpu_capability: String,
    threads: i32,
    device: String,
    started: String,
    command: Vec<String>,
}
