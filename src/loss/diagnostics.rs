//! What a loss tells about a batch beside its value: tensors on the device, read when somebody wants to.

use super::pairs::Pairs;
use super::tail::{BatchFit, Fit, Gate};
use tch::{Kind, Tensor};

/// Statistics of one batch, on its device and without gradient; reading them is what synchronises.
///
/// # Shapes
/// Per-anchor tensors are float64 `[A]`, A = 2N with two views and both ways (view i first) and N one way. What a loss has no meaning for
/// is none.
#[derive(Debug)]
pub struct Diagnostics {
    /// Share of the Weibull link.
    pub lambda: Option<Tensor>,
    /// The part of lambda that the distance of the hardest negative gives.
    pub lambda_rho: Option<Tensor>,
    /// The part of lambda that the evidence gives.
    pub lambda_aic: Option<Tensor>,
    /// Shortfall of the hardest negative, at least eps.
    pub rho: Tensor,
    /// Exponent in use.
    pub beta: Option<Tensor>,
    /// Slope of the Weibull line, negative ones as 0.
    pub slope: Option<Tensor>,
    /// The evidence for a Weibull tail: delta-AIC, or twice a log-likelihood ratio where that is configured.
    pub delta_aic: Option<Tensor>,
    /// R2 of the Weibull line.
    pub r2: Option<Tensor>,
    /// Hill's estimate of the tail's exponent; infinite where the tail's points are equal.
    pub hill: Option<Tensor>,
    /// Negatives that share the softmax: 1 / sum p^2 over an anchor's negatives, p their shares of one another's weight.
    pub n2: Option<Tensor>,
    /// Distance at which its signal is one half; 0-dim.
    pub pivot: Option<Tensor>,
    /// The batch's exponent; 0-dim.
    pub batch_beta: Option<Tensor>,
    /// Slope of the fit to the batch's pooled tail; 0-dim.
    pub batch_slope: Option<Tensor>,
    /// R2 of that fit; 0-dim.
    pub batch_r2: Option<Tensor>,
    /// Embeddings with a norm below 1e-8; 0-dim int64.
    pub zero_rows: Tensor,
    /// Anchors whose hardest negative is a duplicate, closer than eps; 0-dim int64.
    pub near_duplicates: Tensor,
}

/// [A, 1] to [A].
pub(super) fn anchors(column: &Tensor) -> Tensor {
    column.contiguous().view([-1])
}

fn scalar(cell: &Tensor) -> Tensor {
    cell.reshape([] as [i64; 0])
}

impl Diagnostics {
    /// Of a batch whose anchors' hardest negatives are not known yet.
    pub(super) fn new(pairs: &Pairs) -> Diagnostics {
        let none = |kind: Kind| Tensor::empty([0], (kind, pairs.device()));
        Diagnostics {
            lambda: None,
            lambda_rho: None,
            lambda_aic: None,
            rho: none(Kind::Double),
            beta: None,
            slope: None,
            delta_aic: None,
            r2: None,
            hill: None,
            n2: None,
            pivot: None,
            batch_beta: None,
            batch_slope: None,
            batch_r2: None,
            zero_rows: pairs.zero_rows(),
            near_duplicates: none(Kind::Int64),
        }
    }

    /// `hardest` are the shortfalls of the anchors' hardest negatives, [A, 1].
    pub(super) fn set_hardest(&mut self, hardest: &Tensor, eps: f64) {
        self.rho = anchors(&hardest.clamp_min(eps));
        self.near_duplicates = hardest.le(eps).sum(Kind::Int64);
    }

    pub(super) fn set_gate(&mut self, gate: &Gate, pivot: &Tensor) {
        self.lambda = Some(anchors(&gate.lambda));
        self.lambda_rho = Some(anchors(&gate.lambda_rho));
        self.lambda_aic = Some(anchors(&gate.lambda_aic));
        self.pivot = Some(scalar(pivot));
    }

    pub(super) fn set_fit(&mut self, fit: &Fit, evidence: &Tensor) {
        self.slope = Some(anchors(&fit.slope));
        self.r2 = Some(anchors(&fit.r2));
        self.delta_aic = Some(anchors(evidence));
    }

    pub(super) fn set_batch(&mut self, batch: &BatchFit) {
        self.batch_beta = Some(scalar(&batch.beta));
        self.batch_slope = batch.slope.as_ref().map(scalar);
        self.batch_r2 = batch.r2.as_ref().map(scalar);
    }

