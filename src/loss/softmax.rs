//! Cross-entropy of an anchor's positive among its candidates, for every link between the softmax and the Weibull one:
//! the value and, in closed form, dL/dS.
//!
//! Every loss of this crate is a weighted sum of terms with logits
//!
//! ```text
//! l[a, c] = slope_a s[a, c] - power_a log(delta[a, c] floored),     delta = 1 - s
//! dl/ds   = slope_a + power_a / delta                               (0 for the second part below the floor)
//! L       = mean_a weight_a (logsumexp_c l[a, c] - l[a, pos])
//! dL/ds   = weight_a / A (p - [c = pos]) dl/ds
//! ```
//!
//! with slope, power and weight constant in the differentiation. What is the same for a whole row cancels, so that
//! -slope_a delta serves for slope_a s, and everything can be measured from the row's hardest negative.

use super::Diagnostics;
use super::pairs::Pairs;
use crate::config::loss::Floor;
use crate::error::Result;
use tch::{Kind, Tensor};

/// The floor of the shortfall in the Weibull link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cap {
    pub floor: Floor,
    pub eps: f64,
}

impl Cap {
    /// The floored shortfall.
    pub fn floored(&self, delta: &Tensor) -> Tensor {
        match self.floor {
            Floor::Clamp => delta.clamp_min(self.eps),
            Floor::Shift => self.shifted(delta.clamp_min(0.0)),
        }
    }

    /// The derivative of the floored shortfall's logarithm by the shortfall; overwrites `delta`.
    fn log_slope_(&self, mut delta: Tensor) -> Tensor {
        match self.floor {
            // Below the floor the slope is 1 / infinity. At the floor it is torch's, which lets the gradient pass.
            Floor::Clamp => delta.threshold_(self.below_floor(delta.kind()), f64::INFINITY).reciprocal_(),
            Floor::Shift => self.shifted(delta.clamp_min_(0.0)).reciprocal_(),
        }
    }

    fn shifted(&self, mut delta: Tensor) -> Tensor {
        delta += self.eps;
        delta
    }

    /// The greatest number of this kind below the floor.
    fn below_floor(&self, kind: Kind) -> f64 {
        if kind == Kind::Float { (self.eps as f32).next_down().into() } else { self.eps.next_down() }
    }
}

/// Which negatives a term sees.
pub(super) enum Candidates {
    /// All of them.
    All,
    /// A list of the hardest, with the positive beside them.
    Hardest(Hardest),
}

/// The hardest negatives of each anchor, hardest first; equal ones in the order of their columns.
pub(super) struct Hardest {
    /// Shortfalls, [A, M] float64, not floored.
    pub delta: Tensor,
    /// Columns, [A, M] int64.
    pub columns: Tensor,
}

impl Hardest {
    /// The first `m` of the list.
    pub fn first(&self, m: i64) -> Hardest {
        Hardest { delta: self.delta.narrow(1, 0, m), columns: self.columns.narrow(1, 0, m) }
    }
}

/// One cross-entropy. The coefficients are float64, [A, 1] or [1, 1].
pub(super) struct Term {
    /// Coefficient of the similarity; none is 0.
    pub slope: Option<Tensor>,
    /// Coefficient of minus the logarithm of the shortfall; none is 0.
    pub power: Option<Tensor>,
    /// Weight of each anchor's loss; none is 1.
    pub weight: Option<Tensor>,
    pub candidates: Candidates,
}

/// The loss, 0-dim float64, and dL/dS in the working kind if it was asked for.
pub(super) struct Evaluated {
    pub loss: Tensor,
    pub gradient: Option<Tensor>,
}

/// What a loss makes of a batch: the terms to evaluate, and what it learnt on the way.
pub(super) struct Plan {
    pub terms: Vec<Term>,
    /// Shortfall of each anchor's hardest negative, not floored; [A, 1] float64.
    pub hardest: Tensor,
    pub cap: Cap,
    pub diagnostics: Diagnostics,
}

