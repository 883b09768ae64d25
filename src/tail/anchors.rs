//! What WEINCE's loss sees in each anchor's tail, in plain float64: the twin of `loss::tail` on slices, and beside it what the loss does
//! not look at: an own `xi`, the evidence by likelihoods, the criticality.

use crate::config::loss::{
    BetaConfig, EmaConfig, Evidence, FixedBeta, GateConfig, GlobalBeta, LossConfig, Pivot, Signals, TailConfig,
    WeinceConfig,
};
use crate::config::loss_reference::{Policy, ReferenceConfig};
use crate::evt::pot::HILL_POINTS;
use crate::evt::{GpdFit, Hill};
use crate::{Error, Result};
use rayon::prelude::*;

/// Least sum of squares that is divided by or whose logarithm is taken, and what a line of the wrong sign adds to its residual; the loss's.
const LEAST_SQUARES: f64 = 1e-12;
const NONSENSE: f64 = 1e6;

/// The tail of one anchor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnchorTail {
    /// Shortfall of the hardest negative, at least the gate's `eps`.
    pub rho: f64,
    /// Slope of the Weibull line, negative ones as 0.
    pub slope: f64,
    /// R2 of the Weibull line.
    pub r2: f64,
    /// AIC of the Gumbel line less that of the Weibull line, as published: lines with different responses.
    pub delta_aic: f64,
    /// Twice the log-likelihood ratio of a power law against an exponential tail, one parameter each, on the same data.
    pub likelihood: f64,
    /// Hill's estimate on the tail's points; infinite where they are equal.
    pub hill: f64,
    /// Hill's estimate on the [`HILL_POINTS`] nearest of all negatives, where there are more than those; else [`AnchorTail::hill`].
    pub index: f64,
    /// Exponent of the Weibull link.
    pub beta: f64,
    /// The part of lambda that the distance of the hardest negative gives.
    pub lambda_rho: f64,
    /// The part of lambda that the evidence gives.
    pub lambda_aic: f64,
    /// Share of the Weibull link.
    pub lambda: f64,
    /// `lambda beta / index`: from 0.5 on the weights have no finite variance, from 1 on no finite mean.
    pub criticality: f64,
    /// Shape of a generalised Pareto law fitted to the tail; none where it has too few points or equal ones.
    pub xi: Option<f64>,
    /// That fit is at its boundary, `xi = -1`.
    pub at_boundary: bool,
}

/// A number that each anchor has; NaN where it has none.
pub type Statistic = fn(&AnchorTail) -> f64;

/// The tails of all anchors, under one gate.
#[derive(Debug, Clone, PartialEq)]
pub struct Anchors {
    /// An anchor each.
    pub tails: Vec<AnchorTail>,
    /// The fewest negatives of an anchor that the statistics are of.
    pub negatives: usize,
    /// Points in the tail of that anchor.
    pub points: usize,
    /// Distance at which its signal is one half.
    pub pivot: f64,
    /// The gate.
    pub gate: WeinceConfig,
}

/// How the words begin that say whose a gate is which the run's loss does not have.
pub const NOT_OF_RUN: &str = "WEINCE's defaults, as";

/// The gate whose lambda is computed for a run's loss, and in words whose it is.
///
/// InfoNCE has none: it is the paper's, with the run's temperature. Of the reference's policies those that mix logits have one.
pub fn gate_of(loss: &LossConfig) -> (WeinceConfig, &'static str) {
    let paper = |temperature: f64| WeinceConfig { temperature, ..WeinceConfig::default() };
    match loss {
        LossConfig::Weince(config) => (config.clone(), "the run's loss"),
        LossConfig::Infonce(config) => (paper(config.temperature), "WEINCE's defaults, as the run's loss is InfoNCE"),
        LossConfig::Reference(config) => match of_reference(config) {
            Some(gate) => (gate, "the run's loss, the reference"),
            None => (paper(config.temperature), "WEINCE's defaults, as the reference's policy has no such gate"),
        },
    }
}

