//! The generalised Pareto law and its fit to exceedances.
//!
//! `P(Y > y) = (1 + xi y / sigma)^(-1 / xi)`, with `exp(-y / sigma)` at `xi = 0`; for `xi < 0` it ends at `-sigma / xi`.
//!
//! The likelihood has no maximum over all `xi`: below `-1` it grows without bound as the endpoint approaches the largest exceedance.
//! It is maximised over `xi >= -1`, where at `xi = -1` the best law is the uniform one up to the largest exceedance. For every
//! `theta = xi / sigma` the best `xi` is the mean of `log(1 + theta y)` (Davison 1984; Grimshaw 1993), so that one dimension is left.
//! Its stationary points are bracketed on a grid that follows the two scales on which the likelihood can change, and the
//! highest of them and of the boundary is the fit.

use super::{LikelihoodRatio, Z_95, counted};
use crate::{Error, Result};
use std::fmt;

/// The least number of exceedances that is fitted.
pub const MIN_EXCEEDANCES: usize = 20;

/// Below so many exceedances the errors by the law of large numbers say little.
pub const FEW_EXCEEDANCES: usize = 100;

/// A generalised Pareto law.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpd {
    /// Shape: negative with an endpoint, 0 for the exponential law, positive for a power law.
    pub xi: f64,
    /// Scale, in the unit of the exceedances.
    pub sigma: f64,
}

impl Gpd {
    /// Where the law ends, in the unit of the exceedances; from `xi = 0` on it does not.
    pub fn endpoint(&self) -> Option<f64> {
        (self.xi < 0.0).then(|| -self.sigma / self.xi)
    }

    /// Minus the logarithm of `P(Y > y)`, for `y >= 0`; infinite from the endpoint on.
    fn cumulative_hazard(&self, y: f64) -> f64 {
        let w = y / self.sigma;
        let u = self.xi * w;
        match u {
            u if u <= -1.0 => f64::INFINITY,
            // No digit of w is lost, and u may have underflowed.
            u if u.abs() < 1e-17 => w,
            u => u.ln_1p() / self.xi,
        }
    }

    /// Logarithm of the density at `y`; minus infinity outside `[0, endpoint]`.
    pub fn log_density(&self, y: f64) -> f64 {
        if y < 0.0 || self.endpoint().is_some_and(|end| y > end) {
            return f64::NEG_INFINITY;
        }
        // The uniform law has its density at the endpoint too, where the general formula has 0 times infinity.
        let fall = if self.xi == -1.0 { 0.0 } else { (1.0 + self.xi) * self.cumulative_hazard(y) };
        -self.sigma.ln() - fall
    }

    /// `P(Y <= y)`.
    pub fn cdf(&self, y: f64) -> f64 {
        if y <= 0.0 { 0.0 } else { -(-self.cumulative_hazard(y)).exp_m1() }
    }

    /// The value that `Y` does not exceed with probability `p`, for `0 <= p <= 1`.
    pub fn quantile(&self, p: f64) -> f64 {
        let hazard = -(-p).ln_1p();
        if self.xi.abs() < 1e-17 { self.sigma * hazard } else { self.sigma * (self.xi * hazard).exp_m1() / self.xi }
    }
}

/// Standard errors of a fit, from the observed information.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StandardErrors {
    /// Of `xi`.
    pub xi: f64,
    /// Of `sigma`, in its unit.
    pub sigma: f64,
    /// Of the logarithm of `sigma`.
    pub log_sigma: f64,
    /// Covariance of `xi` and the logarithm of `sigma`.
    pub covariance: f64,
    /// Of the endpoint, in the unit of the exceedances, by the delta method; from `xi = 0` on there is none. Where `xi` is within some
    /// two errors of 0, the endpoint is far from normal: the bootstrap says more.
    pub endpoint: Option<f64>,
}

