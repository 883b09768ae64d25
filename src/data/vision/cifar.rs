//! CIFAR-10 and CIFAR-100: the binary versions, records of one or two label bytes and 3 x 32 x 32 pixels, and the Python versions,
//! pickled batches.
//!
//! # Source
//! Krizhevsky 2009; <https://www.cs.toronto.edu/~kriz/cifar.html>.

use super::{ImageSet, Split, batch, class_names, find, note_selection, records_of, stray_label};
use crate::checkpoint::load_pickle;
use crate::error::{Error, Result};
use std::path::Path;

const EDGE: usize = 32;
const PIXELS: usize = 3 * EDGE * EDGE;
/// Records of the official parts; no file has more than a whole training part.
const TRAIN_RECORDS: usize = 50_000;
const TEST_RECORDS: usize = 10_000;

/// What differs between the two sets.
pub(super) struct Layout {
    folder: &'static str,
    train: &'static [&'static str],
    test: &'static [&'static str],
    /// Label bytes of a record with the number of classes of each: the last one counts.
    labels: &'static [usize],
    names: &'static str,
    /// The Python version: folder, the key of the labels, the file of the names and their key in it.
    python: [&'static str; 4],
}

pub(super) const CIFAR_10: Layout = Layout {
    folder: "cifar-10-batches-bin",
    train: &["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"],
    test: &["test_batch.bin"],
    labels: &[10],
    names: "batches.meta.txt",
    python: ["cifar-10-batches-py", "labels", "batches.meta", "label_names"],
};

pub(super) const CIFAR_100: Layout = Layout {
    folder: "cifar-100-binary",
    train: &["train.bin"],
    test: &["test.bin"],
    labels: &[20, 100],
    names: "fine_label_names.txt",
    python: ["cifar-100-python", "fine_labels", "meta", "fine_label_names"],
};

/// Reads a split, of the binary version where both are there.
pub(super) fn load(root: &Path, split: Split, layout: &Layout) -> Result<ImageSet> {
    let (files, published, part) = match split {
        Split::Pretrain | Split::Train => (layout.train, TRAIN_RECORDS, "training"),
        Split::Test => (layout.test, TEST_RECORDS, "test"),
    };
    let python = |name: &str| name.trim_end_matches(".bin").to_string();
    let folder = [layout.folder, layout.python[0]].iter().map(|name| root.join(name)).find(|folder| folder.is_dir());
    let folder = folder.unwrap_or_else(|| root.to_path_buf());
    let pickled = !folder.join(files[0]).is_file() && folder.join(python(files[0])).is_file();
    let (pixels, labels) =
        if pickled { python_batches(&folder, files, layout)? } else { records(&folder, files, layout)? };
    note_selection(&folder, part, labels.len(), published);
    let classes = layout.labels.last().copied().unwrap_or(0);
    let mut set = ImageSet::memory(pixels, [3, EDGE, EDGE], labels, classes);
    set.class_names = if pickled {
        python_names(&folder.join(layout.python[2]), layout.python[3], classes)?
    } else {
        class_names(&folder.join(layout.names), classes)?
    };
    Ok(set)
}

/// Pixels and labels of pickled batches.
fn python_batches(folder: &Path, files: &[&str], layout: &Layout) -> Result<(Vec<u8>, Vec<i64>)> {
    let classes = layout.labels.last().copied().unwrap_or(0);
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for name in files {
        let name = name.trim_end_matches(".bin").to_string();
        let path = find(folder, std::slice::from_ref(&name), &format!("file {name} of {}", layout.python[0]))?;
        let batch = batch::read(&path, EDGE, layout.python[1], 0, classes)?;
        pixels.extend_from_slice(&batch.pixels);
        labels.extend(batch.labels);
    }
    Ok((pixels, labels))
}

/// Pixels and labels of the files of the binary version.
fn records(folder: &Path, files: &[&str], layout: &Layout) -> Result<(Vec<u8>, Vec<i64>)> {
    let record = layout.labels.len() + PIXELS;
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    let mut first = None;
    for name in files {
        let path = find(folder, &[(*name).to_string()], &format!("file {name} of {}", layout.folder))?;
        records_of(&path, record, TRAIN_RECORDS, "records")?;
        let bytes = std::fs::read(&path).map_err(Error::io(&path, "cannot read"))?;
        // The official files of a part have equal lengths: another length at a record's edge is a file cut short.
        let expected = *first.get_or_insert(bytes.len());
        if bytes.len() != expected {
            return Err(Error::data(
                &path,
                Some(bytes.len().min(expected) as u64),
                format!(
                    "has {} records; expected {} as in {}: one of the two is cut short; fetch it again",
                    bytes.len() / record,
                    expected / record,
                    files[0]
                ),
            ));
        }
        for (column, classes) in layout.labels.iter().enumerate() {
            let column_of = bytes.chunks_exact(record).map(|r| r[column]);
            if let Some((index, label)) = stray_label(column_of, *classes) {
                return Err(Error::data(
                    &path,
                    Some((index * record + column) as u64),
                    format!("label {label} of image {index} is no class; expected 0 to {}", classes - 1),
                ));
            }
        }
        for record in bytes.chunks_exact(record) {
            let (head, image) = record.split_at(layout.labels.len());
            labels.extend(head.last().map(|label| i64::from(*label)));
            pixels.extend_from_slice(image);
        }
    }
    Ok((pixels, labels))
}

/// The names of the classes in a pickled dict, where there is such a file.
fn python_names(path: &Path, key: &str, classes: usize) -> Result<Vec<String>> {
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let file = load_pickle(path)?;
    let names = file.get(key).and_then(|names| names.elements());
    let names: Option<Vec<String>> = names.and_then(|n| n.iter().map(|n| n.as_str().map(String::from)).collect());
    names
        .filter(|names| names.len() == classes)
        .ok_or_else(|| Error::data(path, None, format!("has no list `{key}` of {classes} names of classes")))
}
