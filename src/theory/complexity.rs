//! How much a loss can change with the embedding, and what follows for the gap between training and test: docs/theory.md 4 and 5.

use super::bounds::loss_range;
use super::estimators::variance;
use super::random::Random;
use super::special::{gauss_legendre, log_sum_exp};
use crate::{Error, Result};
use rayon::prelude::*;

/// The embeddings of one tuple: unit vectors for an embedding, shorter ones on the way between two embeddings.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuple {
    /// The anchor.
    pub anchor: Vec<f64>,
    /// The positive.
    pub positive: Vec<f64>,
    /// The negatives.
    pub negatives: Vec<Vec<f64>>,
}

/// The norms of the differences of a tuple's embeddings under two maps.
#[derive(Debug, Clone, PartialEq)]
pub struct Moves {
    /// Of the anchor.
    pub anchor: f64,
    /// Of the positive.
    pub positive: f64,
    /// Of the negatives.
    pub negatives: Vec<f64>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

impl Tuple {
    /// Checks that there is a negative and that all embeddings have one length.
    ///
    /// # Errors
    /// [`Error::Input`] otherwise.
    pub fn new(anchor: Vec<f64>, positive: Vec<f64>, negatives: Vec<Vec<f64>>) -> Result<Tuple> {
        if negatives.is_empty() {
            return Err(Error::Input("negatives of a tuple: expected at least 1, found none".into()));
        }
        let d = anchor.len();
        let others = std::iter::once(&positive).chain(&negatives);
        if let Some((place, other)) = others.enumerate().find(|(_, v)| v.len() != d) {
            let name = if place == 0 { "its positive".to_string() } else { format!("its negative {}", place - 1) };
            return Err(Error::Input(format!(
                "embeddings of a tuple: the anchor has {d} numbers, {name} has {}; expected as many of all",
                other.len()
            )));
        }
        Ok(Tuple { anchor, positive, negatives })
    }

    /// (s_j - s⁺)/τ of all negatives.
    fn exponents(&self, tau: f64) -> Vec<f64> {
        let positive = dot(&self.anchor, &self.positive);
        self.negatives.iter().map(|n| (dot(&self.anchor, n) - positive) / tau).collect()
    }

    /// The InfoNCE loss, log(1 + Σ e^{(s_j - s⁺)/τ}) - log k.
    pub fn loss(&self, tau: f64) -> f64 {
        let ln = log_sum_exp(&self.exponents(tau));
        ln.max(0.0) + (-ln.abs()).exp().ln_1p() - (self.negatives.len() as f64).ln()
    }

    /// How far its embeddings are from those of another map.
    pub fn moves(&self, other: &Tuple) -> Moves {
        let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt();
        Moves {
            anchor: distance(&self.anchor, &other.anchor),
            positive: distance(&self.positive, &other.positive),
            negatives: self.negatives.iter().zip(&other.negatives).map(|(a, b)| distance(a, b)).collect(),
        }
    }

    /// The point at `t` in [0, 1] of the straight way to another map's embeddings.
    fn towards(&self, other: &Tuple, t: f64) -> Tuple {
        let mix = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| (1.0 - t) * x + t * y).collect();
        Tuple {
            anchor: mix(&self.anchor, &other.anchor),
            positive: mix(&self.positive, &other.positive),
            negatives: self.negatives.iter().zip(&other.negatives).map(|(a, b)| mix(a, b)).collect(),
        }
    }

    /// The softmax over its negatives, and one less the probability of the positive among all.
    fn softmax(&self, tau: f64) -> (Vec<f64>, f64) {
        let exponents = self.exponents(tau);
        let ln = log_sum_exp(&exponents);
        (exponents.iter().map(|x| (x - ln).exp()).collect(), 1.0 / (1.0 + (-ln).exp()))
    }

    /// (C2): the bound of the change of the loss on the way to another map's embeddings that the softmax on that way gives, by
    /// `nodes` Gauss points.
    pub fn path_bound(&self, other: &Tuple, tau: f64, nodes: usize) -> f64 {
        let moves = self.moves(other);
        let (points, weights) = gauss_legendre(nodes);
        let at = |t: f64| {
            let here = self.towards(other, t);
            let (p, q) = here.softmax(tau);
            let mut pull: Vec<f64> = here.positive.iter().map(|x| -x).collect();
            for (p, n) in p.iter().zip(&here.negatives) {
                pull.iter_mut().zip(n).for_each(|(x, y)| *x += p * y);
            }
            let others = moves.positive + dot(&p, &moves.negatives);
            q * (norm(&pull) * moves.anchor + norm(&here.anchor) * others)
        };
        points.iter().zip(weights).map(|(x, w)| w / 2.0 * at((1.0 + x) / 2.0)).sum::<f64>() / tau
    }

