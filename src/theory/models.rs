//! Data models whose limits are closed forms: docs/theory.md 6 and 1.3.
//!
//! [`Sphere`] (Model A) has points all over a sphere and positives of a von Mises-Fisher law; [`Codes`] (Model D) has finitely many
//! orthogonal codes and positives of the same code; [`Line`] (Model C) has normal points embedded on a circle, so that its anchors
//! differ from one another.

use super::engine::{Anchor, Discrete, FiniteK, Grid};
use super::special::{binomial, gauss_legendre, ln_sphere_mgf, scaled_bessel_i, sphere_mean_cosine};
use crate::{Error, Result};
use std::f64::consts::PI;

/// Means over anchors from which the first terms in 1/k follow (docs/theory.md 1.3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    /// E a, of the positive's weight.
    pub a: f64,
    /// E a².
    pub a2: f64,
    /// E v, of the variance of the negatives' weights.
    pub v: f64,
    /// E a v.
    pub av: f64,
    /// E m3, of the third central moment of the negatives' weights.
    pub m3: f64,
    /// E v².
    pub v2: f64,
}

impl Moments {
    /// The coefficient of 1/k in R_k.
    pub fn c1(&self) -> f64 {
        self.a + self.c1_dcl()
    }

    /// The coefficient of 1/k² in R_k.
    pub fn c2(&self) -> f64 {
        -self.a2 / 2.0 + self.av + self.c2_dcl()
    }

    /// The coefficient of 1/k in the risk without the positive in the denominator.
    pub fn c1_dcl(&self) -> f64 {
        -self.v / 2.0
    }

    /// The coefficient of 1/k² in the risk without the positive in the denominator.
    pub fn c2_dcl(&self) -> f64 {
        self.m3 / 3.0 - 0.75 * self.v2
    }

    /// A number of negatives from which the slope of D_k in k is -1 within 5 % (docs/theory.md 1.5; sufficient only).
    pub fn k_asymptotic(&self) -> f64 {
        20.0 * (self.m3 / 3.0 + 0.75 * self.v2) / (self.v / 2.0)
    }
}

fn temperature(tau: f64) -> Result<f64> {
    if tau.is_finite() && tau > 0.0 {
        return Ok(1.0 / tau);
    }
    Err(Error::Input(format!("temperature: expected a finite number above 0, found {tau}; try 0.1")))
}

/// A law of scores on finitely many points that integrates like the law of a cosine on a sphere.
#[derive(Debug, Clone, PartialEq)]
pub struct ScoreLaw {
    /// Probabilities; they sum to 1.
    pub probabilities: Vec<f64>,
    /// Scores in [-1, 1].
    pub scores: Vec<f64>,
}

impl ScoreLaw {
    /// The cosine between a fixed direction and a uniform point of the unit sphere in `d >= 2` dimensions.
    ///
    /// In even dimensions the nodes are equally spaced angles, in odd ones those of Gauss and Legendre: the density is then a
    /// trigonometric polynomial or a polynomial, and smooth functions are integrated to rounding.
    pub fn sphere(d: usize) -> ScoreLaw {
        let mut law = if d.is_multiple_of(2) {
            let n = 600;
            let angles = (0..n).map(|j| (j as f64 + 0.5) * PI / n as f64);
            let (probabilities, scores) = angles.map(|t| (t.sin().powi(d as i32 - 2), t.cos())).unzip();
            ScoreLaw { probabilities, scores }
        } else {
            let (scores, weights) = gauss_legendre(200);
            let density = |s: f64| (1.0 - s * s).powi((d as i32 - 3) / 2);
            ScoreLaw { probabilities: scores.iter().zip(weights).map(|(s, w)| w * density(*s)).collect(), scores }
        };
        let sum: f64 = law.probabilities.iter().sum();
        law.probabilities.iter_mut().for_each(|p| *p /= sum);
        law
    }

    /// The mean of a function of the score.
    pub fn mean(&self, f: impl Fn(f64) -> f64) -> f64 {
        self.probabilities.iter().zip(&self.scores).map(|(p, s)| p * f(*s)).sum()
    }

