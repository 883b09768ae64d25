//! Where a diagnosis takes its similarities and choices from: files of embeddings or similarities, runs on images, runs on text.
//!
//! Anchors are drawn, and candidates apart from them; for link selection the anchors are one another's candidates.

use super::anchors::gate_of;
use super::sample::{Draw, Rows, Sample};
use super::winners::{Winner, Winners};
use crate::config::loss::WeinceConfig;
use crate::config::run::RunConfig;
use crate::config::text::TextConfig;
use crate::config::text_data::{CorpusConfig, CorpusFormat};
use crate::config::vision::VisionConfig;
use crate::data::Split;
use crate::data::text::Corpus;
use crate::data::text::sts::{self, StsSplit};
use crate::error::{Error, Result};
use crate::eval::matrix::{Matrix, read_labels};
use crate::eval::{RunEncoder, Space, TextRunEncoder};
use crate::run::RunFolder;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use tch::Device;

/// Which rows of the items are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Negatives {
    /// Items as evaluation sees them, without augmentation and dropout
    Plain,
    /// Anchors and negatives in one random view of the run's
    OneView,
    /// Anchors in one random view, negatives in another
    AcrossViews,
}

/// Which items of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Held out
    Test,
    /// Those that the run trains on
    Train,
}

/// How items are drawn and compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Options {
    /// Anchors.
    pub anchors: usize,
    /// Negatives of each.
    pub candidates: usize,
    /// Of the draws and of random views.
    pub seed: u64,
    /// Which rows are compared; none for the source's own way.
    pub negatives: Option<Negatives>,
    /// What a winner of link selection is.
    pub winner: Winner,
    /// Other items in a choice.
    pub link_candidates: usize,
    /// Choices of an anchor, where fresh views can be made; 0 leaves link selection out.
    pub draws: usize,
    /// Leave out negatives of the anchor's class.
    pub leave_out_class: bool,
}

/// Similarities, choices, and what they are of.
#[derive(Debug)]
pub struct Material {
    /// The similarities.
    pub sample: Sample,
    /// The choices, or why there are none.
    pub winners: std::result::Result<Winners, String>,
    /// The gate, and whose it is.
    pub gate: (WeinceConfig, String),
    /// Negatives of an anchor in a batch of the run.
    pub batch_negatives: Option<usize>,
    /// Updates behind the weights.
    pub step: Option<u64>,
    /// What it is of, in a line.
    pub title: String,
    /// What it is of, for records.
    pub data: Value,
    /// What has to be known about where it is from.
    pub cautions: Vec<String>,
}

fn defaults() -> (WeinceConfig, String) {
    (WeinceConfig::default(), "WEINCE's defaults".to_string())
}

/// Of a matrix of similarities, FILE or FILE:KEY, `[anchors, negatives]`.
///
/// # Errors
/// As [`Matrix::open`] and [`Sample::of_matrix`].
pub fn of_similarities(file: &str) -> Result<Material> {
    let matrix = Matrix::open(file)?;
    let rows: Result<Vec<Vec<f64>>> = (0..matrix.rows()).map(|r| matrix.read_f64(r..r + 1)).collect();
    let named = |e: Error| match e {
        Error::Input(text) => Error::Input(format!("{file}: {text}")),
        Error::NonFinite(text) => Error::NonFinite(format!("{file}: {text}")),
        other => other,
    };
    Ok(Material {
        sample: Sample::of_matrix(rows?).map_err(named)?,
        winners: Err("similarities alone have no other view of an anchor".into()),
        gate: defaults(),
        batch_negatives: None,
        step: None,
        title: format!("the similarities of {file}, [{}, {}]", matrix.rows(), matrix.columns()),
        data: json!({ "similarities": { "path": file, "sha256": matrix.sha256()? } }),
        cautions: Vec::new(),
    })
}

