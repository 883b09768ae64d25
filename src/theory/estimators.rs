//! The theory's quantities from embeddings: docs/theory.md 2.
//!
//! An anchor comes as its logits `s_j / τ` to the items of a corpus, and the logit `s⁺ / τ` of its positive. All values are in
//! nats.

use super::bounds::{certificate, least_k, loss_range, splits};
use super::random::Random;
use super::special::{ln_gamma, log_sum_exp};
use crate::{Error, Result};

/// What one anchor says.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AnchorEstimate {
    /// log Z(x), by the mean over the corpus.
    pub ln_z: f64,
    /// log Z(x) - s⁺/τ: too low by v/(2m) in the mean.
    pub plug_in: f64,
    /// The same with v/(2m) added.
    pub delta: f64,
    /// The same by the jackknife over the corpus.
    pub jackknife: f64,
    /// The positive's weight e^{s⁺/τ}/Z.
    pub a: f64,
    /// The variance of the negatives' weights.
    pub v: f64,
    /// The largest softmax probability of a corpus item.
    pub largest: f64,
    /// Σ p², the inverse of the effective number N2.
    pub concentration: f64,
    /// KL(Q^||π^) = log m - H(p).
    pub divergence: f64,
}

fn finite(values: &[f64], name: &str) -> Result<()> {
    match values.iter().position(|v| !v.is_finite()) {
        Some(at) => Err(Error::Input(format!(
            "{name}: expected finite numbers, found {} at place {at}; are the embeddings finite and normalised?",
            values[at]
        ))),
        None => Ok(()),
    }
}

fn enough(found: usize, least: usize, what: &str) -> Result<()> {
    if found >= least { Ok(()) } else { Err(Error::Input(format!("{what}: expected at least {least}, found {found}"))) }
}

impl AnchorEstimate {
    /// From an anchor's logits.
    ///
    /// # Errors
    /// [`Error::Input`] of fewer than two items or numbers that are not finite.
    pub fn of(logits: &[f64], positive: f64) -> Result<AnchorEstimate> {
        enough(logits.len(), 2, "items of the corpus")?;
        finite(logits, "logits of an anchor")?;
        finite(&[positive], "logit of a positive")?;
        let m = logits.len() as f64;
        let lse = log_sum_exp(logits);
        let (mut squares, mut others, mut largest, mut mean_logit) = (0.0, 0.0, 0.0_f64, 0.0);
        for (place, x) in logits.iter().enumerate() {
            let p = (x - lse).exp();
            squares += p * p;
            largest = largest.max(p);
            mean_logit += p * x;
            // log(1 - p_j). One that has most of the mass is left out in earnest, because 1 - p loses its digits.
            others += if p < 0.5 {
                (-p).ln_1p()
            } else {
                let rest: f64 =
                    logits.iter().enumerate().filter(|(i, _)| *i != place).map(|(_, x)| (x - lse).exp()).sum();
                rest.ln()
            };
        }
        let sums = RowSums { items: m, ln_mass: lse, squares, others, mean_logit, largest };
        Ok(AnchorEstimate::from_sums(&sums, positive))
    }

    /// From sums over an anchor's logits, and the logit of its positive.
    pub fn from_sums(sums: &RowSums, positive: f64) -> AnchorEstimate {
        let RowSums { items: m, ln_mass, squares, others, mean_logit, largest } = *sums;
        let ln_z = ln_mass - m.ln();
        let v = (m * squares - 1.0) * m / (m - 1.0);
        let plug_in = ln_z - positive;
        let jackknife = plug_in - (m - 1.0) * ((1.0 / (m - 1.0)).ln_1p() + others / m);
        AnchorEstimate {
            ln_z,
            plug_in,
            delta: plug_in + v / (2.0 * m),
            jackknife,
            a: (positive - ln_z).exp(),
            v,
            largest,
            concentration: squares,
            divergence: mean_logit - ln_z,
        }
    }
}

