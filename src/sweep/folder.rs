//! The folder of a sweep: what is where in it, and what is left to do.

use super::grid::{Job, Sweep};
use crate::checkpoint::write_changed;
use crate::config::eval::LinearConfig;
use crate::config::run::RunConfig;
use crate::config::sweep::{EvaluateConfig, ProbeConfig};
use crate::config::vision::VisionConfig;
use crate::error::{Error, Result};
use crate::lock::try_lock;
use crate::report::run::Evaluations;
use crate::run::RunFolder;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fs::File;
use std::path::{Path, PathBuf};

/// A sweep's folder and the names of what is in it.
#[derive(Debug, Clone)]
pub struct SweepFolder {
    root: PathBuf,
}

/// A part of a run that one command does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// `pretrain-vision`, with `--resume` where the run has begun.
    Pretrain {
        /// Whether it has.
        resume: bool,
    },
    /// `eval-linear`.
    Linear,
    /// `eval-knn`.
    Knn,
}

impl Task {
    /// The evaluations that a sweep asks for, in order.
    pub fn evaluations(evaluate: &EvaluateConfig) -> impl Iterator<Item = Task> {
        let all = [evaluate.linear.as_ref().map(|_| Task::Linear), evaluate.knn.as_ref().map(|_| Task::Knn)];
        all.into_iter().flatten()
    }

    /// The command's name.
    pub fn command(self) -> &'static str {
        match self {
            Task::Pretrain { .. } => "pretrain-vision",
            Task::Linear => "eval-linear",
            Task::Knn => "eval-knn",
        }
    }
}

impl SweepFolder {
    /// A folder, there or not.
    pub fn new(root: impl Into<PathBuf>) -> SweepFolder {
        SweepFolder { root: root.into() }
    }

    /// The folder itself.
    pub fn root(&self) -> &Path {
        &self.root
    }
    /// The sweep with its base and every default of its evaluations; a sweep file itself.
    pub fn sweep(&self) -> PathBuf {
        self.root.join("sweep.resolved.yaml")
    }
    /// The run folders.
    pub fn runs(&self) -> PathBuf {
        self.root.join("runs")
    }
    /// The configuration that a run is started with.
    pub fn config(&self, job: &Job) -> PathBuf {
        self.root.join("configs").join(format!("{}.yaml", job.name))
    }
    /// What the commands of a run said.
    pub fn log(&self, job: &Job) -> PathBuf {
        self.root.join("logs").join(format!("{}.log", job.name))
    }
    /// A run's folder.
    pub fn run(&self, job: &Job) -> PathBuf {
        self.runs().join(&job.name)
    }
    /// The figures of all runs.
    pub fn records(&self) -> PathBuf {
        self.root.join("runs.csv")
    }

    /// Refuses a folder that is another's, or another sweep's.
    ///
    /// # Errors
    /// A folder with something in it that no sweep has begun, and one whose sweep `sweep` does not continue, with the
    /// differences.
    pub fn check(&self, sweep: &Sweep) -> Result<()> {
        if !self.sweep().is_file() {
            let mut names = match std::fs::read_dir(&self.root) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
                entries => entries.map_err(Error::io(&self.root, "cannot use it as the sweep's folder"))?,
            };
            // A sweep that was killed at once leaves its lock, and one file half written.
            let is_foreign = |entry: std::io::Result<std::fs::DirEntry>| {
                entry.is_ok_and(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
            };
            if names.any(is_foreign) {
                return Err(Error::Config(format!(
                    "{}: the folder is not empty, and no sweep has begun in it; choose another with --out",
                    self.root.display()
                )));
            }
            return Ok(());
        }
        const SHOWN: usize = 10;
        let conflicts = Sweep::load(&self.sweep())?.conflicts(sweep)?;
        if conflicts.is_empty() {
            return Ok(());
        }
        let more = conflicts.len().saturating_sub(SHOWN);
        Err(Error::Config(format!(
            "{}: the sweep in this folder is another one: {}{}; arms, values, seeds and evaluations may be added, for other \
             changes choose another folder with --out",
            self.root.display(),
            conflicts[..conflicts.len() - more].join("; "),
            if more > 0 { format!("; and {more} more") } else { String::new() }
        )))
    }

