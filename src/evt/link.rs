//! Which link the choices of a frozen encoder follow: softmax, Weibit, or a blend of both.
//!
//! In a set of candidates with cosine similarities `s`, the winner is `j` with probability `softmax_j(theta_1 s + theta_2 x)`, where
//! `x = -log(max(1 - s, 1e-6))` is the endpoint coordinate. Softmax has `theta_2 = 0` and keeps under translations of scores; Weibit has
//! `theta_1 = 0` and keeps under scalings of the distance from the endpoint. On a common scale, `theta = kappa (1 - lambda, lambda)`.
//!
//! `lambda` depends on the units of both coordinates; the share weighs them by how far they vary within a set.

use super::{LikelihoodRatio, SHORTFALL_FLOOR, Z_95};
use crate::{Error, Result};
use rayon::prelude::*;

/// The least number of choices that is fitted.
pub const MIN_CHOICES: usize = 20;

/// A log-likelihood a choice above which the winners are as good as separated.
pub const SEPARATED_ABOVE: f64 = -1e-3;

/// One choice among candidates.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    /// Cosine similarities of the candidates to the anchor, at least two.
    pub scores: &'a [f64],
    /// The place of the winner among them, from 0.
    pub winner: usize,
    /// Number of the anchor. Choices of one anchor are a cluster of the robust errors.
    pub anchor: usize,
}

/// A link of one parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Single {
    /// What the coordinate is multiplied by: for softmax the inverse temperature, for Weibit the slope.
    pub theta: f64,
    /// Its standard error, by the information.
    pub error: f64,
    /// The log-likelihood.
    pub log_likelihood: f64,
}

impl Single {
    /// Akaike's criterion.
    pub fn aic(&self) -> f64 {
        2.0 - 2.0 * self.log_likelihood
    }
}

/// A test of the blend against one of its ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EndTest {
    /// With the blend's weights unconstrained: chi-squared with one degree of freedom.
    pub two_sided: LikelihoodRatio,
    /// With a weight on the other coordinate that is at least 0, the end being the boundary: half of the probability, and 1 where the
    /// unconstrained weight is not above 0.
    pub p_boundary: f64,
}

/// The blend of both links, on a common scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Blend {
    /// Weights of similarity and endpoint coordinate.
    pub theta: [f64; 2],
    /// Their standard errors, by the information.
    pub theta_errors: [f64; 2],
    /// Their standard errors, robust with anchors as clusters.
    pub theta_errors_robust: [f64; 2],
    /// The log-likelihood.
    pub log_likelihood: f64,
    /// The common scale, the sum of the weights.
    pub kappa: f64,
    /// The endpoint coordinate's part of the scale, unconstrained: it may be below 0 or above 1.
    pub lambda: f64,
    /// The most likely value in `[0, 1]`.
    pub lambda_constrained: f64,
    /// Standard error of `lambda`, by the information and the delta method.
    pub lambda_error: f64,
    /// The same, robust with anchors as clusters.
    pub lambda_error_robust: f64,
    /// The endpoint coordinate's part of how far the logits vary within a set; none where the parts cancel.
    pub lambda_share: Option<f64>,
    /// Standard deviations of both coordinates within a set, under the model.
    pub deviations: [f64; 2],
    /// The test of `lambda = 0`.
    pub softmax_test: EndTest,
    /// The test of `lambda = 1`.
    pub weibit_test: EndTest,
}

impl Blend {
    /// Akaike's criterion.
    pub fn aic(&self) -> f64 {
        4.0 - 2.0 * self.log_likelihood
    }

    /// Both ends of the 95 % interval of the unconstrained `lambda`, by the information.
    pub fn lambda_95(&self) -> [f64; 2] {
        [self.lambda - Z_95 * self.lambda_error, self.lambda + Z_95 * self.lambda_error]
    }