/// Sums over the logits `x_j` of an anchor's items; `p` is their softmax.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowSums {
    /// The number of items, at least 2.
    pub items: f64,
    /// log Σ e^x.
    pub ln_mass: f64,
    /// Σ p².
    pub squares: f64,
    /// Σ log(1 - p).
    pub others: f64,
    /// Σ p x.
    pub mean_logit: f64,
    /// The largest p.
    pub largest: f64,
}

/// Where the corpus comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Corpus {
    /// Items independent of the pairs.
    Independent,
    /// The positives, or the anchors, of all pairs: item `i` belongs to anchor `i` and is left out there.
    SameItems,
}

/// The parts of the variance of an estimate of `R_inf`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Variances {
    /// The variance of the anchors' values; of same items, of the anchors' values with their own item's influence added.
    pub anchors: f64,
    /// The number of anchors.
    pub n: f64,
    /// The variance over corpus items of their soft hubness ψ_j = (m/n) Σ_i p_ij - 1; 0 of same items.
    pub items: f64,
    /// The number of corpus items of an anchor.
    pub m: f64,
    /// The mean square of what p_ij has beyond both, which the two above count twice.
    pub interaction: f64,
}

impl Variances {
    /// The standard error of two samples, of anchors and of corpus items. The share of the items is not below 0.
    pub fn standard_error(&self) -> f64 {
        (self.anchors / self.n + self.hubness()).sqrt()
    }

    /// The share of the corpus items in the squared standard error.
    pub fn hubness(&self) -> f64 {
        (self.items / self.m - self.interaction / (self.n * self.m)).max(0.0)
    }
}

/// Estimates over anchors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimates {
    /// Mean plug-in estimate of `R_inf`; its expectation is `R~_m`.
    pub plug_in: f64,
    /// By the delta method.
    pub delta: f64,
    /// By the jackknife.
    pub jackknife: f64,
    /// The share of anchors of which one item has more than half of the softmax. Above 1 % the jackknife is unreliable.
    pub dominated: f64,
    /// Mean of the positives' weights a.
    pub a: f64,
    /// Mean of the variances v.
    pub v: f64,
    /// What the standard error of [`Estimates::r_inf`] is made of.
    pub variances: Variances,
    /// The standard error of a fixed corpus: what is left out is often the larger part.
    pub anchors_only: f64,
}

impl Estimates {
    /// Whether the jackknife can be trusted.
    pub fn jackknife_is_reliable(&self) -> bool {
        self.dominated <= 0.01
    }

    /// The estimate of `R_inf`: by the jackknife, or where it is unreliable by the delta method.
    pub fn r_inf(&self) -> f64 {
        if self.jackknife_is_reliable() { self.jackknife } else { self.delta }
    }

    /// The coefficient of 1/k in `R_k`.
    pub fn c1(&self) -> f64 {
        self.a + self.c1_dcl()
    }

    /// The coefficient of 1/k in `R~_k`.
    pub fn c1_dcl(&self) -> f64 {
        -self.v / 2.0
    }
}

/// Collects anchors, one row of logits after the other; nothing of n × m is kept.
#[derive(Debug, Clone)]
pub struct Search {
    corpus: Corpus,
    anchors: Vec<AnchorEstimate>,
    /// Σ_i p_ij of every item.
    columns: Vec<f64>,
}

impl Search {
    /// Over a corpus of this many items.
    pub fn new(corpus: Corpus, items: usize) -> Search {
        Search { corpus, anchors: Vec::new(), columns: vec![0.0; items] }
    }

    /// Of anchors that are there, and what each item gathered of their softmax, Σ_i p_ij.
    pub fn of(corpus: Corpus, anchors: Vec<AnchorEstimate>, columns: Vec<f64>) -> Search {
        Search { corpus, anchors, columns }
    }

    /// The anchors so far.
    pub fn anchors(&self) -> &[AnchorEstimate] {
        &self.anchors
    }

    /// Adds the next anchor: its logits to all items, of same items its own one's too, which is not read.
    ///
    /// # Errors
    /// [`Error::Input`] of a row of another length, or what [`AnchorEstimate::of`] refuses.
    pub fn push(&mut self, logits: &[f64], positive: f64) -> Result<()> {
        self.push_with(logits, positive, AnchorEstimate::of)
    }

