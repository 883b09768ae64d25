//! Everything that is measured on a search: ranks, cross-entropy, and with the files beside this one what depends on the number of
//! negatives, the temperature and the training.

use super::finite_k::{FiniteK, Generalisation, Sample, training};
use super::input::{Checks, Input, Negatives};
use super::passes::{Pairs, Sums};
use super::temperature::{self, Temperatures};
use super::weince::{self, Tail, TailLogit};
use crate::error::{Error, Result};
use crate::eval::rows::product_error;
use crate::evt::Z_95;
use crate::theory::bounds;
use crate::theory::estimators::{
    AnchorEstimate, Corpus, Estimates, Ranked, Retrieval as Certified, RowSums, Search, recall, recall_at_size,
};
use crate::theory::random::Random;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;

/// The temperature unless another is given: that of SimCSE, and of sentence-transformers' losses.
pub const DEFAULT_TAU: f64 = 0.05;

/// Resamples of the anchors, where there are not too many anchors for as many.
const RESAMPLES: usize = 1000;

/// What is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The temperature.
    pub tau: f64,
    /// The number of negatives in training, where it is known.
    pub k: Option<usize>,
    /// Ranks at which recall is measured.
    pub ranks: Vec<usize>,
    /// Biases, in nats, for which a number of negatives is recommended.
    pub eps: Vec<f64>,
    /// Decides what is drawn: anchors, items, permutations and resamples.
    pub seed: u64,
    /// The most anchors and items of what is measured on a sample.
    pub sample: [usize; 2],
    /// The tail's logit, where the training had one.
    pub weince: Option<TailLogit>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            tau: DEFAULT_TAU,
            k: None,
            ranks: vec![1, 5, 10, 100],
            eps: vec![0.1, 0.01],
            seed: 0,
            sample: [1500, 20_000],
            weince: None,
        }
    }
}

impl Settings {
    /// Refuses what cannot be measured.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn validate(&self) -> Result<()> {
        let refuse = |message: String| Err(Error::Config(message));
        if !(1e-3..=1e3).contains(&self.tau) {
            return refuse(format!(
                "the temperature is {}; expected a number from 0.001 to 1000, such as 0.1",
                self.tau
            ));
        }
        if self.ranks.is_empty() || self.ranks.contains(&0) {
            return refuse(format!("ranks are {:?}; expected numbers from 1, such as 1,5,10", self.ranks));
        }
        if let Some(eps) = self.eps.iter().find(|eps| !(**eps > 0.0 && **eps <= 10.0)) {
            return refuse(format!("a bias is {eps}; expected nats from above 0 to 10, such as 0.1"));
        }
        if self.k == Some(0) {
            return refuse("the number of negatives is 0; expected at least 1".into());
        }
        if self.sample.iter().any(|s| *s < 2) {
            return refuse(format!("the sample is {:?}; expected at least 2 anchors and 2 items", self.sample));
        }
        Ok(())
    }
}

/// A figure with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Figure {
    /// The figure.
    pub value: f64,
    /// Both ends.
    pub interval: [f64; 2],
}

/// Recall at a rank.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecallAt {
    /// The rank.
    pub rank: usize,
    /// The share of anchors whose positive is among as many.
    #[serde(flatten)]
    pub figure: Figure,
    /// The least that the softmax loss allows.
    pub floor: f64,
}

/// Recall among a random part of the corpus.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecallBySize {
    /// The number of items.
    pub items: usize,
    /// Recall at rank 1.
    pub recall_at_1: f64,
    /// Recall at rank 10.
    pub recall_at_10: f64,
}

/// Ranks of the positives, counted from 1; items that are as near as the positive count against it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Retrieval {
    /// Recall at the ranks that were asked for.
    pub recall: Vec<RecallAt>,
    /// Mean reciprocal rank.
    pub mrr: Figure,
    /// Median rank.
    pub median_rank: Figure,
    /// Anchors with items exactly as near as the positive: duplicates, or the positive itself is among the items.
    pub anchors_with_ties: usize,
    /// Anchors with an item at a cosine of 1, to rounding: duplicates, or the anchor itself is among the items.
    pub anchors_among_items: usize,
    /// Recall by the size of the corpus.
    pub by_size: Vec<RecallBySize>,
}

