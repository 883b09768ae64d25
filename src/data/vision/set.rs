//! A set of images with their labels: in memory, mapped from a cache, or in files that are decoded when they are asked for.

use super::cache::{Cache, Opened};
use super::files::{BadFile, Decoder, Files};
use crate::augment::PlanesRef;
use crate::error::Result;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::sync::OnceLock;

/// Images with labels.
#[derive(Debug)]
pub struct ImageSet {
    images: Images,
    /// A class for each image, from 0 to `classes - 1`; -1 for one without a label.
    pub labels: Vec<i64>,
    /// Number of classes; 0 where no image has a label.
    pub classes: usize,
    /// Names of the classes, where the files have them; else empty.
    pub class_names: Vec<String>,
    /// Files that were left out.
    pub bad_files: Vec<BadFile>,
    /// SHA-256 of the images' classes, and of their files' names where each has a file: which images a run's order is of.
    pub list_sha256: String,
    sha256: OnceLock<String>,
}

#[derive(Debug)]
enum Images {
    /// Images of one shape, in each the planes, in each the rows.
    Memory {
        pixels: Vec<u8>,
        shape: [usize; 3],
    },
    Cache {
        cache: Cache,
        shape: Option<[usize; 2]>,
        sha256: String,
    },
    Files {
        files: Files,
        threads: usize,
    },
}

impl ImageSet {
    /// A set from parts that were checked to fit: pixels of images of `shape` (channels, height, width).
    pub(super) fn memory(pixels: Vec<u8>, shape: [usize; 3], labels: Vec<i64>, classes: usize) -> ImageSet {
        let list = list_sha256(labels.iter().map(|label| (*label, None)));
        ImageSet::new(Images::Memory { pixels, shape }, labels, classes, Vec::new(), Vec::new(), list)
    }

    /// A set of files, without those that were left out.
    pub(super) fn files(files: Files, class_names: Vec<String>, bad: Vec<BadFile>, threads: usize) -> ImageSet {
        let labels = files.files.iter().map(|file| file.label).collect();
        let list = files.list_sha256();
        ImageSet::new(Images::Files { files, threads }, labels, class_names.len(), class_names, bad, list)
    }

    /// A set whose images are in a cache; `files` are those that it has.
    pub(super) fn cached(opened: Opened, files: &Files, class_names: Vec<String>) -> ImageSet {
        let labels = files.files.iter().map(|file| file.label).collect();
        let images = Images::Cache { cache: opened.images, shape: files.shape, sha256: opened.sha256 };
        ImageSet::new(images, labels, class_names.len(), class_names, opened.bad, files.list_sha256())
    }

    fn new(
        images: Images,
        labels: Vec<i64>,
        classes: usize,
        class_names: Vec<String>,
        bad_files: Vec<BadFile>,
        list_sha256: String,
    ) -> Self {
        ImageSet { images, labels, classes, class_names, bad_files, list_sha256, sha256: OnceLock::new() }
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image; a set that was loaded has some.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Height and width of the images, where all have the same by the set's format.
    pub fn shape(&self) -> Option<[usize; 2]> {
        match &self.images {
            Images::Memory { shape: [_, height, width], .. } => Some([*height, *width]),
            Images::Cache { shape, .. } => *shape,
            Images::Files { files, .. } => files.shape,
        }
    }

    /// An image: grey ones of one plane, others of three. `decoder` is used where it has to be decoded.
    ///
    /// # Errors
    /// A file that cannot be read or is no whole image.
    ///
    /// # Panics
    /// If there is no such image.
    pub fn image<'a>(&'a self, index: usize, decoder: &'a mut Decoder) -> Result<PlanesRef<'a>> {
        match &self.images {
            Images::Memory { pixels, shape: [channels, height, width] } => {
                let len = channels * height * width;
                let bytes = &pixels[index * len..][..len];
                Ok(PlanesRef { channels: *channels, height: *height, width: *width, bytes })
            }
            Images::Cache { cache, .. } => Ok(cache.image(index)),
            Images::Files { files, .. } => Ok(files.read(index, decoder)?.borrowed()),
        }
    }

    /// What tells the set from others, in hexadecimal, the same for the same images: SHA-256 of shape, labels and pixels of a set
    /// that is in one file or a few, however they were packed; of labels and files of a set of image files.
    ///
    /// # Errors
    /// A file that cannot be read; all are read at the first call where there is no cache.
    pub fn sha256(&self) -> Result<&str> {
        if let Some(known) = self.sha256.get() {
            return Ok(known);
        }
        let hash = match &self.images {
            Images::Memory { pixels, shape: [channels, height, width] } => {
                let mut hash = Sha256::new();
                for size in [self.labels.len(), *channels, *height, *width] {
                    hash.update((size as u64).to_le_bytes());
                }
                self.labels.iter().for_each(|label| hash.update(label.to_le_bytes()));
                hash.update(pixels);
                format!("{:x}", hash.finalize())
            }
            Images::Files { files, threads } => files.sha256(*threads)?,
            Images::Cache { sha256, .. } => return Ok(sha256),
        };
        Ok(self.sha256.get_or_init(|| hash))
    }

    /// Memory that the images take, in bytes; those of a cache are the system's, which gives them up when others need it.
    pub fn memory_bytes(&self) -> usize {
        match &self.images {
            Images::Memory { pixels, .. } => pixels.len(),
            Images::Cache { .. } | Images::Files { .. } => 0,
        }
    }

    /// Number of images of each class.
    pub fn class_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.classes];
        self.labels.iter().filter(|label| **label >= 0).for_each(|label| counts[*label as usize] += 1);
        counts
    }
}

/// SHA-256 of labels and names, in hexadecimal.
pub(super) fn list_sha256<'a>(images: impl Iterator<Item = (i64, Option<&'a Path>)>) -> String {
    let mut hash = Sha256::new();
    for (label, name) in images {
        hash.update(label.to_le_bytes());
        if let Some(name) = name {
            hash.update(name.as_os_str().as_encoded_bytes());
            hash.update([0]);
        }
    }
    format!("{:x}", hash.finalize())
}
