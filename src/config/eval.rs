//! Configuration of the evaluations: protocols of the linear probe, and the nearest-neighbour vote.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// How a linear probe is fitted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "protocol", rename_all = "snake_case")]
pub enum LinearConfig {
    /// Multinomial logistic regression on standardised features, L2 chosen on validation.
    Lbfgs(LbfgsConfig),
    /// The protocol of the WEINCE authors: a linear layer trained by Adam on raw features.
    Adam(AdamConfig),
}

impl LinearConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// [`Error::Config`] naming the key, its value and the allowed range.
    pub fn validate(&self) -> Result<()> {
        match self {
            LinearConfig::Lbfgs(c) => c.validate(),
            LinearConfig::Adam(c) => c.validate(),
        }
    }

    /// The share of every class that is held out for validation.
    pub fn validation(&self) -> f64 {
        match self {
            LinearConfig::Lbfgs(c) => c.validation,
            LinearConfig::Adam(c) => c.validation,
        }
    }
}

/// The L2 sweep of the full-batch logistic regression.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LbfgsConfig {
    /// L2 penalties to choose from, each the factor of half the squared weights beside the mean loss.
    pub l2: Vec<f64>,
    /// Share of every class held out to choose with; 0 is allowed with a single penalty.
    pub validation: f64,
}

impl Default for LbfgsConfig {
    fn default() -> Self {
        LbfgsConfig { l2: vec![1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6], validation: 0.1 }
    }
}

impl LbfgsConfig {
    fn validate(&self) -> Result<()> {
        if self.l2.is_empty() || self.l2.iter().any(|l2| !(l2.is_finite() && *l2 >= 1e-9)) {
            return Err(range("l2", &self.l2, "one or more finite numbers of at least 1e-9"));
        }
        check_share(self.validation)?;
        if self.validation == 0.0 && self.l2.len() > 1 {
            return Err(range(
                "validation",
                self.validation,
                "more than 0 where several `l2` values are to be chosen from",
            ));
        }
        Ok(())
    }
}

/// Training of the linear layer by Adam.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamConfig {
    /// Learning rate, constant.
    pub lr: f64,
    /// Passes over the training part.
    pub epochs: usize,
    /// Samples a step; the last step of an epoch takes what is left.
    pub batch: usize,
    /// Share of every class held out.
    pub validation: f64,
    /// Whether training and test features lose what does not fill a batch of [`AUTHORS_BATCH`].
    pub drop_last: bool,
}

/// Samples of a batch when the WEINCE authors extract features; their loaders drop the last one of an epoch where it is smaller.
pub const AUTHORS_BATCH: usize = 256;

impl Default for AdamConfig {
    fn default() -> Self {
        AdamConfig { lr: 3e-4, epochs: 100, batch: 256, validation: 0.1, drop_last: false }
    }
}

impl AdamConfig {
    /// What the authors' scripts run, see `docs/protocol.md`.
    pub fn authors() -> Self {
        AdamConfig { validation: 0.2, drop_last: true, ..AdamConfig::default() }
    }
}

impl AdamConfig {
    fn validate(&self) -> Result<()> {
        if !(self.lr.is_finite() && self.lr > 0.0) {
            return Err(range("lr", self.lr, "a finite number above 0"));
        }
        if self.epochs == 0 {
            return Err(range("epochs", self.epochs, "at least 1"));
        }
        if self.batch == 0 {
            return Err(range("batch", self.batch, "at least 1"));
        }
        check_share(self.validation)
    }
}

/// The nearest-neighbour vote.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KnnConfig {
    /// Numbers of voting neighbours; the largest gives the headline accuracy.
    pub k: Vec<usize>,
    /// Temperature of the vote's weights, exp(similarity / temperature).
    pub temperature: f64,
    /// Share of every class of the bank that is held out and asks the rest, to choose by without the test samples; 0 for none.
    pub validation: f64,
    /// Seed of that split.
    pub split_seed: u64,
    /// What the test samples ask.
    pub bank: Bank,
    /// Whether training and test features lose what does not fill a batch of [`AUTHORS_BATCH`].
    pub drop_last: bool,
}

