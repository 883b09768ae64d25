//! Pairs of sentences with a gold score of their similarity, from files as they are passed around. [`load`] tells the layout by
//! what it finds.
//!
//! - The STS Benchmark: `sts-train.csv`, `sts-dev.csv` and `sts-test.csv`. Tab-separated, without a header, and quotes are
//!   characters like others: genre, file, year, number, score, both sentences, and in some rows sources or licences.
//! - STS 2012 to 2016 as SentEval lays them out: a folder with `STS.input.NAME.txt` (two sentences a line, with a tab between
//!   them) and `STS.gs.NAME.txt` (a score a line; an empty line where the pair was not judged) for each subset NAME. Also as
//!   the task of 2016 published its files: names begin with `STS2016`, and both sentences' sources follow them.
//! - SICK: `SICK_train.txt`, `SICK_trial.txt` and `SICK_test_annotated.txt`, tab-separated with a header.
//! - Any TSV or CSV file with a header, and JSON lines.
//!
//! Sentences are kept as they are written.
//!
//! # Source
//! STS Benchmark: the `readme.txt` of <http://ixa2.si.ehu.eus/stswiki>'s `Stsbenchmark.tar.gz`. STS 2012 to 2016:
//! `senteval/sts.py` and `data/downstream/get_transfer_data.bash` of <https://github.com/facebookresearch/SentEval>. SICK:
//! <https://zenodo.org/records/2787612>.

mod lines;
mod named;

pub use crate::config::sts::{Columns, StsSplit};
use crate::error::{Error, Result};
use lines::{Text, number, pair};
use named::columns_of;
use std::path::Path;

/// Two sentences and how similar people found them.
#[derive(Debug, Clone, PartialEq)]
pub struct StsPair {
    /// The first sentence.
    pub a: String,
    /// The second sentence.
    pub b: String,
    /// The gold score, on the scale of its data set.
    pub score: f64,
}

/// The pairs of one source.
#[derive(Debug, Clone, PartialEq)]
pub struct StsSubset {
    /// Its name.
    pub name: String,
    /// Its pairs, in the order of the file.
    pub pairs: Vec<StsPair>,
    /// Pairs that have no gold score and were left out.
    pub unscored: usize,
}

/// A data set: one subset, or several.
#[derive(Debug, Clone, PartialEq)]
pub struct StsSet {
    /// The name of its folder or file.
    pub name: String,
    /// Its subsets, sorted by name.
    pub subsets: Vec<StsSubset>,
    /// The split, where it chose the file or its rows.
    pub split: Option<StsSplit>,
}

impl StsSet {
    /// The sentences of all pairs, subset by subset: first sentence and second sentence take turns.
    pub fn sentences(&self) -> Vec<&str> {
        let pairs = self.subsets.iter().flat_map(|subset| &subset.pairs);
        pairs.flat_map(|pair| [pair.a.as_str(), pair.b.as_str()]).collect()
    }

    /// The pairs that people found similar, and from which score on: `share` of the way from the lowest score in the set to the
    /// highest, which for the sets of SemEval are the ends of their scale. 0.8 of STS-B's 0 to 5 is 4.
    ///
    /// # Errors
    /// A share that is not from 0 to 1; scores that are all the same.
    pub fn similar(&self, share: f64) -> Result<(Vec<&StsPair>, f64)> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::Config(format!("expected a share of the scale from 0 to 1, found {share}")));
        }
        let pairs = || self.subsets.iter().flat_map(|subset| &subset.pairs);
        let low = pairs().map(|pair| pair.score).fold(f64::INFINITY, f64::min);
        let high = pairs().map(|pair| pair.score).fold(f64::NEG_INFINITY, f64::max);
        if low >= high {
            return Err(Error::Input(format!(
                "{}: expected different scores, which make a scale, found {} pairs with the same one",
                self.name,
                pairs().count()
            )));
        }
        let from = low + share * (high - low);
        // The sum is rounded: what lies on the bound by its decimals is within.
        let slack = 1e-9 * (high - low);
        Ok((pairs().filter(|pair| pair.score >= from - slack).collect(), from))
    }
}

