//! Diagnosis of the tail of similarities: what the hardest negatives of a frozen encoder look like, and what WEINCE makes of them.
//!
//! - [`sample`]: similarities of anchors to their negatives, from rows of embeddings or from a matrix.
//! - [`anchors`]: each anchor's tail as the loss sees it.
//! - [`winners`]: choices among candidates, for the link that they follow.
//! - [`words`]: what was found, in sentences, with what has to be known about it.
//! - [`record`]: the same as JSON and as a table.
//! - [`pictures`], [`page`]: figures with the numbers behind them, and the page that shows them.
//! - [`source`], [`diagnosis`]: from files and runs to all of it.
//!
//! The statistics themselves are in [`crate::evt`]. Same input and seed, same numbers, whatever the number of threads.

pub mod anchors;
pub mod diagnosis;
pub mod page;
pub mod pictures;
pub mod record;
pub mod sample;
pub mod source;
pub mod winners;
pub mod words;

pub use anchors::{AnchorTail, Anchors, gate_of};
pub use sample::{Draw, Rows, Sample};
pub use winners::{Link, Winner, Winners};

use crate::config::loss::WeinceConfig;
use crate::evt::pot::QUANTILE_GRID;
use crate::evt::{Bootstrap, GpdFit, Intervals, Peaks, SHORTFALL_FLOOR, gpd, pot};
use crate::{Error, Result};

/// What a diagnosis is told.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The quantile of all similarities above which they are peaks; in (0, 1).
    pub quantile: f64,
    /// How anchors are resampled; none leaves the intervals out.
    pub bootstrap: Option<Bootstrap>,
    /// The gate whose lambda is computed.
    pub gate: WeinceConfig,
    /// Whose gate that is, in words.
    pub gate_of: String,
    /// As many negatives of each anchor, at most, make up its own tail: those of a batch. Peaks have all.
    pub batch_negatives: Option<usize>,
}

/// Pairs of an anchor and a negative that are as good as one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Duplicates {
    /// Pairs with a shortfall of at most [`SHORTFALL_FLOOR`].
    pub pairs: usize,
    /// Anchors that are in one.
    pub anchors: usize,
}

/// How the peaks are spread over the candidates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hubs {
    /// How often two peaks share their candidate, in units of what chance gives: 1 without hubs.
    pub ratio: f64,
    /// Peaks of the candidate that has the most.
    pub largest: usize,
    /// Peaks of all.
    pub peaks: usize,
    /// Candidates that were there.
    pub candidates: usize,
}

/// What was found in one set of similarities.
#[derive(Debug, Clone, PartialEq)]
pub struct Analysis {
    /// Peaks over the threshold asked for, and their law.
    pub peaks: Peaks,
    /// What the peaks exceed it by, ascending.
    pub exceedances: Vec<f64>,
    /// Intervals over anchors, or why there are none.
    pub intervals: std::result::Result<Intervals, String>,
    /// The same peaks at other quantiles, or why there are none.
    pub grid: Vec<(f64, std::result::Result<Peaks, String>)>,
    /// Each anchor's own tail.
    pub anchors: Anchors,
    /// Whose gate those have.
    pub gate_of: String,
    /// The most negatives that an anchor has.
    pub negatives: usize,
    /// Negatives left out for their class.
    pub left_out: usize,
    /// Anchors that are candidates of others too.
    pub overlap: usize,
    /// Pairs that are as good as one.
    pub duplicates: Duplicates,
    /// How peaks are spread over candidates; none where candidates are not known.
    pub hubs: Option<Hubs>,
}