    /// [`Search::push`] with a function in the place of [`AnchorEstimate::of`].
    ///
    /// # Errors
    /// As there.
    pub fn push_with(
        &mut self,
        logits: &[f64],
        positive: f64,
        estimate: impl Fn(&[f64], f64) -> Result<AnchorEstimate>,
    ) -> Result<()> {
        let (row, items) = (self.anchors.len(), self.columns.len());
        if logits.len() != items || (self.corpus == Corpus::SameItems && row >= items) {
            return Err(Error::Input(format!(
                "anchor {row}: expected logits to {items} items{}, found {}",
                if self.corpus == Corpus::SameItems { ", and no more anchors than items" } else { "" },
                logits.len()
            )));
        }
        let kept: Vec<f64>;
        let (logits, own) = match self.corpus {
            Corpus::Independent => (logits, items),
            Corpus::SameItems => {
                kept = [&logits[..row], &logits[row + 1..]].concat();
                (&kept[..], row)
            }
        };
        let anchor = estimate(logits, positive)?;
        let lse = anchor.ln_z + (logits.len() as f64).ln();
        let columns = self.columns.iter_mut().enumerate().filter(|(j, _)| *j != own);
        for ((_, column), x) in columns.zip(logits) {
            *column += (x - lse).exp();
        }
        self.anchors.push(anchor);
        Ok(())
    }

    /// The estimates over all anchors.
    ///
    /// # Errors
    /// [`Error::Input`] of fewer than two anchors, or of same items where an item has had no anchor.
    pub fn finish(&self) -> Result<Estimates> {
        enough(self.anchors.len(), 2, "anchors")?;
        let n = self.anchors.len() as f64;
        let items = self.columns.len();
        let mean = |f: fn(&AnchorEstimate) -> f64| self.anchors.iter().map(f).sum::<f64>() / n;
        let dominated = mean(|a| f64::from(u8::from(a.largest > 0.5)));
        let chosen: fn(&AnchorEstimate) -> f64 = if dominated <= 0.01 { |a| a.jackknife } else { |a| a.delta };
        let values: Vec<f64> = self.anchors.iter().map(chosen).collect();
        let anchors_only = (variance(&values) / n).sqrt();
        let variances = match self.corpus {
            Corpus::Independent => {
                let m = items as f64;
                let hubness: Vec<f64> = self.columns.iter().map(|c| c * m / n - 1.0).collect();
                let of_hubs = hubness.iter().map(|h| h * h).sum::<f64>() / m;
                let interaction = m * mean(|a| a.concentration) - 1.0 - of_hubs;
                Variances { anchors: variance(&values), n, items: variance(&hubness), m, interaction }
            }
            Corpus::SameItems => {
                if self.anchors.len() != items {
                    return Err(Error::Input(format!(
                        "search among the same items: expected an anchor for each of {items} items, found {}",
                        self.anchors.len()
                    )));
                }
                let influence: Vec<f64> = values.iter().zip(&self.columns).map(|(l, c)| l + c - 1.0).collect();
                Variances { anchors: variance(&influence), n, items: 0.0, m: n - 1.0, interaction: 0.0 }
            }
        };
        Ok(Estimates {
            plug_in: mean(|a| a.plug_in),
            delta: mean(|a| a.delta),
            jackknife: mean(|a| a.jackknife),
            dominated,
            a: mean(|a| a.a),
            v: mean(|a| a.v),
            variances,
            anchors_only,
        })
    }

    /// The number of negatives that these anchors recommend for a bias of at most `eps`; None where 2^62 does not suffice. It is
    /// no certificate, because weights and variances are estimates; `tau` is the temperature of the logits.
    pub fn recommended_k(&self, tau: f64, eps: f64) -> Option<u64> {
        let n = self.anchors.len() as f64;
        let above = |k: f64| self.anchors.iter().map(|a| (a.a / k).ln_1p()).sum::<f64>() / n;
        let below = |k: f64| {
            let at = |eta: f64| {
                let terms = self.anchors.iter().map(|a| super::bounds::lower_at(a.v, 1.0 / tau + a.ln_z, k, eta));
                terms.sum::<f64>() / n
            };
            splits().map(at).fold(f64::INFINITY, f64::min)
        };
        if self.anchors.is_empty() { None } else { least_k(eps, above, below) }
    }
}

