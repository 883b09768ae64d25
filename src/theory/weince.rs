//! The WEINCE kernel K(s) = e^{(1-λ)s/τ} (1-s)^{-λβ} in the theory: when its mean and variance exist, and how its risks depend on
//! the number of negatives (docs/theory.md 7).
//!
//! `h` is the exponent of P(1-s < u) ~ u^h near 0: half the dimension of the data's manifold around an anchor.

use super::special::{gamma, ln_1f1, ln_beta};
use crate::{Error, Result};
use std::f64::consts::PI;

/// Euler's constant.
pub const EULER: f64 = 0.577_215_664_901_532_9;

/// The kernel's settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kernel {
    /// λ, the share of the tail's logit.
    pub lambda: f64,
    /// β, the tail's exponent.
    pub beta: f64,
    /// τ, the temperature.
    pub tau: f64,
}

/// What the tail of a kernel allows (docs/theory.md 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Regime {
    /// Finite variance: biases of order 1/k.
    FiniteVariance,
    /// Finite mean, infinite variance: biases of order k^{-(α-1)}; risks at different `k` are not comparable.
    InfiniteVariance,
    /// Infinite mean: no limit of large `k`; the value is set by the clamp and by `k`.
    NoLimit,
}

impl Kernel {
    /// γ = λβ, the power of the shortfall.
    pub fn gamma(&self) -> f64 {
        self.lambda * self.beta
    }

    /// (1-λ)/τ, the inverse temperature that is left.
    pub fn slope(&self) -> f64 {
        (1.0 - self.lambda) / self.tau
    }

    /// ln K as a function of the shortfall 1 - s.
    pub fn ln(&self, shortfall: f64) -> f64 {
        self.slope() * (1.0 - shortfall) - self.gamma() * shortfall.ln()
    }

    /// log Z_W over points uniform on the unit sphere in `d` dimensions, in closed form:
    /// e^b 2^{-γ} B(h-γ, h)/B(h, h) 1F1(h-γ; 2h-γ; -2b), h = (d-1)/2, b = (1-λ)/τ.
    ///
    /// # Errors
    /// [`Error::Input`] where λβ >= (d-1)/2: the mean is infinite then.
    pub fn ln_z_sphere(&self, d: usize) -> Result<f64> {
        let (gamma, b, h) = (self.gamma(), self.slope(), half_dimension(d));
        if d < 2 || gamma >= h || gamma.is_nan() {
            return Err(Error::Input(format!(
                "mean of the WEINCE kernel on the sphere in {d} dimensions: expected lambda * beta below (d - 1) / 2 = {h}, found \
                 {gamma}; take a smaller lambda or beta, or a clamp"
            )));
        }
        let ratio = ln_beta(h - gamma, h) - ln_beta(h, h);
        Ok(b - gamma * 2.0_f64.ln() + ratio + ln_1f1(h - gamma, 2.0 * h - gamma, -2.0 * b))
    }

    /// The range of a logit where the shortfall is clamped from below: 2(1-λ)/τ + γ log(2/ε). The bounds of
    /// [`super::bounds`] hold with it for 2/τ, except those averaged over anchors.
    pub fn logit_range(&self, clamp: f64) -> f64 {
        2.0 * self.slope() + self.gamma() * (2.0 / clamp).ln()
    }

    /// α = h/γ, the tail index of K; infinite without a tail's logit.
    pub fn tail_index(&self, h: f64) -> f64 {
        h / self.gamma()
    }

    /// κ_W = λβ/h, the criticality index.
    pub fn criticality(&self, h: f64) -> f64 {
        self.gamma() / h
    }

    /// The constant C of P(K/Z_W > t) ~ C t^{-α} over points uniform on the unit sphere in `d` dimensions; `ln_z` is log Z_W, or
    /// 0 for the tail of K itself.
    pub fn tail_constant_sphere(&self, d: usize, ln_z: f64) -> f64 {
        let h = half_dimension(d);
        // P(1-s < u) ~ (u/2)^h / (h B(h, h)).
        let density = (-h * 2.0_f64.ln() - ln_beta(h, h)).exp() / h;
        density * (self.tail_index(h) * (self.slope() - ln_z)).exp()
    }
}

/// h = (d-1)/2 of points uniform on the unit sphere in `d` dimensions.
pub fn half_dimension(d: usize) -> f64 {
    (d as f64 - 1.0) / 2.0
}

/// What a criticality index κ_W means.
pub fn regime(criticality: f64) -> Regime {
    if criticality < 0.5 {
        Regime::FiniteVariance
    } else if criticality < 1.0 {
        Regime::InfiniteVariance
    } else {
        Regime::NoLimit
    }
}

/// The exponent e of `D_k ~ k^{-e}` for a tail index α above 1: min(1, α - 1).
pub fn decay(alpha: f64) -> f64 {
    (alpha - 1.0).min(1.0)
}