    /// (C3): the mean move of the negatives under this tuple's softmax, and its bound √(k/N2) PM_2, N2 = 1/Σp².
    pub fn softmax_move(&self, moves: &Moves, tau: f64) -> (f64, f64) {
        let (p, _) = self.softmax(tau);
        let concentration = p.len() as f64 * dot(&p, &p);
        (dot(&p, &moves.negatives), concentration.sqrt() * power_mean(&moves.negatives, 2.0))
    }
}

/// The power mean ((1/k) Σ e_j^β)^{1/β} of numbers that are not negative.
pub fn power_mean(values: &[f64], beta: f64) -> f64 {
    let largest = values.iter().copied().fold(0.0, f64::max);
    if largest == 0.0 {
        return 0.0;
    }
    let sum: f64 = values.iter().map(|v| (v / largest).powf(beta)).sum();
    largest * (sum / values.len() as f64).powf(1.0 / beta)
}

/// `K_β = (k p_max)^{1/β}` of (C1), where `p_max = 1/(1 + (k - 1) e^{-2/τ})` is the largest softmax probability of a negative.
pub fn softmax_factor(k: f64, tau: f64, beta: f64) -> f64 {
    (k / (1.0 + (k - 1.0) * (-2.0 / tau).exp())).powf(1.0 / beta)
}

/// The exponents that (C1) and [`lipschitz`] take the smallest bound of.
pub const BETAS: [f64; 11] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 24.0, 32.0];

/// The paper's Proposition 4: the most that the loss changes with these moves, for one β >= 1.
pub fn paper_continuity(moves: &Moves, tau: f64, beta: f64) -> f64 {
    let factor = 3.0 * (2.0 / (beta * tau)).exp();
    (4.0 * moves.anchor + moves.positive + factor * power_mean(&moves.negatives, beta)) / tau
}

/// (C1): the same with 2, 1 and K_β for 4, 1 and 3e^{2/(βτ)}, for one β >= 1.
pub fn continuity(moves: &Moves, tau: f64, beta: f64) -> f64 {
    let k = moves.negatives.len() as f64;
    (2.0 * moves.anchor + moves.positive + softmax_factor(k, tau, beta) * power_mean(&moves.negatives, beta)) / tau
}

/// The max-type bound (18) of Lei et al., as the paper has it.
pub fn max_continuity(moves: &Moves, tau: f64) -> f64 {
    let largest = moves.negatives.iter().copied().fold(0.0, f64::max);
    6.0_f64.sqrt() / tau * (moves.anchor.powi(2) + moves.positive.powi(2) + largest.powi(2)).sqrt()
}

/// The sizes of a sample's inputs, from which the Lipschitz constants of its losses in the parameters follow.
#[derive(Debug, Clone, PartialEq)]
pub struct Sizes {
    /// The root mean square of ||z|| over anchors.
    pub anchors: f64,
    /// The same over positives.
    pub positives: f64,
    /// Of every β of [`BETAS`]: the root mean square over tuples of the power mean of their negatives' sizes.
    pub negatives: Vec<f64>,
    /// The root mean square over tuples of their negatives' largest size.
    pub largest: f64,
    /// The number of negatives of a tuple.
    pub k: f64,
}

/// Our Lipschitz constant of the losses in the parameters, in root mean square over the sample, for a class with constant
/// `c_phi`: (C/τ)(2 S_a + S_+ + min_β K_β S_-(β)).
pub fn lipschitz(sizes: &Sizes, tau: f64, c_phi: f64) -> f64 {
    let negatives = BETAS.iter().zip(&sizes.negatives).map(|(beta, s)| softmax_factor(sizes.k, tau, *beta) * s);
    c_phi / tau * (2.0 * sizes.anchors + sizes.positives + negatives.fold(f64::INFINITY, f64::min))
}

/// The max-type constant that (18) gives: it grows with the largest of `k` inputs.
pub fn max_lipschitz(sizes: &Sizes, tau: f64, c_phi: f64) -> f64 {
    let squares = sizes.anchors.powi(2) + sizes.positives.powi(2) + sizes.largest.powi(2);
    c_phi * 6.0_f64.sqrt() / tau * squares.sqrt()
}

/// A class of embeddings with parameters in a ball, as the Rademacher bounds need it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ball {
    /// The number of parameters.
    pub parameters: f64,
    /// The radius of the ball.
    pub radius: f64,
}

