//! A vision run opened for evaluation: its weights found and loaded, its images made into rows of numbers.

use super::matrix::Matrix;
use crate::augment::{Fit, Views};
use crate::checkpoint::{self, safetensors, sha256_of, torch_file};
use crate::config::model::EncoderConfig;
use crate::config::run::RunConfig;
use crate::config::vision::VisionConfig;
use crate::data::{self, ImageSet, Look, Split, fit_of, pictures};
use crate::error::{Error, Result};
use crate::model::{self, Encoder, Found, Projector, encoder};
use crate::progress::progress_bar;
use crate::run::RunFolder;
use crate::torch::allow_tf32;
use clap::ValueEnum;
use regex::RegexSet;
use serde::Serialize;
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};

/// Images a forward pass. It is not an option: convolutions may round differently for another batch.
pub(super) const BATCH: usize = 256;

/// The space that embeddings are taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Space {
    /// What the loss sees: behind the projector, or by the pooler of training
    Projector,
    /// The features that evaluations take: of the encoder alone, or by the pooler of evaluation
    Encoder,
}

impl Space {
    /// Its name, as on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Space::Projector => "projector",
            Space::Encoder => "encoder",
        }
    }
}

/// The encoder of a vision run, with its projector where that is wanted, and the run's images. Everything is computed in
/// evaluation mode, without gradients, in float32.
pub struct RunEncoder {
    folder: RunFolder,
    config: VisionConfig,
    space: Space,
    device: Device,
    encoder: Box<dyn Encoder>,
    projector: Option<Projector>,
    weights: PathBuf,
    checkpoint_sha256: String,
    code_sha256: Option<String>,
    step: Option<u64>,
    size: usize,
    /// By [`place`]; read when they are first asked for.
    sets: [OnceCell<ImageSet>; 3],
}

impl RunEncoder {
    /// Opens a run: reads its configuration, builds its model and loads its weights. Its images are read when they are
    /// first asked for, but where the size of the views is theirs.
    ///
    /// `checkpoint` replaces the run's own weights. These are, for [`Space::Encoder`], the trained encoder, or, where the
    /// run has not ended, its newest state; for [`Space::Projector`] the newest state, which alone has encoder and
    /// projector.
    ///
    /// # Errors
    /// A folder that is no run, or is one on text; no weights, or such as do not fit; a file without the projector that
    /// is wanted; what the data set or LibTorch report.
    pub fn open(folder: &Path, checkpoint: Option<&Path>, space: Space, device: Device) -> Result<RunEncoder> {
        let folder = RunFolder::open(folder)?;
        let config: VisionConfig = folder.read_config()?;
        config.validate()?;
        let weights = match checkpoint {
            Some(path) => path.to_path_buf(),
            None => own_weights(&folder, space)?,
        };
        let sets: [OnceCell<ImageSet>; 3] = Default::default();
        let shape = match config.augment.size {
            Some(_) => None,
            None => loaded(&sets, &config, Split::Train)?.shape(),
        };
        let size = config.augment.view_size(shape)?;
        let encoder = encoder(&config.model.encoder, size)?;
        let projector = match space {
            Space::Projector => Some(Projector::new(&config.model.projector, encoder.features())?),
            Space::Encoder => None,
        };
        let step = load_weights(encoder.as_ref(), projector.as_ref(), &weights, checkpoint.is_none(), &folder)?;
        encoder.to_device(device)?;
        if let Some(projector) = &projector {
            projector.store().to_device(device)?;
        }
        if device.is_cuda() {
            allow_tf32(false)?;
        }
        let checkpoint_sha256 = sha256_of(&weights)?;
        // The code of a TorchScript module is not among the weights.
        let code_sha256 = match &config.model.encoder {
            EncoderConfig::Torchscript(c) => Some(sha256_of(&c.path)?),
            _ => None,
        };
        Ok(RunEncoder {
            folder,
            config,
            space,
            device,
            encoder,
            projector,
            weights,
            checkpoint_sha256,
            code_sha256,
            step,
            size,
            sets,
        })
    }

    /// The run's configuration.
    pub fn config(&self) -> &VisionConfig {
        &self.config
    }

    /// The run's folder.
    pub fn folder(&self) -> &RunFolder {
        &self.folder
    }

    /// The space of the rows.
    pub fn space(&self) -> Space {
        self.space
    }

    /// Where the model is.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The encoder alone.
    pub fn encoder(&self) -> &dyn Encoder {
        self.encoder.as_ref()
    }