fn of_reference(config: &ReferenceConfig) -> Option<WeinceConfig> {
    let signals = match config.policy {
        Policy::TlambdaSelect => Signals::Both,
        Policy::TlambdaSelectRho => Signals::Rho,
        Policy::TlambdaSelectAic => Signals::Aic,
        _ => return None,
    };
    Some(WeinceConfig {
        temperature: config.temperature,
        tail: TailConfig { fraction: config.select_tail_frac, min_points: config.select_min_tail_points },
        gate: GateConfig {
            signals,
            evidence: Evidence::Aic,
            margin: config.select_aic_margin,
            kappa_aic: config.select_kappa_aic,
            pivot: Pivot::Quantile(config.select_q.clamp(0.0, 1.0)),
            kappa_rho: config.select_kappa_rho,
        },
        beta: BetaConfig::Fixed(FixedBeta { value: 1.0 }),
        eps: config.eps,
        ..WeinceConfig::default()
    })
}

/// The size of a tail: `fraction` of the negatives, rounded half to even, at least `min_points` and 10, at most all.
pub fn tail_points(negatives: usize, tail: &TailConfig) -> usize {
    let share = (tail.fraction * negatives as f64).round_ties_even() as usize;
    share.max(tail.min_points as usize).min(negatives).max(10).min(negatives)
}

impl Anchors {
    /// Of the similarities of each anchor to its negatives, of which the first `negatives` alone make up its tail: as many as a batch has.
    ///
    /// # Numerics
    /// With the similarities of a batch, what the loss's diagnostics say, to rounding. With `beta: {kind: shrunk}` and a moving average,
    /// the slope through the pooled tail of all anchors stands in the average's place, and where its fit is too poor, the first value.
    ///
    /// # Errors
    /// [`Error::Input`] for no anchors and for one without negatives.
    pub fn of(similarities: &[&[f64]], negatives: usize, gate: &WeinceConfig) -> Result<Anchors> {
        if similarities.is_empty() || similarities.iter().any(|s| s.is_empty()) || negatives == 0 {
            return Err(Error::Input("per-anchor statistics: expected anchors with at least 1 negative each".into()));
        }
        let mut bare: Vec<Bare> = similarities.par_iter().map(|s| Bare::of(s, negatives, gate)).collect();
        let pivot = pivot(gate.gate.pivot, bare.iter().map(|b| b.tail.rho).collect());
        let global = match &gate.beta {
            BetaConfig::Shrunk(b) => global_exponent(&b.global, similarities, negatives, gate.eps, [b.min, b.max]),
            _ => 1.0,
        };
        bare.iter_mut().for_each(|b| b.open(gate, pivot, global));
        let fewest = similarities.iter().map(|s| s.len().min(negatives)).min().unwrap_or(0);
        Ok(Anchors {
            tails: bare.into_iter().map(|b| b.tail).collect(),
            negatives: fewest,
            points: tail_points(fewest, &gate.tail),
            pivot,
            gate: gate.clone(),
        })
    }

    /// One number an anchor.
    pub fn column(&self, value: impl Fn(&AnchorTail) -> f64) -> Vec<f64> {
        self.tails.iter().map(value).collect()
    }

    /// The shapes of those anchors that have one.
    pub fn xis(&self) -> Vec<f64> {
        self.tails.iter().filter_map(|t| t.xi).collect()
    }

    /// The share of anchors for which something holds.
    pub fn share(&self, holds: impl Fn(&AnchorTail) -> bool) -> f64 {
        self.tails.iter().filter(|t| holds(t)).count() as f64 / self.tails.len() as f64
    }

    /// The evidence that the gate looks at.
    pub fn evidence(&self, tail: &AnchorTail) -> f64 {
        match self.gate.gate.evidence {
            Evidence::Aic => tail.delta_aic,
            Evidence::Likelihood => tail.likelihood,
        }
    }
}

/// A tail before its gate is opened, which takes all anchors' distances.
struct Bare {
    tail: AnchorTail,
    fitted: usize,
}