/// Files of the STS Benchmark, in the order of [`StsSplit`].
const STS_B: [&str; 3] = ["sts-train.csv", "sts-dev.csv", "sts-test.csv"];
/// Files of SICK, in the same order.
const SICK: [&str; 3] = ["SICK_train.txt", "SICK_trial.txt", "SICK_test_annotated.txt"];
/// SentEval's folders and the subsets of each.
const SENTEVAL: [(&str, &[&str]); 5] = [
    ("STS12-en-test", &["MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"]),
    ("STS13-en-test", &["FNWN", "OnWN", "headlines"]),
    ("STS14-en-test", &["OnWN", "deft-forum", "deft-news", "headlines", "images", "tweet-news"]),
    ("STS15-en-test", &["answers-forums", "answers-students", "belief", "headlines", "images"]),
    ("STS16-en-test", &["answer-answer", "headlines", "plagiarism", "postediting", "question-question"]),
];

/// Reads a data set from a file or a folder.
///
/// `split` chooses among the files of a folder of the STS Benchmark or of SICK, and among the rows of a table with a column
/// `split`; another file is read whatever the split, and SentEval's folders are tests. Files may be packed with gzip. `columns` names the columns of a table with a header; without it the usual names are tried.
///
/// # Errors
/// No layout that is known, missing files, missing columns, and bad rows, named by their line. A folder with a name of SentEval's
/// must have exactly its subsets, as the mean over others is another figure.
pub fn load(path: &Path, split: StsSplit, columns: Option<&Columns>) -> Result<StsSet> {
    if !path.is_dir() {
        return file(path, split, columns);
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path).map_err(Error::io(path, "cannot list"))? {
        names.push(entry.map_err(Error::io(path, "cannot list"))?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    for prefix in ["STS", "STS2016"] {
        let begin = format!("{prefix}.input.");
        let inputs: Vec<&str> = names.iter().filter_map(|n| n.strip_prefix(&begin)?.strip_suffix(".txt")).collect();
        if !inputs.is_empty() {
            if columns.is_some() {
                return Err(Error::Config(format!(
                    "{}: columns are named, but the files {prefix}.input.*.txt of this folder have no header; leave the names out",
                    path.display()
                )));
            }
            return senteval(path, prefix, &inputs, &names);
        }
    }
    for files in [STS_B, SICK] {
        let found: Vec<&str> = files.into_iter().filter(|file| names.iter().any(|name| name == file)).collect();
        let wanted = files[split as usize];
        if found.contains(&wanted) {
            return Ok(StsSet { split: Some(split), ..file(&path.join(wanted), split, columns)? });
        }
        if !found.is_empty() {
            return Err(Error::data(path, None, format!("has no {wanted}, only {}", found.join(" and "))));
        }
    }
    let expected = [STS_B[split as usize], SICK[split as usize]].join(" or ");
    Err(Error::data(
        path,
        None,
        format!(
            "expected {expected}, or STS.input.NAME.txt with STS.gs.NAME.txt, found none of them; name a file to read that one"
        ),
    ))
}

/// A file of one subset.
fn file(path: &Path, split: StsSplit, columns: Option<&Columns>) -> Result<StsSet> {
    let text = Text::read(path)?;
    let lines = text.lines();
    let Some(first) = lines.first() else {
        return Err(text.fault("is empty; expected pairs of sentences with a score each"));
    };
    let (pairs, chosen) = if columns.is_none() && is_sts_b(first) {
        let rows = lines.iter().enumerate().map(|(i, line)| sts_b(line).map_err(|e| text.fault_at(i + 1, e)));
        (rows.collect::<Result<_>>()?, false)
    } else {
        named::read(&text, split, columns)?
    };
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let subsets = vec![StsSubset { name: name.clone(), pairs, unscored: 0 }];
    Ok(StsSet { name, subsets, split: chosen.then_some(split) })
}

/// Whether a file that begins with this line is one of the STS Benchmark's. All of its genres begin with `main-`.
fn is_sts_b(line: &str) -> bool {
    let row: Vec<&str> = line.split('\t').collect();
    row.len() > 1 && (row[0].starts_with("main-") || (7..=9).contains(&row.len()) && number(row[4]).is_some())
}

fn sts_b(line: &str) -> std::result::Result<StsPair, String> {
    let row: Vec<&str> = line.split('\t').collect();
    if !(7..=9).contains(&row.len()) {
        return Err(format!(
            "has {}, separated by tabs; expected 7 (genre, file, year, number, score, both sentences), and up to 2 of sources",
            columns_of(row.len())
        ));
    }
    pair(row[5], row[6], row[4])
}

/// A folder of SentEval's: `inputs` are the subsets that have sentences, `names` all files, which begin with `prefix`.
fn senteval(folder: &Path, prefix: &str, inputs: &[&str], names: &[String]) -> Result<StsSet> {
    let whole = || std::fs::canonicalize(folder).ok().and_then(|path| Some(path.file_name()?.to_os_string()));
    let name = folder.file_name().map(|name| name.to_os_string()).or_else(whole).unwrap_or_default();
    let name = name.to_string_lossy().into_owned();
    let official = SENTEVAL.iter().find(|(folder, _)| *folder == name).map(|(_, subsets)| *subsets);
    let subsets = official.unwrap_or(inputs);
    let files = subsets.iter().flat_map(|s| [format!("{prefix}.input.{s}.txt"), format!("{prefix}.gs.{s}.txt")]);
    let missing: Vec<String> = files.filter(|file| !names.contains(file)).collect();
    if !missing.is_empty() {
        return Err(Error::data(
            folder,
            None,
            format!(
                "has no {}; expected {prefix}.input.NAME.txt and {prefix}.gs.NAME.txt of each subset",
                missing.join(", no ")
            ),
        ));
    }
    if let Some(extra) = inputs.iter().find(|subset| !subsets.contains(subset)) {
        return Err(Error::data(
            folder,
            None,
            format!(
                "has {prefix}.input.{extra}.txt, which SentEval's {name} has not: figures over it could not be compared; take it out, or give \
                 the folder another name to read all that it has"
            ),
        ));
    }
    let subsets = subsets.iter().map(|subset| senteval_subset(folder, prefix, subset)).collect::<Result<_>>()?;
    Ok(StsSet { name, subsets, split: None })
}

fn senteval_subset(folder: &Path, prefix: &str, name: &str) -> Result<StsSubset> {
    let input = Text::read(&folder.join(format!("{prefix}.input.{name}.txt")))?;
    let gold = Text::read(&folder.join(format!("{prefix}.gs.{name}.txt")))?;
    let (rows, scores) = (input.lines(), gold.all_lines());
    // Empty lines at the end of the scores may stand for pairs without one, so that only those beyond the pairs are left out.
    if scores.len() < rows.len() || scores[rows.len()..].iter().any(|score| !score.trim().is_empty()) {
        return Err(gold.fault(format!(
            "the number of lines is {}, and that of {} is {}; expected a score, or an empty line, for each pair",
            scores.len(),
            input.path.display(),
            rows.len()
        )));
    }
    let (mut pairs, mut unscored) = (Vec::new(), 0);
    for (i, (row, score)) in rows.iter().zip(scores).enumerate() {
        let row: Vec<&str> = row.split('\t').collect();
        let (&[a, b] | &[a, b, _, _]) = &row[..] else {
            let message = format!(
                "has {}; expected two sentences with a tab between them, and perhaps a source for each",
                columns_of(row.len())
            );
            return Err(input.fault_at(i + 1, message));
        };
        if score.trim().is_empty() {
            unscored += 1;
        } else if number(score).is_none() {
            // The fault is of the scores' file; `pair` words it.
            return Err(gold.fault_at(i + 1, pair("a", "b", score).err().unwrap_or_default()));
        } else {
            pairs.push(pair(a, b, score).map_err(|e| input.fault_at(i + 1, e))?);
        }
    }
    if pairs.is_empty() {
        return Err(gold.fault(format!("has no score for any of {} pairs; expected at least one", rows.len())));
    }
    Ok(StsSubset { name: name.to_string(), pairs, unscored })
}

#[cfg(test)]
mod tests;
