//! Where the pairs and items of a search come from: files of embeddings, runs on images, runs on text.

use super::input::{Input, Items, Labels, Negatives};
use super::weince::TailLogit;
use crate::config::loss::LossConfig;
use crate::config::run::RunConfig;
use crate::config::text::TextConfig;
use crate::data::Split;
use crate::data::text::sts::{self, StsSplit};
use crate::error::{Error, Result};
use crate::eval::matrix::{Matrix, read_labels};
use crate::eval::{RunEncoder, Space, TextRunEncoder};
use crate::run::RunFolder;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use tch::Device;

/// Pairs and items, and what is known of them.
#[derive(Debug)]
pub struct Material {
    /// Held out.
    pub input: Input,
    /// Of training.
    pub train: Option<Input>,
    /// The temperature in training.
    pub tau: Option<f64>,
    /// The number of negatives in training.
    pub k: Option<usize>,
    /// The logit of a loss that has a tail's.
    pub weince: Option<TailLogit>,
    /// What it is of, in a line.
    pub title: String,
    /// What it is of, for records.
    pub data: Value,
}

/// Files of embeddings, each FILE or FILE:KEY.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Files {
    /// Anchors.
    pub anchors: String,
    /// Their positives, or their rows' numbers in the corpus.
    pub positives: String,
    /// The items.
    pub corpus: Option<String>,
    /// Without a corpus: the other anchors, in place of the other positives.
    pub among_anchors: bool,
    /// Classes of the anchors.
    pub labels: Option<String>,
    /// Classes of the corpus.
    pub corpus_labels: Option<String>,
    /// Anchors of training.
    pub train_anchors: Option<String>,
    /// Their positives.
    pub train_positives: Option<String>,
    /// The items of training.
    pub train_corpus: Option<String>,
}

impl Files {
    /// Opens them.
    ///
    /// # Errors
    /// As [`Matrix::open`] and [`Input::new`]; files that do not belong together.
    pub fn material(&self) -> Result<Material> {
        let corpus = self.corpus.as_deref();
        let (input, mut data) = self.input(&self.anchors, &self.positives, corpus, self.labels.as_deref())?;
        let train = match (&self.train_anchors, &self.train_positives) {
            (Some(anchors), Some(positives)) => {
                let (train, files) = self.input(anchors, positives, self.train_corpus.as_deref(), None)?;
                if train.negatives != input.negatives {
                    return Err(Error::Config(
                        "held-out and training risks are compared at the same law of negatives: give --corpus and --train-corpus, or neither"
                            .into(),
                    ));
                }
                if train.checks.dimensions != input.checks.dimensions {
                    return Err(Error::Input(format!(
                        "{} has rows of {} numbers, and {} of {}; both must come from the same encoder",
                        self.anchors, input.checks.dimensions, anchors, train.checks.dimensions
                    )));
                }
                data["train"] = files;
                Some(train)
            }
            (None, None) if self.train_corpus.is_none() => None,
            _ => {
                return Err(Error::Config(
                    "embeddings of training are pairs: give --train-anchors FILE and --train-positives FILE".into(),
                ));
            }
        };
        let title = format!("the embeddings of {} and {}", self.anchors, self.positives);
        Ok(Material { input, train, tau: None, k: None, weince: None, title, data })
    }

    fn input(
        &self,
        anchors: &str,
        positives: &str,
        corpus: Option<&str>,
        labels: Option<&str>,
    ) -> Result<(Input, Value)> {
        let first = Matrix::open(anchors)?;
        let of =
            |matrix: &Matrix| -> Result<Value> { Ok(json!({ "path": matrix.name(), "sha256": matrix.sha256()? })) };
        let mut data = json!({ "anchors": of(&first)?, "positives": positives });
        let corpus = corpus.map(Matrix::open).transpose()?;
        if let Some(corpus) = &corpus {
            data["corpus"] = of(corpus)?;
        }
        let labels = labels.map(|file| self.labels(file, corpus.is_some())).transpose()?;
        // Whole numbers are places in the corpus.
        let numbers = read_labels(positives);
        let (second, items) = match (numbers, corpus) {
            (Ok(numbers), Some(corpus)) => (None, Items::Among(corpus, numbers)),
            (Ok(_), None) => {
                return Err(Error::Config(format!(
                    "{positives} has whole numbers, rows of a corpus: give it with --corpus FILE"
                )));
            }
            (Err(_), corpus) => {
                let second = Matrix::open(positives)?;
                data["positives"] = of(&second)?;
                let items = match corpus {
                    Some(corpus) => Items::Corpus(corpus),
                    None if self.among_anchors => Items::Anchors,
                    None => Items::Positives,
                };
                (Some(second), items)
            }
        };
        Ok((Input::new(&first, second.as_ref(), items, labels)?, data))
    }

