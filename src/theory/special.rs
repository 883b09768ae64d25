//! The special functions that closed forms need, in float64: series of positive terms, so that no digits cancel.

use std::f64::consts::PI;

/// ln Γ(x) of `x > 0`, to about 1e-14 of the larger of itself and 1; NaN elsewhere.
pub fn ln_gamma(x: f64) -> f64 {
    if x.is_nan() || x <= 0.0 {
        return f64::NAN;
    }
    // Stirling's series is exact to float64 from 15 on; Γ(x) = Γ(x + n) / (x (x + 1) ... (x + n - 1)) leads there.
    let (mut y, mut product) = (x, 1.0);
    while y < 15.0 {
        product *= y;
        y += 1.0;
    }
    let z = 1.0 / (y * y);
    let series = (1.0 / 12.0 - z * (1.0 / 360.0 - z * (1.0 / 1260.0 - z * (1.0 / 1680.0 - z / 1188.0)))) / y;
    (y - 0.5) * y.ln() - y + 0.5 * (2.0 * PI).ln() + series - product.ln()
}

/// Γ(x) of `x > 0`.
pub fn gamma(x: f64) -> f64 {
    ln_gamma(x).exp()
}

/// ln B(a, b), the logarithm of Euler's beta function, of positive arguments.
pub fn ln_beta(a: f64, b: f64) -> f64 {
    ln_gamma(a) + ln_gamma(b) - ln_gamma(a + b)
}

/// ln 0F1(; b; x) of `b > 0` and `x >= 0`.
pub fn ln_0f1(b: f64, x: f64) -> f64 {
    if !(b > 0.0 && x >= 0.0 && x.is_finite()) {
        return f64::NAN;
    }
    ln_series(|j| x / ((j + 1.0) * (b + j)))
}

/// ln 1F1(a; b; x), Kummer's function, of `0 <= a <= b`, `b > 0` and any finite `x`.
///
/// A negative `x` goes through Kummer's transformation, 1F1(a; b; x) = e^x 1F1(b - a; b; -x), whose terms are all positive.
pub fn ln_1f1(a: f64, b: f64, x: f64) -> f64 {
    if !(b > 0.0 && (0.0..=b).contains(&a) && x.is_finite()) {
        return f64::NAN;
    }
    if x < 0.0 {
        return x + ln_1f1(b - a, b, -x);
    }
    ln_series(|j| (a + j) / (b + j) * x / (j + 1.0))
}

/// The logarithm of 1 + r(0) + r(0) r(1) + ..., for ratios that are not negative and end up falling to zero.
fn ln_series(ratio: impl Fn(f64) -> f64) -> f64 {
    let (mut term, mut sum, mut taken_out, mut j) = (1.0, 1.0, 0.0, 0.0);
    loop {
        let r = ratio(j);
        term *= r;
        sum += term;
        j += 1.0;
        if sum > 1e280 {
            taken_out += sum.ln();
            term /= sum;
            sum = 1.0;
        }
        if r < 0.5 && term <= sum * 1e-18 {
            return taken_out + sum.ln();
        }
    }
}

/// ln g_d(u) where g_d(u) = 0F1(; d/2; u²/4) is the mean of e^{u s} over the sphere in `d` dimensions, s being the cosine to a
/// fixed direction (docs/theory.md 6.1): I0(u) for d = 2 and sinh(u)/u for d = 3.
pub fn ln_sphere_mgf(d: usize, u: f64) -> f64 {
    ln_0f1(d as f64 / 2.0, u * u / 4.0)
}

/// A_d(u) = g_d'(u) / g_d(u), the mean cosine of the von Mises-Fisher law of concentration `u` in `d` dimensions.
pub fn sphere_mean_cosine(d: usize, u: f64) -> f64 {
    let d = d as f64;
    let x = u * u / 4.0;
    u / d * (ln_0f1(d / 2.0 + 1.0, x) - ln_0f1(d / 2.0, x)).exp()
}

