//! Risks at a finite number of negatives without sampling: docs/theory.md 6.2.
//!
//! With L(r) = E e^{-rw} of one negative's weight and A(r) = E e^{-ra} of the positive's,
//! `E log(a/k + mean_k w) = ∫ [e^{-kr} - A(r) L(r)^k] dr/r`, and a sum weighted by itself,
//! `E [Σ w f / Σ w] = k ∫ E[w f e^{-rw}] L(r)^{k-1} dr`. On r = e^y both integrands are analytic and die out at both ends, so the
//! trapezoidal rule is spectrally accurate; one grid serves every `k`.

/// The points y = ln r of the trapezoidal rule.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grid {
    /// The first point.
    pub low: f64,
    /// No point lies beyond it.
    pub high: f64,
    /// The distance of neighbours.
    pub step: f64,
}

impl Grid {
    /// The grid for weights of mean about 1 whose smallest positive value is `smallest`: from -44, where r is below rounding, to
    /// where e^{-r w} of the smallest weight has vanished.
    pub fn exact(smallest: f64) -> Grid {
        Grid { low: -44.0, high: (50.0 / smallest.clamp(1e-30, 1.0)).ln(), step: 0.1 }
    }

    fn radii(&self) -> impl Iterator<Item = f64> + use<> {
        let Grid { low, high, step } = *self;
        let points = ((high - low) / step).floor().max(0.0) as usize + 1;
        (0..points).map(move |i| (low + step * i as f64).exp())
    }
}

/// A law on finitely many points.
#[derive(Debug, Clone, Copy)]
pub struct Discrete<'a> {
    /// Probabilities; they sum to 1.
    pub probabilities: &'a [f64],
    /// The values, as many.
    pub values: &'a [f64],
}

impl Discrete<'_> {
    /// The mean of a function of the value.
    pub fn mean(&self, f: impl Fn(f64) -> f64) -> f64 {
        self.probabilities.iter().zip(self.values).map(|(p, v)| p * f(*v)).sum()
    }

    /// ln E e^{-r value} on a grid.
    pub fn ln_laplace(&self, grid: Grid) -> Vec<f64> {
        let at = |r: f64| {
            // Near r = 0 the digits are in the difference from 1; far out that difference is 1 and they are in the rest.
            if r < 1.0 { self.mean(|v| (-r * v).exp_m1()).ln_1p() } else { self.mean(|v| (-r * v).exp()).ln() }
        };
        // A power of 0 is 0 for every finite exponent, and that of 0 is 1.
        grid.radii().map(at).map(|ln| if ln == f64::NEG_INFINITY { -1e300 } else { ln }).collect()
    }
}

/// What a search over the corpus needs, where the weights are those of the true law of positives.
#[derive(Debug, Clone)]
struct Search {
    grid: Grid,
    /// ln E e^{-r w} of w = dM/dπ.
    ln_laplace: Vec<f64>,
    /// r E [w s e^{-r w}].
    moments: Vec<f64>,
}

/// The laws of one anchor's weights, transformed.
#[derive(Debug, Clone)]
pub struct Anchor {
    weight: f64,
    grid: Grid,
    negatives: Vec<f64>,
    positives: Option<Vec<f64>>,
    search: Option<Search>,
}

impl Anchor {
    /// An anchor that has this share of all, of the law of its negatives' weights on a grid.
    pub fn new(weight: f64, grid: Grid, negatives: Discrete) -> Anchor {
        Anchor { weight, grid, negatives: negatives.ln_laplace(grid), positives: None, search: None }
    }

    /// Adds the law of its positive's weight.
    pub fn with_positives(mut self, positives: Discrete) -> Anchor {
        self.positives = Some(positives.ln_laplace(self.grid));
        self
    }

    /// Adds the law of dM/dπ of a corpus item, with that item's score.
    pub fn with_search(mut self, ratio: Discrete, scores: &[f64]) -> Anchor {
        let positive = ratio.values.iter().copied().filter(|&w| w > 0.0);
        let grid = Grid { step: self.grid.step, ..Grid::exact(positive.fold(1.0, f64::min)) };
        let moments = grid
            .radii()
            .map(|r| {
                let terms = ratio.probabilities.iter().zip(ratio.values).zip(scores);
                terms.map(|((p, w), s)| p * w * s * (-r * w).exp()).sum::<f64>() * r
            })
            .collect();
        self.search = Some(Search { grid, ln_laplace: ratio.ln_laplace(grid), moments });
        self
    }

    /// E log(mean of k weights), or with the positive's weight over `k` in it.
    fn mean_log(&self, k: f64, positives: Option<&[f64]>) -> f64 {
        let terms = self.grid.radii().zip(&self.negatives).enumerate().map(|(i, (r, ln_l))| {
            let ln = k * ln_l + positives.map_or(0.0, |p| p[i]);
            // Where both terms are near 1 their difference is taken in the exponent.
            if k * r < 1.0 { -(-k * r).exp() * (k * r + ln).exp_m1() } else { (-k * r).exp() - ln.exp() }
        });
        terms.sum::<f64>() * self.grid.step
    }

