//! A corpus: examples by their numbers, out of a file that is read once to find them and stays on the disk.

mod example;
mod index;
mod objects;
mod record;
mod report;
mod source;
mod table;
#[cfg(test)]
mod tests;

pub(super) use example::has_visible;
pub use example::{Example, Sides};
pub use record::MOST_BYTES;
pub use report::{CorpusReport, LeftOut};

use crate::config::text_data::{CorpusConfig, CorpusFormat};
use crate::error::{Error, Result};
use crate::torch::Stamp;
use index::Index;
use objects::Objects;
use rayon::prelude::*;
use record::{Reader, lines_of};
use sha2::{Digest, Sha256};
use source::Source;
use std::sync::{Mutex, PoisonError};
use table::Table;

/// Bytes that are searched for records and hashed at the same time: whole pieces.
const WINDOW: usize = 32 * PIECE;
/// Bytes that are hashed in one go.
const PIECE: usize = 1 << 20;

/// The examples of a file.
///
/// The file is mapped into memory, so that a corpus takes about a byte of memory for each example. A file that is packed with
/// gzip is inflated first, into a file without a name in the system's temporary folder (`TMPDIR`), which needs as much room as
/// the text.
///
/// Lines end with a line feed; a carriage return before it does not count. Of each text, white space at its ends is taken off;
/// the inside is as it is. Left out, and counted in [`Corpus::report`], are lines without anything visible, with a NUL byte, that
/// are no UTF-8, or that are longer than [`MOST_BYTES`]. Of tables and JSON, this goes for an example as a
/// whole; what is no row or object of the expected form is an error.
///
/// The file should not be written to while it is in use. Replaced by another that takes its name, it stays as it was.
#[derive(Debug)]
pub struct Corpus {
    source: Source,
    reader: Reader,
    index: Index,
    /// Where what was read ends.
    end: usize,
    report: CorpusReport,
    sha256: String,
    /// The file's stamp at which its content was that of `sha256`.
    known: Mutex<Stamp>,
}

impl Corpus {
    /// Opens a corpus: reads the file once, up to the limit if there is one.
    ///
    /// # Errors
    /// A configuration that contradicts itself; a file that is none, is damaged, or has another encoding; the first record that
    /// has not the form of its format or lacks a column; no usable example.
    pub fn open(config: &CorpusConfig) -> Result<Corpus> {
        config.validate()?;
        let source = Source::open(config)?;
        let bytes = source.bytes();
        let begin = source.begin()?;
        let (reader, at) = match (config.format()?, columns(config)) {
            (CorpusFormat::Jsonl, Some(names)) => (Reader::Objects(Objects(names)), begin),
            (format @ (CorpusFormat::Csv | CorpusFormat::Tsv), Some(names)) => {
                let delimiter = if format == CorpusFormat::Csv { b',' } else { b'\t' };
                let opened = Table::open(bytes, begin, delimiter, names.as_ref());
                let (table, at) = opened.map_err(|wrong| source.wrong(wrong, 0, 0))?;
                (Reader::Table(table), at)
            }
            _ => (Reader::Lines, begin),
        };
        let limit = config.limit.unwrap_or(u64::MAX);
        let header = &bytes[begin..at];
        let lines = if header.is_empty() { 0 } else { lines_of(header) };
        let report = CorpusReport { lines, ..CorpusReport::default() };
        let mut scan = Scan { source: &source, reader: &reader, limit, at, report, index: Index::default() };
        let mut pieces: Vec<[u8; 32]> = Vec::new();
        for window in bytes.chunks(WINDOW) {
            let until = pieces.len() * PIECE + window.len();
            let (hashed, scanned) = rayon::join(|| hash_pieces(window), || scan.until(until));
            scanned?;
            pieces.extend(hashed);
            if scan.index.len() == limit {
                break;
            }
        }
        let Scan { at: end, mut report, mut index, .. } = scan;
        index.close();
        report.sentences = index.len();
        if index.len() == 0 {
            return Err(no_example(&source, &report));
        }
        let sha256 = hash_of_pieces(pieces, &bytes[..end]);
        let known = source.opened();
        if source.stamp()? != known {
            return Err(source.changed());
        }
        Ok(Corpus { source, reader, index, end, report, sha256, known: Mutex::new(known) })
    }

    /// Examples of the corpus.
    pub fn len(&self) -> usize {
        self.index.len() as usize
    }

