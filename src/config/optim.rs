//! The `optim` and `schedule` sections: how weights are updated and how the learning rate moves.

use super::kind::by_kind;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// The optimizers by kind; defaults are those of `torch.optim` where it has the optimizer.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum OptimConfig {
    /// `torch.optim.Adam`.
    Adam(AdamConfig),
    /// `torch.optim.AdamW`.
    Adamw(AdamwConfig),
    /// `torch.optim.SGD`.
    Sgd(SgdConfig),
    /// Layer-wise adaptive rates on top of SGD with momentum.
    Lars(LarsConfig),
}

by_kind!(OptimConfig, default None, "adam" => Adam, "adamw" => Adamw, "sgd" => Sgd, "lars" => Lars);

impl OptimConfig {
    /// The learning rate from which the schedule starts.
    pub fn lr(&self) -> f64 {
        match self {
            OptimConfig::Adam(c) => c.lr,
            OptimConfig::Adamw(c) => c.lr,
            OptimConfig::Sgd(c) => c.lr,
            OptimConfig::Lars(c) => c.lr,
        }
    }

    /// Checks values beyond their types.
    ///
    /// # Errors
    /// A value out of its range, with its key.
    pub fn validate(&self) -> Result<()> {
        at_least_zero("optim.lr", self.lr())?;
        match self {
            OptimConfig::Adam(AdamConfig { betas, eps, weight_decay, .. })
            | OptimConfig::Adamw(AdamwConfig { betas, eps, weight_decay, .. }) => {
                below_one("optim.betas[0]", betas[0])?;
                below_one("optim.betas[1]", betas[1])?;
                at_least_zero("optim.eps", *eps)?;
                at_least_zero("optim.weight_decay", *weight_decay)
            }
            OptimConfig::Sgd(c) => {
                below_one("optim.momentum", c.momentum)?;
                at_least_zero("optim.weight_decay", c.weight_decay)?;
                if c.nesterov && c.momentum == 0.0 {
                    return Err(Error::Config(
                        "optim.nesterov: true needs optim.momentum above 0, found 0; set momentum, such as 0.9".into(),
                    ));
                }
                Ok(())
            }
            OptimConfig::Lars(c) => {
                below_one("optim.momentum", c.momentum)?;
                at_least_zero("optim.weight_decay", c.weight_decay)?;
                at_least_zero("optim.eta", c.eta)
            }
        }
    }
}

/// Adam: weight decay is an L2 term of the gradient.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdamConfig {
    /// Learning rate; 1e-3 unless given.
    #[serde(default = "small_rate")]
    pub lr: f64,
    /// Decay of the two moments; 0.9 and 0.999 unless given.
    #[serde(default = "adam_betas")]
    pub betas: [f64; 2],
    /// Added to the denominator; 1e-8 unless given.
    #[serde(default = "adam_eps")]
    pub eps: f64,
    /// Weight decay; 0 unless given.
    #[serde(default)]
    pub weight_decay: f64,
    /// Whether one-dimensional parameters (biases, normalisation) and those that an encoder names (a Vision Transformer's class
    /// token and positions) are spared from decay; false unless given.
    #[serde(default)]
    pub exclude_bias_and_norm: bool,
}

/// AdamW: weight decay shrinks the weights directly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdamwConfig {
    /// Learning rate; 1e-3 unless given.
    #[serde(default = "small_rate")]
    pub lr: f64,
    /// Decay of the two moments; 0.9 and 0.999 unless given.
    #[serde(default = "adam_betas")]
    pub betas: [f64; 2],
    /// Added to the denominator; 1e-8 unless given.
    #[serde(default = "adam_eps")]
    pub eps: f64,
    /// Weight decay; 0.01 unless given.
    #[serde(default = "adamw_decay")]
    pub weight_decay: f64,
    /// Whether one-dimensional parameters (biases, normalisation) and those that an encoder names (a Vision Transformer's class
    /// token and positions) are spared from decay; false unless given.
    #[serde(default)]
    pub exclude_bias_and_norm: bool,
}

