//! Labelled images, kept as bytes, and the files that they come from.
//!
//! Each file is input from a stranger: what a header says is checked against the length of the file before memory is taken.

mod cifar;
mod idx;
mod synthetic;

use crate::config::data::DataConfig;
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Which part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The images to train on.
    Train,
    /// The images to test on.
    Test,
}

/// Labelled images of one shape, in memory as bytes.
///
/// # Shapes
/// `pixels`: `len * channels * height * width` bytes: images one after another, in each the planes, in each the rows.
#[derive(Clone, Debug)]
pub struct ImageSet {
    /// The images.
    pub pixels: Vec<u8>,
    /// 1 for grey, 3 for RGB. Grey images stay grey here; their views have three equal channels.
    pub channels: usize,
    /// Rows of an image.
    pub height: usize,
    /// Columns of an image.
    pub width: usize,
    /// A class for each image, from 0 to `classes - 1`.
    pub labels: Vec<i64>,
    /// Number of classes.
    pub classes: usize,
    /// Names of the classes, where the files have them; else empty.
    pub class_names: Vec<String>,
    /// SHA-256 of shape, labels and pixels, in hexadecimal: the same for the same images, however they were packed.
    pub sha256: String,
}

impl ImageSet {
    /// A set from parts that were checked to fit.
    fn new(pixels: Vec<u8>, [channels, height, width]: [usize; 3], labels: Vec<i64>, classes: usize) -> Self {
        let mut hash = Sha256::new();
        for size in [labels.len(), channels, height, width] {
            hash.update((size as u64).to_le_bytes());
        }
        labels.iter().for_each(|label| hash.update(label.to_le_bytes()));
        hash.update(&pixels);
        let sha256 = format!("{:x}", hash.finalize());
        ImageSet { pixels, channels, height, width, labels, classes, class_names: Vec::new(), sha256 }
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image; a set that was loaded has some.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The bytes of an image.
    ///
    /// # Panics
    /// If there is no such image.
    pub fn image(&self, index: usize) -> &[u8] {
        let len = self.channels * self.height * self.width;
        &self.pixels[index * len..][..len]
    }
}

/// Reads a part of the data set that the configuration names.
///
/// # Errors
/// Values out of range; a missing or unreadable file; one that is damaged or of another kind, with the place in it.
pub fn load(config: &DataConfig, split: Split) -> Result<ImageSet> {
    config.validate()?;
    match config {
        DataConfig::Idx(c) => idx::load(&c.root, split, c.classes),
        DataConfig::Cifar10(c) => cifar::load(&c.root, split, &cifar::CIFAR_10),
        DataConfig::Cifar100(c) => cifar::load(&c.root, split, &cifar::CIFAR_100),
        DataConfig::Synthetic(c) => {
            let count = match split {
                Split::Train => c.train,
                Split::Test => c.test,
            };
            Ok(synthetic::make(c.classes, count, c.size, c.seed, split))
        }
    }
}

/// The first of some files that is there.
fn find(root: &Path, names: &[String], what: &str) -> Result<PathBuf> {
    if !root.is_dir() {
        return Err(Error::data(
            root,
            None,
            "no such folder; expected the data set here: set data.root, or fetch one with scripts/fetch_data.py",
        ));
    }
    names.iter().map(|name| root.join(name)).find(|path| path.is_file()).ok_or_else(|| {
        Error::data(
            root,
            None,
            format!(
                "found no {what}; looked for {}; set data.root, or fetch the set with scripts/fetch_data.py",
                names.join(", ")
            ),
        )
    })
}

/// The first label that is no class, with its number.
fn stray_label(labels: impl Iterator<Item = u8>, classes: usize) -> Option<(usize, u8)> {
    labels.enumerate().find(|(_, label)| usize::from(*label) >= classes)
}