/// Why a fit has no standard errors.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum NoErrors {
    /// The fit is at `xi = -1`.
    #[error(
        "the likelihood is highest at the boundary xi = -1, where it has a slope and no curvature: xi is about -1 or below it, or the sample is too small"
    )]
    Boundary,
    /// The likelihood is not regular.
    #[error(
        "xi is {xi:.3}; up to xi = -0.5 the likelihood is not regular and its curvature says nothing about the error of the estimate"
    )]
    Irregular {
        /// The estimate.
        xi: f64,
    },
    /// The likelihood is flat.
    #[error("the likelihood has no curvature at its maximum")]
    Flat,
}

/// Probability-weighted moments, the second estimate (Hosking and Wallis 1987, with the unbiased moments).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pwm {
    /// The law.
    pub gpd: Gpd,
    /// Standard error of `xi` by the asymptotic formula; from `xi = 0.5` on there is none.
    pub xi_error: Option<f64>,
    /// The largest exceedance lies beyond the estimated endpoint: the estimate contradicts the sample.
    pub infeasible: bool,
}

/// What is to be told about a fit besides its numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Note {
    /// Fewer than [`FEW_EXCEEDANCES`].
    Few {
        /// The number of exceedances.
        n: usize,
    },
    /// There are no standard errors.
    NoErrors(NoErrors),
    /// Under nine tenths of the values are distinct.
    Ties {
        /// The number of exceedances.
        n: usize,
        /// The number of distinct ones.
        distinct: usize,
    },
    /// The moments have no finite variance, or no mean.
    MomentsUnstable {
        /// The moments' estimate.
        xi: f64,
    },
    /// The largest exceedance lies beyond the endpoint that the moments give.
    MomentsInfeasible,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Note::Few { n } => write!(
                f,
                "only {n} exceedances: errors and p-values hold for many, at least some {FEW_EXCEEDANCES}; take a lower quantile or more anchors"
            ),
            Note::NoErrors(why) => write!(f, "no standard errors: {why}"),
            Note::Ties { n, distinct } => write!(
                f,
                "only {distinct} of {n} exceedances are distinct: look for duplicated images, or for similarities kept in low precision"
            ),
            Note::MomentsUnstable { xi } => write!(
                f,
                "probability-weighted moments give xi = {xi:.3}: from 0.5 on their error is unbounded, and near 1 they cannot follow; use the likelihood's"
            ),
            Note::MomentsInfeasible => write!(
                f,
                "the largest exceedance lies beyond the endpoint by probability-weighted moments; use the likelihood's"
            ),
        }
    }
}

/// A generalised Pareto law fitted to exceedances.
#[derive(Debug, Clone, PartialEq)]
pub struct GpdFit {
    /// The law of maximum likelihood over `xi >= -1`.
    pub gpd: Gpd,
    /// The number of exceedances.
    pub n: usize,
    /// The number of distinct ones.
    pub distinct: usize,
    /// The log-likelihood at the maximum.
    pub log_likelihood: f64,
    /// The maximum is at `xi = -1`, the least that is allowed.
    pub at_boundary: bool,
    /// Where the maximum is at `xi = -1`: the highest local maximum inside, if there is one. Small samples of laws far from `xi = -1`
    /// may have both, and then this is the likelier to be near.
    pub inside: Option<Gpd>,
    /// Standard errors, or why there are none.
    pub errors: std::result::Result<StandardErrors, NoErrors>,
    /// The exponential law of maximum likelihood: the sample's mean is its scale.
    pub exponential: Gpd,
    /// The log-likelihood of the exponential law.
    pub exponential_log_likelihood: f64,
    /// The test of `xi = 0`.
    pub exponential_test: LikelihoodRatio,
    /// The second estimate.
    pub moments: Pwm,
}

