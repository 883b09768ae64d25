//! From a configuration to a finished run folder, whatever is trained on.

use super::recorder::Recorder;
use super::step::{Learner, StepOptions, Stepper};
use super::task::Task;
use super::{run, state};
use crate::checkpoint::{torch_file, write_bytes};
use crate::config::run::RunConfig;
use crate::data::{Loader, Sampler, Source};
use crate::error::{Error, Result};
use crate::loss::Loss;
use crate::optim::{Optimizer, Schedule};
use crate::run::RunFolder;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tch::Device;

/// A run that is ready to start: data read, model built, nothing written yet.
pub struct Plan<T: Task> {
    /// The configuration.
    pub config: T::Config,
    /// Where the model is.
    pub device: Device,
    /// The learning rate by step.
    pub schedule: Schedule,
    /// Steps in one pass over the samples.
    pub steps_per_epoch: u64,
    pub(super) stepper: Stepper<T::Model>,
    pub(super) best: Option<Best>,
    pub(super) task: T,
    pub(super) code_sha256: Option<String>,
}

/// The best evaluation so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Best {
    pub value: f64,
    pub step: u64,
}

/// What a finished run left.
#[derive(Debug)]
pub struct Summary {
    /// Updates in all.
    pub steps: u64,
    /// The loss of the last step.
    pub loss: Option<f64>,
    /// Samples a second since the (re)start.
    pub samples_per_second: f64,
}

/// The batch of a task's loader.
type BatchOf<T> = <<T as Task>::Source as Source>::Batch;

