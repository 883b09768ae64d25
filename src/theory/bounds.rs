//! Inequalities between risks, and what a temperature allows: docs/theory.md 1.4 and 3.
//!
//! They hold for every embedding with scores in [-1, 1], every k >= 1 and every temperature. Names with `paper` are the
//! statements of arXiv 2607.09405; the others are at least as sharp.

/// -log(1 + e^{2/τ}/k): the lower end of the paper's Proposition 1 for `R_inf - R_k`.
pub fn paper_upper(tau: f64, k: f64) -> f64 {
    // In logarithms, because e^{2/τ} overflows below τ = 0.003.
    let x = 2.0 / tau - k.ln();
    if x > 30.0 { x + (-x).exp() } else { x.exp().ln_1p() }
}

/// (e^{2/τ} - 1)²/(8k): the upper end of the paper's Proposition 1 for `R_inf - R_k`, and for `R_inf - R~_k`.
pub fn paper_lower(tau: f64, k: f64) -> f64 {
    (2.0 / tau).exp_m1().powi(2) / (8.0 * k)
}

/// (U): `R_k - R_inf` is at most `log(1 + E[a]/k)`, E a being the mean of e^{s⁺/τ}/Z over anchors. `P_k` alone is only bounded by
/// [`paper_upper`].
pub fn upper(mean_a: f64, k: f64) -> f64 {
    (mean_a / k).ln_1p()
}

/// G(c) = log(sinh c / c) + c coth c - 1: the most nats that a softmax of inverse temperature `c = 1/τ` can be from the law that it
/// tilts, in either direction, over any scores in [-1, 1]. Attained by two scores.
pub fn ceiling(c: f64) -> f64 {
    if c < 0.1 {
        // c²/2 - c⁴/36 + c⁶/405 - ...: the terms of the two series, added.
        let x = c * c;
        return x * (0.5 - x * (1.0 / 36.0 - x * (1.0 / 405.0 - x / 4200.0)));
    }
    c - (2.0 * c).ln() + (-(-2.0 * c).exp()).ln_1p() + c / c.tanh() - 1.0
}

/// tanh(c/2): the largest total variation between a law and its softmax of inverse temperature `c`.
pub fn total_variation(c: f64) -> f64 {
    (c / 2.0).tanh()
}

/// sinh²(c): the largest chi-square divergence of a softmax of inverse temperature `c`, which is the variance v of its weights.
pub fn largest_variance(c: f64) -> f64 {
    c.sinh().powi(2)
}

/// The largest sum of both Kullback-Leibler divergences between a law and its softmax: min(c², 2c tanh(c/2)).
pub fn jeffreys(c: f64) -> f64 {
    (c * c).min(2.0 * c * total_variation(c))
}

/// min{G, 1/τ}: the most nats that a softmax search can add on average over anchors that have the law and the embedding of the
/// corpus. `R_inf` and the risks at every k are at least -1/τ.
pub fn average_ceiling(tau: f64) -> f64 {
    ceiling(1.0 / tau).min(1.0 / tau)
}

/// (e^{1/τ} - 1)²/(2k): the rate in (L).
pub fn lower_rate(tau: f64, k: f64) -> f64 {
    (1.0 / tau).exp_m1().powi(2) / (2.0 * k)
}

/// (L): `R_inf - R_k <= D_k` is at most min{G(1/τ), 1/τ, (e^{1/τ} - 1)²/(2k)}, whatever the embedding.
///
/// The 1/τ needs anchors and negatives of one law and one embedding; across modalities use [`lower_across`].
pub fn lower(tau: f64, k: f64) -> f64 {
    average_ceiling(tau).min(lower_rate(tau, k))
}

/// (L) where anchors and negatives have laws or embeddings of their own: 2/τ in the place of 1/τ.
pub fn lower_across(tau: f64, k: f64) -> f64 {
    ceiling(1.0 / tau).min(2.0 / tau).min(lower_rate(tau, k))
}

/// Where (Lv) splits the weights' mean: the points 1 - η of η = 0.02, 0.03 ... 0.95.
pub fn splits() -> impl Iterator<Item = f64> {
    (2..96).map(|i| f64::from(i) / 100.0)
}

