//! `data`: which images, from where, and how many threads make views of them.

use super::kind::by_kind;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A set of labelled images.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DataConfig {
    /// The MNIST family: IDX files, packed with gzip or not.
    Idx(IdxConfig),
    /// CIFAR-10, binary version.
    Cifar10(CifarConfig),
    /// CIFAR-100, binary version; the label is the fine one.
    Cifar100(CifarConfig),
    /// Striped patterns computed from a seed, for trials without any file.
    Synthetic(SyntheticConfig),
}

by_kind!(DataConfig, default None, "idx" => Idx, "cifar10" => Cifar10, "cifar100" => Cifar100, "synthetic" => Synthetic);

/// IDX files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdxConfig {
    /// Folder of the four files.
    pub root: PathBuf,
    /// Number of classes: labels go from 0 to one less.
    #[serde(default = "defaults::idx_classes")]
    pub classes: usize,
    /// Threads that make views.
    #[serde(default = "defaults::threads")]
    pub threads: usize,
}

/// CIFAR's binary files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CifarConfig {
    /// Folder that has `cifar-10-batches-bin` or `cifar-100-binary`, or the files themselves.
    pub root: PathBuf,
    /// Threads that make views.
    #[serde(default = "defaults::threads")]
    pub threads: usize,
}

/// Computed images.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyntheticConfig {
    /// Number of classes.
    #[serde(default = "defaults::synthetic_classes")]
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

mod defaults {
    pub(super) fn threads() -> usize {
        2
    }
    pub(super) fn idx_classes() -> usize {
        10
    }
    pub(super) fn synthetic_classes() -> usize {
        10
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
            DataConfig::Synthetic(c) => c.threads,
        }
    }

    /// Sets the threads that make views; they change no result.
    pub fn set_threads(&mut self, count: usize) {
        match self {
            DataConfig::Idx(c) => c.threads = count,
            DataConfig::Cifar10(c) | DataConfig::Cifar100(c) => c.threads = count,
            DataConfig::Synthetic(c) => c.threads = count,
        }
    }

    /// Where the images come from, for people.
    pub fn location(&self) -> String {
        match self {
            DataConfig::Idx(c) => c.root.display().to_string(),
            DataConfig::Cifar10(c) | DataConfig::Cifar100(c) => c.root.display().to_string(),
            DataConfig::Synthetic(_) => "synthetic".to_string(),
        }
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The first value that is out of its range, with its key.
    pub fn validate(&self) -> Result<()> {
        check("threads", self.threads(), 1, 1024)?;
        match self {
            DataConfig::Idx(c) => check("classes", c.classes, 2, 256),
            DataConfig::Cifar10(_) | DataConfig::Cifar100(_) => Ok(()),
            DataConfig::Synthetic(c) => {
                check("classes", c.classes, 2, 100)?;
                check("train", c.train, 1, 1_000_000)?;
                check("test", c.test, 1, 1_000_000)?;
                check("size", c.size, 8, 256)
            }
        }
    }
}

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