impl<T: Task> Plan<T> {
    /// Checks the configuration, reads the data and builds model, loss and optimizer.
    ///
    /// # Errors
    /// Everything that keeps the run from starting.
    pub fn new(config: &T::Config, device: Device) -> Result<Plan<T>> {
        config.validate()?;
        let task = T::open(config)?;
        let common = config.common();
        let sampler = Sampler::new(task.samples(), common.batch_size, common.seed)?;
        let steps_per_epoch = sampler.steps_per_epoch();
        tch::manual_seed(common.seed as i64);
        let model = task.model(config, device)?;
        let optimizer = Optimizer::sparing(common.optim, &model.parameters(), &T::spared(&model))?;
        let loss = Loss::new(common.loss, T::layout(config))?;
        let total = common.epochs * steps_per_epoch;
        let schedule = Schedule::new(common.schedule, common.optim.lr(), steps_per_epoch, total)?;
        let options = StepOptions {
            precision: common.precision,
            tf32: common.tf32,
            clip_norm: common.clip_norm,
            chunk: common.chunk,
        };
        let stepper = Stepper::new(model, optimizer, loss, options, device)?;
        let code_sha256 = T::code_sha256(config)?;
        Ok(Plan { config: config.clone(), device, schedule, steps_per_epoch, stepper, best: None, task, code_sha256 })
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> u64 {
        self.config.common().epochs * self.steps_per_epoch
    }

    /// The batches from `step` updates on, as the run sees them.
    ///
    /// # Errors
    /// What cannot be read, and threads that cannot be started.
    pub fn batches(&self, step: u64) -> Result<Loader<T::Source>> {
        let common = self.config.common();
        let sampler = Sampler::new(self.task.samples(), common.batch_size, common.seed)?;
        let (source, threads) = self.task.source(&self.config)?;
        Loader::of(source, sampler, sampler.position(step), common.epochs, threads)
    }

    /// The batch of one step, counted from 0: the very one that the run computes with.
    ///
    /// # Errors
    /// A step beyond the run's end.
    pub fn batch(&self, step: u64) -> Result<BatchOf<T>> {
        let none = || Error::Input(format!("step {step} is not one of the run's {} steps", self.total_steps()));
        self.batches(step)?.next().ok_or_else(none)?
    }

    /// The seed of LibTorch's generator for a step, counted from 0.
    pub(super) fn step_seed(&self, step: u64) -> i64 {
        // An odd constant (2^64 / golden ratio) keeps neighbouring seeds' steps apart.
        (self.config.common().seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step) as i64
    }

    pub(super) fn parameter_count(&self) -> usize {
        self.stepper.model.parameters().iter().map(|(_, t)| t.numel()).sum()
    }

    /// The configuration with every default filled in, as YAML.
    pub(super) fn resolved_config(&self) -> Result<String> {
        serde_yaml::to_string(&self.config).map_err(|e| Error::Config(format!("config.resolved.yaml: {e}")))
    }

    /// Whether the state after `step` updates is to be saved.
    pub(super) fn checkpoint_due(&self, step: u64) -> bool {
        let config = self.config.common().checkpoint;
        let by_steps = config.every_steps.is_some_and(|n| step.is_multiple_of(n));
        let by_epochs = step.is_multiple_of(self.steps_per_epoch.saturating_mul(config.every_epochs));
        by_steps || by_epochs || step == self.total_steps()
    }

    /// Evaluates where that is due, and tells. Gives whether this is the best state so far.
    pub(super) fn after(&mut self, step: u64, recorder: &mut Recorder) -> Result<bool> {
        let epoch_ends = step.is_multiple_of(self.steps_per_epoch);
        let measured = T::evaluate(self, step)?;
        if !epoch_ends && measured.is_none() {
            return Ok(false);
        }
        let epochs = self.config.common().epochs;
        let mut line = if epoch_ends {
            format!("epoch {}/{epochs}", step / self.steps_per_epoch)
        } else {
            format!("step {step}/{}", self.total_steps())
        };
        if let Some(loss) = recorder.last_loss() {
            line += &format!("  loss {loss:.4}");
        }
        let mut is_best = false;
        if let Some((name, value)) = measured {
            recorder.evaluation(step, (step - 1) / self.steps_per_epoch, name, value)?;
            line += &format!("  {} {value:.4}", name.replace('_', " ").replace("knn", "kNN"));
            is_best =
                self.config.common().checkpoint.best_by.is_some() && self.best.is_none_or(|best| value > best.value);
            if is_best {
                self.best = Some(Best { value, step });
            }
        }
        recorder.say(&format!("{line}  {:.0} {}/s", recorder.samples_per_second(), T::UNIT));
        Ok(is_best)
    }

    /// Runs to the end, or continues a run from its state with `resume`, and writes the trained weights.
    ///
    /// # Errors
    /// A run folder that is there already (or, resuming, is not), a changed configuration, non-finite values, an
    /// interruption by SIGINT or SIGTERM after the state is saved, and what the system refuses.
    pub fn pretrain(mut self, run_dir: &Path, resume: bool) -> Result<Summary> {
        self.config.check_device(self.device)?;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
                .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
                .map_err(Error::io(run_dir, "cannot watch for interruption"))?;
        }
        let (folder, step);
        // Held to the end: no other process trains in the folder meanwhile.
        let _lock;
        if resume {
            folder = RunFolder::open_begun(run_dir)?;
            _lock = folder.lock()?;
            folder.tidy()?;
            step = self.reopen(&folder)?;
        } else {
            let said = T::load_weights(&self)?;
            folder = RunFolder::create(run_dir)?;
            _lock = folder.lock()?;
            said.iter().for_each(|line| eprintln!("{line}"));
            step = self.fill(&folder)?;
        }
        let read_every = if self.device.is_cuda() { self.config.common().log_every } else { 1 };
        let mut recorder = Recorder::open(
            &folder,
            step,
            self.total_steps(),
            (self.config.common().batch_size, T::UNIT),
            self.config.common().log_every,
            read_every,
        )?;
        let outcome = run(&mut self, &folder, step, &stop, &mut recorder);
        recorder.finish();
        let steps = outcome?;
        T::write_weights(&mut self, &folder)?;
        Ok(Summary { steps, loss: recorder.last_loss(), samples_per_second: recorder.samples_per_second() })
    }

