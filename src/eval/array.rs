//! One array of a user's `.npy` or safetensors file, mapped and never loaded as a whole.

use crate::checkpoint::{npy_header, safetensors};
use crate::error::{Error, Result};
use crate::torch::{Mapped, Stamp};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use tch::Kind;

/// How `numpy.save` and a zip archive begin.
const NPY: &[u8] = b"\x93NUMPY";
const ZIP: &[u8] = b"PK\x03\x04";

/// Names of tensors that an error lists at most.
const MOST_LISTED: usize = 20;

/// The arrays that serve a purpose.
pub(super) struct Wanted {
    /// In words, with the shape.
    pub what: &'static str,
    /// The kinds of elements.
    pub kinds: &'static [Kind],
    /// Whether a shape serves; an array without elements never does.
    pub fits: fn(&[usize]) -> bool,
    /// What it is called, where a file has several that would serve.
    pub names: &'static [&'static str],
}

/// An array in a file, its elements little-endian.
#[derive(Debug)]
pub(super) struct Array {
    name: String,
    file: File,
    map: Mapped,
    opened: Stamp,
    kind: Kind,
    shape: Vec<usize>,
    fortran: bool,
    begin: usize,
}

impl Array {
    /// Opens FILE, or FILE:KEY for one tensor of a safetensors file. A file whose own name is the whole text comes first.
    ///
    /// # Errors
    /// What is no file of these kinds or is damaged, and an array that is not `wanted`.
    pub fn open(text: &str, wanted: &Wanted) -> Result<Array> {
        let (path, key) = split(text)?;
        let kind = path.metadata().map_err(Error::io(&path, "cannot read"))?;
        if !kind.is_file() {
            let found =
                if kind.is_dir() { "a folder" } else { "a pipe or a device, which cannot be mapped into memory" };
            return Err(Error::data(&path, None, format!("expected a .npy or safetensors file, found {found}")));
        }
        let mut file = File::open(&path).map_err(Error::io(&path, "cannot open"))?;
        let opened = Stamp::of(&file).map_err(Error::io(&path, "cannot read"))?;
        if opened.length == 0 {
            return Err(Error::data(&path, None, "the file is empty"));
        }
        let map = Mapped::of_user(&file, &path)?;
        let length = map.bytes().len();
        if length as u64 != opened.length {
            return Err(Error::data(&path, None, "changed while it was opened; start again when it is complete"));
        }
        let found = match map.bytes() {
            bytes if bytes.starts_with(NPY) => of_npy(&path, key, bytes)?,
            bytes if bytes.starts_with(ZIP) => {
                return Err(Error::data(
                    &path,
                    Some(0),
                    "expected a .npy or safetensors file, found a zip archive, as numpy.savez and torch.save write them; save \
                     the one array with numpy.save, or all of them with safetensors",
                ));
            }
            _ if path.extension().is_some_and(|e| e == "npy") => {
                return Err(Error::data(&path, Some(0), "no array of numpy.save: it does not begin as one"));
            }
            _ => of_safetensors(&path, key, &mut file, opened.length, wanted)?,
        };
        let Found { kind, shape, fortran, begin } = found;
        let array = Array { name: text.to_string(), file, map, opened, kind, shape, fortran, begin };
        array.check(wanted)?;
        Ok(array)
    }

    /// The text that it was opened by.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kind of its elements.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its shape, no size 0.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// An error that names the file.
    pub fn wrong(&self, message: impl Into<String>) -> Error {
        Error::data(&self.name, None, message)
    }

    /// The bytes of some indices of the first dimension, in C order.
    ///
    /// # Errors
    /// A file that was written to since it was opened.
    pub fn bytes(&self, rows: Range<usize>) -> Result<Vec<u8>> {
        self.unchanged()?;
        let size = self.kind.elt_size_in_bytes();
        let columns = self.shape[1..].iter().product::<usize>();
        let all = &self.map.bytes()[self.begin..];
        let taken = if self.fortran && self.shape.len() == 2 {
            let n = self.shape[0];
            let places = rows.flat_map(|row| (0..columns).map(move |column| (column * n + row) * size));
            places.flat_map(|at| &all[at..at + size]).copied().collect()
        } else {
            all[rows.start * columns * size..rows.end * columns * size].to_vec()
        };
        self.unchanged()?;
        Ok(taken)
    }

    /// SHA-256 of the whole file.
    ///
    /// # Errors
    /// A file that was written to since it was opened.
    pub fn sha256(&self) -> Result<String> {
        self.unchanged()?;
        let hash = Sha256::digest(self.map.bytes());
        self.unchanged()?;
        Ok(format!("{hash:x}"))
    }

    fn unchanged(&self) -> Result<()> {
        if Stamp::of(&self.file).map_err(Error::io(&self.name, "cannot read"))? != self.opened {
            return Err(self.wrong(
                "expected the numbers that were there when the file was opened, found that it was written to since; put a new \
                 version in its place by renaming it (mv), and start again",
            ));
        }
        Ok(())
    }

