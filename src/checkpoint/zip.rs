//! The zip container of PyTorch's files: entries stored without compression, their data on 64-byte boundaries.
//!
//! Sizes and offsets that need more than 32 bits get zip64 fields, others don't, as PyTorch's own writer does.

use crate::error::{Error, Result};
use std::io::Write;
use std::path::Path;

/// PyTorch maps files into memory and wants tensors aligned there.
pub(super) const ALIGNMENT: u64 = 64;

/// Bytes of the fixed part of a local header.
pub(super) const LOCAL_SIZE: u64 = 30;
pub(super) const LOCAL_HEADER: u32 = 0x0403_4b50;
pub(super) const CENTRAL_HEADER: u32 = 0x0201_4b50;
pub(super) const END: u32 = 0x0605_4b50;
pub(super) const ZIP64_END: u32 = 0x0606_4b50;
pub(super) const ZIP64_LOCATOR: u32 = 0x0706_4b50;

pub(super) const ZIP64_FIELD: u16 = 1;
/// The extra field ("FB") that PyTorch pads with.
const PADDING_FIELD: u16 = 0x4246;
const VERSION: u16 = 20;
const VERSION_ZIP64: u16 = 45;
/// 1 January 1980: the same content gives the same bytes at any time.
const DATE: u16 = 0x21;
pub(super) const TOO_LARGE_32: u32 = u32::MAX;
pub(super) const TOO_MANY_16: u16 = u16::MAX;

/// What the directory at the file's end says about an entry.
struct Entry {
    name: String,
    size: u64,
    crc: u32,
    offset: u64,
}

/// Writes entries one after another; `finish` writes the directory.
pub(super) struct ZipWriter<'a, W: Write> {
    out: W,
    /// For error messages.
    path: &'a Path,
    at: u64,
    entries: Vec<Entry>,
}

impl<'a, W: Write> ZipWriter<'a, W> {
    pub fn new(out: W, path: &'a Path) -> Self {
        ZipWriter { out, path, at: 0, entries: Vec::new() }
    }

    pub fn add(&mut self, name: &str, data: &[u8]) -> Result<()> {
        let entry =
            Entry { name: name.to_string(), size: data.len() as u64, crc: crc32fast::hash(data), offset: self.at };
        self.write(&local_header(&entry))?;
        self.write(data)?;
        self.entries.push(entry);
        Ok(())
    }

    pub fn finish(mut self) -> Result<()> {
        let start = self.at;
        let entries = std::mem::take(&mut self.entries);
        for entry in &entries {
            self.write(&central_header(entry))?;
        }
        self.write(&end_of_directory(entries.len() as u64, self.at - start, start))
    }

    fn write(&mut self, data: &[u8]) -> Result<()> {
        self.out.write_all(data).map_err(Error::io(self.path, "cannot write"))?;
        self.at += data.len() as u64;
        Ok(())
    }
}

fn le16(out: &mut Vec<u8>, x: u16) {
    out.extend(x.to_le_bytes());
}

fn le32(out: &mut Vec<u8>, x: u32) {
    out.extend(x.to_le_bytes());
}

fn le64(out: &mut Vec<u8>, x: u64) {
    out.extend(x.to_le_bytes());
}

/// The 32-bit field for `x`, or the mark that the zip64 field has it.
fn field32(x: u64) -> u32 {
    u32::try_from(x).unwrap_or(TOO_LARGE_32)
}

/// Whether `x` is told by a zip64 field; the mark itself can't be told in 32 bits either.
fn needs_64(x: u64) -> bool {
    field32(x) == TOO_LARGE_32
}

/// The part that both headers share, from the general flags (names are UTF-8) to the name's length.
fn common_fields(out: &mut Vec<u8>, entry: &Entry, name_length: u16) {
    const UTF8: u16 = 1 << 11;
    const STORED: u16 = 0;
    const TIME: u16 = 0;
    for x in [UTF8, STORED, TIME, DATE] {
        le16(out, x);
    }
    le32(out, entry.crc);
    le32(out, field32(entry.size));
    le32(out, field32(entry.size));
    le16(out, name_length);
}

/// The header before an entry's data, padded so that the data begins on a boundary.
fn local_header(entry: &Entry) -> Vec<u8> {
    let zip64 = needs_64(entry.size);
    let mut extra = Vec::new();
    if zip64 {
        le16(&mut extra, ZIP64_FIELD);
        le16(&mut extra, 16);
        le64(&mut extra, entry.size);
        le64(&mut extra, entry.size);
    }
    const FIELD_HEADER: u64 = 4;
    let unpadded = entry.offset + LOCAL_SIZE + entry.name.len() as u64 + extra.len() as u64 + FIELD_HEADER;
    let padding = unpadded.next_multiple_of(ALIGNMENT) - unpadded;
    le16(&mut extra, PADDING_FIELD);
    le16(&mut extra, padding as u16);
    extra.resize(extra.len() + padding as usize, b'Z');

    let mut out = Vec::new();
    le32(&mut out, LOCAL_HEADER);
    le16(&mut out, if zip64 { VERSION_ZIP64 } else { VERSION });
    common_fields(&mut out, entry, entry.name.len() as u16);
    le16(&mut out, extra.len() as u16);
    out.extend(entry.name.as_bytes());
    out.extend(extra);
    out
}