    /// Writes what a new run's folder has from the start; gives its step.
    fn fill(&self, folder: &RunFolder) -> Result<u64> {
        self.write_config(folder)?;
        folder.write_environment(self.device)?;
        T::write_notes(self, folder)?;
        T::write_pictures(self, folder)?;
        self.save(folder, 0)?;
        Ok(0)
    }

    /// Saves the state after `step` updates.
    pub(super) fn save(&self, folder: &RunFolder, step: u64) -> Result<()> {
        folder.series().save(step, &state::capture(self, step)?, self.config.common().checkpoint.keep)
    }

    /// Saves the state after `step` updates as the best one.
    pub(super) fn save_best(&self, folder: &RunFolder, step: u64) -> Result<()> {
        torch_file::save(&folder.best(), &state::capture(self, step)?)
    }

    /// Takes up the state of an earlier run, if it has one, and gives its step; writes nothing.
    pub(super) fn take_up(&mut self, folder: &RunFolder) -> Result<Option<u64>> {
        if folder.config().is_file() {
            let before: T::Config = folder.read_config()?;
            self.refuse_changes(&before, folder.root())?;
        }
        let step = state::restore_newest(&folder.series(), self)?;
        if let Some(step) = step.filter(|step| *step > self.total_steps()) {
            return Err(Error::Config(format!(
                "train.epochs: {} are {} steps, and this run has already done {step}; expected at least {} epochs",
                self.config.common().epochs,
                self.total_steps(),
                step.div_ceil(self.steps_per_epoch)
            )));
        }
        Ok(step)
    }

    /// Goes on with an earlier run, and gives its step.
    fn reopen(&mut self, folder: &RunFolder) -> Result<u64> {
        let Some(step) = self.take_up(folder)? else {
            if folder.metrics().exists() {
                return Err(Error::Config(format!(
                    "{}: the run has measurements but no checkpoint in {}; restore one there, or start a new run",
                    folder.root().display(),
                    folder.checkpoints().display()
                )));
            }
            eprintln!("note: the run was stopped before its first checkpoint, and begins again");
            T::load_weights(self)?.iter().for_each(|line| eprintln!("{line}"));
            return self.fill(folder);
        };
        folder.write_environment(self.device)?;
        self.write_config(folder)?;
        T::write_notes(self, folder)?;
        if step < self.total_steps() {
            folder.remove_final_weights()?;
        }
        Ok(step)
    }

    /// Refuses what a run that began with `before` may not change; `origin` is where that is from.
    pub(super) fn refuse_changes(&self, before: &T::Config, origin: &Path) -> Result<()> {
        let changes = before.forbidden_changes(&self.config)?;
        if changes.is_empty() {
            return Ok(());
        }
        Err(Error::Config(format!(
            "{}: this run cannot be resumed with another configuration: {}; use the old values, or start a new run",
            origin.display(),
            changes.join("; ")
        )))
    }

    /// Refuses samples other than those that a run began with: its order is of them. `count` and `list_sha256` are theirs, where they
    /// are known; `origin` is where that is from.
    pub(super) fn refuse_other_samples(
        &self,
        count: Option<u64>,
        list_sha256: Option<&str>,
        origin: &Path,
    ) -> Result<()> {
        let now = self.task.samples() as u64;
        let what = match (count, list_sha256) {
            (Some(count), _) if count != now => format!("{count} then, {now} now"),
            (_, Some(list)) if list != self.task.list_sha256() => format!("{now}, but {}", T::OTHERS),
            _ => return Ok(()),
        };
        Err(Error::Config(format!(
            "{}: the {} in {} are no longer those that this run began with: {what}; bring those back, or start a new run",
            origin.display(),
            T::UNIT,
            T::location(&self.config)
        )))
    }

    fn write_config(&self, folder: &RunFolder) -> Result<()> {
        write_bytes(&folder.config(), self.resolved_config()?)
    }
}
