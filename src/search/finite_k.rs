//! What is measured on a sample: the risks at a finite number of negatives, how fast they fall, how many negatives are enough, and held-out
//! against training.

use super::analysis::{Settings, pairs, search};
use super::input::{Checks, Input, Negatives};
use super::passes::Pairs;
use crate::error::{Error, Result};
use crate::eval::matrix::Matrix;
use crate::eval::rows::Rows;
use crate::evt::Z_95;
use crate::theory::bounds;
use crate::theory::estimators::{CurvePoint, Search, Slope, curve, held_out_bound, ranked, slope_test, variance};
use crate::theory::random::Random;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeSet;

/// Permutations of an anchor's items.
const PERMUTATIONS: usize = 4;
/// Resamples of the anchors for the errors of slopes.
const RESAMPLES: usize = 200;
/// Numbers of negatives below it do not take part in the test of slopes.
pub(super) const LEAST_K: f64 = 32.0;
/// Cosines of an anchor that are summed at once.
const TOGETHER: usize = 4;
/// The number of negatives that generalisation is measured at, where that in training is not known.
const DEFAULT_K: usize = 256;
/// The certificate's probability of being wrong.
const DELTA: f64 = 0.05;
/// Fewer tuples than this say nothing.
pub(super) const FEW_TUPLES: usize = 30;
/// The most items in the tuples of a certificate.
pub(super) const MOST_IN_TUPLES: usize = 400_000;
/// From this distance of a slope to -1 on, the rate 1/k is not confirmed.
pub(super) const NEAR_ONE: f64 = 0.15;

// Streams of the seed for the pieces of work.
const ANCHORS: u64 = 1 << 40;
const ITEMS: u64 = ANCHORS + 1;
const TUPLES: u64 = ANCHORS + 2;
const SLOPES: u64 = ANCHORS + 3;

/// Some of the anchors, and some of the items.
#[derive(Debug)]
pub(super) struct Sample {
    input: Input,
    seed: u64,
}

impl Sample {
    /// Draws it. Where an item is left out of each anchor's, that of a drawn anchor is drawn too.
    pub fn draw(input: &Input, settings: &Settings) -> Result<Sample> {
        Sample::sized(input, settings.sample, settings.seed)
    }

    fn sized(input: &Input, [most_anchors, most_items]: [usize; 2], seed: u64) -> Result<Sample> {
        let (n, m) = (input.anchors.count(), input.corpus.rows());
        let anchors = some(n, most_anchors, &mut Random::new(seed, ANCHORS));
        let mut taken = vec![false; m];
        if let Some(own) = &input.own {
            anchors.iter().for_each(|i| taken[own[*i] as usize] = true);
        }
        let mut left = most_items.saturating_sub(taken.iter().filter(|t| **t).count());
        let mut order: Vec<usize> = (0..m).filter(|j| !taken[*j]).collect();
        if order.len() > left {
            Random::new(seed, ITEMS).shuffle(&mut order);
        }
        for j in order {
            if left == 0 {
                break;
            }
            taken[j] = true;
            left -= 1;
        }
        let items: Vec<usize> = (0..m).filter(|j| taken[*j]).collect();
        let d = input.anchors.dim();
        let values = anchors.iter().flat_map(|i| &input.anchors.values()[i * d..(i + 1) * d]).copied().collect();
        let corpus = if items.len() == m {
            input.corpus.read(0..m)?
        } else {
            let mut values = Vec::with_capacity(items.len() * d);
            for run in items.chunk_by(|a, b| a + 1 == *b) {
                values.extend(input.corpus.read(run[0]..run[run.len() - 1] + 1)?);
            }
            values
        };
        let place = |j: u32| items.partition_point(|i| *i < j as usize) as u32;
        let own: Option<Vec<u32>> = input.own.as_ref().map(|own| anchors.iter().map(|i| place(own[*i])).collect());
        let count = items.len() - usize::from(own.is_some());
        let sampled = Input {
            anchors: Rows::new(values, d),
            positives: anchors.iter().map(|i| input.positives[*i]).collect(),
            corpus: Matrix::of(input.corpus.name(), corpus, d)?,
            negatives: input.negatives,
            own,
            labels: None,
            checks: Checks { anchors: anchors.len(), items: count, ..input.checks.clone() },
        };
        Ok(Sample { input: sampled, seed })
    }

    pub fn input(&self) -> &Input {
        &self.input
    }

    /// The number of anchors, and of each one's items.
    pub fn size(&self) -> [usize; 2] {
        [self.input.anchors.count(), self.input.items()]
    }