/// Evaluates the sum of the plan's terms.
pub(super) fn evaluate(pairs: &Pairs, plan: &Plan, with_gradient: bool) -> Result<Evaluated> {
    let Plan { terms, hardest, cap, .. } = plan;
    let (shape, cap) = (pairs.shape, *cap);
    let positive = pairs.positive.view([-1, 1]);
    let mut sum = Sum { loss: Vec::new(), gradient: None, positive: None };
    // Lists are scattered into the gradient of the full terms.
    for term in terms.iter().filter(|t| matches!(t.candidates, Candidates::All)) {
        // Without negatives the positive is the only candidate and its loss is 0.
        if shape.negatives > 0 {
            all(pairs, &positive, hardest, term, cap, with_gradient, &mut sum)?;
        }
    }
    for term in terms {
        if let Candidates::Hardest(list) = &term.candidates {
            among_hardest(pairs, &positive, list, term, cap, with_gradient, &mut sum)?;
        }
    }
    let loss = sum
        .loss
        .into_iter()
        .reduce(|a, b| a + b)
        // A multiple of the input, so that what is not finite shows.
        .unwrap_or_else(|| &pairs.positive * 0.0)
        .mean(Kind::Double);
    let gradient = with_gradient.then(|| {
        let gradient = sum.gradient.unwrap_or_else(|| pairs.delta.zeros_like());
        if let Some(positive) = sum.positive {
            shape.set_positives(&gradient, &positive.view([-1]));
        }
        gradient
    });
    Ok(Evaluated { loss, gradient })
}

/// What the terms add up to so far.
struct Sum {
    /// Weighted losses of the rows, [A, 1] each.
    loss: Vec<Tensor>,
    /// dL/dS of the negatives, [A, C].
    gradient: Option<Tensor>,
    /// dL/dS of the positives, [A, 1] float64.
    positive: Option<Tensor>,
}

/// Logits of shortfalls up to a constant, in the kind of the coefficients.
fn logits(term: &Term, delta: &Tensor, cap: Cap) -> Tensor {
    let linear = term.slope.as_ref().map(|slope| -(slope * delta));
    let power = term.power.as_ref().map(|power| -(power * cap.floored(delta).log()));
    match (linear, power) {
        (Some(a), Some(b)) => a + b,
        (Some(a), None) | (None, Some(a)) => a,
        (None, None) => delta.zeros_like(),
    }
}

/// dl/ds of a term at given shortfalls, in the kind of the coefficients.
fn slopes(term: &Term, delta: &Tensor, cap: Cap) -> Tensor {
    let power = term.power.as_ref().map(|power| power * cap.log_slope_(delta.copy()));
    match (&term.slope, power) {
        (Some(a), Some(b)) => a + b,
        (Some(a), None) => a + delta.zeros_like(),
        (None, Some(b)) => b,
        (None, None) => delta.zeros_like(),
    }
}

/// The loss of each row, and the factors that the gradient's entries have in common.
struct Rows {
    /// weight / A times the share of a negative whose unnormalised weight is 1, [A, 1].
    negative_factor: Tensor,
}

impl Sum {
    /// Takes in a term's rows: `base` is the logit that unnormalised weights are measured from, `z` their sum over the
    /// negatives, all [A, 1] float64. The loss is log(1 + z exp(base - l_pos)): nothing is lost when it is tiny.
    fn add_rows(
        &mut self,
        term: &Term,
        positive: &Tensor,
        base: &Tensor,
        z: &Tensor,
        cap: Cap,
        with_gradient: bool,
    ) -> Option<Rows> {
        let l_pos = logits(term, positive, cap);
        let odds = z.log() + base - &l_pos;
        let loss = odds.zeros_like().logaddexp(&odds);
        let weight = |x: Tensor| match &term.weight {
            Some(weight) => weight * x,
            None => x,
        };
        let rows = with_gradient.then(|| {
            let share = weight((base - &l_pos - &loss).exp()) / loss.numel() as f64;
            // 1 - p_pos = 1 - exp(-loss).
            let from_positive = weight((-&loss).expm1()) / loss.numel() as f64 * slopes(term, positive, cap);
            self.positive = Some(match self.positive.take() {
                Some(sum) => sum + from_positive,
                None => from_positive,
            });
            Rows { negative_factor: share }
        });
        self.loss.push(weight(loss));
        rows
    }
}