    /// Refuses what is not wanted.
    fn check(&self, wanted: &Wanted) -> Result<()> {
        let (kind, shape) = (self.kind, &self.shape);
        if !wanted.kinds.contains(&kind) {
            return Err(self.wrong(format!("expected {} of {:?}, found {kind:?}", wanted.what, wanted.kinds)));
        }
        if !(wanted.fits)(shape) {
            return Err(self.wrong(format!("expected {}, found shape {shape:?}", wanted.what)));
        }
        if shape.contains(&0) {
            return Err(self.wrong(format!("expected {}, found none: shape {shape:?}", wanted.what)));
        }
        Ok(())
    }
}

/// Where an array lies.
struct Found {
    kind: Kind,
    shape: Vec<usize>,
    fortran: bool,
    begin: usize,
}

/// File and key. A colon may be part of a file's name: the longest name that is there counts.
fn split(text: &str) -> Result<(PathBuf, Option<&str>)> {
    let whole = Path::new(text);
    if whole.exists() {
        return Ok((whole.to_path_buf(), None));
    }
    for (at, _) in text.rmatch_indices(':') {
        let (path, key) = (Path::new(&text[..at]), &text[at + 1..]);
        if path.is_file() {
            return match key {
                "" => Err(Error::data(path, None, "expected the name of a tensor behind the colon, found none")),
                key => Ok((path.to_path_buf(), Some(key))),
            };
        }
    }
    let path = text.rsplit_once(':').map_or(text, |(path, _)| if path.is_empty() { text } else { path });
    Err(Error::data(
        text,
        None,
        format!("expected a .npy or safetensors file, as FILE or FILE:KEY, found no file {path}"),
    ))
}

fn of_npy(path: &Path, key: Option<&str>, bytes: &[u8]) -> Result<Found> {
    if let Some(key) = key {
        let message = format!(
            "expected the name of a .npy file alone, as it has one array without a name, found the key {key:?}"
        );
        return Err(Error::data(path, None, message));
    }
    let header = npy_header(bytes).map_err(|reason| Error::data(path, None, reason))?;
    let shape = header.shape.iter().map(|&size| usize::try_from(size)).collect::<std::result::Result<Vec<_>, _>>();
    let shape =
        shape.map_err(|_| Error::data(path, None, format!("shape {:?}: expected no negative sizes", header.shape)))?;
    let there = bytes.len() - header.begin;
    let expected = shape.iter().try_fold(header.kind.elt_size_in_bytes(), |n, &size| n.checked_mul(size));
    if expected != Some(there) {
        let expected = expected.map_or("more bytes than there can be".into(), |n| format!("{n} bytes"));
        let message = format!(
            "expected {expected} of elements for shape {shape:?} of {:?}, found {there}: the file is cut off, or more was \
             written behind its array",
            header.kind
        );
        return Err(Error::data(path, None, message));
    }
    Ok(Found { kind: header.kind, shape, fortran: header.fortran, begin: header.begin })
}

/// The tensor of a name; without one, the only that is wanted, or, among several, that which is called as expected.
fn of_safetensors(path: &Path, key: Option<&str>, file: &mut File, length: u64, wanted: &Wanted) -> Result<Found> {
    let (header, begin) = safetensors::read_header(path, file, length)?;
    let names = header.offset_keys();
    let serves = |name: &str| {
        header.info(name).is_some_and(|info| {
            let kind = safetensors::kind(info.dtype);
            kind.is_some_and(|kind| wanted.kinds.contains(&kind)) && (wanted.fits)(&info.shape)
        })
    };
    let name = match key {
        Some(key) => key,
        None => {
            let serving: Vec<&str> = names.iter().map(String::as_str).filter(|name| serves(name)).collect();
            let named: Vec<&str> = serving.iter().copied().filter(|name| wanted.names.contains(name)).collect();
            match (&serving[..], &named[..]) {
                (&[one], _) | (_, &[one]) => one,
                _ => {
                    let count = if serving.is_empty() { "none".into() } else { format!("{}", serving.len()) };
                    let message =
                        format!("expected one tensor of {}, found {count}; choose with FILE:KEY", wanted.what);
                    return Err(Error::data(path, None, format!("{message}; it has {}", listed(&header, &names))));
                }
            }
        }
    };
    let Some(info) = header.info(name) else {
        return Err(Error::data(path, None, format!("has no tensor `{name}`; it has {}", listed(&header, &names))));
    };
    let kind = safetensors::kind(info.dtype).ok_or_else(|| {
        let message = format!("`{name}` is {}; expected {} of {:?}", info.dtype, wanted.what, wanted.kinds);
        Error::data(path, None, message)
    })?;
    // The header's check has made sure that the offsets are within the file.
    Ok(Found { kind, shape: info.shape.clone(), fortran: false, begin: begin as usize + info.data_offsets.0 })
}

/// Names, kinds and shapes of a file's tensors.
fn listed(header: &::safetensors::tensor::Metadata, names: &[String]) -> String {
    if names.is_empty() {
        return "no tensors".into();
    }
    let mut names: Vec<&String> = names.iter().collect();
    names.sort_unstable();
    let more = names.len().saturating_sub(MOST_LISTED);
    let shown = names.iter().take(MOST_LISTED).filter_map(|name| {
        let info = header.info(name)?;
        Some(format!("{} ({} {:?})", name.chars().take(80).collect::<String>(), info.dtype, info.shape))
    });
    let mut shown: Vec<String> = shown.collect();
    shown.extend((more > 0).then(|| format!("{more} more")));
    shown.join(", ")
}
