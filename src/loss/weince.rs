//! The paper's loss: each anchor's logits go from the softmax link to the Weibull one as its tail speaks for an endpoint.

use super::pairs::Pairs;
use super::softmax::{Candidates, Cap, Plan, Term};
use super::tail::{self, BatchBeta, Fits, Steepness, Tails};
use super::{Diagnostics, anchors, constant};
use crate::config::loss::{BetaConfig, GlobalBeta, WeinceConfig};
use crate::error::{Error, Result};
use crate::torch::smallest;
use std::cell::RefCell;
use tch::{Kind, Tensor};

/// The loss and what it keeps between batches.
pub(super) struct Weince {
    config: WeinceConfig,
    fits: Fits,
    /// Read with `beta: {kind: shrunk}` only.
    pub batch: BatchBeta,
}

impl Weince {
    pub fn new(config: WeinceConfig) -> Weince {
        let batch = match &config.beta {
            BetaConfig::Shrunk(b) => BatchBeta::new(b.global.clone(), (b.min, b.max)),
            BetaConfig::Slope(_) | BetaConfig::Hill(_) | BetaConfig::Fixed(_) => {
                BatchBeta::new(GlobalBeta::Fixed(1.0), (1.0, 1.0))
            }
        };
        Weince { config, fits: Fits::default(), batch }
    }

    /// l[a, c] = (1 - lambda_a) s / temperature - lambda_a beta_a log(floored shortfall).
    pub fn plan(&mut self, pairs: &Pairs) -> Result<Plan> {
        let config = &self.config;
        let negatives = pairs.shape.negatives;
        if negatives < 1 {
            return Err(Error::Input(
                "WEINCE needs at least one negative an anchor, found a batch of 1 sample; use larger batches, or drop \
                 the last incomplete one"
                    .to_string(),
            ));
        }
        let k = tail::points(negatives, config.tail.fraction, config.tail.min_points);
        let fits = RefCell::new(&mut self.fits);
        let (eps, evidence) = (config.eps, config.gate.evidence);
        let columns = pairs.collect(|| {
            let mut fits = fits.borrow_mut().of(k, pairs.device());
            move |delta: &Tensor| {
                let tail = smallest(delta, k)?.f_to_kind(Kind::Double)?;
                Ok(vec![Tails::columns(&mut fits, &tail, eps, evidence)?])
            }
        })?;
        let Tails { hardest, rho, fit, evidence, hill } = Tails::new(&columns[0], k, config.eps);
        let pivot = tail::pivot(config.gate.pivot, &rho);
        let by = Steepness {
            kappa_rho: config.gate.kappa_rho,
            kappa_aic: config.gate.kappa_aic,
            margin: config.gate.margin,
        };
        let mut gate = tail::gate(config.gate.signals, &rho, &pivot, &evidence, by);
        if fit.n < 2 {
            // No line goes through fewer than two points: there is no evidence.
            (gate.lambda, gate.lambda_aic) = (rho.zeros_like(), rho.zeros_like());
        }
        let mut diagnostics = Diagnostics::new(pairs);
        let beta = match &config.beta {
            BetaConfig::Fixed(b) => constant(b.value, pairs.device()).expand_as(&rho),
            BetaConfig::Hill(b) => hill.clamp(b.min, b.max),
            BetaConfig::Slope(b) => {
                let fallback = constant(b.fallback, pairs.device());
                fit.slope.clamp(b.min, b.max).where_self(&fit.slope.gt(0.0), &fallback)
            }
            BetaConfig::Shrunk(b) => {
                let batch = self.batch.update(&mut self.fits, pairs, config.eps)?;
                let beta = tail::shrunk(&fit, &batch.beta, b.shrink_c, b.r2_min, b.min, b.max);
                diagnostics.set_batch(&batch);
                beta
            }
        };
        let slope = (1.0 - &gate.lambda) / config.temperature;
        let power = &gate.lambda * &beta;
        diagnostics.set_gate(&gate, &pivot);
        diagnostics.set_fit(&fit, &evidence);
        diagnostics.beta = Some(anchors(&beta));
        diagnostics.hill = Some(anchors(&hill));
        let term = Term { slope: Some(slope), power: Some(power), weight: None, candidates: Candidates::All };
        let cap = Cap { floor: config.floor, eps: config.eps };
        Ok(Plan { terms: vec![term], hardest: Some(hardest), cap, diagnostics })
    }
}
