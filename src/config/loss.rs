//! What a run's `loss:` key may say: the three kinds of loss, their keys, defaults and allowed ranges.
//!
//! A missing `kind` means `infonce`, and a missing `beta.kind` means `slope`. Everything else has its default below.

use super::kind::by_kind;
use super::loss_reference::ReferenceConfig;
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// The loss of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LossConfig {
    /// InfoNCE, also known as NT-Xent: a softmax over cosines divided by a temperature. The default.
    Infonce(InfonceConfig),
    /// The paper's loss: logits that mix the softmax and the Weibull link, anchor by anchor.
    Weince(WeinceConfig),
    /// The authors' released class with all its policies, under its own parameter names.
    Reference(ReferenceConfig),
}

impl Default for LossConfig {
    fn default() -> Self {
        LossConfig::Infonce(InfonceConfig::default())
    }
}

by_kind!(LossConfig, default Some("infonce"), "infonce" => Infonce, "weince" => Weince, "reference" => Reference);

impl LossConfig {
    /// Checks every value against its allowed range.
    ///
    /// # Errors
    /// [`Error::Config`] with the key's path, the value and the range.
    pub fn validate(&self) -> Result<()> {
        if let Some(tile) = self.tile() {
            within("loss.tile", tile, "[1, infinity)", tile > 0)?;
        }
        match self {
            LossConfig::Infonce(c) => positive("loss.temperature", c.temperature),
            LossConfig::Weince(c) => c.validate(),
            LossConfig::Reference(c) => c.validate(),
        }
    }

    /// Anchors of a tile, where it is given.
    pub fn tile(&self) -> Option<u32> {
        match self {
            LossConfig::Infonce(c) => c.tile,
            LossConfig::Weince(c) => c.tile,
            LossConfig::Reference(_) => None,
        }
    }

    /// The temperature of its softmax.
    pub fn temperature(&self) -> f64 {
        match self {
            LossConfig::Infonce(c) => c.temperature,
            LossConfig::Weince(c) => c.temperature,
            LossConfig::Reference(c) => c.temperature,
        }
    }
}

/// InfoNCE.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InfonceConfig {
    /// Divides the cosines; greater than 0.
    pub temperature: f64,
    /// Anchors whose similarities are there at once, 1 or more. Fewer need less memory and give the same loss, to rounding. By itself the
    /// loss has all at once up to 2^29 similarities (two views of 11,585 samples), and beyond that as many anchors as make up 2^25. On a CPU each
    /// thread has such a tile, as long as they have no more than 2^29 similarities together.
    pub tile: Option<u32>,
}

impl Default for InfonceConfig {
    fn default() -> Self {
        InfonceConfig { temperature: 0.5, tile: None }
    }
}

/// The paper's loss; the defaults are the paper's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WeinceConfig {
    /// Divides the cosines in the softmax link; greater than 0.
    pub temperature: f64,
    /// Which negatives of an anchor count as its tail.
    pub tail: TailConfig,
    /// How much of the Weibull link an anchor gets.
    pub gate: GateConfig,
    /// The Weibull link's exponent.
    pub beta: BetaConfig,
    /// How the Weibull link stays finite at similarity 1.
    pub floor: Floor,
    /// The least shortfall; in (0, 1).
    pub eps: f64,
    /// As InfoNCE's. The average of a `shrunk` beta keeps its share of the similarities all the same.
    pub tile: Option<u32>,
}

impl Default for WeinceConfig {
    fn default() -> Self {
        WeinceConfig {
            temperature: 0.5,
            tail: TailConfig::default(),
            gate: GateConfig::default(),
            beta: BetaConfig::default(),
            floor: Floor::Clamp,
            eps: 1e-6,
            tile: None,
        }
    }
}

/// The tail of an anchor: its hardest negatives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TailConfig {
    /// Share of the anchor's negatives; in (0, 1].
    pub fraction: f64,
    /// At least so many negatives, where there are as many; at least 1. Fewer than 10 act as 10.
    pub min_points: u32,
}

impl Default for TailConfig {
    fn default() -> Self {
        TailConfig { fraction: 0.1, min_points: 32 }
    }
}

