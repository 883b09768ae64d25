//! Reads the zip container of PyTorch's files: where its entries lie, and their bytes.
//!
//! Only entries without compression are understood, as PyTorch writes them, and deflated ones where numpy may have written them.
//! Every size is checked against the file before memory is taken for it.

use super::zip::{
    CENTRAL_HEADER, END, LOCAL_HEADER, LOCAL_SIZE, TOO_LARGE_32, TOO_MANY_16, ZIP64_END, ZIP64_FIELD, ZIP64_LOCATOR,
};
use crate::error::{Error, Result};
use flate2::read::DeflateDecoder;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes of the fixed parts of the other headers.
const CENTRAL_SIZE: usize = 46;
const END_SIZE: u64 = 22;
const ZIP64_LOCATOR_SIZE: u64 = 20;
const ZIP64_END_SIZE: u64 = 56;
/// The end is followed by a comment of this length at most.
const MOST_COMMENT: u64 = 65535;
/// Most entries: each storage of a checkpoint is one.
const MOST_ENTRIES: u64 = 1 << 20;

/// An entry of the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Where its bytes begin.
    begin: u64,
    /// Its length in the file.
    pub size: u64,
    /// Its CRC-32.
    crc: u32,
    /// Whether its bytes stand there as they are.
    pub stored: bool,
    /// Its length where it is deflated; none otherwise.
    deflated: Option<u64>,
}

/// An open file and its directory.
#[derive(Debug)]
pub(super) struct ZipReader {
    path: PathBuf,
    file: File,
    entries: BTreeMap<String, Entry>,
}

impl ZipReader {
    /// Opens a file and reads its directory.
    ///
    /// # Errors
    /// A file that cannot be read or is no whole zip file; entries that lie outside the file or on one another.
    pub fn open(path: &Path) -> Result<ZipReader> {
        let file = File::open(path).map_err(Error::io(path, "cannot open"))?;
        let length = file.metadata().map_err(Error::io(path, "cannot read"))?.len();
        let mut reader = ZipReader { path: path.to_path_buf(), file, entries: BTreeMap::new() };
        let (count, size, begin) = reader.directory(length)?;
        let directory = reader.bytes(begin, size)?;
        let mut rest = directory.as_slice();
        let mut total = 0u64;
        for _ in 0..count {
            let (name, entry) = reader.line(&mut rest, begin)?;
            total = total.saturating_add(entry.size);
            if total > length {
                return Err(
                    reader.wrong(begin, "its entries are together larger than the file: they lie on one another")
                );
            }
            if reader.entries.insert(name.clone(), entry).is_some() {
                return Err(reader.wrong(begin, format!("it has two entries `{name}`")));
            }
        }
        Ok(reader)
    }

    /// The entries by name.
    pub fn entries(&self) -> &BTreeMap<String, Entry> {
        &self.entries
    }

    /// Fills `to`, as long as the entry, with its bytes, and checks them.
    ///
    /// # Errors
    /// A compressed or encrypted entry, what the system refuses, and a wrong checksum.
    pub fn read(&self, name: &str, entry: &Entry, to: &mut [u8]) -> Result<()> {
        if !entry.stored {
            return Err(self.wrong(
                entry.begin,
                format!(
                    "`{name}` is compressed or encrypted, which torch.save's files are not; unpack and save it again"
                ),
            ));
        }
        self.file.read_exact_at(to, entry.begin).map_err(Error::io(&self.path, "cannot read"))?;
        let crc = crc32fast::hash(to);
        if crc != entry.crc {
            return Err(self.wrong(
                entry.begin,
                format!("`{name}` has the checksum {crc:08x}, expected {:08x}: the file is damaged", entry.crc),
            ));
        }
        Ok(())
    }

    /// An entry's bytes, inflated if it is deflated; checked.
    ///
    /// # Errors
    /// As [`ZipReader::read`]; a stream that is damaged, or longer or shorter than the directory says.
    pub fn read_unpacked(&self, name: &str, entry: &Entry) -> Result<Vec<u8>> {
        let Some(length) = entry.deflated else {
            let mut bytes = vec![0; entry.size as usize];
            self.read(name, entry, &mut bytes)?;
            return Ok(bytes);
        };
        let packed = self.bytes(entry.begin, entry.size)?;
        let mut bytes = Vec::new();
        // Memory grows with what is really there.
        let unpacked = DeflateDecoder::new(packed.as_slice()).take(length.saturating_add(1)).read_to_end(&mut bytes);
        let whole = unpacked.is_ok() && bytes.len() as u64 == length && crc32fast::hash(&bytes) == entry.crc;
        if !whole {
            return Err(self.wrong(
                entry.begin,
                format!("`{name}` does not unpack to the {length} bytes and the checksum that the directory says: it is damaged"),
            ));
        }
        Ok(bytes)
    }

    fn wrong(&self, at: u64, message: impl Into<String>) -> Error {
        Error::data(&self.path, Some(at), message)
    }

    fn bytes(&self, at: u64, size: u64) -> Result<Vec<u8>> {
        let mut out = vec![0; size as usize];
        self.file.read_exact_at(&mut out, at).map_err(Error::io(&self.path, "cannot read"))?;
        Ok(out)
    }