/// e^{-c} I_j(c) of j = 0, 1, ... up to where they vanish, by Miller's backward recurrence; `c >= 0`.
pub fn scaled_bessel_i(c: f64) -> Vec<f64> {
    if c == 0.0 {
        return vec![1.0];
    }
    let top = 40 + (2.0 * c) as usize + (12.0 * c.sqrt()) as usize;
    let mut values = vec![0.0; top + 1];
    let (mut above, mut here) = (0.0, 1e-280);
    for j in (0..=top).rev() {
        values[j] = here;
        let below = above + 2.0 * j as f64 / c * here;
        (above, here) = (here, below);
        if here > 1e200 {
            for v in &mut values[j..] {
                *v *= 1e-200;
            }
            (above, here) = (above * 1e-200, here * 1e-200);
        }
    }
    // e^c = I0(c) + 2 (I1(c) + I2(c) + ...).
    let sum = values[0] + 2.0 * values[1..].iter().sum::<f64>();
    for v in &mut values {
        *v /= sum;
    }
    let kept = values.iter().rposition(|&v| v > 1e-40).unwrap_or(0);
    values.truncate(kept + 1);
    values
}

/// Nodes and weights of the Gauss-Legendre rule of `n` points on [-1, 1]: exact for polynomials below degree 2n.
pub fn gauss_legendre(n: usize) -> (Vec<f64>, Vec<f64>) {
    let mut nodes = vec![0.0; n];
    let mut weights = vec![0.0; n];
    for i in 0..n.div_ceil(2) {
        let mut x = (PI * (i as f64 + 0.75) / (n as f64 + 0.5)).cos();
        let mut slope = 1.0;
        // Newton's method from this start needs about five steps.
        for _ in 0..20 {
            let (mut before, mut here) = (0.0, 1.0);
            for j in 0..n {
                let j = j as f64;
                (before, here) = (here, ((2.0 * j + 1.0) * x * here - j * before) / (j + 1.0));
            }
            slope = n as f64 * (x * here - before) / (x * x - 1.0);
            let step = here / slope;
            x -= step;
            if step.abs() < 1e-16 {
                break;
            }
        }
        let weight = 2.0 / ((1.0 - x * x) * slope * slope);
        (nodes[i], nodes[n - 1 - i]) = (-x, x);
        (weights[i], weights[n - 1 - i]) = (weight, weight);
    }
    (nodes, weights)
}

/// The binomial law of `k` trials with probability `q`: pairs of a number of successes and its probability, those below 1e-40 of
/// the largest left out. It goes outward from the mode by ratios, so that no logarithm of a large factorial loses digits.
pub fn binomial(k: u64, q: f64) -> Vec<(f64, f64)> {
    if q <= 0.0 || q >= 1.0 {
        return vec![(if q >= 1.0 { k as f64 } else { 0.0 }, 1.0)];
    }
    let mode = (((k + 1) as f64 * q).floor() as u64).min(k);
    let odds = q / (1.0 - q);
    let mut law = vec![(mode as f64, 1.0)];
    let mut p = 1.0;
    for b in mode..k {
        p *= (k - b) as f64 / (b + 1) as f64 * odds;
        if p < 1e-40 {
            break;
        }
        law.push(((b + 1) as f64, p));
    }
    p = 1.0;
    for b in (1..=mode).rev() {
        p *= b as f64 / ((k - b + 1) as f64 * odds);
        if p < 1e-40 {
            break;
        }
        law.push(((b - 1) as f64, p));
    }
    let sum: f64 = law.iter().map(|(_, p)| p).sum();
    for (_, p) in &mut law {
        *p /= sum;
    }
    law
}

