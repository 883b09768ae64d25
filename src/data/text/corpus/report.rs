//! What was found in a corpus: how many examples, and which lines were left out.

use serde::Serialize;
use std::fmt::{Display, Formatter};

/// Line numbers that are kept of each kind.
const FIRST: usize = 5;

/// Why a line (in a table: a row) was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Defect {
    Empty,
    Nul,
    InvalidUtf8,
    TooLong,
}

/// The lines that were left out for one reason.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// How many.
    pub count: u64,
    /// The numbers of the first of them, counted from 1.
    pub first_lines: Vec<u64>,
}

/// What was read of a corpus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CorpusReport {
    /// Lines read, a table's header and the lines within its quoted fields included.
    pub lines: u64,
    /// Examples that the corpus has.
    pub sentences: u64,
    /// Lines without a visible character: only white space, control characters and those that have no width. In a corpus of
    /// columns, lines where that is so of any column in use.
    pub empty: LeftOut,
    /// Lines with a NUL byte, which no text has.
    pub nul: LeftOut,
    /// Lines that are no UTF-8.
    pub invalid_utf8: LeftOut,
    /// Lines longer than [`MOST_BYTES`](super::MOST_BYTES).
    pub too_long: LeftOut,
}

impl CorpusReport {
    /// Counts a line that is left out.
    pub(super) fn leave_out(&mut self, defect: Defect, line: u64) {
        let lines = match defect {
            Defect::Empty => &mut self.empty,
            Defect::Nul => &mut self.nul,
            Defect::InvalidUtf8 => &mut self.invalid_utf8,
            Defect::TooLong => &mut self.too_long,
        };
        lines.count += 1;
        if lines.first_lines.len() < FIRST {
            lines.first_lines.push(line);
        }
    }

    /// What was left out, for people; nothing where nothing was.
    pub(super) fn left_out(&self) -> Option<String> {
        let kinds = [
            (&self.empty, "empty"),
            (&self.nul, "with NUL bytes"),
            (&self.invalid_utf8, "not UTF-8"),
            (&self.too_long, "longer than 1 MiB"),
        ];
        let parts: Vec<String> = kinds
            .iter()
            .filter(|(lines, _)| lines.count > 0)
            .map(|(lines, kind)| {
                let numbers: Vec<String> = lines.first_lines.iter().map(u64::to_string).collect();
                let word = if numbers.len() == 1 { "line" } else { "lines" };
                let more = if lines.count > numbers.len() as u64 { ", ..." } else { "" };
                format!("{} {kind} ({word} {}{more})", lines.count, numbers.join(", "))
            })
            .collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}

impl Display for CorpusReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let plural = |n: u64| if n == 1 { "" } else { "s" };
        let [sentences, lines] = [self.sentences, self.lines];
        write!(f, "{sentences} example{} in {lines} line{}", plural(sentences), plural(lines))?;
        match self.left_out() {
            Some(what) => write!(f, "; left out: {what}"),
            None => Ok(()),
        }
    }
}
