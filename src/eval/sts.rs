//! Semantic textual similarity: how well cosines of embeddings rank pairs of sentences as people do.
//!
//! `all` is the figure that SimCSE and most papers since report: one correlation over the pairs of all subsets. `mean` and
//! `wmean` are SentEval's: the mean of the subsets' correlations, plain and weighted by their pairs. Where the subsets lie on
//! scales of their own, these differ much; a figure without its name cannot be compared.

use crate::data::text::sts::{StsSet, StsSubset};
use crate::error::{Error, Result};
use crate::report::table::Table;
use crate::stats::{pearson, spearman};
use crate::torch::with_floats;
use serde::Serialize;
use std::collections::BTreeMap;
use tch::Tensor;

/// Cosines of pairs.
#[derive(Debug, Clone, PartialEq)]
pub struct Similarities {
    /// One a pair, in [-1, 1].
    pub values: Vec<f64>,
    /// Embeddings of norm 0; their similarity to everything is 0.
    pub zero_rows: usize,
}

/// Correlations of similarities with gold scores. Fractions, not percents.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// The number of pairs.
    pub n: usize,
    /// Spearman's rank correlation; none where it is undefined.
    pub spearman: Option<f64>,
    /// Pearson's correlation; none where it is undefined.
    pub pearson: Option<f64>,
    /// Why they are undefined.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// What similarities of a set's pairs tell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StsResult {
    /// Of all pairs at once.
    pub all: Figures,
    /// The means over subsets; none for a set of one.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub over_subsets: Option<OverSubsets>,
    /// Embeddings of norm 0, of two for each pair.
    pub zero_rows: usize,
    /// Pairs that the set has without a gold score, which are in none of the figures.
    pub unscored: usize,
}

/// Figures of a set of several subsets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OverSubsets {
    /// The mean of the subsets' correlations.
    pub mean: Figures,
    /// The same, weighted by the numbers of pairs.
    pub wmean: Figures,
    /// By subset.
    pub subsets: BTreeMap<String, Figures>,
}

/// The cosines of rows `a[i]` and `b[i]` of dimension `d`, in float64 and summed in the order of the columns.
///
/// Rows that are equal, or opposite, have exactly 1, or -1: such pairs are ties and not in an order that rounding makes.
///
/// # Errors
/// [`Error::Input`] for lengths that do not belong together, [`Error::NonFinite`] for values, naming the row.
pub fn cosines(a: &[f32], b: &[f32], d: usize) -> Result<Similarities> {
    if d == 0 || a.len() != b.len() || !a.len().is_multiple_of(d) {
        return Err(Error::Input(format!(
            "embeddings of {} and {} values in rows of {d}; expected as many whole rows of first as of second sentences",
            a.len(),
            b.len()
        )));
    }
    for (which, values) in [("first", a), ("second", b)] {
        if let Some(place) = values.iter().position(|v| !v.is_finite()) {
            return Err(Error::NonFinite(format!(
                "the embedding of the {which} sentence of pair {}, counted from 0, is {} in column {}; find where the encoder diverged",
                place / d,
                values[place],
                place % d
            )));
        }
    }
    // Squares of float32 numbers neither overflow nor vanish in float64, nor do products of two sums of them.
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let mut zero_rows = 0;
    let cosine = |(a, b): (&[f32], &[f32])| {
        let squares = [product(a, a), product(b, b)];
        zero_rows += squares.iter().filter(|s| **s == 0.0).count();
        // The root of a square is exact, a product of roots is not.
        let norms = (squares[0] * squares[1]).sqrt();
        if norms == 0.0 { 0.0 } else { (product(a, b) / norms).clamp(-1.0, 1.0) }
    };
    let values = a.chunks_exact(d).zip(b.chunks_exact(d)).map(cosine).collect();
    Ok(Similarities { values, zero_rows })
}

/// The same of the rows of two matrices.
///
/// # Shapes
/// float32 [pairs, d] both.
///
/// # Errors
/// As [`cosines`]; matrices of another type.
pub fn similarities(a: &Tensor, b: &Tensor) -> Result<Similarities> {
    let width = a.size2()?.1 as usize;
    with_floats(a, |a| with_floats(b, |b| cosines(a, b, width)))
}