    /// `D_k = E[-log mean_k w]`, of this anchor: how far the risk without the positive in the denominator is below its limit.
    pub fn d(&self, k: f64) -> f64 {
        -self.mean_log(k, None)
    }

    /// `P_k = E log(1 + a / (k mean_k w))`, of this anchor; NaN of an anchor without a law of positives.
    pub fn p(&self, k: f64) -> f64 {
        self.positives.as_ref().map_or(f64::NAN, |p| self.mean_log(k, Some(p)) - self.mean_log(k, None))
    }

    /// The mean score that a search over `k` items finds, weighted by dM/dπ among them; NaN without [`Anchor::with_search`].
    fn found(&self, k: f64) -> f64 {
        self.search.as_ref().map_or(f64::NAN, |s| {
            let terms = s.ln_laplace.iter().zip(&s.moments);
            terms.map(|(ln_l, moment)| moment * ((k - 1.0) * ln_l).exp()).sum::<f64>() * s.grid.step * k
        })
    }

    /// E [Σ w² / (Σ w)²] of `k` weights of the law given, the expected inverse of their effective number.
    pub fn concentration(k: f64, grid: Grid, law: Discrete) -> f64 {
        let terms = grid.radii().zip(law.ln_laplace(grid)).map(|(r, ln_l)| {
            // Σ w² / (Σ w)² = ∫ r Σ w² e^{-r Σ w} dr, and dr = r dy.
            law.mean(|w| (r * w).powi(2) * (-r * w).exp()) * ((k - 1.0) * ln_l).exp()
        });
        terms.sum::<f64>() * grid.step * k
    }
}

/// A model's risks at every number of negatives `k`, as a real number at least 1.
#[derive(Debug, Clone)]
pub struct FiniteK {
    /// The anchors; their shares sum to 1.
    pub anchors: Vec<Anchor>,
    /// The temperature.
    pub tau: f64,
    /// E log Z(x).
    pub mean_ln_z: f64,
    /// `E s⁺`, the mean score of a positive.
    pub mean_positive: f64,
}

impl FiniteK {
    fn average(&self, f: impl Fn(&Anchor) -> f64) -> f64 {
        self.anchors.iter().map(|a| a.weight * f(a)).sum()
    }

    /// The limit of all risks as `k` grows.
    pub fn r_inf(&self) -> f64 {
        self.mean_ln_z - self.mean_positive / self.tau
    }

    /// `D_k`, how far [`FiniteK::dcl`] is below the limit; it falls to 0 as `k` grows.
    pub fn d(&self, k: f64) -> f64 {
        self.average(|a| a.d(k))
    }

    /// `P_k`, what the positive in the denominator adds; it falls to 0 as `k` grows.
    pub fn p(&self, k: f64) -> f64 {
        self.average(|a| a.p(k))
    }

    /// The InfoNCE risk `R_k`, normalised by `log k`.
    pub fn risk(&self, k: f64) -> f64 {
        self.r_inf() + self.p(k) - self.d(k)
    }

    /// The risk `R~_k` of decoupled contrastive learning: without the positive in the denominator.
    pub fn dcl(&self, k: f64) -> f64 {
        self.r_inf() - self.d(k)
    }

    /// The expected cross-entropy `ECE_k` of a softmax search over `k` unseen items; NaN of a model without dM/dπ.
    pub fn ece(&self, k: f64) -> f64 {
        self.mean_ln_z - self.average(|a| a.d(k) + a.found(k) / self.tau)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_negative_and_certain_weights_are_elementary() {
        let values = [0.2, 0.7, 2.4];
        let probabilities = [0.5, 0.3, 0.2];
        let law = Discrete { probabilities: &probabilities, values: &values };
        let anchor = Anchor::new(1.0, Grid::exact(0.2), law);
        assert!((anchor.d(1.0) + law.mean(f64::ln)).abs() < 1e-13);
        // Two negatives, and a positive of weight 3: by all nine pairs.
        let anchor = anchor.with_positives(Discrete { probabilities: &[1.0], values: &[3.0] });
        let pairs = law.mean(|x| law.mean(|y| (1.0 + 3.0 / (x + y)).ln()));
        assert!((anchor.p(2.0) - pairs).abs() < 1e-13, "{} {pairs}", anchor.p(2.0));
        let anchor = anchor.with_search(law, &[-1.0, 0.0, 1.0]);
        let score = |x: f64| if x < 0.5 { -1.0 } else { (x > 1.0) as u8 as f64 };
        let found = law.mean(|x| law.mean(|y| (x * score(x) + y * score(y)) / (x + y)));
        assert!((anchor.found(2.0) - found).abs() < 1e-13, "{} {found}", anchor.found(2.0));
        let squares = law.mean(|x| law.mean(|y| (x * x + y * y) / (x + y).powi(2)));
        assert!((Anchor::concentration(2.0, Grid::exact(0.2), law) - squares).abs() < 1e-13);
        assert!(Anchor::new(1.0, Grid::exact(0.2), law).p(3.0).is_nan());
    }
}
