//! What the tail of an anchor says: its distance, the fits of two lines through it, exponents, evidence and the gate.
//!
//! Input is the sorted list of an anchor's smallest shortfalls, so that whoever finds them, in one matrix or tile by tile,
//! gets the same statistics. All of it is float64, on the device, without gradient and without a host synchronisation.
//!
//! Legend: A anchors, k points of the tail, n of them in the fit.

use super::pairs::Pairs;
use crate::config::loss::{EmaConfig, Evidence, GlobalBeta, Pivot, Signals};
use crate::error::{Error, Result};
use tch::{Device, Kind, Tensor};

/// Numbers of tails that are fitted at a time on a processor.
const BLOCK: i64 = 1 << 16;

/// Least sum of squares that is divided by or whose logarithm is taken.
const LEAST_SQUARES: f64 = 1e-12;

/// Added to the residual of a line with the wrong sign.
const NONSENSE: f64 = 1e6;

/// Tail sizes: `fraction` of the negatives, rounded half to even, at least `min_points` and 10, at most all.
pub(super) fn points(negatives: i64, fraction: f64, min_points: u32) -> i64 {
    let share = (fraction * negatives as f64).round_ties_even() as i64;
    share.max(min_points.into()).min(negatives).max(10).min(negatives)
}

/// As the reference where it truncates instead: at least `min_points`, at most all.
pub(super) fn points_truncated(negatives: i64, fraction: f64, min_points: u32) -> i64 {
    ((fraction * negatives as f64) as i64).max(min_points.into()).min(negatives)
}

/// The hardest points, which the fit leaves out because they are the noisiest.
fn burn(k: i64) -> i64 {
    (k / 20).max(1)
}

/// Points in the fit of a tail of `k`.
pub(super) fn fitted(k: i64) -> i64 {
    k - burn(k)
}

/// The responses of the two lines at the plotting positions F = m / (k + 1), which depend on k alone.
struct Responses {
    k: i64,
    device: Device,
    /// log F and log(-log F), centred; [n, 2].
    centred: Tensor,
    /// Sums of squares of the two.
    total: [f64; 2],
}

impl Responses {
    fn new(k: i64, device: Device) -> Responses {
        let positions: Vec<f64> = (burn(k) + 1..=k).map(|m| m as f64 / (k + 1) as f64).collect();
        let n = positions.len() as f64;
        let mut flat = vec![0.0; 2 * positions.len()];
        let mut total = [0.0; 2];
        for line in 0..2 {
            let y: Vec<f64> = positions.iter().map(|f| if line == 0 { f.ln() } else { (-f.ln()).ln() }).collect();
            let mean = y.iter().sum::<f64>() / n;
            for (m, y) in y.iter().enumerate() {
                flat[2 * m + line] = y - mean;
                total[line] += (y - mean) * (y - mean);
            }
        }
        let centred = Tensor::from_slice(&flat).view([-1, 2]).to_device(device);
        Responses { k, device, centred, total }
    }
}

/// The responses of the tail sizes met so far: a training run has one, or two with a last smaller batch.
#[derive(Default)]
pub(super) struct Fits(Vec<Responses>);

/// The two lines through each tail, [A, 1] each.
pub(super) struct Fit {
    /// Points in the fit.
    pub n: i64,
    /// Slope of the Weibull line, negative ones as 0.
    pub slope: Tensor,
    /// R2 of the Weibull line.
    pub r2: Tensor,
    /// AIC of the Gumbel line minus AIC of the Weibull line.
    pub delta_aic: Tensor,
}

impl Fits {
    /// Those of tails of `k` points alone, for a worker that fits such.
    pub fn of(&mut self, k: i64, device: Device) -> Fits {
        if fitted(k) < 2 {
            return Fits::default();
        }
        let Responses { centred, total, .. } = self.responses(k, device);
        Fits(vec![Responses { k, device, centred: centred.shallow_clone(), total: *total }])
    }

    fn responses(&mut self, k: i64, device: Device) -> &Responses {
        let found = self.0.iter().position(|r| r.k == k && r.device == device);
        let at = found.unwrap_or_else(|| {
            self.0.push(Responses::new(k, device));
            self.0.len() - 1
        });
        &self.0[at]
    }

