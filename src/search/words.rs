//! What was measured on a search, in sentences: each figure with what it means and what to do about it, and what is most
//! important first.
//!
//! A verdict compares an interval, or where none is measured the figure, with a threshold that is named here; where the
//! interval has both sides, the sentence says so.

pub(super) mod negatives;
mod retrieval;
pub(super) mod softmax;
mod training;

use super::Analysis;
use super::analysis::Figure;
use super::finite_k::Training;
use crate::evt::Z_95;

/// A risk so near to its limit, in nats, counts as there: a tenth of a softmax probability.
pub(super) const NEAR_LIMIT: f64 = 0.1;
/// From this factor on, a temperature differs from the calibrated one.
const SAME_TEMPERATURE: f64 = 1.25;
/// Shares of the items in the variance of R_inf: from the first on they are most of it, up to the second hardly any.
const ITEMS_RULE: f64 = 0.5;
const ITEMS_ADD_LITTLE: f64 = 0.1;
/// From this share of anchors on of which one item has most of the softmax, the jackknife is not used, and R_inf is
/// uncertain.
const MANY_DOMINATED: f64 = 0.01;
/// From this share of its ceiling on, the temperature is what limits the search.
const NEAR_CEILING: f64 = 0.8;
/// From this share of anchors with ties on, ties decide the ranks.
const MANY_TIES: f64 = 0.01;
/// From this share of anchors on whose criticality is beyond that of a finite variance, they are told.
const MANY_BEYOND: f64 = 0.05;
/// Estimates of R_inf that are no further apart, in nats, agree.
const AGREE: f64 = 0.05;
/// From this difference of recalls on, a second look at the nearest items pays.
const RERANK: f64 = 0.1;

/// A figure, and what it means.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fact {
    /// What is measured.
    pub name: String,
    /// The figure with its unit, and its interval where there is one.
    pub value: String,
    /// What it means, and what to do about it.
    pub text: String,
}

/// Figures of one kind.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Section {
    /// Its headline.
    pub heading: &'static str,
    /// What is to be known first: the most important finding, in a sentence or two.
    pub brief: Option<String>,
    /// Its figures.
    pub facts: Vec<Fact>,
    /// The pictures that belong to it.
    pub pictures: &'static [&'static str],
}

/// All sections, in the order of the page.
pub(super) fn sections(analysis: &Analysis) -> Vec<Section> {
    let mut all = vec![
        retrieval::retrieval(analysis),
        softmax::cross_entropy(analysis),
        negatives::negatives(analysis),
        softmax::temperature(analysis),
        training::generalisation(analysis),
    ];
    all.extend(training::weince(analysis));
    all.push(retrieval::checks(analysis));
    all
}

/// What matters, section by section; first what is odd about the embeddings, which all other figures depend on.
pub(super) fn briefs(sections: &[Section]) -> impl Iterator<Item = &String> {
    let odd = sections.last().into_iter();
    odd.chain(&sections[..sections.len().saturating_sub(1)]).filter_map(|s| s.brief.as_ref())
}

/// Three significant digits, without an exponent where there need be none.
pub(super) fn significant(x: f64) -> String {
    if x == 0.0 || !x.is_finite() {
        return x.to_string();
    }
    let magnitude = x.abs().log10().floor();
    if !(-4.0..7.0).contains(&magnitude) { format!("{x:.1e}") } else { decimals(x, 2.0 - magnitude) }
}