    /// As [`Sample::size`], with the items that are left out.
    fn size_drawn(&self) -> [usize; 2] {
        [self.input.anchors.count(), self.input.corpus.rows()]
    }

    pub fn pairs(&self, tau: f64) -> Pairs<'_> {
        pairs(&self.input, tau)
    }

    /// For each anchor, what `f` makes of its number and the cosines with its items, in float64.
    pub fn cosines<T: Send>(&self, f: impl Fn(usize, Vec<f64>) -> Result<T> + Sync) -> Result<Vec<T>> {
        let (anchors, m) = (&self.input.anchors, self.input.corpus.rows());
        let items = Rows::new(self.input.corpus.read(0..m)?, anchors.dim());
        let one = |i: usize| {
            let mut cosines = Vec::with_capacity(m);
            let mut j = 0;
            while j + TOGETHER <= m {
                cosines.extend(anchors.similarities(
                    i,
                    &items,
                    std::array::from_fn::<u32, TOGETHER, _>(|l| (j + l) as u32),
                ));
                j += TOGETHER;
            }
            cosines.extend((j..m).map(|j| anchors.similarities(i, &items, [j as u32])[0]));
            if let Some(own) = &self.input.own {
                cosines.remove(own[i] as usize);
            }
            f(i, cosines)
        };
        (0..anchors.count()).into_par_iter().map(one).collect()
    }

    /// Every anchor's estimates at numbers of negatives, and the third central moment of its weights, of which `search` has the means.
    fn curves(&self, ks: &[usize], tau: f64, search: &Search) -> Result<(Vec<Vec<CurvePoint>>, Vec<f64>)> {
        let both = self.cosines(|i, cosines| {
            let logits: Vec<f64> = cosines.iter().map(|s| s / tau).collect();
            let ln_z = search.anchors()[i].ln_z;
            let third = logits.iter().map(|x| ((x - ln_z).exp() - 1.0).powi(3)).sum::<f64>() / logits.len() as f64;
            let mut random = Random::new(self.seed, i as u64);
            Ok((curve(&logits, self.input.positives[i] / tau, ks, PERMUTATIONS, &mut random)?, third))
        })?;
        Ok(both.into_iter().unzip())
    }

    /// The sample's anchors in a search, for the items' share of errors.
    fn search(&self, tau: f64) -> Result<Search> {
        let pairs = self.pairs(tau);
        let sums = pairs.sums(&mut |_| ())?;
        Ok(search(&pairs, &sums, &self.input, &mut |_| ())?.0)
    }
}

/// At most so many of 0..n, ascending.
fn some(n: usize, most: usize, random: &mut Random) -> Vec<usize> {
    let mut all: Vec<usize> = (0..n).collect();
    if n > most {
        random.shuffle(&mut all);
        all.truncate(most);
        all.sort_unstable();
    }
    all
}

/// Risks by the number of negatives, in nats and normalised by log k.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FiniteK {
    /// The number of anchors and items that the curve is measured with.
    pub sample: [usize; 2],
    /// R_inf of the sample.
    pub r_inf: f64,
    /// By rising k.
    pub points: Vec<KPoint>,
    /// R_inf by R~_2k and R~_k of the largest k: 2 R~_2k - R~_k.
    pub r_inf_richardson: Option<f64>,
    /// R_inf by the fit R_inf + c1/k + c2/k² to R~_k.
    pub r_inf_curvature: Option<f64>,
    /// The coefficient of 1/k in R_k, by the weights of all anchors and items.
    pub c1: f64,
    /// The same in R~_k.
    pub c1_dcl: f64,
    /// The slope of R~_2k - R~_k in log-log; about -1 where the rate is 1/k.
    pub slope_dcl: Option<SlopeFit>,
    /// The slope of P_k - P_2k, P_k = R_k - R~_k.
    pub slope_positive: Option<SlopeFit>,
    /// From this k on, the leading term is within some 5 % of the whole.
    pub k_asymptotic: Option<f64>,
    /// Numbers of negatives that are enough.
    pub recommended: Vec<Recommended>,
    /// At the number of negatives in training, where it is known.
    pub training: Option<Training>,
}

/// One number of negatives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct KPoint {
    /// The number of negatives.
    pub k: usize,
    /// R_k, InfoNCE's risk.
    pub risk: f64,
    /// Its standard error.
    pub risk_se: f64,
    /// R~_k, without the positive in the denominator.
    pub dcl: f64,
    /// Its standard error.
    pub dcl_se: f64,
    /// P_k = R_k - R~_k, what the positive in the denominator adds.
    pub positive: f64,
    /// R~_2k - R~_k, where 2k is measured.
    pub dcl_step: Option<f64>,
    /// P_k - P_2k.
    pub positive_step: Option<f64>,
}