    fn labels(&self, file: &str, corpus: bool) -> Result<Labels> {
        let anchors = read_labels(file)?;
        let items = match (&self.corpus_labels, corpus) {
            (Some(file), true) => read_labels(file)?,
            (None, true) => {
                return Err(Error::Config("--labels needs the classes of the corpus too: --corpus-labels FILE".into()));
            }
            (_, false) => anchors.clone(),
        };
        Ok(Labels { anchors, items })
    }
}

/// A run, and what is taken of it.
#[derive(Debug, Clone)]
pub struct OfRun {
    /// Its folder.
    pub folder: PathBuf,
    /// Weights in place of its own.
    pub checkpoint: Option<PathBuf>,
    /// Where rows are taken.
    pub space: Space,
    /// Pairs with scores, for a run on text.
    pub data: Option<PathBuf>,
    /// Pairs of images.
    pub pairs: usize,
    /// Items of the corpus.
    pub items: usize,
    /// Of draws and views.
    pub seed: u64,
    /// Where the encoder computes.
    pub device: Device,
}

/// Sentences are a pair from this share of the scale of scores on: 4 of 5.
const SIMILAR: f64 = 0.8;

impl OfRun {
    /// Its pairs and items: of images, two random views of each, with one view of others as the corpus, held out and of training; of text,
    /// sentences that people found alike, with the other second sentences as the corpus.
    ///
    /// # Errors
    /// What the run, its data or LibTorch report; what cannot be asked of such a run.
    pub fn material(&self) -> Result<Material> {
        let folder = RunFolder::open(&self.folder)?;
        if folder.command()? == TextConfig::COMMAND { self.of_text(&folder) } else { self.of_images() }
    }

    fn of_images(&self) -> Result<Material> {
        if self.data.is_some() {
            return Err(Error::Config("--data is for runs on text; a run on images has its own".into()));
        }
        let encoder = RunEncoder::open(&self.folder, self.checkpoint.as_deref(), self.space, self.device)?;
        let input = self.views(&encoder, Split::Test)?;
        // As many of both, so that both are estimated alike.
        let same = OfRun { pairs: input.checks.anchors, items: input.checks.items, ..self.clone() };
        let train = same.views(&encoder, Split::Pretrain)?;
        let config = encoder.config();
        let k = config.batch_negatives();
        let mut data = encoder.source()?;
        data["views"] = json!("two random views of each image; the corpus is one view of other images");
        data["seed"] = json!(self.seed);
        Ok(Material {
            input,
            train: Some(train),
            tau: Some(config.loss.temperature()),
            k: Some(k),
            weince: tail_logit(&config.loss, k),
            title: self.title(encoder.weights()),
            data,
        })
    }

