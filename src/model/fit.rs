//! Finds a model's tensors in a file, wherever they stand there and however their project names them, and loads them: all of
//! them, or none.

use super::store::{Store, WrongShape, shortened};
use crate::error::{Error, Result};
use regex::RegexSet;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use tch::Tensor;

/// Levels that people put above an encoder or a projector. Where a file has the model twice (such as a momentum encoder beside
/// it), the one below these alone is meant.
const KNOWN_LEVELS: [&str; 17] = [
    "",
    "_orig_mod",
    "backbone",
    "base_encoder",
    "encoder",
    "encoder_q",
    "head",
    "layers",
    "model",
    "model_state_dict",
    "module",
    "net",
    "network",
    "projection_head",
    "projector",
    "resnet",
    "state_dict",
];

/// Levels of a name that are looked at.
const MOST_LEVELS: usize = 64;

/// A buffer of BatchNorm that files from before PyTorch 0.4.1 lack, and that nothing is computed from.
const COUNTER: &str = "num_batches_tracked";

/// Fits a tensor of a file, by the model's own name for it, to the model's shape; `None` where it cannot.
pub type Resample = fn(name: &str, given: &Tensor, shape: &[i64]) -> Result<Option<Tensor>>;

/// How other projects write a model.
#[derive(Debug, Clone, Default)]
pub struct OtherNames {
    /// What turns the model's own name into another project's.
    pub spellings: Vec<fn(&str) -> String>,
    /// Beginnings of names of a classifier on top, which the model does not have and does not miss.
    pub classifiers: &'static [&'static str],
    /// The levels that may stand right above the names, for a model whose names say little by themselves; any where empty.
    pub levels: &'static [&'static str],
    /// What fits tensors of another shape, such as position embeddings of other images; without it they are refused.
    pub resample: Option<Resample>,
}

/// What came of looking for a model in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// It was loaded.
    Loaded(Fit),
    /// It was left as it was, as is allowed; the reason.
    Left(String),
}

/// What was taken from a file, and what was not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// What stands before the names in the file, such as `state_dict.backbone.`.
    pub place: String,
    /// How many names were found there.
    pub matched: usize,
    /// Names of a classifier, left in the file.
    pub classifier: Vec<String>,
    /// What another shape was fitted to the model's.
    pub resampled: Vec<WrongShape>,
    /// Counters of batches that the file lacks; they stay 0.
    pub uncounted: usize,
    /// Names that the file lacks, as was allowed; they stay as they were.
    pub missing: Vec<String>,
}

impl fmt::Display for Fit {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} tensors", self.matched)?;
        if !self.place.is_empty() {
            write!(f, " under `{}`", self.place)?;
        }
        if !self.classifier.is_empty() {
            write!(f, "; the classifier is left out: {}", self.classifier.join(", "))?;
        }
        for WrongShape { name, expected, found } in &self.resampled {
            write!(f, "; {name} is resampled from {found:?} to {expected:?}")?;
        }
        if self.uncounted > 0 {
            write!(f, "; {} counters of batches are not there and stay 0", self.uncounted)?;
        }
        if !self.missing.is_empty() {
            write!(f, "; missing, as allowed: {}", self.missing.join(", "))?;
        }
        Ok(())
    }
}

