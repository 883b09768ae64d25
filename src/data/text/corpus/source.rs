//! A corpus's file as memory: inflated first where it is packed, and watched for changes.

use super::record::Wrong;
use crate::config::text_data::CorpusConfig;
use crate::data::text::GZIP;
use crate::error::{Error, Result};
use crate::torch::{Mapped, Stamp};
use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

/// The byte order mark of UTF-8.
const MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// A mapped file.
#[derive(Debug)]
pub(super) struct Source {
    path: PathBuf,
    file: File,
    map: Mapped,
    opened: Stamp,
}

impl Source {
    /// Opens, inflates if need be, and maps.
    ///
    /// # Errors
    /// What is no file or cannot be read; a gzip file that is damaged; no room for the inflated bytes.
    pub(super) fn open(config: &CorpusConfig) -> Result<Source> {
        let path = config.path.clone();
        // Asked before it is opened, as opening a pipe waits for a writer.
        let kind = path.metadata().map_err(Error::io(&path, "cannot find the corpus (data.path)"))?;
        if !kind.is_file() {
            let found =
                if kind.is_dir() { "a folder" } else { "a pipe or a device, which cannot be mapped into memory" };
            return Err(Error::data(&path, None, format!("expected a file (data.path), found {found}")));
        }
        let file = File::open(&path).map_err(Error::io(&path, "cannot open the corpus (data.path)"))?;
        let mut stream = BufReader::with_capacity(1 << 16, file);
        let begins = stream.fill_buf().map_err(Error::io(&path, "cannot read the corpus"))?;
        // The name may have lost its ending.
        let packed = config.packed() || begins.starts_with(&GZIP);
        let file = if packed { inflated(stream, &path)? } else { stream.into_inner() };
        let map = Mapped::of_user(&file, &path)?;
        let opened = stamp(&file, &path)?;
        if map.bytes().len() as u64 != opened.length {
            return Err(Error::data(&path, None, "changed while it was opened; start again when it is complete"));
        }
        Ok(Source { path, file, map, opened })
    }

    /// The file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The bytes as they are now.
    pub(super) fn bytes(&self) -> &[u8] {
        self.map.bytes()
    }

    /// The stamp that the file had when it was opened.
    pub(super) fn opened(&self) -> Stamp {
        self.opened
    }

    /// The file's stamp now. Another file of the same name does not matter: this one stays until it is closed.
    pub(super) fn stamp(&self) -> Result<Stamp> {
        stamp(&self.file, &self.path)
    }

    /// Where the text begins: after a byte order mark.
    ///
    /// # Errors
    /// The marks of other encodings.
    pub(super) fn begin(&self) -> Result<usize> {
        let bytes = self.bytes();
        let other = match bytes {
            [0xff, 0xfe, 0, 0, ..] => "UTF-32LE",
            [0, 0, 0xfe, 0xff, ..] => "UTF-32BE",
            [0xff, 0xfe, ..] => "UTF-16LE",
            [0xfe, 0xff, ..] => "UTF-16BE",
            _ => return Ok(if bytes.starts_with(&MARK) { MARK.len() } else { 0 }),
        };
        let encoding = &other[..other.len() - 2];
        Err(Error::data(
            &self.path,
            Some(0),
            format!(
                "line 1: expected UTF-8, found the byte order mark of {other}; iconv -f {encoding} -t UTF-8 converts it"
            ),
        ))
    }

    /// The error for what ends the reading, in a record that begins at `record` after so many lines.
    pub(super) fn wrong(&self, wrong: Wrong, record: usize, lines: u64) -> Error {
        let within = self.bytes().get(record..wrong.at).unwrap_or_default();
        let line = lines + 1 + memchr::memchr_iter(b'\n', within).count() as u64;
        Error::data(&self.path, Some(wrong.at as u64), format!("line {line}: {}", wrong.message))
    }

    /// The error for a file that is another than it was.
    pub(super) fn changed(&self) -> Error {
        Error::data(
            &self.path,
            None,
            "expected the text that was there when the corpus was opened, found that the file was written to since; put a new \
             version in its place by renaming it (mv), and start again",
        )
    }
}

fn stamp(file: &File, path: &Path) -> Result<Stamp> {
    Stamp::of(file).map_err(Error::io(path, "cannot read the corpus"))
}

/// The inflated bytes, in a file of the system's temporary folder that has no name and goes with the process.
fn inflated(stream: impl BufRead, path: &Path) -> Result<File> {
    let folder = std::env::temp_dir();
    let no_room = "cannot write the inflated corpus (TMPDIR sets the folder; it needs as much room as the text)";
    let mut file = tempfile::tempfile_in(&folder).map_err(Error::io(&folder, no_room))?;
    let mut gzip = MultiGzDecoder::new(stream);
    let mut buffer = vec![0; 1 << 18];
    let mut bytes = 0u64;
    loop {
        let read = match gzip.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) if e.raw_os_error().is_some() => return Err(Error::io(path, "cannot read the corpus")(e)),
            Err(e) => {
                let found = match e.kind() {
                    std::io::ErrorKind::UnexpectedEof => "one that is cut short".to_string(),
                    _ => format!("a damaged one or none at all ({e})"),
                };
                let message = format!(
                    "expected a whole gzip file, found {found}, after {bytes} bytes of text; `gzip -t` checks it, and another \
                     download may mend it"
                );
                return Err(Error::data(path, None, message));
            }
        };
        file.write_all(&buffer[..read]).map_err(Error::io(&folder, no_room))?;
        bytes += read as u64;
    }
    Ok(file)
}
