//! Vision pretraining: from a configuration to a finished run folder.

use super::recorder::Recorder;
use super::step::{StepOptions, Stepper};
use super::{run, state};
use crate::checkpoint::{Value, safetensors, torch_file, write_bytes};
use crate::config::augment::NormalizeConfig;
use crate::config::eval::KnnConfig;
use crate::config::vision::VisionConfig;
use crate::data::{self, Batch, ImageSet, Loader, Sampler, Split};
use crate::error::{Error, Result};
use crate::eval::{knn, run::features_of};
use crate::loss::{Layout, Loss};
use crate::model::Model;
use crate::optim::{Optimizer, Schedule};
use crate::report::contact_sheet::{View, contact_sheet};
use crate::run::RunFolder;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tch::{Device, Kind, Tensor};

/// A run that is ready to start: images read, model built, nothing written yet.
pub struct Plan {
    /// The configuration.
    pub config: VisionConfig,
    /// Where the model is.
    pub device: Device,
    /// The learning rate by step.
    pub schedule: Schedule,
    /// Steps in one pass over the images.
    pub steps_per_epoch: u64,
    pub(super) stepper: Stepper,
    pub(super) best: Option<Best>,
    images: Arc<ImageSet>,
    monitor: Option<Monitor>,
}

/// The labelled images of the evaluation while training.
struct Monitor {
    train: Arc<ImageSet>,
    test: ImageSet,
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
    /// Images a second since the (re)start.
    pub images_per_second: f64,
}

impl Plan {
    /// Checks the configuration, reads the images and builds model, loss and optimizer.
    ///
    /// # Errors
    /// Everything that keeps the run from starting.
    pub fn new(config: &VisionConfig, device: Device) -> Result<Plan> {
        config.validate()?;
        let images = Arc::new(data::load(&config.data, Split::Pretrain)?);
        let sampler = Sampler::new(images.len(), config.train.batch_size, config.seed)?;
        let steps_per_epoch = sampler.steps_per_epoch();
        let monitor = if config.eval.knn_every > 0 {
            let apart = config.data.pretrains_apart();
            let train = if apart { Arc::new(data::load(&config.data, Split::Train)?) } else { images.clone() };
            Some(Monitor { train, test: data::load(&config.data, Split::Test)? })
        } else {
            None
        };
        tch::manual_seed(config.seed as i64);
        let model = Model::new(&config.model, config.augment.view_size(images.shape())?)?;
        model.to_device(device)?;
        if config.channels_last && device.is_cuda() {
            model.encoder.store().channels_last()?;
        }
        let optimizer = Optimizer::sparing(&config.optim, &model.parameters(), &model.no_weight_decay())?;
        let loss = Loss::new(&config.loss, Layout::TwoView)?;
        let schedule =
            Schedule::new(&config.schedule, config.optim.lr(), steps_per_epoch, config.train.epochs * steps_per_epoch)?;
        let options = StepOptions {
            views: config.train.views,
            precision: config.precision,
            tf32: config.tf32,
            channels_last: config.channels_last,
        };
        let stepper = Stepper::new(model, optimizer, loss, options, device)?;
        Ok(Plan { config: config.clone(), device, schedule, steps_per_epoch, stepper, best: None, images, monitor })
    }

    /// Steps of the whole run.
    pub fn total_steps(&self) -> u64 {
        self.config.train.epochs * self.steps_per_epoch
    }

    /// The batches from `step` updates on.
    pub(super) fn loader(&self, step: u64) -> Result<Loader> {
        let sampler = Sampler::new(self.images.len(), self.config.train.batch_size, self.config.seed)?;
        let start = sampler.position(step);
        let (augment, epochs) = (&self.config.augment, self.config.train.epochs);
        Loader::new(self.images.clone(), augment, sampler, start, epochs, self.config.data.threads())
    }

    /// The batch of one step, counted from 0: the very views that the run computes with.
    ///
    /// # Errors
    /// A step beyond the run's end.
    pub fn batch(&self, step: u64) -> Result<Batch> {
        let none = || Error::Input(format!("step {step} is not one of the run's {} steps", self.total_steps()));
        self.loader(step)?.next().ok_or_else(none)?
    }

    /// The seed of LibTorch's generator for a step, counted from 0.
    pub(super) fn step_seed(&self, step: u64) -> i64 {
        // An odd constant (2^64 / golden ratio) keeps neighbouring seeds' steps apart.
        (self.config.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ step) as i64
    }

    pub(super) fn parameter_count(&self) -> usize {
        self.stepper.model.parameters().iter().map(|(_, t)| t.numel()).sum()
    }

    pub(super) fn image_count(&self) -> usize {
        self.images.len()
    }

    /// What tells the images' list from others.
    pub(super) fn list_sha256(&self) -> &str {
        &self.images.list_sha256
    }

