//! Files of named tensors: safetensors, and PyTorch's own format as `torch.save` writes it, both ways.
//!
//! Whatever is written appears under its name only when it is complete and on the disk.

mod atomic;
mod opcode;
mod pickle;
pub mod safetensors;
pub mod torch_file;
mod unpickle;
mod unzip;
mod value;
mod zip;

pub use atomic::{refuse_same_file, write_atomically, write_bytes};
pub use value::Value;

use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::path::Path;
use tch::Tensor;

/// The named tensors of a safetensors file, or of one that `torch.save` wrote of a state_dict.
///
/// # Errors
/// As [`safetensors::load`] and [`torch_file::load`]; an object other than a dict of names and tensors.
pub fn tensors(path: &Path) -> Result<Vec<(String, Tensor)>> {
    if !torch_file::is_one(path)? {
        return Ok(safetensors::load(path)?.tensors);
    }
    let (Value::Dict(items) | Value::OrderedDict(items)) = torch_file::load(path)? else {
        return Err(Error::data(
            path,
            None,
            "expected a state_dict, found another object; save model.state_dict() alone",
        ));
    };
    let named = |(key, value)| match (key, value) {
        (Value::Str(name), Value::Tensor(tensor)) => Ok((name, tensor)),
        (key, _) => Err(Error::data(
            path,
            None,
            format!(
                "expected a state_dict, a dict of names and tensors, and {key:?} is not one; save model.state_dict() alone"
            ),
        )),
    };
    items.into_iter().map(named).collect()
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

/// A tensor's elements as bytes, row by row, from whatever device and layout it has.
pub(crate) fn bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let count = tensor.numel();
    let mut out = vec![0; count * tensor.f_kind()?.elt_size_in_bytes()];
    if count > 0 {
        tensor.f_copy_data_u8(&mut out, count)?;
    }
    Ok(out)
}
