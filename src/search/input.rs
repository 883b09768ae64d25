//! What a search is measured on: anchors, their positives, and the items that are searched.

use crate::error::{Error, Result};
use crate::eval::matrix::Matrix;
use crate::eval::rows::Rows;
use serde::Serialize;

/// Rows of a matrix that are read at once.
const BLOCK: usize = 8192;

/// From so far from 1 on, the norm of a row counts as none of a unit row.
const UNIT: f64 = 1e-3;

/// Where the items come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Negatives {
    /// Items of their own, independent of the pairs.
    Corpus,
    /// The positives of the other anchors.
    Positives,
    /// The other anchors.
    Anchors,
}

/// Classes of anchors and items.
#[derive(Debug, Clone)]
pub struct Labels {
    /// One an anchor.
    pub anchors: Vec<i64>,
    /// One an item.
    pub items: Vec<i64>,
}

/// Pairs and items, after a look at them.
#[derive(Debug)]
pub struct Input {
    /// Anchors.
    ///
    /// # Shapes
    /// [n, d]
    pub anchors: Rows,
    /// The cosines of the anchors and their positives.
    pub positives: Vec<f64>,
    /// The items.
    ///
    /// # Shapes
    /// [m, d]
    pub corpus: Matrix,
    /// Where the items come from.
    pub negatives: Negatives,
    /// The item of each anchor that is its positive, or itself, and is left out.
    pub own: Option<Vec<u32>>,
    /// Classes, where they are known.
    pub labels: Option<Labels>,
    /// What was seen.
    pub checks: Checks,
}

/// What was seen in the embeddings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checks {
    /// n, the number of anchors.
    pub anchors: usize,
    /// m, the number of items.
    pub items: usize,
    /// d, the length of a row.
    pub dimensions: usize,
    /// Where the items come from.
    pub negatives: Negatives,
    /// Rows, of all that were given, whose norm is more than 0.001 from 1: cosines are taken of all.
    pub not_unit: usize,
    /// Anchors whose positive is at a cosine of 1 - 1e-6 or more: the same row, or nearly.
    pub positive_is_anchor: usize,
}

/// Which rows are a search's positives and items.
#[derive(Debug)]
pub enum Items {
    /// A corpus of its own.
    Corpus(Matrix),
    /// A corpus of which some rows are the positives, by their numbers from 0.
    Among(Matrix, Vec<i64>),
    /// The other anchors' positives.
    Positives,
    /// The other anchors.
    Anchors,
}

impl Input {
    /// Takes `anchors` and `positives` [n, d], row by row a pair, and the items.
    ///
    /// # Errors
    /// Different numbers of rows or columns, fewer than 2 anchors, too few items, rows of norm 0, and what the matrices report.
    pub fn new(anchors: &Matrix, positives: Option<&Matrix>, items: Items, labels: Option<Labels>) -> Result<Input> {
        let (n, d) = (anchors.rows(), anchors.columns());
        let mut not_unit = 0;
        let anchor_rows = whole(anchors, &mut not_unit)?;
        let same_width = |other: &Matrix| {
            if other.columns() == d {
                return Ok(());
            }
            Err(Error::Input(format!(
                "{} has rows of {} numbers, and {} of {d}; all must come from the same encoder",
                other.name(),
                other.columns(),
                anchors.name()
            )))
        };
        if n < 2 {
            return Err(Error::Input(format!(
                "{}: {n} anchor; a search is measured on at least 2, better some thousands",
                anchors.name()
            )));
        }
        if let Items::Corpus(corpus) | Items::Among(corpus, _) = &items {
            same_width(corpus)?;
            not_unit += norms(corpus)?;
        }
        let positive_rows = match (positives, &items) {
            (Some(positives), _) => {
                same_width(positives)?;
                if positives.rows() != n {
                    return Err(Error::Input(format!(
                        "{} has {} rows, and {} has {n}; row by row they are a pair",
                        positives.name(),
                        positives.rows(),
                        anchors.name()
                    )));
                }
                whole(positives, &mut not_unit)?
            }
            (None, Items::Among(corpus, numbers)) => chosen(corpus, numbers, n)?,
            (None, _) => return Err(Error::Input("a search needs the positives of its anchors".into())),
        };
        let cosines: Vec<f64> = (0..n).map(|i| anchor_rows.similarities(i, &positive_rows, [i as u32])[0]).collect();
        let identity = || Some((0..n as u32).collect());
        let (corpus, negatives, own) = match items {
            Items::Corpus(corpus) => (corpus, Negatives::Corpus, None),
            Items::Among(corpus, numbers) => {
                let own = numbers.iter().map(|i| *i as u32).collect();
                (corpus, Negatives::Corpus, Some(own))
            }
            Items::Positives => (in_memory("positives", &positive_rows)?, Negatives::Positives, identity()),
            Items::Anchors => (in_memory("anchors", &anchor_rows)?, Negatives::Anchors, identity()),
        };
        let items = corpus.rows() - usize::from(own.is_some());
        if items < 2 || corpus.rows() > u32::MAX as usize {
            return Err(Error::Input(format!(
                "{}: {items} items to search among; expected at least 2, and fewer than 2^32",
                corpus.name()
            )));
        }
        if let Some(labels) = &labels {
            for (found, expected, what) in
                [(labels.anchors.len(), n, "anchors"), (labels.items.len(), corpus.rows(), "items of the corpus")]
            {
                if found != expected {
                    return Err(Error::Input(format!("{found} labels for {expected} {what}; expected one each")));
                }
            }
        }
        let checks = Checks {
            anchors: n,
            items,
            dimensions: d,
            negatives,
            not_unit,
            positive_is_anchor: cosines.iter().filter(|s| **s >= 1.0 - 1e-6).count(),
        };
        Ok(Input { anchors: anchor_rows, positives: cosines, corpus, negatives, own, labels, checks })
    }