    /// Edge of the images that the encoder gets.
    ///
    /// # Units
    /// Pixels.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The file of the weights.
    pub fn weights(&self) -> &Path {
        &self.weights
    }

    /// SHA-256 of that file, in hexadecimal.
    pub fn checkpoint_sha256(&self) -> &str {
        &self.checkpoint_sha256
    }

    /// SHA-256 of the encoder's code, where it has code of its own: a TorchScript module.
    pub fn code_sha256(&self) -> Option<&str> {
        self.code_sha256.as_deref()
    }

    /// Updates behind the weights, where their file says: a training state does, `encoder.safetensors` does not.
    pub fn step(&self) -> Option<u64> {
        self.step
    }

    /// A part of the run's images.
    ///
    /// # Errors
    /// What the data set reports.
    pub fn set(&self, split: Split) -> Result<&ImageSet> {
        loaded(&self.sets, &self.config, split)
    }

    /// How many images a part has.
    ///
    /// # Errors
    /// What the data set reports.
    pub fn images(&self, split: Split) -> Result<usize> {
        Ok(self.set(split)?.len())
    }

    /// The classes of a part's images, in their order.
    ///
    /// # Errors
    /// What the data set reports.
    pub fn labels(&self, split: Split) -> Result<Vec<i64>> {
        Ok(self.set(split)?.labels.clone())
    }

    /// Rows of images as evaluation sees them, in the order of `indices`. All images in their order have the very numbers
    /// of eval-knn's features; others in a batch may change the last bits of a row.
    ///
    /// # Errors
    /// No indices, an image that there is not, and what the data set, the model or LibTorch report; rows that are not finite.
    pub fn plain(&self, split: Split, indices: &[usize]) -> Result<Matrix> {
        self.rows(split, indices, Look::Plain)
    }

    /// Rows of images under a random view of the run's own augmentation, in the order of `indices`. View `view` of an
    /// image under `seed` is always the same picture, whatever else is asked for, and none that a run trains on; others
    /// in a batch may change the last bits of its row.
    ///
    /// # Errors
    /// As [`RunEncoder::plain`].
    pub fn views(&self, split: Split, indices: &[usize], seed: u64, view: u64) -> Result<Matrix> {
        self.rows(split, indices, Look::View { seed, number: view })
    }

    /// What rows come from, for records: the run, the weights with their SHA-256 and step, the space, and the images that
    /// were read.
    ///
    /// # Errors
    /// Image files that cannot be read: of a set without a cache, all are read for their SHA-256.
    pub fn source(&self) -> Result<Value> {
        let mut data = json!({ "path": self.config.data.location() });
        for split in [Split::Pretrain, Split::Train, Split::Test] {
            if let Some(set) = self.sets[place(&self.config, split)].get() {
                data[short_name(split)] = json!({ "sha256": set.sha256()?, "images": seen_as(set, self.size) });
            }
        }
        Ok(json!({
            "run": self.folder.root().display().to_string(),
            "checkpoint": self.weights.display().to_string(),
            "checkpoint_sha256": self.checkpoint_sha256,
            "code_sha256": self.code_sha256,
            "step": self.step,
            "space": self.space,
            "data": data,
        }))
    }

    fn rows(&self, split: Split, indices: &[usize], look: Look) -> Result<Matrix> {
        let set = self.set(split)?;
        let name = self.name_of(split, look);
        if indices.is_empty() {
            return Err(Error::Input(format!("{name}: expected images, found none asked for")));
        }
        let views = Views::new(&self.config.augment, self.size)?;
        let bar = progress_bar(unit(split));
        bar.set_length(indices.len() as u64);
        let _guard = tch::no_grad_guard();
        let (mut values, mut buffer, mut columns) = (Vec::new(), Vec::new(), 0);
        for some in indices.chunks(BATCH) {
            let rows = self.forward(&pictures(set, &views, some, look, &mut buffer)?)?;
            let shape = rows.size();
            if shape.len() != 2 || shape[0] != some.len() as i64 {
                return Err(Error::Input(format!(
                    "the encoder gave {shape:?} for {} images; expected a row for each",
                    some.len()
                )));
            }
            columns = shape[1] as usize;
            values.extend(Vec::<f32>::try_from(rows.f_flatten(0, -1)?)?);
            bar.inc(some.len() as u64);
        }
        bar.finish_and_clear();
        Matrix::of(&name, values, columns)
    }