/// A term over all negatives. This is where the time goes: everything on [A, C] happens in place.
fn all(
    pairs: &Pairs,
    positive: &Tensor,
    hardest: &Tensor,
    term: &Term,
    cap: Cap,
    with_gradient: bool,
    sum: &mut Sum,
) -> Result<()> {
    let working = pairs.delta.kind();
    let base = logits(term, hardest, cap);
    let narrow = |t: &Tensor| t.to_kind(working);
    // Unnormalised weights exp(l - base), at most 1.
    let mut e = match &term.power {
        Some(power) => {
            let mut e = cap.floored(&pairs.delta).log_();
            let _ = narrow(&-&base).f_addcmul_out(&e, &e.shallow_clone(), &narrow(&-power))?;
            if let Some(slope) = &term.slope {
                let _ = e.f_addcmul_(&pairs.delta, &narrow(&-slope))?;
            }
            e
        }
        None => {
            let slope = narrow(&-term.slope.as_ref().map_or_else(|| base.zeros_like(), Tensor::shallow_clone));
            narrow(&-&base).f_addcmul(&pairs.delta, &slope)?
        }
    };
    let _ = e.exp_();
    pairs.shape.fill_non_negatives(&e, 0.0);
    let z = e.sum_dim_intlist([1i64].as_slice(), true, working).to_kind(Kind::Double);
    let Some(rows) = sum.add_rows(term, positive, &base, &z, cap, with_gradient) else {
        return Ok(());
    };
    let factor = rows.negative_factor;
    match &term.power {
        Some(power) => {
            let slope = cap.log_slope_(pairs.delta.copy());
            let _ = narrow(&(&factor * term.slope.as_ref().unwrap_or(&factor.zeros_like()))).f_addcmul_out(
                &slope,
                &slope.shallow_clone(),
                &narrow(&(&factor * power)),
            )?;
            e *= slope;
        }
        None => {
            let slope = term.slope.as_ref().map_or_else(|| factor.zeros_like(), |slope| slope * &factor);
            e *= narrow(&slope);
        }
    }
    sum.gradient = Some(match sum.gradient.take() {
        Some(gradient) => gradient + e,
        None => e,
    });
    Ok(())
}

/// A term over lists of the hardest negatives, in float64.
fn among_hardest(
    pairs: &Pairs,
    positive: &Tensor,
    list: &Hardest,
    term: &Term,
    cap: Cap,
    with_gradient: bool,
    sum: &mut Sum,
) -> Result<()> {
    let base = logits(term, &list.delta.narrow(1, 0, 1), cap);
    let e = (logits(term, &list.delta, cap) - &base).exp();
    let z = e.sum_dim_intlist([1i64].as_slice(), true, Kind::Double);
    let Some(rows) = sum.add_rows(term, positive, &base, &z, cap, with_gradient) else {
        return Ok(());
    };
    let entries = e * slopes(term, &list.delta, cap) * rows.negative_factor;
    // A list longer than the negatives ends in entries that are none, and have no gradient.
    let real = list.delta.size()[1].min(pairs.shape.negatives);
    let gradient = sum.gradient.get_or_insert_with(|| pairs.delta.zeros_like());
    let _ = gradient.f_scatter_add_(
        1,
        &list.columns.narrow(1, 0, real),
        &entries.narrow(1, 0, real).to_kind(pairs.delta.kind()),
    )?;
    Ok(())
}
