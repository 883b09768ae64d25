//! Peaks over threshold: from the similarities of many anchors to exceedances of a high quantile and their generalised Pareto fit.
//!
//! Similarities of one anchor depend on each other, so that intervals come from resampling whole anchors. A negative `xi` says that the
//! similarities end, not that they end at 1: the fitted endpoint and the tail index under the endpoint 1 are given beside it.

use super::gpd::{GpdFit, MIN_EXCEEDANCES};
use super::{SHORTFALL_FLOOR, counted, gpd};
use crate::{Error, Result};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rayon::prelude::*;
use std::fmt;
use std::sync::OnceLock;

/// The quantile above which similarities are peaks.
pub const QUANTILE: f64 = 0.99;

/// Quantiles at which a fit is looked at for stability.
pub const QUANTILE_GRID: [f64; 10] = [0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995];

/// The number of smallest shortfalls in the Hill estimate of one anchor.
pub const HILL_POINTS: usize = 64;

/// Below so many anchors, resampling them says little.
pub const FEW_ANCHORS: usize = 30;

/// Peaks over one threshold.
#[derive(Debug, Clone, PartialEq)]
pub struct Peaks {
    /// The quantile that the threshold is, from 0 to 1.
    pub quantile: f64,
    /// The threshold, a similarity.
    pub threshold: f64,
    /// The number of similarities.
    pub similarities: usize,
    /// The number of anchors.
    pub anchors: usize,
    /// The number of anchors that have a peak.
    pub anchors_with_peaks: usize,
    /// The law of what the peaks exceed the threshold by.
    pub fit: GpdFit,
    /// The tail index that the peaks give if similarities end at 1, by maximum likelihood: where `xi` is about `-1 / index`, the
    /// endpoint 1 agrees with the sample. None if the threshold is not below `1 - SHORTFALL_FLOOR`.
    pub hill: Option<Hill>,
}

impl Peaks {
    /// Of the similarities of each anchor to its negatives, above their common `quantile` (linear between order statistics, as NumPy's).
    ///
    /// # Errors
    /// [`Error::Input`] for a quantile outside `(0, 1)`, no anchors, an anchor without similarities, a similarity that is not finite,
    /// fewer than [`MIN_EXCEEDANCES`] peaks, and peaks that are all the same.
    pub fn over(anchors: &[&[f64]], quantile: f64) -> Result<Peaks> {
        let total = check(anchors, &[quantile])?;
        Tail::new(anchors, needed(total, quantile)).peaks(total, quantile)
    }

    /// The same at each of some quantiles, in their order; a quantile that leaves too few peaks has its own error.
    ///
    /// Above a threshold from which on the law holds, `xi`, the endpoint and [`Peaks::modified_scale`] no longer change but by chance.
    ///
    /// # Errors
    /// As [`Peaks::over`], for what concerns every quantile.
    pub fn grid(anchors: &[&[f64]], quantiles: &[f64]) -> Result<Vec<Result<Peaks>>> {
        let total = check(anchors, quantiles)?;
        let tail = Tail::new(anchors, quantiles.iter().map(|q| needed(total, *q)).max().unwrap_or(0));
        Ok(quantiles.iter().map(|q| tail.peaks(total, *q)).collect())
    }

    /// The largest similarity that the law allows; none from `xi = 0` on.
    pub fn endpoint(&self) -> Option<f64> {
        self.fit.gpd.endpoint().map(|end| self.threshold + end)
    }

    /// `sigma - xi threshold`, which does not depend on the threshold where the law holds.
    pub fn modified_scale(&self) -> f64 {
        self.fit.gpd.sigma - self.fit.gpd.xi * self.threshold
    }