    /// The same, robust: for anchors that choose more than once.
    pub fn lambda_95_robust(&self) -> [f64; 2] {
        [self.lambda - Z_95 * self.lambda_error_robust, self.lambda + Z_95 * self.lambda_error_robust]
    }

    /// The wider of both: of few anchors the robust error may be too small, of dependent choices the other one is.
    pub fn lambda_95_wider(&self) -> [f64; 2] {
        if self.lambda_error_robust > self.lambda_error { self.lambda_95_robust() } else { self.lambda_95() }
    }
}

/// Why there is no blend.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum NoBlend {
    /// Weights exist with which every winner is at the top of its set.
    #[error(
        "separated: with the right weights every winner has the highest logit of its set, so that the likelihood grows with them without end; let winners vary more, or take more choices"
    )]
    Separated,
    /// As good as [`NoBlend::Separated`].
    #[error(
        "separated but for rounding: the log-likelihood a choice is {per_choice:.1e}, and weights are not determined; let winners vary more, or take more choices"
    )]
    NearlySeparated {
        /// The log-likelihood a choice.
        per_choice: f64,
    },
    /// The coordinates cannot be told apart.
    #[error(
        "the similarity and the endpoint coordinate differ by one factor in all sets, so that their weights cannot be told apart; take candidates with more different similarities"
    )]
    Collinear,
    /// Winners are the unlike ones.
    #[error(
        "the weights {}, {} of similarity and endpoint coordinate have no positive sum: winners do not prefer what is similar, and lambda has no meaning", theta[0], theta[1]
    )]
    NotPositive {
        /// The weights.
        theta: [f64; 2],
    },
}

/// Links fitted to choices.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkFit {
    /// The number of choices.
    pub choices: usize,
    /// The number of anchors.
    pub anchors: usize,
    /// The log-likelihood of the link that takes every candidate alike; it has no parameter.
    pub uniform_log_likelihood: f64,
    /// Softmax with a fitted temperature; none where similarities separate the winners.
    pub softmax: Option<Single>,
    /// Weibit with a fitted slope; none where endpoint coordinates separate the winners.
    pub weibit: Option<Single>,
    /// The blend, or why there is none.
    pub blend: std::result::Result<Blend, NoBlend>,
}

/// The blend with given scales: one parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Anchored {
    /// The weight of the endpoint coordinate.
    pub lambda: f64,
    /// Its standard error, by the information.
    pub error: f64,
    /// The same, robust with anchors as clusters.
    pub error_robust: f64,
    /// The log-likelihood.
    pub log_likelihood: f64,
    /// The test of `lambda = 0`.
    pub softmax_test: EndTest,
}

impl LinkFit {
    /// Fits all links by maximum likelihood to choices whose sets may differ in size.
    ///
    /// # Numerics
    /// The likelihoods are concave; Newton's method ends where a step changes them by less than 1e-12. The result does not depend on the
    /// number of threads.
    ///
    /// # Errors
    /// [`Error::Input`] for fewer than [`MIN_CHOICES`] choices, a set of fewer than two candidates, a winner outside its set, a score that
    /// is no cosine, and where no set has candidates that differ from the winner.
    pub fn of(choices: &[Choice]) -> Result<LinkFit> {
        let sets = Sets::new(choices)?;
        let single = |axis: usize| {
            let found =
                if sets.separated_along(AXES[axis]) { None } else { sets.maximum([0.0; 2], &[AXES[axis]]).ok() };
            found.map(|Maximum { theta, state }| Single {
                theta: theta[axis],
                error: 1.0 / state.information[axis][axis].sqrt(),
                log_likelihood: state.log_likelihood,
            })
        };
        let (softmax, weibit) = (single(0), single(1));
        Ok(LinkFit {
            choices: choices.len(),
            anchors: sets.anchors(),
            uniform_log_likelihood: -choices.iter().map(|c| (c.scores.len() as f64).ln()).sum::<f64>(),
            softmax,
            weibit,
            blend: sets.blend(softmax, weibit),
        })
    }