    /// Fits log F = a + slope log delta and log(-log F) = b + slope log delta by least squares. `tail` [A, k] is sorted and
    /// floored. With fewer than two points everything is 0.
    pub fn fit(&mut self, tail: &Tensor) -> Fit {
        let k = tail.size()[1];
        let n = fitted(k);
        if n < 2 {
            return Fit::none(&tail.narrow(1, 0, 1));
        }
        let responses = self.responses(k, tail.device());
        // Measured from the row's last point first: a tail of equal shortfalls is then exactly flat.
        let mut x = tail.narrow(1, k - n, n).log();
        x -= x.narrow(1, n - 1, 1).copy();
        x -= x.mean_dim([1i64].as_slice(), true, Kind::Double);
        let xx = x.norm_scalaropt_dim(2.0, [1i64].as_slice(), true).square();
        let xy = x.mm(&responses.centred);
        let line = |i: i64| {
            let xy = xy.narrow(1, i, 1);
            let slope = &xy / xx.clamp_min(LEAST_SQUARES);
            let residual: Tensor = &slope * (&slope * &xx - xy * 2.0) + responses.total[i as usize];
            (slope, residual.clamp_min(LEAST_SQUARES))
        };
        let (slope_w, residual_w) = line(0);
        let (slope_g, residual_g) = line(1);
        let unexplained: Tensor = &residual_w / responses.total[0].max(LEAST_SQUARES);
        let r2 = Tensor::clamp(&(1.0 - unexplained), 0.0, 1.0);
        let penalised = |residual: Tensor, bad: Tensor| residual + bad.to_kind(Kind::Double) * NONSENSE;
        let residual_w = penalised(residual_w, slope_w.le(0.0));
        let residual_g = penalised(residual_g, slope_g.ge(0.0));
        Fit { n, slope: slope_w.clamp_min(0.0), r2, delta_aic: (residual_g / residual_w).log() * n as f64 }
    }
}

impl Fit {
    /// No fit: everything is 0, for as many anchors as `like` [A, 1] has.
    pub fn none(like: &Tensor) -> Fit {
        let zero = like.zeros_like();
        Fit { n: 0, slope: zero.shallow_clone(), r2: zero.shallow_clone(), delta_aic: zero }
    }
}

/// Sum over the tail of log(delta_k / delta_m), m < k; [A, 1].
fn log_ratios(tail: &Tensor) -> Tensor {
    let k = tail.size()[1];
    let x = tail.log();
    (x.narrow(1, k - 1, 1) - x).sum_dim_intlist([1i64].as_slice(), true, Kind::Double)
}

/// Hill's estimator of the exponent, unbiased for a power law with endpoint 1; [A, 1]. Infinite for a tail of equal points.
pub(super) fn hill(tail: &Tensor) -> Tensor {
    let k = tail.size()[1];
    log_ratios(tail).reciprocal() * (k - 2).max(1) as f64
}

/// Twice the log-likelihood ratio of a power law against an exponential tail, one parameter each, on the distances from the
/// tail's last point; [A, 1].
fn likelihood_evidence(tail: &Tensor) -> Tensor {
    let k = tail.size()[1];
    let last = tail.narrow(1, k - 1, 1);
    let others = (k - 1).max(1) as f64;
    let ratios = log_ratios(tail).clamp_min(LEAST_SQUARES);
    let exponent = ratios.reciprocal() * others;
    let mean =
        ((&last - tail).sum_dim_intlist([1i64].as_slice(), true, Kind::Double) / others).clamp_min(LEAST_SQUARES);
    let weibull = (exponent.log() - last.log()) * others - (exponent - 1.0) * ratios;
    let exponential = (mean.log() + 1.0) * -others;
    (weibull - exponential) * 2.0
}

/// What the tails of anchors say, [A, 1] each.
pub(super) struct Tails {
    /// The hardest negative's shortfall, not floored.
    pub hardest: Tensor,
    /// The same, floored.
    pub rho: Tensor,
    pub fit: Fit,
    /// The statistic that speaks for a Weibull tail.
    pub evidence: Tensor,
    /// Hill's estimate of the exponent.
    pub hill: Tensor,
}

impl Tails {
    /// Of `tail` [T, k], the smallest shortfalls, as columns [T, 6], from which [`Tails::new`] makes this: anchors that are looked at a
    /// tile or a process at a time are put together in between.
    pub fn columns(fits: &mut Fits, tail: &Tensor, eps: f64, evidence: Evidence) -> Result<Tensor> {
        // So many rows that what is between them stays in a processor's cache.
        let (rows, k) = tail.size2()?;
        let at_once = if tail.device() == Device::Cpu { (BLOCK / k).max(1) } else { rows.max(1) };
        let mut found = Vec::new();
        for start in (0..rows).step_by(at_once as usize) {
            let tail = tail.f_narrow(0, start, at_once.min(rows - start))?;
            found.push(Tails::columns_of_block(fits, &tail, eps, evidence)?);
        }
        Ok(if found.len() == 1 { found.remove(0) } else { Tensor::f_cat(&found, 0)? })
    }

