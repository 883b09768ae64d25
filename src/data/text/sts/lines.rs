//! Text files by line, with errors that name the line.

use super::StsPair;
use crate::data::text::{GZIP, has_visible};
use crate::error::{Error, Result};
use flate2::read::MultiGzDecoder;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Most characters of a stranger's text in an error.
const SHOWN: usize = 60;

/// A file in UTF-8, read whole, perhaps packed with gzip.
pub(super) struct Text {
    pub path: PathBuf,
    /// What is in it, without a byte order mark.
    pub text: String,
}

impl Text {
    pub fn read(path: &Path) -> Result<Text> {
        let mut bytes = std::fs::read(path).map_err(Error::io(path, "cannot read"))?;
        if bytes.starts_with(&GZIP) {
            let mut inflated = Vec::new();
            let read = MultiGzDecoder::new(&bytes[..]).read_to_end(&mut inflated);
            read.map_err(|e| Error::data(path, None, format!("a damaged gzip file: {e}")))?;
            bytes = inflated;
        }
        if bytes.starts_with(b"\xef\xbb\xbf") {
            bytes.drain(..3);
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Text { path: path.to_path_buf(), text }),
            Err(e) => {
                let before = &e.as_bytes()[..e.utf8_error().valid_up_to()];
                let line = 1 + before.iter().filter(|b| **b == b'\n').count();
                let column = 1 + before.iter().rev().take_while(|b| **b != b'\n').count();
                let byte = e.as_bytes()[before.len()];
                let message = format!(
                    "line {line}: byte {column} of the line, {byte:#04x}, is not UTF-8; save the file as UTF-8"
                );
                Err(Error::data(path, None, message))
            }
        }
    }

    /// Its lines without their ends, be they LF or CRLF.
    pub fn all_lines(&self) -> Vec<&str> {
        self.text.lines().collect()
    }

    /// The same without empty ones at the end.
    pub fn lines(&self) -> Vec<&str> {
        let mut lines = self.all_lines();
        while lines.last().is_some_and(|line| line.trim().is_empty()) {
            lines.pop();
        }
        lines
    }

    /// An error of the whole file.
    pub fn fault(&self, message: impl Into<String>) -> Error {
        Error::data(&self.path, None, message)
    }

    /// An error of a line, counted from 1.
    pub fn fault_at(&self, line: usize, message: impl AsRef<str>) -> Error {
        self.fault(format!("line {line}: {}", message.as_ref()))
    }
}

/// The pair of a row, or what is wrong with it.
pub(super) fn pair(a: &str, b: &str, score: &str) -> std::result::Result<StsPair, String> {
    for (which, sentence) in [("first", a), ("second", b)] {
        if !has_visible(sentence) {
            return Err(format!("the {which} sentence is empty; expected text"));
        }
    }
    match number(score) {
        Some(score) => Ok(StsPair { a: a.to_string(), b: b.to_string(), score }),
        None => Err(format!("the score is `{}`; expected a finite number", shown(score))),
    }
}

/// A finite number.
pub(super) fn number(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|v: &f64| v.is_finite())
}

/// The beginning of a text, for an error.
pub(super) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}
