//! Features of a pretraining run: its encoder, frozen, over its own training and test images. They are kept in the run's
//! folder for the next evaluation, beside a note of everything they were made from.

use super::features::{Features, extract};
use super::run_encoder::{BATCH, RunEncoder, Space, seen_as, short_name, unit};
use super::source::{Data, DataFile, Inputs};
use crate::config::vision::VisionConfig;
use crate::data::{ImageSet, Split, eval_batches};
use crate::error::Result;
use crate::model::Encoder;
use crate::progress::progress_bar;
use crate::torch::libtorch_version;
use serde_json::json;
use std::path::Path;
use tch::Device;

/// Reads a run's configuration, weights and images and computes the features of both splits.
///
/// `checkpoint` replaces the run's own weights: its trained encoder, or, where it has not ended, its last state.
///
/// # Errors
/// A folder that is no run, weights that do not fit the run's encoder, and what the data set or LibTorch report.
pub fn inputs(folder: &Path, checkpoint: Option<&Path>, device: Device) -> Result<Inputs> {
    let run = RunEncoder::open(folder, checkpoint, Space::Encoder, device)?;
    let of = |split| -> Result<(Features, DataFile)> {
        let (set, config) = (run.set(split)?, run.config());
        let origin = json!({
            "checkpoint_sha256": run.checkpoint_sha256(), "encoder": config.model.encoder, "code_sha256": run.code_sha256(),
            "data_sha256": set.sha256()?,
            "images": seen_as(set, run.size()), "normalize": config.augment.normalize,
            "device": format!("{device:?}"), "weince": env!("CARGO_PKG_VERSION"), "libtorch": libtorch_version(),
        });
        let features = kept(&run.folder().features(short_name(split)), &origin.to_string(), || {
            features_of(run.encoder(), config, set, run.size(), device, unit(split))
        })?;
        let path = format!("{} ({})", config.data.location(), short_name(split));
        Ok((features, DataFile { path, sha256: set.sha256()?.to_string() }))
    };
    let ((train, train_file), (test, test_file)) = (of(Split::Train)?, of(Split::Test)?);
    let images = Some(seen_as(run.set(Split::Test)?, run.size()));
    Ok(Inputs {
        train,
        test,
        data: Data { train: train_file, test: test_file, images },
        checkpoint_sha256: Some(run.checkpoint_sha256().to_string()),
    })
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
