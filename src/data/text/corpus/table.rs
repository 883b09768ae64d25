//! Rows of a table below its header. In a csv, as RFC 4180 has them: a field in double quotes may hold commas, line ends and doubled
//! quotes, and a quote within an unquoted field is itself. In a tsv quotes are characters like others, as in GLUE's files and for
//! the pairs of `eval-sts`. Empty lines are no rows.

use super::example::{Sides, has_visible};
use super::record::{MOST_BYTES, Record, Wrong, lines_of, names_and_nearest, text_of};
use super::report::Defect;
use memchr::{memchr, memchr2};
use std::borrow::Cow;
use std::ops::Range;

/// Most columns of a table.
const MOST_COLUMNS: usize = 10_000;

/// What a table's header says.
#[derive(Debug)]
pub(super) struct Table {
    delimiter: u8,
    /// Fields of each row.
    width: usize,
    /// Which of them are in use.
    columns: Sides<usize>,
}

/// A row as it is in the file.
struct Row {
    /// Where the next row begins.
    end: usize,
    /// How many fields it has.
    width: usize,
    /// Where the first of them are, with their quotes.
    fields: Vec<Range<usize>>,
}

impl Table {
    /// Reads the header at `at`; gives where the rows begin.
    pub(super) fn open(bytes: &[u8], at: usize, delimiter: u8, names: Sides<&String>) -> Result<(Table, usize), Wrong> {
        let wrong = |message: String| Wrong { at, message };
        let row = split(bytes, at, delimiter, MOST_COLUMNS)?;
        if row.width > MOST_COLUMNS {
            return Err(wrong(format!("expected a header of at most {MOST_COLUMNS} columns, found {}", row.width)));
        }
        let header = text_of(&bytes[at..row.end]).map_err(|defect| {
            let found = if defect == Defect::TooLong { "one longer than 1 MiB" } else { "what is no UTF-8" };
            wrong(format!("expected a header of column names, found {found}"))
        })?;
        let names_there: Vec<Cow<str>> =
            row.fields.iter().map(|f| content(&header[f.start - at..f.end - at], delimiter)).collect();
        let names_there: Vec<&str> = names_there.iter().map(|name| name.trim()).collect();
        let columns = names.try_map(|key, name| {
            let mut places = names_there.iter().enumerate().filter(|(_, there)| *there == name);
            match (places.next(), places.next()) {
                (Some((place, _)), None) => Ok(place),
                (Some(_), Some(_)) => Err(wrong(format!("expected one column `{name}` (data.{key}), found it twice"))),
                _ => {
                    let there = names_and_nearest(name, &names_there);
                    Err(wrong(format!("expected a column `{name}` (data.{key}) in the header, found {there}")))
                }
            }
        })?;
        Ok((Table { delimiter, width: row.width, columns }, row.end))
    }

    /// The row at `at`.
    pub(super) fn read<'a>(&self, bytes: &'a [u8], at: usize) -> Result<Record<'a>, Wrong> {
        let row = split(bytes, at, self.delimiter, self.width)?;
        let end = row.end;
        let inner = bytes[at..end].strip_suffix(b"\n").unwrap_or(&bytes[at..end]);
        let lines = lines_of(&bytes[at..end]);
        let found = match text_of(inner) {
            Err(defect) => Err(defect),
            Ok(text) if row.width == 1 && !has_visible(text) => Err(Defect::Empty),
            Ok(_) if row.width != self.width => {
                let message = format!(
                    "expected {} fields as in the header, found {}{}",
                    self.width,
                    row.width,
                    if quotes(self.delimiter) {
                        "; a field that holds a comma, a line end or a quote has to be in double quotes"
                    } else {
                        ""
                    }
                );
                return Err(Wrong { at, message });
            }
            Ok(text) => {
                let field = |place: usize| {
                    content(&text[row.fields[place].start - at..row.fields[place].end - at], self.delimiter)
                };
                self.columns.clone().try_map(|_, place| Ok(field(place))).and_then(Sides::usable)
            }
        };
        Ok(Record { end, lines, found })
    }
}

/// Whether double quotes around a field are not of it.
fn quotes(delimiter: u8) -> bool {
    delimiter == b','
}

