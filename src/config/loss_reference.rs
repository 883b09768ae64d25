//! The authors' released loss under its own parameter names, and its import from their training script's `config.yaml`.

use super::kind::read_named;
use super::loss::{finite, not_negative, open_unit, positive, unit, within};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_yaml::{Mapping, Value};

/// The constructor parameters of the authors' `NT_Xent`, with its defaults. `temperature` has none there; their script's is 0.5.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReferenceConfig {
    /// Which loss.
    pub policy: Policy,
    /// Divides the cosines in the softmax link.
    pub temperature: f64,
    /// The batch's exponent: constant, or first value of its moving average with `auto_weib_beta`.
    pub weib_beta: f64,
    /// Weight of the Weibull loss in policy `soft`.
    pub soft_lambda: f64,
    /// Whether the Weibull regulariser over the hardest negatives is added.
    pub use_weib_topm: bool,
    /// Its weight.
    pub weib_lambda: f64,
    /// Its number of negatives.
    pub weib_top_m: u32,
    /// Least shortfall.
    pub eps: f64,
    /// Weight of the softmax regulariser.
    pub pl_lambda: f64,
    /// Its number of negatives.
    pub pl_top_m: u32,
    /// Whether the softmax regulariser over the hardest negatives is added.
    pub use_pl_topm: bool,
    /// Whether the batch's exponent is estimated and averaged instead of fixed.
    pub auto_weib_beta: bool,
    /// Least exponent.
    pub beta_min: f64,
    /// Greatest exponent.
    pub beta_max: f64,
    /// Share of the batch's pairs in the estimate.
    pub tail_frac: f64,
    /// Least number of pairs in the estimate.
    pub min_tail_points: u32,
    /// Weight of the past in the moving average.
    pub beta_ema_momentum: f64,
    /// A fit below this R2 changes nothing.
    pub r2_min: f64,
    /// Pivot of policy `gate`.
    pub gate_rho0: f64,
    /// Steepness of policy `gate`.
    pub gate_scale: f64,
    /// Policy `gate` closes below this R2 of the batch's fit.
    pub gate_r2_min: f64,
    /// Tail share of policy `weibit_shrink`.
    pub anchor_tail_frac: f64,
    /// Least tail of policy `weibit_shrink`.
    pub anchor_min_tail_points: u32,
    /// An anchor's fit below this R2 has no weight.
    pub anchor_r2_min: f64,
    /// Strength of the shrinkage.
    pub shrink_c: f64,
    /// Quantile of the pivot of the `select` policies; outside [0, 1] it acts as the nearer end.
    pub select_q: f64,
    /// Evidence at which its signal is one half.
    pub select_aic_margin: f64,
    /// Tail share of the `select` policies.
    pub select_tail_frac: f64,
    /// Their least tail.
    pub select_min_tail_points: u32,
    /// Number of negatives in the Weibull loss of `hard_select` and `soft_select`.
    pub select_weib_top_m: u32,
    /// Steepness of the distance signal.
    pub select_kappa_rho: f64,
    /// Steepness of the evidence signal.
    pub select_kappa_aic: f64,
}

impl Default for ReferenceConfig {
    fn default() -> Self {
        ReferenceConfig {
            policy: Policy::Pl,
            temperature: 0.5,
            weib_beta: 4.0,
            soft_lambda: 0.5,
            use_weib_topm: false,
            weib_lambda: 0.0,
            weib_top_m: 16,
            eps: 1e-6,
            pl_lambda: 0.0,
            pl_top_m: 16,
            use_pl_topm: false,
            auto_weib_beta: false,
            beta_min: 0.5,
            beta_max: 16.0,
            tail_frac: 0.05,
            min_tail_points: 1024,
            beta_ema_momentum: 0.9,
            r2_min: 0.85,
            gate_rho0: 0.05,
            gate_scale: 5.0,
            gate_r2_min: 0.0,
            anchor_tail_frac: 0.1,
            anchor_min_tail_points: 32,
            anchor_r2_min: 0.0,
            shrink_c: 100.0,
            select_q: 0.2,
            select_aic_margin: 2.0,
            select_tail_frac: 0.1,
            select_min_tail_points: 32,
            select_weib_top_m: 16,
            select_kappa_rho: 10.0,
            select_kappa_aic: 1.0,
        }
    }
}