/// The same without zeros at the end, as people write settings.
pub(super) fn plain(x: f64) -> String {
    let written = significant(x);
    if !written.contains('.') || written.contains('e') {
        return written;
    }
    written.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn decimals(x: f64, count: f64) -> String {
    let written = format!("{x:.*}", count.clamp(0.0, 6.0) as usize);
    // A minus before nothing but zeros.
    if written.bytes().all(|b| b"-0.".contains(&b)) { written.replace('-', "") } else { written }
}

/// The figure and both ends with as many decimals as the interval has two significant digits.
pub(super) fn both(Figure { value, interval: [low, high] }: Figure) -> [String; 2] {
    let width = high - low;
    let count = if width > 0.0 && width.is_finite() { 1.0 - width.log10().floor() } else { 3.0 };
    [decimals(value, count), format!("{} to {}", decimals(low, count), decimals(high, count))]
}

fn within(value: f64, se: f64) -> Figure {
    Figure { value, interval: [value - Z_95 * se, value + Z_95 * se] }
}

fn with_unit(figure: Figure, unit: &str) -> String {
    let [value, interval] = both(figure);
    format!("{value}{unit} (95 %: {interval})")
}

pub(super) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    if percent > 0.0 && percent < 0.1 {
        format!("{} %", decimals(percent, -percent.log10().floor()))
    } else {
        format!("{} %", decimals(percent, 1.0))
    }
}

fn fact(name: impl Into<String>, value: impl Into<String>, text: impl Into<String>) -> Fact {
    Fact { name: name.into(), value: value.into(), text: text.into() }
}

/// Rounded up to two significant digits, so that what is within the number is within what is written.
fn at_most(x: f64) -> String {
    if x <= 1e-6 {
        return "0.000001".into();
    }
    let unit = 10f64.powf(x.log10().floor() - 1.0);
    let up = (x / unit - 1e-9).ceil() * unit;
    let count = 1.0 - up.log10().floor();
    let written = decimals(up, count);
    if written.contains('.') { written.trim_end_matches('0').trim_end_matches('.').to_string() } else { written }
}

/// The most important figures, with their intervals: a name, and two cells each.
pub(super) fn rows(analysis: &Analysis) -> Vec<(String, Vec<String>)> {
    let mut rows: Vec<(String, Vec<String>)> = Vec::new();
    let mut alone = |name: &str, value: String| rows.push((name.to_string(), vec![value, String::new()]));
    alone("anchors", analysis.checks.anchors.to_string());
    alone("items", analysis.checks.items.to_string());
    alone("temperature", plain(analysis.tau));
    alone("calibrated temperature", analysis.temperature.calibrated.map_or("none".into(), plain));
    for r in &analysis.retrieval.recall {
        let cells = [r.figure.value, r.figure.interval[0], r.figure.interval[1]].map(|v| decimals(100.0 * v, 1.0));
        let [value, low, high] = cells;
        rows.push((format!("recall@{} (%)", r.rank), vec![value, format!("{low} to {high}")]));
    }
    let mut figure = |name: String, figure: Figure| rows.push((name, both(figure).to_vec()));
    figure("MRR".into(), analysis.retrieval.mrr);
    figure("median rank".into(), analysis.retrieval.median_rank);
    figure("R_inf (nats)".into(), analysis.cross_entropy.r_inf);
    let found = &analysis.generalisation;
    figure(format!("R_k, k = {} (nats)", found.k), within(found.risk, found.risk_se));
    if let Some(gap) = &found.gap {
        figure(format!("held-out - training, k = {} (nats)", found.k), within(gap.gap, gap.se));
    }
    if let Some(Training { k, bias: Some(bias), bias_se: Some(se), .. }) = analysis.finite_k.training {
        figure(format!("R_k - R_inf, k = {k} (nats)"), within(bias, se));
    }
    let mut alone = |name: String, value: String| rows.push((name, vec![value, String::new()]));
    if let Some(labelled) = &analysis.cross_entropy.labelled {
        alone("ECE (nats)".into(), significant(labelled.ece));
    }
    for r in &analysis.finite_k.recommended {
        alone(format!("k for {} nats", plain(r.eps)), r.k.map_or("none".into(), |k| k.to_string()));
    }
    if let Some(tail) = &analysis.weince {
        alone("criticality, median".into(), significant(tail.criticality[1]));
    }
    rows
}