/// The constant of `D_k ~ constant · k^{-(α-1)}` for a tail `P(K/Z > t) ~ C t^{-α}` of 1 < α < 2: -C π/sin(π(α-1)) of
/// `E log mean_k`, and positive for D_k.
pub fn decay_constant(tail_constant: f64, alpha: f64) -> f64 {
    tail_constant * PI / (PI * (alpha - 1.0)).sin()
}

/// E log mean_k K of a large `k` for a tail `P(K > t) ~ C t^{-α}` of α below 1: it grows like (1/α - 1) log k.
pub fn divergent_mean_log(tail_constant: f64, alpha: f64, k: f64) -> f64 {
    let excess = 1.0 / alpha - 1.0;
    excess * k.ln() + (tail_constant * gamma(1.0 - alpha)).ln() / alpha + EULER * excess
}

/// `P_k` of a large `k` for a positive's weight with tail `P(a > t) ~ C t^{-α}` of α below 1: C π/sin(πα) k^{-α}.
pub fn positive_term(tail_constant: f64, alpha: f64, k: f64) -> f64 {
    tail_constant * PI / (PI * alpha).sin() * k.powf(-alpha)
}

/// The expected smallest shortfall among `k` points uniform on the unit sphere, for large `k`:
/// 2 (h B(h, h)/k)^{1/h} Γ(1 + 1/h).
pub fn least_shortfall(h: f64, k: f64) -> f64 {
    2.0 * ((h.ln() + ln_beta(h, h) - k.ln()) / h).exp() * gamma(1.0 + 1.0 / h)
}

/// Hill's estimate of h from the `r` smallest of some shortfalls: (r-1)/Σ log(δ_(r+1)/δ_(i)). Its standard error is h/√r.
///
/// # Errors
/// [`Error::Input`] where there are not more than `r` shortfalls, `r` is below 2, or one of those needed is not above 0.
pub fn hill(shortfalls: &[f64], r: usize) -> Result<f64> {
    if r < 2 || shortfalls.len() <= r {
        return Err(Error::Input(format!(
            "Hill's estimate: expected at least 2 smallest shortfalls and one more, found {r} of {}; take more negatives",
            shortfalls.len()
        )));
    }
    let mut sorted = shortfalls.to_vec();
    sorted.sort_by(f64::total_cmp);
    if sorted[0].is_nan() || sorted[0] <= 0.0 {
        return Err(Error::Input(format!(
            "Hill's estimate: expected shortfalls 1 - s above 0, found {}; leave duplicates of the anchor out",
            sorted[0]
        )));
    }
    let sum: f64 = sorted[..r].iter().map(|x| (sorted[r] / x).ln()).sum();
    Ok((r as f64 - 1.0) / sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_limit_is_an_error_with_its_reason() {
        let kernel = Kernel { lambda: 0.5, beta: 2.0, tau: 0.1 };
        let error = kernel.ln_z_sphere(3).unwrap_err().to_string();
        assert!(error.contains("below (d - 1) / 2 = 1, found 1"), "{error}");
        assert_eq!(regime(kernel.criticality(half_dimension(3))), Regime::NoLimit);
        assert_eq!(regime(kernel.criticality(half_dimension(4))), Regime::InfiniteVariance);
        assert_eq!(regime(kernel.criticality(half_dimension(6))), Regime::FiniteVariance);
    }

    #[test]
    fn without_a_tail_it_is_the_softmax() {
        let kernel = Kernel { lambda: 0.0, beta: 3.0, tau: 0.2 };
        assert!((kernel.ln_z_sphere(3).unwrap() - (5.0_f64.sinh() / 5.0).ln()).abs() < 1e-13);
        assert!((kernel.logit_range(1e-6) - 10.0).abs() < 1e-15);
    }

    #[test]
    fn hill_of_an_exact_power_law() {
        // δ = u^{1/h} at the expected places of u: the estimate of h is close to it, and needs the right exponent's sign.
        let h = 2.5;
        let shortfalls: Vec<f64> = (1..=5000).map(|i| (f64::from(i) / 5001.0_f64).powf(1.0 / h)).collect();
        let got = hill(&shortfalls, 500).unwrap();
        assert!((got / h - 1.0).abs() < 0.01, "{got}");
        assert!(hill(&shortfalls[..64], 64).is_err() && hill(&[0.0, 1.0, 2.0, 3.0], 2).is_err());
    }

    #[test]
    fn the_smallest_of_uniform_shortfalls() {
        // On the sphere in three dimensions 1-s is uniform on [0, 2]: the expected smallest is 2/(k+1).
        assert!((least_shortfall(1.0, 1e6) * 1e6 / 2.0 - 1.0).abs() < 1e-12);
    }
}