/// The sample variance, with divisor n - 1; 0 of fewer than two values.
pub fn variance(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    if n < 2.0 {
        return 0.0;
    }
    let mean = values.iter().sum::<f64>() / n;
    values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0)
}

/// One anchor's unbiased estimates at one number of negatives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CurvePoint {
    /// Of `R_k`.
    pub risk: f64,
    /// Of `R~_k`, without the positive in the denominator.
    pub dcl: f64,
}

/// One anchor's estimates at every `k` of `ks`, averaged over the disjoint blocks of `k` items in random permutations of its
/// corpus: a U-statistic, unbiased where the corpus is independent of the pairs.
///
/// Blocks are summed each for itself: differences of running sums would lose those that a single large item dwarfs.
///
/// # Errors
/// [`Error::Input`] where a `k` is 0 or above the number of items, or nothing is to be permuted.
pub fn curve(
    logits: &[f64],
    positive: f64,
    ks: &[usize],
    permutations: usize,
    random: &mut Random,
) -> Result<Vec<CurvePoint>> {
    finite(logits, "logits of an anchor")?;
    enough(permutations, 1, "permutations")?;
    if let Some(k) = ks.iter().find(|k| **k == 0 || **k > logits.len()) {
        return Err(Error::Input(format!(
            "numbers of negatives: expected each from 1 to the {} items of the corpus, found {k}",
            logits.len()
        )));
    }
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut weights: Vec<f64> = logits.iter().map(|x| (x - largest).exp()).collect();
    let own = (positive - largest).exp();
    let mut points = vec![CurvePoint { risk: 0.0, dcl: 0.0 }; ks.len()];
    for _ in 0..permutations {
        random.shuffle(&mut weights);
        for (point, &k) in points.iter_mut().zip(ks) {
            let blocks = weights.chunks_exact(k);
            let share = 1.0 / (blocks.len() * permutations) as f64;
            for block in blocks {
                let sum: f64 = block.iter().sum();
                point.risk += (own + sum).ln() * share;
                point.dcl += sum.ln() * share;
            }
        }
    }
    for (point, &k) in points.iter_mut().zip(ks) {
        let offset = largest - (k as f64).ln() - positive;
        point.risk += offset;
        point.dcl += offset;
    }
    Ok(points)
}

/// The slope of a decay in the number of negatives, in log-log.
#[derive(Debug, Clone, PartialEq)]
pub struct Slope {
    /// The slope.
    pub slope: f64,
    /// Its standard error by the bootstrap over anchors.
    pub se: f64,
    /// The numbers of negatives that it is of.
    pub ks: Vec<usize>,
    /// Their weights (mean/SE)².
    pub weights: Vec<f64>,
}

/// The weighted least-squares slope of ln y on ln k.
pub fn log_slope(ks: &[usize], values: &[f64], weights: &[f64]) -> f64 {
    let total: f64 = weights.iter().sum();
    let x: Vec<f64> = ks.iter().map(|k| (*k as f64).ln()).collect();
    let mean = |v: &[f64]| v.iter().zip(weights).map(|(v, w)| v * w).sum::<f64>() / total;
    let y: Vec<f64> = values.iter().map(|v| v.ln()).collect();
    let (x0, y0) = (mean(&x), mean(&y));
    let (mut xy, mut xx) = (0.0, 0.0);
    for ((x, y), w) in x.iter().zip(&y).zip(weights) {
        xy += w * (x - x0) * (y - y0);
        xx += w * (x - x0).powi(2);
    }
    xy / xx
}

