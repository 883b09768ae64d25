//! Files in the format of `torch.save`, for `torch.load(weights_only=True)` and `mmap=True`.

use super::atomic::write_atomically;
use super::pickle::pickle;
use super::value::Value;
use super::zip::{ALIGNMENT, ZipWriter};
use crate::error::Result;
use std::path::Path;

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
            zip.add(&format!("archive/data/{i}"), &super::bytes(storage)?)?;
        }
        zip.add("archive/version", b"3\n")?;
        zip.finish()
    })
}