/// The first and the second sentences of pairs that take turns.
///
/// # Shapes
/// [2 pairs, d] to two of [pairs, d].
///
/// # Errors
/// Whatever LibTorch reports.
pub fn sides(embeddings: &Tensor) -> Result<(Tensor, Tensor)> {
    let (rows, width) = embeddings.size2()?;
    let pairs = embeddings.f_view([rows / 2, 2, width])?;
    Ok((pairs.f_select(1, 0)?.f_contiguous()?, pairs.f_select(1, 1)?.f_contiguous()?))
}

/// The gold scores of a subset.
#[derive(Debug, Clone, PartialEq)]
pub struct Gold {
    /// The subset's name.
    pub name: String,
    /// One a pair.
    pub scores: Vec<f64>,
    /// Pairs that have none.
    pub unscored: usize,
}

impl Gold {
    /// Those of a data set, subset by subset.
    pub fn of(set: &StsSet) -> Vec<Gold> {
        let gold = |subset: &StsSubset| Gold {
            name: subset.name.clone(),
            scores: subset.pairs.iter().map(|pair| pair.score).collect(),
            unscored: subset.unscored,
        };
        set.subsets.iter().map(gold).collect()
    }
}

/// The figures of subsets: `similarities` has a value for each pair, subset by subset.
///
/// # Errors
/// [`Error::Input`] for another number of values than of pairs, and for subsets of one name.
pub fn evaluate(gold: &[Gold], similarities: &Similarities) -> Result<StsResult> {
    let pairs: usize = gold.iter().map(|subset| subset.scores.len()).sum();
    if similarities.values.len() != pairs {
        return Err(Error::Input(format!(
            "{} similarities for {pairs} pairs; expected one for each",
            similarities.values.len()
        )));
    }
    let (mut all, mut subsets, mut rest) = (Vec::with_capacity(pairs), BTreeMap::new(), &similarities.values[..]);
    for subset in gold {
        let (values, after) = rest.split_at(subset.scores.len());
        if subsets.insert(subset.name.clone(), Figures::of(values, &subset.scores)).is_some() {
            return Err(Error::Input(format!("two subsets `{}`; expected one of each name", subset.name)));
        }
        all.extend_from_slice(&subset.scores);
        rest = after;
    }
    let over_subsets = (subsets.len() > 1).then(|| OverSubsets {
        mean: Figures::mean(&subsets, |_| 1.0),
        wmean: Figures::mean(&subsets, |n| n as f64),
        subsets,
    });
    Ok(StsResult {
        all: Figures::of(&similarities.values, &all),
        over_subsets,
        zero_rows: similarities.zero_rows,
        unscored: gold.iter().map(|subset| subset.unscored).sum(),
    })
}

impl Figures {
    fn of(similarities: &[f64], gold: &[f64]) -> Figures {
        let (spearman, pearson) = (spearman(similarities, gold), pearson(similarities, gold));
        // Both are undefined for the same reasons.
        let reason = pearson.as_ref().err().map(ToString::to_string);
        Figures { n: gold.len(), spearman: spearman.ok(), pearson: pearson.ok(), reason }
    }

    /// The mean over subsets, with a weight by their pairs; undefined where one of them is.
    fn mean(subsets: &BTreeMap<String, Figures>, weight: impl Fn(usize) -> f64) -> Figures {
        let undefined = |(name, of): (&String, &Figures)| Some(format!("`{name}`: {}", of.reason.as_ref()?));
        let reasons: Vec<String> = subsets.iter().filter_map(undefined).collect();
        let weights: f64 = subsets.values().map(|of| weight(of.n)).sum();
        let mean = |figure: fn(&Figures) -> Option<f64>| {
            let sum: Option<f64> = subsets.values().map(|of| Some(weight(of.n) * figure(of)?)).sum();
            sum.map(|sum| sum / weights)
        };
        Figures {
            n: subsets.values().map(|of| of.n).sum(),
            spearman: mean(|of| of.spearman),
            pearson: mean(|of| of.pearson),
            reason: (!reasons.is_empty()).then(|| reasons.join("; ")),
        }
    }
}