    fn columns_of_block(fits: &mut Fits, tail: &Tensor, eps: f64, evidence: Evidence) -> Result<Tensor> {
        let hardest = tail.narrow(1, 0, 1);
        let tail = tail.clamp_min(eps);
        let Fit { slope, r2, delta_aic, .. } = fits.fit(&tail);
        let evidence = match evidence {
            Evidence::Aic => delta_aic.shallow_clone(),
            Evidence::Likelihood => likelihood_evidence(&tail),
        };
        Ok(Tensor::f_cat(&[hardest, slope, r2, delta_aic, evidence, hill(&tail)], 1)?)
    }

    /// Tails of `k` points, from their columns [A, 6].
    pub fn new(columns: &Tensor, k: i64, eps: f64) -> Tails {
        let column = |i: i64| columns.narrow(1, i, 1).contiguous();
        let hardest = column(0);
        let n = fitted(k);
        Tails {
            rho: hardest.clamp_min(eps),
            hardest,
            fit: Fit { n: if n < 2 { 0 } else { n }, slope: column(1), r2: column(2), delta_aic: column(3) },
            evidence: column(4),
            hill: column(5),
        }
    }
}

/// The pivot of the distance signal, [1, 1]. A quantile is an element of the batch, the index rounded half to even.
pub(super) fn pivot(kind: Pivot, rho: &Tensor) -> Tensor {
    match kind {
        Pivot::Absolute(value) => Tensor::full([1, 1], value, (Kind::Double, rho.device())),
        Pivot::Quantile(q) => {
            let last = (rho.numel() - 1) as f64;
            order_statistic(rho, (q.clamp(0.0, 1.0) * last).round_ties_even() as i64)
        }
    }
}

/// The lower median of the distances, [1, 1].
pub(super) fn lower_median(rho: &Tensor) -> Tensor {
    order_statistic(rho, (rho.numel() as i64 - 1) / 2)
}

fn order_statistic(rho: &Tensor, index: i64) -> Tensor {
    rho.view([-1]).sort(0, false).0.narrow(0, index, 1).view([1, 1])
}

/// The two signals and lambda, [A, 1] each.
pub(super) struct Gate {
    pub lambda: Tensor,
    pub lambda_rho: Tensor,
    pub lambda_aic: Tensor,
}

/// Steepness of the two signals, and the evidence at which its signal is one half.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steepness {
    pub kappa_rho: f64,
    pub kappa_aic: f64,
    pub margin: f64,
}

/// lambda from the floored distance of the hardest negative, its pivot, and the evidence.
pub(super) fn gate(signals: Signals, rho: &Tensor, pivot: &Tensor, evidence: &Tensor, by: Steepness) -> Gate {
    let lambda_rho = ((pivot.log() - rho.log()) * by.kappa_rho).sigmoid();
    let lambda_aic = ((evidence - by.margin) * by.kappa_aic).sigmoid();
    let lambda = match signals {
        Signals::Both => &lambda_rho * &lambda_aic,
        Signals::Rho => lambda_rho.shallow_clone(),
        Signals::Aic => lambda_aic.shallow_clone(),
    };
    Gate { lambda, lambda_rho, lambda_aic }
}

/// The slopes shrunk towards the batch's exponent `global` [1, 1].
pub(super) fn shrunk(fit: &Fit, global: &Tensor, shrink_c: f64, r2_min: f64, min: f64, max: f64) -> Tensor {
    let points = &fit.r2 * fit.n as f64;
    let trusted = fit.r2.ge(r2_min).logical_and(&fit.slope.gt(0.0)).to_kind(Kind::Double);
    let weight = &points / (&points + shrink_c) * trusted;
    Tensor::clamp(&(&weight * &fit.slope + (1.0 - weight) * global), min, max)
}

/// The exponent of the whole batch, and its moving average if it has one.
pub(super) struct BatchBeta {
    config: GlobalBeta,
    /// Range that a batch's slope is clamped to before it enters the average.
    range: (f64, f64),
    /// The average as the reference stores it: a float32 of 0 dimensions. None before the first batch.
    average: Option<Tensor>,
}

/// The exponent to use for a batch, and where it came from; [1, 1] each.
pub(super) struct BatchFit {
    pub beta: Tensor,
    /// R2 of the batch's own fit; none for a constant.
    pub r2: Option<Tensor>,
    /// Slope of the batch's own fit; none for a constant.
    pub slope: Option<Tensor>,
}

impl BatchBeta {
    pub fn new(config: GlobalBeta, range: (f64, f64)) -> BatchBeta {
        BatchBeta { config, range, average: None }
    }

