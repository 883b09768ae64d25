//! Correlations of predictions with gold scores, which are a number or the reason why there is none.

use statrs::statistics::{Data, OrderStatistics, RankTieBreaker};
use std::fmt;

/// A correlation, or why it is undefined.
pub type Correlation = std::result::Result<f64, Undefined>;

/// One of the two lists that are correlated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// What was predicted.
    Predictions,
    /// What it is judged by.
    Gold,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Side::Predictions => "predictions",
            Side::Gold => "gold scores",
        })
    }
}

/// Why a correlation is undefined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Undefined {
    /// The lists differ in length.
    #[error("{predictions} predictions and {gold} gold scores; expected as many of both")]
    Lengths {
        /// The number of predictions.
        predictions: usize,
        /// The number of gold scores.
        gold: usize,
    },
    /// No values, or one.
    #[error("the number of pairs is {0}; expected at least 2")]
    TooFew(usize),
    /// NaN or infinity.
    #[error("number {index} of the {side}, counted from 0, is not finite")]
    NonFinite {
        /// The list that has it.
        side: Side,
        /// Its place there, from 0.
        index: usize,
    },
    /// A list of one and the same value.
    #[error("all {0} are the same")]
    Constant(Side),
}

/// Pearson's coefficient of correlation.
///
/// # Errors
/// [`Undefined`].
pub fn pearson(predictions: &[f64], gold: &[f64]) -> Correlation {
    check(predictions, gold)?;
    Ok(coefficient(predictions, gold))
}

/// Spearman's coefficient of rank correlation: Pearson's of the ranks, where equal values share the mean of their ranks.
///
/// # Errors
/// [`Undefined`].
pub fn spearman(predictions: &[f64], gold: &[f64]) -> Correlation {
    check(predictions, gold)?;
    let ranks = |values: &[f64]| Data::new(values.to_vec()).ranks(RankTieBreaker::Average);
    Ok(coefficient(&ranks(predictions), &ranks(gold)))
}

fn check(predictions: &[f64], gold: &[f64]) -> std::result::Result<(), Undefined> {
    if predictions.len() != gold.len() {
        return Err(Undefined::Lengths { predictions: predictions.len(), gold: gold.len() });
    }
    if predictions.len() < 2 {
        return Err(Undefined::TooFew(predictions.len()));
    }
    let sides = [(Side::Predictions, predictions), (Side::Gold, gold)];
    for (side, values) in sides {
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            return Err(Undefined::NonFinite { side, index });
        }
    }
    match sides.iter().find(|(_, values)| values.iter().all(|v| *v == values[0])) {
        Some((side, _)) => Err(Undefined::Constant(*side)),
        None => Ok(()),
    }
}

/// Pearson's coefficient of values that [`check`] let through.
fn coefficient(x: &[f64], y: &[f64]) -> f64 {
    let (x, y) = (deviations(x), deviations(y));
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let r = product(&x, &y) / (product(&x, &x) * product(&y, &y)).sqrt();
    // Two points lie on a line. Beyond 1 is rounding.
    if x.len() == 2 { r.signum() } else { r.clamp(-1.0, 1.0) }
}

/// The deviations from the mean, times a power of two with which no square of them overflows or vanishes.
fn deviations(values: &[f64]) -> Vec<f64> {
    let largest = values.iter().fold(0.0_f64, |largest, v| largest.max(v.abs()));
    let scale = 2f64.powi((-largest.log2().floor()).clamp(-1000.0, 1000.0) as i32);
    let n = values.len() as f64;
    let mean = values.iter().map(|v| v * scale).sum::<f64>() / n;
    // The mean is rounded. Where the values agree in most of their digits that would show, so what it is off by goes too.
    let off = values.iter().map(|v| v * scale - mean).sum::<f64>() / n;
    values.iter().map(|v| v * scale - mean - off).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn numbers(value: &Value) -> Vec<f64> {
        value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
    }

    #[test]
    fn equal_to_scipys_and_to_exact_arithmetic() {
        let text = include_str!("../../tests/golden/correlation/expected.json");
        let golden: Value = serde_json::from_str(text).unwrap();
        let cases = golden["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 18);
        for case in cases {
            let (x, y) = (numbers(&case["x"]), numbers(&case["y"]));
            for (name, got) in [("pearson", pearson(&x, &y)), ("spearman", spearman(&x, &y))] {
                let (got, of) = (got.unwrap(), |by: &str| case[by][name].as_f64().unwrap());
                assert!((got - of("exact")).abs() < 1e-12, "{name} of {}: {got}, exact {}", case["name"], of("exact"));
                if !case["scipy_is_rounded"][name].as_bool().unwrap() {
                    assert!(
                        (got - of("scipy")).abs() < 1e-12,
                        "{name} of {}: {got}, SciPy {}",
                        case["name"],
                        of("scipy")
                    );
                }
                if x.len() == 2 {
                    assert_eq!(got, of("exact"), "two points");
                }
            }
        }
    }

    #[test]
    fn the_whole_range_of_numbers() {
        for scale in [f64::MAX / 4.0, f64::MIN_POSITIVE, 5e-324] {
            let x = [scale, 2.0 * scale, 4.0 * scale];
            let got = pearson(&x, &[1.0, 2.0, 4.0]).unwrap();
            assert!((got - 1.0).abs() < 1e-15, "{scale}: {got}");
            assert!((pearson(&x, &x).unwrap() - 1.0).abs() < 1e-15);
        }
        assert_eq!(pearson(&[-f64::MAX, f64::MAX], &[1.0, 0.0]), Ok(-1.0));
    }

    #[test]
    fn what_is_undefined_says_why() {
        let both = |x: &[f64], y: &[f64]| {
            let (one, other) = (pearson(x, y).unwrap_err(), spearman(x, y).unwrap_err());
            assert_eq!(one, other);
            one
        };
        assert_eq!(both(&[], &[]), Undefined::TooFew(0));
        assert_eq!(both(&[1.0], &[1.0]), Undefined::TooFew(1));
        assert_eq!(both(&[1.0], &[1.0, 2.0]), Undefined::Lengths { predictions: 1, gold: 2 });
        assert_eq!(both(&[0.1; 3], &[1.0, 2.0, 3.0]), Undefined::Constant(Side::Predictions));
        assert_eq!(both(&[0.0, -0.0], &[1.0, 2.0]), Undefined::Constant(Side::Predictions));
        assert_eq!(both(&[1.0, 2.0, 3.0], &[0.1; 3]), Undefined::Constant(Side::Gold));
        let broken = [1.0, 2.0, f64::NAN];
        assert_eq!(both(&broken, &[1.0; 3]), Undefined::NonFinite { side: Side::Predictions, index: 2 });
        let reason = both(&[1.0, 2.0], &[f64::INFINITY, 2.0]);
        assert_eq!(reason.to_string(), "number 0 of the gold scores, counted from 0, is not finite");
    }
}
