//! The next record of a corpus, whatever its format: where it ends, and its text or why it has none. Opening a corpus and reading
//! one example of it both go this way, so that they cannot disagree.

use super::example::Sides;
use super::objects::Objects;
use super::report::Defect;
use super::table::Table;
use memchr::{memchr, memchr_iter};
use std::borrow::Cow;

/// The longest line (in a table: row) that is read, in bytes: 1 MiB. What is longer is no sentence, and is left out and counted.
pub const MOST_BYTES: usize = 1 << 20;

/// How the records of a corpus are read.
#[derive(Debug)]
pub(super) enum Reader {
    /// A sentence a line.
    Lines,
    /// A JSON object a line.
    Objects(Objects),
    /// Rows below a header.
    Table(Table),
}

/// What is at a place.
#[derive(Debug)]
pub(super) struct Record<'a> {
    /// Where the next record begins.
    pub end: usize,
    /// Lines that it takes.
    pub lines: u64,
    /// Its text.
    pub found: Result<Sides<Cow<'a, str>>, Defect>,
}

/// Something that ends the reading.
#[derive(Debug)]
pub(super) struct Wrong {
    /// Where.
    pub at: usize,
    /// What was expected and found.
    pub message: String,
}

impl Reader {
    /// The record that begins at `at`, which is less than the length of `bytes`.
    pub(super) fn read<'a>(&self, bytes: &'a [u8], at: usize) -> Result<Record<'a>, Wrong> {
        if let Reader::Table(table) = self {
            return table.read(bytes, at);
        }
        let (line, end) = match memchr(b'\n', &bytes[at..]) {
            Some(length) => (&bytes[at..at + length], at + length + 1),
            None => (&bytes[at..], bytes.len()),
        };
        let found = match (text_of(line), self) {
            (Err(defect), _) => Err(defect),
            (Ok(line), Reader::Objects(objects)) => objects.read(line, at)?,
            (Ok(line), _) => Ok(Sides { text: Cow::Borrowed(line), positive: None, hard_negative: None }),
        };
        Ok(Record { end, lines: 1, found: found.and_then(Sides::usable) })
    }
}

/// Bytes as text.
pub(super) fn text_of(bytes: &[u8]) -> Result<&str, Defect> {
    if bytes.len() > MOST_BYTES {
        return Err(Defect::TooLong);
    }
    std::str::from_utf8(bytes).map_err(|_| Defect::InvalidUtf8)
}

/// Lines of a record, or of a header: bytes that are not empty and end where a line does.
pub(super) fn lines_of(bytes: &[u8]) -> u64 {
    let inner = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    1 + memchr_iter(b'\n', inner).count() as u64
}

/// The names that there are, and the nearest one to what was asked for; for the end of a message.
pub(super) fn names_and_nearest(asked: &str, names: &[&str]) -> String {
    /// Names listed at most.
    const MOST: usize = 20;
    let listed: Vec<String> =
        names.iter().take(MOST).map(|name| format!("`{}`", shortened(name).escape_debug())).collect();
    let more = if names.len() > MOST { format!(" and {} more", names.len() - MOST) } else { String::new() };
    let near = names
        .iter()
        .filter(|name| name.len() <= 2 * asked.len() + 8)
        .map(|name| (strsim::damerau_levenshtein(&asked.to_lowercase(), &name.to_lowercase()), name))
        .min()
        .filter(|(distance, name)| *distance <= 1 + name.len() / 3 && *distance < name.len())
        .map(|(_, name)| format!("; did you mean `{name}`?"));
    match listed.is_empty() {
        true => "none".to_string(),
        false => format!("{}{more}{}", listed.join(", "), near.unwrap_or_default()),
    }
}

/// The first characters of what may be long.
fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}