    /// What a reader of the numbers has to know.
    pub fn notes(&self) -> Vec<Note> {
        let mut notes: Vec<Note> = self.fit.notes().into_iter().map(Note::Fit).collect();
        if self.anchors < FEW_ANCHORS {
            notes.push(Note::FewAnchors { anchors: self.anchors });
        }
        if let Some(end) = self.endpoint().filter(|end| *end > 1.0 + SHORTFALL_FLOOR) {
            notes.push(Note::BeyondOne { endpoint: end });
        }
        notes
    }
}

/// What is to be told about peaks besides their numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Note {
    /// About the fit.
    Fit(gpd::Note),
    /// Fewer than [`FEW_ANCHORS`].
    FewAnchors {
        /// The number of anchors.
        anchors: usize,
    },
    /// The fitted endpoint is no cosine.
    BeyondOne {
        /// The fitted endpoint.
        endpoint: f64,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Note::Fit(note) => note.fmt(f),
            Note::FewAnchors { anchors } => write!(
                f,
                "only {}: intervals by resampling anchors are too narrow below some {FEW_ANCHORS}; take more anchors",
                counted(*anchors, "anchor")
            ),
            Note::BeyondOne { endpoint } => write!(
                f,
                "the fitted endpoint {endpoint:.4} is more than any cosine: the law is only approximate at this threshold"
            ),
        }
    }
}

/// How to resample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bootstrap {
    /// The number of resamples.
    pub replicates: usize,
    /// The intervals' probability, such as 0.95.
    pub level: f64,
    /// The resamples are a function of it and of their number.
    pub seed: u64,
}

impl Default for Bootstrap {
    fn default() -> Bootstrap {
        Bootstrap { replicates: 1000, level: 0.95, seed: 0 }
    }
}

/// Intervals by resampling anchors: lower and upper end, by percentiles of the resamples that gave a fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Intervals {
    /// Of the threshold.
    pub threshold: [f64; 2],
    /// Of `xi`.
    pub xi: [f64; 2],
    /// Of `sigma`.
    pub sigma: [f64; 2],
    /// Of the largest similarity; infinite where resamples without an endpoint reach into it. Up to a fitted `xi = -0.5` it is not valid:
    /// the fitted endpoint hugs the largest similarity, and that of no resample is larger.
    pub endpoint: [f64; 2],
    /// Of `xi` by probability-weighted moments.
    pub moments_xi: [f64; 2],
    /// Standard deviation of `xi` over the resamples.
    pub xi_error: f64,
    /// Resamples that gave a fit.
    pub fitted: usize,
    /// Resamples that gave none: too few peaks, or equal ones.
    pub failed: usize,
    /// Resamples whose fit is at `xi = -1`.
    pub at_boundary: usize,
}

