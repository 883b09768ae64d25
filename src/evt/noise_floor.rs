//! What a wrong link costs, however many choices there are: the noise-floor experiment of the WEINCE paper.
//!
//! Candidates with fixed similarities are chosen from again and again, and winners follow a Weibit law of known slope. Both links are
//! fitted to `n` choices, and each says what the log-odds of the nearest candidate over the farthest are. Weibit's mean squared error
//! goes as `c/n`; softmax's goes to a floor, the square of what its best temperature gets wrong.
//!
//! A link of one parameter depends on a sample only by how often each candidate won, so that a sample is its counts here;
//! [`super::LinkFit`] finds the same numbers choice by choice.

use super::SHORTFALL_FLOOR;
use crate::{Error, Result};
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rayon::prelude::*;

/// The most samples that [`NoiseFloor::exact`] goes through.
pub const MOST_OUTCOMES: f64 = 3e7;

/// Candidates and the law of winners among them.
#[derive(Debug, Clone, PartialEq)]
pub struct NoiseFloor {
    scores: Vec<f64>,
    slope: f64,
    /// Softmax's coordinate, the similarity, and Weibit's, of the endpoint.
    axes: [Axis; 2],
    law: Vec<f64>,
    population: Population,
}

/// What infinitely many choices would show.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Population {
    /// The log-odds of the nearest candidate over the farthest.
    pub log_odds: f64,
    /// The inverse temperature to which softmax's fits go: the one of the least divergence from the law.
    pub softmax_theta: f64,
    /// The log-odds that it gives.
    pub softmax_log_odds: f64,
    /// The divergence of the law from softmax's best, in nats.
    pub divergence: f64,
    /// The variance of a winner's similarity under softmax's best: the curvature of a choice's likelihood.
    pub softmax_information: f64,
    /// The same under the law: the variance of a choice's score.
    pub softmax_score_variance: f64,
    /// n times the variance of softmax's log-odds, for large n.
    pub softmax_rate: f64,
    /// n times by how much softmax's mean log-odds exceed those of its best, for large n.
    pub softmax_drift: f64,
    /// The variance of a winner's endpoint coordinate: the information of a choice on Weibit's slope.
    pub weibit_information: f64,
    /// c: n times the variance, and the mean squared error, of Weibit's log-odds, for large n.
    pub weibit_rate: f64,
}

impl Population {
    /// What softmax's best gets wrong in the log-odds.
    pub fn softmax_bias(&self) -> f64 {
        self.softmax_log_odds - self.log_odds
    }

    /// The floor of softmax's mean squared error.
    pub fn floor(&self) -> f64 {
        self.softmax_bias().powi(2)
    }

    /// Softmax's mean squared error of `n` choices, but for terms of 1/n²: the floor, the variance, and what the mean over samples of
    /// `n` differs from the best.
    pub fn softmax_mse(&self, n: f64) -> f64 {
        self.floor() + (self.softmax_rate + 2.0 * self.softmax_bias() * self.softmax_drift) / n
    }

    /// Weibit's mean squared error of `n` choices, but for terms of 1/n².
    pub fn weibit_mse(&self, n: f64) -> f64 {
        self.weibit_rate / n
    }
}

/// How far one link's log-odds are off.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogOdds {
    /// The mean error.
    pub bias: f64,
    /// The mean squared error.
    pub mse: f64,
    /// Its standard error; 0 where all samples are gone through.
    pub mse_error: f64,
}

/// How far both links' log-odds are off in samples of one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Errors {
    /// The number of choices.
    pub n: usize,
    /// Of softmax.
    pub softmax: LogOdds,
    /// Of Weibit.
    pub weibit: LogOdds,
    /// The share of samples in which a link has no most likely parameter. They are left out of the errors.
    pub separated: f64,
}

impl NoiseFloor {
    /// The paper's: similarities 0.15, 0.45, 0.7 and 0.9, and slope 0.8.
    ///
    /// # Errors
    /// None with these numbers.
    pub fn paper() -> Result<NoiseFloor> {
        NoiseFloor::new(&[0.15, 0.45, 0.7, 0.9], 0.8)
    }