impl GpdFit {
    /// Fits exceedances: positive numbers in any order and unit.
    ///
    /// # Numerics
    /// The order of the values changes no bit of the result. Another unit changes what has a unit, and the rest by rounding only.
    /// `xi` is found to about nine digits or better. Nothing cancels near `xi = 0`.
    ///
    /// # Errors
    /// [`Error::Input`] for fewer than [`MIN_EXCEEDANCES`] values, for values that are not positive and finite, where all are the
    /// same, and where they spread over so many orders of magnitude that the likelihood's maximum is not found.
    pub fn of(exceedances: &[f64]) -> Result<GpdFit> {
        if let Some(index) = exceedances.iter().position(|y| !(y.is_finite() && *y > 0.0)) {
            let what = match exceedances[index] {
                0.0 => "0, which exceeds nothing: keep only values above the threshold".to_string(),
                y if y < 0.0 => {
                    format!("{y}, below the threshold: subtract the threshold, and keep only what is above it")
                }
                y => format!("{y}: find where it comes from, or leave it out"),
            };
            return Err(Error::Input(format!(
                "exceedance {index}, counted from 0, is {what}; expected positive finite numbers"
            )));
        }
        let n = exceedances.len();
        if n < MIN_EXCEEDANCES {
            return Err(Error::Input(format!(
                "a generalised Pareto fit got {}; expected at least {MIN_EXCEEDANCES}; take a lower quantile or more anchors",
                counted(n, "exceedance")
            )));
        }
        let mut sorted = exceedances.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let largest = sorted[n - 1];
        if sorted[0] == largest {
            return Err(Error::Input(format!(
                "all {n} exceedances are {largest}; expected values that differ; look for duplicated images, or for similarities cut off at a cap"
            )));
        }
        let distinct = 1 + sorted.windows(2).filter(|pair| pair[0] != pair[1]).count();
        // From here on in units of the largest.
        sorted.iter_mut().for_each(|y| *y /= largest);
        let profile = Profile::new(&sorted);
        let (best, inside) = profile.maximum();
        let count = n as f64;
        let unit = count * largest.ln();
        let exponential = -profile.mean.ln() - 1.0;
        // The exponential law is one of those over which the maximum is taken.
        if best.height.is_nan() || best.height < exponential - 1e-9 * (1.0 + exponential.abs()) {
            return Err(Error::Input(format!(
                "the {n} exceedances spread over too many orders of magnitude to be fitted, from {:e} to {largest:e}: no law better than the exponential one was found; expected exceedances of one scale; look for values of another unit, or fit their logarithms",
                exceedances.iter().copied().fold(f64::INFINITY, f64::min)
            )));
        }
        let errors = match best.at_boundary {
            true => Err(NoErrors::Boundary),
            false if best.gpd.xi <= -0.5 => Err(NoErrors::Irregular { xi: best.gpd.xi }),
            false => standard_errors(&sorted, best.gpd, largest),
        };
        let scaled = |law: Gpd| Gpd { sigma: law.sigma * largest, ..law };
        let moments = moments(&sorted);
        Ok(GpdFit {
            gpd: scaled(best.gpd),
            n,
            distinct,
            log_likelihood: count * best.height - unit,
            at_boundary: best.at_boundary,
            inside: inside.map(scaled),
            errors,
            exponential: scaled(Gpd { xi: 0.0, sigma: profile.mean }),
            exponential_log_likelihood: count * exponential - unit,
            exponential_test: LikelihoodRatio::of(count * best.height, count * exponential),
            moments: Pwm { gpd: scaled(moments.gpd), ..moments },
        })
    }

    /// Both ends of the 95 % interval of `xi` by the normal law; none without standard errors.
    pub fn xi_95(&self) -> Option<[f64; 2]> {
        let half = Z_95 * self.errors.ok()?.xi;
        Some([self.gpd.xi - half, self.gpd.xi + half])
    }

