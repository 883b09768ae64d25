//! A diagnosis from end to end: from what was found to sentences, JSON, a table and a folder.

use super::pictures::{self, State};
use super::source::{Material, NOT_WANTED};
use super::words::Word;
use super::{Analysis, Link, Settings, bare_fit, page, record, words};
use crate::checkpoint::write_bytes;
use crate::error::{Error, Result};
use crate::eval::record::versions;
use crate::evt::{Bootstrap, GpdFit};
use crate::report::picture::Shown;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// A state of an encoder, or a set of similarities, and all that was found in it.
#[derive(Debug)]
pub struct Diagnosis {
    /// What it is of, in a line.
    pub title: String,
    /// The same for records.
    pub data: Value,
    /// Updates behind the weights.
    pub step: Option<u64>,
    /// The analysis.
    pub analysis: Analysis,
    /// The links, or why there are none.
    pub link: std::result::Result<Link, String>,
    /// What was found.
    pub words: Vec<Word>,
}

impl Diagnosis {
    /// Of material; `batch_negatives` replaces the material's own.
    ///
    /// # Errors
    /// As [`Analysis::of`].
    pub fn of(
        material: Material,
        quantile: f64,
        bootstrap: Option<Bootstrap>,
        batch_negatives: Option<usize>,
    ) -> Result<Diagnosis> {
        let (gate, gate_of) = material.gate;
        let batch_negatives = batch_negatives.or(material.batch_negatives);
        let settings = Settings { quantile, bootstrap, gate, gate_of, batch_negatives };
        let analysis = Analysis::of(&material.sample, &settings)?;
        let link = material.winners.and_then(|w| w.fit().map_err(|e| e.to_string()));
        let mut words = words::of(&analysis, link.as_ref().ok());
        if let Err(why) = &link
            && why != NOT_WANTED
        {
            words.push(Word { caution: true, text: format!("No link was selected: {why}.") });
        }
        words.extend(material.cautions.into_iter().map(|text| Word { caution: true, text }));
        Ok(Diagnosis { title: material.title, data: material.data, step: material.step, analysis, link, words })
    }

    /// Everything but protocol and versions.
    fn figures(&self) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("step".into(), json!(self.step));
        map.extend(record::of(&self.analysis, self.link.as_ref().ok()));
        map.insert("no_link".into(), json!(self.link.as_ref().err()));
        map.insert("words".into(), json!(self.words));
        map.insert("data".into(), self.data.clone());
        map
    }

    /// Names and numbers for a terminal.
    pub fn table(&self) -> Vec<(String, String)> {
        record::table_of(&self.analysis, self.link.as_ref().ok())
    }
}

/// The JSON object of diagnoses by rising step: the keys of the last, and under `states` those of all where there are several.
pub fn record_of(diagnoses: &[Diagnosis], protocol: Value) -> Map<String, Value> {
    let mut map = head();
    if let Some(last) = diagnoses.last() {
        map.extend(last.figures());
    }
    if diagnoses.len() > 1 {
        map.insert("over_training".into(), json!(over_training(diagnoses)));
        map.insert("states".into(), diagnoses.iter().map(|d| Value::Object(d.figures())).collect());
    }
    finish(map, protocol)
}

/// How far the last of several states is from the first; nothing where there is one.
pub fn over_training(diagnoses: &[Diagnosis]) -> Vec<Word> {
    let ends = diagnoses.first().zip(diagnoses.last()).filter(|_| diagnoses.len() > 1);
    ends.and_then(|(a, b)| Some(words::over_training((a.step?, &a.analysis), (b.step?, &b.analysis))))
        .unwrap_or_default()
}

fn head() -> Map<String, Value> {
    Map::from_iter([("evaluation".to_string(), json!("tail"))])
}

fn finish(mut map: Map<String, Value>, protocol: Value) -> Map<String, Value> {
    map.insert("protocol".into(), protocol);
    map.insert("versions".into(), versions());
    map
}

/// Writes `tail.json`, `report.md`, `anchors.csv` and the pictures of diagnoses by rising step; of several, those of each in a folder of
/// its own, beside the pictures over training. What an earlier report left there is removed first. Gives the paths.
///
/// # Errors
/// What the system refuses.
pub fn write(folder: &Path, diagnoses: &[Diagnosis], record: &Map<String, Value>) -> Result<Vec<PathBuf>> {
    make(folder)?;
    clear(folder)?;
    let mut written = Vec::new();
    let several = diagnoses.len() > 1;
    let change = over_training(diagnoses);
    let mut parts: Vec<page::Part> = Vec::new();
    for diagnosis in diagnoses {
        let name = match diagnosis.step {
            Some(step) if several => format!("step-{step:09}"),
            _ => String::new(),
        };
        let own = folder.join(&name);
        make(&own)?;
        let shown = pictures::of(&diagnosis.analysis)?;
        written.extend(draw(&own, &shown)?);
        let anchors = own.join("anchors.csv");
        write_bytes(&anchors, pictures::anchor_numbers(&diagnosis.analysis.anchors).to_csv()?)?;
        written.push(anchors);
        let title = if several { format!("Step {}", diagnosis.step.unwrap_or(0)) } else { String::new() };
        parts.push(page::Part {
            title,
            folder: name,
            words: &diagnosis.words,
            table: diagnosis.table(),
            pictures: shown,
        });
    }
    if several {
        let states: Vec<State> = diagnoses
            .iter()
            .filter_map(|d| Some(State { step: d.step?, analysis: &d.analysis, link: d.link.as_ref().ok() }))
            .collect();
        let shown = pictures::over_training(&states)?;
        written.extend(draw(folder, &shown)?);
        let title = "Over training".to_string();
        parts
            .insert(0, page::Part { title, folder: String::new(), words: &change, table: Vec::new(), pictures: shown });
    }
    let title = diagnoses.last().map_or("", |d| d.title.as_str());
    written.extend(texts(folder, &page::to_markdown(title, &parts), record)?);
    Ok(written)
}