    /// Winners among candidates with cosine similarities `scores`, each winning in proportion to `(1 - s)^-slope`.
    ///
    /// # Errors
    /// [`Error::Input`] for scores that are no cosines or are all the same, as far as shortfalls from [`SHORTFALL_FLOOR`] on tell them
    /// apart, and for a slope that is not positive, or so large that one candidate wins always.
    pub fn new(scores: &[f64], slope: f64) -> Result<NoiseFloor> {
        if let Some(index) = scores.iter().position(|s| s.is_nan() || s.abs() > 1.0) {
            return Err(Error::Input(format!(
                "score {index} of the noise floor's candidates, counted from 0, is {}; expected cosine similarities, from -1 to 1",
                scores[index]
            )));
        }
        let endpoint = scores.iter().map(|s| -(1.0 - s).max(SHORTFALL_FLOOR).ln());
        let axes = [Axis::new(scores.to_vec()), Axis::new(endpoint.collect())];
        if axes.iter().any(|a| a.low >= a.high) {
            return Err(Error::Input(format!(
                "the noise floor got candidates with the similarities {scores:?}; expected at least two that differ"
            )));
        }
        let law = axes[1].law(slope);
        if !(slope.is_finite() && slope > 0.0 && law.iter().all(|p| *p < 1.0)) {
            return Err(Error::Input(format!(
                "the slope of the noise floor's law is {slope}; expected a positive number that leaves every candidate a chance"
            )));
        }
        let population = population(&axes, &law, slope)?;
        Ok(NoiseFloor { scores: scores.to_vec(), slope, axes, law, population })
    }

    /// The candidates' similarities.
    pub fn scores(&self) -> &[f64] {
        &self.scores
    }

    /// How probable each candidate is to win.
    pub fn law(&self) -> &[f64] {
        &self.law
    }

    /// What infinitely many choices would show.
    pub fn population(&self) -> &Population {
        &self.population
    }

    /// The most likely parameters of softmax and Weibit where the candidates have won `wins` times; none where only the nearest or
    /// only the farthest have won, so that the likelihood grows without end.
    pub fn fit(&self, wins: &[usize]) -> Option<[f64; 2]> {
        let start = [self.population.softmax_theta, self.slope];
        let theta = |i: usize| self.axes[i].most_likely(wins, start[i]);
        Some([theta(0)?, theta(1)?])
    }

    /// The winners of `n` choices, as places among the candidates: sample `replicate` of the seed.
    ///
    /// A sample has a stream of its own, of `n` and its number.
    pub fn winners(&self, n: usize, seed: u64, replicate: u32) -> Vec<usize> {
        let mut winners = Vec::with_capacity(n);
        self.draw(n, seed, replicate, |winner| winners.push(winner));
        winners
    }

    /// The errors in `replicates` samples of `n` choices. The result does not depend on the number of threads.
    ///
    /// # Errors
    /// [`Error::Input`] for no choices or 2^32 of them and more, and where fewer than two samples have both fits.
    pub fn simulate(&self, n: usize, replicates: u32, seed: u64) -> Result<Errors> {
        if n == 0 || u32::try_from(n).is_err() {
            return Err(Error::Input(format!(
                "the noise floor's samples have {n} choices; expected 1 to {}",
                u32::MAX
            )));
        }
        let of = |replicate: u32| {
            let mut wins = vec![0; self.law.len()];
            self.draw(n, seed, replicate, |winner| wins[winner] += 1);
            self.fit(&wins).map(|theta| self.off(theta))
        };
        let all: Vec<Option<[f64; 2]>> = (0..replicates).into_par_iter().map(of).collect();
        let found: Vec<[f64; 2]> = all.iter().flatten().copied().collect();
        if found.len() < 2 {
            return Err(Error::Input(format!(
                "of {replicates} samples of {n} choices, {} have a fit of both links; expected at least 2: take more choices or more samples",
                found.len()
            )));
        }
        let count = found.len() as f64;
        let of = |i: usize| {
            let mean = |power: i32| found.iter().map(|off| off[i].powi(power)).sum::<f64>() / count;
            let mse = mean(2);
            let spread = found.iter().map(|off| (off[i].powi(2) - mse).powi(2)).sum::<f64>() / (count - 1.0);
            LogOdds { bias: mean(1), mse, mse_error: (spread / count).sqrt() }
        };
        let separated = (all.len() - found.len()) as f64 / f64::from(replicates);
        Ok(Errors { n, softmax: of(0), weibit: of(1), separated })
    }