    /// Fits `(1 - lambda) a s + lambda b x` with given `scales` `[a, b]`: an inverse temperature and a tail index.
    ///
    /// Where a scale is not the choices' own, `lambda` is biased badly; [`LinkFit::of`] assumes none.
    ///
    /// # Errors
    /// As [`LinkFit::of`]; [`Error::Input`] for scales that are not positive and finite, and where the winners are separated.
    pub fn anchored(choices: &[Choice], scales: [f64; 2]) -> Result<Anchored> {
        let [a, b] = scales;
        if !scales.iter().all(|s| s.is_finite() && *s > 0.0) {
            return Err(Error::Input(format!("the scales of a link are {a}, {b}; expected positive finite numbers")));
        }
        let sets = Sets::new(choices)?;
        let direction = [-a, b];
        let found = if sets.separated_along(direction) { None } else { sets.maximum([a, 0.0], &[direction]).ok() };
        let Some(Maximum { theta, state }) = found.filter(|m| sets.per_choice(&m.state) <= SEPARATED_ABOVE) else {
            return Err(Error::Input(
                "the winners are separated, so that no lambda is the most likely; let winners vary more, or take more choices".into(),
            ));
        };
        let lambda = theta[1] / b;
        let information = quadratic(&state.information, direction);
        let plain = sets.state([a, 0.0]).log_likelihood;
        Ok(Anchored {
            lambda,
            error: 1.0 / information.sqrt(),
            error_robust: quadratic(&sets.scatter(theta), direction).sqrt() / information,
            log_likelihood: state.log_likelihood,
            softmax_test: EndTest::new(state.log_likelihood, plain, lambda),
        })
    }
}

impl EndTest {
    /// Against an end from which the fit lies `away`.
    fn new(blend: f64, end: f64, away: f64) -> EndTest {
        let two_sided = LikelihoodRatio::of(blend, end);
        EndTest { two_sided, p_boundary: if away > 0.0 { two_sided.p / 2.0 } else { 1.0 } }
    }
}

/// Along the similarity, and along the endpoint coordinate.
const AXES: [[f64; 2]; 2] = [[1.0, 0.0], [0.0, 1.0]];

/// A symmetric matrix.
type Square = [[f64; 2]; 2];

/// `v M v`.
fn quadratic(m: &Square, v: [f64; 2]) -> f64 {
    v[0] * v[0] * m[0][0] + 2.0 * v[0] * v[1] * m[0][1] + v[1] * v[1] * m[1][1]
}

/// The inverse; none where the columns are as good as one.
fn inverse(m: &Square) -> Option<Square> {
    let determinant = m[0][0] * m[1][1] - m[0][1] * m[1][0];
    (determinant > 1e-13 * m[0][0] * m[1][1])
        .then(|| [[m[1][1] / determinant, -m[0][1] / determinant], [-m[1][0] / determinant, m[0][0] / determinant]])
}

/// `A B A` for symmetric `A`.
fn sandwich(a: &Square, b: &Square) -> Square {
    let product = |x: &Square, y: &Square| {
        std::array::from_fn(|i| std::array::from_fn(|j| x[i][0] * y[0][j] + x[i][1] * y[1][j]))
    };
    product(&product(a, b), a)
}

/// Choices as the losers' coordinates less their winner's.
struct Sets {
    /// `[s, x]`, loser after loser.
    losers: Vec<[f64; 2]>,
    /// Where each set's losers begin, and the end of the last.
    starts: Vec<usize>,
    /// The cluster of each set, from 0 on.
    clusters: Vec<usize>,
}

/// The likelihood at one place.
#[derive(Clone, Copy, Default)]
struct State {
    log_likelihood: f64,
    gradient: [f64; 2],
    information: Square,
}

struct Maximum {
    theta: [f64; 2],
    state: State,
}

/// Sets whose sums a thread makes at a time: a fixed number, so that sums do not depend on that of the threads.
const BLOCK: usize = 128;