impl Bootstrap {
    /// Draws as many anchors as there are, with replacement, takes the quantile of their similarities and fits its peaks, and so on.
    ///
    /// # Numerics
    /// Resample `r` has the ChaCha8 stream `r` of the seed: the result depends on no number of threads. Up to `xi = -0.5` no
    /// resampling of this kind is known to cover; near `xi = -1` the share of fits at the boundary tells.
    ///
    /// # Errors
    /// As [`Peaks::over`]; [`Error::Input`] for fewer than 2 anchors, fewer than 20 resamples, a level outside `(0, 1)`, and where under
    /// half of the resamples give a fit.
    pub fn intervals(&self, anchors: &[&[f64]], quantile: f64) -> Result<Intervals> {
        let Bootstrap { replicates, level, seed } = *self;
        if replicates < 20 || !(level > 0.0 && level < 1.0) {
            return Err(Error::Input(format!(
                "a bootstrap got {replicates} replicates and the level {level}; expected at least 20 replicates and a level between 0 and 1, such as 0.95"
            )));
        }
        let total = check(anchors, &[quantile])?;
        if anchors.len() < 2 {
            return Err(Error::Input("a bootstrap over anchors got 1 anchor; expected at least 2, better 30".into()));
        }
        // Tells what is wrong with the sample itself.
        Peaks::over(anchors, quantile)?;
        let tail = Tail::new(anchors, 4 * needed(total, quantile) + 64);
        let whole = OnceLock::new();
        let one = |replicate: u64| {
            let weights = draw(anchors.len(), seed, replicate);
            let size = anchors.iter().zip(&weights).map(|(a, w)| a.len() * *w as usize).sum();
            // Where the anchors of the tail were not drawn, the quantile lies below it.
            let cut = tail
                .cut(&weights, size, quantile)
                .or_else(|| whole.get_or_init(|| Tail::new(anchors, total)).cut(&weights, size, quantile))?;
            GpdFit::of(&cut.exceedances).ok().map(|fit| (cut.threshold, fit))
        };
        let fits: Vec<(f64, GpdFit)> = (0..replicates as u64).into_par_iter().filter_map(one).collect();
        let fitted = fits.len();
        if fitted * 2 < replicates {
            return Err(Error::Input(format!(
                "only {fitted} of {replicates} resamples of the anchors gave a fit; expected at least half; the peaks belong to too few anchors: take more anchors or a lower quantile"
            )));
        }
        let interval = |value: &dyn Fn(&(f64, GpdFit)) -> f64| {
            let mut values: Vec<f64> = fits.iter().map(value).collect();
            values.sort_unstable_by(f64::total_cmp);
            // Outwards to a resample, so that nothing is taken between a number and infinity.
            let place = (1.0 - level) / 2.0 * (fitted - 1) as f64;
            [values[place.floor() as usize], values[fitted - 1 - place.floor() as usize]]
        };
        let mean = fits.iter().map(|f| f.1.gpd.xi).sum::<f64>() / fitted as f64;
        let squares: f64 = fits.iter().map(|f| (f.1.gpd.xi - mean).powi(2)).sum();
        Ok(Intervals {
            threshold: interval(&|f| f.0),
            xi: interval(&|f| f.1.gpd.xi),
            sigma: interval(&|f| f.1.gpd.sigma),
            endpoint: interval(&|f| f.1.gpd.endpoint().map_or(f64::INFINITY, |end| f.0 + end)),
            moments_xi: interval(&|f| f.1.moments.gpd.xi),
            xi_error: (squares / (fitted - 1) as f64).sqrt(),
            fitted,
            failed: replicates - fitted,
            at_boundary: fits.iter().filter(|f| f.1.at_boundary).count(),
        })
    }
}

/// How often each of `anchors` is drawn in a resample.
fn draw(anchors: usize, seed: u64, replicate: u64) -> Vec<u32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(replicate);
    let mut weights = vec![0; anchors];
    (0..anchors).for_each(|_| weights[rng.random_range(0..anchors)] += 1);
    weights
}

/// A tail index by Hill's estimate: `P(shortfall < u)` goes as `u` to the power of the index.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hill {
    /// The index `h`; where similarities end at 1, `xi = -1 / h`, and `2 h` is the dimension that the embeddings fill.
    pub index: f64,
    /// Its standard error if shortfalls are independent: the index over the root of the number of points.
    pub error: f64,
    /// The number of points.
    pub points: usize,
}

impl Hill {
    /// Of the `points` smallest of one anchor's shortfalls `1 - s`, in any order: `(r - 1) / sum log(d_(r+1) / d_(i))`.
    ///
    /// Shortfalls below [`SHORTFALL_FLOOR`] count as that.
    ///
    /// # Errors
    /// [`Error::Input`] for fewer than 2 points, fewer than `points + 1` shortfalls, one that is not a number, and where those points are
    /// all the same.
    pub fn of(shortfalls: &[f64], points: usize) -> Result<Hill> {
        if points < 2 || shortfalls.len() <= points {
            return Err(Error::Input(format!(
                "a Hill estimate from {points} points got {} shortfalls; expected at least 2 points and one shortfall more than points",
                shortfalls.len()
            )));
        }
        if let Some(index) = shortfalls.iter().position(|d| !d.is_finite()) {
            return Err(Error::Input(format!(
                "shortfall {index}, counted from 0, is {}; expected finite numbers",
                shortfalls[index]
            )));
        }
        let mut values: Vec<f64> = shortfalls.iter().map(|d| d.max(SHORTFALL_FLOOR)).collect();
        let (smaller, last, _) = values.select_nth_unstable_by(points, f64::total_cmp);
        let last = *last;
        // In a fixed order, so that the sum does not depend on that of the shortfalls.
        smaller.sort_unstable_by(f64::total_cmp);
        Hill::new(smaller.iter().map(|d| (last / d).ln()).sum(), points, (points - 1) as f64).ok_or_else(|| {
            Error::Input(format!(
                "the {} smallest shortfalls are all {last}; expected values that differ; look for duplicated images",
                points + 1
            ))
        })
    }