    /// The errors of `n` choices over all samples that there are, each with its probability.
    ///
    /// # Errors
    /// [`Error::Input`] where there are more than [`MOST_OUTCOMES`] samples, and where none has both fits.
    pub fn exact(&self, n: usize) -> Result<Errors> {
        let others = self.law.len() - 1;
        // n + others choose others.
        let outcomes: f64 = (1..=others).map(|i| (n as f64 + i as f64) / i as f64).product();
        if outcomes > MOST_OUTCOMES {
            return Err(Error::Input(format!(
                "{n} choices among {} candidates end in {outcomes:.1e} ways; expected at most {MOST_OUTCOMES:.0e}: take fewer choices, or simulate",
                self.law.len()
            )));
        }
        let ln_factorial: Vec<f64> = std::iter::once(0.0)
            .chain((1..=n).scan(0.0, |sum, i| {
                *sum += (i as f64).ln();
                Some(*sum)
            }))
            .collect();
        let ln_law: Vec<f64> = self.law.iter().map(|p| p.ln()).collect();
        let part = |first: usize| {
            let mut sums = Sums::default();
            let mut wins = vec![0; self.law.len()];
            wins[0] = first;
            each_outcome(&mut wins, 1, n - first, &mut |wins| {
                let terms = wins.iter().zip(&ln_law).map(|(w, ln)| *w as f64 * ln - ln_factorial[*w]);
                let probability = (ln_factorial[n] + terms.sum::<f64>()).exp();
                let Some(theta) = self.fit(wins) else { return };
                sums.probability += probability;
                for (sums, off) in sums.links.iter_mut().zip(self.off(theta)) {
                    *sums = [sums[0] + probability * off, sums[1] + probability * off * off];
                }
            });
            sums
        };
        let parts: Vec<Sums> = (0..=n).into_par_iter().map(part).collect();
        let total = parts.iter().fold(Sums::default(), |mut total, part| {
            total.probability += part.probability;
            for (total, part) in total.links.iter_mut().zip(&part.links) {
                *total = [total[0] + part[0], total[1] + part[1]];
            }
            total
        });
        if total.probability == 0.0 {
            return Err(Error::Input(format!(
                "no sample of {n} choices has a fit of both links; expected at least 2 choices"
            )));
        }
        let of = |i: usize| {
            let [bias, mse] = total.links[i].map(|sum| sum / total.probability);
            LogOdds { bias, mse, mse_error: 0.0 }
        };
        Ok(Errors { n, softmax: of(0), weibit: of(1), separated: (1.0 - total.probability).max(0.0) })
    }

    /// The errors of both links' log-odds.
    fn off(&self, theta: [f64; 2]) -> [f64; 2] {
        std::array::from_fn(|i| theta[i] * self.axes[i].range() - self.population.log_odds)
    }

    fn draw(&self, n: usize, seed: u64, replicate: u32, mut each: impl FnMut(usize)) {
        let ends: Vec<f64> = self
            .law
            .iter()
            .scan(0.0, |sum, p| {
                *sum += p;
                Some(*sum)
            })
            .collect();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(((n as u64) << 32) | u64::from(replicate));
        for _ in 0..n {
            let at: f64 = rng.random();
            // The last end is 1 but for rounding, and not looked at.
            each(ends[..ends.len() - 1].iter().map(|end| usize::from(at >= *end)).sum());
        }
    }
}

/// What is summed over samples: their probability, and each link's errors and squared errors.
#[derive(Default)]
struct Sums {
    probability: f64,
    links: [[f64; 2]; 2],
}

/// Calls `each` with all ways to give `left` wins to the candidates from `at` on.
fn each_outcome(wins: &mut [usize], at: usize, left: usize, each: &mut impl FnMut(&[usize])) {
    if at + 1 == wins.len() {
        wins[at] = left;
        return each(wins);
    }
    for own in 0..=left {
        wins[at] = own;
        each_outcome(wins, at + 1, left - own, each);
    }
}

/// The candidates' values of one link's coordinate.
#[derive(Debug, Clone, PartialEq)]
struct Axis {
    values: Vec<f64>,
    low: f64,
    high: f64,
}

impl Axis {
    fn new(values: Vec<f64>) -> Axis {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Axis { values, low, high }
    }

    fn range(&self) -> f64 {
        self.high - self.low
    }

    /// The link's law of winners.
    fn law(&self, theta: f64) -> Vec<f64> {
        let top = if theta > 0.0 { self.high } else { self.low };
        let weights: Vec<f64> = self.values.iter().map(|v| (theta * (v - top)).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|w| w / sum).collect()
    }