impl Sets {
    fn new(choices: &[Choice]) -> Result<Sets> {
        if choices.len() < MIN_CHOICES {
            return Err(Error::Input(format!(
                "a link got {} choices; expected at least {MIN_CHOICES}; take more anchors",
                choices.len()
            )));
        }
        let mut sets = Sets { losers: Vec::new(), starts: vec![0], clusters: Vec::new() };
        let mut anchors: Vec<usize> = choices.iter().map(|c| c.anchor).collect();
        anchors.sort_unstable();
        anchors.dedup();
        for (number, choice) in choices.iter().enumerate() {
            let &Choice { scores, winner, anchor } = choice;
            if scores.len() < 2 || winner >= scores.len() {
                return Err(Error::Input(format!(
                    "choice {number}, counted from 0, has {} candidates and the winner {winner}; expected at least 2 candidates, and a winner among them, counted from 0",
                    scores.len()
                )));
            }
            if let Some(index) = scores.iter().position(|s| s.is_nan() || s.abs() > 1.001) {
                return Err(Error::Input(format!(
                    "score {index} of choice {number}, both counted from 0, is {}; expected cosine similarities, from -1 to 1: give them without a temperature",
                    scores[index]
                )));
            }
            let shortfall = |s: f64| (1.0 - s).max(SHORTFALL_FLOOR);
            let (own, own_shortfall) = (scores[winner], shortfall(scores[winner]));
            let difference = |s: f64| [s - own, (own_shortfall / shortfall(s)).ln()];
            let others = scores.iter().enumerate().filter(|(j, _)| *j != winner);
            sets.losers.extend(others.map(|(_, s)| difference(*s)));
            sets.starts.push(sets.losers.len());
            // The anchor is one of those listed.
            sets.clusters.push(anchors.partition_point(|a| *a < anchor));
        }
        if sets.losers.iter().all(|d| *d == [0.0; 2]) {
            return Err(Error::Input(format!(
                "in all {} choices every candidate has the winner's similarity; expected similarities that differ; look for collapsed features",
                choices.len()
            )));
        }
        Ok(sets)
    }

    fn anchors(&self) -> usize {
        self.clusters.iter().max().map_or(0, |c| c + 1)
    }

    /// Whether a weighted sum of both coordinates, with either sign, puts every winner at the top, or leaves all alike.
    fn separated_along(&self, weights: [f64; 2]) -> bool {
        let logit = |d: &[f64; 2]| weights[0] * d[0] + weights[1] * d[1];
        !(self.losers.iter().any(|d| logit(d) > 0.0) && self.losers.iter().any(|d| logit(d) < 0.0))
    }

    fn per_choice(&self, state: &State) -> f64 {
        state.log_likelihood / self.clusters.len() as f64
    }

    /// Why both weights together are not determined.
    ///
    /// `s` and `x` grow together: a loser lies above its winner in both, or below it in both. Weights put winners on top if a line through 0
    /// parts the losers above and below, as seen by `x / s`: if one kind's ratios all come before the other's.
    fn undetermined(&self) -> Option<NoBlend> {
        // Least and greatest ratio of losers below and above.
        let mut ranges = [[f64::INFINITY, f64::NEG_INFINITY]; 2];
        for [s, x] in self.losers.iter().filter(|d| d[0] != 0.0) {
            let range = &mut ranges[usize::from(*s > 0.0)];
            let ratio = x / s;
            *range = [range[0].min(ratio), range[1].max(ratio)];
        }
        let [below, above] = ranges;
        let (least, most) = (below[0].min(above[0]), below[1].max(above[1]));
        if below[0] > below[1] || above[0] > above[1] {
            Some(NoBlend::Separated)
        } else if most - least <= 1e-10 * most {
            Some(NoBlend::Collinear)
        } else {
            (below[1] <= above[0] || above[1] <= below[0]).then_some(NoBlend::Separated)
        }
    }