    /// Number of entries, size and beginning of the directory, which lies in the file.
    fn directory(&self, length: u64) -> Result<(u64, u64, u64)> {
        let cut_off = || {
            self.wrong(
                length,
                "no end of a zip directory: it is cut off or no file of torch.save; fetch or write it again",
            )
        };
        let tail_size = length.min(END_SIZE + MOST_COMMENT);
        let tail = self.bytes(length - tail_size, tail_size)?;
        let found =
            tail.windows(4).rposition(|w| w == END.to_le_bytes()).filter(|i| i + END_SIZE as usize <= tail.len());
        let end = &tail[found.ok_or_else(cut_off)?..];
        let end_at = length - end.len() as u64;
        let (mut count, mut size, mut begin) =
            (u64::from(u16_at(end, 10)), u64::from(u32_at(end, 12)), u64::from(u32_at(end, 16)));
        let wide = count == u64::from(TOO_MANY_16) || [size, begin].contains(&u64::from(TOO_LARGE_32));
        if wide && end_at >= ZIP64_LOCATOR_SIZE {
            let locator = self.bytes(end_at - ZIP64_LOCATOR_SIZE, ZIP64_LOCATOR_SIZE)?;
            if u32_at(&locator, 0) == ZIP64_LOCATOR {
                let at = u64_at(&locator, 8);
                if at.checked_add(ZIP64_END_SIZE).is_none_or(|end| end > length) {
                    return Err(cut_off());
                }
                let end = self.bytes(at, ZIP64_END_SIZE)?;
                if u32_at(&end, 0) != ZIP64_END {
                    return Err(cut_off());
                }
                (count, size, begin) = (u64_at(&end, 32), u64_at(&end, 40), u64_at(&end, 48));
            }
        }
        if begin.checked_add(size).is_none_or(|end| end > end_at) {
            return Err(self.wrong(end_at, format!("a directory of {size} bytes at {begin} does not lie in the file")));
        }
        if count > MOST_ENTRIES || count * CENTRAL_SIZE as u64 > size {
            return Err(self.wrong(end_at, format!("a directory of {size} bytes cannot have {count} entries")));
        }
        Ok((count, size, begin))
    }

    /// Takes one line from the rest of the directory. Its entry's bytes lie before the directory, which begins at `limit`.
    fn line(&self, rest: &mut &[u8], limit: u64) -> Result<(String, Entry)> {
        let damaged = || self.wrong(limit, "the zip directory is damaged");
        let line = *rest;
        if line.len() < CENTRAL_SIZE || u32_at(line, 0) != CENTRAL_HEADER {
            return Err(damaged());
        }
        let (name_length, extra_length) = (u16_at(line, 28) as usize, u16_at(line, 30) as usize);
        let end = CENTRAL_SIZE + name_length + extra_length + u16_at(line, 32) as usize;
        if line.len() < end {
            return Err(damaged());
        }
        *rest = &line[end..];
        let name = &line[CENTRAL_SIZE..][..name_length];
        let name = std::str::from_utf8(name).map_err(|_| damaged())?.to_string();
        let (flags, method) = (u16_at(line, 8), u16_at(line, 10));
        let (mut size, mut at): (u64, u64) = (u32_at(line, 24).into(), u32_at(line, 42).into());
        let mut packed = u64::from(u32_at(line, 20));
        let wide = wide_fields(&line[CENTRAL_SIZE + name_length..][..extra_length]);
        let mut wide = wide.into_iter();
        if size == u64::from(TOO_LARGE_32) {
            size = wide.next().ok_or_else(damaged)?;
        }
        if packed == u64::from(TOO_LARGE_32) {
            packed = wide.next().ok_or_else(damaged)?;
        }
        if at == u64::from(TOO_LARGE_32) {
            at = wide.next().ok_or_else(damaged)?;
        }
        if at.checked_add(LOCAL_SIZE).is_none_or(|end| end > limit) {
            return Err(self.wrong(at, format!("`{name}` lies outside the file")));
        }
        let local = self.bytes(at, LOCAL_SIZE)?;
        if u32_at(&local, 0) != LOCAL_HEADER {
            return Err(self.wrong(at, format!("no header of `{name}`, which the directory says is here")));
        }
        let begin = at + LOCAL_SIZE + u64::from(u16_at(&local, 26)) + u64::from(u16_at(&local, 28));
        if begin.checked_add(packed).is_none_or(|end| end > limit) {
            return Err(self.wrong(at, format!("`{name}` of {packed} bytes does not lie in the file: it is cut off")));
        }
        let stored = flags & 1 == 0 && method == 0 && size == packed;
        let deflated = (flags & 1 == 0 && method == 8).then_some(size);
        Ok((name, Entry { begin, size: packed, crc: u32_at(line, 16), stored, deflated }))
    }
}

/// The numbers of the zip64 field among the extra ones.
fn wide_fields(mut extra: &[u8]) -> Vec<u64> {
    while extra.len() >= 4 {
        let (id, size) = (u16_at(extra, 0), u16_at(extra, 2) as usize);
        let Some(field) = extra.get(4..4 + size) else { break };
        if id == ZIP64_FIELD {
            return field.chunks_exact(8).map(|n| u64_at(n, 0)).collect();
        }
        extra = &extra[4 + size..];
    }
    Vec::new()
}

pub(super) fn u16_at(b: &[u8], i: usize) -> u16 {
    u16::from_le_bytes([b[i], b[i + 1]])
}

pub(super) fn u32_at(b: &[u8], i: usize) -> u32 {
    u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]])
}

pub(super) fn u64_at(b: &[u8], i: usize) -> u64 {
    u64::from(u32_at(b, i)) | u64::from(u32_at(b, i + 4)) << 32
}