impl Analysis {
    /// Of a sample.
    ///
    /// # Errors
    /// As [`Peaks::over`]. What fails beside the main fit, such as intervals of a single anchor, is told in its place.
    pub fn of(sample: &Sample, settings: &Settings) -> Result<Analysis> {
        let slices = sample.slices();
        let peaks = Peaks::over(&slices, settings.quantile)?;
        let mut exceedances: Vec<f64> =
            slices.iter().flat_map(|s| *s).map(|s| s - peaks.threshold).filter(|y| *y > 0.0).collect();
        exceedances.sort_unstable_by(f64::total_cmp);
        let intervals = match &settings.bootstrap {
            Some(bootstrap) => bootstrap.intervals(&slices, settings.quantile).map_err(|e| e.to_string()),
            None => Err("none were asked for".to_string()),
        };
        let grid = Peaks::grid(&slices, &QUANTILE_GRID)?;
        let grid =
            QUANTILE_GRID.into_iter().zip(grid).map(|(q, found)| (q, found.map_err(|e| e.to_string()))).collect();
        let near = |s: &[f64]| s.iter().filter(|s| 1.0 - **s <= SHORTFALL_FLOOR).count();
        let counts: Vec<usize> = slices.iter().map(|s| near(s)).collect();
        Ok(Analysis {
            hubs: sample.candidates.as_ref().map(|numbers| Hubs::of(sample, numbers, peaks.threshold)),
            peaks,
            exceedances,
            intervals,
            grid,
            anchors: Anchors::of(&slices, settings.batch_negatives.unwrap_or(usize::MAX), &settings.gate)?,
            gate_of: settings.gate_of.clone(),
            negatives: slices.iter().map(|s| s.len()).max().unwrap_or(0),
            left_out: sample.left_out,
            overlap: sample.overlap,
            duplicates: Duplicates {
                pairs: counts.iter().sum(),
                anchors: counts.iter().filter(|count| **count > 0).count(),
            },
        })
    }

    /// What a reader of the peaks has to know, but for what is told better elsewhere: ties of pairs that are there
    /// both ways, and a fitted endpoint whose interval is there.
    pub fn notes(&self) -> Vec<pot::Note> {
        let mut notes = self.peaks.notes();
        notes.retain(|note| match note {
            pot::Note::Fit(gpd::Note::Ties { n, distinct }) => self.overlap == 0 || distinct * 2 < *n,
            pot::Note::BeyondOne { .. } => self.intervals.is_err(),
            _ => true,
        });
        notes
    }

    /// Both ends of the interval of `xi`: over anchors, else by the fit's own errors.
    pub fn xi_interval(&self) -> Option<[f64; 2]> {
        self.intervals.as_ref().ok().map(|i| i.xi).or_else(|| self.peaks.fit.xi_95())
    }

    /// Both ends of the interval of the endpoint over anchors; none up to `xi = -0.5`, where the fitted endpoint hugs the largest
    /// similarity, which no resample exceeds.
    pub fn endpoint_interval(&self) -> Option<[f64; 2]> {
        self.intervals.as_ref().ok().map(|i| i.endpoint).filter(|_| self.peaks.fit.gpd.xi > words::HUGS)
    }

    /// The middle one of the anchors' tail indices.
    pub fn tail_index(&self) -> f64 {
        median(self.anchors.column(|t| t.index))
    }
}

impl Hubs {
    fn of(sample: &Sample, numbers: &[Vec<u32>], threshold: f64) -> Hubs {
        let mut counts: Vec<usize> = Vec::new();
        let mut there: Vec<bool> = Vec::new();
        for (similarities, numbers) in sample.similarities.iter().zip(numbers) {
            for (s, number) in similarities.iter().zip(numbers) {
                let place = *number as usize;
                if place >= counts.len() {
                    counts.resize(place + 1, 0);
                    there.resize(place + 1, false);
                }
                there[place] = true;
                counts[place] += usize::from(*s > threshold);
            }
        }
        let candidates = there.iter().filter(|there| **there).count();
        let peaks: usize = counts.iter().sum();
        let pairs = |n: usize| n as f64 * n.saturating_sub(1) as f64;
        let shared: f64 = counts.iter().map(|c| pairs(*c)).sum();
        // An anchor has a candidate once: two peaks of one anchor never share it, which chance does not know. With many anchors it
        // makes no difference.
        let ratio = if peaks < 2 { 1.0 } else { shared * candidates as f64 / pairs(peaks) };
        Hubs { ratio, largest: counts.iter().copied().max().unwrap_or(0), peaks, candidates }
    }
}

/// A fit to exceedances that are given.
///
/// # Errors
/// As [`GpdFit::of`]; a value that is not finite is [`Error::NonFinite`].
pub fn bare_fit(exceedances: &[f64]) -> Result<GpdFit> {
    match exceedances.iter().position(|y| !y.is_finite()) {
        Some(index) => Err(Error::NonFinite(format!(
            "exceedance {index}, counted from 0, is {}; expected positive finite numbers",
            exceedances[index]
        ))),
        None => GpdFit::of(exceedances),
    }
}

/// The value whose place is nearest to a share of the way through them in order; NaN of none.
pub fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    let last = values.len().saturating_sub(1) as f64;
    values.get((share * last).round() as usize).copied().unwrap_or(f64::NAN)
}

fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

#[cfg(test)]
mod tests;