/// Stochastic gradient descent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SgdConfig {
    /// Learning rate; 1e-3 unless given.
    #[serde(default = "small_rate")]
    pub lr: f64,
    /// Momentum; 0 unless given.
    #[serde(default)]
    pub momentum: f64,
    /// Nesterov's variant of momentum; false unless given.
    #[serde(default)]
    pub nesterov: bool,
    /// L2 term of the gradient; 0 unless given.
    #[serde(default)]
    pub weight_decay: f64,
    /// Whether one-dimensional parameters (biases, normalisation) and those that an encoder names (a Vision Transformer's class
    /// token and positions) are spared from decay; false unless given.
    #[serde(default)]
    pub exclude_bias_and_norm: bool,
}

/// LARS, with the constants that SimCLR uses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LarsConfig {
    /// Learning rate; SimCLR takes 0.3 * batch size / 256.
    pub lr: f64,
    /// Momentum; 0.9 unless given.
    #[serde(default = "lars_momentum")]
    pub momentum: f64,
    /// L2 term of the gradient; 0 unless given (SimCLR: 1e-6).
    #[serde(default)]
    pub weight_decay: f64,
    /// The trust coefficient; 0.001 unless given.
    #[serde(default = "lars_eta")]
    pub eta: f64,
    /// Whether one-dimensional parameters (biases, normalisation) and those that an encoder names (a Vision Transformer's class
    /// token and positions) are spared from decay and adaptation; true unless given.
    #[serde(default = "yes")]
    pub exclude_bias_and_norm: bool,
}

fn small_rate() -> f64 {
    1e-3
}
fn adam_betas() -> [f64; 2] {
    [0.9, 0.999]
}
fn adam_eps() -> f64 {
    1e-8
}
fn adamw_decay() -> f64 {
    0.01
}
fn lars_momentum() -> f64 {
    0.9
}
fn lars_eta() -> f64 {
    1e-3
}
fn yes() -> bool {
    true
}

/// How the learning rate moves from step to step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ScheduleConfig {
    /// A warm-up, then the optimizer's rate to the end.
    Constant(WarmupConfig),
    /// A warm-up, then half a cosine down to `final_lr`.
    Cosine(CosineConfig),
    /// A warm-up from 0, then a line down to 0, as transformers' `get_linear_schedule_with_warmup` has it.
    Linear(WarmupConfig),
}

by_kind!(ScheduleConfig, default None, "constant" => Constant, "cosine" => Cosine, "linear" => Linear);

impl Default for ScheduleConfig {
    fn default() -> Self {
        ScheduleConfig::Constant(WarmupConfig { warmup_epochs: None, warmup_steps: None })
    }
}

/// A schedule that has nothing to set but its warm-up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WarmupConfig {
    /// Length of the linear warm-up in epochs, fractions allowed; none unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_epochs: Option<f64>,
    /// Length of the linear warm-up in steps, instead of `warmup_epochs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u64>,
}

/// A cosine decay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CosineConfig {
    /// Length of the linear warm-up in epochs, fractions allowed; none unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_epochs: Option<f64>,
    /// Length of the linear warm-up in steps, instead of `warmup_epochs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warmup_steps: Option<u64>,
    /// The rate at the end; 0 unless given.
    #[serde(default)]
    pub final_lr: f64,
}

impl ScheduleConfig {
    /// Checks values beyond their types.
    ///
    /// # Errors
    /// A value out of its range, with its key.
    pub fn validate(&self) -> Result<()> {
        let (epochs, steps) = self.warmup();
        if let (Some(e), Some(s)) = (epochs, steps) {
            return Err(Error::Config(format!(
                "schedule: warmup_epochs: {e} and warmup_steps: {s} exclude one another; keep one of them"
            )));
        }
        if let Some(e) = epochs {
            at_least_zero("schedule.warmup_epochs", e)?;
        }
        match self {
            ScheduleConfig::Constant(_) | ScheduleConfig::Linear(_) => Ok(()),
            ScheduleConfig::Cosine(c) => at_least_zero("schedule.final_lr", c.final_lr),
        }
    }