    /// Whether there are none, which never is so: such a file is not opened.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An example, counted from 0 in the order of the file.
    ///
    /// # Errors
    /// No such example; a file that was written to since it was opened.
    pub fn get(&self, example: usize) -> Result<Example> {
        let Some((mut at, mut before)) = self.index.near(example as u64) else {
            let last = self.len() - 1;
            return Err(Error::Input(format!("example {example}: expected a number from 0 to {last}")));
        };
        self.refuse_changed()?;
        let bytes = &self.source.bytes()[..self.end];
        while at < bytes.len() {
            let record = self.reader.read(bytes, at).map_err(|_| self.source.changed())?;
            at = record.end;
            match (record.found, before) {
                (Ok(found), 0) => return found.try_map(|_, text| Ok(text.into_owned())),
                (Ok(_), _) => before -= 1,
                (Err(_), _) => (),
            }
        }
        Err(self.source.changed())
    }

    /// What was found and left out.
    pub fn report(&self) -> &CorpusReport {
        &self.report
    }

    /// What identifies the content: the SHA-256 of the SHA-256 of each MiB of the text, as far as it was read (all of it, or up to
    /// the limit). It is that of the inflated bytes, so that packing a file does not change it.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Memory of the index.
    #[cfg(test)]
    pub(super) fn index_bytes(&self) -> usize {
        self.index.bytes()
    }

    /// Sees to it that the file has not changed since it was opened. A change of its time alone is no change.
    fn refuse_changed(&self) -> Result<()> {
        let now = self.source.stamp()?;
        // Not held while hashing: a thread that waits for its pieces may take up another call of this.
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *known();
        if now == before {
            return Ok(());
        }
        let bytes = &self.source.bytes()[..self.end];
        if now.length != before.length || hash_of_pieces(Vec::new(), bytes) != self.sha256 {
            return Err(self.source.changed());
        }
        *known() = now;
        Ok(())
    }
}

/// The names of the columns, where the format has any.
fn columns(config: &CorpusConfig) -> Option<Sides<String>> {
    let (positive, hard_negative) = (config.positive.clone(), config.hard_negative.clone());
    Some(Sides { text: config.text.clone()?, positive, hard_negative })
}

/// The one pass over a corpus's records.
struct Scan<'a> {
    source: &'a Source,
    reader: &'a Reader,
    limit: u64,
    /// Where the next record begins.
    at: usize,
    report: CorpusReport,
    index: Index,
}

impl Scan<'_> {
    /// Reads the records that begin before `until`.
    fn until(&mut self, until: usize) -> Result<()> {
        let bytes = self.source.bytes();
        while self.at < until && self.index.len() < self.limit {
            let lines = self.report.lines;
            let record = self.reader.read(bytes, self.at).map_err(|wrong| self.source.wrong(wrong, self.at, lines))?;
            match record.found {
                Ok(_) => self.index.add(self.at as u64),
                Err(defect) => self.report.leave_out(defect, lines + 1),
            }
            self.at = record.end;
            self.report.lines += record.lines;
        }
        Ok(())
    }
}

/// The hash of each piece, the last one of which may be shorter.
fn hash_pieces(bytes: &[u8]) -> Vec<[u8; 32]> {
    bytes.par_chunks(PIECE).map(|piece| Sha256::digest(piece).into()).collect()
}

/// The hash of the hashes of the pieces of `bytes`, some of which are known already, or those of more than that.
fn hash_of_pieces(mut pieces: Vec<[u8; 32]>, bytes: &[u8]) -> String {
    pieces.truncate(bytes.len() / PIECE);
    pieces.extend(hash_pieces(&bytes[pieces.len() * PIECE..]));
    let mut hash = Sha256::new();
    pieces.iter().for_each(|piece| hash.update(piece));
    format!("{:x}", hash.finalize())
}

/// The error for a file without any example.
fn no_example(source: &Source, report: &CorpusReport) -> Error {
    let found = match (report.lines, report.left_out()) {
        (0, _) => "an empty file".to_string(),
        (lines, Some(left_out)) => format!("none in {lines} line{}: {left_out}", if lines == 1 { "" } else { "s" }),
        (_, None) => "nothing below the header".to_string(),
    };
    let hint = if report.nul.count > 0 {
        "; NUL bytes are in files that are no text, and in UTF-16, which iconv -f UTF-16 -t UTF-8 converts"
    } else if report.invalid_utf8.count > 0 {
        "; if it is text in another encoding, iconv -f ENCODING -t UTF-8 converts it"
    } else if report.too_long.count > 0 {
        "; lines have to end with a line feed"
    } else {
        ""
    };
    Error::data(source.path(), None, format!("expected at least one sentence, found {found}{hint}"))
}