/// The cross-entropy of the search softmax, in nats: what InfoNCE approaches with many negatives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CrossEntropy {
    /// The estimate of R_inf.
    pub r_inf: Figure,
    /// Its standard error, of two samples: anchors and items.
    pub se: f64,
    /// How R_inf was estimated.
    pub method: &'static str,
    /// The mean over anchors with the items' own mean for Z: too low.
    pub plug_in: f64,
    /// By the delta method.
    pub delta: f64,
    /// By the jackknife.
    pub jackknife: f64,
    /// The share of anchors of which one item has more than half of the softmax.
    pub dominated: f64,
    /// The standard error that a fixed corpus would have.
    pub se_anchors_only: f64,
    /// The share of the items in the squared standard error.
    pub hubness_share: f64,
    /// The mean softmax log-loss log(1 + Σ e^{(s - s⁺)/τ}) among all items.
    pub loss: f64,
    /// e^{-loss}: the mean reciprocal rank is never below it.
    pub mrr_floor: f64,
    /// The mean softmax probability of the positive.
    pub probability: f64,
    /// The median of 1/Σp²: how many items share an anchor's softmax.
    pub median_n2: f64,
    /// The mean of KL(Q^ || π^), in nats: how far the softmax is from treating all items alike.
    pub divergence: f64,
    /// With classes known: the search cross-entropy itself; none where no anchor has an item of its class.
    pub labelled: Option<Labelled>,
}

/// What classes tell.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Labelled {
    /// The mean of CrossEnt[M^_m || Q^_m], whose M^_m is uniform on the items of the anchor's class.
    pub ece: f64,
    /// The mean of KL(M^_m || Q^_m).
    pub kl: f64,
    /// Anchors without an item of their class: for them M^_m is uniform on all.
    pub without: usize,
    /// The number of classes among the items, which is E|dM/dπ|² where anchors have their law.
    pub classes: usize,
}

/// All that is measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Analysis {
    /// What was seen in the embeddings.
    pub checks: Checks,
    /// The temperature that all but the temperature curve is measured at.
    pub tau: f64,
    /// Ranks.
    pub retrieval: Retrieval,
    /// Cross-entropy.
    pub cross_entropy: CrossEntropy,
    /// By the number of negatives.
    pub finite_k: FiniteK,
    /// By the temperature.
    pub temperature: Temperatures,
    /// Held-out against training, and certificates.
    pub generalisation: Generalisation,
    /// WEINCE's logit.
    pub weince: Option<Tail>,
    /// Inequalities that hold for every set of unit rows and are broken here: a bug.
    pub violations: Vec<String>,
}

