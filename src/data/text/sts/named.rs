//! Tables whose columns have names: TSV and CSV with a header, and JSON lines.
//!
//! In a TSV file quotes are characters like others; a CSV file is read by RFC 4180, where `""` inside quotes is a quote.

use super::lines::{Text, pair, shown};
use super::{Columns, StsPair, StsSplit};
use crate::error::Result;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Names of the columns of sentences, where none are given: GLUE's and STS-B's, SICK's, and those of common conversions.
const SENTENCES: [[&str; 2]; 4] =
    [["sentence1", "sentence2"], ["sentence_A", "sentence_B"], ["text1", "text2"], ["a", "b"]];
/// The same of the scores. SICK's `label`s are of entailment, so that this name comes last.
const SCORES: [&str; 4] = ["score", "relatedness_score", "similarity_score", "label"];
/// Most names of columns in an error.
const LISTED: usize = 20;

/// The line in which a row begins, and its fields.
type Row<T> = (usize, Vec<T>);

/// The pairs of a table, and whether their split chose them. Which kind it is shows in its first line.
pub(super) fn read(text: &Text, split: StsSplit, columns: Option<&Columns>) -> Result<(Vec<StsPair>, bool)> {
    let lines = text.lines();
    let first = lines.first().copied().unwrap_or_default();
    let (pairs, chosen) = if first.trim_start().starts_with('{') {
        of_json(text, &lines, split, columns)?
    } else if first.contains('\t') {
        let rows = lines.iter().enumerate().map(|(i, line)| (i + 1, line.split('\t').collect()));
        of_rows(text, &rows.collect::<Vec<Row<&str>>>(), split, columns)?
    } else {
        let rows = csv(&text.text).map_err(|(line, message)| text.fault_at(line, message))?;
        of_rows(text, &rows, split, columns)?
    };
    if pairs.is_empty() {
        return Err(text.fault("has no rows below its header; expected at least one pair of sentences"));
    }
    Ok((pairs, chosen))
}

/// The pairs of rows, each with its line, below a header.
fn of_rows<T: AsRef<str>>(
    text: &Text,
    rows: &[Row<T>],
    split: StsSplit,
    columns: Option<&Columns>,
) -> Result<(Vec<StsPair>, bool)> {
    let Some(((line, header), rows)) = rows.split_first() else {
        return Ok((Vec::new(), false));
    };
    let names: Vec<&str> = header.iter().map(|name| name.as_ref().trim()).collect();
    let fault = |message: String| text.fault_at(*line, message);
    let Columns { a, b, score } = choose(&names, columns).map_err(fault)?;
    let place = |name: &str| {
        let mut places = names.iter().enumerate().filter(|(_, n)| **n == name).map(|(i, _)| i);
        match (places.next(), places.next()) {
            (Some(_), Some(_)) => Err(format!("has two columns `{}`; expected one of that name", shown(name))),
            (place, _) => Ok(place.unwrap_or_default()),
        }
    };
    let (a, b, score) = (place(&a).map_err(fault)?, place(&b).map_err(fault)?, place(&score).map_err(fault)?);
    let splits = names.iter().position(|name| SPLITS.contains(name)).filter(|at| ![a, b, score].contains(at));
    let mut wanted = Wanted::new(split);
    let mut read = |(line, row): &Row<T>| {
        if row.len() != names.len() {
            let message = format!("has {}; expected {}, as the header has", columns_of(row.len()), names.len());
            return Err(text.fault_at(*line, message));
        }
        if splits.is_some_and(|at| !wanted.has(row[at].as_ref())) {
            return Ok(None);
        }
        let pair = pair(row[a].as_ref(), row[b].as_ref(), row[score].as_ref());
        pair.map(Some).map_err(|e| text.fault_at(*line, e))
    };
    let pairs = rows.iter().filter_map(|row| read(row).transpose()).collect::<Result<Vec<StsPair>>>()?;
    wanted.or_refuse(text, pairs)
}

/// Names of a column that says which split a row is of, as in sbert.net's `stsbenchmark.tsv` and in SICK's one file of all.
const SPLITS: [&str; 2] = ["split", "SemEval_set"];

/// The rows of one split, where a table has several.
struct Wanted {
    split: StsSplit,
    /// Whether there is such a column.
    asked: bool,
    /// Names of other splits that were met.
    others: BTreeSet<String>,
}

impl Wanted {
    fn new(split: StsSplit) -> Wanted {
        Wanted { split, asked: false, others: BTreeSet::new() }
    }

    /// Whether a row of the split of this name is wanted.
    fn has(&mut self, name: &str) -> bool {
        let names: &[&str] = match self.split {
            StsSplit::Train => &["train"],
            StsSplit::Dev => &["dev", "validation", "val", "trial"],
            StsSplit::Test => &["test"],
        };
        self.asked = true;
        let found = names.contains(&name.trim().to_lowercase().as_str());
        if !found {
            self.others.insert(shown(name.trim()));
        }
        found
    }

    /// The pairs, and whether the split chose them; no pair where there are others is a fault.
    fn or_refuse(self, text: &Text, pairs: Vec<StsPair>) -> Result<(Vec<StsPair>, bool)> {
        if pairs.is_empty() && !self.others.is_empty() {
            let others: Vec<String> = self.others.into_iter().take(LISTED).map(|name| format!("`{name}`")).collect();
            let split = format!("{:?}", self.split).to_lowercase();
            return Err(text.fault(format!(
                "has no row whose split is {split}, only {}; choose another split, or rename that column",
                others.join(", ")
            )));
        }
        Ok((pairs, self.asked))
    }
}

