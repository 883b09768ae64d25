//! CIFAR-10 and CIFAR-100: the binary versions, records of one or two label bytes and 3 x 32 x 32 pixels, and the Python versions,
//! pickled batches.
//!
//! # Source
//! Krizhevsky 2009; <https://www.cs.toronto.edu/~kriz/cifar.html>.

use super::{ImageSet, Split, batch, find, stray_label};
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
    if labels.len() != published {
        eprintln!(
            "note: {}: {} {part} images; the published set has {published}: a selection, or files cut short",
            folder.display(),
            labels.len()
        );
    }
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
        let bytes = read(&path, record)?;
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

/// The bytes of a file that has whole records, one at least.
fn read(path: &Path, record: usize) -> Result<Vec<u8>> {
    let len = path.metadata().map_err(Error::io(path, "cannot read"))?.len();
    let most = (TRAIN_RECORDS * record) as u64;
    if len == 0 || len % record as u64 != 0 || len > most {
        return Err(Error::data(
            path,
            Some(len - len % record as u64),
            format!(
                "is {len} bytes long; expected a whole number of records of {record} bytes, 1 to {TRAIN_RECORDS}: it is cut short or \
                 another version than the binary one; fetch it again"
            ),
        ));
    }
    std::fs::read(path).map_err(Error::io(path, "cannot read"))
}

/// The names of the classes, one a line, where there is such a file.
pub(super) fn class_names(path: &Path, classes: usize) -> Result<Vec<String>> {
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
