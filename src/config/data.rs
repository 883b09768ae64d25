//! `data`: which images, from where, and how many threads make views of them.

use super::kind::by_kind;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A set of images.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DataConfig {
    /// The MNIST family: IDX files, packed with gzip or not.
    Idx(IdxConfig),
    /// CIFAR-10, the binary or the Python version.
    Cifar10(CifarConfig),
    /// CIFAR-100, the binary or the Python version; the label is the fine one.
    Cifar100(CifarConfig),
    /// STL-10, the binary version.
    Stl10(Stl10Config),
    /// ImageNet downsampled to 32 x 32 pixels, as pickled or npz batches.
    Imagenet32(Imagenet32Config),
    /// Tiny-ImageNet, in its own folders; the validation images are the test part.
    TinyImagenet(TinyImagenetConfig),
    /// Image files in a folder a class, as torchvision's `ImageFolder` reads them.
    Folder(FolderConfig),
    /// Striped patterns computed from a seed, for trials without any file.
    Synthetic(SyntheticConfig),
}

by_kind!(
    DataConfig, default None,
    "idx" => Idx, "cifar10" => Cifar10, "cifar100" => Cifar100, "stl10" => Stl10, "imagenet32" => Imagenet32,
    "tiny_imagenet" => TinyImagenet, "folder" => Folder, "synthetic" => Synthetic,
);

/// IDX files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdxConfig {
    /// Folder of the four files.
    pub root: PathBuf,
    /// Number of classes: labels go from 0 to one less.
    #[serde(default = "defaults::ten")]
    pub classes: usize,
    /// Threads that make views.
    #[serde(default = "defaults::threads")]
    pub threads: usize,
}

/// CIFAR's files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CifarConfig {
    /// Folder that has `cifar-10-batches-bin` or `cifar-10-batches-py` (`cifar-100-binary` or `cifar-100-python`), or the files
    /// themselves.
    pub root: PathBuf,
    /// Threads that make views.
    #[serde(default = "defaults::threads")]
    pub threads: usize,
}

/// STL-10's files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stl10Config {
    /// Folder that has `stl10_binary`, or the files themselves.
    pub root: PathBuf,
    /// What pretraining sees; evaluations fit on the 5,000 labelled training images in any case.
    #[serde(default)]
    pub pretrain: Stl10Part,
    /// Threads that make views.
    #[serde(default = "defaults::threads")]
    pub threads: usize,
}

/// A part of STL-10 to pretrain on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stl10Part {
    /// The 100,000 unlabelled images, as the set's authors intend.
    #[default]
    Unlabeled,
    /// The 5,000 labelled training images.
    Train,
    /// Both, the labelled ones first.
    TrainAndUnlabeled,
}

/// Downsampled ImageNet's files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Imagenet32Config {
    /// Folder of `train_data_batch_1` to `train_data_batch_10` and `val_data`, with or without `.npz`.
    pub root: PathBuf,
    /// Threads that make views.
    #[serde(default = "defaults::threads")]
    pub threads: usize,
}

/// Tiny-ImageNet's folders.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TinyImagenetConfig {
    /// Folder that has `tiny-imagenet-200`, or that folder itself.
    pub root: PathBuf,
    /// Where decoded images are kept, to be mapped into memory from the second start on; decoded each time where absent.
    #[serde(default)]
    pub cache: Option<PathBuf>,
    /// What a damaged file does.
    #[serde(default)]
    pub bad_files: BadFiles,
    /// Threads that decode and make views.
    #[serde(default = "defaults::threads")]
    pub threads: usize,
}

/// Image files in a folder a class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FolderConfig {
    /// The folder that has the parts below.
    pub root: PathBuf,
    /// Folder of the training images, in `root`: a folder for each class, or images alone, which are then without labels.
    #[serde(default = "defaults::train_folder")]
    pub train: PathBuf,
    /// Folder of the test images, in `root`, with classes of the same names.
    #[serde(default = "defaults::test_folder")]
    pub test: PathBuf,
    /// Where decoded images are kept, to be mapped into memory from the second start on; decoded each time where absent.
    #[serde(default)]
    pub cache: Option<PathBuf>,
    /// What a damaged file does.
    #[serde(default)]
    pub bad_files: BadFiles,
    /// Whether images are turned as their EXIF orientation says; torchvision does not.
    #[serde(default)]
    pub exif_orientation: bool,
    /// Larger images are damaged files; what Pillow warns of as a decompression bomb, unless given.
    #[serde(default = "defaults::max_pixels")]
    pub max_pixels: u64,
    /// Threads that decode and make views.
    #[serde(default = "defaults::threads")]
    pub threads: usize,
}

/// What is done about an image file that is empty, cut short, too large, or no image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadFiles {
    /// The run ends with an error that names it.
    #[default]
    Error,
    /// It is left out, counted and listed. All files are tried before the run, so that it is known how many images there are.
    Skip,
}

/// Computed images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyntheticConfig {
    /// Number of classes.
    #[serde(default = "defaults::ten")]
    pub classes: usize,
    /// Images to train on.
    #[serde(default = "defaults::synthetic_train")]
    pub train: usize,
    /// Images to test on.
    #[serde(default = "defaults::synthetic_test")]
    pub test: usize,
    /// Edge of the square images.
    ///
    /// # Units
    /// Pixels.
    #[serde(default = "defaults::synthetic_size")]
    pub size: usize,
    /// Seed of the images.
    #[serde(default)]
    pub seed: u64,
    /// Threads that make views.
    #[serde(default = "defaults::threads")]
    pub threads: usize,
}