    /// ln E e^{cs}.
    pub fn ln_mgf(&self, c: f64) -> f64 {
        let top = c.abs();
        top + self.mean(|s| (c * s - top).exp()).ln()
    }

    /// The law with density proportional to e^{cs} with respect to this one.
    pub fn tilted(&self, c: f64) -> ScoreLaw {
        let ln = self.ln_mgf(c);
        let terms = self.probabilities.iter().zip(&self.scores);
        ScoreLaw { probabilities: terms.map(|(p, s)| p * (c * s - ln).exp()).collect(), scores: self.scores.clone() }
    }

    /// e^{cs} / E e^{cs} of every point: weights of mean 1.
    pub fn weights(&self, c: f64) -> Vec<f64> {
        let ln = self.ln_mgf(c);
        self.scores.iter().map(|s| (c * s - ln).exp()).collect()
    }
}

/// Model A: anchors uniform on the unit sphere in `d` dimensions, positives of the von Mises-Fisher law of concentration `kappa`
/// around their anchor, and the identity as embedding (docs/theory.md 6.1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sphere {
    d: usize,
    tau: f64,
    kappa: f64,
}

impl Sphere {
    /// Of a dimension of at least 2, a temperature above 0 and a concentration of at least 0.
    ///
    /// # Errors
    /// [`Error::Input`] of anything else.
    pub fn new(d: usize, tau: f64, kappa: f64) -> Result<Sphere> {
        temperature(tau)?;
        if d < 2 {
            return Err(Error::Input(format!("dimension of the sphere model: expected at least 2, found {d}")));
        }
        if !(kappa.is_finite() && kappa >= 0.0) {
            return Err(Error::Input(format!(
                "concentration of the sphere model: expected a finite number of at least 0, found {kappa}; 0 means positives \
                 that are independent of their anchor"
            )));
        }
        Ok(Sphere { d, tau, kappa })
    }

    fn c(&self) -> f64 {
        1.0 / self.tau
    }

    fn ln_g(&self, u: f64) -> f64 {
        ln_sphere_mgf(self.d, u)
    }

    fn cosine(&self, u: f64) -> f64 {
        sphere_mean_cosine(self.d, u)
    }

    /// log Z, the same of every anchor.
    pub fn ln_z(&self) -> f64 {
        self.ln_g(self.c())
    }

    /// `E s⁺`.
    pub fn mean_positive(&self) -> f64 {
        self.cosine(self.kappa)
    }

    /// The limit of the risks.
    pub fn r_inf(&self) -> f64 {
        self.ln_z() - self.c() * self.mean_positive()
    }

    /// The means from which the first terms in 1/k follow. The anchors are alike, so that `v2` is v².
    pub fn moments(&self) -> Moments {
        let (c, kappa) = (self.c(), self.kappa);
        let w2 = (self.ln_g(2.0 * c) - 2.0 * self.ln_g(c)).exp();
        let w3 = (self.ln_g(3.0 * c) - 3.0 * self.ln_g(c)).exp();
        let a = (self.ln_g(kappa + c) - self.ln_g(kappa) - self.ln_g(c)).exp();
        let a2 = (self.ln_g(kappa + 2.0 * c) - self.ln_g(kappa) - 2.0 * self.ln_g(c)).exp();
        let v = w2 - 1.0;
        Moments { a, a2, v, av: a * v, m3: w3 - 3.0 * w2 + 2.0, v2: v * v }
    }

    /// E |dM/dπ|², one more than the chi-square divergence of the positives' law from the data's.
    pub fn ratio_squared(&self) -> f64 {
        (self.ln_g(2.0 * self.kappa) - 2.0 * self.ln_g(self.kappa)).exp()
    }

    /// The coefficient of 1/k in `ECE_k` (docs/theory.md 1.3).
    pub fn ece_c1(&self) -> f64 {
        let gain = self.ratio_squared() * (self.cosine(2.0 * self.kappa) - self.cosine(self.kappa));
        self.c() * gain + self.moments().c1_dcl()
    }

    /// KL(M||π) in nats: how much a positive tells of its anchor.
    pub fn kl_positives(&self) -> f64 {
        self.kappa * self.cosine(self.kappa) - self.ln_g(self.kappa)
    }