    /// The mean of the winner's value under a law, and the second and third central moments.
    fn moments(&self, law: &[f64]) -> [f64; 3] {
        let of = |f: &dyn Fn(f64) -> f64| law.iter().zip(&self.values).map(|(p, v)| p * f(*v)).sum::<f64>();
        let mean = of(&|v| v);
        [mean, of(&|v| (v - mean).powi(2)), of(&|v| (v - mean).powi(3))]
    }

    /// The mean and the variance of the link's own law, without allocations.
    fn own_moments(&self, theta: f64) -> [f64; 2] {
        let top = if theta > 0.0 { self.high } else { self.low };
        let (mut sum, mut first, mut second) = (0.0, 0.0, 0.0);
        for v in &self.values {
            let from_top = v - top;
            let weight = (theta * from_top).exp();
            sum += weight;
            first += weight * from_top;
            second += weight * from_top * from_top;
        }
        let mean = first / sum;
        [top + mean, second / sum - mean * mean]
    }

    /// The parameter whose law has the winners' mean.
    fn most_likely(&self, wins: &[usize], start: f64) -> Option<f64> {
        let won = wins.iter().zip(&self.values).filter(|(wins, _)| **wins > 0).map(|(_, v)| *v);
        if won.clone().all(|v| v == self.low) || won.clone().all(|v| v == self.high) {
            return None;
        }
        let (count, sum) =
            wins.iter().zip(&self.values).fold((0.0, 0.0), |(n, sum), (w, v)| (n + *w as f64, sum + *w as f64 * v));
        self.with_mean(sum / count, start)
    }

    /// The parameter whose law has this mean, by Newton's method from `start`, halving steps that do not bring it nearer.
    fn with_mean(&self, mean: f64, start: f64) -> Option<f64> {
        let mut theta = start;
        let [mut own, mut variance] = self.own_moments(theta);
        for _ in 0..200 {
            let mut step = (mean - own) / variance;
            // The error of a step goes with its square.
            if step.abs() <= 1e-9 {
                return Some(theta + step);
            }
            loop {
                let next = self.own_moments(theta + step);
                // A law that has only one value left has no variance to step by.
                if (next[0] - mean).abs() < (own - mean).abs() && next[1] > 0.0 {
                    theta += step;
                    [own, variance] = next;
                    break;
                }
                step *= 0.5;
                if step.abs() <= 1e-12 * (1.0 + theta.abs()) {
                    return Some(theta);
                }
            }
        }
        None
    }
}

