//! The authors' released class, policy by policy, with the two regularisers that their training adds.
//!
//! What it does where it differs from the paper is listed in the table of [`super`].

use super::pairs::Pairs;
use super::softmax::{Candidates, Cap, Hardest, Plan, Term};
use super::tail::{self, BatchBeta, BatchFit, Fit, Fits, Steepness, Tails};
use super::{Diagnostics, anchors, constant};
use crate::config::loss::{EmaConfig, Evidence, Floor, GlobalBeta, Pivot, Signals};
use crate::config::loss_reference::{Policy, ReferenceConfig};
use crate::error::{Error, Result};
use crate::torch::{smallest, smallest_with_columns};
use std::cell::RefCell;
use tch::{Kind, Tensor};

/// The loss and what it keeps between batches.
pub(super) struct Reference {
    config: ReferenceConfig,
    fits: Fits,
    pub batch: BatchBeta,
}

/// What a policy does with the fits of the `select` policies.
#[derive(Clone, Copy, PartialEq)]
enum Selection {
    /// A Weibull loss beside InfoNCE; lambda is 0 or 1.
    HardLosses,
    /// The same with a smooth lambda.
    SoftLosses(Signals),
    /// Logits mixed by a smooth lambda.
    Logits(Signals),
}

fn selection(policy: Policy) -> Option<Selection> {
    match policy {
        Policy::HardSelect => Some(Selection::HardLosses),
        Policy::SoftSelect => Some(Selection::SoftLosses(Signals::Both)),
        Policy::SoftSelectRho => Some(Selection::SoftLosses(Signals::Rho)),
        Policy::SoftSelectAic => Some(Selection::SoftLosses(Signals::Aic)),
        Policy::TlambdaSelect => Some(Selection::Logits(Signals::Both)),
        Policy::TlambdaSelectRho => Some(Selection::Logits(Signals::Rho)),
        Policy::TlambdaSelectAic => Some(Selection::Logits(Signals::Aic)),
        Policy::Pl | Policy::Weibit | Policy::Soft | Policy::Gate | Policy::WeibitShrink => None,
    }
}

/// How much of the sorted negatives a batch needs: one sort serves the fits and all lists.
struct Sizes {
    /// Tail of the fits.
    tail: Option<i64>,
    /// Negatives in the Weibull loss of `hard_select` and `soft_select`.
    selected: Option<i64>,
    weibull: Option<i64>,
    softmax: Option<i64>,
}

impl Reference {
    pub fn new(config: ReferenceConfig) -> Reference {
        let global = if config.auto_weib_beta {
            GlobalBeta::Ema(EmaConfig {
                initial: config.weib_beta,
                fraction: config.tail_frac,
                min_points: config.min_tail_points,
                momentum: config.beta_ema_momentum,
                r2_min: config.r2_min,
            })
        } else {
            GlobalBeta::Fixed(config.weib_beta)
        };
        let batch = BatchBeta::new(global, (config.beta_min, config.beta_max));
        Reference { config, fits: Fits::default(), batch }
    }

    fn sizes(&self, pairs: &Pairs) -> Sizes {
        let config = &self.config;
        let negatives = pairs.shape.negatives;
        let select = selection(config.policy);
        let tail = match config.policy {
            _ if select.is_some() => {
                Some(tail::points(negatives, config.select_tail_frac, config.select_min_tail_points))
            }
            Policy::WeibitShrink => {
                Some(tail::points_truncated(negatives, config.anchor_tail_frac, config.anchor_min_tail_points))
                    .filter(|&k| k >= 10)
            }
            _ => None,
        };
        let selected = matches!(select, Some(Selection::HardLosses | Selection::SoftLosses(_)))
            .then(|| i64::from(config.select_weib_top_m).min(negatives).max(1));
        // Bounded by the columns, not by the negatives: with two views a long list ends in one entry that is none.
        let list = |on: bool, m: u32| on.then(|| i64::from(m).min((pairs.shape.candidates - 1).max(1)));
        Sizes {
            tail,
            selected,
            weibull: list(config.use_weib_topm && config.weib_lambda > 0.0, config.weib_top_m),
            softmax: list(config.use_pl_topm && config.pl_lambda > 0.0, config.pl_top_m),
        }
    }