/// The paper's Proposition 5 of `n` tuples: (96/τ) √(p/n) min{a √(log 3 + 1), √(log(1 + 2a) + 1)}, a = e R B_τ C_Φ.
pub fn paper_rademacher(ball: Ball, n: f64, tau: f64, b_tau: f64, c_phi: f64) -> f64 {
    let a = 1.0_f64.exp() * ball.radius * b_tau * c_phi;
    let either = (a * (3.0_f64.ln() + 1.0).sqrt()).min(((1.0 + 2.0 * a).ln() + 1.0).sqrt());
    96.0 / tau * (ball.parameters / n).sqrt() * either
}

/// The larger of what the class can do to a loss: min(L R, Δ_k).
fn diameter(ball: Ball, lipschitz: f64, tau: f64, k: f64) -> f64 {
    (lipschitz * ball.radius).min(loss_range(tau, k))
}

/// Our bound by Dudley's integral: (12/√n) ∫_0^{D/2} √(p log(1 + 2LR/e)) de.
pub fn dudley(ball: Ball, n: f64, lipschitz: f64, tau: f64, k: f64) -> f64 {
    let half = diameter(ball, lipschitz, tau, k) / 2.0;
    if half == 0.0 {
        return 0.0;
    }
    // e = half · e^{-t} leaves a smooth integrand with exponential decay.
    let (points, weights) = gauss_legendre(96);
    let reach = 45.0;
    let integral: f64 = points
        .iter()
        .zip(weights)
        .map(|(x, w)| {
            let t = reach * (1.0 + x) / 2.0;
            let cover = (2.0 * lipschitz * ball.radius / half * t.exp()).ln_1p();
            w * reach / 2.0 * (ball.parameters * cover).sqrt() * (-t).exp()
        })
        .sum();
    12.0 / n.sqrt() * half * integral
}

/// Our bound by one net: inf over ε <= R of L ε + D √(2 p log(1 + 2R/ε)/n).
pub fn one_net(ball: Ball, n: f64, lipschitz: f64, tau: f64, k: f64) -> f64 {
    let d = diameter(ball, lipschitz, tau, k);
    let at = |ln: f64| {
        let eps = ball.radius * ln.exp();
        lipschitz * eps + d * (2.0 * ball.parameters * (2.0 * ball.radius / eps).ln_1p() / n).sqrt()
    };
    (0..=4000).map(|i| at(-20.0 + f64::from(i) / 200.0)).fold(f64::INFINITY, f64::min)
}

/// Massart's bound of the Rademacher complexity of finitely many loss vectors of `n` tuples: the longest one times √(2 log M)/n.
pub fn massart(longest: f64, members: f64, n: f64) -> f64 {
    longest * (2.0 * members.ln()).sqrt() / n
}

/// 3 Δ_k √(log(2/δ)/(2n)): what our uniform bound has beside the mean loss and twice the Rademacher complexity, with probability at
/// least 1 - `delta` for all embeddings of the class at once (docs/theory.md 5.2).
pub fn uniform_excess(range: f64, delta: f64, n: f64) -> f64 {
    3.0 * range * ((2.0 / delta).ln() / (2.0 * n)).sqrt()
}

/// The same of the paper's Proposition 3, where 12/τ is in the place of 3 Δ_k.
pub fn paper_uniform_excess(tau: f64, delta: f64, n: f64) -> f64 {
    uniform_excess(4.0 / tau, delta, n)
}