/// log(sum of e^x), without overflow; minus infinity of none.
pub fn log_sum_exp(values: &[f64]) -> f64 {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if !largest.is_finite() {
        return largest;
    }
    largest + values.iter().map(|v| (v - largest).exp()).sum::<f64>().ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gamma_at_known_points() {
        let mut factorial = 1.0_f64;
        for n in 1..30 {
            assert!((ln_gamma(n as f64) - factorial.ln()).abs() < 1e-14 * factorial.ln().max(1.0), "{n}");
            factorial *= n as f64;
        }
        assert!((gamma(0.5) - PI.sqrt()).abs() < 1e-14);
        // Reflection: Γ(x) Γ(1 - x) = π / sin(π x).
        for x in [0.01, 0.1, 0.3, 0.77] {
            assert!((gamma(x) * gamma(1.0 - x) * (PI * x).sin() / PI - 1.0).abs() < 1e-13, "{x}");
        }
        assert!((ln_beta(2.0, 3.0) - (1.0_f64 / 12.0).ln()).abs() < 1e-14);
        assert!(ln_gamma(0.0).is_nan() && ln_gamma(-1.5).is_nan());
    }

    #[test]
    fn hypergeometric_series_with_elementary_values() {
        for u in [0.0, 1e-6, 0.3, 1.0, 5.0, 20.0, 43.0, 200.0, 900.0_f64] {
            // g_3(u) = sinh(u) / u, g_1(u) = cosh(u).
            let sinh = if u == 0.0 { 0.0 } else { u + (-(-2.0 * u).exp_m1() / (2.0 * u)).ln() };
            assert!((ln_sphere_mgf(3, u) - sinh).abs() < 1e-13 * sinh.abs().max(1.0), "{u}");
            let cosh = u + ((1.0 + (-2.0 * u).exp()) / 2.0).ln();
            assert!((ln_sphere_mgf(1, u) - cosh).abs() < 1e-13 * cosh.abs().max(1.0), "{u}");
        }
        for x in [-30.0, -2.0, -0.1, 0.5, 8.0, 40.0_f64] {
            // 1F1(1; 2; x) = (e^x - 1) / x, 1F1(a; a; x) = e^x.
            assert!((ln_1f1(1.0, 2.0, x) - (x.exp_m1() / x).ln()).abs() < 1e-13 * x.abs().max(1.0), "{x}");
            assert!((ln_1f1(1.7, 1.7, x) - x).abs() < 1e-13 * x.abs().max(1.0), "{x}");
        }
        for u in [0.5, 3.0, 12.0_f64] {
            assert!((sphere_mean_cosine(3, u) - (1.0 / u.tanh() - 1.0 / u)).abs() < 1e-14);
        }
        assert!(ln_1f1(3.0, 2.0, 1.0).is_nan() && ln_0f1(1.0, -1.0).is_nan());
    }

    #[test]
    fn bessel_functions_agree_with_their_series() {
        for c in [0.1, 1.0, 5.0, 14.3, 43.0_f64] {
            let got = scaled_bessel_i(c);
            for (j, got) in got.iter().enumerate().take(12) {
                // I_j(c) = (c/2)^j / j! 0F1(; j + 1; c²/4).
                let j = j as f64;
                let ln = j * (c / 2.0).ln() - ln_gamma(j + 1.0) + ln_0f1(j + 1.0, c * c / 4.0) - c;
                assert!((got / ln.exp() - 1.0).abs() < 1e-12, "I_{j}({c}): {got} {}", ln.exp());
            }
        }
    }

    #[test]
    fn quadrature_is_exact_for_polynomials() {
        for n in [1, 2, 5, 24, 200] {
            let (x, w) = gauss_legendre(n);
            for power in 0..(2 * n).min(60) as i32 {
                let got: f64 = x.iter().zip(&w).map(|(x, w)| w * x.powi(power)).sum();
                let expected = if power % 2 == 1 { 0.0 } else { 2.0 / (power as f64 + 1.0) };
                assert!((got - expected).abs() < 1e-13, "n = {n}, x^{power}: {got}");
            }
        }
    }

    #[test]
    fn binomial_probabilities() {
        let law = binomial(4, 0.25);
        for (b, p) in law {
            let choose = [1.0, 4.0, 6.0, 4.0, 1.0][b as usize];
            assert!((p - choose * 0.25_f64.powf(b) * 0.75_f64.powf(4.0 - b)).abs() < 1e-16);
        }
        let law = binomial(1_101_300, 1.0 / 22026.0);
        let mean: f64 = law.iter().map(|(b, p)| b * p).sum();
        assert!((mean - 50.0).abs() < 1e-11, "{mean}");
        assert_eq!(binomial(3, 0.0), [(0.0, 1.0)]);
        assert_eq!(binomial(3, 1.0), [(3.0, 1.0)]);
    }

    #[test]
    fn log_sums() {
        assert_eq!(log_sum_exp(&[]), f64::NEG_INFINITY);
        assert!((log_sum_exp(&[1000.0, 1000.0]) - 1000.0 - 2.0_f64.ln()).abs() < 1e-12);
    }
}