/// Of rows of embeddings, FILE or FILE:KEY, and, where it is there, a file with another view of each row.
///
/// # Errors
/// As [`Matrix::open`]; files that do not belong together; rows that are not finite or have the length 0.
pub fn of_embeddings(first: &str, second: Option<&str>, labels: Option<&str>, options: &Options) -> Result<Material> {
    let one = Matrix::open(first)?;
    let other = second.map(Matrix::open).transpose()?;
    if let Some(other) = &other
        && (other.rows(), other.columns()) != (one.rows(), one.columns())
    {
        return Err(Error::Input(format!(
            "{first} has [{}, {}] and {} has [{}, {}]: expected a row of one width for each item in both",
            one.rows(),
            one.columns(),
            other.name(),
            other.rows(),
            other.columns()
        )));
    }
    let classes = labels.map(read_labels).transpose()?;
    if let (Some(classes), Some(file)) = (&classes, labels)
        && classes.len() != one.rows()
    {
        return Err(Error::Input(format!(
            "{file} has {} labels, and {first} {} rows; expected one for each",
            classes.len(),
            one.rows()
        )));
    }
    let draw = Draw::of(one.rows(), options.anchors, options.candidates, options.seed)
        .map_err(|e| Error::Input(format!("{first}: {e}")))?;
    let negatives = options.negatives.unwrap_or(Negatives::OneView);
    let theirs = match (negatives, &other) {
        (Negatives::AcrossViews, Some(other)) => other,
        (Negatives::AcrossViews, None) => {
            return Err(Error::Config("--negatives across-views needs another view of the rows: --second FILE".into()));
        }
        _ => &one,
    };
    let (anchors, candidates) = (rows_of(&one, &draw.anchors)?, rows_of(theirs, &draw.candidates)?);
    let own = classes.as_ref().map(|all| (pick(all, &draw.anchors), pick(all, &draw.candidates)));
    let sample =
        Sample::of_rows(&draw, &anchors, &candidates, own.as_ref().map(|(a, c)| (a.as_slice(), c.as_slice())))?;
    let winners = match &other {
        None => Err("there is no other view of the rows; --second FILE gives one".to_string()),
        Some(_) if options.draws == 0 => Err(NOT_WANTED.to_string()),
        Some(other) => {
            let views = [rows_of(other, &draw.anchors)?];
            let pool = match (options.winner, negatives) {
                (Winner::Positive, Negatives::AcrossViews) => &views[0],
                _ => &anchors,
            };
            choose(&draw, &anchors, pool, &views, options)
        }
    };
    let file = |m: &Matrix| -> Result<Value> { Ok(json!({ "path": m.name(), "sha256": m.sha256()? })) };
    Ok(Material {
        sample,
        winners,
        gate: defaults(),
        batch_negatives: None,
        step: None,
        title: format!("the embeddings of {first}, [{}, {}]", one.rows(), one.columns()),
        data: json!({
            "embeddings": file(&one)?,
            "second": other.as_ref().map(file).transpose()?,
            "labels": labels,
            "items": one.rows(),
            "width": one.columns(),
            "negatives": negatives,
            "norms": anchors.norms(),
        }),
        cautions: Vec::new(),
    })
}

/// Why there are no choices where none are wanted.
pub const NOT_WANTED: &str = "none was asked for";

/// Choices of the anchors, who are one another's candidates; what is too little for them is told in their place.
fn choose(
    draw: &Draw,
    anchors: &Rows,
    pool: &Rows,
    views: &[Rows],
    options: &Options,
) -> std::result::Result<Winners, String> {
    let numbers = draw.anchors.clone();
    let among = Draw { negatives: numbers.len().saturating_sub(1), candidates: numbers.clone(), anchors: numbers };
    Winners::of(options.winner, &among, anchors, pool, views, options.link_candidates, options.seed)
        .map_err(|e| e.to_string())
}

fn pick(all: &[i64], numbers: &[usize]) -> Vec<i64> {
    numbers.iter().map(|i| all[*i]).collect()
}

/// Some rows of a matrix, as unit ones.
fn rows_of(matrix: &Matrix, numbers: &[usize]) -> Result<Rows> {
    let mut data = Vec::with_capacity(numbers.len() * matrix.columns());
    for row in numbers {
        data.extend(matrix.read_f64(*row..row + 1)?);
    }
    Rows::new(data, matrix.columns(), matrix.name(), |r| numbers[r] as u64)
}

/// All rows of a matrix, which are of the items `numbers`.
fn all_rows(matrix: &Matrix, numbers: &[usize]) -> Result<Rows> {
    Rows::new(matrix.read_f64(0..matrix.rows())?, matrix.columns(), matrix.name(), |r| numbers[r] as u64)
}

/// What a run is asked for.
#[derive(Debug, Clone)]
pub struct OfRun {
    /// Its folder.
    pub folder: PathBuf,
    /// Its items.
    pub part: Part,
    /// The space of the rows.
    pub space: Space,
    /// Of a run on text: sentences in place of its own.
    pub data: Option<PathBuf>,
    /// Where the encoder computes.
    pub device: Device,
}