/// The slope test: `rows` has a value an anchor and `k`, whose mean over anchors decays in `k`. Only numbers of negatives from
/// `least` on whose mean is more than five standard errors above 0 take part; None where fewer than two of them do.
pub fn slope_test(rows: &[Vec<f64>], ks: &[usize], least: f64, resamples: usize, random: &mut Random) -> Option<Slope> {
    let n = rows.len();
    let column = |j: usize| rows.iter().map(|r| r[j]).collect::<Vec<f64>>();
    let (mut used, mut weights, mut means) = (Vec::new(), Vec::new(), Vec::new());
    for (j, &k) in ks.iter().enumerate() {
        let values = column(j);
        let mean = values.iter().sum::<f64>() / n as f64;
        let ratio = mean / (variance(&values) / n as f64).sqrt();
        if k as f64 >= least && ratio > 5.0 {
            used.push(j);
            weights.push(ratio * ratio);
            means.push(mean);
        }
    }
    if used.len() < 2 {
        return None;
    }
    let kept: Vec<usize> = used.iter().map(|&j| ks[j]).collect();
    let slopes: Vec<f64> = (0..resamples)
        .map(|_| {
            let mut sums = vec![0.0; used.len()];
            for _ in 0..n {
                let row = &rows[random.below(n)];
                sums.iter_mut().zip(&used).for_each(|(s, &j)| *s += row[j]);
            }
            log_slope(&kept, &sums, &weights)
        })
        .filter(|s| s.is_finite())
        .collect();
    Some(Slope { slope: log_slope(&kept, &means, &weights), se: variance(&slopes).sqrt(), ks: kept, weights })
}

/// The temperature at which the search softmax finds the positives' mean score: the minimum of `R_inf` in 1/τ, which is convex.
/// `scores` are n × m, row by row. None where the minimum is not at an inverse temperature within [0.1, 200].
///
/// # Errors
/// [`Error::Input`] where the shapes do not fit or a number is not finite.
pub fn calibrated_temperature(scores: &[f64], positives: &[f64]) -> Result<Option<f64>> {
    let n = positives.len();
    if n == 0 || scores.is_empty() || !scores.len().is_multiple_of(n) {
        return Err(Error::Input(format!(
            "scores for the temperature: expected a row of them for each of {n} positives, found {} scores",
            scores.len()
        )));
    }
    finite(scores, "scores")?;
    finite(positives, "scores of the positives")?;
    let target = positives.iter().sum::<f64>() / n as f64;
    let excess = |c: f64| {
        let found: f64 = scores
            .chunks_exact(scores.len() / n)
            .map(|row| {
                let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let (mut mass, mut sum) = (0.0, 0.0);
                for s in row {
                    let w = (c * (s - largest)).exp();
                    mass += w;
                    sum += w * s;
                }
                sum / mass
            })
            .sum();
        found / n as f64 - target
    };
    let (mut low, mut high) = (0.1, 200.0);
    if excess(low) > 0.0 || excess(high) < 0.0 {
        return Ok(None);
    }
    for _ in 0..50 {
        let middle = f64::midpoint(low, high);
        if excess(middle) < 0.0 {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(Some(2.0 / (low + high)))
}

/// The rank of an anchor's positive, counted from 1, ties against it, and its loss log(1 + Σ e^{(s_j - s⁺)/τ}).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranked {
    /// One more than the number of items that score at least as high.
    pub rank: usize,
    /// The softmax log-loss: never below log rank.
    pub loss: f64,
}

impl Ranked {
    /// Of the number of items that score at least as high as the positive, and of log Σ e^{(s_j - s⁺)/τ}.
    pub fn new(above: usize, ln: f64) -> Ranked {
        Ranked { rank: 1 + above, loss: ln.max(0.0) + (-ln.abs()).exp().ln_1p() }
    }
}

/// Ranks one anchor's positive.
pub fn ranked(logits: &[f64], positive: f64) -> Ranked {
    let above = logits.iter().filter(|x| **x >= positive).count();
    Ranked::new(above, log_sum_exp(logits) - positive)
}

/// Retrieval over anchors, with what the losses certify.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retrieval {
    /// Mean reciprocal rank.
    pub mrr: f64,
    /// Mean probability of the positive, e^{-loss}: at most the mean reciprocal rank.
    pub probability: f64,
    /// Mean loss.
    pub loss: f64,
}

