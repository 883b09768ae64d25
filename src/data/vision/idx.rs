//! The IDX files of the MNIST family, packed with gzip or not.
//!
//! Layout: two zero bytes, a byte for the type (8 is an unsigned byte), a byte for the number of dimensions, each dimension as a
//! big-endian u32, then the values.

use super::{ImageSet, Split, find, stray_label};
use crate::config::augment::MAX_EDGE;
use crate::error::{Error, Result};
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// Deflate writes at most this many bytes for one: a longer claim can't be true.
const MOST_BYTES_A_PACKED_BYTE: u64 = 1032;
/// Most values of a file, whatever it claims.
const MOST_VALUES: u64 = 1 << 32;

/// Reads images and labels of a split.
pub(super) fn load(root: &Path, split: Split, classes: usize) -> Result<ImageSet> {
    let (images_path, [count, height, width], pixels) = read(root, split, "images", "idx3")?;
    let (labels_path, [label_count], labels) = read(root, split, "labels", "idx1")?;
    if height > MAX_EDGE || width > MAX_EDGE {
        return Err(Error::data(
            &images_path,
            Some(8),
            format!("the images are {height} x {width} pixels; expected edges of at most {MAX_EDGE}"),
        ));
    }
    if label_count != count {
        return Err(Error::data(
            &labels_path,
            Some(4),
            format!("has {label_count} labels, but {} has {count} images; expected as many", images_path.display()),
        ));
    }
    if let Some((index, label)) = stray_label(labels.iter().copied(), classes) {
        return Err(Error::data(
            &labels_path,
            Some(8 + index as u64),
            format!(
                "label {label} of image {index} is no class; expected 0 to {} (set data.classes if there are more classes)",
                classes - 1
            ),
        ));
    }
    Ok(ImageSet::memory(pixels, [1, height, width], labels.into_iter().map(i64::from).collect(), classes))
}

/// Finds and reads one file: its path, dimensions and values.
fn read<const DIMS: usize>(
    root: &Path,
    split: Split,
    what: &str,
    idx: &str,
) -> Result<(PathBuf, [usize; DIMS], Vec<u8>)> {
    let stem = match split {
        Split::Pretrain | Split::Train => "train",
        Split::Test => "t10k",
    };
    let plain = [format!("{stem}-{what}-{idx}-ubyte"), format!("{stem}-{what}.{idx}-ubyte")];
    let names: Vec<String> = plain.iter().flat_map(|name| [name.clone(), format!("{name}.gz")]).collect();
    let path = find(root, &names, &format!("{stem} {what}"))?;
    let file = File::open(&path).map_err(Error::io(&path, "cannot open"))?;
    let stored = file.metadata().map_err(Error::io(&path, "cannot read"))?.len();
    let mut file = BufReader::new(file);
    // Unpacked or not is told by the content, as some mirrors keep the wrong name.
    let packed =
        std::io::BufRead::fill_buf(&mut file).map_err(Error::io(&path, "cannot read"))?.starts_with(&[0x1f, 0x8b]);
    let (dims, values) = if packed {
        decode(&mut MultiGzDecoder::new(file), &path, stored.saturating_mul(MOST_BYTES_A_PACKED_BYTE))?
    } else {
        decode(&mut file, &path, stored)?
    };
    Ok((path, dims, values))
}

/// Reads dimensions and values from a stream that can't have more than `bound` bytes.
fn decode<const DIMS: usize>(stream: &mut impl Read, path: &Path, bound: u64) -> Result<([usize; DIMS], Vec<u8>)> {
    let fault = |offset: usize, message: String| Error::data(path, Some(offset as u64), message);
    let head_len = 4 + 4 * DIMS;
    let head = take(stream, path, 0, head_len)?;
    let kind = match DIMS {
        1 => "labels (one dimension)",
        _ => "grey images (three dimensions)",
    };
    let magic = [0, 0, 8, DIMS as u8];
    if head.get(..4) != Some(&magic) {
        let found: Vec<String> = head.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        return Err(fault(
            0,
            format!(
                "expected the magic number 0000080{DIMS} of an IDX file of bytes with {kind}, found {}",
                found.concat()
            ),
        ));
    }
    if head.len() < head_len {
        return Err(fault(head.len(), format!("ends inside the header; expected {head_len} bytes of header")));
    }
    let mut dims = [0; DIMS];
    for (dim, bytes) in dims.iter_mut().zip(head[4..].chunks_exact(4)) {
        *dim = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
    }
    let shape = dims.map(|d| d.to_string()).join(" x ");
    let values = dims.iter().try_fold(1_u64, |product, dim| product.checked_mul(*dim as u64)).unwrap_or(u64::MAX);
    if values == 0 {
        return Err(fault(4, format!("the header says {shape} values; expected at least one image")));
    }
    if values > MOST_VALUES || values > bound.saturating_sub(head_len as u64) {
        return Err(fault(
            4,
            format!(
                "the header says {shape} = {values} values, but the file has room for {} at most: it is cut short or no IDX file; \
                 fetch it again",
                bound.saturating_sub(head_len as u64).min(MOST_VALUES)
            ),
        ));
    }
    let values = values as usize;
    let content = take(stream, path, head_len, values)?;
    if content.len() < values {
        return Err(fault(
            head_len + content.len(),
            format!("ends after {} of {shape} = {values} values: it is cut short; fetch it again", content.len()),
        ));
    }
    // Reading on also makes the decoder compare the checksum at the end of packed files.
    if !take(stream, path, head_len + values, 1)?.is_empty() {
        return Err(fault(
            head_len + values,
            format!("goes on after {shape} = {values} values; expected the end of the file"),
        ));
    }
    Ok((dims, content))
}

/// Up to `len` bytes; memory grows with what is really there.
fn take(stream: &mut impl Read, path: &Path, offset: usize, len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(len as u64).read_to_end(&mut bytes).map_err(|e| match e.kind() {
        std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData => {
            Error::data(
                path,
                Some((offset + bytes.len()) as u64),
                format!("the gzip stream is damaged or cut short ({e}); fetch the file again"),
            )
        }
        _ => Error::io(path, "cannot read")(e),
    })?;
    Ok(bytes)
}
