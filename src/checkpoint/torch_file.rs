//! Files in the format of `torch.save`: written for `torch.load(weights_only=True)` and `mmap=True`, and read without running
//! anything that is in them.

use super::atomic::write_atomically;
use super::pickle::pickle;
use super::unpickle::{View, unpickle};
use super::unzip::ZipReader;
use super::value::Value;
use super::zip::{ALIGNMENT, LOCAL_HEADER, ZipWriter};
use crate::error::{Error, Result};
use crate::torch::{filled, with_bytes};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::rc::Rc;
use tch::{Device, Kind, Tensor};

/// Elements of a tensor that has more of them than its storage.
const MOST_EXPANDED: i64 = 1 << 20;

/// Saves `value` as `torch.save` does. The same value gives the same bytes.
///
/// Tensors come back on the CPU, without gradient; one tensor's bytes are in memory at a time.
///
/// # Errors
/// A tensor type that can't be saved, what LibTorch reports, and what the operating system refuses.
pub fn save(path: &Path, value: &Value) -> Result<()> {
    let pickled = pickle(value)?;
    write_atomically(path, |out| {
        let mut zip = ZipWriter::new(out, path);
        zip.add("archive/data.pkl", &pickled.stream)?;
        zip.add("archive/.format_version", b"1")?;
        zip.add("archive/.storage_alignment", ALIGNMENT.to_string().as_bytes())?;
        zip.add("archive/byteorder", if cfg!(target_endian = "big") { b"big" } else { b"little" })?;
        for (i, storage) in pickled.storages.iter().enumerate() {
            with_bytes(storage, |bytes| zip.add(&format!("archive/data/{i}"), bytes))?;
        }
        zip.add("archive/version", b"3\n")?;
        zip.finish()
    })
}

/// Whether a file begins as those of `torch.save` do, also as those before PyTorch 1.6, which [`load`] refuses with the remedy.
///
/// # Errors
/// A file that cannot be read.
pub fn is_one(path: &Path) -> Result<bool> {
    let begin = first_bytes(path)?;
    Ok(is_zip(&begin) || is_bare_pickle(&begin))
}

fn is_zip(begin: &[u8]) -> bool {
    begin.starts_with(&LOCAL_HEADER.to_le_bytes())
}

/// A pickle says its protocol first. So may the length that a safetensors file begins with, but `{` follows on that.
fn is_bare_pickle(begin: &[u8]) -> bool {
    matches!(begin, [0x80, 2..=5, ..]) && begin.get(8) != Some(&b'{')
}

/// Whether a file is a TorchScript module.
///
/// # Errors
/// A file that cannot be read, and a zip file that is damaged.
pub fn is_script(path: &Path) -> Result<bool> {
    if !is_zip(&first_bytes(path)?) {
        return Ok(false);
    }
    let zip = ZipReader::open(path)?;
    Ok(has_code(&zip, root_of(path, &zip)?))
}

/// Checks the bytes of a TorchScript module against the checksums of its archive, which LibTorch does not; those of its code,
/// which is compressed, are left out. A file that is no zip archive passes.
///
/// # Errors
/// As [`is_script`], and a wrong checksum.
pub fn verify_script(path: &Path) -> Result<()> {
    if !is_zip(&first_bytes(path)?) {
        return Ok(());
    }
    let zip = ZipReader::open(path)?;
    for (name, entry) in zip.entries().iter().filter(|(_, entry)| entry.stored) {
        zip.read(name, entry, &mut vec![0; entry.size as usize])?;
    }
    Ok(())
}

/// The folder that everything in the archive is in.
fn root_of<'a>(path: &Path, zip: &'a ZipReader) -> Result<&'a str> {
    let root = zip.entries().keys().find_map(|name| name.strip_suffix("/data.pkl").filter(|root| !root.contains('/')));
    root.ok_or_else(|| Error::data(path, None, "a zip file without data.pkl: no file of torch.save"))
}

fn has_code(zip: &ZipReader, root: &str) -> bool {
    zip.entries().contains_key(&format!("{root}/constants.pkl"))
}

fn first_bytes(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(Error::io(path, "cannot open"))?;
    file.take(9).read_to_end(&mut bytes).map_err(Error::io(path, "cannot read"))?;
    Ok(bytes)
}