/// Pillow's `Image.MAX_IMAGE_PIXELS`: a quarter of a gibibyte of RGB.
pub const BOMB_PIXELS: u64 = (1 << 30) / 4 / 3;

mod defaults {
    use std::path::PathBuf;

    pub(super) fn threads() -> usize {
        2
    }
    pub(super) fn ten() -> usize {
        10
    }
    pub(super) fn train_folder() -> PathBuf {
        "train".into()
    }
    pub(super) fn test_folder() -> PathBuf {
        "val".into()
    }
    pub(super) fn max_pixels() -> u64 {
        super::BOMB_PIXELS
    }
    pub(super) fn synthetic_train() -> usize {
        2000
    }
    pub(super) fn synthetic_test() -> usize {
        500
    }
    pub(super) fn synthetic_size() -> usize {
        32
    }
}

impl DataConfig {
    /// Threads that make views.
    pub fn threads(&self) -> usize {
        match self {
            DataConfig::Idx(c) => c.threads,
            DataConfig::Cifar10(c) | DataConfig::Cifar100(c) => c.threads,
            DataConfig::Stl10(c) => c.threads,
            DataConfig::Imagenet32(c) => c.threads,
            DataConfig::TinyImagenet(c) => c.threads,
            DataConfig::Folder(c) => c.threads,
            DataConfig::Synthetic(c) => c.threads,
        }
    }

    /// Takes over what changes no result: the number of threads, and where decoded images are kept.
    pub fn take_over_means(&mut self, from: &DataConfig) {
        let threads = match self {
            DataConfig::Idx(c) => &mut c.threads,
            DataConfig::Cifar10(c) | DataConfig::Cifar100(c) => &mut c.threads,
            DataConfig::Stl10(c) => &mut c.threads,
            DataConfig::Imagenet32(c) => &mut c.threads,
            DataConfig::TinyImagenet(c) => &mut c.threads,
            DataConfig::Folder(c) => &mut c.threads,
            DataConfig::Synthetic(c) => &mut c.threads,
        };
        *threads = from.threads();
        match (self, from) {
            (DataConfig::TinyImagenet(c), DataConfig::TinyImagenet(from)) => c.cache.clone_from(&from.cache),
            (DataConfig::Folder(c), DataConfig::Folder(from)) => c.cache.clone_from(&from.cache),
            _ => (),
        }
    }

    /// Where the images come from, for people.
    pub fn location(&self) -> String {
        let root = match self {
            DataConfig::Idx(c) => &c.root,
            DataConfig::Cifar10(c) | DataConfig::Cifar100(c) => &c.root,
            DataConfig::Stl10(c) => &c.root,
            DataConfig::Imagenet32(c) => &c.root,
            DataConfig::TinyImagenet(c) => &c.root,
            DataConfig::Folder(c) => &c.root,
            DataConfig::Synthetic(_) => return "synthetic".to_string(),
        };
        root.display().to_string()
    }

    /// Whether pretraining sees other images than those that evaluations fit on.
    pub fn pretrains_apart(&self) -> bool {
        matches!(self, DataConfig::Stl10(c) if c.pretrain != Stl10Part::Train)
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The first value that is out of its range, with its key.
    pub fn validate(&self) -> Result<()> {
        check("threads", self.threads(), 1, 1024)?;
        match self {
            DataConfig::Idx(c) => check("classes", c.classes, 2, 256),
            DataConfig::Folder(c) => check("max_pixels", c.max_pixels as usize, 1, MOST_PIXELS),
            DataConfig::Synthetic(c) => {
                check("classes", c.classes, 2, 100)?;
                check("train", c.train, 1, 1_000_000)?;
                check("test", c.test, 1, 1_000_000)?;
                check("size", c.size, 8, 256)
            }
            _ => Ok(()),
        }
    }
}

/// 2^31: decoded, such an image takes up to 16 GiB.
const MOST_PIXELS: usize = 1 << 31;

fn check(key: &str, value: usize, least: usize, most: usize) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::Config(format!("data.{key}: {value} is out of range; expected a whole number from {least} to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        data: DataConfig,
    }

    fn err(text: &str) -> String {
        parse::<File>(text, "c.yaml", &[])
            .map(|f| f.data.validate())
            .map_or_else(|e| e.to_string(), |r| r.unwrap_err().to_string())
    }

    #[test]
    fn defaults_are_filled_in() {
        let File { data } = parse("data: {kind: idx, root: d}", "c", &[]).unwrap();
        assert_eq!(data, DataConfig::Idx(IdxConfig { root: "d".into(), classes: 10, threads: 2 }));
        assert_eq!(data.threads(), 2);
    }

    #[test]
    fn mistakes_are_named() {
        let e = err("data: {kind: cifar10, rot: d, root: d}");
        assert!(e.contains("`rot`") && e.contains("did you mean `root`?"), "{e}");
        let e = err("data: {kind: cifar1, root: d}");
        assert!(e.contains("`cifar1`") && e.contains("did you mean `cifar10`?"), "{e}");
        assert!(err("data: {kind: idx}").contains("missing field `root`"));
        let e = err("data: {kind: idx, root: d, threads: two}");
        assert!(e.contains("data: threads: invalid type: string \"two\""), "{e}");
        assert!(err("data: {root: d}").contains("missing field `kind`"));
        assert!(err("data:").contains("mapping"));
        assert!(err("data: !idx {root: d}").contains("tag `!idx`"));
        let e = err("data: {kind: idx, root: d, threads: 0}");
        assert!(e.contains("data.threads: 0") && e.contains("1 to 1024"), "{e}");
        assert!(err("data: {kind: synthetic, classes: 1}").contains("data.classes: 1"));
    }
}
