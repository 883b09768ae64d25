//! Files of named tensors: safetensors both ways, and PyTorch's own format as `torch.save` writes it.
//!
//! Whatever is written appears under its name only when it is complete and on the disk.

mod atomic;
mod pickle;
pub mod safetensors;
pub mod torch_file;
mod value;
mod zip;

pub use atomic::{refuse_same_file, write_atomically, write_bytes};
pub use value::Value;

use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::path::Path;
use tch::Tensor;

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