fn texts(folder: &Path, page: &str, record: &Map<String, Value>) -> Result<[PathBuf; 2]> {
    let (json, report) = (folder.join("tail.json"), folder.join("report.md"));
    write_bytes(&report, page)?;
    write_bytes(&json, format!("{}\n", to_text(record)?))?;
    Ok([report, json])
}

/// A record as text.
///
/// # Errors
/// None that is expected: records are plain data.
pub fn to_text(record: &Map<String, Value>) -> Result<String> {
    serde_json::to_string_pretty(record).map_err(|e| Error::Input(format!("the record cannot be written as JSON: {e}")))
}

fn make(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).map_err(Error::io(folder, "cannot make the folder of the report"))
}

/// Removes the pictures of an earlier report and the folders of its states, by their names, and nothing else.
fn clear(folder: &Path) -> Result<()> {
    const LOOK: &str = "cannot look for what an earlier report left";
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder, LOOK))? {
        let entry = entry.map_err(Error::io(folder, LOOK))?;
        let path = entry.path();
        let is_step = entry
            .file_name()
            .to_str()
            .and_then(|name| name.strip_prefix("step-"))
            .is_some_and(|step| step.len() >= 9 && step.bytes().all(|b| b.is_ascii_digit()));
        // A link is none of ours.
        if is_step && entry.file_type().map_err(Error::io(&path, LOOK))?.is_dir() && clear_pictures(&path)? {
            let left = std::fs::read_dir(&path).map_err(Error::io(&path, LOOK))?.next().is_some();
            if !left {
                std::fs::remove_dir(&path).map_err(Error::io(&path, "cannot remove what an earlier report left"))?;
            }
        }
    }
    clear_pictures(folder).map(|_| ())
}

/// Whether there were any. The table of the anchors goes with them.
fn clear_pictures(folder: &Path) -> Result<bool> {
    let remove = |path: PathBuf| -> Result<bool> {
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(Error::io(&path, "cannot remove what an earlier report left")(e)),
        }
    };
    let mut any = false;
    for name in pictures::names() {
        for kind in ["svg", "png", "csv"] {
            any |= remove(folder.join(format!("{name}.{kind}")))?;
        }
    }
    if any {
        remove(folder.join("anchors.csv"))?;
    }
    Ok(any)
}

fn draw(folder: &Path, shown: &[Shown]) -> Result<Vec<PathBuf>> {
    let files: Result<Vec<Vec<PathBuf>>> = shown.iter().map(|s| s.picture.write(folder)).collect();
    Ok(files?.concat())
}

/// A fit to exceedances alone.
#[derive(Debug)]
pub struct Bare {
    exceedances: Vec<f64>,
    /// The fit.
    pub fit: GpdFit,
    /// What was found.
    pub words: Vec<Word>,
    title: String,
    data: Value,
}

impl Bare {
    /// Of exceedances from `file`.
    ///
    /// # Errors
    /// As [`bare_fit`].
    pub fn of(mut exceedances: Vec<f64>, file: &str, sha256: String) -> Result<Bare> {
        let fit = bare_fit(&exceedances).map_err(|e| match e {
            Error::Input(text) => Error::Input(format!("{file}: {text}")),
            Error::NonFinite(text) => Error::NonFinite(format!("{file}: {text}")),
            other => other,
        })?;
        exceedances.sort_unstable_by(f64::total_cmp);
        let words = words::of_fit(&fit);
        let data = json!({ "exceedances": { "path": file, "sha256": sha256 } });
        Ok(Bare { exceedances, fit, words, title: format!("the exceedances of {file}"), data })
    }

    /// The JSON object.
    pub fn record(&self) -> Map<String, Value> {
        let mut map = head();
        map.extend(record::of_fit(&self.fit));
        map.insert("words".into(), json!(self.words));
        map.insert("data".into(), self.data.clone());
        finish(map, json!({ "fit": FIT }))
    }

    /// As [`write()`].
    ///
    /// # Errors
    /// What the system refuses.
    pub fn write(&self, folder: &Path, record: &Map<String, Value>) -> Result<Vec<PathBuf>> {
        make(folder)?;
        clear(folder)?;
        let shown = pictures::of_fit(&self.fit, &self.exceedances)?;
        let mut written = draw(folder, &shown)?;
        let table = record::table_of_fit(&self.fit);
        let part =
            page::Part { title: String::new(), folder: String::new(), words: &self.words, table, pictures: shown };
        written.extend(texts(folder, &page::to_markdown(&self.title, &[part]), record)?);
        Ok(written)
    }
}

/// How a law is fitted, for records.
pub const FIT: &str = "generalised Pareto, maximum likelihood over xi >= -1; P(Y > y) = (1 + xi y / sigma)^(-1 / xi)";
