//! The similarities that a diagnosis is of: each anchor's to its negatives, drawn from rows of embeddings or given.
//!
//! A row is never compared with itself, nor an item with another view of itself: those are positives.

use crate::{Error, Result};
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rayon::prelude::*;
use std::collections::HashSet;

/// Up to so far beyond 1, a similarity is a cosine with rounding.
const ROUNDING: f64 = 1e-3;

/// Rows of unit length in float64.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    /// Row after row.
    data: Vec<f64>,
    width: usize,
    /// The least and the greatest length that the rows had.
    norms: [f64; 2],
}

impl Rows {
    /// Rows of `width` numbers, brought to unit length; `number` says which row of the source each is, for the errors.
    ///
    /// # Errors
    /// [`Error::NonFinite`] for a row that is not finite, [`Error::Input`] for one of length 0 and for rows that are not whole.
    pub fn new(mut data: Vec<f64>, width: usize, what: &str, number: impl Fn(usize) -> u64) -> Result<Rows> {
        if width == 0 || data.is_empty() || !data.len().is_multiple_of(width) {
            return Err(Error::Input(format!(
                "{what}: {} numbers are no rows of {width}; expected at least 1 row of at least 1 number",
                data.len()
            )));
        }
        let mut norms = [f64::INFINITY, 0.0_f64];
        for (index, row) in data.chunks_exact_mut(width).enumerate() {
            if let Some(place) = row.iter().position(|v| !v.is_finite()) {
                return Err(Error::NonFinite(format!(
                    "{what}: row {}, counted from 0, has {} at place {place}; expected finite numbers; look for what made it, or leave the row out",
                    number(index),
                    row[place]
                )));
            }
            // The largest entry is divided out first: squares can neither overflow nor vanish.
            let largest = row.iter().fold(0.0_f64, |m, v| m.max(v.abs()));
            if largest == 0.0 {
                return Err(Error::Input(format!(
                    "{what}: row {}, counted from 0, has the length 0 and no direction; expected rows that are not 0; leave the row out",
                    number(index)
                )));
            }
            row.iter_mut().for_each(|v| *v /= largest);
            let length = row.iter().map(|v| v * v).sum::<f64>().sqrt();
            row.iter_mut().for_each(|v| *v /= length);
            norms = [norms[0].min(length * largest), norms[1].max(length * largest)];
        }
        Ok(Rows { data, width, norms })
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.data.len() / self.width
    }

    /// Whether there is none; never.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The number of columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The least and the greatest length before they became unit ones.
    pub fn norms(&self) -> [f64; 2] {
        self.norms
    }

    fn row(&self, index: usize) -> &[f64] {
        &self.data[index * self.width..][..self.width]
    }

    /// The cosine of a row with one of others, at most 1.
    ///
    /// # Numerics
    /// Products of unit rows in float64: the shortfall `1 - s` has an absolute error of some 1e-16, ten digits at its floor of 1e-6.
    pub fn cosine(&self, index: usize, others: &Rows, other: usize) -> f64 {
        let (a, b) = (self.row(index), others.row(other));
        // Four sums, so that additions do not wait for each other.
        let mut sums = [0.0; 4];
        let (fours, rest) = (a.chunks_exact(4).zip(b.chunks_exact(4)), a.len() / 4 * 4);
        for (a, b) in fours {
            for lane in 0..4 {
                sums[lane] += a[lane] * b[lane];
            }
        }
        let tail: f64 = a[rest..].iter().zip(&b[rest..]).map(|(a, b)| a * b).sum();
        ((sums[0] + sums[1]) + (sums[2] + sums[3]) + tail).clamp(-1.0, 1.0)
    }
}

/// Which items of a set are anchors and which their negatives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draw {
    /// Numbers of the anchors' items.
    pub anchors: Vec<usize>,
    /// Numbers of the candidates' items.
    pub candidates: Vec<usize>,
    /// Negatives of every anchor: the first so many of the candidates that are not it.
    pub negatives: usize,
}

impl Draw {
    /// `anchors` and their `negatives` of `items`, in an order that `seed` decides. Where items suffice, none is both.
    ///
    /// # Errors
    /// [`Error::Input`] for fewer than 2 items, no anchor and no negative.
    pub fn of(items: usize, anchors: usize, negatives: usize, seed: u64) -> Result<Draw> {
        if items < 2 || anchors == 0 || negatives == 0 {
            return Err(Error::Input(format!(
                "{anchors} anchors with {negatives} negatives of {items} items: expected at least 1 anchor with at least 1 negative, and 2 items"
            )));
        }
        let mut order: Vec<usize> = (0..items).collect();
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        let negatives = negatives.min(items - 1);
        let candidates = order[items - (negatives + 1)..].to_vec();
        order.truncate(anchors);
        Ok(Draw { anchors: order, candidates, negatives })
    }
}

