//! The search softmax with WEINCE's logit: how heavy the tail of its weights is, and whether many negatives have a limit.

use super::analysis::Figure;
use super::finite_k::Sample;
use crate::config::loss::LossConfig;
use crate::error::{Error, Result};
use crate::evt::pot::HILL_POINTS;
use crate::evt::{Hill, SHORTFALL_FLOOR, Z_95};
use crate::tail::anchors::{Anchors, gate_of};
use crate::theory::estimators::variance;
use crate::theory::weince::{Kernel, Regime, regime};
use rayon::prelude::*;
use serde::Serialize;

/// Where lambda and beta come from.
#[derive(Debug, Clone, PartialEq)]
pub enum TailLogit {
    /// One of each for all anchors.
    Fixed {
        /// The share of the tail's logit, from 0 to 1.
        lambda: f64,
        /// The tail's exponent.
        beta: f64,
    },
    /// Each anchor's, as a loss finds them in a batch with so many negatives.
    Loss {
        /// The loss.
        loss: Box<LossConfig>,
        /// Negatives of an anchor in a batch.
        negatives: usize,
    },
}

/// The tail of the search softmax under WEINCE's logit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tail {
    /// Quartiles over anchors of lambda.
    pub lambda: [f64; 3],
    /// The same of beta.
    pub beta: [f64; 3],
    /// The same of the tail index h, by Hill from the 64 nearest items, or a quarter of them where they are fewer than 256.
    pub index: [f64; 3],
    /// The same of the criticality lambda beta / h.
    pub criticality: [f64; 3],
    /// Shares of anchors below 0.5, from 0.5 to 1, and from 1 on.
    pub shares: [f64; 3],
    /// Quartiles of 1/Σp² under WEINCE's logit.
    pub n2: [f64; 3],
    /// R_inf under WEINCE's logit by the plug-in, in nats, on the sample's items. It is no common functional: compare encoders by R_inf.
    pub r_inf: Figure,
    /// Anchors whose nearest items are all equal, and which have no index.
    pub without_index: usize,
    /// What the median criticality means.
    pub regime: &'static str,
}

pub(super) fn tail(sample: &Sample, logit: &TailLogit, tau: f64) -> Result<Tail> {
    let [n, m] = sample.size();
    let rows = sample.cosines(|_, cosines| Ok(cosines))?;
    let (lambdas, betas) = match logit {
        TailLogit::Fixed { lambda, beta } => {
            if !((0.0..=1.0).contains(lambda) && *beta >= 0.0 && beta.is_finite()) {
                return Err(Error::Config(format!(
                    "lambda and beta are {lambda} and {beta}; expected lambda from 0 to 1 and beta from 0 on"
                )));
            }
            (vec![*lambda; n], vec![*beta; n])
        }
        TailLogit::Loss { loss, negatives } => {
            let slices: Vec<&[f64]> = rows.iter().map(|r| &r[..]).collect();
            let found = Anchors::of(&slices, *negatives, &gate_of(loss).0)?;
            (found.column(|t| t.lambda), found.column(|t| t.beta))
        }
    };
    let points = HILL_POINTS.min(m / 4).max(2);
    let input = sample.input();
    let one = |(i, cosines): (usize, &Vec<f64>)| {
        let kernel = Kernel { lambda: lambdas[i], beta: betas[i], tau };
        let shortfalls: Vec<f64> = cosines.iter().map(|s| (1.0 - s).max(SHORTFALL_FLOOR)).collect();
        let index = Hill::of(&shortfalls, points).ok().map(|h| h.index);
        let logits: Vec<f64> = shortfalls.iter().map(|d| kernel.ln(*d)).collect();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (mut mass, mut squares) = (0.0, 0.0);
        for x in &logits {
            let w = (x - largest).exp();
            mass += w;
            squares += w * w;
        }
        let loss =
            largest + (mass / logits.len() as f64).ln() - kernel.ln((1.0 - input.positives[i]).max(SHORTFALL_FLOOR));
        (index, index.map(|h| kernel.criticality(h)), mass * mass / squares, loss)
    };
    let found: Vec<_> = rows.par_iter().enumerate().map(one).collect();
    let indices: Vec<f64> = found.iter().filter_map(|f| f.0).collect();
    let criticality: Vec<f64> = found.iter().filter_map(|f| f.1).collect();
    if criticality.is_empty() {
        return Err(Error::Input(
            "no anchor has a tail index: the nearest items of each are all equally near; look for duplicates".into(),
        ));
    }
    let share = |holds: &dyn Fn(f64) -> bool| {
        criticality.iter().filter(|c| holds(**c)).count() as f64 / criticality.len() as f64
    };
    let losses: Vec<f64> = found.iter().map(|f| f.3).collect();
    let mean = losses.iter().sum::<f64>() / n as f64;
    let half = Z_95 * (variance(&losses) / n as f64).sqrt();
    let shares = [share(&|c| c < 0.5), share(&|c| (0.5..1.0).contains(&c)), share(&|c| c >= 1.0)];
    let without_index = n - criticality.len();
    let criticality = quartiles(criticality);
    Ok(Tail {
        lambda: quartiles(lambdas),
        beta: quartiles(betas),
        index: quartiles(indices),
        shares,
        n2: quartiles(found.iter().map(|f| f.2).collect()),
        r_inf: Figure { value: mean, interval: [mean - half, mean + half] },
        without_index,
        regime: match regime(criticality[1]) {
            Regime::FiniteVariance => "finite variance",
            Regime::InfiniteVariance => "infinite variance",
            Regime::NoLimit => "no limit",
        },
        criticality,
    })
}

fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len() - 1;
    [0.25, 0.5, 0.75].map(|q| {
        let place = q * last as f64;
        let (low, part) = (place.floor() as usize, place.fract());
        values[low] + (values[(low + 1).min(last)] - values[low]) * part
    })
}