    /// Makes the folder, or checks that the sweep in it is continued; the file that it gives is the lock.
    ///
    /// # Errors
    /// As [`SweepFolder::check`]; another process at work on the folder; what the system refuses.
    pub fn begin(&self, sweep: &Sweep) -> Result<File> {
        std::fs::create_dir_all(&self.root).map_err(Error::io(&self.root, "cannot make the sweep's folder"))?;
        let path = self.root.join(".lock");
        let file = File::create(&path).map_err(Error::io(&path, "cannot lock the sweep's folder"))?;
        if !try_lock(&file).map_err(Error::io(&path, "cannot lock the sweep's folder"))? {
            return Err(Error::Config(format!(
                "{}: another run-sweep is at work on this folder; wait for it or stop it, or choose another with --out",
                self.root.display()
            )));
        }
        self.check(sweep)?;
        for folder in ["runs", "configs", "logs"].map(|name| self.root.join(name)) {
            std::fs::create_dir_all(&folder).map_err(Error::io(&folder, "cannot make the sweep's folder"))?;
        }
        let yaml = |path: &Path, text: serde_yaml::Result<String>| {
            write_changed(path, text.map_err(|e| Error::Config(format!("{}: {e}", path.display())))?)
        };
        for job in sweep.jobs() {
            yaml(&self.config(&job), serde_yaml::to_string(&job.config))?;
        }
        yaml(&self.sweep(), serde_yaml::to_string(&sweep.config))?;
        Ok(file)
    }

    /// What is left to do of a run, in order; nothing where it is finished. Results of other weights or of another protocol
    /// count as missing.
    ///
    /// # Errors
    /// A run folder with another configuration than the sweep's; damaged files, named.
    pub fn left(&self, sweep: &Sweep, job: &Job) -> Result<Vec<Task>> {
        Ok(self.state(sweep, job)?.0)
    }

    /// As [`SweepFolder::left`], and the results that are there, of which those of a task that is left do not count.
    ///
    /// # Errors
    /// As there.
    pub fn state(&self, sweep: &Sweep, job: &Job) -> Result<(Vec<Task>, Evaluations)> {
        let evaluate = &sweep.config.evaluate;
        let first =
            |task| Ok((std::iter::once(task).chain(Task::evaluations(evaluate)).collect(), Evaluations::default()));
        let root = self.run(job);
        if !root.exists() {
            return first(Task::Pretrain { resume: false });
        }
        let Ok(folder) = RunFolder::open(&root) else { return first(Task::Pretrain { resume: true }) };
        let present: VisionConfig = crate::config::load(&folder.config(), &[])?;
        let changes = present.changes_of_the_outcome(&job.config)?;
        if !changes.is_empty() {
            return Err(Error::Config(format!(
                "{}: this run has another configuration than the sweep's: {}; move it away",
                root.display(),
                changes.join("; ")
            )));
        }
        if !folder.has_ended() {
            return first(Task::Pretrain { resume: true });
        }
        let results = Evaluations::read(&root)?;
        let mut left = Vec::new();
        if let Some(probe) = &evaluate.linear
            && !results.linear.as_ref().is_some_and(|result| is_of_probe(result, probe))
        {
            left.push(Task::Linear);
        }
        if let Some(knn) = &evaluate.knn
            && !results.knn.as_ref().is_some_and(|result| has_protocol(result, knn))
        {
            left.push(Task::Knn);
        }
        Ok((left, results))
    }
}

/// Whether a result was made by this protocol, with these seeds.
fn is_of_probe(result: &Map<String, Value>, config: &ProbeConfig) -> bool {
    has_protocol::<LinearConfig>(result, &config.probe)
        && result.get("seeds") == serde_json::to_value(&config.seeds).ok().as_ref()
}

/// Whether the protocol that a result records has every value of a configuration; it also describes what is fixed.
fn has_protocol<T: Serialize>(result: &Map<String, Value>, config: &T) -> bool {
    let Ok(Value::Object(wanted)) = serde_json::to_value(config) else { return false };
    let Some(found) = result.get("protocol") else { return false };
    wanted.iter().all(|(key, value)| found.get(key) == Some(value))
}
