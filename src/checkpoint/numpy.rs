//! numpy's arrays: in pickles of Python 2 and 3, and in `.npz` archives.

use super::unpickle::unpickle;
use super::unzip::ZipReader;
use super::value::Value;
use crate::error::{Error, Result};
use std::path::Path;
use tch::{Kind, Tensor};

/// A pickle longer than this is not read into memory.
const MOST_BYTES: u64 = 8 << 30;

/// Reads a bare pickle of plain data and numpy arrays, which become tensors. Nothing in it is run.
///
/// # Errors
/// A file that cannot be read or is no pickle; an object that is neither plain data nor an array of numbers, by its name.
pub fn load_pickle(path: &Path) -> Result<Value> {
    let length = path.metadata().map_err(Error::io(path, "cannot read"))?.len();
    if length > MOST_BYTES {
        return Err(Error::data(path, None, format!("{length} bytes; pickles of up to {MOST_BYTES} are read")));
    }
    let stream = std::fs::read(path).map_err(Error::io(path, "cannot read"))?;
    unpickle(path, &stream, &mut |_| Err(Error::data(path, None, "a bare pickle cannot have tensors of torch.save")))
}

/// Reads the arrays of an `.npz` archive, as `numpy.savez` and `savez_compressed` write them.
///
/// # Errors
/// A file that cannot be read or is damaged; arrays of other things than numbers; sizes that are not those of the file.
pub fn load_npz(path: &Path) -> Result<Vec<(String, Tensor)>> {
    let zip = ZipReader::open(path)?;
    let mut arrays = Vec::new();
    for (name, entry) in zip.entries() {
        let Some(stem) = name.strip_suffix(".npy") else { continue };
        let bytes = zip.read_unpacked(name, entry)?;
        let array = npy(&bytes).map_err(|reason| Error::data(path, None, format!("`{name}`: {reason}")))?;
        arrays.push((stem.to_string(), array));
    }
    Ok(arrays)
}

/// An array in the format of `numpy.save`.
fn npy(bytes: &[u8]) -> std::result::Result<Tensor, String> {
    let header = npy_header(bytes)?;
    array(header.kind, &header.shape, header.fortran, &bytes[header.begin..])
}

/// What a file of `numpy.save` says of its elements.
#[derive(Debug)]
pub(crate) struct NpyHeader {
    pub kind: Kind,
    pub shape: Vec<i64>,
    /// Whether the first index is the one that changes fastest.
    pub fortran: bool,
    /// Where the elements begin, at most the file's length.
    pub begin: usize,
}

/// Reads magic number, version, length of the header, and the header, which is a Python dict. The error is the reason alone.
///
/// # Source
/// <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>
pub(crate) fn npy_header(bytes: &[u8]) -> std::result::Result<NpyHeader, String> {
    let damaged = || "no array of numpy.save: it is cut off or damaged".to_string();
    let (length, begin) = match bytes {
        [0x93, b'N', b'U', b'M', b'P', b'Y', 1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 10),
        [0x93, b'N', b'U', b'M', b'P', b'Y', 2 | 3, _, a, b, c, d, ..] => {
            (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 12)
        }
        _ => return Err(damaged()),
    };
    let header = bytes.get(begin..).and_then(|rest| rest.get(..length)).ok_or_else(damaged)?;
    let header = std::str::from_utf8(header).map_err(|_| damaged())?;
    let after = |key: &str| header.split_once(&format!("'{key}':")).map(|(_, rest)| rest.trim_start());
    let code = after("descr").and_then(|rest| rest.strip_prefix('\'')?.split_once('\''));
    let (code, _) = code.ok_or_else(|| {
        format!("elements that are no plain numbers: {}", header.trim().chars().take(200).collect::<String>())
    })?;
    let kind = kind(code).ok_or_else(|| format!("elements {code:?}, which are not understood"))?;
    let fortran = after("fortran_order").is_some_and(|rest| rest.starts_with("True"));
    let shape = after("shape").and_then(|rest| rest.strip_prefix('(')?.split_once(')')).ok_or_else(damaged)?.0;
    let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty()).map(str::parse);
    let shape = sizes.collect::<std::result::Result<Vec<i64>, _>>().map_err(|_| damaged())?;
    Ok(NpyHeader { kind, shape, fortran, begin: begin + length })
}

/// The element type of numpy's code for it; none for big-endian numbers and for what LibTorch has not.
pub(super) fn kind(code: &str) -> Option<Kind> {
    Some(match code.trim_start_matches(['<', '|', '=']) {
        "u1" => Kind::Uint8,
        "i1" => Kind::Int8,
        "i2" => Kind::Int16,
        "i4" => Kind::Int,
        "i8" => Kind::Int64,
        "f2" => Kind::Half,
        "f4" => Kind::Float,
        "f8" => Kind::Double,
        "b1" => Kind::Bool,
        _ => return None,
    })
}

/// A tensor with the shape and elements of an array; the error is the reason alone.
pub(super) fn array(kind: Kind, shape: &[i64], fortran: bool, bytes: &[u8]) -> std::result::Result<Tensor, String> {
    let count = shape.iter().try_fold(1i64, |n, &size| n.checked_mul(size.max(0)));
    let expected = count.and_then(|n| n.checked_mul(kind.elt_size_in_bytes() as i64));
    if expected != i64::try_from(bytes.len()).ok() || shape.iter().any(|&n| n < 0) || shape.len() > 64 {
        return Err(format!("an array of shape {shape:?} of {kind:?} has {} bytes: it is damaged", bytes.len()));
    }
    if kind == Kind::Bool && bytes.iter().any(|&b| b > 1) {
        return Err("a bool that is neither 0 nor 1".into());
    }
    let reversed: Vec<i64> = shape.iter().rev().copied().collect();
    let make = || -> std::result::Result<Tensor, tch::TchError> {
        if fortran && shape.len() > 1 {
            let order: Vec<i64> = (0..shape.len() as i64).rev().collect();
            return Tensor::f_from_data_size(bytes, &reversed, kind)?.f_permute(&order);
        }
        Tensor::f_from_data_size(bytes, shape, kind)
    };
    make().map_err(|e| Error::from(e).to_string())
}