impl OfRun {
    /// Of the run's own weights, or of those of `checkpoint`.
    ///
    /// # Errors
    /// What the run, its data or LibTorch report; what cannot be asked of such a run.
    pub fn material(&self, checkpoint: Option<&Path>, options: &Options) -> Result<Material> {
        let folder = RunFolder::open(&self.folder)?;
        let mut material = match folder.command()? {
            command if command == TextConfig::COMMAND => self.of_text(&folder, checkpoint, options),
            _ => self.of_images(checkpoint, options),
        }?;
        if let Some(file) = checkpoint
            && self.is_outside(file)?
        {
            material.cautions.push(format!(
                "The weights of {} lie outside of the run's folder {}: loss, views and data are the run's, whatever they were trained with.",
                file.display(),
                self.folder.display()
            ));
        }
        Ok(material)
    }

    fn is_outside(&self, file: &Path) -> Result<bool> {
        let whole = |path: &Path| path.canonicalize().map_err(Error::io(path, "cannot find where this is"));
        Ok(!whole(file)?.starts_with(whole(&self.folder)?))
    }

    fn of_images(&self, checkpoint: Option<&Path>, options: &Options) -> Result<Material> {
        if self.data.is_some() {
            return Err(Error::Config("--data is for runs on text; a run on images has its own".into()));
        }
        let encoder = RunEncoder::open(&self.folder, checkpoint, self.space, self.device)?;
        let split = match self.part {
            Part::Test => Split::Test,
            Part::Train => Split::Pretrain,
        };
        let draw = Draw::of(encoder.images(split)?, options.anchors, options.candidates, options.seed)?;
        let classes = options.leave_out_class.then(|| encoder.labels(split)).transpose()?;
        let rows = |view: Option<u64>, numbers: &[usize]| {
            let matrix = match view {
                None => encoder.plain(split, numbers)?,
                Some(view) => encoder.views(split, numbers, options.seed, view)?,
            };
            all_rows(&matrix, numbers)
        };
        let (sample, winners, norms, negatives) =
            looked_at(&draw, &rows, classes.as_deref(), Negatives::OneView, options)?;
        let config: &VisionConfig = encoder.config();
        let mut data = encoder.source()?;
        data["split"] = json!(self.part);
        data["items"] = json!(encoder.images(split)?);
        data["negatives"] = json!(negatives);
        data["norms"] = json!(norms);
        Ok(Material {
            sample,
            winners,
            gate: owned(gate_of(&config.loss)),
            batch_negatives: Some(config.batch_negatives()),
            step: encoder.step(),
            title: self.title(encoder.weights(), encoder.step()),
            data,
            cautions: Vec::new(),
        })
    }

    fn of_text(&self, folder: &RunFolder, checkpoint: Option<&Path>, options: &Options) -> Result<Material> {
        if options.leave_out_class {
            return Err(Error::Config("--leave-out-class needs classes, and sentences have none".into()));
        }
        let config: TextConfig = folder.read_config()?;
        let sentences = Sentences::open(self.data.as_deref(), self.part, &config)?;
        let encoder = TextRunEncoder::open_run(&self.folder, checkpoint, None, self.space, self.device)?;
        let draw = Draw::of(sentences.len(), options.anchors, options.candidates, options.seed)?;
        let rows = |view: Option<u64>, numbers: &[usize]| {
            let texts = numbers.iter().map(|i| sentences.get(*i)).collect::<Result<Vec<String>>>()?;
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let matrix = match view {
                None => encoder.sentences(&texts)?,
                // Views of one seed are other views for another list already.
                Some(view) => encoder.dropout(&texts, options.seed.wrapping_add(view))?,
            };
            all_rows(&matrix, numbers)
        };
        let (sample, winners, norms, negatives) = looked_at(&draw, &rows, None, Negatives::AcrossViews, options)?;
        let mut data = encoder.source()?;
        data["run"] = json!(self.folder.display().to_string());
        data["data"] = sentences.source();
        data["items"] = json!(sentences.len());
        data["negatives"] = json!(negatives);
        data["norms"] = json!(norms);
        let step = checkpoint.map(step_of).transpose()?.flatten();
        Ok(Material {
            sample,
            winners,
            gate: owned(gate_of(&config.loss)),
            batch_negatives: Some(config.batch_negatives()),
            step,
            title: self.title(encoder.encoder().file(), step),
            data,
            cautions: Vec::new(),
        })
    }

    fn title(&self, weights: &Path, step: Option<u64>) -> String {
        let step = step.map_or(String::new(), |step| format!(", step {step}"));
        format!("the run {} ({}{step}, {})", self.folder.display(), weights.display(), self.space.name())
    }
}

/// Updates behind a training state.
fn step_of(file: &Path) -> Result<Option<u64>> {
    use crate::checkpoint::{Value, torch_file};
    if !torch_file::is_one(file)? {
        return Ok(None);
    }
    Ok(torch_file::load(file)?.get("step").and_then(Value::as_u64))
}