/// Splits the row at `at`, and says where its first `most` fields are.
fn split(bytes: &[u8], at: usize, delimiter: u8, most: usize) -> Result<Row, Wrong> {
    let mut row = Row { end: at, width: 0, fields: Vec::with_capacity(most.min(16)) };
    loop {
        let begin = row.end;
        let mut end = begin;
        if quotes(delimiter) && bytes.get(begin) == Some(&b'"') {
            end = closing(bytes, begin)?;
            let rest = &bytes[end..];
            if !(rest.is_empty() || rest.starts_with(b"\r\n") || rest == b"\r" || b",\n".contains(&rest[0])) {
                let message = "expected a comma or the line's end behind the quote that closes the one that begins a field here, \
                               found other text; a quote within a quoted field is written twice";
                return Err(Wrong { at: begin, message: message.into() });
            }
        }
        end = memchr2(delimiter, b'\n', &bytes[end..]).map_or(bytes.len(), |length| end + length);
        let last = bytes.get(end) != Some(&delimiter);
        row.end = bytes.len().min(end + 1);
        row.width += 1;
        if row.width <= most {
            // The carriage return of a line end is not the field's.
            let cut = last && end > begin && bytes[end - 1] == b'\r';
            row.fields.push(begin..end - usize::from(cut));
        }
        if last {
            return Ok(row);
        }
    }
}

/// The place after the quote that closes the one at `open`.
fn closing(bytes: &[u8], open: usize) -> Result<usize, Wrong> {
    let within = &bytes[..bytes.len().min(open + 1 + MOST_BYTES)];
    let mut at = open + 1;
    while let Some(length) = memchr(b'"', &within[at..]) {
        at += length + 1;
        if within.get(at) != Some(&b'"') {
            return Ok(at);
        }
        at += 1;
    }
    let reach = if within.len() < bytes.len() { "the next 1 MiB" } else { "the rest of the file" };
    let message = format!(
        "expected a quote that closes the one that begins a field here, found none in {reach}; a quote within a quoted field is \
         written twice"
    );
    Err(Wrong { at: open, message })
}

/// A field without its quotes.
fn content(field: &str, delimiter: u8) -> Cow<'_, str> {
    if !quotes(delimiter) {
        return Cow::Borrowed(field);
    }
    match field.strip_prefix('"').and_then(|field| field.strip_suffix('"')) {
        None => Cow::Borrowed(field),
        Some(inner) if !inner.contains('"') => Cow::Borrowed(inner),
        Some(inner) => Cow::Owned(inner.replace("\"\"", "\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// Rows of trimmed fields, as the splitter finds them.
    fn rows(text: &str, delimiter: u8) -> Result<Vec<Vec<String>>, Wrong> {
        let (mut at, mut rows) = (0, Vec::new());
        while at < text.len() {
            let row = split(text.as_bytes(), at, delimiter, usize::MAX)?;
            assert_eq!(row.width, row.fields.len());
            let fields: Vec<String> =
                row.fields.iter().map(|f| content(&text[f.clone()], delimiter).trim().to_string()).collect();
            rows.push(fields);
            at = row.end;
        }
        rows.retain(|row: &Vec<String>| row.len() > 1 || !row[0].is_empty());
        Ok(rows)
    }

    /// The same by the `csv` crate.
    fn peer(text: &str, delimiter: u8) -> Vec<Vec<String>> {
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .flexible(true)
            .delimiter(delimiter)
            .quoting(quotes(delimiter))
            .terminator(csv::Terminator::Any(b'\n'))
            .from_reader(text.as_bytes());
        let rows = reader.records().map(|row| row.unwrap().iter().map(|f| f.trim().to_string()).collect());
        rows.filter(|row: &Vec<String>| row.len() > 1 || !row[0].is_empty()).collect()
    }

    #[test]
    fn any_text_is_split_as_the_csv_crate_does() {
        const PARTS: [&str; 12] = ["a", "bc", "\"", "\"", "\"\"", ",", ",", "\t", "\n", "\r\n", "\r", "\u{e9} "];
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut compared = 0;
        for round in 0..20_000 {
            let parts = rng.random_range(0..30);
            let text: String = (0..parts).map(|_| PARTS[rng.random_range(0..PARTS.len())]).collect();
            let delimiter = if round % 2 == 0 { b',' } else { b'\t' };
            match rows(&text, delimiter) {
                Ok(rows) => assert_eq!(rows, peer(&text, delimiter), "{text:?}"),
                // A quote that nothing closes, or text behind one that closes: the crate takes them as they come.
                Err(wrong) => {
                    assert!(text[wrong.at..].starts_with('"'), "{text:?}");
                    continue;
                }
            }
            compared += 1;
        }
        assert!(compared > 8000, "{compared}");
    }

    #[test]
    fn fields_that_are_odd_are_what_others_make_of_them() {
        for (field, text) in [
            ("ab", "ab"),
            ("a\"b", "a\"b"),
            ("\"\"", ""),
            ("\"a,\nb\"", "a,\nb"),
            ("\"a\"\"b\"", "a\"b"),
            ("\"\"\"\"", "\""),
        ] {
            assert_eq!(content(field, b','), text, "{field}");
            assert_eq!(content(field, b'\t'), field);
        }
    }
}
