//! The run folder: one folder holds all that a run was told, did and left.

use crate::checkpoint::{Series, write_bytes};
use crate::config::run::{RunConfig, command_of};
use crate::error::{Error, Result};
use crate::lock::try_lock;
use crate::machine::Cpu;
use crate::{device, torch};
use serde::Serialize;
use serde_json::{Map, Value};
use std::fs::File;
use std::path::{Path, PathBuf};
use tch::Device;

/// What a run leaves in `checkpoints/` at its end, and has not before.
const FINAL_WEIGHTS: [&str; 4] = ["encoder.safetensors", "encoder.pt", "projector.safetensors", "projector.pt"];

/// The weights of a text run in `model/`: of a BERT, or of a TorchScript module.
const MODELS: [&str; 2] = ["model.safetensors", "encoder.pt"];

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
        std::fs::create_dir_all(root).map_err(Error::io(root, "cannot make the run folder"))?;
        folder.touch_lock()?;
        folder.make_folders()?;
        Ok(folder)
    }

    fn make_folders(&self) -> Result<()> {
        for sub in [self.checkpoints(), self.tensorboard(), self.report(), self.results()] {
            std::fs::create_dir_all(&sub).map_err(Error::io(&sub, "cannot make the run folder"))?;
        }
        Ok(())
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

    /// As [`RunFolder::open`], also for a folder whose run was killed before it had written its configuration.
    ///
    /// # Errors
    /// A folder that no run has begun in.
    pub fn open_begun(root: &Path) -> Result<RunFolder> {
        let folder = RunFolder { root: root.to_path_buf() };
        let empty = std::fs::read_dir(root).is_ok_and(|mut entries| entries.next().is_none());
        if folder.lock_file().is_file() || empty { Ok(folder) } else { RunFolder::open(root) }
    }

    /// Repairs what a killed process left: folders not yet made, files half written. Only who holds the lock may do it.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn tidy(&self) -> Result<()> {
        self.make_folders()?;
        let folders = [self.root.clone(), self.checkpoints(), self.report(), self.results()];
        folders.iter().try_for_each(|folder| Series::remove_unfinished(folder))
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// The configuration with every default filled in.
    pub fn config(&self) -> PathBuf {
        self.root.join("config.resolved.yaml")
    }
    /// Reads that configuration.
    ///
    /// # Errors
    /// A file that cannot be read, is damaged, or is of the other command's run.
    pub fn read_config<C: RunConfig>(&self) -> Result<C> {
        let path = self.config();
        let tree: serde_yaml::Value = crate::config::load(&path, &[])?;
        let command = command_of(&tree);
        if command != C::COMMAND {
            return Err(Error::Config(format!(
                "{}: this is a run of {command}, expected one of {}; runs on images are evaluated by eval-linear and eval-knn, runs on \
                 text by eval-sts",
                self.root.display(),
                C::COMMAND
            )));
        }
        crate::config::from_tree(tree, &path.display().to_string())
    }
    /// The command whose run it is, `pretrain-vision` or `pretrain-text`.
    ///
    /// # Errors
    /// A configuration that cannot be read or is damaged.
    pub fn command(&self) -> Result<&'static str> {
        let tree: serde_yaml::Value = crate::config::load(&self.config(), &[])?;
        Ok(command_of(&tree))
    }
    /// Versions, processor, device, command.
    pub fn environment(&self) -> PathBuf {
        self.root.join("environment.json")
    }
    /// Image files that are no images and were left out, a line for each, where there are some.
    pub fn bad_files(&self) -> PathBuf {
        self.root.join("bad_files.txt")
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
    /// The states that `--resume` continues from.
    pub fn series(&self) -> Series {
        Series::new(self.checkpoints())
    }
    /// The state with the best evaluation.
    pub fn best(&self) -> PathBuf {
        self.checkpoints().join("best.pt")
    }
    /// The trained sentence encoder of a text run, as a folder that transformers opens.
    pub fn model(&self) -> PathBuf {
        self.root.join("model")
    }
    /// The same with the weights of the best state.
    pub fn best_model(&self) -> PathBuf {
        self.root.join("model-best")
    }
    /// The weights of a text run that has ended.
    pub fn model_weights(&self) -> Option<PathBuf> {
        MODELS.map(|name| self.model().join(name)).into_iter().find(|file| file.is_file())
    }
    /// What a text run found in its corpus.
    pub fn corpus(&self) -> PathBuf {
        self.root.join("corpus.json")
    }
    /// The trained encoder alone, with torchvision's names.
    pub fn encoder(&self) -> PathBuf {
        self.checkpoints().join("encoder.safetensors")
    }
    /// What evaluations read: the trained encoder, or, where the run has not ended, its last state.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn weights(&self) -> Result<Option<PathBuf>> {
        let encoder = self.encoder();
        if encoder.is_file() {
            return Ok(Some(encoder));
        }
        Ok(self.series().newest_first()?.into_iter().next())
    }
    /// Whether all is there that a run leaves at its end.
    pub fn has_ended(&self) -> bool {
        self.model_weights().is_some() || FINAL_WEIGHTS.iter().all(|name| self.checkpoints().join(name).is_file())
    }
    /// Removes what a run leaves at its end, for one that goes on: evaluations then take its newest state.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn remove_final_weights(&self) -> Result<()> {
        let refused = |path: &Path, e| Err(Error::io(path, "cannot remove the weights of the shorter run")(e));
        for path in FINAL_WEIGHTS.map(|name| self.checkpoints().join(name)) {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return refused(&path, e),
                _ => (),
            }
        }
        // Whole: a folder without weights would look like a model.
        for path in [self.model(), self.best_model()] {
            match std::fs::remove_dir_all(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return refused(&path, e),
                _ => (),
            }
        }
        Ok(())
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

    /// Makes this process the only one that trains in the folder, until the file that it gives is dropped.
    ///
    /// # Errors
    /// Another process that does, and what the system refuses.
    pub fn lock(&self) -> Result<File> {
        let path = self.lock_file();
        let file = self.touch_lock()?;
        if try_lock(&file).map_err(Error::io(&path, "cannot lock the run folder"))? {
            return Ok(file);
        }
        Err(Error::Config(format!(
            "{}: another process is training in this run folder; wait for it or stop it, or choose another with --run-dir",
            self.root.display()
        )))
    }

    fn lock_file(&self) -> PathBuf {
        self.root.join(".lock")
    }

    fn touch_lock(&self) -> Result<File> {
        let path = self.lock_file();
        File::create(&path).map_err(Error::io(&path, "cannot lock the run folder"))
    }

    /// Records where a run takes place: versions, processor, threads, device, number of processes, command line. What earlier starts recorded is
    /// kept in the list `earlier`.
    ///
    /// # Errors
    /// An earlier record that is damaged, and what the system refuses.
    pub fn write_environment(&self, device: Device, processes: usize) -> Result<()> {
        let cpu = Cpu::of_this_machine()?;
        let path = self.environment();
        let mut earlier = Vec::new();
        if path.is_file() {
            let bytes = std::fs::read(&path).map_err(Error::io(&path, "cannot read"))?;
            let mut last: Map<String, Value> = serde_json::from_slice(&bytes)
                .map_err(|e| Error::data(&path, None, format!("no JSON object ({e}); move it away to go on")))?;
            if let Some(Value::Array(before)) = last.remove("earlier") {
                earlier = before;
            }
            earlier.push(Value::Object(last));
        }
        let environment = Environment {
            weince: env!("CARGO_PKG_VERSION"),
            libtorch: torch::libtorch_version(),
            cpu: cpu.model,
            cpu_capability: cpu.capability,
            threads: tch::get_num_threads(),
            device: device::name(device),
            processes,
            started: humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string(),
            command: std::env::args_os().map(|a| a.to_string_lossy().into_owned()).collect(),
            earlier,
        };
        let text =
            serde_json::to_string_pretty(&environment).map_err(|e| Error::Input(format!("environment.json: {e}")))?;
        write_bytes(&path, text + "\n")
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
    processes: usize,
    started: String,
    command: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    earlier: Vec<Value>,
}