/// The policies of the authors' class, with the other spellings that it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// InfoNCE.
    Pl,
    /// The Weibull link alone, with the batch's exponent.
    Weibit,
    /// A weighted sum of the two losses.
    Soft,
    /// Logits mixed by the distance of the hardest negative from a fixed pivot.
    Gate,
    /// The Weibull link alone, with a shrunk exponent an anchor.
    WeibitShrink,
    /// InfoNCE or the Weibull loss on the hardest negatives, chosen anchor by anchor.
    #[serde(alias = "hard_selet", alias = "hardselect")]
    HardSelect,
    /// The same two losses, weighted anchor by anchor.
    #[serde(alias = "softselect")]
    SoftSelect,
    /// As `soft_select`, by the distance signal alone.
    #[serde(alias = "softselect_rho")]
    SoftSelectRho,
    /// As `soft_select`, by the evidence signal alone.
    #[serde(alias = "softselect_aic")]
    SoftSelectAic,
    /// Logits mixed anchor by anchor, exponent 1: what their experiments used.
    #[serde(alias = "tlambda", alias = "t_lambda_select", alias = "t_lambda")]
    TlambdaSelect,
    /// As `tlambda_select`, by the distance signal alone.
    #[serde(alias = "tlambda_rho", alias = "t_lambda_rho")]
    TlambdaSelectRho,
    /// As `tlambda_select`, by the evidence signal alone.
    #[serde(alias = "tlambda_aic", alias = "t_lambda_aic")]
    TlambdaSelectAic,
}

/// Keys of the authors' files that their class never sees or that say nothing about the loss.
const OTHER_KEYS: [&str; 39] = [
    "nodes",
    "gpus",
    "nr",
    "dataparallel",
    "dataset_dir",
    "workers",
    "seed",
    "batch_size",
    "world_size",
    "image_size",
    "start_epoch",
    "epochs",
    "dataset",
    "resnet",
    "normalize",
    "projection_dim",
    "optimizer",
    "weight_decay",
    "beta_mode",
    "beta_fixed",
    "diag_every",
    "checkpoint_every",
    "weib_topm_mode",
    "weib_gate_q",
    "weib_gate_kappa",
    "weib_shrink_alpha",
    "weib_shrink_tau",
    "weib_shrink_k",
    "weib_shrink_r2_min",
    "reload",
    "model_path",
    "epoch_num",
    "eval_batch_size",
    "eval_epochs",
    "eval_seeds",
    "device",
    "num_gpus",
    "global_step",
    "current_epoch",
];

impl ReferenceConfig {
    /// Checks every value against its allowed range.
    ///
    /// # Errors
    /// [`Error::Config`] with the key's path, the value and the range.
    pub fn validate(&self) -> Result<()> {
        for (key, value) in [
            ("temperature", self.temperature),
            ("weib_beta", self.weib_beta),
            ("beta_min", self.beta_min),
            ("beta_max", self.beta_max),
            ("shrink_c", self.shrink_c),
        ] {
            positive(&format!("loss.{key}"), value)?;
        }
        for (key, value) in [
            ("weib_lambda", self.weib_lambda),
            ("pl_lambda", self.pl_lambda),
            ("gate_rho0", self.gate_rho0),
            ("gate_scale", self.gate_scale),
            ("select_kappa_rho", self.select_kappa_rho),
            ("select_kappa_aic", self.select_kappa_aic),
        ] {
            not_negative(&format!("loss.{key}"), value)?;
        }
        for (key, value) in [
            ("soft_lambda", self.soft_lambda),
            ("tail_frac", self.tail_frac),
            ("beta_ema_momentum", self.beta_ema_momentum),
            ("anchor_tail_frac", self.anchor_tail_frac),
            ("select_tail_frac", self.select_tail_frac),
        ] {
            unit(&format!("loss.{key}"), value)?;
        }
        for (key, value) in [
            ("r2_min", self.r2_min),
            ("gate_r2_min", self.gate_r2_min),
            ("anchor_r2_min", self.anchor_r2_min),
            ("select_q", self.select_q),
            ("select_aic_margin", self.select_aic_margin),
        ] {
            finite(&format!("loss.{key}"), value)?;
        }
        for (key, value) in [("weib_top_m", self.weib_top_m), ("pl_top_m", self.pl_top_m)] {
            within(&format!("loss.{key}"), value, "1 and more", value >= 1)?;
        }
        let (min, max) = (self.beta_min, self.beta_max);
        within("loss.beta_max", max, &format!("[loss.beta_min = {min}, infinity)"), min <= max)?;
        open_unit("loss.eps", self.eps)
    }

    /// Reads the loss out of the authors' `config.yaml`, as their training script does: the keys that it hands to the
    /// class are taken, those that concern data, model, optimizer and evaluation are passed over, others are refused.
    ///
    /// # Errors
    /// [`Error::Config`] for text that is no YAML mapping, unknown keys, wrong types and values out of range.
    pub fn from_authors_file(text: &str, origin: &str) -> Result<ReferenceConfig> {
        let mut map: Mapping = serde_yaml::from_str(text).map_err(|e| Error::Config(format!("{origin}: {e}")))?;
        map.retain(|key, _| !key.as_str().is_some_and(|k| OTHER_KEYS.contains(&k)));
        let config: ReferenceConfig = read_named(Value::Mapping(map))
            .map_err(|e| Error::Config(format!("{origin}, read as the reference's own configuration: {e}")))?;
        config.validate()?;
        Ok(config)
    }
}