/// A slope in log-log.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlopeFit {
    /// The slope.
    pub slope: f64,
    /// Its 95 % interval, by the bootstrap over anchors.
    pub interval: [f64; 2],
    /// The numbers of negatives that it is of.
    pub ks: Vec<usize>,
    /// Whether it is within 0.15 of -1.
    pub is_one: bool,
    /// Whether its 99 % interval leaves -1/2 out.
    pub excludes_half: bool,
}

impl SlopeFit {
    fn of(slope: Slope) -> SlopeFit {
        let half = Z_95 * slope.se;
        SlopeFit {
            slope: slope.slope,
            interval: [slope.slope - half, slope.slope + half],
            is_one: (slope.slope + 1.0).abs() <= NEAR_ONE,
            excludes_half: (slope.slope + 0.5).abs() > 2.575_829_303_548_901 * slope.se,
            ks: slope.ks,
        }
    }
}

/// A recommended number of negatives.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Recommended {
    /// The bias, in nats, that it stays below, as far as the estimated weights tell.
    pub eps: f64,
    /// The number of negatives.
    pub k: Option<u64>,
}

/// What the number of negatives in training means for these embeddings.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Training {
    /// The number of negatives.
    pub k: usize,
    /// R_k - R_inf, in nats; none where the sample has fewer items.
    pub bias: Option<f64>,
    /// Its standard error over anchors. R_k and R_inf are of the same items, whose share in both is nearly the same.
    pub bias_se: Option<f64>,
    /// What the leading term says of it: c1/k.
    pub leading: f64,
    /// Whether k is beyond `k_asymptotic`, where doubling it halves the bias; none where the sample has fewer items.
    pub in_regime: Option<bool>,
}

impl FiniteK {
    /// `others` are numbers of negatives besides powers of 2.
    pub(super) fn of(
        sample: &Sample,
        search: &Search,
        tau: f64,
        others: &[usize],
        settings: &Settings,
    ) -> Result<FiniteK> {
        let [_, m] = sample.size();
        let powers: Vec<usize> = (0..).map(|e| 1 << e).take_while(|k| *k <= (m / 2).max(1)).collect();
        let ks: BTreeSet<usize> = powers.iter().chain(others).copied().filter(|k| *k <= m).collect();
        let ks: Vec<usize> = ks.into_iter().collect();
        let of_sample = sample.search(tau)?;
        let (rows, third) = sample.curves(&ks, tau, &of_sample)?;
        let estimates = of_sample.finish()?;
        let hubness = estimates.variances.hubness();
        let n = rows.len() as f64;
        let column =
            |f: &dyn Fn(&CurvePoint) -> f64, place: usize| rows.iter().map(|r| f(&r[place])).collect::<Vec<f64>>();
        let figure = |values: Vec<f64>| (values.iter().sum::<f64>() / n, (variance(&values) / n + hubness).sqrt());
        let mut points: Vec<KPoint> = Vec::new();
        for (place, k) in ks.iter().enumerate() {
            let (risk, risk_se) = figure(column(&|p| p.risk, place));
            let (dcl, dcl_se) = figure(column(&|p| p.dcl, place));
            let positive = risk - dcl;
            points.push(KPoint { k: *k, risk, risk_se, dcl, dcl_se, positive, dcl_step: None, positive_step: None });
        }
        let place = |k: usize| ks.iter().position(|other| *other == k);
        let steps: Vec<(usize, usize)> = powers.iter().filter_map(|k| Some((place(*k)?, place(2 * k)?))).collect();
        for &(one, two) in &steps {
            points[one].dcl_step = Some(points[two].dcl - points[one].dcl);
            points[one].positive_step = Some(points[one].positive - points[two].positive);
        }
        let step_ks: Vec<usize> = steps.iter().map(|(one, _)| ks[*one]).collect();
        let step_rows = |f: &dyn Fn(&CurvePoint) -> f64| -> Vec<Vec<f64>> {
            rows.iter().map(|r| steps.iter().map(|(one, two)| f(&r[*two]) - f(&r[*one])).collect()).collect()
        };
        let k_asymptotic = k_asymptotic(&of_sample, &third);
        let least = LEAST_K.max(k_asymptotic.filter(|k| *k <= m as f64 / 4.0).unwrap_or(0.0));
        let slope = |values: Vec<Vec<f64>>, piece: u64| {
            let mut random = Random::new(settings.seed, piece);
            let found = slope_test(&values, &step_ks, least, RESAMPLES, &mut random);
            found.filter(|s| s.slope.is_finite() && s.se.is_finite()).map(SlopeFit::of)
        };
        let all = search.finish()?;
        let recommended = settings.eps.iter().map(|eps| Recommended { eps: *eps, k: search.recommended_k(tau, *eps) });
        let r_inf = estimates.r_inf();
        let bias_se = |place: usize| {
            let limit = |i: usize| {
                let anchor = &of_sample.anchors()[i];
                if estimates.jackknife_is_reliable() { anchor.jackknife } else { anchor.delta }
            };
            let biases: Vec<f64> = rows.iter().enumerate().map(|(i, r)| r[place].risk - limit(i)).collect();
            (variance(&biases) / n).sqrt()
        };
        let training = settings.k.map(|k| Training {
            k,
            bias: place(k).map(|place| points[place].risk - r_inf),
            bias_se: place(k).map(bias_se),
            leading: all.c1() / k as f64,
            in_regime: k_asymptotic.filter(|_| k <= m).map(|least| k as f64 >= least),
        });
        Ok(FiniteK {
            sample: sample.size(),
            r_inf,
            r_inf_richardson: steps.last().map(|(one, two)| 2.0 * points[*two].dcl - points[*one].dcl),
            r_inf_curvature: k_asymptotic.and_then(|least| curvature(&points, least)),
            c1: all.c1(),
            c1_dcl: all.c1_dcl(),
            slope_dcl: slope(step_rows(&|p| p.dcl), SLOPES),
            slope_positive: slope(step_rows(&|p| p.dcl - p.risk), SLOPES + 1),
            k_asymptotic,
            recommended: recommended.collect(),
            training,
            points,
        })
    }
}

