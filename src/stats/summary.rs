//! Figures over repetitions.

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
}