    pub fn plan(&mut self, pairs: &Pairs) -> Result<Plan> {
        let policy = self.config.policy;
        let select = selection(policy);
        if pairs.shape.negatives < 1 && (select.is_some() || policy == Policy::Gate) {
            return Err(Error::Input(format!(
                "the reference's policy {policy:?} needs at least one negative an anchor, found a batch of 1 sample; use \
                 larger batches, or drop the last incomplete one"
            )));
        }
        let eps = self.config.eps;
        let sizes = self.sizes(pairs);
        let longest_list = sizes.selected.into_iter().chain(sizes.weibull).chain(sizes.softmax).max();
        let (hardest, fit, list) = self.smallest(pairs, &sizes, longest_list)?;
        let batch = self.batch.update(&mut self.fits, pairs, eps)?;
        let rho = hardest.clamp_min(eps);
        let mut diagnostics = Diagnostics::new(pairs);
        diagnostics.set_batch(&batch);
        let mut terms = match select {
            Some(select) => {
                let list = list.as_ref().zip(sizes.selected).map(|(list, m)| list.first(m));
                self.selected(select, &rho, &fit, &batch, list, &mut diagnostics)
            }
            None => self.unselected(&rho, &fit, &batch, &mut diagnostics),
        };
        let weight = |value: f64| Some(constant(value, pairs.device()));
        if let Some((list, m)) = list.as_ref().zip(sizes.weibull) {
            terms.push(Term {
                slope: None,
                power: Some(batch.beta.shallow_clone()),
                weight: weight(self.config.weib_lambda),
                candidates: Candidates::Hardest(list.first(m)),
            });
        }
        if let Some((list, m)) = list.as_ref().zip(sizes.softmax) {
            terms.push(Term {
                slope: weight(1.0 / self.config.temperature),
                power: None,
                weight: weight(self.config.pl_lambda),
                candidates: Candidates::Hardest(list.first(m)),
            });
        }
        Ok(Plan { terms, hardest: Some(hardest), cap: Cap { floor: Floor::Clamp, eps }, diagnostics })
    }

    /// The shortfalls of the hardest negatives [A, 1], the fits of the tails, and the list of the longest that is needed.
    fn smallest(
        &mut self,
        pairs: &Pairs,
        sizes: &Sizes,
        longest: Option<i64>,
    ) -> Result<(Tensor, Fit, Option<Hardest>)> {
        let (fits, eps) = (&mut self.fits, self.config.eps);
        let deepest = longest.max(sizes.tail).unwrap_or(1);
        let fits = RefCell::new(fits);
        let tail = sizes.tail;
        let of_tile = || {
            let mut fits = tail.map_or_else(Fits::default, |k| fits.borrow_mut().of(k, pairs.device()));
            move |delta: &Tensor| {
                let (values, columns) = match longest {
                    Some(_) => {
                        smallest_with_columns(delta, deepest).map(|(values, columns)| (values, Some(columns)))?
                    }
                    None => (smallest(delta, deepest)?, None),
                };
                let values = values.f_to_kind(Kind::Double)?;
                let first = match tail {
                    Some(k) => Tails::columns(&mut fits, &values.f_narrow(1, 0, k)?, eps, Evidence::Aic)?,
                    None => values.f_narrow(1, 0, 1)?,
                };
                let mut made = vec![first];
                if let (Some(m), Some(columns)) = (longest, columns) {
                    made.extend([values.f_narrow(1, 0, m)?, columns.f_narrow(1, 0, m)?]);
                }
                Ok(made)
            }
        };
        let mut found = pairs.collect(of_tile)?;
        let first = found.remove(0);
        let (hardest, fit) = match sizes.tail {
            Some(k) => {
                let tails = Tails::new(&first, k, eps);
                (tails.hardest, tails.fit)
            }
            None => (first.shallow_clone(), Fit::none(&first)),
        };
        let list = match (found.pop(), found.pop()) {
            (Some(columns), Some(delta)) => Some(Hardest { delta, columns }),
            _ => None,
        };
        Ok((hardest, fit, list))
    }