    fn new(logs: f64, points: usize, numerator: f64) -> Option<Hill> {
        let index = numerator / logs;
        (logs > 0.0).then(|| Hill { index, error: index / (points as f64).sqrt(), points })
    }

    /// How critical a link with the weight `lambda` on the endpoint coordinate and the slope `beta` is: `lambda beta / index`.
    ///
    /// From 0.5 on the weights of the negatives have no finite variance, from 1 on no finite mean.
    pub fn criticality(&self, lambda: f64, beta: f64) -> f64 {
        lambda * beta / self.index
    }
}

/// The number of similarities, after a look at them and at the quantiles.
fn check(anchors: &[&[f64]], quantiles: &[f64]) -> Result<usize> {
    if let Some(q) = quantiles.iter().find(|q| !(**q > 0.0 && **q < 1.0)) {
        return Err(Error::Input(format!(
            "the quantile is {q}; expected a number between 0 and 1, such as {QUANTILE}"
        )));
    }
    if anchors.is_empty() || anchors.len() > u32::MAX as usize {
        return Err(Error::Input(format!(
            "peaks over threshold got {} anchors; expected at least 1, and fewer than 2^32",
            anchors.len()
        )));
    }
    for (a, similarities) in anchors.iter().enumerate() {
        if similarities.is_empty() {
            return Err(Error::Input(format!(
                "anchor {a}, counted from 0, has no similarities; expected at least 1; leave the anchor out"
            )));
        }
        if let Some(index) = similarities.iter().position(|s| !s.is_finite()) {
            return Err(Error::Input(format!(
                "similarity {index} of anchor {a}, both counted from 0, is {}; expected finite numbers; look for NaN or infinity in the features",
                similarities[index]
            )));
        }
    }
    Ok(anchors.iter().map(|a| a.len()).sum())
}

/// How many of the largest of `total` values tell their quantile and what exceeds it.
fn needed(total: usize, quantile: f64) -> usize {
    total - (quantile * (total - 1) as f64).floor() as usize
}

/// The largest similarities, with their anchors' numbers, from the largest on.
struct Tail<'a> {
    anchors: &'a [&'a [f64]],
    top: Vec<(f64, u32)>,
}

/// What a quantile cuts off.
struct Cut {
    threshold: f64,
    /// What exceeds the threshold, less it, ascending.
    exceedances: Vec<f64>,
    /// The number of anchors that have one.
    anchors: usize,
}