    /// KL(M||Q) in nats: what the softmax search at this temperature loses. It vanishes where 1/τ is the concentration.
    pub fn kl_positives_search(&self) -> f64 {
        self.r_inf() + self.kl_positives()
    }

    /// KL(Q||π) in nats.
    pub fn kl_search(&self) -> f64 {
        self.c() * self.cosine(self.c()) - self.ln_z()
    }

    /// KL(π||Q) in nats. The mean score of a negative is 0.
    pub fn kl_reverse(&self) -> f64 {
        self.ln_z()
    }

    /// `log(1 / w_min)`, w_min being the smallest weight of a negative.
    pub fn ln_inverse_least_weight(&self) -> f64 {
        self.c() + self.ln_z()
    }

    /// The law of a positive's score, on the points of [`ScoreLaw::sphere`].
    pub fn positives(&self) -> ScoreLaw {
        ScoreLaw::sphere(self.d).tilted(self.kappa)
    }

    /// The risks at a finite number of negatives.
    pub fn finite_k(&self) -> FiniteK {
        let law = ScoreLaw::sphere(self.d);
        let positives = law.tilted(self.kappa);
        let weights = law.weights(self.c());
        let ratio = law.weights(self.kappa);
        let smallest = (-self.ln_inverse_least_weight()).exp();
        let anchor = Anchor::new(1.0, Grid::exact(smallest), discrete(&law, &weights))
            .with_positives(discrete(&positives, &weights))
            .with_search(discrete(&law, &ratio), &law.scores);
        let (mean_ln_z, mean_positive) = (self.ln_z(), self.mean_positive());
        FiniteK { anchors: vec![anchor], tau: self.tau, mean_ln_z, mean_positive }
    }
}

fn discrete<'a>(law: &'a ScoreLaw, values: &'a [f64]) -> Discrete<'a> {
    Discrete { probabilities: &law.probabilities, values }
}

/// Model D: `n` orthogonal codes of equal probability, positives of the anchor's own code (docs/theory.md 6.3; the paper's A.2).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Codes {
    n: f64,
    tau: f64,
}

/// The exact risks of [`Codes`] at a number of negatives, by sums over the binomial number of equal codes among them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CodeRisks {
    /// `R_k`.
    pub risk: f64,
    /// `R~_k`, without the positive in the denominator.
    pub dcl: f64,
    /// `ECE_k`.
    pub ece: f64,
}

impl Codes {
    /// Of at least two codes and a temperature above 0.
    ///
    /// # Errors
    /// [`Error::Input`] of anything else.
    pub fn new(n: usize, tau: f64) -> Result<Codes> {
        temperature(tau)?;
        if n < 2 {
            return Err(Error::Input(format!("number of orthogonal codes: expected at least 2, found {n}")));
        }
        Ok(Codes { n: n as f64, tau })
    }

    fn z(&self) -> f64 {
        1.0 + (1.0 / self.tau).exp_m1() / self.n
    }

    /// log Z, the same of every anchor.
    pub fn ln_z(&self) -> f64 {
        self.z().ln()
    }

    /// The limit of the risks.
    pub fn r_inf(&self) -> f64 {
        self.ln_z() - 1.0 / self.tau
    }

    /// The means from which the first terms in 1/k follow.
    pub fn moments(&self) -> Moments {
        let (q, jump) = (1.0 / self.n, (1.0 / self.tau).exp_m1() / self.z());
        let a = (1.0 / self.tau).exp() / self.z();
        let v = q * (1.0 - q) * jump * jump;
        Moments { a, a2: a * a, v, av: a * v, m3: v * (1.0 - 2.0 * q) * jump, v2: v * v }
    }

    /// E |dM/dπ|²: the number of codes.
    pub fn ratio_squared(&self) -> f64 {
        self.n
    }

    /// `log(1 / w_min)`, w_min being the smallest weight of a negative.
    pub fn ln_inverse_least_weight(&self) -> f64 {
        self.ln_z()
    }