    /// The number of items that an anchor is searched among.
    pub fn items(&self) -> usize {
        self.checks.items
    }
}

/// All rows of a matrix; counts those that are not of norm 1.
fn whole(matrix: &Matrix, not_unit: &mut usize) -> Result<Rows> {
    let rows = Rows::new(matrix.read(0..matrix.rows())?, matrix.columns());
    *not_unit += look(&rows, matrix, 0)?;
    Ok(rows)
}

/// Looks at all norms of a matrix, block by block.
fn norms(matrix: &Matrix) -> Result<usize> {
    let mut not_unit = 0;
    for begin in (0..matrix.rows()).step_by(BLOCK) {
        let rows = Rows::new(matrix.read(begin..matrix.rows().min(begin + BLOCK))?, matrix.columns());
        not_unit += look(&rows, matrix, begin)?;
    }
    Ok(not_unit)
}

fn look(rows: &Rows, matrix: &Matrix, first: usize) -> Result<usize> {
    if let Some(row) = rows.norms().iter().position(|norm| *norm == 0.0) {
        return Err(Error::Input(format!(
            "{}: row {}, counted from 0, is all zeros and has no direction; leave it out",
            matrix.name(),
            first + row
        )));
    }
    Ok(rows.norms().iter().filter(|norm| (**norm - 1.0).abs() > UNIT).count())
}

/// Rows of a corpus by their numbers.
fn chosen(corpus: &Matrix, numbers: &[i64], n: usize) -> Result<Rows> {
    if numbers.len() != n {
        return Err(Error::Input(format!(
            "{} numbers of positives for {n} anchors; expected one each, a row of {} from 0",
            numbers.len(),
            corpus.name()
        )));
    }
    if let Some(place) = numbers.iter().position(|i| !(0..corpus.rows() as i64).contains(i)) {
        return Err(Error::Input(format!(
            "the positive of anchor {place}, counted from 0, is row {} of {}; it has rows 0 to {}",
            numbers[place],
            corpus.name(),
            corpus.rows() - 1
        )));
    }
    let mut values = Vec::with_capacity(n * corpus.columns());
    for i in numbers {
        values.extend(corpus.read(*i as usize..*i as usize + 1)?);
    }
    Ok(Rows::new(values, corpus.columns()))
}

fn in_memory(name: &str, rows: &Rows) -> Result<Matrix> {
    Matrix::of(name, rows.values().to_vec(), rows.dim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: &[[f32; 2]]) -> Matrix {
        Matrix::of("some.npy", rows.concat(), 2).unwrap()
    }

    #[test]
    fn wrong_input_says_what_was_expected() {
        let two = || matrix(&[[1.0, 0.0], [0.0, 2.0]]);
        let three = || matrix(&[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]);
        let error = |found: Result<Input>| found.unwrap_err().to_string();
        assert!(error(Input::new(&two(), Some(&three()), Items::Positives, None)).contains("3 rows"));
        let wide = Matrix::of("w", vec![1.0; 6], 3).unwrap();
        assert!(error(Input::new(&two(), Some(&wide), Items::Positives, None)).contains("same encoder"));
        assert!(error(Input::new(&two(), Some(&two()), Items::Corpus(wide), None)).contains("same encoder"));
        assert!(error(Input::new(&two(), Some(&two()), Items::Positives, None)).contains("1 items"));
        let one = matrix(&[[1.0, 0.0]]);
        assert!(error(Input::new(&one, Some(&one), Items::Corpus(three()), None)).contains("1 anchor"));
        let zero = matrix(&[[1.0, 0.0], [0.0, 0.0]]);
        assert!(error(Input::new(&two(), Some(&two()), Items::Corpus(zero), None)).contains("row 1"));
        assert!(error(Input::new(&two(), None, Items::Among(three(), vec![0]), None)).contains("1 numbers"));
        assert!(error(Input::new(&two(), None, Items::Among(three(), vec![0, 3]), None)).contains("row 3"));
        let labels = Labels { anchors: vec![0, 1], items: vec![0] };
        assert!(error(Input::new(&two(), Some(&two()), Items::Corpus(three()), Some(labels))).contains("1 labels"));
    }

    #[test]
    fn what_is_odd_is_counted() {
        let anchors = matrix(&[[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]]);
        let positives = matrix(&[[1.0, 0.0], [1.0, 0.0], [0.6, 0.8]]);
        let got = Input::new(&anchors, Some(&positives), Items::Positives, None).unwrap();
        assert_eq!((got.checks.not_unit, got.checks.positive_is_anchor, got.items()), (2, 1, 2));
        assert_eq!(got.own, Some(vec![0, 1, 2]));
        assert!((got.positives[2] - 1.4 / 2f64.sqrt()).abs() < 1e-7);
    }
}
