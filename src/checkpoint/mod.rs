//! Files of named tensors: safetensors, and PyTorch's own format as `torch.save` writes it, both ways.
//!
//! Whatever is written appears under its name only when it is complete and on the disk.

mod atomic;
mod numpy;
mod opcode;
mod pickle;
pub mod safetensors;
mod series;
pub mod torch_file;
mod unpickle;
mod unzip;
mod value;
mod zip;

pub use atomic::{refuse_same_file, write_atomically, write_beside_and_rename, write_bytes, write_changed};
pub(crate) use numpy::npy_header;
pub use numpy::{load_npz, load_pickle};
pub use series::Series;
pub use value::Value;

use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::path::Path;
use tch::Tensor;

/// All tensors of a safetensors file, or of one that `torch.save` wrote, whatever dicts it has them in: a tensor within dicts
/// is named by its keys, joined by dots, as `state_dict.encoder.conv1.weight`. Other values are passed over.
///
/// # Errors
/// As [`safetensors::load`] and [`torch_file::load`]; a file without named tensors; two of one name.
pub fn tensors(path: &Path) -> Result<Vec<(String, Tensor)>> {
    if !torch_file::is_one(path)? {
        return Ok(safetensors::load(path)?.tensors);
    }
    named(path, &torch_file::load(path)?)
}

/// All tensors of a file that `torch.save` wrote, see [`tensors`].
pub(crate) fn named(path: &Path, value: &Value) -> Result<Vec<(String, Tensor)>> {
    let mut found = Vec::new();
    flatten(path, "", value, &mut Names::new(), &mut found)?;
    if found.is_empty() {
        return Err(Error::data(path, None, "no named tensors: expected a state_dict, alone or within other dicts"));
    }
    let mut seen = HashSet::new();
    if let Some((twice, _)) = found.iter().find(|(name, _)| !seen.insert(name.as_str())) {
        return Err(Error::data(path, None, format!("two tensors come to the name `{twice}`")));
    }
    Ok(found)
}

/// The tensors within dicts, by their keys joined with dots.
fn flatten(path: &Path, prefix: &str, value: &Value, names: &mut Names, out: &mut Vec<(String, Tensor)>) -> Result<()> {
    for (key, value) in value.items().unwrap_or_default() {
        let key = match key {
            Value::Str(key) => key.clone(),
            Value::Int(n) => n.to_string(),
            _ => continue,
        };
        match value {
            Value::Tensor(t) => out.push((names.join(path, prefix, &key)?, t.shallow_clone())),
            Value::Dict(_) | Value::OrderedDict(_) => {
                flatten(path, &names.join(path, prefix, &key)?, value, names, out)?;
            }
            _ => (),
        }
    }
    Ok(())
}

/// Joins the keys of dicts, to names that are no longer, and together take no more memory, than checkpoints need.
#[derive(Debug)]
pub(crate) struct Names {
    left: usize,
}

impl Names {
    /// Characters of one name, and bytes of all.
    pub const MOST: usize = 4096;
    const MOST_IN_ALL: usize = 64 << 20;

    pub fn new() -> Names {
        Names { left: Names::MOST_IN_ALL }
    }

    pub fn join(&mut self, path: &Path, prefix: &str, key: &str) -> Result<String> {
        let length = prefix.len() + 1 + key.len();
        let left = self.left.checked_sub(length).filter(|_| length <= Names::MOST);
        self.left = left.ok_or_else(|| {
            Error::data(path, None, format!("names of more than {} bytes each, or far too many of them", Names::MOST))
        })?;
        Ok(if prefix.is_empty() { key.to_string() } else { format!("{prefix}.{key}") })
    }
}

/// SHA-256 of a file, in hexadecimal.
///
/// # Errors
/// A file that cannot be read.
pub fn sha256_of(path: &Path) -> Result<String> {
    let mut file = std::fs::File::open(path).map_err(Error::io(path, "cannot read"))?;
    let mut hash = Sha256::new();
    std::io::copy(&mut file, &mut hash).map_err(Error::io(path, "cannot read"))?;
    Ok(format!("{:x}", hash.finalize()))
}