    /// Images to rows on the CPU, float32.
    fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let features = self.encoder.forward(&images.f_to_device(self.device)?, false)?;
        let rows = match &self.projector {
            Some(projector) => projector.forward(&features)?,
            None => features,
        };
        Ok(rows.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?)
    }

    fn name_of(&self, split: Split, look: Look) -> String {
        let view = match look {
            Look::Plain => String::new(),
            Look::View { seed, number } => format!(", view {number} of seed {seed}"),
        };
        format!("{}, {} ({}{view})", self.weights.display(), unit(split), self.space.name())
    }
}

/// How the images of a set are brought to the size of the views.
pub(super) fn seen_as(set: &ImageSet, size: usize) -> String {
    match fit_of(set) {
        Fit::Whole => format!("whole, {size} x {size}"),
        Fit::Central => format!("shorter edge {}, central {size} x {size}", Fit::shorter_edge(size)),
    }
}

/// What a part's images are called.
pub(super) fn unit(split: Split) -> &'static str {
    match split {
        Split::Pretrain => "pretraining images",
        Split::Train => "training images",
        Split::Test => "test images",
    }
}

/// What a part is called in records and file names.
pub(super) fn short_name(split: Split) -> &'static str {
    match split {
        Split::Pretrain => "pretrain",
        Split::Train => "train",
        Split::Test => "test",
    }
}

/// Where a part is among the sets: most have no images for pretraining alone.
fn place(config: &VisionConfig, split: Split) -> usize {
    match split {
        Split::Pretrain if config.data.pretrains_apart() => 2,
        Split::Pretrain | Split::Train => 0,
        Split::Test => 1,
    }
}

fn loaded<'a>(sets: &'a [OnceCell<ImageSet>; 3], config: &VisionConfig, split: Split) -> Result<&'a ImageSet> {
    let cell = &sets[place(config, split)];
    if let Some(set) = cell.get() {
        return Ok(set);
    }
    let set = data::load(&config.data, split)?;
    Ok(cell.get_or_init(|| set))
}

/// The weights that a run itself has for a space.
fn own_weights(folder: &RunFolder, space: Space) -> Result<PathBuf> {
    if space == Space::Projector {
        return folder.series().newest_first()?.into_iter().next().ok_or_else(|| {
            Error::Input(format!(
                "{}: the run has no training state, {}/step-N.pt, which alone has the projector; pretrain first, name a file \
                 that has it with --checkpoint, or take --space encoder",
                folder.root().display(),
                folder.checkpoints().display()
            ))
        });
    }
    folder.weights()?.ok_or_else(|| {
        Error::Input(format!(
            "{}: the run has no weights: expected {} or a checkpoint beside it; pretrain first, or name a file with \
             --checkpoint",
            folder.root().display(),
            folder.encoder().display()
        ))
    })
}

/// Loads encoder and projector strictly, from a file of the run, a checkpoint of this project, or another's; says what
/// was taken, and gives the step that the file is of. Nothing of its `own` run is resampled: it has the encoder's shapes,
/// or is damaged.
fn load_weights(
    encoder: &dyn Encoder,
    projector: Option<&Projector>,
    path: &Path,
    own: bool,
    folder: &RunFolder,
) -> Result<Option<u64>> {
    let (tensors, step) = if torch_file::is_one(path)? {
        let value = torch_file::load(path)?;
        (checkpoint::named(path, &value)?, value.get("step").and_then(checkpoint::Value::as_u64))
    } else {
        (safetensors::load(path)?.tensors, None)
    };
    let mut others = encoder.other_names();
    if own {
        others.resample = None;
    }
    let none = RegexSet::empty();
    let wrong = |e: Error| Error::data(path, None, e.to_string());
    if let Found::Loaded(fit) = model::load(encoder.store(), "encoder", &tensors, &others, &none, "").map_err(wrong)? {
        eprintln!("weights   {}: {fit}", path.display());
    }
    if let Some(projector) = projector {
        // A state has it by this name, whatever an encoder's own parts are called.
        let beside = |name: &str| name.starts_with("projector.");
        let named = tensors.iter().any(|(name, _)| beside(name));
        let tensors: Vec<(String, Tensor)> = tensors.into_iter().filter(|(name, _)| !named || beside(name)).collect();
        let states = folder.series().newest_first()?;
        let has = states.first().map_or("training states, such as checkpoints/step-N.pt".into(), |state| {
            format!("training states, such as {}", state.display())
        });
        let remedy = format!("; {has}, have it: name one with --checkpoint, or take --space encoder");
        model::load(projector.store(), "projector", &tensors, &projector.other_names(), &none, &remedy)
            .map_err(wrong)?;
    }
    Ok(step)
}