/// 20 (E m3/3 + 3 E v²/4) / (E v/2), with the weights' third central moment m3: docs/theory.md 1.5.
fn k_asymptotic(search: &Search, third: &[f64]) -> Option<f64> {
    let n = third.len() as f64;
    let m3 = third.iter().sum::<f64>() / n;
    let mean = |f: &dyn Fn(f64) -> f64| search.anchors().iter().map(|a| f(a.v)).sum::<f64>() / n;
    let k = 20.0 * (m3 / 3.0 + 0.75 * mean(&|v| v * v)) / (mean(&|v| v) / 2.0);
    k.is_finite().then_some(k.max(1.0))
}

/// R_inf by weighted least squares of R~_k on 1, 1/k and 1/k² over k from 8 and half of `least` on, below which further terms count; none
/// with fewer than four such k.
fn curvature(points: &[KPoint], least: f64) -> Option<f64> {
    let from = (least / 2.0).max(8.0);
    let used: Vec<&KPoint> = points.iter().filter(|p| p.k as f64 >= from && p.dcl_se > 0.0).collect();
    if used.len() < 4 {
        return None;
    }
    let (mut normal, mut right) = ([[0.0; 3]; 3], [0.0; 3]);
    for p in used {
        let x = [1.0, 1.0 / p.k as f64, 1.0 / (p.k * p.k) as f64];
        // All points share the anchors: what differs between them is the blocks' own noise, which falls as the number of blocks grows.
        let weight = 1.0 / p.k as f64;
        for i in 0..3 {
            right[i] += weight * x[i] * p.dcl;
            (0..3).for_each(|j| normal[i][j] += weight * x[i] * x[j]);
        }
    }
    solve(normal, right).map(|found| found[0]).filter(|r| r.is_finite())
}

/// Three linear equations, by Gauss with the largest pivot.
fn solve(mut a: [[f64; 3]; 3], mut b: [f64; 3]) -> Option<[f64; 3]> {
    for i in 0..3 {
        let pivot = (i..3).max_by(|p, q| a[*p][i].abs().total_cmp(&a[*q][i].abs()))?;
        a.swap(i, pivot);
        b.swap(i, pivot);
        if a[i][i].abs() < 1e-300 {
            return None;
        }
        for row in i + 1..3 {
            let factor = a[row][i] / a[i][i];
            (i..3).for_each(|j| a[row][j] -= factor * a[i][j]);
            b[row] -= factor * b[i];
        }
    }
    let mut x = [0.0; 3];
    for i in (0..3).rev() {
        x[i] = (b[i] - (i + 1..3).map(|j| a[i][j] * x[j]).sum::<f64>()) / a[i][i];
    }
    Some(x)
}

