//! Several encoders side by side, by what can be compared between any two of them, whatever loss they were trained with.

use super::Analysis;
use super::analysis::Figure;
use super::words::{both, percent, plain, significant};
use crate::report::table::Table;
use std::fmt::Write;

/// A Markdown table of the common functionals, each encoder's R_inf by temperature, and what the tables can and cannot
/// tell. Names and analyses, of the same anchors and corpus.
pub fn compare(analyses: &[(String, Analysis)]) -> String {
    let columns = ["calibrated temperature", "R_inf there (nats)", "MRR", "recall@1", "recall@10", "ECE (nats)"];
    let rows = analyses.iter().map(|(name, analysis)| (name.clone(), row(analysis)));
    let mut out = Table { corner: "encoder".into(), columns: columns.map(String::from).to_vec(), rows: rows.collect() }
        .to_markdown();
    out.push('\n');
    for note in notes(analyses) {
        let _ = writeln!(out, "- {note}");
    }
    let taus: Vec<f64> =
        analyses.first().map_or(Vec::new(), |(_, a)| a.temperature.points.iter().map(|p| p.tau).collect());
    let at = |analysis: &Analysis, tau: f64| {
        let found = analysis.temperature.points.iter().find(|p| (p.tau / tau).ln().abs() < 1e-9);
        found.map_or("-".into(), |p| cell(p.r_inf))
    };
    if !taus.is_empty() {
        let rows = taus.iter().map(|tau| (plain(*tau), analyses.iter().map(|(_, a)| at(a, *tau)).collect()));
        let columns = analyses.iter().map(|(name, _)| name.clone()).collect();
        let table = Table { corner: "temperature".into(), columns, rows: rows.collect() };
        let _ = write!(out, "\nR_inf (nats) by temperature, lower is better:\n\n{}", table.to_markdown());
    }
    out
}

fn cell(figure: Figure) -> String {
    let [value, interval] = both(figure);
    format!("{value} ({interval})")
}

/// R_inf at the calibrated temperature: of all items where all was measured there, else of the sample.
fn calibrated(analysis: &Analysis) -> Option<Figure> {
    let tau = analysis.temperature.calibrated?;
    if (analysis.tau / tau).ln().abs() < 1e-9 {
        return Some(analysis.cross_entropy.r_inf);
    }
    analysis.temperature.at_calibrated.map(|at| at.r_inf)
}

fn row(analysis: &Analysis) -> Vec<String> {
    let retrieval = &analysis.retrieval;
    let all = retrieval.by_size.last();
    let recall = |rank: usize, without: Option<f64>| match retrieval.recall.iter().find(|r| r.rank == rank) {
        Some(r) => format!("{} ({})", percent(r.figure.value), r.figure.interval.map(percent).join(" to ")),
        None => without.map_or("-".into(), percent),
    };
    vec![
        analysis.temperature.calibrated.map_or("none".into(), plain),
        calibrated(analysis).map_or("-".into(), cell),
        cell(retrieval.mrr),
        recall(1, all.map(|s| s.recall_at_1)),
        recall(10, all.map(|s| s.recall_at_10)),
        analysis
            .cross_entropy
            .labelled
            .map_or("-".into(), |l| format!("{} at {}", significant(l.ece), plain(analysis.tau))),
    ]
}

fn notes(analyses: &[(String, Analysis)]) -> Vec<String> {
    let mut notes = Vec::new();
    let differs = |f: &dyn Fn(&Analysis) -> usize| analyses.windows(2).any(|w| f(&w[0].1) != f(&w[1].1));
    let law = analyses.windows(2).any(|w| w[0].1.checks.negatives != w[1].1.checks.negatives);
    if law || differs(&|a| a.checks.items) || differs(&|a| a.checks.anchors) {
        notes.push(
            "**These encoders were not measured on the same anchors and items: their numbers cannot be compared.** Recall \
             falls with the number of items, and R_inf depends on which they are."
                .into(),
        );
    }
    notes.push(
        "In brackets 95 %. Intervals that do not overlap are a difference; intervals that do can still hide one, because \
         all encoders are measured on the same anchors."
            .into(),
    );
    if analyses.iter().any(|(_, a)| a.cross_entropy.labelled.is_some()) {
        let taus = analyses.windows(2).any(|w| (w[0].1.tau / w[1].1.tau).ln().abs() > 1e-9);
        let own = if taus { " Here the temperatures differ: read it as each encoder at its own." } else { "" };
        notes.push(format!("ECE is at the temperature that is named with it, and has no interval.{own}"));
    }
    if analyses.iter().any(|(_, a)| a.weince.is_some()) {
        notes.push(
            "Encoders trained with WEINCE and with InfoNCE are compared by these figures alone: their own losses have \
             different logits, and the values say nothing about each other."
                .into(),
        );
    }
    if analyses.iter().any(|(_, a)| a.temperature.calibrated.is_none()) {
        notes.push(
            "An encoder without a calibrated temperature has no least R_inf from 0.005 to 10: its own page says why."
                .into(),
        );
    }
    notes
}