/// The bound of (Lv) at one split η: v / (2(1-η)k) + log(1/w_min) e^{-kη²/(2(1+v))}.
pub fn lower_at(v: f64, ln_inverse_least_weight: f64, k: f64, eta: f64) -> f64 {
    v / (2.0 * (1.0 - eta) * k) + ln_inverse_least_weight * (-k * eta * eta / (2.0 * (1.0 + v))).exp()
}

/// (Lv): the bound of an anchor's `D_k` by the variance `v` of its weights and the smallest of them, of which log(1/w_min) is at
/// most 1/τ + log Z. Its leading term v/(2k) is sharp.
pub fn lower_v(v: f64, ln_inverse_least_weight: f64, k: f64) -> f64 {
    splits().map(|eta| lower_at(v, ln_inverse_least_weight, k, eta)).fold(f64::INFINITY, f64::min)
}

/// The constant C of the paper's `|R_k - R_inf| <= C/k`.
pub fn paper_constant(tau: f64) -> f64 {
    (2.0 / tau).exp().max(paper_lower(tau, 1.0))
}

/// The constant of the same statement by (U) and (L): e^{2/τ}.
pub fn constant(tau: f64) -> f64 {
    (2.0 / tau).exp().max(lower_rate(tau, 1.0))
}

/// The paper's Proposition 2 without the positive in the denominator: `|ECE_k - R~_k|` is at most (4/(τk)) E|dM/dπ|².
pub fn paper_search(ratio_squared: f64, tau: f64, k: f64) -> f64 {
    4.0 * ratio_squared / (tau * k)
}

/// `|ECE_m - R~_m|`, and one-sided `ECE_m - R_m`, is at most (4χ² + 2)/(τm), with χ² = E|dM/dπ|² - 1.
pub fn search(ratio_squared: f64, tau: f64, m: f64) -> f64 {
    (4.0 * (ratio_squared - 1.0) + 2.0) / (tau * m)
}

/// How far `ECE_m` of a corpus of `m` items can be above `R_k` of `k` negatives.
pub fn search_above(ratio_squared: f64, tau: f64, m: f64, k: f64) -> f64 {
    search(ratio_squared, tau, m) + if m > k { lower(tau, k) } else { 0.0 }
}

/// How far `ECE_m` of a corpus of `m` items can be below `R_k` of `k` negatives.
pub fn search_below(mean_a: f64, ratio_squared: f64, tau: f64, m: f64, k: f64) -> f64 {
    upper(mean_a, k) + lower(tau, m) + search(ratio_squared, tau, m)
}

/// The smallest whole number of negatives at which two bounds that fall in k are both at most `eps`: `above` of `R_k - R_inf` and
/// `below` of `R_inf - R_k`. None where 2^62 does not suffice.
pub fn least_k(eps: f64, above: impl Fn(f64) -> f64, below: impl Fn(f64) -> f64) -> Option<u64> {
    let enough = |k: u64| above(k as f64) <= eps && below(k as f64) <= eps;
    let mut high = 1_u64;
    while !enough(high) {
        if high >= 1 << 62 {
            return None;
        }
        high *= 2;
    }
    let mut low = high / 2;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if enough(middle) {
            high = middle;
        } else {
            low = middle;
        }
    }
    Some(high)
}

/// The number of negatives that brings the bias below `eps` whatever the data: max(e^{2/τ}/(e^ε - 1), (e^{1/τ} - 1)²/(2ε)), as a
/// real number, because it can be beyond any integer type.
pub fn k_without_data(tau: f64, eps: f64) -> f64 {
    ((2.0 / tau).exp() / eps.exp_m1()).max(lower_rate(tau, eps))
}

/// Δ_k = log((1 + k e^{2/τ})/(1 + k e^{-2/τ})): the range of a tuple's loss, at most 4/τ.
pub fn loss_range(tau: f64, k: f64) -> f64 {
    let x = 2.0 / tau;
    let ln_k = k.ln();
    // log(1 + k e^x) of large x without overflow.
    let upper = ln_k + x + (-(ln_k + x)).exp().ln_1p();
    upper - (k * (-x).exp()).ln_1p()
}