    fn views(&self, encoder: &RunEncoder, split: Split) -> Result<Input> {
        let count = encoder.images(split)?;
        let pairs = self.pairs.min(count / 2);
        if self.pairs < 2 || self.items < 2 {
            return Err(Error::Config(format!(
                "--pairs {} and --items {}: expected at least 2 of both, better thousands",
                self.pairs, self.items
            )));
        }
        if pairs < 2 {
            return Err(Error::Input(format!(
                "{count} images are too few for a search; expected at least 4, better thousands"
            )));
        }
        let mut order: Vec<usize> = (0..count).collect();
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(self.seed));
        let (pairs, others) = order.split_at(pairs);
        let others = &others[..others.len().min(self.items)];
        let (first, second) = (encoder.views(split, pairs, self.seed, 0)?, encoder.views(split, pairs, self.seed, 1)?);
        let classes = encoder.labels(split)?;
        let of = |numbers: &[usize]| numbers.iter().map(|i| classes[*i]).collect::<Vec<i64>>();
        // Images for pretraining may have no classes, which is a class of -1 for all.
        let labels = classes.iter().all(|c| *c >= 0).then(|| Labels { anchors: of(pairs), items: of(others) });
        let corpus = encoder.views(split, others, self.seed, 1)?;
        Input::new(&first, Some(&second), Items::Corpus(corpus), labels)
    }

    fn of_text(&self, folder: &RunFolder) -> Result<Material> {
        let Some(path) = &self.data else {
            return Err(Error::Config(
                "a run on text needs pairs that people scored: --data PATH, as eval-sts takes it".into(),
            ));
        };
        let config: TextConfig = folder.read_config()?;
        let set = sts::load(path, StsSplit::Test, None)?;
        let (pairs, least) = set.similar(SIMILAR)?;
        // An anchor is in no corpus, which has each second sentence once.
        let anchors: HashSet<&str> = pairs.iter().map(|p| &p.a[..]).collect();
        let seconds = set.subsets.iter().flat_map(|s| &s.pairs).map(|p| &p.b[..]);
        let items: BTreeSet<&str> = seconds.filter(|b| !anchors.contains(b)).collect();
        let items: Vec<&str> = items.into_iter().collect();
        let place: HashMap<&str, i64> = items.iter().copied().zip(0..).collect();
        let mut seen = HashSet::new();
        let kept: Vec<(&str, i64)> = pairs
            .iter()
            .filter_map(|p| Some((&p.a[..], *place.get(&p.b[..])?)))
            .filter(|(a, _)| seen.insert(*a))
            .collect();
        if kept.len() < 2 {
            return Err(Error::data(
                path,
                None,
                format!(
                    "{} pairs have a score of {least} or more; a search needs at least 2, better hundreds",
                    kept.len()
                ),
            ));
        }
        let encoder =
            TextRunEncoder::open_run(&self.folder, self.checkpoint.as_deref(), None, self.space, self.device)?;
        let first = encoder.sentences(&kept.iter().map(|(a, _)| *a).collect::<Vec<_>>())?;
        let corpus = encoder.sentences(&items)?;
        let numbers = kept.iter().map(|(_, b)| *b).collect();
        let k = config.batch_negatives();
        let mut data = encoder.source()?;
        data["run"] = json!(self.folder.display().to_string());
        data["pairs"] = json!({
            "path": path.display().to_string(), "split": set.split, "least_score": least, "pairs": kept.len(),
            "corpus": "every second sentence once, without those that are anchors",
        });
        Ok(Material {
            input: Input::new(&first, None, Items::Among(corpus, numbers), None)?,
            train: None,
            tau: Some(config.loss.temperature()),
            k: Some(k),
            weince: tail_logit(&config.loss, k),
            title: format!(
                "{}: {} pairs of {} with a score of {least} or more, among every second sentence that is no anchor",
                self.title(encoder.encoder().file()),
                kept.len(),
                path.display()
            ),
            data,
        })
    }

    fn title(&self, weights: &Path) -> String {
        format!("the run {} ({}, {})", self.folder.display(), weights.display(), self.space.name())
    }
}

fn tail_logit(loss: &LossConfig, negatives: usize) -> Option<TailLogit> {
    match loss {
        LossConfig::Infonce(_) => None,
        other => Some(TailLogit::Loss { loss: Box::new(other.clone()), negatives }),
    }
}

impl Negatives {
    /// In words.
    pub fn words(self) -> &'static str {
        match self {
            Negatives::Corpus => "items of a corpus of their own",
            Negatives::Positives => "the other anchors' positives",
            Negatives::Anchors => "the other anchors",
        }
    }
}