/// Measures a search; `train` are pairs and items from training, of the same encoder. `progress` gets the name of what is done, and how
/// much of it.
///
/// # Errors
/// Settings that cannot be served; embeddings of which nothing can be measured.
pub fn analyse(
    input: &Input,
    train: Option<&Input>,
    settings: &Settings,
    progress: &mut dyn FnMut(&'static str, u64, u64),
) -> Result<Analysis> {
    settings.validate()?;
    let sample = Sample::draw(input, settings)?;
    let tau_cal = temperature::calibrated(&sample)?;
    let tau = settings.tau;
    let (search, ranked, odd) = passes(input, tau, progress)?;
    let estimates = search.finish()?;
    let mut violations = Vec::new();
    let retrieval = retrieval(input, &ranked, odd, settings)?;
    let cross_entropy = cross_entropy(input, &search, &estimates, &ranked, tau)?;
    deterministic(&search, &ranked, &retrieval, &cross_entropy, tau, &mut violations);
    progress("parts of the sample", 0, 3);
    let (train, k) = training(&sample, train, settings)?;
    let others: Vec<usize> = settings.k.into_iter().chain([k]).collect();
    let finite_k = FiniteK::of(&sample, &search, tau, &others, settings)?;
    progress("parts of the sample", 1, 3);
    let temperature = Temperatures::of(&sample, tau_cal, &mut violations)?;
    progress("parts of the sample", 2, 3);
    let generalisation = Generalisation::of(input, &finite_k, train.as_ref(), k, tau, settings.seed)?;
    let weince = settings.weince.as_ref().map(|logit| weince::tail(&sample, logit, tau)).transpose()?;
    Ok(Analysis {
        checks: input.checks.clone(),
        tau,
        retrieval,
        cross_entropy,
        finite_k,
        temperature,
        generalisation,
        weince,
        violations,
    })
}

/// Both passes over all pairs: what every anchor says, its rank, and how many anchors have ties, and themselves among the items.
fn passes(
    input: &Input,
    tau: f64,
    progress: &mut dyn FnMut(&'static str, u64, u64),
) -> Result<(Search, Vec<Ranked>, [usize; 2])> {
    let all = input.corpus.rows() as u64;
    let pairs = pairs(input, tau);
    let sums = pairs.sums(&mut |done| progress("items, pass 1 of 2", done, all))?;
    let (search, ranked) = search(&pairs, &sums, input, &mut |done| progress("items, pass 2 of 2", done, all))?;
    let one = 1.0 - 1e-6 - product_error(input.anchors.dim());
    let themselves = sums.iter().filter(|s| f64::from(s.nearest) >= one).count();
    Ok((search, ranked, [sums.iter().filter(|s| s.ties > 0).count(), themselves]))
}

pub(super) fn pairs(input: &Input, tau: f64) -> Pairs<'_> {
    Pairs {
        anchors: &input.anchors,
        positives: &input.positives,
        own: input.own.as_deref(),
        corpus: &input.corpus,
        inverse_temperature: 1.0 / tau,
    }
}

/// The second pass, and what both say of each anchor.
pub(super) fn search(
    pairs: &Pairs,
    sums: &[Sums],
    input: &Input,
    progress: &mut dyn FnMut(u64),
) -> Result<(Search, Vec<Ranked>)> {
    let shares = pairs.shares(sums, progress)?;
    let c = pairs.inverse_temperature;
    let items = input.items() as f64;
    let mut ranked = Vec::with_capacity(sums.len());
    let mut anchors = Vec::with_capacity(sums.len());
    for ((sum, others), positive) in sums.iter().zip(&shares.others).zip(&input.positives) {
        let row = RowSums {
            items,
            ln_mass: sum.ln_mass(c),
            squares: sum.squares / (sum.mass * sum.mass),
            others: *others,
            mean_logit: sum.moment / sum.mass + f64::from(sum.nearest) * c,
            largest: 1.0 / sum.mass,
        };
        ranked.push(Ranked::new(sum.above as usize, row.ln_mass - positive * c));
        anchors.push(AnchorEstimate::from_sums(&row, positive * c));
    }
    let same = match input.negatives {
        Negatives::Corpus => Corpus::Independent,
        // A sample of the anchors has no anchor for every item.
        _ if anchors.len() != shares.items.len() => Corpus::Independent,
        _ => Corpus::SameItems,
    };
    Ok((Search::of(same, anchors, shares.items), ranked))
}

fn retrieval(
    input: &Input,
    ranked: &[Ranked],
    [ties, themselves]: [usize; 2],
    settings: &Settings,
) -> Result<Retrieval> {
    let n = ranked.len();
    let ranks: Vec<usize> = ranked.iter().map(|r| r.rank).collect();
    let replicates = (200_000_000 / n).clamp(100, RESAMPLES);
    let figures = |ranks: &mut Vec<usize>| -> Vec<f64> {
        let mut found: Vec<f64> = settings.ranks.iter().map(|r| share(ranks, *r)).collect();
        found.push(ranks.iter().map(|r| 1.0 / *r as f64).sum::<f64>() / n as f64);
        found.push(median(ranks));
        found
    };
    let whole = figures(&mut ranks.clone());
    let resampled: Vec<Vec<f64>> = (0..replicates)
        .into_par_iter()
        .map(|replicate| {
            let mut random = Random::new(settings.seed, replicate as u64);
            figures(&mut (0..n).map(|_| ranks[random.below(n)]).collect())
        })
        .collect();
    let figure = |place: usize| {
        let mut values: Vec<f64> = resampled.iter().map(|r| r[place]).collect();
        values.sort_unstable_by(f64::total_cmp);
        let cut = (0.025 * (replicates - 1) as f64).floor() as usize;
        Figure { value: whole[place], interval: [values[cut], values[replicates - 1 - cut]] }
    };
    let certified = Certified::of(ranked).ok_or_else(|| Error::Input("no anchors".into()))?;
    let recall_at = |(place, rank): (usize, &usize)| RecallAt {
        rank: *rank,
        figure: figure(place),
        floor: certified.recall_floor(*rank).max(0.0),
    };
    let mut harder: BTreeMap<usize, f64> = BTreeMap::new();
    ranks.iter().for_each(|r| *harder.entry(r - 1).or_default() += 1.0 / n as f64);
    let m = input.items();
    let at_size = |size: usize, rank: usize| -> Result<f64> {
        harder.iter().map(|(h, share)| Ok(share * recall_at_size(&[*h], m, size, rank)?)).sum()
    };
    let by_size = sizes(m)
        .into_iter()
        .map(|items| Ok(RecallBySize { items, recall_at_1: at_size(items, 1)?, recall_at_10: at_size(items, 10)? }));
    Ok(Retrieval {
        recall: settings.ranks.iter().enumerate().map(recall_at).collect(),
        mrr: figure(settings.ranks.len()),
        median_rank: figure(settings.ranks.len() + 1),
        anchors_with_ties: ties,
        anchors_among_items: themselves,
        by_size: by_size.collect::<Result<_>>()?,
    })
}

fn share(ranks: &[usize], rank: usize) -> f64 {
    ranks.iter().filter(|r| **r <= rank).count() as f64 / ranks.len() as f64
}

fn median(ranks: &mut [usize]) -> f64 {
    let n = ranks.len();
    let (lower, middle, _) = ranks.select_nth_unstable(n / 2);
    let middle = *middle as f64;
    if n % 2 == 1 { middle } else { lower.iter().max().map_or(middle, |l| (*l as f64 + middle) / 2.0) }
}

/// 1, 2 and 5 of each decade from 10 on, and m.
fn sizes(m: usize) -> Vec<usize> {
    let decades = (1..).map(|e| 10_usize.pow(e)).take_while(|d| *d < m);
    decades.flat_map(|d| [d, 2 * d, 5 * d]).filter(|size| *size < m).chain([m]).collect()
}

fn cross_entropy(
    input: &Input,
    search: &Search,
    estimates: &Estimates,
    ranked: &[Ranked],
    tau: f64,
) -> Result<CrossEntropy> {
    let certified = Certified::of(ranked).ok_or_else(|| Error::Input("no anchors".into()))?;
    // Cosines in float32 are off by some 1e-7, all of them perhaps alike.
    let se = estimates.variances.standard_error().max(1e-7 / tau);
    let value = estimates.r_inf();
    let mut n2: Vec<f64> = search.anchors().iter().map(|a| 1.0 / a.concentration).collect();
    n2.sort_unstable_by(f64::total_cmp);
    Ok(CrossEntropy {
        r_inf: Figure { value, interval: [value - Z_95 * se, value + Z_95 * se] },
        se,
        method: if estimates.jackknife_is_reliable() { "jackknife" } else { "delta method" },
        plug_in: estimates.plug_in,
        delta: estimates.delta,
        jackknife: estimates.jackknife,
        dominated: estimates.dominated,
        se_anchors_only: estimates.anchors_only,
        hubness_share: if se > 0.0 { estimates.variances.hubness() / (se * se) } else { 0.0 },
        loss: certified.loss,
        mrr_floor: certified.mrr_floor(),
        probability: certified.probability,
        median_n2: n2[n2.len() / 2],
        divergence: search.anchors().iter().map(|a| a.divergence).sum::<f64>() / n2.len() as f64,
        labelled: labelled(input, search, tau)?,
    })
}

/// By the sums of the unit rows of each class: an anchor's mean cosine with a class is its product with the class's mean.
fn labelled(input: &Input, search: &Search, tau: f64) -> Result<Option<Labelled>> {
    let Some(labels) = &input.labels else { return Ok(None) };
    let (d, m) = (input.anchors.dim(), input.corpus.rows());
    let classes: BTreeMap<i64, usize> = labels.items.iter().map(|l| (*l, 0)).collect();
    let classes: BTreeMap<i64, usize> = classes.into_keys().zip(0..).collect();
    let mut sums = vec![0.0; classes.len() * d];
    let mut counts = vec![0usize; classes.len()];
    let mut total = vec![0.0; d];
    let unit = |rows: &crate::eval::rows::Rows, i: usize| -> Vec<f64> {
        let norm = rows.norms()[i];
        rows.values()[i * d..][..d].iter().map(|v| f64::from(*v) / norm).collect()
    };
    const BLOCK: usize = 4096;
    for begin in (0..m).step_by(BLOCK) {
        let rows = crate::eval::rows::Rows::new(input.corpus.read(begin..m.min(begin + BLOCK))?, d);
        for i in 0..rows.count() {
            let class = classes[&labels.items[begin + i]];
            counts[class] += 1;
            for ((sum, total), v) in sums[class * d..][..d].iter_mut().zip(&mut total).zip(unit(&rows, i)) {
                *sum += v;
                *total += v;
            }
        }
    }
    let (mut ece, mut kl, mut without) = (0.0, 0.0, 0);
    for (i, anchor) in search.anchors().iter().enumerate() {
        let row = unit(&input.anchors, i);
        let product = |sum: &[f64]| row.iter().zip(sum).map(|(a, b)| a * b).sum::<f64>();
        let class = classes.get(&labels.anchors[i]);
        // What is left out of the items of an anchor is left out of its class.
        let own = input.own.as_ref().map(|own| own[i] as usize);
        let own_cosine = match own {
            Some(own) => {
                let rows = crate::eval::rows::Rows::new(input.corpus.read(own..own + 1)?, d);
                Some((input.anchors.similarities(i, &rows, [0])[0], classes[&labels.items[own]]))
            }
            None => None,
        };
        let of_all = (product(&total) - own_cosine.map_or(0.0, |(s, _)| s), input.items());
        let of_class = class.map(|c| {
            let own = own_cosine.filter(|(_, own)| own == c);
            (product(&sums[c * d..][..d]) - own.map_or(0.0, |(s, _)| s), counts[*c] - usize::from(own.is_some()))
        });
        let (sum, count) = of_class.filter(|(_, count)| *count > 0).unwrap_or_else(|| {
            without += 1;
            of_all
        });
        let found = anchor.ln_z - sum / count as f64 / tau;
        ece += found;
        kl += found + (input.items() as f64 / count as f64).ln();
    }
    let n = search.anchors().len() as f64;
    if without == search.anchors().len() {
        return Ok(None);
    }
    Ok(Some(Labelled { ece: ece / n, kl: kl / n, without, classes: classes.len() }))
}

/// What holds for every sample (docs/theory.md 2 and 3), with room for the rounding of float32 cosines.
fn deterministic(
    search: &Search,
    ranked: &[Ranked],
    retrieval: &Retrieval,
    cross_entropy: &CrossEntropy,
    tau: f64,
    violations: &mut Vec<String>,
) {
    let slack = 1e-5 + 4e-6 / tau;
    if let Some(i) = ranked.iter().position(|r| (r.rank as f64).ln() > r.loss + slack) {
        let Ranked { rank, loss } = ranked[i];
        violations.push(format!("anchor {i}: rank {rank} is above e^loss = {:.3}", loss.exp()));
    }
    let (mrr, probability, floor) = (retrieval.mrr.value, cross_entropy.probability, cross_entropy.mrr_floor);
    if mrr < probability - slack || probability < floor - slack {
        violations
            .push(format!("mean reciprocal rank {mrr} >= mean probability {probability} >= e^-loss {floor} is broken"));
    }
    for RecallAt { rank, floor, .. } in &retrieval.recall {
        if recall(ranked, *rank) < floor - slack {
            violations.push(format!("recall at {rank} is below its floor {floor}"));
        }
    }
    divergences(search, tau, violations);
}

/// No softmax is further from the uniform law than its temperature allows.
pub(super) fn divergences(search: &Search, tau: f64, violations: &mut Vec<String>) {
    let (ceiling, slack) = (bounds::ceiling(1.0 / tau), 1e-5 + 4e-6 / tau);
    if let Some(a) = search.anchors().iter().find(|a| a.divergence > ceiling + slack || a.divergence < -slack) {
        violations.push(format!(
            "temperature {tau}: a softmax is {} nats from the uniform law; expected from 0 to {ceiling}",
            a.divergence
        ));
    }
}