    /// The exact risks at `k >= 1` negatives.
    pub fn exact(&self, k: u64) -> CodeRisks {
        let (c, size) = (1.0 / self.tau, k as f64);
        let e = c.exp();
        let mut risks = CodeRisks { risk: 0.0, dcl: 0.0, ece: 0.0 };
        for (b, p) in binomial(k, 1.0 / self.n) {
            let ln = ((e * b + size - b) / size).ln();
            risks.risk += p * (((e * (1.0 + b) + size - b) / size).ln() - c);
            risks.dcl += p * (ln - c);
            risks.ece += p * (ln - if b > 0.0 { c } else { 0.0 });
        }
        risks
    }

    /// The same risks by the engine, for any model.
    pub fn finite_k(&self) -> FiniteK {
        let probabilities = [1.0 / self.n, 1.0 - 1.0 / self.n];
        let e = (1.0 / self.tau).exp();
        let weights = [e / self.z(), 1.0 / self.z()];
        let anchor =
            Anchor::new(1.0, Grid::exact(weights[1]), Discrete { probabilities: &probabilities, values: &weights })
                .with_positives(Discrete { probabilities: &[1.0], values: &weights[..1] })
                .with_search(Discrete { probabilities: &probabilities, values: &[self.n, 0.0] }, &[1.0, 0.0]);
        FiniteK { anchors: vec![anchor], tau: self.tau, mean_ln_z: self.ln_z(), mean_positive: 1.0 }
    }
}

/// How a positive of [`Line`] follows from its anchor `x`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Noise {
    /// Normal with mean ρx and variance 1 - ρ²: the data's law is invariant.
    OrnsteinUhlenbeck(f64),
    /// Normal with mean x and this standard deviation: the data's law is not invariant, and E |dM/dπ|² is infinite.
    Additive(f64),
}

/// Model C: anchors and negatives standard normal, embedded as (cos ωz, sin ωz) (docs/theory.md 6.4).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    tau: f64,
    omega: f64,
    noise: Noise,
}

/// The points at which [`Line`] is integrated: trapezoidal rules of these steps, which are spectrally accurate under a normal law.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Resolution {
    /// Between anchors.
    pub anchors: f64,
    /// Between negatives.
    pub negatives: f64,
    /// Of ln r, in the engine.
    pub radii: f64,
}

impl Resolution {
    /// About 1e-11.
    pub const EXACT: Resolution = Resolution { anchors: 0.125, negatives: 0.05, radii: 0.1 };
    /// About 1e-6, thirty times as fast.
    pub const FAST: Resolution = Resolution { anchors: 0.25, negatives: 0.1, radii: 0.4 };
}

/// Points of a normal law's trapezoidal rule, with their weights.
fn normal_points(step: f64, reach: f64) -> (Vec<f64>, Vec<f64>) {
    let half = (reach / step) as i64;
    let points: Vec<f64> = (-half..=half).map(|j| j as f64 * step).collect();
    let mut weights: Vec<f64> = points.iter().map(|x| (-x * x / 2.0).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|w| *w /= sum);
    (points, weights)
}

impl Line {
    /// Of a temperature and a frequency above 0, and noise with |ρ| < 1 or a standard deviation above 0.
    ///
    /// # Errors
    /// [`Error::Input`] of anything else.
    pub fn new(tau: f64, omega: f64, noise: Noise) -> Result<Line> {
        temperature(tau)?;
        if !(omega.is_finite() && omega > 0.0) {
            return Err(Error::Input(format!(
                "frequency of the line model: expected a finite number above 0, found {omega}"
            )));
        }
        let (name, given, valid) = match noise {
            Noise::OrnsteinUhlenbeck(rho) => ("correlation", rho, rho.abs() < 1.0),
            Noise::Additive(sd) => ("standard deviation of the noise", sd, sd.is_finite() && sd > 0.0),
        };
        if !valid {
            let expected = if name == "correlation" { "between -1 and 1" } else { "a finite number above 0" };
            return Err(Error::Input(format!("{name} of the line model: expected {expected}, found {given}")));
        }
        Ok(Line { tau, omega, noise })
    }