/// The gate: lambda, the share of the Weibull link, from two signals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GateConfig {
    /// Which signals are multiplied into lambda.
    pub signals: Signals,
    /// The statistic that speaks for a Weibull tail.
    pub evidence: Evidence,
    /// The evidence at which its signal is one half; finite.
    pub margin: f64,
    /// Steepness of the evidence signal; 0 or more.
    pub kappa_aic: f64,
    /// The distance of the hardest negative at which its signal is one half.
    #[serde(with = "serde_yaml::with::singleton_map")]
    pub pivot: Pivot,
    /// Steepness of the distance signal; 0 or more.
    pub kappa_rho: f64,
}

impl Default for GateConfig {
    fn default() -> Self {
        GateConfig {
            signals: Signals::Both,
            evidence: Evidence::Aic,
            margin: 2.0,
            kappa_aic: 1.0,
            pivot: Pivot::Quantile(0.2),
            kappa_rho: 10.0,
        }
    }
}

/// The signals that make up lambda.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Signals {
    /// Their product.
    Both,
    /// The distance of the hardest negative alone.
    Rho,
    /// The evidence alone.
    Aic,
}

/// The statistic that speaks for a Weibull tail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Evidence {
    /// Difference of the AIC of two straight lines with different responses, as published; nearly always large.
    Aic,
    /// Twice the log-likelihood ratio of a power law against an exponential tail on the same data.
    Likelihood,
}

/// Where the distance signal is one half.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pivot {
    /// This quantile of the batch's own distances; in [0, 1].
    Quantile(f64),
    /// This shortfall, whatever the batch; in (0, 2].
    Absolute(f64),
}

/// How the Weibull link stays finite at similarity 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Floor {
    /// Shortfalls below `eps` act as `eps` and give the link no gradient.
    Clamp,
    /// `eps` is added to every shortfall: the endpoint is 1 + eps, and the gradient never vanishes.
    Shift,
}

/// The Weibull link's exponent, anchor by anchor.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum BetaConfig {
    /// Slope of the Weibull line through the anchor's tail.
    Slope(SlopeBeta),
    /// Hill's estimator on the anchor's tail: less biased and less noisy than the slope.
    Hill(HillBeta),
    /// The slope, shrunk towards a value for the whole batch by the quality of its fit.
    Shrunk(ShrunkBeta),
    /// One value for every anchor.
    Fixed(FixedBeta),
}

impl Default for BetaConfig {
    fn default() -> Self {
        BetaConfig::Slope(SlopeBeta::default())
    }
}

by_kind!(BetaConfig, default Some("slope"), "slope" => Slope, "hill" => Hill, "shrunk" => Shrunk, "fixed" => Fixed);

/// The slope as exponent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SlopeBeta {
    /// Least exponent; greater than 0.
    pub min: f64,
    /// Greatest exponent; at least `min`.
    pub max: f64,
    /// Serves the anchors whose slope is not positive; greater than 0.
    pub fallback: f64,
}

impl Default for SlopeBeta {
    fn default() -> Self {
        SlopeBeta { min: 0.5, max: 16.0, fallback: 4.0 }
    }
}

/// Hill's estimator as exponent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HillBeta {
    /// Least exponent; greater than 0.
    pub min: f64,
    /// Greatest exponent; at least `min`.
    pub max: f64,
}

impl Default for HillBeta {
    fn default() -> Self {
        HillBeta { min: 0.5, max: 16.0 }
    }
}

/// The slope shrunk towards a global value: weight n R2 / (n R2 + shrink_c), 0 where R2 < r2_min or the slope is not positive.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShrunkBeta {
    /// Least exponent; greater than 0.
    pub min: f64,
    /// Greatest exponent; at least `min`.
    pub max: f64,
    /// The value to shrink towards.
    #[serde(with = "serde_yaml::with::singleton_map")]
    pub global: GlobalBeta,
    /// Strength of the shrinkage, in points of a perfect fit; greater than 0.
    pub shrink_c: f64,
    /// A fit below this R2 has no weight; in [0, 1].
    pub r2_min: f64,
}

impl Default for ShrunkBeta {
    fn default() -> Self {
        ShrunkBeta { min: 0.5, max: 16.0, global: GlobalBeta::Fixed(4.0), shrink_c: 100.0, r2_min: 0.0 }
    }
}

/// One exponent for every anchor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FixedBeta {
    /// The exponent; greater than 0.
    pub value: f64,
}

impl Default for FixedBeta {
    fn default() -> Self {
        FixedBeta { value: 1.0 }
    }
}