impl StsResult {
    /// A table for a terminal: subsets first, then the figures over them, and below it what is undefined and why.
    pub fn to_text(&self, name: &str) -> String {
        let mut rows: Vec<(&str, &Figures)> = Vec::new();
        let over = self.over_subsets.as_ref();
        rows.extend(over.iter().flat_map(|over| &over.subsets).map(|(name, of)| (name.as_str(), of)));
        rows.push(("all", &self.all));
        rows.extend(over.iter().flat_map(|over| [("mean", &over.mean), ("wmean", &over.wmean)]));
        let cell = |value: Option<f64>| value.map_or("undefined".into(), |value| format!("{value:.4}"));
        let row = |(name, of): &(&str, &Figures)| {
            (name.to_string(), vec![of.n.to_string(), cell(of.spearman), cell(of.pearson)])
        };
        let columns = ["pairs", "Spearman", "Pearson"].map(String::from).to_vec();
        let mut text = Table { corner: name.to_string(), columns, rows: rows.iter().map(row).collect() }.to_text();
        for (name, reason) in rows.iter().filter_map(|(name, of)| Some((name, of.reason.as_ref()?))) {
            text += &format!("{name} is undefined: {reason}\n");
        }
        if over.is_some() {
            text += "all: the pairs of all subsets at once; mean, wmean: over the subsets, plain and weighted by their pairs\n";
        }
        for (count, what) in
            [(self.zero_rows, "embeddings of norm 0"), (self.unscored, "pairs without a gold score, left out")]
        {
            if count > 0 {
                text += &format!("{what}: {count}\n");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn set(subsets: &[(&str, &[f64])]) -> Vec<Gold> {
        let subset =
            |(name, scores): &(&str, &[f64])| Gold { name: name.to_string(), scores: scores.to_vec(), unscored: 0 };
        subsets.iter().map(subset).collect()
    }

    fn given(values: &[f64]) -> Similarities {
        Similarities { values: values.to_vec(), zero_rows: 0 }
    }

    #[test]
    fn equal_to_what_senteval_and_simcse_make_with_scipy() {
        let text = include_str!("../../tests/golden/correlation/expected.json");
        let golden: Value = serde_json::from_str::<Value>(text).unwrap()["evaluation"].take();
        let numbers = |v: &Value| -> Vec<f64> { v.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect() };
        let subsets = golden["subsets"].as_array().unwrap();
        let gold: Vec<_> = subsets.iter().map(|s| (s["name"].as_str().unwrap(), numbers(&s["gold"]))).collect();
        let gold: Vec<(&str, &[f64])> = gold.iter().map(|(name, scores)| (*name, &scores[..])).collect();
        let values: Vec<f64> = subsets.iter().flat_map(|s| numbers(&s["similarity"])).collect();
        let got = evaluate(&set(&gold), &given(&values)).unwrap();
        let over = got.over_subsets.as_ref().unwrap();
        let mut pairs =
            vec![(&got.all, &golden["all"]), (&over.mean, &golden["mean"]), (&over.wmean, &golden["wmean"])];
        pairs.extend(over.subsets.values().zip(subsets));
        for (figures, expected) in pairs {
            for (got, key) in [(figures.spearman, "spearman"), (figures.pearson, "pearson")] {
                let (got, expected) = (got.unwrap(), expected[key].as_f64().unwrap());
                assert!((got - expected).abs() < 1e-12, "{key}: {got}, SciPy {expected}");
            }
        }
        // The three differ: none of them can stand for another.
        let three = [&got.all, &over.mean, &over.wmean].map(|f| f.spearman.unwrap());
        assert!((three[0] - three[1]).abs() > 0.05 && (three[1] - three[2]).abs() > 0.05, "{three:?}");
        assert_eq!((got.all.n, over.mean.n, over.wmean.n), (145, 145, 145));
        let table = got.to_text("set");
        let names: Vec<_> = table.lines().map(|line| line.split(' ').next().unwrap()).collect();
        assert_eq!(names[2..8], ["first", "second", "third", "all", "mean", "wmean"], "{table}");
    }

    #[test]
    fn a_set_of_one_has_just_all() {
        let got = evaluate(&set(&[("one", &[1.0, 2.0, 4.0])]), &given(&[0.1, 0.2, 0.4])).unwrap();
        let expected = json!({"all": {"n": 3, "spearman": 1.0, "pearson": 1.0}, "zero_rows": 0, "unscored": 0});
        let mut json = serde_json::to_value(&got).unwrap();
        let pearson = json["all"]["pearson"].as_f64().unwrap();
        assert!((pearson - 1.0).abs() < 1e-15);
        json["all"]["pearson"] = json!(1.0);
        assert_eq!(json, expected);
        let table =
            "set   pairs   Spearman   Pearson\n---   -----   --------   -------\nall       3     1.0000    1.0000\n";
        assert_eq!(got.to_text("set"), table);
    }

    #[test]
    fn what_is_undefined_names_the_subset() {
        let two = set(&[("x", &[1.0, 2.0]), ("y", &[3.0, 1.0])]);
        let got = evaluate(&two, &given(&[0.5, 0.5, 0.7, 0.1])).unwrap();
        let json = serde_json::to_value(&got).unwrap();
        let undefined = |n: usize, reason: &str| json!({"n": n, "spearman": null, "pearson": null, "reason": reason});
        assert_eq!(json["subsets"]["x"], undefined(2, "all predictions are the same"));
        assert_eq!(json["subsets"]["y"], json!({"n": 2, "spearman": 1.0, "pearson": 1.0}));
        assert_eq!(json["mean"], undefined(4, "`x`: all predictions are the same"));
        assert_eq!(json["wmean"], json["mean"]);
        assert!(got.all.spearman.is_some());
        let text = got.to_text("set");
        assert!(text.contains("\nx is undefined: all predictions are the same\n"), "{text}");
        let got = evaluate(&two, &given(&[0.5; 4])).unwrap();
        assert_eq!(got.all.reason.as_deref(), Some("all predictions are the same"));
    }

    #[test]
    fn what_does_not_belong_together_is_refused() {
        let two = set(&[("x", &[1.0, 2.0]), ("x", &[3.0, 1.0])]);
        let e = evaluate(&two, &given(&[0.0; 3])).unwrap_err().to_string();
        assert_eq!(e, "3 similarities for 4 pairs; expected one for each");
        let e = evaluate(&two, &given(&[0.1, 0.2, 0.3, 0.4])).unwrap_err().to_string();
        assert_eq!(e, "two subsets `x`; expected one of each name");
    }

    #[test]
    fn cosines_by_hand() {
        let a = [3.0, 4.0, 0.0, 0.0, 1e30, 1e30, 1e-40, 0.0];
        let b = [4.0, 3.0, 1.0, 2.0, -1e30, -1e30, 1e-40, 1e-40];
        let got = cosines(&a, &b, 2).unwrap();
        assert_eq!(got.zero_rows, 1);
        for (got, expected) in got.values.iter().zip([0.96, 0.0, -1.0, 0.5_f64.sqrt()]) {
            assert!((got - expected).abs() < 1e-15, "{got} {expected}");
        }
        assert_eq!(cosines(&[], &[], 3).unwrap(), given(&[]));
        for (a, b, d) in [(4, 2, 2), (3, 3, 2), (2, 2, 0)] {
            let e = cosines(&vec![1.0; a], &vec![1.0; b], d).unwrap_err();
            assert!(matches!(e, Error::Input(_)), "{e}");
        }
        for (value, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf")] {
            let e = cosines(&[1.0; 6], &[1.0, 1.0, 1.0, 1.0, 1.0, value], 2).unwrap_err();
            assert_eq!(e.exit_code(), 3);
            let begin =
                format!("the embedding of the second sentence of pair 2, counted from 0, is {shown} in column 1;");
            assert!(e.to_string().starts_with(&begin), "{e}");
        }
    }

    #[test]
    fn equal_rows_tie() {
        let rows: Vec<f32> = (0..7000).map(|i| ((i * 37 % 101) as f32 * 0.173).sin()).collect();
        let opposite: Vec<f32> = rows.iter().map(|v| -v).collect();
        assert!(cosines(&rows, &rows, 7).unwrap().values.iter().all(|v| *v == 1.0));
        assert!(cosines(&rows, &opposite, 7).unwrap().values.iter().all(|v| *v == -1.0));
        let half: Vec<f32> = rows.iter().map(|v| v * 0.5).collect();
        assert!(cosines(&rows, &half, 7).unwrap().values.iter().all(|v| *v == 1.0), "powers of two keep all digits");
    }
}