impl<'a> Tail<'a> {
    /// At least the `depth` largest.
    fn new(anchors: &'a [&'a [f64]], depth: usize) -> Tail<'a> {
        let mut all: Vec<f64> = anchors.iter().flat_map(|a| a.iter().copied()).collect();
        let least = match all.len().checked_sub(depth) {
            Some(place) if place > 0 && depth > 0 => *all.select_nth_unstable_by(place, f64::total_cmp).1,
            _ => f64::NEG_INFINITY,
        };
        drop(all);
        let mut top: Vec<(f64, u32)> = Vec::new();
        for (number, similarities) in (0u32..).zip(anchors) {
            top.extend(similarities.iter().filter(|s| **s >= least).map(|s| (*s, number)));
        }
        top.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
        Tail { anchors, top }
    }

    fn peaks(&self, total: usize, quantile: f64) -> Result<Peaks> {
        let few = |found: usize, threshold: Option<f64>| {
            // Without ties as many as are needed but one exceed it.
            if let Some(threshold) = threshold.filter(|_| needed(total, quantile) > MIN_EXCEEDANCES) {
                let equal = self.top.iter().filter(|(value, _)| *value == threshold).count();
                return Error::Input(format!(
                    "{found} of {total} similarities exceed their {quantile} quantile, as {equal} are equal to it, {threshold}; expected at least {MIN_EXCEEDANCES} that exceed it; look for duplicated or collapsed embeddings, or for similarities cut off at a cap"
                ));
            }
            let most = 1.0 - MIN_EXCEEDANCES as f64 / total as f64;
            let what_to_try = match most {
                q if q > 0.5 => format!("take a quantile below {q:.4}, or more anchors"),
                _ => "take more anchors".to_string(),
            };
            Error::Input(format!(
                "{found} of {total} similarities exceed their {quantile} quantile; expected at least {MIN_EXCEEDANCES}; {what_to_try}"
            ))
        };
        let Some(cut) = self.cut(&vec![1; self.anchors.len()], total, quantile) else {
            return Err(few(0, None));
        };
        if cut.exceedances.len() < MIN_EXCEEDANCES {
            return Err(few(cut.exceedances.len(), Some(cut.threshold)));
        }
        let Cut { threshold, ref exceedances, anchors } = cut;
        let fit = GpdFit::of(exceedances).map_err(|error| match error {
            Error::Input(why) => {
                Error::Input(format!("peaks over the {quantile} quantile of similarities, {threshold}: {why}"))
            }
            other => other,
        })?;
        let reach = 1.0 - threshold;
        let hill = (reach > SHORTFALL_FLOOR).then(|| {
            let logs = exceedances.iter().map(|y| (reach / (reach - y).max(SHORTFALL_FLOOR)).ln()).sum();
            Hill::new(logs, exceedances.len(), exceedances.len() as f64)
        });
        Ok(Peaks {
            quantile,
            threshold,
            similarities: total,
            anchors: self.anchors.len(),
            anchors_with_peaks: anchors,
            fit,
            hill: hill.flatten(),
        })
    }

    /// Cuts the sample of `size` similarities that has each anchor as often as its weight says; none where the tail is too short.
    fn cut(&self, weights: &[u32], size: usize, quantile: f64) -> Option<Cut> {
        let place = quantile * (size - 1) as f64;
        let lower = place.floor() as usize;
        // Their places from the top, counted from 0.
        let (upper, lower) = (size - 1 - (lower + 1).min(size - 1), size - 1 - lower);
        let (mut passed, mut above) = (0, None);
        let mut below = None;
        for &(value, anchor) in &self.top {
            passed += weights[anchor as usize] as usize;
            if above.is_none() && passed > upper {
                above = Some(value);
            }
            if passed > lower {
                below = Some(value);
                break;
            }
        }
        let (above, below) = (above?, below?);
        let part = place.fract();
        // NumPy's interpolation, to the bit.
        let threshold =
            if part < 0.5 { below + (above - below) * part } else { above - (above - below) * (1.0 - part) };
        let mut exceedances = Vec::new();
        let mut seen = vec![false; weights.len()];
        for &(value, anchor) in self.top.iter().take_while(|(value, _)| *value > threshold) {
            let weight = weights[anchor as usize];
            seen[anchor as usize] |= weight > 0;
            exceedances.extend(std::iter::repeat_n(value - threshold, weight as usize));
        }
        exceedances.reverse();
        Some(Cut { threshold, exceedances, anchors: seen.iter().filter(|s| **s).count() })
    }
}

#[cfg(test)]
mod tests;