    /// The moving average, read from the device; none where there is none.
    pub fn state(&self) -> Option<f64> {
        let GlobalBeta::Ema(config) = &self.config else { return None };
        Some(self.average.as_ref().map_or(config.initial as f32 as f64, |a| a.double_value(&[])))
    }

    /// Puts back what [`BatchBeta::state`] gave.
    pub fn set_state(&mut self, state: Option<f64>) -> Result<()> {
        match (&self.config, state) {
            (GlobalBeta::Fixed(_), None) => Ok(()),
            (GlobalBeta::Ema(_), Some(value)) if value > 0.0 && value.is_finite() => {
                self.average = Some(Tensor::from(value as f32));
                Ok(())
            }
            (GlobalBeta::Ema(_), found) => Err(Error::Input(format!(
                "state of the loss: expected the moving average of beta, a positive number, found {found:?}"
            ))),
            (GlobalBeta::Fixed(_), Some(value)) => Err(Error::Input(format!(
                "state of the loss: this configuration has none, found {value}; use the configuration that the \
                 checkpoint was made with"
            ))),
        }
    }

    /// The exponent for a batch; moves the average, if there is one, where the batch's fit is good enough.
    pub fn update(&mut self, fits: &mut Fits, pairs: &Pairs, eps: f64) -> Result<BatchFit> {
        let device = pairs.device();
        let EmaConfig { initial, fraction, min_points, momentum, r2_min } = match &self.config {
            GlobalBeta::Fixed(value) => {
                let beta = Tensor::full([1, 1], *value, (Kind::Double, device));
                return Ok(BatchFit { beta, r2: None, slope: None });
            }
            GlobalBeta::Ema(config) => config.clone(),
        };
        let old = match &self.average {
            Some(average) => average.to_device(device).to_kind(Kind::Double).view([1, 1]),
            None => Tensor::full([1, 1], initial as f32 as f64, (Kind::Double, device)),
        };
        let k = points_truncated(pairs.shape.anchors * pairs.shape.negatives, fraction, min_points);
        if k < 10 {
            return Ok(BatchFit { r2: Some(old.zeros_like()), slope: Some(old.zeros_like()), beta: old });
        }
        let tail = pairs.smallest_of_all(k)?.clamp_min(eps);
        let fit = fits.fit(&tail);
        let moved = &old * momentum + fit.slope.clamp(self.range.0, self.range.1) * (1.0 - momentum);
        let beta = moved.where_self(&fit.r2.ge(r2_min).logical_and(&fit.slope.gt(0.0)), &old);
        self.average = Some(beta.to_kind(Kind::Float).view([] as [i64; 0]));
        Ok(BatchFit { beta, r2: Some(fit.r2), slope: Some(fit.slope) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tail_sizes_are_the_references() {
        // Batch 256: 51 of 510; 0.75 of 14 is 10.5, rounded to 10; small batches use all negatives.
        assert_eq!(points(510, 0.1, 32), 51);
        assert_eq!(points(14, 0.75, 1), 10);
        assert_eq!(points(255, 0.1, 1), 26);
        assert_eq!(points(6, 0.1, 32), 6);
        assert_eq!(points(100, 0.01, 1), 10);
        assert_eq!(fitted(51), 49);
        assert_eq!(points_truncated(261_120, 0.05, 1024), 13_056);
        assert_eq!(points_truncated(399, 0.1, 32), 39);
    }

    /// numpy.polyfit on the six points log([.1, .2, .3, .5, .8, 1.2]), of which the first is left out.
    #[test]
    fn lines_equal_numpy() {
        let tail = Tensor::from_slice(&[0.1f64, 0.2, 0.3, 0.5, 0.8, 1.2]).view([1, -1]);
        let fit = Fits::default().fit(&tail);
        let close = |t: &Tensor, expected: f64| {
            let found = t.double_value(&[0, 0]);
            assert!((found / expected - 1.0).abs() < 1e-12, "{found} {expected}");
        };
        assert_eq!(fit.n, 5);
        close(&fit.slope, 0.5924517885720211);
        close(&fit.r2, 0.9731319072870436);
        close(&fit.delta_aic, 6.843813604061518);
    }

    #[test]
    fn equal_points_are_flat_lines() {
        let tail = Tensor::full([1, 40], 1e-6, (Kind::Double, Device::Cpu));
        let fit = Fits::default().fit(&tail);
        assert_eq!(fit.slope.double_value(&[0, 0]), 0.0);
        assert_eq!(fit.r2.double_value(&[0, 0]), 0.0);
        assert!(fit.delta_aic.double_value(&[0, 0]).abs() < 1e-2);
        assert_eq!(hill(&tail).double_value(&[0, 0]), f64::INFINITY);
    }
}