/// Loads the tensors of `store` from those of a file. `part` names the model in messages and, with a dot, before the names that
/// `allowed` is asked about: what it matches may be missing. `remedy` is told where nothing but missing names is wrong.
///
/// Where all may be missing and the file's do not fit, nothing is loaded. Types and devices stay the store's.
///
/// # Errors
/// Any other name missing, any unexpected beside them, any wrong shape, a parameter that is not finite or a buffer that is NaN; a
/// model that the file has several times. Then nothing has been changed.
pub fn load(
    store: &Store,
    part: &str,
    file: &[(String, Tensor)],
    others: &OtherNames,
    allowed: &RegexSet,
    remedy: &str,
) -> Result<Found> {
    let own = store.state_dict();
    let may_miss = |name: &str| allowed.is_match(&format!("{part}.{name}"));
    let Some((place, names)) = find(&own, part, file, others)? else {
        if own.iter().all(|(name, _)| may_miss(name)) {
            return Ok(Found::Left("the file does not have it".into()));
        }
        let shown = |list: &[(String, Tensor)]| {
            let shown = |(name, t): &(String, Tensor)| format!("{} {:?}", shortened(name), t.size());
            let names: Vec<String> = list.iter().take(4).map(shown).collect();
            names.join(", ")
        };
        return Err(Error::Input(format!(
            "no tensor of the {part} is there: expected names such as {}; the file has {}{remedy}",
            shown(&own),
            shown(file)
        )));
    };
    let mut fit =
        Fit { place, matched: 0, classifier: Vec::new(), resampled: Vec::new(), uncounted: 0, missing: Vec::new() };
    let mut given = Vec::new();
    for (full, tensor) in file {
        let Some(name) = full.strip_prefix(&fit.place) else { continue };
        match names.get(name) {
            Some(own) => given.push((own.to_string(), tensor.shallow_clone())),
            None if others.classifiers.iter().any(|begin| name.starts_with(begin)) => fit.classifier.push(name.into()),
            None => given.push((name.to_string(), tensor.shallow_clone())),
        }
    }
    if let Some(resample) = others.resample {
        for wrong in store.compare(&given).wrong_shape {
            let Some((_, tensor)) = given.iter_mut().find(|(name, _)| *name == wrong.name) else { continue };
            if let Some(fitting) = resample(&wrong.name, tensor, &wrong.expected)? {
                *tensor = fitting;
                fit.resampled.push(wrong);
            }
        }
    }
    let report = store.compare(&given);
    fit.matched = report.matched.len();
    if !report.is_exact() && own.iter().all(|(name, _)| may_miss(name)) {
        return Ok(Found::Left(format!("that under `{}` does not fit: {report}", fit.place)));
    }
    let kept: HashMap<&str, &Tensor> = own.iter().map(|(name, t)| (name.as_str(), t)).collect();
    for name in &report.missing {
        let counter = name.ends_with(COUNTER);
        if counter || may_miss(name) {
            if counter {
                fit.uncounted += 1;
            } else {
                fit.missing.push(name.clone());
            }
            given.push((name.clone(), kept[name.as_str()].copy()));
        }
    }
    let place = if fit.place.is_empty() { String::new() } else { format!(", looked for under `{}`", fit.place) };
    let remedy = if report.unexpected.is_empty() && report.wrong_shape.is_empty() { remedy } else { "" };
    // Buffers may hold infinities on purpose, as masks of attention do.
    let parameters: HashSet<String> = store.parameters().into_iter().map(|(name, _)| name).collect();
    for (name, tensor) in given.iter().filter(|(_, tensor)| tensor.is_floating_point()) {
        let wrong = if parameters.contains(name) { tensor.f_isfinite()?.f_logical_not()? } else { tensor.f_isnan()? };
        if wrong.f_any()?.f_int64_value(&[])? != 0 {
            return Err(Error::NonFinite(format!("the {part}{place}: {name} has values that are not finite")));
        }
    }
    store.load(&given).map_err(|e| Error::Input(format!("the {part}{place}: {e}{remedy}")))?;
    Ok(Found::Loaded(fit))
}

/// Where the file has the model: what stands before its names, and the model's own name of each of the file's.
fn find(
    own: &[(String, Tensor)],
    part: &str,
    file: &[(String, Tensor)],
    others: &OtherNames,
) -> Result<Option<(String, HashMap<String, String>)>> {
    fn as_it_is(name: &str) -> String {
        name.to_string()
    }
    let mut best: Vec<(String, HashMap<String, String>)> = Vec::new();
    let mut best_score = (0, 0);
    for spelling in std::iter::once(&(as_it_is as fn(&str) -> String)).chain(&others.spellings) {
        let names: HashMap<String, String> = own.iter().map(|(name, _)| (spelling(name), name.clone())).collect();
        let shapes: HashMap<&str, Vec<i64>> = own.iter().map(|(name, t)| (name.as_str(), t.size())).collect();
        // By place: names of the right shape, names.
        let mut scores: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (full, tensor) in file.iter().filter(|(name, _)| !name.ends_with(COUNTER)) {
            let begins = std::iter::once(0).chain(full.match_indices('.').map(|(at, _)| at + 1));
            for (place, name) in begins.take(MOST_LEVELS).map(|at| full.split_at(at)) {
                let level = place.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
                if !others.levels.is_empty() && !others.levels.contains(&level) {
                    continue;
                }
                if let Some(own) = names.get(name) {
                    let score = scores.entry(place).or_default();
                    score.0 += usize::from(shapes[own.as_str()] == tensor.size());
                    score.1 += 1;
                }
            }
        }
        for (place, score) in scores {
            if score > best_score {
                best_score = score;
                best.clear();
            }
            // The first spelling that reaches a score keeps it: the model's own comes first.
            if score == best_score && best.iter().all(|(p, known)| p != place && known == &names) {
                best.push((place.to_string(), names.clone()));
            }
        }
    }
    let known = |place: &str| place.split('.').all(|level| KNOWN_LEVELS.contains(&level));
    if best_score.0 == 0 {
        // Only names agree, such as `0.weight`; anywhere else than at its usual place that says nothing.
        best.retain(|(place, _)| known(place));
    }
    if best.len() > 1 {
        let usual: Vec<usize> = (0..best.len()).filter(|&i| known(&best[i].0)).collect();
        let [only] = usual[..] else {
            let places: Vec<String> = best.iter().map(|(place, _)| format!("`{place}`")).collect();
            return Err(Error::Input(format!(
                "the {part} is there {} times, under {}; take one into a file of its own: checkpoint convert FILE NEW --only \
                 'PLACE.*'",
                places.len(),
                places.join(", ")
            )));
        };
        return Ok(Some(best.swap_remove(only)));
    }
    Ok(best.pop())
}