    fn blend(&self, softmax: Option<Single>, weibit: Option<Single>) -> std::result::Result<Blend, NoBlend> {
        if let Some(why) = self.undetermined() {
            return Err(why);
        }
        let nearly = |state: &State| NoBlend::NearlySeparated { per_choice: self.per_choice(state) };
        let Maximum { theta, state } = self.maximum([0.0; 2], &AXES).map_err(|last| {
            // The information is singular from the start, or has vanished on the way.
            if inverse(&self.state([0.0; 2]).information).is_none() { NoBlend::Collinear } else { nearly(&last) }
        })?;
        let (Some(softmax), Some(weibit), Some(covariance)) = (softmax, weibit, inverse(&state.information)) else {
            return Err(nearly(&state));
        };
        if self.per_choice(&state) > SEPARATED_ABOVE {
            return Err(nearly(&state));
        }
        let kappa = theta[0] + theta[1];
        if kappa <= 0.0 {
            return Err(NoBlend::NotPositive { theta });
        }
        let robust = sandwich(&covariance, &self.scatter(theta));
        let roots = |m: &Square| [m[0][0].sqrt(), m[1][1].sqrt()];
        // The derivatives of lambda = theta_2 / (theta_1 + theta_2).
        let slope = [-theta[1] / kappa / kappa, theta[0] / kappa / kappa];
        let lambda = theta[1] / kappa;
        let n = self.clusters.len() as f64;
        let deviations = [(state.information[0][0] / n).sqrt(), (state.information[1][1] / n).sqrt()];
        let parts = [theta[0] * deviations[0], theta[1] * deviations[1]];
        let ends = [softmax.log_likelihood, weibit.log_likelihood];
        // Concave: where the maximum is outside, the better end is the best inside.
        let lambda_constrained = match lambda {
            l if (0.0..=1.0).contains(&l) => l,
            _ => f64::from(u8::from(ends[1] > ends[0])),
        };
        Ok(Blend {
            theta,
            theta_errors: roots(&covariance),
            theta_errors_robust: roots(&robust),
            log_likelihood: state.log_likelihood,
            kappa,
            lambda,
            lambda_constrained,
            lambda_error: quadratic(&covariance, slope).sqrt(),
            lambda_error_robust: quadratic(&robust, slope).sqrt(),
            lambda_share: (parts[0] + parts[1] > 0.0).then(|| parts[1] / (parts[0] + parts[1])),
            deviations,
            softmax_test: EndTest::new(state.log_likelihood, ends[0], theta[1]),
            weibit_test: EndTest::new(state.log_likelihood, ends[1], theta[0]),
        })
    }

    /// The most likely weights among `start` plus combinations of one or two `directions`. Where the information vanishes, or the
    /// likelihood rises without end but for rounding: the last state.
    fn maximum(&self, start: [f64; 2], directions: &[[f64; 2]]) -> std::result::Result<Maximum, State> {
        let mut theta = start;
        let mut state = self.state(theta);
        for _ in 0..200 {
            let Some(step) = newton_step(&state, directions) else { return Err(state) };
            let gain = step[0] * state.gradient[0] + step[1] * state.gradient[1];
            let along = |t: f64| [theta[0] + t * step[0], theta[1] + t * step[1]];
            // So near to the maximum a whole step is right to all digits, and likelihoods cannot be compared.
            if gain <= 1e-12 {
                theta = along(1.0);
                return Ok(Maximum { theta, state: self.state(theta) });
            }
            let mut size = 1.0;
            let slack = 1e-13 * state.log_likelihood.abs();
            loop {
                let next = self.state(along(size));
                if next.log_likelihood >= state.log_likelihood + 1e-4 * size * gain - slack || size < 1e-9 {
                    theta = along(size);
                    state = next;
                    break;
                }
                size *= 0.5;
            }
        }
        Err(state)
    }

