//! Images with labels, and the files that they come from.
//!
//! Each file is input from a stranger: what a header says is checked against the length of the file before memory is taken.

mod batch;
mod cache;
mod cifar;
mod decode;
mod files;
mod idx;
mod imagenet32;
mod set;
mod stl10;
mod synthetic;
mod tiff_kinds;
mod tiny_imagenet;
mod tree;
mod views;

pub use decode::silence_decoders;
pub use files::{BadFile, Decoder};
pub use set::ImageSet;
pub use views::{AugmentedImages, Batch};

use crate::config::data::{BadFiles, DataConfig, FolderConfig};
use crate::error::{Error, Result};
use decode::Decoding;
use files::Files;
use std::path::{Path, PathBuf};

/// Which part of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The images to pretrain on: those of [`Split::Train`], but for STL-10, which has unlabelled ones for this.
    Pretrain,
    /// The labelled images to fit evaluations on.
    Train,
    /// The images to test on.
    Test,
}

/// Reads a part of the data set that the configuration names. Images in files of their own are decoded later, when they are
/// asked for, unless damaged ones are to be skipped or a cache is to be filled.
///
/// # Errors
/// Values out of range; a missing or unreadable file; one that is damaged or of another kind, with the place in it.
pub fn load(config: &DataConfig, split: Split) -> Result<ImageSet> {
    config.validate()?;
    match config {
        DataConfig::Idx(c) => idx::load(&c.root, split, c.classes),
        DataConfig::Cifar10(c) => cifar::load(&c.root, split, &cifar::CIFAR_10),
        DataConfig::Cifar100(c) => cifar::load(&c.root, split, &cifar::CIFAR_100),
        DataConfig::Stl10(c) => stl10::load(c, split),
        DataConfig::Imagenet32(c) => imagenet32::load(&c.root, split),
        DataConfig::TinyImagenet(c) => tiny_imagenet::load(c, split),
        DataConfig::Folder(c) => folder(c, split),
        DataConfig::Synthetic(c) => {
            let count = match split {
                Split::Pretrain | Split::Train => c.train,
                Split::Test => c.test,
            };
            Ok(synthetic::make(c.classes, count, c.size, c.seed, split))
        }
    }
}

/// Image files in a folder for each class.
fn folder(config: &FolderConfig, split: Split) -> Result<ImageSet> {
    let train = config.root.join(&config.train);
    let mut tree = tree::list(&train)?;
    let mut root = train;
    if split == Split::Test {
        root = config.root.join(&config.test);
        let classes = tree.classes;
        tree = tree::list(&root)?;
        tree::relabel(&mut tree, &root, &classes)?;
        tree.classes = classes;
    }
    let how = Decoding { exif_orientation: config.exif_orientation, max_pixels: config.max_pixels };
    let files = Files { root, files: tree.files, how, shape: None };
    of_files(files, tree.classes, config.cache.as_deref(), config.bad_files, config.threads)
}

/// A set of image files, from its cache if it has one.
fn of_files(
    mut files: Files,
    class_names: Vec<String>,
    cache: Option<&Path>,
    bad_files: BadFiles,
    threads: usize,
) -> Result<ImageSet> {
    let skip = bad_files == BadFiles::Skip;
    let set = match cache {
        Some(folder) => {
            let opened = cache::open(folder, &mut files, skip, threads)?;
            ImageSet::cached(opened, &files, class_names)
        }
        None => {
            let bad = if skip { files.leave_out_bad(threads)? } else { Vec::new() };
            ImageSet::files(files, class_names, bad, threads)
        }
    };
    if let Some(first) = set.bad_files.first() {
        eprintln!(
            "note: {} of {} images are left out, {}, for one: {}",
            set.bad_files.len(),
            set.len() + set.bad_files.len(),
            first.path.display(),
            first.reason
        );
    }
    Ok(set)
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

/// The names of the classes, one a line, where there is such a file.
fn class_names(path: &Path, classes: usize) -> Result<Vec<String>> {
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "cannot read"))?;
    let names: Vec<String> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(String::from).collect();
    if names.len() != classes {
        return Err(Error::data(
            path,
            None,
            format!("has {} names of classes; expected {classes}, one a line", names.len()),
        ));
    }
    Ok(names)
}

/// The number of records of `record` bytes in a file that has whole ones, from 1 to `most`; `what` they are.
fn records_of(path: &Path, record: usize, most: usize, what: &str) -> Result<usize> {
    let length = path.metadata().map_err(Error::io(path, "cannot read"))?.len();
    let rest = length % record as u64;
    if length == 0 || rest != 0 || length > (most * record) as u64 {
        return Err(Error::data(
            path,
            Some(length - rest),
            format!(
                "is {length} bytes long; expected a whole number of {what} of {record} bytes, 1 to {most}: it is cut short or \
                 another version than the binary one; fetch it again"
            ),
        ));
    }
    Ok((length / record as u64) as usize)
}

/// Says where a part has another number of images than is published.
fn note_selection(place: &Path, part: &str, images: usize, published: usize) {
    if images != published {
        eprintln!(
            "note: {}: {images} {part} images; the published set has {published}: a selection, or files cut short",
            place.display()
        );
    }
}