/// Held-out risk, against that of training and with what it certifies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Generalisation {
    /// The number of negatives that it is measured at.
    pub k: usize,
    /// R_k of these embeddings.
    pub risk: f64,
    /// Its standard error, of two samples.
    pub risk_se: f64,
    /// An upper end of R_k, of 95 % for many anchors and items.
    pub asymptotic_bound: f64,
    /// Training embeddings at the same k, where they were given.
    pub gap: Option<Gap>,
    /// A bound of R_k that needs nothing but tuples without a common item; none where there are too few.
    pub certificate: Option<Certificate>,
}

/// Held-out risk less that of training.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Gap {
    /// R_k in training.
    pub train: f64,
    /// The difference.
    pub gap: f64,
    /// Its standard error.
    pub se: f64,
}

/// A bound that holds with probability 0.95, whatever the embeddings (Maurer and Pontil).
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Certificate {
    /// The number of tuples.
    pub tuples: usize,
    /// Their mean loss.
    pub mean: f64,
    /// R_k is at most this.
    pub bound: f64,
    /// And R_inf at most this.
    pub r_inf_bound: f64,
}

/// The sample of training, of the same size, and the number of negatives that generalisation is measured at.
pub(super) fn training(sample: &Sample, train: Option<&Input>, settings: &Settings) -> Result<(Option<Sample>, usize)> {
    let train = train.map(|train| Sample::sized(train, sample.size_drawn(), settings.seed)).transpose()?;
    let [_, m] = sample.size();
    let fewest = train.as_ref().map_or(m, |t| m.min(t.size()[1]));
    Ok((train, settings.k.filter(|k| *k <= fewest).unwrap_or(DEFAULT_K.min(fewest / 2).max(1))))
}

impl Generalisation {
    /// At one of the numbers of negatives that `held_out` has.
    pub(super) fn of(
        input: &Input,
        held_out: &FiniteK,
        train: Option<&Sample>,
        k: usize,
        tau: f64,
        seed: u64,
    ) -> Result<Generalisation> {
        let point = held_out.points.iter().find(|p| p.k == k);
        let Some(&KPoint { risk, risk_se, .. }) = point else {
            return Err(Error::Input(format!("the risk at {k} negatives was not measured")));
        };
        let gap = match train {
            None => None,
            Some(train) => {
                let search = train.search(tau)?;
                let (rows, _) = train.curves(&[k], tau, &search)?;
                let values: Vec<f64> = rows.iter().map(|r| r[0].risk).collect();
                let n = values.len() as f64;
                let found = values.iter().sum::<f64>() / n;
                let squared = variance(&values) / n + search.finish()?.variances.hubness();
                Some(Gap { train: found, gap: risk - found, se: (risk_se * risk_se + squared).sqrt() })
            }
        };
        Ok(Generalisation {
            k,
            risk,
            risk_se,
            asymptotic_bound: risk + 1.644_853_626_951_472_2 * risk_se,
            gap,
            certificate: certificate(input, k, tau, seed)?,
        })
    }
}

/// Tuples of an anchor, its positive and k items, none of which is in another tuple.
fn certificate(input: &Input, k: usize, tau: f64, seed: u64) -> Result<Option<Certificate>> {
    let m = input.corpus.rows();
    let tuples = input.anchors.count().min(m.min(MOST_IN_TUPLES) / k);
    if input.negatives != Negatives::Corpus || input.own.is_some() || tuples < FEW_TUPLES {
        return Ok(None);
    }
    let mut random = Random::new(seed, TUPLES);
    let anchors = {
        let mut all: Vec<usize> = (0..input.anchors.count()).collect();
        random.shuffle(&mut all);
        all
    };
    let mut items: Vec<usize> = (0..m).collect();
    random.shuffle(&mut items);
    let one = |(anchor, items): (&usize, &[usize])| -> Result<f64> {
        let mut values = Vec::with_capacity(k * input.anchors.dim());
        for j in items {
            values.extend(input.corpus.read(*j..j + 1)?);
        }
        let rows = Rows::new(values, input.anchors.dim());
        let logits: Vec<f64> =
            (0..k as u32).map(|j| input.anchors.similarities(*anchor, &rows, [j])[0] / tau).collect();
        Ok(ranked(&logits, input.positives[*anchor] / tau).loss - (k as f64).ln())
    };
    let chosen: Vec<(&usize, &[usize])> = anchors[..tuples].iter().zip(items.chunks_exact(k)).collect();
    let losses: Vec<f64> = chosen.into_par_iter().map(one).collect::<Result<_>>()?;
    let bound = held_out_bound(&losses, k as f64, tau, DELTA)?;
    Ok(Some(Certificate {
        tuples,
        mean: losses.iter().sum::<f64>() / tuples as f64,
        bound,
        // Anchors and items need not have one law.
        r_inf_bound: bound + bounds::lower_across(tau, k as f64),
    }))
}