    /// The policies that need no gate of the `select` kind.
    fn unselected(&self, rho: &Tensor, fit: &Fit, batch: &BatchFit, diagnostics: &mut Diagnostics) -> Vec<Term> {
        let config = &self.config;
        let full = |slope: Option<Tensor>, power: Option<Tensor>, weight: Option<Tensor>| Term {
            slope,
            power,
            weight,
            candidates: Candidates::All,
        };
        let softmax = || Some(constant(1.0 / config.temperature, rho.device()));
        let weibull = || Some(batch.beta.shallow_clone());
        let weight = |value: f64| Some(constant(value, rho.device()));
        match config.policy {
            Policy::Weibit => vec![full(None, weibull(), None)],
            Policy::Soft => vec![
                full(softmax(), None, weight(1.0 - config.soft_lambda)),
                full(None, weibull(), weight(config.soft_lambda)),
            ],
            Policy::Gate => {
                let lambda = match &batch.r2 {
                    // With a constant exponent there is no fit, and the released class then closes the gate.
                    None => rho.zeros_like(),
                    Some(r2) => {
                        let pivot = config.gate_rho0.max(config.eps).ln();
                        let open = r2.ge(config.gate_r2_min).to_kind(Kind::Double);
                        ((pivot - rho.log()) * config.gate_scale).sigmoid() * open
                    }
                };
                let terms = vec![full(Some((1.0 - &lambda) / config.temperature), Some(&lambda * &batch.beta), None)];
                diagnostics.lambda = Some(anchors(&lambda));
                terms
            }
            Policy::WeibitShrink => {
                let beta = self.shrunk(fit, batch);
                diagnostics.set_fit(fit, &fit.delta_aic);
                diagnostics.beta = Some(anchors(&beta));
                vec![full(None, Some(beta), None)]
            }
            _ => vec![full(softmax(), None, None)],
        }
    }

    /// The policies that weigh the two links by the fits of each anchor's tail.
    fn selected(
        &self,
        select: Selection,
        rho: &Tensor,
        fit: &Fit,
        batch: &BatchFit,
        list: Option<Hardest>,
        diagnostics: &mut Diagnostics,
    ) -> Vec<Term> {
        let config = &self.config;
        let pivot =
            if fit.n < 2 { tail::lower_median(rho) } else { tail::pivot(Pivot::Quantile(config.select_q), rho) };
        let signals = match select {
            Selection::HardLosses => Signals::Both,
            Selection::SoftLosses(signals) | Selection::Logits(signals) => signals,
        };
        let by = Steepness {
            kappa_rho: config.select_kappa_rho,
            kappa_aic: config.select_kappa_aic,
            margin: config.select_aic_margin,
        };
        let evidence = fit.delta_aic.shallow_clone();
        let mut gate = tail::gate(signals, rho, &pivot, &evidence, by);
        if select == Selection::HardLosses {
            // Two anchors that are each other's hardest negative have one distance, whatever rounding makes of it.
            let near = rho.le_tensor(&(&pivot * (1.0 + 2.0 * f64::from(f32::EPSILON))));
            let chosen = near.logical_and(&evidence.ge(config.select_aic_margin));
            gate.lambda = if fit.n < 2 { rho.zeros_like() } else { chosen.to_kind(Kind::Double) };
        }
        diagnostics.set_gate(&gate, &pivot);
        diagnostics.set_fit(fit, &evidence);
        let softmax_share = 1.0 - &gate.lambda;
        match list {
            // The exponent is 1 whatever the slope says.
            None => {
                diagnostics.beta = Some(anchors(&rho.ones_like()));
                vec![Term {
                    slope: Some(softmax_share / config.temperature),
                    power: Some(gate.lambda),
                    weight: None,
                    candidates: Candidates::All,
                }]
            }
            Some(list) => {
                let beta = self.shrunk(fit, batch);
                diagnostics.beta = Some(anchors(&beta));
                vec![
                    Term {
                        slope: Some(constant(1.0 / config.temperature, rho.device())),
                        power: None,
                        weight: Some(softmax_share),
                        candidates: Candidates::All,
                    },
                    Term {
                        slope: None,
                        power: Some(beta),
                        weight: Some(gate.lambda),
                        candidates: Candidates::Hardest(list),
                    },
                ]
            }
        }
    }

    fn shrunk(&self, fit: &Fit, batch: &BatchFit) -> Tensor {
        let config = &self.config;
        tail::shrunk(fit, &batch.beta, config.shrink_c, config.anchor_r2_min, config.beta_min, config.beta_max)
    }
}
