//! STL-10, the binary version: images of 3 x 96 x 96 bytes whose planes are stored column by column, labels from 1 to 10 in files
//! beside them.
//!
//! # Source
//! Coates, Lee, Ng 2011; <https://cs.stanford.edu/~acoates/stl10/>.

use super::{ImageSet, Split, class_names, find, note_selection, records_of};
use crate::config::data::{Stl10Config, Stl10Part};
use crate::error::{Error, Result};
use std::fs::File;
use std::io::Read;
use std::path::Path;

const EDGE: usize = 96;
const AREA: usize = EDGE * EDGE;
const IMAGE: usize = 3 * AREA;
const CLASSES: usize = 10;

/// A part: the stem of its files, whether it has labels, and the images that are published.
struct Part(&'static str, bool, usize);

const TRAIN: Part = Part("train", true, 5_000);
const TEST: Part = Part("test", true, 8_000);
const UNLABELED: Part = Part("unlabeled", false, 100_000);

/// Reads a split.
pub(super) fn load(config: &Stl10Config, split: Split) -> Result<ImageSet> {
    let folder = config.root.join("stl10_binary");
    let folder = if folder.is_dir() { folder } else { config.root.clone() };
    let parts: &[Part] = match (split, config.pretrain) {
        (Split::Pretrain, Stl10Part::Unlabeled) => &[UNLABELED],
        (Split::Pretrain, Stl10Part::TrainAndUnlabeled) => &[TRAIN, UNLABELED],
        (Split::Pretrain, Stl10Part::Train) | (Split::Train, _) => &[TRAIN],
        (Split::Test, _) => &[TEST],
    };
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for Part(stem, labelled, published) in parts {
        let path = find(&folder, &[format!("{stem}_X.bin")], &format!("file {stem}_X.bin of STL-10"))?;
        let before = pixels.len();
        read_images(&path, *published, &mut pixels)?;
        let images = (pixels.len() - before) / IMAGE;
        if *labelled {
            let path = find(&folder, &[format!("{stem}_y.bin")], &format!("file {stem}_y.bin of STL-10"))?;
            labels.extend(read_labels(&path, images)?);
        } else {
            labels.extend(std::iter::repeat_n(-1, images));
        }
        note_selection(&folder, stem, images, *published);
    }
    let classes = if labels.iter().any(|label| *label >= 0) { CLASSES } else { 0 };
    let mut set = ImageSet::memory(pixels, [3, EDGE, EDGE], labels, classes);
    if classes > 0 {
        set.class_names = class_names(&folder.join("class_names.txt"), CLASSES)?;
    }
    Ok(set)
}

/// Appends the images of a file, each plane turned to rows.
fn read_images(path: &Path, most: usize, pixels: &mut Vec<u8>) -> Result<()> {
    let mut file = File::open(path).map_err(Error::io(path, "cannot open"))?;
    let images = records_of(path, IMAGE, most, "images")?;
    pixels.reserve(images * IMAGE);
    let mut image = vec![0; IMAGE];
    for _ in 0..images {
        file.read_exact(&mut image).map_err(Error::io(path, "cannot read"))?;
        for plane in image.chunks_exact(AREA) {
            pixels.extend((0..AREA).map(|i| plane[i % EDGE * EDGE + i / EDGE]));
        }
    }
    Ok(())
}

/// The labels of a file, from 0 on.
fn read_labels(path: &Path, images: usize) -> Result<Vec<i64>> {
    let bytes = std::fs::read(path).map_err(Error::io(path, "cannot read"))?;
    if bytes.len() != images {
        return Err(Error::data(
            path,
            Some(bytes.len().min(images) as u64),
            format!("has {} labels for {images} images; expected as many: fetch it again", bytes.len()),
        ));
    }
    if let Some(index) = bytes.iter().position(|label| !(1..=CLASSES as u8).contains(label)) {
        return Err(Error::data(
            path,
            Some(index as u64),
            format!("label {} of image {index} is no class; expected 1 to {CLASSES}", bytes[index]),
        ));
    }
    Ok(bytes.into_iter().map(|label| i64::from(label) - 1).collect())
}