    /// What a reader of the numbers has to know.
    pub fn notes(&self) -> Vec<Note> {
        let mut notes = Vec::new();
        if self.n < FEW_EXCEEDANCES {
            notes.push(Note::Few { n: self.n });
        }
        if self.distinct * 10 < self.n * 9 {
            notes.push(Note::Ties { n: self.n, distinct: self.distinct });
        }
        if let Err(why) = self.errors {
            notes.push(Note::NoErrors(why));
        }
        if self.moments.gpd.xi >= 0.5 {
            notes.push(Note::MomentsUnstable { xi: self.moments.gpd.xi });
        }
        if self.moments.infeasible {
            notes.push(Note::MomentsInfeasible);
        }
        notes
    }
}

/// A maximum of the likelihood, in units of the largest exceedance.
struct Maximum {
    gpd: Gpd,
    /// The log-likelihood, a value.
    height: f64,
    at_boundary: bool,
}

/// The likelihood's profile along `tau = theta y_max > -1`, of ascending values in `(0, 1]` that end with 1.
struct Profile<'a> {
    values: &'a [f64],
    mean: f64,
}

/// The profile at one `tau`.
#[derive(Clone, Copy)]
struct Point {
    tau: f64,
    /// The best `xi`: the mean of `log(1 + tau z)`.
    xi: f64,
    /// The best `sigma`: `xi / tau`, and at 0 its limit.
    sigma: f64,
    /// Of the sign of the profile's slope, and without its zero at `tau = 0`.
    slope: f64,
}

impl Point {
    /// The log-likelihood, a value.
    fn height(&self) -> f64 {
        -self.sigma.ln() - self.xi - 1.0
    }
}

/// `|tau|` times the mean from which sums of plain logarithms are exact enough to look for brackets, and to find a root to ten digits.
const PLAIN_FOR_BRACKETS: f64 = 1e-5;
const PLAIN_FOR_ROOTS: f64 = 1e-3;