/// Maurer and Pontil's certificate for a trained embedding: with probability at least 1 - `delta` over disjoint held-out tuples,
/// `R_k` is at most their mean loss plus this, of `n` losses with sample variance `variance` (divisor n - 1).
pub fn certificate(variance: f64, n: f64, range: f64, delta: f64) -> f64 {
    let log = (2.0 / delta).ln();
    (2.0 * variance * log / n).sqrt() + 7.0 * range * log / (3.0 * (n - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ceiling_is_smooth_where_its_formula_changes() {
        // Below 0.1 the plain formula loses digits, but still has ten of the value near there.
        for c in [0.05, 0.09, 0.0999999_f64] {
            let plain = (c.sinh() / c).ln() + c / c.tanh() - 1.0;
            assert!((ceiling(c) - plain).abs() < 1e-13, "{c}: {} {plain}", ceiling(c));
        }
        assert!((ceiling(1e-4) / 0.5e-8 - 1.0).abs() < 1e-8);
        assert!((ceiling(300.0) - (300.0 - 600.0_f64.ln() + 299.0)).abs() < 1e-10);
    }

    #[test]
    fn large_inverse_temperatures_do_not_overflow() {
        assert!((paper_upper(0.001, 1.0) - 2000.0).abs() < 1e-9);
        assert!((paper_upper(1.0, 7.0) - (1.0 + 2.0_f64.exp() / 7.0).ln()).abs() < 1e-15);
        assert!((loss_range(0.001, 5.0) - (5.0_f64.ln() + 2000.0)).abs() < 1e-9);
        let (tau, k): (f64, f64) = (0.5, 256.0);
        let plain = ((1.0 + k * (2.0 / tau).exp()) / (1.0 + k * (-2.0 / tau).exp())).ln();
        assert!((loss_range(tau, k) - plain).abs() < 1e-14 && loss_range(tau, 1e9) < 4.0 / tau);
    }

    #[test]
    fn least_k_is_the_least() {
        assert_eq!(least_k(0.1, |k| 1.0 / k, |k| 2.45 / k), Some(25));
        assert_eq!(least_k(2.0, |k| 1.0 / k, |_| 0.0), Some(1));
        assert_eq!(least_k(0.1, |_| 1.0, |_| 0.0), None);
    }

    #[test]
    fn bounds_worked_by_hand() {
        // Inequalities with slack do not notice a wrong constant; these do. τ = 1/2, so that e^{1/τ} = e² = 7.389056...
        let e2 = 2.0_f64.exp();
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-13, "{a} {b}");
        near(paper_lower(0.5, 3.0), (e2 * e2 - 1.0).powi(2) / 24.0);
        near(lower_rate(0.5, 3.0), (e2 - 1.0).powi(2) / 6.0);
        near(lower(0.5, 1e9), (e2 - 1.0).powi(2) / 2e9);
        near(lower(0.5, 1.0), ceiling(2.0));
        near(lower(0.1, 1.0), 10.0);
        near(lower_across(0.1, 1.0), ceiling(10.0));
        near(lower_across(0.05, 1.0), ceiling(20.0));
        near(lower_across(5.0, 1.0), ceiling(0.2));
        near(upper(3.0, 2.0), 2.5_f64.ln());
        near(lower_at(6.0, 5.0, 10.0, 0.5), 0.6 + 5.0 * (-10.0 * 0.25 / 14.0_f64).exp());
        near(paper_search(3.0, 0.5, 10.0), 2.4);
        near(search(3.0, 0.5, 10.0), 2.0);
        near(search_above(3.0, 0.5, 10.0, 10.0), 2.0);
        near(search_above(3.0, 0.5, 10.0, 9.0), 2.0 + lower(0.5, 9.0));
        near(search_below(3.0, 3.0, 0.5, 10.0, 2.0), 2.5_f64.ln() + lower(0.5, 10.0) + 2.0);
        near(jeffreys(0.5), 0.25_f64.min(0.25_f64.tanh()));
        near(total_variation(2.0), 1.0_f64.tanh());
        near(largest_variance(2.0), (e2 - 1.0 / e2).powi(2) / 4.0);
        near(paper_constant(0.5), (e2 * e2 - 1.0).powi(2) / 8.0);
        near(constant(0.5), e2 * e2);
        near(k_without_data(0.5, 0.1), e2 * e2 / 0.1_f64.exp_m1());
    }

    #[test]
    fn a_certificate_worked_by_hand() {
        // sqrt(2 · 0.25 · log 40 / 100) + 7 · 8 · log 40 / (3 · 99).
        let log = 40.0_f64.ln();
        let by_hand = (0.005 * log).sqrt() + 56.0 * log / 297.0;
        assert!((certificate(0.25, 100.0, 8.0, 0.05) - by_hand).abs() < 1e-15);
    }
}
