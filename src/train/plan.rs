//! From a configuration to a finished run folder, whatever is trained on.

use super::recorder::Recorder;
use super::step::{Learner, StepOptions, Stepper};
use super::task::Task;
use super::{run, state};
use crate::checkpoint::{torch_file, write_bytes};
use crate::config::run::{Common, RunConfig};
use crate::data::{Loader, Sampler, Source};
use crate::dist::{Group, share, stopped};
use crate::error::{Error, Result};
use crate::loss::Loss;
use crate::optim::{Optimizer, Schedule};
use crate::run::RunFolder;
use crate::torch::with_bytes;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tch::{Device, Kind, Tensor};

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
    pub(super) group: Group,
}

/// Why a run ends before its time.
pub(super) enum Ending {
    /// A signal.
    Stop,
    /// Another process cannot go on.
    Failure(Error),
}

/// The best evaluation so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Best {
    pub value: f64,
    pub step: u64,
}

/// A run's folder, and what the run begins with.
struct Begun {
    folder: RunFolder,
    from: Option<TakenUp>,
    _lock: File,
}

/// The state that a run goes on from.
pub(super) struct TakenUp {
    pub path: PathBuf,
    /// Updates behind it.
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
        Plan::among(config, device, Group::alone())
    }

    /// The same for one of several processes, each of which takes its share of every batch.
    ///
    /// # Errors
    /// As there, here or in another process, and processes that were started with different things.
    pub fn among(config: &T::Config, device: Device, group: Group) -> Result<Plan<T>> {
        let plan = Plan::of_rank(config, device, group.clone());
        all_can(&group, &plan)?;
        let plan = plan?;
        plan.refuse_differences()?;
        Ok(plan)
    }

    fn of_rank(config: &T::Config, device: Device, group: Group) -> Result<Plan<T>> {
        config.validate()?;
        let task = T::open(config)?;
        let common = config.common();
        let sampler = Sampler::new(task.samples(), common.batch_size, common.seed)?;
        refuse_shares(&common, &group)?;
        let steps_per_epoch = sampler.steps_per_epoch();
        tch::manual_seed(common.seed as i64);
        let model = task.model(config, device, &group)?;
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
        let stepper = Stepper::new(model, optimizer, loss, options, device)?.among(&group);
        let code_sha256 = T::code_sha256(config)?;
        let config = config.clone();
        Ok(Plan { config, device, schedule, steps_per_epoch, stepper, best: None, task, code_sha256, group })
    }

    /// Refuses to train with processes that have other data, another model or another configuration. Where the data lie may differ.
    fn refuse_differences(&self) -> Result<()> {
        if self.group.is_alone() {
            return Ok(());
        }
        let mut config = serde_json::to_value(&self.config)
            .map_err(|e| Error::Config(format!("the configuration cannot be written: {e}")))?;
        config.as_object_mut().map(|keys| keys.remove("data"));
        let here = [
            ("configuration", config.to_string()),
            (T::UNIT, format!("{} with the hash {}", self.task.samples(), self.task.list_sha256())),
            ("model's files", self.code_sha256.clone().unwrap_or_default()),
        ];
        for (what, text) in here {
            let texts = self.group.texts(&text)?;
            if let Some(rank) = texts.iter().position(|other| *other != texts[0]) {
                return Err(Error::Config(format!(
                    "rank {rank} has another {what} than rank 0: {}, expected {}; start all processes with the same command on the same data",
                    shortened(&texts[rank], &texts[0]),
                    shortened(&texts[0], &texts[rank])
                )));
            }
        }
        Ok(())
    }

    /// Whether this or another process cannot make the next step: all of them leave the loop together. `failure` is that of this one.
    pub(super) fn ending(&self, stop: bool, failure: Option<&Error>) -> Result<Option<Ending>> {
        if !self.group.any(stop || failure.is_some())? {
            return Ok(None);
        }
        let failed = self.group.first_said(failure.map(Error::to_string))?;
        let of_rank = |(rank, text): (usize, String)| Ending::Failure(Error::Peer(stopped(rank, &text)));
        Ok(Some(failed.map_or(Ending::Stop, of_rank)))
    }

    /// What a run says that was stopped after so many steps.
    pub(super) fn interrupted(&self, step: u64, folder: Option<&RunFolder>) -> Error {
        let place = folder.map_or("the run's folder".to_string(), |folder| folder.root().display().to_string());
        Error::Interrupted(format!(
            "interrupted after step {step} of {}; the state is saved: continue with --resume --run-dir {place}",
            self.total_steps(),
        ))
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
        let share = share(common.batch_size, self.group.rank(), self.group.size());
        let sampler = Sampler::new(self.task.samples(), common.batch_size, common.seed)?.sharing(share)?;
        let (source, threads) = self.task.source(&self.config)?;
        // The processes of a machine share its threads.
        let threads = if threads == 0 { 0 } else { (threads / self.group.local_size()).max(1) };
        Loader::of(source, sampler, sampler.position(step), common.epochs, threads)
    }

    /// The batch of one step, counted from 0, or this process's share of it: the very one that the run computes with.
    ///
    /// # Errors
    /// A step beyond the run's end.
    pub fn batch(&self, step: u64) -> Result<BatchOf<T>> {
        let none = || Error::Input(format!("step {step} is not one of the run's {} steps", self.total_steps()));
        self.batches(step)?.next().ok_or_else(none)?
    }

    /// The seed of LibTorch's generator for a step, counted from 0; each rank has its own.
    pub(super) fn step_seed(&self, step: u64) -> i64 {
        // Odd constants (2^64 and 2^32 / golden ratio) keep neighbouring seeds' and ranks' steps apart.
        let rank = (self.group.rank() as u32).wrapping_mul(0x9e37_79b1);
        (self.config.common().seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step ^ u64::from(rank)) as i64
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
        // One process evaluates, and has the best state; the others wait for it in the next step.
        if !self.group.is_first() {
            return Ok(false);
        }
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
        // The first process alone has the folder. The lock is held to the end: no other process trains in the folder meanwhile.
        let begun = self.group.is_first().then(|| self.begin(run_dir, resume)).transpose();
        all_can(&self.group, &begun)?;
        let begun = begun?;
        let step = self.share_state(begun.as_ref())?;
        let folder = begun.as_ref().map(|begun| &begun.folder);
        let read_every = if self.device.is_cuda() { self.config.common().log_every } else { 1 };
        let mut recorder = Recorder::open(
            folder,
            step,
            self.total_steps(),
            (self.config.common().batch_size, T::UNIT),
            self.config.common().log_every,
            read_every,
        )?;
        let outcome = run(&mut self, folder, step, &stop, &mut recorder);
        recorder.finish();
        let steps = outcome?;
        if let Some(folder) = folder {
            T::write_weights(&mut self, folder)?;
        }
        Ok(Summary { steps, loss: recorder.last_loss(), samples_per_second: recorder.samples_per_second() })
    }

    /// Makes a new run's folder, or takes up the run in it.
    fn begin(&mut self, run_dir: &Path, resume: bool) -> Result<Begun> {
        if resume {
            let folder = RunFolder::open_begun(run_dir)?;
            let lock = folder.lock()?;
            folder.tidy()?;
            let from = self.reopen(&folder)?;
            return Ok(Begun { folder, from, _lock: lock });
        }
        let said = T::load_weights(self)?;
        let folder = RunFolder::create(run_dir)?;
        let lock = folder.lock()?;
        said.iter().for_each(|line| eprintln!("{line}"));
        self.fill(&folder)?;
        Ok(Begun { folder, from: None, _lock: lock })
    }

    /// Gives all processes the state that the first one begins with, and its step.
    fn share_state(&mut self, begun: Option<&Begun>) -> Result<u64> {
        let from = begun.and_then(|begun| begun.from.as_ref());
        let step = from.map_or(0, |from| from.step);
        if self.group.is_alone() {
            return Ok(step);
        }
        // The state of an earlier run goes around as the file that it is.
        let bytes = match from {
            Some(from) => std::fs::read(&from.path).map_err(Error::io(&from.path, "cannot read"))?,
            None => Vec::new(),
        };
        let texts =
            self.group.texts(&if begun.is_some() { format!("{step} {}", bytes.len()) } else { String::new() })?;
        let damaged = || Error::Peer(format!("rank 0 announced its state as `{}`", texts[0]));
        let (step, length) = texts[0].split_once(' ').ok_or_else(damaged)?;
        let (step, length): (u64, i64) = (step.parse().map_err(|_| damaged())?, length.parse().map_err(|_| damaged())?);
        if length > 0 {
            let mut file = [if self.group.is_first() {
                Tensor::f_from_slice(&bytes)?
            } else {
                Tensor::f_zeros([length], (Kind::Uint8, Device::Cpu))?
            }];
            self.group.broadcast(&mut file)?;
            if !self.group.is_first() {
                let [file] = file;
                let copy =
                    tempfile::NamedTempFile::new().map_err(Error::io(std::env::temp_dir(), "cannot make a file"))?;
                with_bytes(&file, |bytes| {
                    std::fs::write(copy.path(), bytes).map_err(Error::io(copy.path(), "cannot write"))
                })?;
                state::restore(copy.path(), self)?;
            }
        }
        // Weights that were read from files, and statistics.
        self.group.broadcast(&mut T::tensors(&self.stepper.model))?;
        Ok(step)
    }

    /// Writes what a new run's folder has from the start.
    fn fill(&self, folder: &RunFolder) -> Result<()> {
        self.write_config(folder)?;
        folder.write_environment(self.device, self.group.size())?;
        T::write_notes(self, folder)?;
        T::write_pictures(self, folder)?;
        self.save(Some(folder), 0)
    }

    /// Saves the state after `step` updates, where this process has the folder.
    pub(super) fn save(&self, folder: Option<&RunFolder>, step: u64) -> Result<()> {
        let Some(folder) = folder else { return Ok(()) };
        folder.series().save(step, &state::capture(self, step)?, self.config.common().checkpoint.keep)
    }

    /// Saves the state after `step` updates as the best one, where this process has the folder.
    pub(super) fn save_best(&self, folder: Option<&RunFolder>, step: u64) -> Result<()> {
        let Some(folder) = folder else { return Ok(()) };
        torch_file::save(&folder.best(), &state::capture(self, step)?)
    }

    /// Takes up the state of an earlier run, if it has one; writes nothing.
    pub(super) fn take_up(&mut self, folder: &RunFolder) -> Result<Option<TakenUp>> {
        if folder.config().is_file() {
            let before: T::Config = folder.read_config()?;
            self.refuse_changes(&before, folder.root())?;
        }
        let from = state::restore_newest(&folder.series(), self)?;
        if let Some(step) = from.as_ref().map(|from| from.step).filter(|step| *step > self.total_steps()) {
            return Err(Error::Config(format!(
                "train.epochs: {} are {} steps, and this run has already done {step}; expected at least {} epochs",
                self.config.common().epochs,
                self.total_steps(),
                step.div_ceil(self.steps_per_epoch)
            )));
        }
        Ok(from)
    }

    /// Goes on with an earlier run; gives the state that it goes on from, if there is one.
    fn reopen(&mut self, folder: &RunFolder) -> Result<Option<TakenUp>> {
        let Some(from) = self.take_up(folder)? else {
            if folder.metrics().exists() {
                return Err(Error::Config(format!(
                    "{}: the run has measurements but no checkpoint in {}; restore one there, or start a new run",
                    folder.root().display(),
                    folder.checkpoints().display()
                )));
            }
            eprintln!("note: the run was stopped before its first checkpoint, and begins again");
            T::load_weights(self)?.iter().for_each(|line| eprintln!("{line}"));
            self.fill(folder)?;
            return Ok(None);
        };
        folder.write_environment(self.device, self.group.size())?;
        self.write_config(folder)?;
        T::write_notes(self, folder)?;
        if from.step < self.total_steps() {
            folder.remove_final_weights()?;
        }
        Ok(Some(from))
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

/// Waits for all processes to come here; an error where another one brings one. What there is here is known: it is returned later.
fn all_can<X>(group: &Group, here: &Result<X>) -> Result<()> {
    match group.first_said(here.as_ref().err().map(Error::to_string))? {
        Some((rank, text)) if here.is_ok() => Err(Error::Peer(stopped(rank, &text))),
        _ => Ok(()),
    }
}

/// Refuses batches that cannot be shared among the processes.
fn refuse_shares(common: &Common, group: &Group) -> Result<()> {
    let (batch, size) = (common.batch_size, group.size());
    if batch < size {
        return Err(Error::Config(format!(
            "train.batch_size: {batch} samples cannot be shared among {size} processes; expected at least one for each, or fewer processes"
        )));
    }
    let Some(chunk) = common.chunk.map(|chunk| chunk as usize) else { return Ok(()) };
    let (most, least) = (share(batch, 0, size).len(), share(batch, size - 1, size).len());
    if most.div_ceil(chunk) != least.div_ceil(chunk) {
        return Err(Error::Config(format!(
            "train.chunk: {chunk} makes {} chunks of the {most} samples of rank 0 and {} of the {least} of rank {}; expected as many for \
             all processes, which a batch that is a multiple of {size} gives",
            most.div_ceil(chunk),
            least.div_ceil(chunk),
            size - 1
        )));
    }
    Ok(())
}

/// A text from where it differs from another one, as much as a message can hold.
fn shortened(text: &str, other: &str) -> String {
    let same = text.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let part: String = text.chars().skip(same.saturating_sub(30)).take(80).collect();
    format!("`{part}`")
}