impl<'a> Profile<'a> {
    fn new(values: &'a [f64]) -> Profile<'a> {
        Profile { values, mean: values.iter().sum::<f64>() / values.len() as f64 }
    }

    /// The highest of the local maxima with `xi > -1` and of the uniform law, and where that is the uniform one, the other.
    fn maximum(&self) -> (Maximum, Option<Gpd>) {
        let mut inside: Option<Point> = None;
        let mut consider = |left: Point, right: Point| {
            if left.slope > 0.0 && right.slope <= 0.0 {
                let point = self.root(left, right);
                if point.xi > -1.0 && inside.is_none_or(|best| point.height() > best.height()) {
                    inside = Some(point);
                }
            }
        };
        let middle = self.at(0.0, PLAIN_FOR_BRACKETS);
        let mut right = middle;
        // Towards -1, in steps of the distance from it. Where that is far below the gap under the largest value, only the largest value's
        // logarithm still changes, and with it alone the profile falls until xi = -1. Between xi = -1 and the pole it rises to the uniform law.
        let gap = 1.0 - self.values.iter().rev().find(|z| **z < 1.0).copied().unwrap_or(0.0);
        let mut distance = 0.5;
        while distance > gap / 1024.0 && distance > f64::EPSILON {
            let left = self.at(distance - 1.0, PLAIN_FOR_BRACKETS);
            if left.xi <= -1.0 {
                break;
            }
            consider(left, right);
            right = left;
            distance *= 0.5;
        }
        // Towards infinity, up to Grimshaw's bound, beyond which the profile falls.
        let least = self.values[0];
        let bound = 2.0 * (self.mean - least) / least / least;
        let (mut left, mut tau) = (middle, 0.25);
        while left.tau < bound && tau < 1e300 {
            let right = self.at(tau, PLAIN_FOR_BRACKETS);
            consider(left, right);
            left = right;
            tau *= 4.0;
        }
        let gpd = |point: Point| Gpd { xi: point.xi, sigma: point.sigma };
        match inside {
            // The uniform law's height is 0.
            Some(point) if point.height() >= 0.0 => {
                (Maximum { gpd: gpd(point), height: point.height(), at_boundary: false }, None)
            }
            lower => {
                let uniform = Gpd { xi: -1.0, sigma: 1.0 };
                (Maximum { gpd: uniform, height: 0.0, at_boundary: true }, lower.map(gpd))
            }
        }
    }

    /// The stationary point between two points of different slopes: false position with halved weights (Illinois), and a bisection
    /// in every fourth step.
    fn root(&self, left: Point, right: Point) -> Point {
        let again = |p: Point| self.at(p.tau, PLAIN_FOR_ROOTS);
        let (mut a, mut b) = (again(left), again(right));
        // More exactly, a slope of rounding alone may have the other sign.
        if a.slope <= 0.0 || b.slope > 0.0 {
            return if a.slope <= 0.0 { a } else { b };
        }
        for step in 1..200 {
            if b.slope == 0.0 || (b.tau - a.tau).abs() <= 4.0 * f64::EPSILON * b.tau.abs().max(a.tau.abs()) {
                break;
            }
            let tau = match step % 4 {
                0 => 0.5 * (a.tau + b.tau),
                _ => b.tau - b.slope * (b.tau - a.tau) / (b.slope - a.slope),
            };
            let c = self.at(tau, PLAIN_FOR_ROOTS);
            let small = (c.tau - b.tau).abs() <= 1e-14 * c.tau.abs();
            if (c.slope > 0.0) != (b.slope > 0.0) {
                a = b;
            } else {
                a.slope *= 0.5;
            }
            b = c;
            if small && step % 4 != 0 {
                break;
            }
        }
        b
    }

    /// The profile at `tau`. Where `|tau|` times the mean is at least `plain`, logarithms of products serve.
    fn at(&self, tau: f64, plain: f64) -> Point {
        let n = self.values.len() as f64;
        // So that the scale of the slope's numbers is that of the values, or of logarithms.
        let scale = (tau * tau).max(0.25);
        // Sixteen factors of at least 2^-53 and of at most 2^63 have a product that is a normal number.
        if tau.abs() * self.mean >= plain && tau < 9e18 {
            let (logs, ratios) = plain_sums(self.values, tau);
            let (xi, ratio) = (logs / n, tau * ratios / n);
            return Point { tau, xi, sigma: xi / tau, slope: (xi - ratio - xi * ratio) / (tau * tau) * scale };
        }
        let (mut logs, mut ratios, mut squares) = (0.0, 0.0, 0.0);
        let (small, large) = self.values.split_at(self.values.partition_point(|z| (tau * z).abs() < SERIES_BELOW));
        for &z in small {
            let u = tau * z;
            let (ratio, square) = (z / (1.0 + u), z * z * series(u));
            // log(1 + u) is u / (1 + u) and the remainder.
            logs += tau * ratio + tau * tau * square;
            ratios += ratio;
            squares += square;
        }
        for &z in large {
            let u = tau * z;
            logs += u.ln_1p();
            ratios += z / (1.0 + u);
            squares += z * z * remainder(u);
        }
        let (xi, ratio) = (logs / n, ratios / n);
        let sigma = if tau == 0.0 { self.mean } else { xi / tau };
        Point { tau, xi, sigma, slope: (squares / n - sigma * ratio) * scale }
    }
}

/// The sums of `log(1 + tau z)` and of `z / (1 + tau z)`. One logarithm serves sixteen values, by their product.
fn plain_sums(values: &[f64], tau: f64) -> (f64, f64) {
    const LANES: usize = 4;
    const FACTORS: usize = 16;
    let mut blocks = values.chunks_exact(LANES * FACTORS);
    let (mut logs, mut ratios) = (0.0, [0.0; LANES]);
    for block in &mut blocks {
        let mut products = [1.0; LANES];
        for row in block.chunks_exact(LANES) {
            for lane in 0..LANES {
                let factor = 1.0 + tau * row[lane];
                products[lane] *= factor;
                ratios[lane] += row[lane] / factor;
            }
        }
        logs += products.iter().map(|p: &f64| p.ln()).sum::<f64>();
    }
    let mut ratios: f64 = ratios.iter().sum();
    for &z in blocks.remainder() {
        logs += (tau * z).ln_1p();
        ratios += z / (1.0 + tau * z);
    }
    (logs, ratios)
}

/// Where series take over from formulas that cancel, and their terms: the next one is below 1e-17.
const SERIES_BELOW: f64 = 0.05;
const TERMS: i32 = 13;

/// `(log(1 + u) - u / (1 + u)) / u^2`.
fn remainder(u: f64) -> f64 {
    if u.abs() < SERIES_BELOW { series(u) } else { (u.ln_1p() - u / (1.0 + u)) / u / u }
}

/// [`remainder`] of small numbers.
fn series(u: f64) -> f64 {
    (0..TERMS).rev().fold(0.0, |sum, j| f64::from(j + 1) / f64::from(j + 2) - u * sum)
}

/// The derivative of [`remainder`].
fn remainder_slope(u: f64) -> f64 {
    if u.abs() < SERIES_BELOW {
        (1..=TERMS).rev().fold(0.0, |sum, j| -f64::from(j * (j + 1)) / f64::from(j + 2) - u * sum)
    } else {
        (1.0 / (1.0 + u).powi(2) - 2.0 * remainder(u)) / u
    }
}

/// Standard errors by the inverse of the observed information in `(xi, log sigma)`, at a maximum; `unit` is that of `values`.
fn standard_errors(values: &[f64], law: Gpd, unit: f64) -> std::result::Result<StandardErrors, NoErrors> {
    let Gpd { xi, sigma } = law;
    let (mut shape, mut mixed, mut scale) = (0.0, 0.0, 0.0);
    for &z in values {
        let w = z / sigma;
        let over = 1.0 + xi * w;
        let square = (w / over) * (w / over);
        shape -= w * w * w * remainder_slope(xi * w) + square;
        mixed -= (w / over - w * w / over) / over;
        scale += (1.0 + xi) * w / over / over;
    }
    let determinant = shape * scale - mixed * mixed;
    if !(determinant > 1e-12 * shape * scale && shape > 0.0 && determinant.is_finite()) {
        return Err(NoErrors::Flat);
    }
    let (xi_2, log_2, covariance) = (scale / determinant, shape / determinant, -mixed / determinant);
    // The endpoint -sigma / xi has the derivatives -endpoint / xi and endpoint.
    let endpoint = law.endpoint().map(|end| end * unit * (xi_2 / xi / xi - 2.0 * covariance / xi + log_2).sqrt());
    Ok(StandardErrors {
        xi: xi_2.sqrt(),
        sigma: sigma * unit * log_2.sqrt(),
        log_sigma: log_2.sqrt(),
        covariance,
        endpoint,
    })
}

/// Probability-weighted moments of ascending values that differ, the largest being 1.
fn moments(values: &[f64]) -> Pwm {
    let n = values.len();
    let count = n as f64;
    let mean = values.iter().sum::<f64>() / count;
    // Half of Gini's mean difference, summed from what does not cancel.
    let twice = values.iter().enumerate().map(|(i, z)| (2.0 * i as f64 - (count - 1.0)) * z).sum::<f64>();
    let half_difference = twice / count / (count - 1.0);
    // With a0 = mean and a1 = (mean - half_difference) / 2: xi = 2 - a0 / (a0 - 2 a1), sigma = 2 a0 a1 / (a0 - 2 a1).
    let ratio = mean / half_difference;
    let gpd = Gpd { xi: 2.0 - ratio, sigma: ratio * (mean - half_difference) };
    let k = -gpd.xi;
    let variance =
        (1.0 + k) * (2.0 + k).powi(2) * (1.0 + k + 2.0 * k * k) / ((1.0 + 2.0 * k) * (3.0 + 2.0 * k)) / count;
    Pwm {
        gpd,
        xi_error: (gpd.xi < 0.5).then(|| variance.sqrt()),
        infeasible: gpd.endpoint().is_some_and(|end| end < 1.0),
    }
}

#[cfg(test)]
mod tests;