    /// Likelihood, gradient and information at `theta`.
    fn state(&self, theta: [f64; 2]) -> State {
        let total = |mut sum: State, part: &State| {
            sum.log_likelihood += part.log_likelihood;
            for i in 0..2 {
                sum.gradient[i] += part.gradient[i];
                (0..2).for_each(|j| sum.information[i][j] += part.information[i][j]);
            }
            sum
        };
        let block = |starts: &[usize]| {
            let mut weights = Vec::new();
            let sets = starts.windows(2).map(|s| set_state(&self.losers[s[0]..s[1]], theta, &mut weights));
            sets.fold(State::default(), |sum, set| total(sum, &set))
        };
        let parts: Vec<State> = self.blocks().into_par_iter().map(block).collect();
        parts.iter().fold(State::default(), total)
    }

    /// The starts of [`BLOCK`] sets each, and the end of the last of them.
    fn blocks(&self) -> Vec<&[usize]> {
        let sets = self.clusters.len();
        (0..sets).step_by(BLOCK).map(|from| &self.starts[from..=sets.min(from + BLOCK)]).collect()
    }

    /// The sum over clusters of the products of their gradients.
    fn scatter(&self, theta: [f64; 2]) -> Square {
        let mut gradients = vec![[0.0; 2]; self.anchors()];
        let mut weights = Vec::new();
        for (range, cluster) in self.starts.windows(2).zip(&self.clusters) {
            let set = set_state(&self.losers[range[0]..range[1]], theta, &mut weights);
            (0..2).for_each(|i| gradients[*cluster][i] += set.gradient[i]);
        }
        let product = |i: usize, j: usize| gradients.iter().map(|g| g[i] * g[j]).sum();
        [[product(0, 0), product(0, 1)], [product(1, 0), product(1, 1)]]
    }
}

/// One set's part of the likelihood. `weights` is room for its losers.
fn set_state(losers: &[[f64; 2]], theta: [f64; 2], weights: &mut Vec<f64>) -> State {
    weights.clear();
    weights.extend(losers.iter().map(|d| theta[0] * d[0] + theta[1] * d[1]));
    // The winner's logit is 0.
    let top = weights.iter().fold(0.0_f64, |top, v| top.max(*v));
    let winner = (-top).exp();
    weights.iter_mut().for_each(|v| *v = (*v - top).exp());
    let others: f64 = weights.iter().sum();
    let all = winner + others;
    let mut mean = [0.0; 2];
    for (d, w) in losers.iter().zip(&*weights) {
        mean = [mean[0] + w * d[0], mean[1] + w * d[1]];
    }
    let mean = mean.map(|m| m / all);
    // From the mean: no cancellation between large squares. The winner is at 0.
    let mut information = [winner * mean[0] * mean[0], winner * mean[0] * mean[1], winner * mean[1] * mean[1]];
    for (d, w) in losers.iter().zip(&*weights) {
        let [s, x] = [d[0] - mean[0], d[1] - mean[1]];
        information = [information[0] + w * s * s, information[1] + w * s * x, information[2] + w * x * x];
    }
    let [ss, sx, xx] = information.map(|v| v / all);
    State {
        // Where the winner is on top, 1 plus little.
        log_likelihood: if top == 0.0 { -others.ln_1p() } else { -top - all.ln() },
        gradient: mean.map(|m| -m),
        information: [[ss, sx], [sx, xx]],
    }
}

/// Newton's step along one or two directions, as a change of the weights; none where the information vanishes.
fn newton_step(state: &State, directions: &[[f64; 2]]) -> Option<[f64; 2]> {
    let &State { gradient, ref information, .. } = state;
    match directions {
        [v] => {
            let (slope, curvature) = (v[0] * gradient[0] + v[1] * gradient[1], quadratic(information, *v));
            (curvature > 0.0).then(|| v.map(|v| v * slope / curvature))
        }
        _ => inverse(information)
            .map(|m| [m[0][0] * gradient[0] + m[0][1] * gradient[1], m[1][0] * gradient[0] + m[1][1] * gradient[1]]),
    }
}

#[cfg(test)]
mod tests;