impl Bare {
    fn of(similarities: &[f64], negatives: usize, gate: &WeinceConfig) -> Bare {
        let batch = &similarities[..negatives.min(similarities.len())];
        let k = tail_points(batch.len(), &gate.tail);
        let shortfalls = smallest(batch.iter().map(|s| 1.0 - s).collect(), k, gate.eps);
        let fit = Lines::of(&shortfalls);
        let hill = (k.saturating_sub(2).max(1)) as f64 / log_ratios(&shortfalls);
        let all: Vec<f64> = similarities.iter().map(|s| 1.0 - s).collect();
        let index = Hill::of(&all, HILL_POINTS).map_or(hill, |h| h.index);
        let last = shortfalls[k - 1];
        let exceedances: Vec<f64> = shortfalls.iter().map(|d| last - d).filter(|y| *y > 0.0).collect();
        let pareto = GpdFit::of(&exceedances).ok();
        Bare {
            fitted: fit.n,
            tail: AnchorTail {
                rho: shortfalls[0],
                slope: fit.slope,
                r2: fit.r2,
                delta_aic: fit.delta_aic,
                likelihood: likelihood_evidence(&shortfalls),
                hill,
                index,
                beta: 0.0,
                lambda_rho: 0.0,
                lambda_aic: 0.0,
                lambda: 0.0,
                criticality: 0.0,
                xi: pareto.as_ref().map(|fit| fit.gpd.xi),
                at_boundary: pareto.is_some_and(|fit| fit.at_boundary),
            },
        }
    }

    fn open(&mut self, config: &WeinceConfig, pivot: f64, global: f64) {
        let (tail, gate) = (&mut self.tail, &config.gate);
        let evidence = match gate.evidence {
            Evidence::Aic => tail.delta_aic,
            Evidence::Likelihood => tail.likelihood,
        };
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        tail.lambda_rho = sigmoid((pivot.ln() - tail.rho.ln()) * gate.kappa_rho);
        tail.lambda_aic = sigmoid((evidence - gate.margin) * gate.kappa_aic);
        tail.lambda = match gate.signals {
            Signals::Both => tail.lambda_rho * tail.lambda_aic,
            Signals::Rho => tail.lambda_rho,
            Signals::Aic => tail.lambda_aic,
        };
        if self.fitted < 2 {
            // No line goes through fewer than two points: there is no evidence.
            (tail.lambda, tail.lambda_aic) = (0.0, 0.0);
        }
        tail.beta = match &config.beta {
            BetaConfig::Fixed(b) => b.value,
            BetaConfig::Hill(b) => tail.hill.clamp(b.min, b.max),
            BetaConfig::Slope(b) if tail.slope > 0.0 => tail.slope.clamp(b.min, b.max),
            BetaConfig::Slope(b) => b.fallback,
            BetaConfig::Shrunk(b) => {
                let points = tail.r2 * self.fitted as f64;
                let trusted = tail.r2 >= b.r2_min && tail.slope > 0.0;
                let weight = if trusted { points / (points + b.shrink_c) } else { 0.0 };
                (weight * tail.slope + (1.0 - weight) * global).clamp(b.min, b.max)
            }
        };
        tail.criticality = tail.lambda * tail.beta / tail.index;
    }
}

/// The smallest `k`, ascending, at least `eps` each.
fn smallest(mut values: Vec<f64>, k: usize, eps: f64) -> Vec<f64> {
    if k < values.len() {
        values.select_nth_unstable_by(k - 1, f64::total_cmp);
        values.truncate(k);
    }
    values.sort_unstable_by(f64::total_cmp);
    values.iter_mut().for_each(|d| *d = d.max(eps));
    values
}

fn pivot(kind: Pivot, mut rho: Vec<f64>) -> f64 {
    match kind {
        Pivot::Absolute(value) => value,
        Pivot::Quantile(q) => {
            rho.sort_unstable_by(f64::total_cmp);
            rho[(q.clamp(0.0, 1.0) * (rho.len() - 1) as f64).round_ties_even() as usize]
        }
    }
}