    /// Memory of the images, in bytes.
    pub(super) fn image_bytes(&self) -> usize {
        let monitor = self.monitor.as_ref().map_or(0, |m| {
            let train = if Arc::ptr_eq(&m.train, &self.images) { 0 } else { m.train.memory_bytes() };
            train + m.test.memory_bytes()
        });
        self.images.memory_bytes() + monitor
    }

    /// The configuration with every default filled in, as YAML.
    pub(super) fn resolved_config(&self) -> Result<String> {
        serde_yaml::to_string(&self.config).map_err(|e| Error::Config(format!("config.resolved.yaml: {e}")))
    }

    /// Whether the state after `step` updates is to be saved.
    pub(super) fn checkpoint_due(&self, step: u64) -> bool {
        let config = &self.config.checkpoint;
        let by_steps = config.every_steps.is_some_and(|n| step.is_multiple_of(n));
        let by_epochs = step.is_multiple_of(self.steps_per_epoch.saturating_mul(config.every_epochs));
        by_steps || by_epochs || step == self.total_steps()
    }

    /// Evaluates where that is asked for, and tells. Gives whether this is the best state so far.
    pub(super) fn end_of_epoch(&mut self, epochs_done: u64, step: u64, recorder: &mut Recorder) -> Result<bool> {
        let mut is_best = false;
        let mut line = format!("epoch {epochs_done}/{}", self.config.train.epochs);
        if let Some(loss) = recorder.last_loss() {
            line += &format!("  loss {loss:.4}");
        }
        let every = self.config.eval.knn_every;
        if let Some(Monitor { train, test }) = self.monitor.as_ref().filter(|_| epochs_done.is_multiple_of(every)) {
            let size = self.config.augment.view_size(self.images.shape())?;
            let features = |set: &ImageSet, name| {
                features_of(self.stepper.model.encoder.as_ref(), &self.config, set, size, self.device, name)
            };
            let (bank, queries) = (features(train, "training images")?, features(test, "test images")?);
            let config = KnnConfig { validation: 0.0, ..KnnConfig::default() };
            let found = knn::evaluate(&config, &bank, &queries, knn::DEFAULT_BATCH, self.device, &mut |_, _| ())?;
            let accuracy = found.test_accuracy;
            recorder.evaluation(step, epochs_done - 1, "knn_accuracy", accuracy)?;
            line += &format!("  kNN accuracy {accuracy:.4}");
            is_best = self.config.checkpoint.best_by.is_some() && self.best.is_none_or(|best| accuracy > best.value);
            if is_best {
                self.best = Some(Best { value: accuracy, step });
            }
        }
        recorder.say(&format!("{line}  {:.0} images/s", recorder.images_per_second()));
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
            let said = self.load_weights()?;
            folder = RunFolder::create(run_dir)?;
            _lock = folder.lock()?;
            said.iter().for_each(|line| eprintln!("{line}"));
            step = self.fill(&folder)?;
        }
        let read_every = if self.device.is_cuda() { self.config.train.log_every } else { 1 };
        let mut recorder = Recorder::open(
            &folder,
            step,
            self.total_steps(),
            self.config.train.batch_size,
            self.config.train.log_every,
            read_every,
        )?;
        let outcome = run(&mut self, &folder, step, &stop, &mut recorder);
        recorder.finish();
        let steps = outcome?;
        self.write_weights(&folder)?;
        Ok(Summary { steps, loss: recorder.last_loss(), images_per_second: recorder.images_per_second() })
    }

    /// Takes the weights that the configuration names; says what was taken.
    fn load_weights(&self) -> Result<Vec<String>> {
        self.config.model.weights.as_ref().map_or(Ok(Vec::new()), |config| self.stepper.model.load_file(config))
    }

    /// Writes what a new run's folder has from the start; gives its step.
    fn fill(&self, folder: &RunFolder) -> Result<u64> {
        self.write_config(folder)?;
        folder.write_environment(self.device)?;
        self.write_bad_files(folder)?;
        self.write_views(folder)?;
        self.save(folder, 0)?;
        Ok(0)
    }

    /// Saves the state after `step` updates.
    pub(super) fn save(&self, folder: &RunFolder, step: u64) -> Result<()> {
        folder.series().save(step, &state::capture(self, step)?, self.config.checkpoint.keep)
    }

    /// Saves the state after `step` updates as the best one.
    pub(super) fn save_best(&self, folder: &RunFolder, step: u64) -> Result<()> {
        torch_file::save(&folder.best(), &state::capture(self, step)?)
    }

    /// The list of the files that are left out, if there are some: path, tab, reason.
    fn write_bad_files(&self, folder: &RunFolder) -> Result<()> {
        let bad = &self.images.bad_files;
        if bad.is_empty() {
            return Ok(());
        }
        let lines = bad.iter().map(|bad| format!("{}\t{}\n", bad.path.display(), bad.reason));
        write_bytes(&folder.bad_files(), lines.collect::<String>())
    }

    /// A sheet of the first augmented pairs: view 1 above view 2, 12 images a row of pairs.
    fn write_views(&self, folder: &RunFolder) -> Result<()> {
        const PAIRS: i64 = 12;
        let first = self.batch(0)?;
        let mut rows = Vec::new();
        for view in [&first.view_1, &first.view_2] {
            let n = PAIRS.min(view.size()[0]);
            let bytes = pixels(&view.f_narrow(0, 0, n)?, self.config.augment.normalize.as_ref())?;
            let (height, width) = (bytes.size()[2] as usize, bytes.size()[3] as usize);
            let sheet = (0..n).map(|i| {
                let pixels = Vec::<u8>::try_from(bytes.f_get(i)?.f_flatten(0, -1)?)?;
                Ok(View { height, width, pixels })
            });
            rows.push(sheet.collect::<Result<Vec<View>>>()?);
        }
        let scale = 64usize.div_ceil(rows[0][0].width).clamp(1, 6);
        let path = folder.report().join("views.png");
        let png = contact_sheet(&rows, scale)?;
        write_bytes(&path, png)
    }

    /// Takes up the state of an earlier run, and gives its step.
    fn reopen(&mut self, folder: &RunFolder) -> Result<u64> {
        if folder.config().is_file() {
            let before: VisionConfig = crate::config::load(&folder.config(), &[])?;
            self.refuse_changes(&before, folder.root())?;
        }
        let Some(step) = state::restore_newest(&folder.series(), self)? else {
            if folder.metrics().exists() {
                return Err(Error::Config(format!(
                    "{}: the run has measurements but no checkpoint in {}; restore one there, or start a new run",
                    folder.root().display(),
                    folder.checkpoints().display()
                )));
            }
            eprintln!("note: the run was stopped before its first checkpoint, and begins again");
            self.load_weights()?.iter().for_each(|line| eprintln!("{line}"));
            return self.fill(folder);
        };
        if step > self.total_steps() {
            return Err(Error::Config(format!(
                "train.epochs: {} are {} steps, and this run has already done {step}; expected at least {} epochs",
                self.config.train.epochs,
                self.total_steps(),
                step.div_ceil(self.steps_per_epoch)
            )));
        }
        folder.write_environment(self.device)?;
        self.write_config(folder)?;
        self.write_bad_files(folder)?;
        if step < self.total_steps() {
            folder.remove_final_weights()?;
        }
        Ok(step)
    }

    /// Refuses what a run that began with `before` may not change; `origin` is where that is from.
    pub(super) fn refuse_changes(&self, before: &VisionConfig, origin: &Path) -> Result<()> {
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

    /// Refuses images other than those that a run began with: its order is of them. `count` and `list_sha256` are theirs, where they
    /// are known; `origin` is where that is from.
    pub(super) fn refuse_other_images(
        &self,
        count: Option<u64>,
        list_sha256: Option<&str>,
        origin: &Path,
    ) -> Result<()> {
        let now = self.images.len() as u64;
        let what = match (count, list_sha256) {
            (Some(count), _) if count != now => format!("{count} then, {now} now"),
            (_, Some(list)) if list != self.images.list_sha256 => format!("{now}, but of other names or classes"),
            _ => return Ok(()),
        };
        Err(Error::Config(format!(
            "{}: the images in {} are no longer those that this run began with: {what}; bring those back, or start a new run",
            origin.display(),
            self.config.data.location()
        )))
    }

    fn write_config(&self, folder: &RunFolder) -> Result<()> {
        write_bytes(&folder.config(), self.resolved_config()?)
    }

    /// Encoder and projector, each as safetensors and as a torch.save file, under the names of torchvision, timm and the authors.
    fn write_weights(&self, folder: &RunFolder) -> Result<()> {
        let model = &self.stepper.model;
        for (name, store) in [("encoder", model.encoder.store()), ("projector", model.projector.store())] {
            let path = folder.checkpoints().join(name);
            let tensors: Vec<(String, Tensor)> = store.state_dict();
            safetensors::save(&path.with_extension("safetensors"), &tensors, &Default::default())?;
            torch_file::save(&path.with_extension("pt"), &Value::state_dict(tensors))?;
        }
        Ok(())
    }
}

/// Images as bytes again, after the normalisation is taken back.
fn pixels(images: &Tensor, normalize: Option<&NormalizeConfig>) -> Result<Tensor> {
    let mut images = images.shallow_clone();
    if let Some(n) = normalize {
        let channels = |values: &[f32; 3]| Tensor::from_slice(values).f_view([1, 3, 1, 1]);
        images = images.f_mul(&channels(&n.std)?)?.f_add(&channels(&n.mean)?)?;
    }
    Ok(images.f_mul_scalar(255.0)?.f_round()?.f_clamp(0.0, 255.0)?.f_to_kind(Kind::Uint8)?)
}