/// The directory's line for an entry.
fn central_header(entry: &Entry) -> Vec<u8> {
    let mut wide = Vec::new();
    if needs_64(entry.size) {
        le64(&mut wide, entry.size);
        le64(&mut wide, entry.size);
    }
    if needs_64(entry.offset) {
        le64(&mut wide, entry.offset);
    }
    let mut extra = Vec::new();
    if !wide.is_empty() {
        le16(&mut extra, ZIP64_FIELD);
        le16(&mut extra, wide.len() as u16);
        extra.extend(wide);
    }
    let version = if extra.is_empty() { VERSION } else { VERSION_ZIP64 };

    let mut out = Vec::new();
    le32(&mut out, CENTRAL_HEADER);
    le16(&mut out, version);
    le16(&mut out, version);
    common_fields(&mut out, entry, entry.name.len() as u16);
    le16(&mut out, extra.len() as u16);
    // Comment, disk, internal attributes; external attributes.
    out.extend([0; 6]);
    le32(&mut out, 0);
    le32(&mut out, field32(entry.offset));
    out.extend(entry.name.as_bytes());
    out.extend(extra);
    out
}

/// What closes the file, for a directory of `count` lines and `size` bytes that begins at `start`.
fn end_of_directory(count: u64, size: u64, start: u64) -> Vec<u8> {
    let short_count = u16::try_from(count).unwrap_or(TOO_MANY_16);
    let mut out = Vec::new();
    if short_count == TOO_MANY_16 || needs_64(size) || needs_64(start) {
        const REST_OF_RECORD: u64 = 44;
        le32(&mut out, ZIP64_END);
        le64(&mut out, REST_OF_RECORD);
        le16(&mut out, VERSION_ZIP64);
        le16(&mut out, VERSION_ZIP64);
        le32(&mut out, 0);
        le32(&mut out, 0);
        for x in [count, count, size, start] {
            le64(&mut out, x);
        }
        le32(&mut out, ZIP64_LOCATOR);
        le32(&mut out, 0);
        le64(&mut out, start + size);
        le32(&mut out, 1);
    }
    le32(&mut out, END);
    le16(&mut out, 0);
    le16(&mut out, 0);
    le16(&mut out, short_count);
    le16(&mut out, short_count);
    le32(&mut out, field32(size));
    le32(&mut out, field32(start));
    le16(&mut out, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::super::unzip::{u16_at, u32_at, u64_at};
    use super::*;

    const FOUR_GIB: u64 = 1 << 32;

    fn entry(size: u64, offset: u64) -> Entry {
        Entry { name: "a/data/0".into(), size, crc: 7, offset }
    }

    #[test]
    fn data_begin_on_boundaries_wherever_the_header_is() {
        for offset in (0..200).chain(FOUR_GIB..FOUR_GIB + 70) {
            for size in [0, 5, FOUR_GIB - 2, FOUR_GIB - 1, FOUR_GIB, 3 * FOUR_GIB] {
                let header = local_header(&entry(size, offset));
                assert_eq!((offset + header.len() as u64) % ALIGNMENT, 0, "{offset} {size}");
                assert_eq!(header.len(), 30 + 8 + u16_at(&header, 28) as usize);
            }
        }
    }

    #[test]
    fn sizes_beyond_32_bits_are_told_by_the_zip64_field() {
        let header = local_header(&entry(FOUR_GIB - 2, 0));
        assert_eq!((u32_at(&header, 18), u16_at(&header, 38)), (u32::MAX - 1, PADDING_FIELD));
        let header = local_header(&entry(FOUR_GIB + 5, 0));
        assert_eq!((u16_at(&header, 4), u32_at(&header, 18), u32_at(&header, 22)), (45, u32::MAX, u32::MAX));
        assert_eq!((u16_at(&header, 38), u16_at(&header, 40)), (ZIP64_FIELD, 16));
        assert_eq!((u64_at(&header, 42), u64_at(&header, 50)), (FOUR_GIB + 5, FOUR_GIB + 5));
    }

    #[test]
    fn the_directory_tells_only_what_32_bits_do_not() {
        let extra = |b: &[u8]| b[46 + 8..].to_vec();
        assert!(extra(&central_header(&entry(9, 10))).is_empty());
        let line = central_header(&entry(9, FOUR_GIB + 64));
        assert_eq!((u32_at(&line, 20), u32_at(&line, 42)), (9, u32::MAX));
        assert_eq!((extra(&line).len(), u64_at(&extra(&line), 4)), (12, FOUR_GIB + 64));
        let line = central_header(&entry(FOUR_GIB, 10));
        assert_eq!((u32_at(&line, 24), u32_at(&line, 42), extra(&line).len()), (u32::MAX, 10, 20));
        let line = central_header(&entry(FOUR_GIB, FOUR_GIB + 1));
        let e = extra(&line);
        assert_eq!((u64_at(&e, 4), u64_at(&e, 12), u64_at(&e, 20)), (FOUR_GIB, FOUR_GIB, FOUR_GIB + 1));
    }

    #[test]
    fn the_end_is_wide_only_where_it_must_be() {
        assert_eq!(end_of_directory(65534, 100, 200).len(), 22);
        for (count, size, start) in [(65535, 100, 200), (3, FOUR_GIB, 200), (3, 100, FOUR_GIB - 1)] {
            let end = end_of_directory(count, size, start);
            assert_eq!(end.len(), 56 + 20 + 22);
            assert_eq!((u64_at(&end, 32), u64_at(&end, 40), u64_at(&end, 48)), (count, size, start));
            assert_eq!(u64_at(&end, 56 + 8), start + size);
        }
    }
}