fn population(axes: &[Axis; 2], law: &[f64], slope: f64) -> Result<Population> {
    let [similarity, endpoint] = axes;
    let [mean, softmax_score_variance, _] = similarity.moments(law);
    let softmax_theta = similarity.with_mean(mean, 0.0).ok_or_else(|| {
        Error::Input(format!(
            "no inverse temperature gives the mean similarity {mean} of the noise floor's winners; take a smaller slope"
        ))
    })?;
    let best = similarity.law(softmax_theta);
    let [_, softmax_information, third] = similarity.moments(&best);
    let [_, weibit_information, _] = endpoint.moments(law);
    let range = similarity.range();
    Ok(Population {
        log_odds: slope * endpoint.range(),
        softmax_theta,
        softmax_log_odds: softmax_theta * range,
        divergence: law.iter().zip(&best).map(|(p, q)| if *p > 0.0 { p * (p / q).ln() } else { 0.0 }).sum(),
        softmax_information,
        softmax_score_variance,
        softmax_rate: range.powi(2) * softmax_score_variance / softmax_information.powi(2),
        // Theta is a function of the winners' mean; half of its second derivative, times the mean's variance.
        softmax_drift: -range * third * softmax_score_variance / (2.0 * softmax_information.powi(3)),
        weibit_information,
        weibit_rate: endpoint.range().powi(2) / weibit_information,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Choice, LinkFit};
    use super::*;
    use serde_json::Value;

    fn golden() -> Value {
        serde_json::from_str(include_str!("../../tests/golden/pot/noise_floor.json")).unwrap()
    }

    fn number(value: &Value, key: &str) -> f64 {
        value[key].as_f64().unwrap()
    }

    #[test]
    fn the_population_equals_golden_values() {
        let experiment = NoiseFloor::paper().unwrap();
        let (golden, p) = (golden(), experiment.population());
        let golden = &golden["population"];
        let near = |got: f64, expected: f64, what: &str| {
            assert!((got / expected - 1.0).abs() < 1e-10, "{what}: {got}, expected {expected}");
        };
        for (got, expected) in experiment.law().iter().zip(golden["p_star"].as_array().unwrap()) {
            near(*got, expected.as_f64().unwrap(), "law");
        }
        for (key, got) in [
            ("true_log_odds", p.log_odds),
            ("theta_pseudo", p.softmax_theta),
            ("softmax_pseudo_log_odds", p.softmax_log_odds),
            ("softmax_bias_floor", p.floor()),
            ("godambe_A", p.softmax_information),
            ("godambe_B", p.softmax_score_variance),
            ("godambe_floor", p.softmax_score_variance / p.softmax_information.powi(2)),
            ("softmax_var_floor_log_odds", p.softmax_rate),
            ("fisher_x", p.weibit_information),
            ("weibit_floor_beta", 1.0 / p.weibit_information),
            ("weibit_floor_log_odds", p.weibit_rate),
            ("kl_pstar_qpseudo", p.divergence),
        ] {
            near(got, number(golden, key), key);
        }
        // Of Weibit's n times mean squared error, and softmax's floor.
        assert!((p.weibit_mse(1.0) - 7.136026).abs() < 5e-7 && (p.softmax_mse(1e300) - 0.0451513749).abs() < 5e-11);
    }

    #[test]
    fn samples_have_the_golden_errors() {
        let experiment = NoiseFloor::paper().unwrap();
        for row in golden()["rows"].as_array().unwrap() {
            let got = experiment.simulate(row["n"].as_u64().unwrap() as usize, 1500, 0).unwrap();
            for (link, name) in [(got.weibit, "weibit"), (got.softmax, "softmax")] {
                let expected = number(row, &format!("mse_{name}"));
                let error = number(row, &format!("mse_{name}_mc_se")).hypot(link.mse_error);
                assert!((link.mse - expected).abs() < 4.0 * error, "{name} {got:?}, expected {expected} +- {error}");
                // The mean error's own standard error is the root of what is left of the mean squared error.
                let spread = (link.mse - link.bias.powi(2)).sqrt() * (1.0 / 1500.0 + 1.0 / 12000.0_f64).sqrt();
                assert!((link.bias - number(row, &format!("bias_{name}"))).abs() < 4.0 * spread, "{name} {got:?}");
            }
            assert_eq!(got.separated, 0.0);
        }
    }

    #[test]
    fn all_samples_have_the_golden_errors_and_go_to_the_population() {
        let experiment = NoiseFloor::paper().unwrap();
        let [half, whole] = [50, 100].map(|n| experiment.exact(n).unwrap());
        let row = &golden()["rows"][0];
        for (link, name) in [(whole.weibit, "weibit"), (whole.softmax, "softmax")] {
            let error = number(row, &format!("mse_{name}_mc_se"));
            let z = (link.mse - number(row, &format!("mse_{name}"))) / error;
            assert!(z.abs() < 4.0, "{name} {link:?}: {z}");
        }
        // n times what is above the floor, as if the rest were of one more order.
        let p = experiment.population();
        let limit = |of: &dyn Fn(&Errors) -> f64| 2.0 * 100.0 * of(&whole) - 50.0 * of(&half);
        let near = |got: f64, expected: f64| assert!((got / expected - 1.0).abs() < 0.01, "{got}, expected {expected}");
        near(limit(&|e| e.weibit.mse), p.weibit_rate);
        near(limit(&|e| e.softmax.mse - p.floor()), p.softmax_mse(1.0) - p.floor());
        near(limit(&|e| e.softmax.bias - p.softmax_bias()), p.softmax_drift);
    }

    #[test]
    fn of_two_candidates_both_links_say_the_same() {
        // The most likely log-odds are those of the counts.
        let experiment = NoiseFloor::new(&[0.9, -0.2], 0.5).unwrap();
        let log_odds = 0.5 * 12.0_f64.ln();
        let p = 1.0 / (1.0 + (-log_odds).exp());
        let n = 12;
        let (mut total, mut bias, mut mse) = (0.0, 0.0, 0.0);
        for wins in 1..n {
            let choose: f64 = (1..=wins).map(|i| f64::from(n - wins + i) / f64::from(i)).product();
            let probability = choose * p.powi(wins) * (1.0 - p).powi(n - wins);
            let off = (f64::from(wins) / f64::from(n - wins)).ln() - log_odds;
            (total, bias, mse) = (total + probability, bias + probability * off, mse + probability * off * off);
        }
        let got = experiment.exact(12).unwrap();
        for link in [got.softmax, got.weibit] {
            assert!((link.bias - bias / total).abs() < 1e-12 && (link.mse - mse / total).abs() < 1e-12, "{link:?}");
        }
        assert!((got.separated - (1.0 - total)).abs() < 1e-12);
        assert!(experiment.population().floor() < 1e-25 && experiment.population().divergence.abs() < 1e-14);
        let sampled = experiment.simulate(12, 4000, 1).unwrap();
        assert!((sampled.separated - got.separated).abs() < 0.02, "{sampled:?}");
        assert!((sampled.weibit.mse - got.weibit.mse).abs() < 4.0 * sampled.weibit.mse_error);
    }

    #[test]
    fn counts_give_what_choices_give() {
        let experiment = NoiseFloor::paper().unwrap();
        for replicate in 0..20 {
            let winners = experiment.winners(60, 3, replicate);
            let choices: Vec<Choice> = winners
                .iter()
                .enumerate()
                .map(|(anchor, winner)| Choice { scores: experiment.scores(), winner: *winner, anchor })
                .collect();
            let fit = LinkFit::of(&choices).unwrap();
            let mut wins = [0; 4];
            winners.iter().for_each(|w| wins[*w] += 1);
            let [softmax, weibit] = experiment.fit(&wins).unwrap();
            assert!((softmax - fit.softmax.unwrap().theta).abs() < 1e-9 * softmax.abs());
            assert!((weibit - fit.weibit.unwrap().theta).abs() < 1e-9 * weibit.abs());
        }
        // Far from where the search begins.
        for wins in [[1, 0, 0, 100_000], [100_000, 0, 0, 1], [0, 1, 0, 9], [3, 0, 0, 3]] {
            let [softmax, weibit] = experiment.fit(&wins).unwrap();
            for (axis, theta) in experiment.axes.iter().zip([softmax, weibit]) {
                let sum: f64 = wins.iter().zip(&axis.values).map(|(w, v)| *w as f64 * v).sum();
                let mean = sum / wins.iter().sum::<usize>() as f64;
                assert!((axis.own_moments(theta)[0] - mean).abs() < 1e-12, "{wins:?} {theta}");
            }
        }
        assert!(experiment.fit(&[0, 0, 0, 5]).is_none() && experiment.fit(&[5, 0, 0, 0]).is_none());
        assert!(experiment.fit(&[0; 4]).is_none());
    }

    #[test]
    fn a_seed_gives_the_same_numbers_on_any_number_of_threads() {
        let experiment = NoiseFloor::paper().unwrap();
        let on = |threads: usize, seed: u64| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| (experiment.simulate(100, 300, seed).unwrap(), experiment.exact(20).unwrap()))
        };
        assert_eq!(on(1, 0), on(3, 0));
        assert_ne!(on(3, 0).0, on(3, 1).0);
    }

    #[test]
    fn wrong_input_is_an_error() {
        for (scores, slope, expected) in [
            (&[0.1, 1.2][..], 0.8, "score 1 of the noise floor's candidates, counted from 0, is 1.2"),
            (&[0.1, f64::NAN], 0.8, "is NaN"),
            (&[0.5, 0.5], 0.8, "expected at least two that differ"),
            (&[], 0.8, "expected at least two that differ"),
            (&[1.0, 1.0 - 1e-7], 0.8, "expected at least two that differ"),
            (&[0.1, 0.5], 0.0, "slope of the noise floor's law is 0"),
            (&[0.1, 0.5], f64::INFINITY, "slope of the noise floor's law is inf"),
            (&[0.1, 0.5], 1e4, "leaves every candidate a chance"),
        ] {
            let error = NoiseFloor::new(scores, slope).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let experiment = NoiseFloor::paper().unwrap();
        assert!(experiment.simulate(0, 10, 0).unwrap_err().to_string().contains("have 0 choices"));
        assert!(experiment.simulate(10, 1, 0).unwrap_err().to_string().contains("of 1 samples"));
        let two = NoiseFloor::new(&[0.1, 0.5], 0.8).unwrap();
        assert!(two.simulate(1, 10, 0).unwrap_err().to_string().contains("10 samples of 1 choices, 0 have a fit"));
        assert!(two.exact(1).unwrap_err().to_string().contains("no sample of 1 choices"));
        assert!(experiment.exact(0).unwrap_err().to_string().contains("no sample of 0 choices"));
        assert!(experiment.exact(10_000).unwrap_err().to_string().contains("end in 1.7e11 ways"));
    }
}
