//! A file as memory, read from the disk where it is touched.

use crate::error::{Error, Result};
use memmap2::Mmap;
use std::fs::File;
use std::path::Path;

/// A file of this project that is mapped into memory for reading.
#[derive(Debug)]
pub struct Mapped(Mmap);

impl Mapped {
    /// Maps a file. It must be one that is never changed under its name: those that
    /// [`write_atomically`](crate::checkpoint::write_atomically) makes are replaced as a whole.
    ///
    /// # Errors
    /// A file that cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Mapped> {
        let file = File::open(path).map_err(Error::io(path, "cannot open"))?;
        // SAFETY: the bytes must not change while they are mapped. The files that are mapped are written under another name and
        // renamed when they are complete; nothing in this crate opens one for writing, and a new version leaves the old file's
        // bytes to those who have mapped them.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io(path, "cannot map into memory"))?;
        Ok(Mapped(map))
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}