fn owned((gate, whose): (WeinceConfig, &'static str)) -> (WeinceConfig, String) {
    (gate, whose.to_string())
}

/// The plain rows of items, or those of a numbered view.
type RowsOf<'a> = dyn Fn(Option<u64>, &[usize]) -> Result<Rows> + 'a;

type Looked = (Sample, std::result::Result<Winners, String>, [f64; 2], Negatives);

/// Similarities and choices of an encoder.
fn looked_at(
    draw: &Draw,
    rows: &RowsOf,
    classes: Option<&[i64]>,
    own_way: Negatives,
    options: &Options,
) -> Result<Looked> {
    let negatives = options.negatives.unwrap_or(own_way);
    let (ours, theirs) = match negatives {
        Negatives::Plain => (None, None),
        Negatives::OneView => (Some(0), Some(0)),
        Negatives::AcrossViews => (Some(0), Some(1)),
    };
    let (anchors, candidates) = (rows(ours, &draw.anchors)?, rows(theirs, &draw.candidates)?);
    let labels = classes.map(|all| (pick(all, &draw.anchors), pick(all, &draw.candidates)));
    let labels = labels.as_ref().map(|(own, theirs)| (own.as_slice(), theirs.as_slice()));
    let sample = Sample::of_rows(draw, &anchors, &candidates, labels)?;
    let norms = anchors.norms();
    let winners = match options.winner {
        _ if options.draws == 0 => Err(NOT_WANTED.to_string()),
        Winner::Fresh => {
            let clean = if ours.is_none() { anchors } else { rows(None, &draw.anchors)? };
            let views = (0..options.draws as u64).map(|view| rows(Some(2 + view), &draw.anchors));
            choose(draw, &clean, &clean, &views.collect::<Result<Vec<Rows>>>()?, options)
        }
        Winner::Positive => {
            let (first, second) = (rows(Some(0), &draw.anchors)?, rows(Some(1), &draw.anchors)?);
            choose(draw, &first, &second, std::slice::from_ref(&second), options)
        }
    };
    Ok((sample, winners, norms, negatives))
}

/// Sentences by their numbers.
enum Sentences {
    Corpus { corpus: Box<Corpus>, path: PathBuf },
    Listed { path: PathBuf, split: Option<StsSplit>, list: Vec<String>, repeated: usize },
}

impl Sentences {
    /// A `.txt` is a corpus of a sentence a line, anything else pairs with scores; without a path, the run's own corpus.
    fn open(path: Option<&Path>, part: Part, config: &TextConfig) -> Result<Sentences> {
        let own = |config: &CorpusConfig| -> Result<Sentences> {
            Ok(Sentences::Corpus { corpus: Box::new(Corpus::open(config)?), path: config.path.clone() })
        };
        let Some(path) = path else {
            if part == Part::Train {
                return own(&config.data);
            }
            return Err(Error::Config(
                "a run on text has no sentences that are held out: give some with --data PATH, or take those that it trains on with --split train".into(),
            ));
        };
        let lines =
            CorpusConfig { path: path.to_path_buf(), text: None, positive: None, hard_negative: None, limit: None };
        if path.is_file() && lines.format().is_ok_and(|format| format == CorpusFormat::Txt) {
            return own(&lines);
        }
        let split = match part {
            Part::Test => StsSplit::Test,
            Part::Train => StsSplit::Train,
        };
        let set = sts::load(path, split, None)?;
        let mut seen = HashSet::new();
        let all = set.sentences();
        let list: Vec<String> = all.iter().filter(|s| seen.insert(**s)).map(|s| s.to_string()).collect();
        let repeated = all.len() - list.len();
        Ok(Sentences::Listed { path: path.to_path_buf(), split: set.split, list, repeated })
    }

    fn len(&self) -> usize {
        match self {
            Sentences::Corpus { corpus, .. } => corpus.len(),
            Sentences::Listed { list, .. } => list.len(),
        }
    }

    fn get(&self, number: usize) -> Result<String> {
        match self {
            Sentences::Corpus { corpus, .. } => Ok(corpus.get(number)?.text),
            Sentences::Listed { list, .. } => Ok(list[number].clone()),
        }
    }

    fn source(&self) -> Value {
        match self {
            Sentences::Corpus { corpus, path } => {
                json!({ "path": path.display().to_string(), "sha256": corpus.sha256() })
            }
            Sentences::Listed { path, split, repeated, .. } => {
                json!({ "path": path.display().to_string(), "split": split, "repeated_sentences_left_out": repeated })
            }
        }
    }
}