    /// The factor of x in the mean of a positive, and its standard deviation given x.
    pub fn kernel(&self) -> (f64, f64) {
        match self.noise {
            Noise::OrnsteinUhlenbeck(rho) => (rho, (1.0 - rho * rho).sqrt()),
            Noise::Additive(sd) => (1.0, sd),
        }
    }

    /// ln E e^{c cos ωD} where D is normal, by the Fourier series of e^{c cos}.
    fn ln_mean(&self, bessel: &[f64], c: f64, mean: f64, sd: f64) -> f64 {
        let terms = bessel.iter().enumerate().skip(1).map(|(j, i)| {
            let angle = j as f64 * self.omega;
            i * (-(angle * sd).powi(2) / 2.0).exp() * (angle * mean).cos()
        });
        c + (bessel[0] + 2.0 * terms.sum::<f64>()).ln()
    }

    /// log Z(x) of an anchor.
    pub fn ln_z(&self, x: f64) -> f64 {
        let c = 1.0 / self.tau;
        self.ln_mean(&scaled_bessel_i(c), c, x, 1.0)
    }

    /// `E s⁺`.
    pub fn mean_positive(&self) -> f64 {
        let variance = match self.noise {
            Noise::OrnsteinUhlenbeck(rho) => 2.0 * (1.0 - rho),
            Noise::Additive(sd) => sd * sd,
        };
        (-self.omega * self.omega * variance / 2.0).exp()
    }

    /// E |dM/dπ|².
    pub fn ratio_squared(&self) -> f64 {
        match self.noise {
            Noise::OrnsteinUhlenbeck(rho) => 1.0 / (1.0 - rho * rho),
            Noise::Additive(_) => f64::INFINITY,
        }
    }

    /// E log Z(x), by quadrature over anchors.
    pub fn mean_ln_z(&self) -> f64 {
        let c = 1.0 / self.tau;
        let bessel = scaled_bessel_i(c);
        let (points, weights) = normal_points(0.05, 9.0);
        points.iter().zip(weights).map(|(x, w)| w * self.ln_mean(&bessel, c, *x, 1.0)).sum()
    }

    /// The limit of the risks.
    pub fn r_inf(&self) -> f64 {
        self.mean_ln_z() - self.mean_positive() / self.tau
    }

    /// log Z(x), v(x) and m3(x) of an anchor, and E a and E a² over its positives.
    fn of_anchor(&self, x: f64, bessel: &[Vec<f64>; 3]) -> (f64, Moments) {
        let c = 1.0 / self.tau;
        let ln = |p: usize| self.ln_mean(&bessel[p - 1], p as f64 * c, x, 1.0);
        let (factor, sd) = self.kernel();
        let positive = |p: usize| self.ln_mean(&bessel[p - 1], p as f64 * c, (1.0 - factor) * x, sd);
        let (w2, w3) = ((ln(2) - 2.0 * ln(1)).exp(), (ln(3) - 3.0 * ln(1)).exp());
        let (a, a2) = ((positive(1) - ln(1)).exp(), (positive(2) - 2.0 * ln(1)).exp());
        let v = w2 - 1.0;
        (ln(1), Moments { a, a2, v, av: a * v, m3: w3 - 3.0 * w2 + 2.0, v2: v * v })
    }

    /// Anchors of a trapezoidal rule: their shares, log Z(x) and means given the anchor.
    pub fn anchors(&self) -> Vec<(f64, f64, Moments)> {
        let c = 1.0 / self.tau;
        let bessel = [scaled_bessel_i(c), scaled_bessel_i(2.0 * c), scaled_bessel_i(3.0 * c)];
        let (points, weights) = normal_points(0.05, 9.0);
        points
            .iter()
            .zip(weights)
            .map(|(x, w)| {
                let (ln_z, moments) = self.of_anchor(*x, &bessel);
                (w, ln_z, moments)
            })
            .collect()
    }