/// Reads what `torch.save` wrote: plain data, containers and dense tensors, which come on the CPU, those of one storage as
/// views of it.
///
/// # Errors
/// A file that cannot be read or is damaged; the formats of PyTorch before 1.6 and of TorchScript; an object that is neither
/// plain data nor a tensor, by its name; sizes that are not those of the file. Memory is taken for what the file holds.
pub fn load(path: &Path) -> Result<Value> {
    let begin = first_bytes(path)?;
    if is_bare_pickle(&begin) {
        return Err(Error::data(
            path,
            Some(0),
            "a bare pickle, as torch.save wrote before PyTorch 1.6; convert it in Python: torch.save(torch.load(old), new)",
        ));
    }
    if !is_zip(&begin) {
        return Err(Error::data(
            path,
            Some(0),
            format!("no file of torch.save: it begins with {begin:02x?} and not with a zip header"),
        ));
    }
    let zip = ZipReader::open(path)?;
    let root = root_of(path, &zip)?;
    if has_code(&zip, root) {
        return Err(Error::data(
            path,
            None,
            "a TorchScript module, expected tensors alone; take them out of it: checkpoint convert FILE weights.pt",
        ));
    }
    let small = |name: &str| -> Result<Option<Vec<u8>>> {
        let name = format!("{root}/{name}");
        let Some(entry) = zip.entries().get(&name) else { return Ok(None) };
        let mut bytes = vec![0; entry.size as usize];
        zip.read(&name, entry, &mut bytes)?;
        Ok(Some(bytes))
    };
    if small("byteorder")?.is_some_and(|order| order != b"little") {
        return Err(Error::data(
            path,
            None,
            "written on a big-endian machine; only little-endian files are understood",
        ));
    }
    let stream = small("data.pkl")?.unwrap_or_default();
    let mut storages = Storages { path, zip: &zip, root, known: HashMap::new() };
    unpickle(path, &stream, &mut |view| storages.tensor(view))
}

/// The storages of a file, each read once.
struct Storages<'a> {
    path: &'a Path,
    zip: &'a ZipReader,
    root: &'a str,
    known: HashMap<Rc<str>, Tensor>,
}

impl Storages<'_> {
    fn tensor(&mut self, view: &View) -> Result<Tensor> {
        let path = self.path;
        let wrong = |what: &str| {
            let View { key, kind, length, offset, size, stride } = view;
            Error::data(
                path,
                None,
                format!(
                    "storage `{key}` of {length} {kind:?}: {what}: shape {size:?}, strides {stride:?}, from element {offset} on"
                ),
            )
        };
        if view.size.len() != view.stride.len()
            || view.size.iter().chain(&view.stride).any(|&n| n < 0)
            || view.offset < 0
        {
            return Err(wrong("a shape that no tensor has"));
        }
        // LibTorch's own limits: 64 dimensions, and a number of elements that can be told whatever dimensions are empty.
        let most = view.size.iter().try_fold(1i64, |n, &size| n.checked_mul(size.max(1)));
        if most.is_none() || view.size.len() > 64 {
            return Err(wrong("a shape that no tensor has"));
        }
        let count: i64 = view.size.iter().product();
        let storage = self.storage(view)?;
        if count == 0 {
            return Ok(Tensor::f_empty(&view.size, (view.kind, Device::Cpu))?);
        }
        let steps = view.size.iter().zip(&view.stride).map(|(&size, &stride)| (size - 1).checked_mul(stride));
        let last = steps.into_iter().try_fold(view.offset, |at, step| at.checked_add(step?));
        if last.is_none_or(|last| last >= view.length) {
            return Err(wrong("it has less elements than a tensor of it needs"));
        }
        // An expanded tensor takes memory when it is used, which a small file must not make large.
        if count > view.length && count > MOST_EXPANDED {
            return Err(wrong("an expanded tensor of many more elements than are stored; save it with .contiguous()"));
        }
        Ok(storage.f_as_strided(&view.size, &view.stride, view.offset)?)
    }

    /// All elements of the storage that a view is of, [length].
    fn storage(&mut self, view: &View) -> Result<Tensor> {
        let wrong = |message: String| Error::data(self.path, None, format!("storage `{}`: {message}", view.key));
        if let Some(known) = self.known.get(&view.key) {
            if known.f_kind()? != view.kind || known.size() != [view.length] {
                return Err(wrong(format!(
                    "used with two types or lengths, one of them {:?} of {}",
                    view.kind, view.length
                )));
            }
            return Ok(known.shallow_clone());
        }
        let name = format!("{}/data/{}", self.root, view.key);
        let entry = self.zip.entries().get(&name).ok_or_else(|| wrong(format!("the file has no `{name}`")))?;
        let width = view.kind.elt_size_in_bytes() as u64;
        if u64::try_from(view.length).ok().and_then(|n| n.checked_mul(width)) != Some(entry.size) {
            return Err(wrong(format!(
                "{} elements of {:?} expected, found {} bytes: the file is damaged",
                view.length, view.kind, entry.size
            )));
        }
        let bytes = filled(entry.size as usize, |to| {
            self.zip.read(&name, entry, to)?;
            if view.kind == Kind::Bool && to.iter().any(|&b| b > 1) {
                return Err(wrong("a bool that is neither 0 nor 1".into()));
            }
            Ok(())
        })?;
        let storage = if entry.size == 0 {
            Tensor::f_empty([0], (view.kind, Device::Cpu))?
        } else {
            bytes.f_view_dtype(view.kind)?
        };
        self.known.insert(view.key.clone(), storage.shallow_clone());
        Ok(storage)
    }
}
