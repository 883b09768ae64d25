//! The configuration of a sweep: many runs over one base, how each is evaluated, and what the table compares them with.

use super::eval::{KnnConfig, LbfgsConfig, LinearConfig};
use super::kind::{read_named, shown};
use super::{distinct_seeds, load, overrides};
use crate::error::{Error, Result};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_yaml::{Mapping, Value};
use std::path::Path;

/// A sweep: every setting of every arm with every seed is a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepConfig {
    /// What the runs share: the path of a run's configuration, relative to this file, or that configuration itself.
    pub base: Value,
    /// Changes to the base for all runs: key paths as in `--set`, and values.
    #[serde(default, skip_serializing_if = "Mapping::is_empty")]
    pub set: Mapping,
    /// Seeds of the encoders.
    pub seeds: Vec<u64>,
    /// The rows of the table.
    pub arms: Vec<ArmConfig>,
    /// The arm from which the others' differences are taken.
    pub baseline: String,
    /// How every run is evaluated; linear probe and kNN with their defaults unless given.
    #[serde(default)]
    pub evaluate: EvaluateConfig,
}

/// An arm: one row of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArmConfig {
    /// Letters, digits, `_`, `.` and `-`.
    pub name: String,
    /// Changes to the base for this arm: key paths and values.
    #[serde(default, skip_serializing_if = "Mapping::is_empty")]
    pub set: Mapping,
    /// Key paths and the values that each takes; every combination is a setting, the last key changing fastest.
    #[serde(default, skip_serializing_if = "Mapping::is_empty")]
    pub grid: Mapping,
}

/// The evaluations of every run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EvaluateConfig {
    /// The linear probe; left out unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linear: Option<ProbeConfig>,
    /// Nearest neighbours; left out unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub knn: Option<KnnConfig>,
}

impl Default for EvaluateConfig {
    fn default() -> Self {
        let probe = ProbeConfig { seeds: vec![0], probe: LinearConfig::Lbfgs(LbfgsConfig::default()) };
        EvaluateConfig { linear: Some(probe), knn: Some(KnnConfig::default()) }
    }
}

/// The linear probe: its protocol, `lbfgs` unless given, with the protocol's keys beside `seeds`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProbeConfig {
    /// Seeds of the probe, `[0]` unless given; their figures are averaged within a run.
    pub seeds: Vec<u64>,
    /// The protocol.
    #[serde(flatten)]
    pub probe: LinearConfig,
}

impl<'de> Deserialize<'de> for ProbeConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let mut map = Mapping::deserialize(deserializer)?;
        let seeds = map.remove("seeds").map_or(Ok(vec![0]), read_named);
        map.entry("protocol".into()).or_insert("lbfgs".into());
        Ok(ProbeConfig {
            seeds: seeds.map_err(|e| D::Error::custom(format!("seeds: {e}")))?,
            probe: read_named(Value::Mapping(map)).map_err(D::Error::custom)?,
        })
    }
}

impl SweepConfig {
    /// Reads a sweep file; the base is read too and takes its place, with `set` applied.
    ///
    /// # Errors
    /// As [`super::load`], and what [`SweepConfig::validate`] finds.
    pub fn load(path: &Path) -> Result<SweepConfig> {
        let mut config: SweepConfig = load(path, &[])?;
        let at = |message: String| Error::Config(format!("{}: {message}", path.display()));
        if let Value::String(base) = &config.base {
            config.base = load(&path.parent().unwrap_or(Path::new("")).join(base), &[])?;
        }
        if !config.base.is_mapping() {
            return Err(at("base: expected the path of a run's configuration, or the configuration itself".into()));
        }
        let set = std::mem::take(&mut config.set);
        apply(&mut config.base, &set).map_err(|why| at(format!("set: {why}")))?;
        config.validate().map_err(|e| at(e.to_string()))?;
        Ok(config)
    }