impl Retrieval {
    /// Over ranked anchors; None of none.
    pub fn of(ranked: &[Ranked]) -> Option<Retrieval> {
        let n = ranked.len() as f64;
        let mean = |f: fn(&Ranked) -> f64| ranked.iter().map(f).sum::<f64>() / n;
        (n > 0.0).then(|| Retrieval {
            mrr: mean(|r| 1.0 / r.rank as f64),
            probability: mean(|r| (-r.loss).exp()),
            loss: mean(|r| r.loss),
        })
    }

    /// e^{-mean loss}: a floor of the mean reciprocal rank.
    pub fn mrr_floor(&self) -> f64 {
        (-self.loss).exp()
    }

    /// 1 - loss/log(r + 1): a floor of recall at `r`.
    pub fn recall_floor(&self, r: usize) -> f64 {
        1.0 - self.loss / (r as f64 + 1.0).ln()
    }
}

/// The share of anchors whose positive is among the first `r`.
pub fn recall(ranked: &[Ranked], r: usize) -> f64 {
    ranked.iter().filter(|x| x.rank <= r).count() as f64 / ranked.len() as f64
}

/// The recall at `r` that a random part of `size` of the corpus' `m` items would give: `harder` has the number of items an anchor
/// that score at least as high as its positive. Exact, by the hypergeometric law.
///
/// # Errors
/// [`Error::Input`] where the part is larger than the corpus, or an anchor has more such items than there are.
pub fn recall_at_size(harder: &[usize], m: usize, size: usize, r: usize) -> Result<f64> {
    if size > m {
        return Err(Error::Input(format!("part of the corpus: expected at most all {m} items, found {size}")));
    }
    if let Some(h) = harder.iter().find(|h| **h > m) {
        return Err(Error::Input(format!("items above a positive: expected at most all {m}, found {h}")));
    }
    let ln_choose = |n: usize, k: usize| {
        let f = |x: usize| ln_gamma(x as f64 + 1.0);
        f(n) - f(k) - f(n - k)
    };
    let all = ln_choose(m, size);
    let hit = |h: usize| {
        // Of the part's items, `t` are above the positive.
        let t = (size + h).saturating_sub(m)..r.min(h + 1).min(size + 1);
        t.map(|t| (ln_choose(h, t) + ln_choose(m - h, size - t) - all).exp()).sum::<f64>().min(1.0)
    };
    Ok(harder.iter().map(|h| hit(*h)).sum::<f64>() / harder.len().max(1) as f64)
}

/// With probability at least 1 - `delta`, `R_k` of a trained embedding is at most what this gives, of the losses
/// log(1 + Σ e^{(s_j - s⁺)/τ}) - log k of held-out tuples that share no item.
///
/// # Errors
/// [`Error::Input`] of fewer than two losses, or `delta` outside (0, 1).
pub fn held_out_bound(losses: &[f64], k: f64, tau: f64, delta: f64) -> Result<f64> {
    enough(losses.len(), 2, "held-out tuples")?;
    finite(losses, "held-out losses")?;
    if !(delta > 0.0 && delta < 1.0) {
        return Err(Error::Input(format!(
            "delta of the certificate: expected between 0 and 1, found {delta}; try 0.05"
        )));
    }
    let n = losses.len() as f64;
    Ok(losses.iter().sum::<f64>() / n + certificate(variance(losses), n, loss_range(tau, k), delta))
}

