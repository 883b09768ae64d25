//! `data` of a text run: which corpus, and which of its columns are the sides of an example.

use super::at_least_one;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A corpus of sentences, or of pairs or triples of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CorpusConfig {
    /// The file. Its name's ending is its format ([`CorpusFormat`]), and `.gz` behind it says that it is packed with gzip.
    pub path: PathBuf,
    /// The column (in JSON: the field) of the sentence. A `.txt` has none; the other formats need it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The column of the sentence that belongs to it, where pairs are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub positive: Option<String>,
    /// The column of a sentence that looks alike and means something else, where triples are given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard_negative: Option<String>,
    /// Only the first so many usable examples; what follows is not read, though a packed file is inflated whole. All
    /// unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
}

/// What a corpus's file is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CorpusFormat {
    /// `.txt`: a sentence a line.
    Txt,
    /// `.jsonl`: a JSON object a line.
    Jsonl,
    /// `.csv`: rows of fields separated by commas, below a header.
    Csv,
    /// `.tsv`: the same with tabulators.
    Tsv,
}

impl CorpusFormat {
    /// Every format, with the ending of its files' names.
    pub const ALL: [(&'static str, CorpusFormat); 4] = [
        (".txt", CorpusFormat::Txt),
        (".jsonl", CorpusFormat::Jsonl),
        (".csv", CorpusFormat::Csv),
        (".tsv", CorpusFormat::Tsv),
    ];
}

/// A file's name in small letters.
fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().to_lowercase()
}

impl CorpusConfig {
    /// The format that the file's name tells, in small or large letters.
    ///
    /// # Errors
    /// A name with none of the known endings.
    pub fn format(&self) -> Result<CorpusFormat> {
        let name = name(&self.path);
        let plain = name.strip_suffix(".gz").unwrap_or(&name);
        let known = CorpusFormat::ALL.iter().find(|(ending, _)| plain.ends_with(ending));
        known.map(|(_, format)| *format).ok_or_else(|| {
            let endings = CorpusFormat::ALL.map(|(ending, _)| ending).join(", ");
            Error::Config(format!(
                "data.path: the name of {} does not tell its format; expected one that ends in {endings}, each also with .gz behind it",
                self.path.display()
            ))
        })
    }

    /// Whether the file's name says that it is packed with gzip.
    pub fn packed(&self) -> bool {
        name(&self.path).ends_with(".gz")
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The first value that cannot be, with its key.
    pub fn validate(&self) -> Result<()> {
        let refuse = |message: String| Err(Error::Config(message));
        let format = self.format()?;
        let columns = [("text", &self.text), ("positive", &self.positive), ("hard_negative", &self.hard_negative)];
        if format == CorpusFormat::Txt {
            if let Some((key, Some(column))) = columns.iter().find(|(_, column)| column.is_some()) {
                return refuse(format!(
                    "data.{key}: `{column}` names a column, but a .txt has none: each of its lines is a sentence; leave it out, \
                     or give a .jsonl, .csv or .tsv"
                ));
            }
        } else if self.text.is_none() {
            return refuse(format!(
                "data.text: expected the name of the column that holds the sentences of {}, found none",
                self.path.display()
            ));
        }
        if let (Some(column), None) = (&self.hard_negative, &self.positive) {
            return refuse(format!("data.hard_negative: `{column}` needs data.positive beside it, found none"));
        }
        for (i, (key, column)) in columns.iter().enumerate() {
            if let Some((other, Some(column))) = columns[..i].iter().find(|(_, c)| c.is_some() && c == column) {
                return refuse(format!(
                    "data.{key}: `{column}` is data.{other} already; expected another column, or none at all"
                ));
            }
        }
        self.limit.map_or(Ok(()), |limit| at_least_one("data.limit", limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn config(text: &str) -> Result<CorpusConfig> {
        let config: CorpusConfig = parse(text, "c.yaml", &[])?;
        config.validate()?;
        Ok(config)
    }

    fn err(text: &str) -> String {
        let e = config(text).unwrap_err();
        assert_eq!(e.exit_code(), 2);
        e.to_string()
    }

    #[test]
    fn the_name_tells_the_format() {
        for (path, format, packed) in [
            ("a/wiki.txt", CorpusFormat::Txt, false),
            ("WIKI.TXT.GZ", CorpusFormat::Txt, true),
            ("x.jsonl.gz", CorpusFormat::Jsonl, true),
            ("x.Csv", CorpusFormat::Csv, false),
            ("x.y.tsv", CorpusFormat::Tsv, false),
        ] {
            let c = CorpusConfig { path: path.into(), text: None, positive: None, hard_negative: None, limit: None };
            assert_eq!((c.format().unwrap(), c.packed()), (format, packed), "{path}");
        }
        for path in ["wiki.text", "x.json", "x.gz", "x.txt.zip", "x.txt.gz.gz", "wiki", "txt"] {
            let e = err(&format!("path: d/{path}"));
            assert!(e.contains("data.path") && e.contains(path) && e.contains(".txt, .jsonl, .csv, .tsv"), "{e}");
        }
    }

    #[test]
    fn a_section_is_kept_as_it_was_given() {
        let c = config("{path: a.csv, text: sent0, positive: sent1, hard_negative: hard_neg, limit: 7}").unwrap();
        assert_eq!((c.hard_negative.as_deref(), c.limit), (Some("hard_neg"), Some(7)));
        assert_eq!(config(&serde_yaml::to_string(&c).unwrap()).unwrap(), c);
        assert_eq!(serde_yaml::to_string(&config("path: a.txt").unwrap()).unwrap(), "path: a.txt\n");
    }

    #[test]
    fn contradictions_name_their_key() {
        let e = err("{path: a.txt, positive: b}");
        assert!(e.contains("data.positive: `b`") && e.contains("a .txt has none"), "{e}");
        let e = err("path: a.jsonl.gz");
        assert!(e.contains("data.text: expected") && e.contains("a.jsonl.gz, found none"), "{e}");
        let e = err("{path: a.csv, text: a, hard_negative: b}");
        assert!(e.contains("data.hard_negative: `b` needs data.positive"), "{e}");
        let e = err("{path: a.csv, text: a, positive: b, hard_negative: b}");
        assert!(e.contains("data.hard_negative: `b` is data.positive already"), "{e}");
        let e = err("{path: a.txt, limit: 0}");
        assert!(e.contains("data.limit: expected a whole number of at least 1, found 0"), "{e}");
        let e = err("{path: a.csv, text: a, positve: b}");
        assert!(e.contains("`positve`") && e.contains("did you mean `positive`?"), "{e}");
    }
}