/// The training samples that test samples ask.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Bank {
    /// All.
    #[default]
    All,
    /// Those that are not held out for validation.
    Rest,
}

impl Default for KnnConfig {
    fn default() -> Self {
        KnnConfig {
            k: vec![1, 5, 20, 200],
            temperature: 0.1,
            validation: 0.1,
            split_seed: 0,
            bank: Bank::All,
            drop_last: false,
        }
    }
}

impl KnnConfig {
    /// What the authors' scripts run, see `docs/protocol.md`.
    pub fn authors() -> Self {
        KnnConfig { k: vec![50], temperature: 0.1, validation: 0.2, split_seed: 1, bank: Bank::Rest, drop_last: true }
    }
}

impl KnnConfig {
    /// Checks the values.
    ///
    /// # Errors
    /// [`Error::Config`] naming the key, its value and the allowed range.
    pub fn validate(&self) -> Result<()> {
        if self.k.is_empty() || self.k.contains(&0) {
            return Err(range("k", &self.k, "one or more numbers of at least 1"));
        }
        if !(self.temperature.is_finite() && self.temperature > 0.0) {
            return Err(range("temperature", self.temperature, "a finite number above 0"));
        }
        check_share(self.validation)
    }
}

fn check_share(validation: f64) -> Result<()> {
    if (0.0..1.0).contains(&validation) {
        Ok(())
    } else {
        Err(range("validation", validation, "at least 0 and below 1"))
    }
}

fn range(key: &str, value: impl std::fmt::Debug, allowed: &str) -> Error {
    Error::Config(format!("`{key}` is {value:?}; expected {allowed}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_survive_yaml() {
        for config in [LinearConfig::Lbfgs(LbfgsConfig::default()), LinearConfig::Adam(AdamConfig::default())] {
            config.validate().unwrap();
            let text = serde_yaml::to_string(&config).unwrap();
            assert_eq!(crate::config::parse::<LinearConfig>(&text, "c", &[]).unwrap(), config);
        }
        KnnConfig::default().validate().unwrap();
        assert!(
            crate::config::parse::<KnnConfig>("temprature: 1", "c", &[])
                .unwrap_err()
                .to_string()
                .contains("`temperature`")
        );
    }

    #[test]
    fn values_out_of_range_are_named() {
        let refused = |config: LinearConfig, key: &str| {
            let e = config.validate().unwrap_err();
            assert!(e.exit_code() == 2 && e.to_string().contains(key), "{e}");
        };
        let lbfgs = LbfgsConfig::default();
        refused(LinearConfig::Lbfgs(LbfgsConfig { l2: vec![], ..lbfgs.clone() }), "`l2`");
        refused(LinearConfig::Lbfgs(LbfgsConfig { l2: vec![0.0], ..lbfgs.clone() }), "`l2`");
        refused(LinearConfig::Lbfgs(LbfgsConfig { l2: vec![f64::NAN], ..lbfgs.clone() }), "`l2`");
        refused(LinearConfig::Lbfgs(LbfgsConfig { validation: 1.0, ..lbfgs.clone() }), "`validation`");
        refused(LinearConfig::Lbfgs(LbfgsConfig { validation: 0.0, ..lbfgs }), "`validation`");
        let adam = AdamConfig::default();
        refused(LinearConfig::Adam(AdamConfig { lr: f64::INFINITY, ..adam.clone() }), "`lr`");
        refused(LinearConfig::Adam(AdamConfig { epochs: 0, ..adam.clone() }), "`epochs`");
        refused(LinearConfig::Adam(AdamConfig { batch: 0, ..adam }), "`batch`");
        assert!(KnnConfig { k: vec![0], ..Default::default() }.validate().is_err());
        assert!(KnnConfig { temperature: 0.0, ..Default::default() }.validate().is_err());
        let e = KnnConfig { validation: 1.0, ..Default::default() }.validate().unwrap_err();
        assert!(e.to_string().contains("`validation`"), "{e}");
    }
}