/// The Rademacher complexity of finitely many embeddings on a sample, and its standard error: the mean over `signs` draws of signs
/// of the largest signed mean of the losses. `losses` has a row a tuple and a column an embedding; `random` gives the random
/// numbers of each draw, so that samples can be compared under the same signs.
///
/// Row means make no difference to the complexity, and are taken out for a smaller variance.
///
/// # Errors
/// [`Error::Input`] of no losses, rows of different lengths, or fewer than two draws.
pub fn rademacher(losses: &[Vec<f64>], signs: usize, random: impl Fn(usize) -> Random + Sync) -> Result<(f64, f64)> {
    let members = losses.first().map_or(0, Vec::len);
    if members == 0 || losses.iter().any(|row| row.len() != members) || signs < 2 {
        return Err(Error::Input(format!(
            "Rademacher complexity: expected rows of as many losses each, at least one, and at least 2 draws of signs; found {} \
             rows, the first of {members}, and {signs} draws",
            losses.len()
        )));
    }
    let centred: Vec<Vec<f64>> = losses
        .iter()
        .map(|row| {
            let mean = row.iter().sum::<f64>() / members as f64;
            row.iter().map(|l| l - mean).collect()
        })
        .collect();
    let largest: Vec<f64> = (0..signs)
        .into_par_iter()
        .map(|t| {
            let mut random = random(t);
            let mut sums = vec![0.0; members];
            for row in &centred {
                let sign = random.sign();
                sums.iter_mut().zip(row).for_each(|(s, l)| *s += sign * l);
            }
            sums.into_iter().fold(f64::NEG_INFINITY, f64::max) / losses.len() as f64
        })
        .collect();
    Ok((largest.iter().sum::<f64>() / signs as f64, (variance(&largest) / signs as f64).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_means() {
        assert!((power_mean(&[3.0, 4.0], 2.0) - 12.5_f64.sqrt()).abs() < 1e-15);
        assert!((power_mean(&[1e-300, 3.0], 100.0) - 3.0 * 0.5_f64.powf(0.01)).abs() < 1e-14);
        assert_eq!(power_mean(&[0.0, 0.0], 2.0), 0.0);
        assert_eq!(softmax_factor(1.0, 0.1, 3.0), 1.0);
        assert!((softmax_factor(1e30, 0.5, 2.0) - 2.0_f64.exp()).abs() < 1e-9);
    }

    #[test]
    fn a_loss_worked_by_hand() {
        let tuple = Tuple::new(vec![1.0, 0.0], vec![0.6, 0.8], vec![vec![0.0, 1.0], vec![-1.0, 0.0]]).unwrap();
        let by_hand = (1.0 + (-1.2_f64).exp() + (-3.2_f64).exp()).ln() - 2.0_f64.ln();
        assert!((tuple.loss(0.5) - by_hand).abs() < 1e-15);
    }

    #[test]
    fn constants_worked_by_hand() {
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-13, "{a} {b}");
        let moves = Moves { anchor: 1.0, positive: 2.0, negatives: vec![3.0, 4.0] };
        let e = 1.0_f64.exp();
        near(paper_continuity(&moves, 1.0, 2.0), 4.0 + 2.0 + 3.0 * e * 12.5_f64.sqrt());
        let factor = (2.0 / (1.0 + (-2.0_f64).exp())).sqrt();
        near(continuity(&moves, 1.0, 2.0), 2.0 + 2.0 + factor * 12.5_f64.sqrt());
        near(max_continuity(&moves, 0.5), 2.0 * (6.0 * 21.0_f64).sqrt());
        let sizes = Sizes { anchors: 1.0, positives: 2.0, negatives: vec![3.0; BETAS.len()], largest: 4.0, k: 1.0 };
        near(lipschitz(&sizes, 0.5, 1.0), 14.0);
        near(max_lipschitz(&sizes, 0.5, 1.0), 2.0 * (6.0 * 21.0_f64).sqrt());
        near(massart(3.0, 81.0, 150.0), 3.0 * (2.0 * 81.0_f64.ln()).sqrt() / 150.0);
    }

    #[test]
    fn complexity_by_all_signs() {
        let losses = [[0.0, 1.0], [2.0, 0.5], [1.0, 1.5]].map(|r| r.to_vec());
        let mut exact = 0.0;
        for signs in 0..8 {
            let sum =
                |m: usize| (0..3).map(|i| if signs >> i & 1 == 1 { losses[i][m] } else { -losses[i][m] }).sum::<f64>();
            exact += sum(0).max(sum(1)) / 24.0;
        }
        let (value, error) = rademacher(&losses, 20_000, |t| Random::new(0, t as u64)).unwrap();
        assert!((value - exact).abs() < 4.0 * error && error < 0.005, "{value} {error} {exact}");
        assert!(rademacher(&[], 8, |_| Random::new(0, 0)).is_err());
        assert!(rademacher(&[vec![1.0], vec![]], 8, |_| Random::new(0, 0)).is_err());
    }

    #[test]
    fn the_uniform_bound_by_hand() {
        assert!((uniform_excess(2.0, 0.05, 50.0) - 6.0 * (40.0_f64.ln() / 100.0).sqrt()).abs() < 1e-15);
        assert!((paper_uniform_excess(0.5, 0.05, 50.0) / uniform_excess(2.0, 0.05, 50.0) - 4.0).abs() < 1e-14);
    }

    #[test]
    fn tuples_of_different_lengths_are_refused() {
        let error = Tuple::new(vec![1.0], vec![1.0], vec![vec![1.0], vec![1.0, 0.0]]).unwrap_err().to_string();
        assert!(error.contains("negative 1 has 2"), "{error}");
        assert!(Tuple::new(vec![1.0], vec![1.0], vec![]).is_err());
    }
}
