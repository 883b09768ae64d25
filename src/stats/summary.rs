//! Figures over repetitions.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// Mean and spread of a figure over repetitions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Sample standard deviation (divisor n - 1); one value has none.
    pub std: Option<f64>,
    /// The number of values.
    pub n: usize,
}

impl Spread {
    /// Of some values; `None` of none.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let n = values.len();
        if n == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / n as f64;
        // Two passes: no cancellation between large squares.
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        Some(Spread { mean, std: (n > 1).then(|| (squares / (n - 1) as f64).sqrt()), n })
    }

    /// Half the width of the 95 % interval of the mean by Student's t with n - 1 degrees of freedom; one value has none.
    ///
    /// It holds for repetitions that are independent and about normal.
    pub fn half_width_95(&self) -> Option<f64> {
        let std = self.std?;
        let t = StudentsT::new(0.0, 1.0, (self.n - 1) as f64).ok()?.inverse_cdf(0.975);
        Some(t * std / (self.n as f64).sqrt())
    }

    /// Both ends of the 95 % interval of the mean, as [`Spread::half_width_95`] says.
    pub fn interval_95(&self) -> Option<[f64; 2]> {
        self.half_width_95().map(|half| [self.mean - half, self.mean + half])
    }
}

#[cfg(test)]
mod tests {
    use super::Spread;

    #[test]
    fn the_deviation_has_n_minus_one() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[0.5]), Some(Spread { mean: 0.5, std: None, n: 1 }));
        assert_eq!(Spread::of(&[1.0, 3.0]), Some(Spread { mean: 2.0, std: Some(2f64.sqrt()), n: 2 }));
    }

    #[test]
    fn intervals_equal_scipys() {
        // scipy.stats.t.ppf(0.975, n - 1) of SciPy 1.17.1, by n.
        let quantiles = [
            (2, 12.706204736174694),
            (3, 4.302652729749462),
            (4, 3.1824463052837078),
            (5, 2.7764451051977934),
            (6, 2.5705818356363146),
            (10, 2.262157162798205),
            (11, 2.228138851986274),
            (31, 2.0422724563012378),
            (101, 1.9839715185235518),
        ];
        for (n, t) in quantiles {
            let spread = Spread { mean: 0.0, std: Some((n as f64).sqrt()), n };
            let got = spread.half_width_95().unwrap();
            // The quantile is found by iteration: ten digits are far beyond what a table shows.
            assert!((got / t - 1.0).abs() < 1e-10, "n = {n}: {got}, SciPy {t}");
        }
        // scipy.stats.t.interval(0.95, 3, mean(x), sem(x)) of x = 0.817, 0.823, 0.809, 0.831.
        let [low, high] = Spread::of(&[0.817, 0.823, 0.809, 0.831]).unwrap().interval_95().unwrap();
        assert!((low - 0.8051865186222043).abs() < 1e-12 && (high - 0.8348134813777957).abs() < 1e-12, "{low} {high}");
        assert_eq!(Spread::of(&[0.5]).unwrap().interval_95(), None);
        assert_eq!(Spread::of(&[0.5, 0.5]).unwrap().interval_95(), Some([0.5, 0.5]));
    }
}