/// The exponent of all anchors together.
fn global_exponent(global: &GlobalBeta, similarities: &[&[f64]], negatives: usize, eps: f64, range: [f64; 2]) -> f64 {
    match global {
        GlobalBeta::Fixed(value) => *value,
        GlobalBeta::Ema(EmaConfig { initial, fraction, min_points, r2_min, .. }) => {
            let pooled = similarities.iter().flat_map(|s| &s[..negatives.min(s.len())]).map(|s| 1.0 - s);
            let pooled: Vec<f64> = pooled.collect();
            let k = ((fraction * pooled.len() as f64) as usize).max(*min_points as usize).min(pooled.len());
            if k < 10 {
                return *initial;
            }
            let fit = Lines::of(&smallest(pooled, k, eps));
            if fit.r2 >= *r2_min && fit.slope > 0.0 { fit.slope.clamp(range[0], range[1]) } else { *initial }
        }
    }
}

/// The two lines through a tail: `log F` and `log(-log F)` on `log delta` at the plotting positions `F = m / (k + 1)`.
struct Lines {
    n: usize,
    slope: f64,
    r2: f64,
    delta_aic: f64,
}

impl Lines {
    /// Of ascending shortfalls, floored; with fewer than two points behind the hardest everything is 0.
    fn of(tail: &[f64]) -> Lines {
        let k = tail.len();
        let burn = (k / 20).max(1);
        let n = k.saturating_sub(burn);
        if n < 2 {
            return Lines { n, slope: 0.0, r2: 0.0, delta_aic: 0.0 };
        }
        let positions = (burn + 1..=k).map(|m| m as f64 / (k + 1) as f64);
        let weibull: Vec<f64> = positions.clone().map(f64::ln).collect();
        let gumbel: Vec<f64> = positions.map(|f| (-f.ln()).ln()).collect();
        // From the last point first: a tail of equal shortfalls is exactly flat.
        let last = tail[k - 1].ln();
        let x = centred(tail[burn..].iter().map(|d| d.ln() - last).collect()).0;
        let xx: f64 = x.iter().map(|x| x * x).sum();
        let line = |y: Vec<f64>| {
            let (y, total) = centred(y);
            let xy: f64 = x.iter().zip(&y).map(|(x, y)| x * y).sum();
            let slope = xy / xx.max(LEAST_SQUARES);
            let residual = slope * (slope * xx - xy * 2.0) + total;
            (slope, residual.max(LEAST_SQUARES), total)
        };
        let ((slope_w, residual_w, total_w), (slope_g, residual_g, _)) = (line(weibull), line(gumbel));
        let r2 = (1.0 - residual_w / total_w.max(LEAST_SQUARES)).clamp(0.0, 1.0);
        let penalised = |residual: f64, bad: bool| if bad { residual + NONSENSE } else { residual };
        let ratio = penalised(residual_g, slope_g >= 0.0) / penalised(residual_w, slope_w <= 0.0);
        Lines { n, slope: slope_w.max(0.0), r2, delta_aic: n as f64 * ratio.ln() }
    }
}

/// Values less their mean, and the sum of their squares.
fn centred(mut values: Vec<f64>) -> (Vec<f64>, f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    values.iter_mut().for_each(|v| *v -= mean);
    let squares = values.iter().map(|v| v * v).sum();
    (values, squares)
}

/// Sum over the tail of `log(delta_k / delta_m)`, m < k.
fn log_ratios(tail: &[f64]) -> f64 {
    let last = tail[tail.len() - 1].ln();
    tail.iter().map(|d| last - d.ln()).sum()
}

fn likelihood_evidence(tail: &[f64]) -> f64 {
    let last = tail[tail.len() - 1];
    let others = (tail.len() - 1).max(1) as f64;
    let ratios = log_ratios(tail).max(LEAST_SQUARES);
    let exponent = others / ratios;
    let mean = (tail.iter().map(|d| last - d).sum::<f64>() / others).max(LEAST_SQUARES);
    let weibull = (exponent.ln() - last.ln()) * others - (exponent - 1.0) * ratios;
    let exponential = (mean.ln() + 1.0) * -others;
    (weibull - exponential) * 2.0
}
