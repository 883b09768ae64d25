//! Features of a pretraining run: its encoder, frozen, over its own training and test images. They are kept in the run's
//! folder for the next evaluation, beside a note of everything they were made from.

use super::features::{Features, extract};
use super::source::{Data, DataFile, Inputs};
use crate::augment::Fit;
use crate::checkpoint::{self, sha256_of};
use crate::config::model::EncoderConfig;
use crate::config::run::RunConfig;
use crate::config::vision::VisionConfig;
use crate::data::{self, ImageSet, Split, eval_batches, fit_of};
use crate::error::{Error, Result};
use crate::model::{self, Encoder, Found, encoder};
use crate::progress::progress_bar;
use crate::run::RunFolder;
use crate::torch::libtorch_version;
use regex::RegexSet;
use serde_json::json;
use std::path::{Path, PathBuf};
use tch::Device;

/// Images a forward pass. It is not an option: convolutions may round differently for another batch.
const BATCH: usize = 256;

/// Reads a run's configuration, weights and images and computes the features of both splits.
///
/// `checkpoint` replaces the run's own weights: its trained encoder, or, where it has not ended, its last state.
///
/// # Errors
/// A folder that is no run, weights that do not fit the run's encoder, and what the data set or LibTorch report.
pub fn inputs(folder: &Path, checkpoint: Option<&Path>, device: Device) -> Result<Inputs> {
    let folder = RunFolder::open(folder)?;
    let config: VisionConfig = folder.read_config()?;
    config.validate()?;
    let weights = match checkpoint {
        Some(path) => path.to_path_buf(),
        None => trained_weights(&folder)?,
    };
    let train_set = data::load(&config.data, Split::Train)?;
    let test_set = data::load(&config.data, Split::Test)?;
    let size = config.augment.view_size(train_set.shape())?;
    let encoder = encoder(&config.model.encoder, size)?;
    load_encoder(encoder.as_ref(), &weights, checkpoint.is_none())?;
    encoder.to_device(device)?;
    let checkpoint_sha256 = sha256_of(&weights)?;
    // The code of a TorchScript module is not among the weights.
    let code_sha256 = match &config.model.encoder {
        EncoderConfig::Torchscript(c) => Some(sha256_of(&c.path)?),
        _ => None,
    };
    let of = |set: &ImageSet, split: &str, unit| {
        let origin = json!({
            "checkpoint_sha256": checkpoint_sha256, "encoder": config.model.encoder, "code_sha256": code_sha256,
            "data_sha256": set.sha256()?,
            "images": seen_as(set, size), "normalize": config.augment.normalize,
            "device": format!("{device:?}"), "weince": env!("CARGO_PKG_VERSION"), "libtorch": libtorch_version(),
        });
        kept(&folder.features(split), &origin.to_string(), || {
            features_of(encoder.as_ref(), &config, set, size, device, unit)
        })
    };
    let (train, test) = (of(&train_set, "train", "training images")?, of(&test_set, "test", "test images")?);
    let file = |set: &ImageSet, split: &str| -> Result<DataFile> {
        Ok(DataFile { path: format!("{} ({split})", config.data.location()), sha256: set.sha256()?.to_string() })
    };
    Ok(Inputs {
        train,
        test,
        data: Data {
            train: file(&train_set, "train")?,
            test: file(&test_set, "test")?,
            images: Some(seen_as(&test_set, size)),
        },
        checkpoint_sha256: Some(checkpoint_sha256),
    })
}

/// How the images of a set are brought to the size of the views.
fn seen_as(set: &ImageSet, size: usize) -> String {
    match fit_of(set) {
        Fit::Whole => format!("whole, {size} x {size}"),
        Fit::Central => format!("shorter edge {}, central {size} x {size}", Fit::shorter_edge(size)),
    }
}

/// The features of a file that says it was made from `origin`, else those that `make` gives, which then go there.
fn kept(path: &Path, origin: &str, make: impl FnOnce() -> Result<Features>) -> Result<Features> {
    if path.is_file() {
        match Features::read_from(path, origin) {
            Ok(Some(features)) => return Ok(features),
            Ok(None) => (),
            Err(e) => eprintln!("note: features are computed again, as the kept ones cannot be read: {e}"),
        }
    }
    let features = make()?;
    if let Err(e) = features.write(path, origin) {
        eprintln!("note: the features are not kept for the next evaluation: {e}");
    }
    Ok(features)
}

/// The encoder's features of every image of a set, in evaluation mode, at `size` pixels an edge: that of the views the
/// encoder was trained with.
///
/// # Errors
/// What the encoder or LibTorch report; features that are not finite.
pub fn features_of(
    encoder: &dyn Encoder,
    config: &VisionConfig,
    set: &ImageSet,
    size: usize,
    device: Device,
    unit: &'static str,
) -> Result<Features> {
    let batches = eval_batches(set, size, config.augment.normalize.as_ref(), BATCH)?;
    let bar = progress_bar(unit);
    bar.set_length(set.len() as u64);
    let features = extract(
        batches.map(|batch| batch.map(|b| (b.images, b.labels))),
        |images| encoder.forward(&images.f_to_device(device)?, false),
        |done| bar.set_position(done),
    );
    bar.finish_and_clear();
    features
}

fn trained_weights(folder: &RunFolder) -> Result<PathBuf> {
    folder.weights()?.ok_or_else(|| {
        Error::Input(format!(
            "{}: the run has no weights: expected {} or a checkpoint beside it; pretrain first, or name a file with --checkpoint",
            folder.root().display(),
            folder.encoder().display()
        ))
    })
}

/// Loads an encoder strictly, from its own file, a checkpoint of this project, or another's; says what was taken. Nothing of its
/// `own` run is resampled: it has the encoder's shapes, or is damaged.
fn load_encoder(encoder: &dyn Encoder, path: &Path, own: bool) -> Result<()> {
    let tensors = checkpoint::tensors(path)?;
    let mut others = encoder.other_names();
    if own {
        others.resample = None;
    }
    let fit = model::load(encoder.store(), "encoder", &tensors, &others, &RegexSet::empty(), "")
        .map_err(|e| Error::data(path, None, e.to_string()))?;
    if let Found::Loaded(fit) = fit {
        eprintln!("weights   {}: {fit}", path.display());
    }
    Ok(())
}