    /// The means from which the first terms in 1/k follow.
    pub fn moments(&self) -> Moments {
        let anchors = self.anchors();
        let mean = |f: fn(&Moments) -> f64| anchors.iter().map(|(w, _, m)| w * f(m)).sum();
        Moments {
            a: mean(|m| m.a),
            a2: mean(|m| m.a2),
            v: mean(|m| m.v),
            av: mean(|m| m.av),
            m3: mean(|m| m.m3),
            v2: mean(|m| m.v2),
        }
    }

    /// The risks at a finite number of negatives; `ECE_k` is not among them.
    pub fn finite_k(&self, resolution: Resolution) -> FiniteK {
        let c = 1.0 / self.tau;
        let (factor, sd) = self.kernel();
        let (anchors, shares) = normal_points(resolution.anchors, 7.5);
        let (points, probabilities) = normal_points(resolution.negatives, 8.5);
        let weight = |x: f64, y: f64, ln_z: f64| (c * (self.omega * (x - y)).cos() - ln_z).exp();
        // The anchors x and -x are alike.
        let anchors = anchors.iter().zip(&shares).filter(|(x, _)| **x >= 0.0).map(|(x, share)| {
            let ln_z = self.ln_z(*x);
            let mut negatives: Vec<f64> = points.iter().map(|y| weight(*x, *y, ln_z)).collect();
            let mean: f64 = negatives.iter().zip(&probabilities).map(|(w, p)| w * p).sum();
            negatives.iter_mut().for_each(|w| *w /= mean);
            let positives: Vec<f64> = points.iter().map(|z| weight(*x, factor * x + sd * z, ln_z)).collect();
            let grid = Grid { step: resolution.radii, ..Grid::exact((-c - ln_z).exp()) };
            Anchor::new(
                if *x > 0.0 { 2.0 } else { 1.0 } * share,
                grid,
                Discrete { probabilities: &probabilities, values: &negatives },
            )
            .with_positives(Discrete { probabilities: &probabilities, values: &positives })
        });
        let anchors = anchors.collect();
        FiniteK { anchors, tau: self.tau, mean_ln_z: self.mean_ln_z(), mean_positive: self.mean_positive() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quadrature_and_series_agree() {
        for d in [2, 3, 5, 8, 64] {
            let law = ScoreLaw::sphere(d);
            assert!((law.probabilities.iter().sum::<f64>() - 1.0).abs() < 1e-14);
            for u in [0.3, 5.0, 14.3, 28.6, 43.0] {
                assert!((law.ln_mgf(u) - ln_sphere_mgf(d, u)).abs() < 1e-12, "d = {d}, u = {u}");
                let cosine = law.tilted(u).mean(|s| s);
                assert!((cosine - sphere_mean_cosine(d, u)).abs() < 1e-12, "d = {d}, u = {u}");
            }
        }
    }

    #[test]
    fn one_negative_by_plain_quadrature() {
        // R_1 = E log(1 + e^{(s - s⁺) / τ}) of independent s and s⁺.
        for (d, tau, kappa) in [(2, 0.2, 10.0), (3, 0.1, 5.0), (8, 0.07, 20.0)] {
            let model = Sphere::new(d, tau, kappa).unwrap();
            let (law, positives) = (ScoreLaw::sphere(d), model.positives());
            let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
            let expected = law.mean(|s| positives.mean(|p| softplus((s - p) / tau)));
            let got = model.finite_k().risk(1.0);
            assert!((got - expected).abs() < 1e-11, "d = {d}: {got} {expected}");
        }
    }

    #[test]
    fn wrong_models_are_refused() {
        assert!(Sphere::new(1, 0.1, 1.0).unwrap_err().to_string().contains("at least 2, found 1"));
        assert!(
            Sphere::new(2, 0.0, 1.0).is_err()
                && Sphere::new(2, f64::NAN, 1.0).is_err()
                && Sphere::new(2, 1.0, -1.0).is_err()
        );
        assert!(Codes::new(1, 0.1).is_err() && Codes::new(2, -0.1).is_err());
        assert!(Line::new(0.5, 1.0, Noise::OrnsteinUhlenbeck(1.0)).is_err());
        assert!(
            Line::new(0.5, 1.0, Noise::Additive(0.0)).is_err() && Line::new(0.5, 0.0, Noise::Additive(1.0)).is_err()
        );
    }
}