/// The exponent of the whole batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GlobalBeta {
    /// A constant; greater than 0.
    Fixed(f64),
    /// A moving average of the slope through the pooled tail of the batch. It is state, and belongs in a checkpoint.
    Ema(EmaConfig),
}

/// The moving average of the batch's exponent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EmaConfig {
    /// Value before the first batch; greater than 0.
    pub initial: f64,
    /// Share of the batch's pairs that make up its tail; in (0, 1].
    pub fraction: f64,
    /// At least so many pairs, where there are as many.
    pub min_points: u32,
    /// Weight of the past; in [0, 1].
    pub momentum: f64,
    /// A batch whose fit is below this R2 changes nothing; in [0, 1].
    pub r2_min: f64,
}

impl Default for EmaConfig {
    fn default() -> Self {
        EmaConfig { initial: 4.0, fraction: 0.05, min_points: 1024, momentum: 0.9, r2_min: 0.85 }
    }
}

impl WeinceConfig {
    fn validate(&self) -> Result<()> {
        positive("loss.temperature", self.temperature)?;
        fraction("loss.tail.fraction", self.tail.fraction)?;
        at_least("loss.tail.min_points", self.tail.min_points, 1)?;
        finite("loss.gate.margin", self.gate.margin)?;
        not_negative("loss.gate.kappa_aic", self.gate.kappa_aic)?;
        not_negative("loss.gate.kappa_rho", self.gate.kappa_rho)?;
        match self.gate.pivot {
            Pivot::Quantile(q) => within("loss.gate.pivot.quantile", q, "[0, 1]", (0.0..=1.0).contains(&q))?,
            Pivot::Absolute(r) => within("loss.gate.pivot.absolute", r, "(0, 2]", r > 0.0 && r <= 2.0)?,
        }
        match &self.beta {
            BetaConfig::Slope(b) => {
                range("loss.beta", b.min, b.max)?;
                positive("loss.beta.fallback", b.fallback)?;
            }
            BetaConfig::Hill(b) => range("loss.beta", b.min, b.max)?,
            BetaConfig::Fixed(b) => positive("loss.beta.value", b.value)?,
            BetaConfig::Shrunk(b) => {
                range("loss.beta", b.min, b.max)?;
                positive("loss.beta.shrink_c", b.shrink_c)?;
                unit("loss.beta.r2_min", b.r2_min)?;
                match &b.global {
                    GlobalBeta::Fixed(value) => positive("loss.beta.global.fixed", *value)?,
                    GlobalBeta::Ema(e) => {
                        positive("loss.beta.global.ema.initial", e.initial)?;
                        fraction("loss.beta.global.ema.fraction", e.fraction)?;
                        unit("loss.beta.global.ema.momentum", e.momentum)?;
                        unit("loss.beta.global.ema.r2_min", e.r2_min)?;
                    }
                }
            }
        }
        open_unit("loss.eps", self.eps)
    }
}

pub(super) fn within(key: &str, value: impl std::fmt::Display, range: &str, ok: bool) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::Config(format!("{key}: expected a value in {range}, found {value}"))) }
}

pub(super) fn positive(key: &str, value: f64) -> Result<()> {
    within(key, value, "(0, infinity)", value > 0.0 && value.is_finite())
}

pub(super) fn not_negative(key: &str, value: f64) -> Result<()> {
    within(key, value, "[0, infinity)", value >= 0.0 && value.is_finite())
}

pub(super) fn finite(key: &str, value: f64) -> Result<()> {
    within(key, value, "the finite numbers", value.is_finite())
}

pub(super) fn fraction(key: &str, value: f64) -> Result<()> {
    within(key, value, "(0, 1]", value > 0.0 && value <= 1.0)
}

pub(super) fn unit(key: &str, value: f64) -> Result<()> {
    within(key, value, "[0, 1]", (0.0..=1.0).contains(&value))
}

pub(super) fn open_unit(key: &str, value: f64) -> Result<()> {
    within(key, value, "(0, 1)", value > 0.0 && value < 1.0)
}

pub(super) fn at_least(key: &str, value: u32, least: u32) -> Result<()> {
    within(key, value, &format!("{least} and more"), value >= least)
}

pub(super) fn range(key: &str, min: f64, max: f64) -> Result<()> {
    positive(&format!("{key}.min"), min)?;
    positive(&format!("{key}.max"), max)?;
    within(&format!("{key}.max"), max, &format!("[{key}.min = {min}, infinity)"), min <= max)
}
