//! A file as memory, read from the disk where it is touched.

use crate::error::{Error, Result};
use memmap2::Mmap;
use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

/// A file that is mapped into memory for reading.
#[derive(Debug)]
pub struct Mapped(Mmap);

/// What shows that an open file was written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Bytes.
    pub length: u64,
    /// When it was last written to, where the system says.
    pub time: Option<SystemTime>,
}

impl Stamp {
    /// That of a file now.
    ///
    /// # Errors
    /// The system's.
    pub fn of(file: &File) -> std::io::Result<Stamp> {
        let data = file.metadata()?;
        Ok(Stamp { length: data.len(), time: data.modified().ok() })
    }
}

impl Mapped {
    /// Maps a file of this project. It must be one that is never changed under its name: those that
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

    /// Maps a user's file, which the user is asked to leave alone. Who reads it asks the open file for its [`Stamp`] before
    /// each access, checks what is read each time, and keeps copies only.
    ///
    /// # Errors
    /// A file that cannot be mapped; `path` names it.
    pub fn of_user(file: &File, path: &Path) -> Result<Mapped> {
        // SAFETY: the bytes must not change while they are mapped. Nothing in this crate opens a user's data for writing, and a
        // file that is replaced by renaming leaves its bytes to those who have mapped them. What nobody can exclude is another
        // program that writes into this very file at the moment of an access; as with every mapped file, the system ends the
        // process if the file is cut short then.
        let map = unsafe { Mmap::map(file) }.map_err(Error::io(path, "cannot map into memory"))?;
        Ok(Mapped(map))
    }

    /// The file's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}