/// Similarities of anchors to their negatives.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// An anchor each.
    pub similarities: Vec<Vec<f64>>,
    /// Which candidate each is with; none where candidates are not known, such as columns of a matrix.
    pub candidates: Option<Vec<Vec<u32>>>,
    /// The number of negatives that were left out for having the anchor's class.
    pub left_out: usize,
    /// Anchors that are candidates of others too: a pair of them may be there both ways.
    pub overlap: usize,
}

impl Sample {
    /// Of the anchors' rows to the candidates' rows, as `draw` has them. With `labels`, of anchors and of candidates, those of the
    /// anchor's class are left out.
    ///
    /// # Errors
    /// [`Error::Input`] for rows of other numbers or widths, and for an anchor without negatives.
    pub fn of_rows(draw: &Draw, anchors: &Rows, candidates: &Rows, labels: Option<(&[i64], &[i64])>) -> Result<Sample> {
        if (anchors.len(), candidates.len()) != (draw.anchors.len(), draw.candidates.len())
            || anchors.width != candidates.width
        {
            return Err(Error::Input(format!(
                "rows [{}, {}] of anchors and [{}, {}] of candidates: expected {} and {}, as wide",
                anchors.len(),
                anchors.width,
                candidates.len(),
                candidates.width,
                draw.anchors.len(),
                draw.candidates.len()
            )));
        }
        let one = |a: usize| {
            let others = (0..draw.candidates.len()).filter(|c| draw.candidates[*c] != draw.anchors[a]);
            let others = others.take(draw.negatives);
            let kept = others.filter(|c| labels.is_none_or(|(own, theirs)| own[a] != theirs[*c]));
            kept.map(|c| (anchors.cosine(a, candidates, c), c as u32)).unzip()
        };
        let all: Vec<(Vec<f64>, Vec<u32>)> = (0..anchors.len()).into_par_iter().map(one).collect();
        let (similarities, numbers): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        if let Some(a) = similarities.iter().position(Vec::is_empty) {
            return Err(Error::Input(format!(
                "item {}, counted from 0, has no negatives left: all {} candidates are of its class; leave the labels out, or take more candidates",
                draw.anchors[a], draw.negatives
            )));
        }
        let kept: usize = similarities.iter().map(Vec::len).sum();
        let left_out = draw.negatives * anchors.len() - kept;
        let among: HashSet<usize> = draw.candidates.iter().copied().collect();
        let overlap = draw.anchors.iter().filter(|a| among.contains(a)).count();
        Ok(Sample { similarities, candidates: Some(numbers), left_out, overlap })
    }

    /// Of a matrix, a row an anchor. Values a little beyond 1 are rounding, and become 1.
    ///
    /// # Errors
    /// [`Error::NonFinite`] for NaN and infinity; [`Error::Input`] for what is no cosine, and for a square matrix of rows with themselves.
    pub fn of_matrix(mut rows: Vec<Vec<f64>>) -> Result<Sample> {
        if rows.is_empty() || rows[0].is_empty() {
            return Err(Error::Input("similarities: expected at least 1 anchor with at least 1 negative".into()));
        }
        for (a, row) in rows.iter_mut().enumerate() {
            for (c, s) in row.iter_mut().enumerate() {
                if !s.is_finite() {
                    return Err(Error::NonFinite(format!(
                        "similarities: row {a}, column {c}, both counted from 0, is {s}; expected finite numbers"
                    )));
                }
                if s.abs() > 1.0 + ROUNDING {
                    return Err(Error::Input(format!(
                        "similarities: row {a}, column {c}, both counted from 0, is {s}; expected cosines, from -1 to 1: divide by both lengths, and not by a temperature"
                    )));
                }
                *s = s.clamp(-1.0, 1.0);
            }
        }
        let square = rows.len() > 1 && rows.len() == rows[0].len();
        if square && rows.iter().enumerate().all(|(i, row)| row[i] >= 1.0 - 1e-6) {
            return Err(Error::Input(format!(
                "similarities: the diagonal of this square matrix [{0}, {0}] is 1: rows are compared with themselves, which are no negatives; leave the diagonal out, or give the embeddings",
                rows.len()
            )));
        }
        Ok(Sample { similarities: rows, candidates: None, left_out: 0, overlap: 0 })
    }

    /// The similarities as slices.
    pub fn slices(&self) -> Vec<&[f64]> {
        self.similarities.iter().map(Vec::as_slice).collect()
    }
}
