//! Files of named tensors: safetensors, and PyTorch's own format as `torch.save` writes it, both ways.
//!
//! Whatever is written appears under its name only when it is complete and on the disk.

mod atomic;
mod opcode;
mod pickle;
pub mod safetensors;
mod series;
pub mod torch_file;
mod unpickle;
mod unzip;
mod value;
mod zip;

pub use atomic::{refuse_same_file, write_atomically, write_beside_and_rename, write_bytes};
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
    let value = torch_file::load(path)?;
    let mut found = Vec::new();
    flatten("", &value, &mut found);
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
fn flatten(prefix: &str, value: &Value, out: &mut Vec<(String, Tensor)>) {
    for (key, value) in value.items().unwrap_or_default() {
        let key = match key {
            Value::Str(key) => key.clone(),
            Value::Int(n) => n.to_string(),
            _ => continue,
        };
        let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        match value {
            Value::Tensor(t) => out.push((name, t.shallow_clone())),
            other => flatten(&name, other, out),
        }
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