/// The cross-entropy of the search softmax from the true law of positives on the corpus, of an anchor whose positives are the
/// items that `same` marks: uniform on them, and on the whole corpus where there are none.
///
/// # Errors
/// [`Error::Input`] of lists of different lengths, or none.
pub fn labelled_cross_entropy(logits: &[f64], same: &[bool]) -> Result<f64> {
    if logits.len() != same.len() || logits.is_empty() {
        return Err(Error::Input(format!(
            "items of the corpus: expected as many labels as logits and at least one, found {} and {}",
            same.len(),
            logits.len()
        )));
    }
    let any = same.contains(&true);
    let chosen: Vec<f64> = logits.iter().zip(same).filter(|(_, same)| **same || !any).map(|(x, _)| *x).collect();
    Ok(log_sum_exp(logits) - (logits.len() as f64).ln() - chosen.iter().sum::<f64>() / chosen.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_logits(n: usize, scale: f64) -> Vec<f64> {
        let mut random = Random::new(5, n as u64);
        (0..n).map(|_| scale * random.between(-1.0, 1.0)).collect()
    }

    /// The jackknife as it is defined: every item left out once.
    fn plain_jackknife(logits: &[f64], positive: f64) -> f64 {
        let m = logits.len() as f64;
        let of = |x: &[f64]| log_sum_exp(x) - (x.len() as f64).ln() - positive;
        let left_out = |i: usize| of(&[&logits[..i], &logits[i + 1..]].concat());
        m * of(logits) - (m - 1.0) * (0..logits.len()).map(left_out).sum::<f64>() / m
    }

    #[test]
    fn the_jackknife_is_its_definition() {
        for (n, scale) in [(2, 1.0), (7, 3.0), (60, 14.0), (30, 60.0)] {
            let logits = some_logits(n, scale);
            let (got, expected) = (AnchorEstimate::of(&logits, 0.5).unwrap().jackknife, plain_jackknife(&logits, 0.5));
            assert!((got - expected).abs() < 1e-11 * expected.abs().max(1.0), "{n}: {got} {expected}");
        }
        // One item with all of the mass: finite all the same.
        assert!(AnchorEstimate::of(&[200.0, 0.0, 1.0], 0.0).unwrap().jackknife.is_finite());
    }

    #[test]
    fn an_anchor_by_plain_sums() {
        let logits = some_logits(9, 2.0);
        let got = AnchorEstimate::of(&logits, 0.7).unwrap();
        let m = 9.0;
        let z = logits.iter().map(|x| x.exp()).sum::<f64>() / m;
        let w: Vec<f64> = logits.iter().map(|x| x.exp() / z).collect();
        assert!((got.ln_z - z.ln()).abs() < 1e-14 && (got.a - 0.7_f64.exp() / z).abs() < 1e-14);
        assert!((got.v - variance(&w)).abs() < 1e-13 && (got.delta - got.plug_in - got.v / 18.0).abs() < 1e-15);
        let p: Vec<f64> = w.iter().map(|w| w / m).collect();
        assert!((got.divergence - p.iter().map(|p| p * (p * m).ln()).sum::<f64>()).abs() < 1e-14);
        assert!((got.concentration - p.iter().map(|p| p * p).sum::<f64>()).abs() < 1e-15);
    }

    #[test]
    fn the_curve_at_both_ends_and_between() {
        let logits = some_logits(6, 2.0);
        let mut random = Random::new(0, 0);
        let got = curve(&logits, 0.3, &[1, 2, 6], 4000, &mut random).unwrap();
        let loss = |x: &[f64]| ranked(x, 0.3).loss - (x.len() as f64).ln();
        let one = logits.iter().map(|x| loss(&[*x])).sum::<f64>() / 6.0;
        assert!((got[0].risk - one).abs() < 1e-12 && (got[2].risk - loss(&logits)).abs() < 1e-12);
        assert!((got[0].dcl - (logits.iter().sum::<f64>() / 6.0 - 0.3)).abs() < 1e-12);
        let (mut two, mut pairs) = (0.0, 0.0);
        for i in 0..6 {
            for j in 0..i {
                two += loss(&[logits[i], logits[j]]);
                pairs += 1.0;
            }
        }
        // Of 4000 permutations with three blocks each.
        assert!((got[1].risk - two / pairs).abs() < 0.02, "{} {}", got[1].risk, two / pairs);
        // A block that one large item dwarfs keeps its digits.
        let got = curve(&[80.0, 0.0], 0.0, &[1], 1, &mut random).unwrap();
        assert!((got[0].dcl - 40.0).abs() < 1e-12);
        assert!(
            curve(&logits, 0.3, &[7], 1, &mut random).is_err() && curve(&logits, 0.3, &[1], 0, &mut random).is_err()
        );
    }

    #[test]
    fn recall_by_all_parts_of_a_small_corpus() {
        let m = 6;
        for size in 0..=m {
            for h in 0..=m {
                for r in 1..=3 {
                    // The first h of the items are above the positive.
                    let parts: Vec<u32> = (0..1_u32 << m).filter(|p| p.count_ones() as usize == size).collect();
                    let hits = parts.iter().filter(|p| ((**p & ((1 << h) - 1)).count_ones() as usize) < r).count();
                    let got = recall_at_size(&[h], m, size, r).unwrap();
                    assert!((got - hits as f64 / parts.len() as f64).abs() < 1e-12, "{size} {h} {r}");
                }
            }
        }
        assert!(recall_at_size(&[1], 3, 4, 1).is_err() && recall_at_size(&[4], 3, 2, 1).is_err());
    }

    #[test]
    fn the_temperature_that_was_used_is_found() {
        // Scores on a grid, positives of the softmax itself.
        let scores: Vec<f64> = (0..500).map(|i| -1.0 + f64::from(i) / 250.0).collect();
        let found: f64 = scores.iter().map(|s| (7.0 * s).exp() * s).sum::<f64>()
            / scores.iter().map(|s| (7.0 * s).exp()).sum::<f64>();
        let tau = calibrated_temperature(&scores, &[found]).unwrap().unwrap();
        assert!((tau - 1.0 / 7.0).abs() < 1e-10, "{tau}");
        assert_eq!(calibrated_temperature(&scores, &[-0.9]).unwrap(), None);
        assert!(calibrated_temperature(&scores, &[0.1; 3]).is_err());
    }

    #[test]
    fn labels_give_the_cross_entropy() {
        let logits = [1.0, 2.0, 0.5];
        let z = (1.0_f64.exp() + 2.0_f64.exp() + 0.5_f64.exp()).ln() - 3.0_f64.ln();
        assert!((labelled_cross_entropy(&logits, &[true, false, true]).unwrap() - (z - 0.75)).abs() < 1e-14);
        assert!((labelled_cross_entropy(&logits, &[false; 3]).unwrap() - (z - 3.5 / 3.0)).abs() < 1e-14);
        assert!(labelled_cross_entropy(&logits, &[true]).is_err());
    }

    #[test]
    fn slopes_of_exact_powers() {
        let ks = [4, 8, 16, 32];
        let rows: Vec<Vec<f64>> =
            (0..50).map(|i| ks.iter().map(|k| (1.0 + 0.01 * f64::from(i % 5)) / f64::from(*k)).collect()).collect();
        let ks = ks.map(|k| k as usize);
        let slope = slope_test(&rows, &ks, 8.0, 50, &mut Random::new(0, 0)).unwrap();
        assert_eq!(slope.ks, [8, 16, 32]);
        assert!((slope.slope + 1.0).abs() < 1e-12 && slope.se < 1e-12);
        assert_eq!(slope_test(&rows, &ks, 32.0, 50, &mut Random::new(0, 0)), None);
    }

    #[test]
    fn wrong_input_says_what_was_expected() {
        let text = AnchorEstimate::of(&[1.0], 0.0).unwrap_err().to_string();
        assert_eq!(text, "items of the corpus: expected at least 2, found 1");
        assert!(AnchorEstimate::of(&[1.0, f64::NAN], 0.0).unwrap_err().to_string().contains("place 1"));
        let mut search = Search::new(Corpus::SameItems, 3);
        assert!(search.push(&[1.0, 2.0], 0.0).is_err() && search.finish().is_err());
        search.push(&[f64::NAN, 2.0, 3.0], 1.0).unwrap();
        search.push(&[1.0, 2.0, 3.0], 1.0).unwrap();
        assert!(search.finish().unwrap_err().to_string().contains("each of 3 items, found 2"));
        assert!(held_out_bound(&[1.0, 2.0], 4.0, 0.5, 0.0).is_err());
    }
}