    /// Of the same samples the other way: per anchor these behind those, of the batch's the means; duplicates are counted both ways.
    pub(super) fn with(self, back: Diagnostics) -> Diagnostics {
        let both = |a: Option<Tensor>, b: Option<Tensor>, f: &dyn Fn(&Tensor, &Tensor) -> Tensor| Some(f(&a?, &b?));
        let behind = |a: &Tensor, b: &Tensor| Tensor::cat(&[a, b], 0);
        let mean = |a: &Tensor, b: &Tensor| (a + b) / 2.0;
        Diagnostics {
            lambda: both(self.lambda, back.lambda, &behind),
            lambda_rho: both(self.lambda_rho, back.lambda_rho, &behind),
            lambda_aic: both(self.lambda_aic, back.lambda_aic, &behind),
            rho: behind(&self.rho, &back.rho),
            beta: both(self.beta, back.beta, &behind),
            slope: both(self.slope, back.slope, &behind),
            delta_aic: both(self.delta_aic, back.delta_aic, &behind),
            r2: both(self.r2, back.r2, &behind),
            hill: both(self.hill, back.hill, &behind),
            n2: both(self.n2, back.n2, &behind),
            pivot: both(self.pivot, back.pivot, &mean),
            batch_beta: both(self.batch_beta, back.batch_beta, &mean),
            batch_slope: both(self.batch_slope, back.batch_slope, &mean),
            batch_r2: both(self.batch_r2, back.batch_r2, &mean),
            zero_rows: self.zero_rows,
            near_duplicates: self.near_duplicates + back.near_duplicates,
        }
    }

    /// The share of the Weibull link's exponent in that of the tail, lambda beta / [`Diagnostics::hill`]: below 0.5 the variance of
    /// the weights is finite, from 1 on their mean is not (with more and more negatives the loss has no limit).
    pub fn criticality(&self) -> Option<Tensor> {
        Some(self.lambda.as_ref()? * self.beta.as_ref()? / self.hill.as_ref()?)
    }

    /// Names of the entries of [`Diagnostics::scalars`].
    pub const SCALARS: [&'static str; 34] = [
        "lambda_mean",
        "lambda_rho_mean",
        "lambda_aic_mean",
        "delta_aic_min",
        "delta_aic_mean",
        "rho_mean",
        "beta_mean",
        "r2_mean",
        "n2_mean",
        "criticality_mean",
        "pivot",
        "batch_beta",
        "batch_slope",
        "batch_r2",
        "zero_rows",
        "near_duplicates",
        "lambda_q05",
        "lambda_q50",
        "lambda_q95",
        "delta_aic_q05",
        "delta_aic_q50",
        "delta_aic_q95",
        "rho_q05",
        "rho_q50",
        "rho_q95",
        "beta_q05",
        "beta_q50",
        "beta_q95",
        "n2_q05",
        "n2_q50",
        "n2_q95",
        "criticality_q05",
        "criticality_q50",
        "criticality_q95",
    ];

    /// The quantiles among them; of the anchors in order that one whose place is nearest.
    const QUANTILES: [f64; 3] = [0.05, 0.5, 0.95];

    /// The batch in one float64 tensor on its device, in the order of [`Diagnostics::SCALARS`]; NaN where the loss has no
    /// such thing. Reading it is one transfer, at a time of the caller's choosing.
    pub fn scalars(&self) -> Tensor {
        let none = || Tensor::full([] as [i64; 0], f64::NAN, (Kind::Double, self.rho.device()));
        let mean = |t: &Option<Tensor>| t.as_ref().map_or_else(none, |t| t.mean(Kind::Double));
        let same = |t: &Option<Tensor>| t.as_ref().map_or_else(none, Tensor::shallow_clone);
        let criticality = self.criticality();
        let alone = Tensor::stack(
            &[
                mean(&self.lambda),
                mean(&self.lambda_rho),
                mean(&self.lambda_aic),
                self.delta_aic.as_ref().map_or_else(none, Tensor::min),
                mean(&self.delta_aic),
                self.rho.mean(Kind::Double),
                mean(&self.beta),
                mean(&self.r2),
                mean(&self.n2),
                mean(&criticality),
                same(&self.pivot),
                same(&self.batch_beta),
                same(&self.batch_slope),
                same(&self.batch_r2),
                self.zero_rows.to_kind(Kind::Double),
                self.near_duplicates.to_kind(Kind::Double),
            ],
            0,
        );
        let rho = Some(self.rho.shallow_clone());
        let anchors = self.rho.size()[0];
        let absent = Tensor::full([1], f64::NAN, (Kind::Double, self.rho.device())).expand([anchors], false);
        let columns = [&self.lambda, &self.delta_aic, &rho, &self.beta, &self.n2, &criticality];
        let columns = columns.map(|t| t.as_ref().map_or_else(|| absent.shallow_clone(), Tensor::shallow_clone));
        let places = Self::QUANTILES.map(|q| (q * (anchors - 1) as f64).round() as i64);
        let sorted = Tensor::stack(&columns, 0).sort(1, false).0;
        let quantiles = sorted.index_select(1, &Tensor::from_slice(&places).to_device(self.rho.device()));
        Tensor::cat(&[alone, quantiles.reshape([-1])], 0)
    }
}
