//! Where an evaluation's features come from.

use super::features::Features;
use crate::error::{Error, Result};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use tch::Device;

/// Where the features come from. A source gives [`Inputs`]; evaluations know nothing else of it.
#[derive(Debug, Clone)]
pub enum Source {
    /// Two safetensors files with the keys `features` and `labels`.
    Files {
        /// Features to fit on.
        train: PathBuf,
        /// Features to test on.
        test: PathBuf,
    },
    /// The encoder of a pretraining run over the run's own images.
    Run {
        /// The run folder.
        folder: PathBuf,
        /// Weights to take instead of the run's own.
        checkpoint: Option<PathBuf>,
    },
}

/// A file that was read, and what it held.
#[derive(Debug, Clone, Serialize)]
pub struct DataFile {
    /// As it was given.
    pub path: String,
    /// Of the whole file, in hexadecimal.
    pub sha256: String,
}

/// What the result file says of the data.
#[derive(Debug, Clone, Serialize)]
pub struct Data {
    /// Where the training features came from.
    pub train: DataFile,
    /// Where the test features came from.
    pub test: DataFile,
    /// How images were brought to the encoder's size; none where features were given ready-made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub images: Option<String>,
}

/// Features to fit and to test on, with their origin.
#[derive(Debug)]
pub struct Inputs {
    /// To fit on.
    pub train: Features,
    /// To test on.
    pub test: Features,
    /// Where they came from.
    pub data: Data,
    /// Of the encoder's weights; none where features were given ready-made.
    pub checkpoint_sha256: Option<String>,
}

impl Source {
    /// Reads or makes the features; `device` is where an encoder computes them.
    ///
    /// # Errors
    /// As [`Features::read`] and [`super::run::inputs`].
    pub fn load(&self, device: Device) -> Result<Inputs> {
        match self {
            Source::Files { train, test } => {
                let ((train, train_file), (test, test_file)) = (read(train)?, read(test)?);
                Ok(Inputs {
                    train,
                    test,
                    data: Data { train: train_file, test: test_file, images: None },
                    checkpoint_sha256: None,
                })
            }
            Source::Run { folder, checkpoint } => super::run::inputs(folder, checkpoint.as_deref(), device),
        }
    }
}

fn read(path: &Path) -> Result<(Features, DataFile)> {
    let bytes = std::fs::read(path).map_err(Error::io(path, "cannot read the features"))?;
    let features = Features::from_bytes(&bytes, path)?;
    let sha256 = format!("{:x}", Sha256::digest(&bytes));
    Ok((features, DataFile { path: path.display().to_string(), sha256 }))
}
