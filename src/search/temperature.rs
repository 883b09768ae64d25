//! A search softmax by its temperature: what a temperature can tell apart, what it costs, and the one that fits the positives.

use super::analysis::{Figure, divergences, search};
use super::finite_k::Sample;
use crate::error::Result;
use crate::evt::Z_95;
use crate::theory::bounds;
use serde::Serialize;

/// How many temperatures the curve has.
const POINTS: usize = 12;
/// Where it begins and ends.
const RANGE: [f64; 2] = [0.03, 2.0];
/// Where the inverse of the calibrated temperature is looked for.
const INVERSE: [f64; 2] = [0.1, 200.0];

/// The curve, and the temperature that it is lowest at.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Temperatures {
    /// The number of anchors and items that it is measured with.
    pub sample: [usize; 2],
    /// By rising temperature.
    pub points: Vec<Temperature>,
    /// The temperature at which the softmax over items and positive has the least log-loss; none where it is not from 0.005 to 10.
    pub calibrated: Option<f64>,
    /// What is measured there.
    pub at_calibrated: Option<Temperature>,
}

/// One temperature.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Temperature {
    /// The temperature.
    pub tau: f64,
    /// R_inf, in nats.
    pub r_inf: Figure,
    /// The mean over anchors of KL(Q^ || π^), in nats: how far the softmax is from the uniform law.
    pub divergence: f64,
    /// The largest.
    pub largest_divergence: f64,
    /// e to the mean entropy: how many items share the softmax.
    pub effective_items: f64,
    /// The median of 1/Σp², which counts large probabilities more.
    pub n2: f64,
    /// The mean of the largest probability.
    pub largest_probability: f64,
    /// G(1/τ): no softmax at this temperature is further from the uniform law.
    pub ceiling: f64,
    /// 1/τ: on average over anchors with the items' law it is not further either.
    pub average_ceiling: f64,
}

impl Temperatures {
    pub(super) fn of(sample: &Sample, calibrated: Option<f64>, violations: &mut Vec<String>) -> Result<Temperatures> {
        let [low, high] = RANGE.map(f64::ln);
        let taus = (0..POINTS).map(|i| (low + (high - low) * i as f64 / (POINTS - 1) as f64).exp());
        let points = taus.map(|tau| point(sample, tau, violations)).collect::<Result<_>>()?;
        let at_calibrated = calibrated.map(|tau| point(sample, tau, violations)).transpose()?;
        Ok(Temperatures { sample: sample.size(), points, calibrated, at_calibrated })
    }
}

fn point(sample: &Sample, tau: f64, violations: &mut Vec<String>) -> Result<Temperature> {
    let pairs = sample.pairs(tau);
    let sums = pairs.sums(&mut |_| ())?;
    let (search, _) = search(&pairs, &sums, sample.input(), &mut |_| ())?;
    divergences(&search, tau, violations);
    let estimates = search.finish()?;
    let (value, se) = (estimates.r_inf(), estimates.variances.standard_error());
    let n = search.anchors().len();
    let mean = |f: &dyn Fn(usize) -> f64| (0..n).map(f).sum::<f64>() / n as f64;
    let divergence = mean(&|i| search.anchors()[i].divergence);
    let mut n2: Vec<f64> = search.anchors().iter().map(|a| 1.0 / a.concentration).collect();
    n2.sort_unstable_by(f64::total_cmp);
    Ok(Temperature {
        tau,
        r_inf: Figure { value, interval: [value - Z_95 * se, value + Z_95 * se] },
        divergence,
        largest_divergence: search.anchors().iter().map(|a| a.divergence).fold(f64::NEG_INFINITY, f64::max),
        effective_items: sample.input().items() as f64 * (-divergence).exp(),
        n2: n2[n / 2],
        largest_probability: mean(&|i| search.anchors()[i].largest),
        ceiling: bounds::ceiling(1.0 / tau),
        average_ceiling: 1.0 / tau,
    })
}

/// The temperature at which the softmax over the items and the positive finds the positives' mean cosine: the minimum of its log-loss, which
/// is convex in 1/τ and tends to that of R_inf with many items. (R_inf of few items has no minimum where positives are nearer than
/// nearly all of them.) None where it is outside of [`INVERSE`].
pub(super) fn calibrated(sample: &Sample) -> Result<Option<f64>> {
    let positives = &sample.input().positives;
    let n = positives.len() as f64;
    let excess = |c: f64| -> Result<f64> {
        let sums = sample.pairs(1.0 / c).sums(&mut |_| ())?;
        let each = sums.iter().zip(positives).map(|(sum, positive)| {
            let cosine = f64::from(sum.nearest) + sum.moment / sum.mass / c;
            // The items' share of the softmax: 1 / (1 + e^{s⁺/τ} / Σ e^{s/τ}).
            (cosine - positive) / (1.0 + (positive * c - sum.ln_mass(c)).exp())
        });
        Ok(each.sum::<f64>() / n)
    };
    // Between two ends of different sign by the line between them, with halved weight of an end that stays (Illinois).
    let [mut low, mut high] = INVERSE;
    let (mut at_low, mut at_high) = (excess(low)?, excess(high)?);
    if at_low > 0.0 || at_high <= 0.0 {
        return Ok(None);
    }
    let mut side = 0;
    for _ in 0..60 {
        if high - low <= 1e-7 * high {
            break;
        }
        let slope = at_high - at_low;
        let next = if slope > 0.0 { (low * at_high - high * at_low) / slope } else { f64::midpoint(low, high) };
        let next = if next > low && next < high { next } else { f64::midpoint(low, high) };
        let found = excess(next)?;
        if found == 0.0 {
            return Ok(Some(1.0 / next));
        }
        if found < 0.0 {
            (low, at_low) = (next, found);
            at_high *= if side == -1 { 0.5 } else { 1.0 };
            side = -1;
        } else {
            (high, at_high) = (next, found);
            at_low *= if side == 1 { 0.5 } else { 1.0 };
            side = 1;
        }
    }
    Ok(Some(2.0 / (low + high)))
}