    /// The warm-up as given: epochs, steps.
    pub(crate) fn warmup(&self) -> (Option<f64>, Option<u64>) {
        match self {
            ScheduleConfig::Constant(c) | ScheduleConfig::Linear(c) => (c.warmup_epochs, c.warmup_steps),
            ScheduleConfig::Cosine(c) => (c.warmup_epochs, c.warmup_steps),
        }
    }
}

fn at_least_zero(key: &str, value: f64) -> Result<()> {
    if value >= 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(Error::Config(format!("{key}: expected a finite number of at least 0, found {value}")))
}

fn below_one(key: &str, value: f64) -> Result<()> {
    if (0.0..1.0).contains(&value) {
        return Ok(());
    }
    Err(Error::Config(format!("{key}: expected a number of at least 0 and below 1, found {value}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn optim(text: &str) -> Result<OptimConfig> {
        parse(text, "o.yaml", &[])
    }

    fn schedule(text: &str) -> Result<ScheduleConfig> {
        parse(text, "s.yaml", &[])
    }

    #[test]
    fn defaults_are_those_of_torch() {
        let OptimConfig::Adam(a) = optim("kind: adam").unwrap() else { panic!() };
        assert_eq!((a.lr, a.betas, a.eps, a.weight_decay), (1e-3, [0.9, 0.999], 1e-8, 0.0));
        let OptimConfig::Adamw(a) = optim("{kind: adamw, lr: 3e-4}").unwrap() else { panic!() };
        assert_eq!((a.lr, a.betas, a.eps, a.weight_decay), (3e-4, [0.9, 0.999], 1e-8, 0.01));
        let OptimConfig::Sgd(s) = optim("kind: sgd").unwrap() else { panic!() };
        assert_eq!((s.lr, s.momentum, s.nesterov, s.weight_decay), (1e-3, 0.0, false, 0.0));
        let OptimConfig::Lars(l) = optim("{kind: lars, lr: 1}").unwrap() else { panic!() };
        assert_eq!((l.momentum, l.weight_decay, l.eta, l.exclude_bias_and_norm), (0.9, 0.0, 1e-3, true));
        assert!(optim("kind: lars").unwrap_err().to_string().contains("`lr`"));
    }

    #[test]
    fn misspelt_keys_are_refused() {
        let e = optim("{kind: sgd, momentun: 0.9}").unwrap_err().to_string();
        assert!(e.contains("did you mean `momentum`?"), "{e}");
        let e = schedule("{kind: cosin}").unwrap_err().to_string();
        assert!(e.contains("did you mean `cosine`?"), "{e}");
    }

    #[test]
    fn values_out_of_range_name_the_key() {
        for (text, key) in [
            ("{kind: adam, lr: -1}", "optim.lr"),
            ("{kind: adam, lr: .nan}", "optim.lr"),
            ("{kind: adamw, betas: [0.9, 1.0]}", "optim.betas[1]"),
            ("{kind: adamw, eps: -1}", "optim.eps"),
            ("{kind: sgd, weight_decay: -1}", "optim.weight_decay"),
            ("{kind: sgd, nesterov: true}", "optim.nesterov"),
            ("{kind: lars, lr: 1, momentum: 1}", "optim.momentum"),
            ("{kind: lars, lr: 1, eta: .inf}", "optim.eta"),
        ] {
            let e = optim(text).unwrap().validate().unwrap_err().to_string();
            assert!(e.starts_with(key), "{e}");
        }
        for (text, key) in [
            ("{kind: constant, warmup_epochs: -1}", "schedule.warmup_epochs"),
            ("{kind: cosine, warmup_epochs: 1, warmup_steps: 5}", "schedule: warmup_epochs"),
            ("{kind: cosine, final_lr: -0.1}", "schedule.final_lr"),
        ] {
            let e = schedule(text).unwrap().validate().unwrap_err().to_string();
            assert!(e.starts_with(key), "{e}");
        }
    }
}