    /// Checks values beyond their types. What the runs' own configurations say is checked where they are made.
    ///
    /// # Errors
    /// The first value that cannot be, with its key.
    pub fn validate(&self) -> Result<()> {
        let refuse = |message: String| Err(Error::Config(message));
        distinct_seeds("seeds", &self.seeds)?;
        if self.arms.is_empty() {
            return refuse("arms: expected at least one".into());
        }
        for (i, arm) in self.arms.iter().enumerate() {
            let name = &arm.name;
            let is_safe = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
            if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(is_safe) || name.len() > 60 {
                return refuse(format!(
                    "arms: the name `{name}` cannot be that of a folder everywhere; expected 1 to 60 letters, digits, `_`, `.` \
                     and `-`, the first a letter or digit"
                ));
            }
            if self.arms[..i].iter().any(|other| other.name == *name) {
                return refuse(format!("arms: two have the name `{name}`"));
            }
            arm.validate().map_err(|why| Error::Config(format!("arm `{name}`: {why}")))?;
        }
        if !self.arms.iter().any(|arm| arm.name == self.baseline) {
            let names: Vec<&str> = self.arms.iter().map(|arm| arm.name.as_str()).collect();
            return refuse(format!("baseline: no arm is called `{}`; there are {}", self.baseline, names.join(", ")));
        }
        self.evaluate.validate()?;
        if let Some(arm) = self.arms.iter().find(|arm| arm.combinations() > 1) {
            let held = [
                ("linear", self.evaluate.linear.as_ref().map(|probe| probe.probe.validation())),
                ("knn", self.evaluate.knn.as_ref().map(|knn| knn.validation)),
            ];
            if let Some((name, _)) = held.iter().find(|(_, share)| *share == Some(0.0)) {
                return refuse(format!(
                    "evaluate.{name}.validation is 0, and arm `{}` has {} settings to choose from by validation; give a share \
                     above 0",
                    arm.name,
                    arm.combinations()
                ));
            }
        }
        Ok(())
    }
}

impl ArmConfig {
    /// The reason alone.
    fn validate(&self) -> std::result::Result<(), String> {
        for (section, key) in self.set.keys().map(|key| ("set", key)).chain(self.grid.keys().map(|key| ("grid", key))) {
            let Some(key) = key.as_str() else {
                return Err(format!("{section}: expected key paths, found {}", shown(key)));
            };
            if key == "seed" {
                return Err(format!("{section}: the seed of a run is one of the sweep's `seeds`; take it out here"));
            }
        }
        for (key, values) in self.choices() {
            if values.is_empty() {
                return Err(format!("grid: {key}: expected a list of one or more values"));
            }
            for (i, value) in values.iter().enumerate() {
                if !(value.is_number() || value.is_bool() || value.is_string()) {
                    return Err(format!(
                        "grid: {key}: expected numbers, names or true and false; other things go into arms"
                    ));
                }
                if values[..i].contains(value) {
                    return Err(format!("grid: {key}: {} is there twice", shown(value)));
                }
            }
        }
        Ok(())
    }

    /// The grid's key paths, each with its values; none where they are no list.
    pub fn choices(&self) -> impl Iterator<Item = (&str, &[Value])> {
        self.grid.iter().filter_map(|(key, values)| {
            let values: &[Value] = values.as_sequence().map_or(&[], |values| values);
            Some((key.as_str()?, values))
        })
    }

    /// The number of settings.
    pub fn combinations(&self) -> usize {
        self.choices().map(|(_, values)| values.len()).product()
    }
}

impl EvaluateConfig {
    fn validate(&self) -> Result<()> {
        if self.linear.is_none() && self.knn.is_none() {
            return Err(Error::Config("evaluate: expected `linear`, `knn` or both".into()));
        }
        let at = |section: &str, e: Error| Error::Config(format!("evaluate.{section}: {e}"));
        if let Some(probe) = &self.linear {
            distinct_seeds("evaluate.linear.seeds", &probe.seeds)?;
            probe.probe.validate().map_err(|e| at("linear", e))?;
        }
        self.knn.as_ref().map_or(Ok(()), |knn| knn.validate().map_err(|e| at("knn", e)))
    }
}

/// Applies key paths and values to a tree; the error is the reason alone.
pub(crate) fn apply(tree: &mut Value, set: &Mapping) -> std::result::Result<(), String> {
    set.iter().try_for_each(|(key, value)| {
        let path = key.as_str().ok_or_else(|| format!("expected key paths, found {}", shown(key)))?;
        overrides::set(tree, path, value.clone())
    })
}