/// The pairs of JSON objects, one a line. The first one's keys are the columns.
fn of_json(text: &Text, lines: &[&str], split: StsSplit, columns: Option<&Columns>) -> Result<(Vec<StsPair>, bool)> {
    let mut chosen: Option<Columns> = None;
    let mut wanted = Wanted::new(split);
    let mut read = |line: &str| -> std::result::Result<Option<StsPair>, String> {
        let row: Map<String, Value> = serde_json::from_str(line).map_err(|e| {
            let reason = e.to_string();
            let reason = reason.split(" at line ").next().unwrap_or_default();
            format!("byte {}: {reason}; expected one JSON object a line", e.column())
        })?;
        let names: Vec<&str> = row.keys().map(String::as_str).collect();
        let columns = choose(&names, chosen.as_ref().or(columns))?;
        let sentence = |name: &str| match &row[name] {
            Value::String(sentence) => Ok(sentence.clone()),
            other => Err(format!("`{name}` is {}; expected a string", shown(&other.to_string()))),
        };
        let (a, b) = (sentence(&columns.a)?, sentence(&columns.b)?);
        let of = SPLITS.iter().find(|name| ![&columns.a, &columns.b, &columns.score].iter().any(|c| c == *name));
        let of = of.and_then(|name| row.get(*name)?.as_str());
        let pair = match of {
            Some(of) if !wanted.has(of) => None,
            _ => Some(pair(&a, &b, &row[&columns.score].to_string())?),
        };
        chosen = Some(columns);
        Ok(pair)
    };
    let rows = lines.iter().enumerate();
    let pairs = rows.filter_map(|(i, line)| read(line).map_err(|e| text.fault_at(i + 1, e)).transpose());
    let pairs = pairs.collect::<Result<Vec<StsPair>>>()?;
    wanted.or_refuse(text, pairs)
}

/// The columns to read, all of which are among `names`, or what is wrong.
fn choose(names: &[&str], given: Option<&Columns>) -> std::result::Result<Columns, String> {
    let there = |name: &&str| names.contains(name);
    let columns = given.cloned().unwrap_or_else(|| {
        let both = SENTENCES.iter().find(|both| both.iter().all(there));
        let either = SENTENCES.iter().find(|both| both.iter().any(there));
        let [a, b] = both.or(either).unwrap_or(&SENTENCES[0]).map(String::from);
        Columns { a, b, score: SCORES.into_iter().find(there).unwrap_or(SCORES[0]).to_string() }
    });
    if columns.a == columns.b {
        return Err(format!("the column `{}` is named for both sentences; expected two columns", columns.a));
    }
    let Some(missing) = [&columns.a, &columns.b, &columns.score].into_iter().find(|name| !there(&name.as_str())) else {
        return Ok(columns);
    };
    let listed: Vec<String> = names.iter().take(LISTED).map(|name| format!("`{}`", shown(name))).collect();
    let more = if names.len() > LISTED { ", and more" } else { "" };
    let near = names
        .iter()
        .filter(|name| ![&columns.a, &columns.b, &columns.score].contains(&&name.to_string()))
        .map(|name| (strsim::damerau_levenshtein(missing, name), name))
        .min()
        .filter(|(distance, _)| *distance <= 1 + missing.len() / 3 && *distance < missing.len())
        .map(|(_, name)| format!("; did you mean `{}`?", shown(name)));
    let advice = if given.is_some() {
        ""
    } else {
        "; name the columns of both sentences and of the score: eval-sts --columns A,B,SCORE, or eval.columns of a run"
    };
    Err(format!("has no column `{missing}`, only {}{more}{}", listed.join(", "), near.as_deref().unwrap_or(advice)))
}

/// `1 column`, `2 columns`.
pub(super) fn columns_of(count: usize) -> String {
    format!("{count} column{}", if count == 1 { "" } else { "s" })
}

/// The rows of a CSV file, each with the line that it begins in, without empty ones at the end; else a line and its fault.
fn csv(text: &str) -> std::result::Result<Vec<Row<String>>, (usize, String)> {
    let (mut rows, mut rest, mut line) = (Vec::new(), text, 1);
    while !rest.is_empty() {
        let (begin, mut row) = (line, Vec::new());
        loop {
            let (field, after) = match rest.strip_prefix('"') {
                Some(inside) => quoted(inside).ok_or((line, "a quote opens here and nothing closes it".to_string()))?,
                None => {
                    let field = &rest[..rest.find([',', '\n']).unwrap_or(rest.len())];
                    let after = &rest[field.len()..];
                    let at_end = !after.starts_with(',');
                    (field.strip_suffix('\r').filter(|_| at_end).unwrap_or(field).to_string(), after)
                }
            };
            line += field.matches('\n').count();
            row.push(field);
            if let Some(next) = after.strip_prefix(',') {
                rest = next;
                continue;
            }
            let next = after.strip_prefix('\r').unwrap_or(after);
            rest = next.strip_prefix('\n').unwrap_or(next);
            if rest.len() == next.len() && !next.is_empty() {
                let found = shown(after.lines().next().unwrap_or_default());
                return Err((
                    line,
                    format!("`{found}` follows a closing quote; expected a comma (a quote inside quotes is doubled)"),
                ));
            }
            line += 1;
            break;
        }
        rows.push((begin, row));
    }
    while rows.last().is_some_and(|(_, row)| row.len() == 1 && row[0].trim().is_empty()) {
        rows.pop();
    }
    Ok(rows)
}

/// A field after its opening quote, and what follows its closing one; `None` where there is no such.
fn quoted(mut inside: &str) -> Option<(String, &str)> {
    let mut field = String::new();
    loop {
        let (part, after) = inside.split_once('"')?;
        field.push_str(part);
        match after.strip_prefix('"') {
            Some(more) => inside = more,
            None => return Some((field, after)),
        }
        field.push('"');
    }
}
