//! `report.html`: everything about some finished runs on one self-contained page.
//!
//! The page depends on the runs' files alone: the same files give the same bytes.

use super::figure::{Axis, BarChart, LineChart, Mark, Point, Series};
use super::metrics::Split;
use super::run::{Group, Run, comparison, differences, figures};
use super::table::{Format, escape, write_figure};
use crate::checkpoint::write_bytes;
use crate::error::Result;
use crate::stats::Spread;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// A curve has at most about this many points: each is a mean over neighbouring steps.
const CURVE_POINTS: u64 = 160;

const STYLE: &str = include_str!("page.css");

struct Curve {
    split: Split,
    name: &'static str,
    title: &'static str,
    axis: &'static str,
    /// From the unit of the metrics to that of the axis.
    factor: f64,
}

const fn train(name: &'static str, title: &'static str, axis: &'static str) -> Curve {
    Curve { split: Split::Train, name, title, axis, factor: 1.0 }
}

const PROGRESS: [Curve; 5] = [
    train("loss", "Training loss", "loss (nats)"),
    Curve {
        split: Split::Eval,
        name: "knn_accuracy",
        title: "kNN accuracy while training",
        axis: "accuracy (%)",
        factor: 100.0,
    },
    Curve {
        split: Split::Eval,
        name: "spearman",
        title: "Spearman's correlation while training",
        axis: "correlation (%)",
        factor: 100.0,
    },
    train("grad_norm", "Gradient norm", "norm over all parameters"),
    train("lr", "Learning rate", "learning rate"),
];

const DIAGNOSTICS: [Curve; 8] = [
    train("lambda_mean", "Gate λ", "mean over anchors"),
    train("lambda_rho_mean", "Gate's part from ρ", "mean λ_ρ over anchors"),
    train("lambda_aic_mean", "Gate's part from ΔAIC", "mean λ_AIC over anchors"),
    train("delta_aic_min", "Least ΔAIC of the batch", "ΔAIC"),
    train("beta_mean", "Weibull shape β", "mean over anchors"),
    train("rho_mean", "Tail statistic ρ", "mean over anchors"),
    train("n2_mean", "Negatives that share the softmax", "mean 1 / Σp² over anchors"),
    train("criticality_mean", "Criticality λβ/h", "mean over anchors"),
];

/// Writes the page beside its place and then moves it there.
///
/// # Errors
/// As [`to_html`], or a failed write.
pub fn write(groups: &[Group], path: &Path) -> Result<()> {
    write_bytes(path, to_html(groups)?)
}

/// The page as text.
///
/// # Errors
/// A chart that cannot be drawn.
pub fn to_html(groups: &[Group]) -> Result<String> {
    let runs: Vec<&Run> = groups.iter().flat_map(|g| &g.runs).collect();
    let mut body = String::new();
    overview(&mut body, groups, &runs);
    results(&mut body, groups, &runs)?;
    curves(
        &mut body,
        "Training",
        "Curves are means over neighbouring steps, then over the runs of a group; the band is one standard deviation over \
         runs. Losses of different kinds are different functions: compare their course, not their height.",
        &PROGRESS,
        groups,
    )?;
    curves(
        &mut body,
        "Tail diagnostics",
        "What the gate of WEINCE saw. λ = 0 leaves an anchor's logits those of InfoNCE, λ = 1 makes them the endpoint-aware \
         ones. λ is the product of its parts, so a part that stays at 0 or 1 is saturated. Losses without a gate have no \
         curve here.",
        &DIAGNOSTICS,
        groups,
    )?;
    views(&mut body, &runs);
    protocol(&mut body, &runs);
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Contrastive pretraining: comparison of runs</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
         {body}</main>\n</body>\n</html>\n"
    ))
}

fn overview(out: &mut String, groups: &[Group], runs: &[&Run]) {
    out.push_str("<h1>Contrastive pretraining: comparison of runs</h1>\n");
    let shared = |key: &str| -> Option<&str> {
        let value = runs.first()?.setting(key)?;
        runs.iter().all(|r| r.setting(key) == Some(value)).then_some(value)
    };
    let mut facts = vec![count(runs.len(), "run"), count(groups.len(), "configuration")];
    facts.extend(
        ["data.kind", "model.encoder.kind"].into_iter().filter_map(|key| Some(format!("{key}: {}", shared(key)?))),
    );
    let _ = writeln!(out, "<p class=\"lead\">{}</p>", escape(&facts.join(" · ")));
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn results(out: &mut String, groups: &[Group], runs: &[&Run]) -> Result<()> {
    out.push_str("<h2>Results</h2>\n<div class=\"wide\">");
    out.push_str(&comparison(groups).to_html());
    out.push_str("</div>\n");
    note(
        out,
        "Mean ± sample standard deviation (number of runs) over seeds; a single run has no spread. Accuracies are of the \
         test set. Final loss and mean λ are means over the last tenth of the steps, images/s and sentences/s are medians.",
    );
    for run in runs {
        let missing = run.missing_results();
        if !missing.is_empty() {
            let text = format!("{}: no results of {} yet.", run.folder.display(), missing.join(" and "));
            let _ = writeln!(out, "<p class=\"note warn\">{}</p>", escape(&text));
        }
    }
    let accuracies =
        figures(runs.iter().copied()).into_iter().filter(|f| f.format == Format::Percent && f.of_text != Some(true));
    let accuracies: Vec<_> = accuracies.collect();
    let evaluated: Vec<(usize, &Group)> =
        groups.iter().enumerate().filter(|(_, g)| accuracies.iter().any(|f| g.spread(f).is_some())).collect();
    let bars = BarChart {
        title: "Accuracy on the test set".to_string(),
        y: "accuracy (%)".to_string(),
        series: evaluated.iter().map(|(colour, g)| (g.label.clone(), *colour)).collect(),
        groups: accuracies
            .iter()
            .filter(|figure| evaluated.iter().any(|(_, g)| g.spread(figure).is_some()))
            .map(|figure| {
                let percents = |g: &Group| g.runs.iter().filter_map(|r| (figure.of)(r)).map(|v| 100.0 * v).collect();
                let values = evaluated.iter().map(|(_, g)| percents(g)).collect();
                (figure.title.trim_end_matches(" (%)").to_string(), values)
            })
            .collect(),
    };
    if !bars.groups.is_empty() {
        out.push_str("<div class=\"charts\">\n");
        figure(out, &bars.to_svg()?);
        out.push_str("</div>\n");
        note(out, "Bars are means, whiskers one standard deviation, dots the single runs where there are several.");
    }
    Ok(())
}

fn curves(out: &mut String, heading: &str, explanation: &str, curves: &[Curve], groups: &[Group]) -> Result<()> {
    let mut charts = String::new();
    for curve in curves {
        let series: Vec<Series> = groups
            .iter()
            .enumerate()
            .map(|(colour, group)| {
                let points = mean_curve(group, curve);
                Series { label: group.label.clone(), colour, mark: Mark::Line, points }
            })
            .filter(|series| !series.points.is_empty())
            .collect();
        if !series.is_empty() {
            let (x, y) = (Axis::linear("training step"), Axis::linear(curve.axis));
            let chart = LineChart { title: curve.title.to_string(), x, y, series, rules: Vec::new() };
            figure(&mut charts, &chart.to_svg()?);
        }
    }
    if !charts.is_empty() {
        let _ = writeln!(out, "<h2>{}</h2>", escape(heading));
        note(out, explanation);
        let _ = writeln!(out, "<div class=\"charts\">\n{charts}</div>");
    }
    Ok(())
}

/// Mean and spread over a group's runs of a curve, each run first averaged over bins of steps.
fn mean_curve(group: &Group, curve: &Curve) -> Vec<Point> {
    let of_runs: Vec<Vec<(u64, f64)>> =
        group.runs.iter().map(|run| run.metrics.series(curve.split, curve.name)).collect();
    let last = of_runs.iter().flatten().map(|(step, _)| *step).max().unwrap_or(0);
    let width = last / CURVE_POINTS + 1;
    let mut bins: BTreeMap<u64, (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for points in &of_runs {
        let mut of_run: BTreeMap<u64, (f64, f64, f64)> = BTreeMap::new();
        for (step, value) in points {
            let (n, steps, values) = of_run.entry(step / width).or_default();
            *n += 1.0;
            *steps += *step as f64;
            *values += curve.factor * value;
        }
        for (bin, (n, steps, values)) in of_run {
            let (all_steps, all_values) = bins.entry(bin).or_default();
            all_steps.push(steps / n);
            all_values.push(values / n);
        }
    }
    let point = |(steps, values): (Vec<f64>, Vec<f64>)| {
        let (step, value) = (Spread::of(&steps)?, Spread::of(&values)?);
        Some(Point { x: step.mean, y: value.mean, band: value.std.map(|std| [value.mean - std, value.mean + std]) })
    };
    bins.into_values().filter_map(point).collect()
}

fn views(out: &mut String, runs: &[&Run]) {
    // Runs with the same data and augmentation have the same views: each picture is shown once.
    let mut shown: Vec<&[u8]> = Vec::new();
    for run in runs {
        let Some(png) = run.views.as_deref() else { continue };
        if shown.contains(&png) {
            continue;
        }
        if shown.is_empty() {
            out.push_str("<h2>Augmented views</h2>\n");
        }
        shown.push(png);
        let name = escape(&run.name());
        let _ = writeln!(
            out,
            "<figure><img class=\"views\" alt=\"augmented views of {name}\" src=\"data:image/png;base64,{}\">\
             <figcaption>{name}</figcaption></figure>",
            base64(png)
        );
    }
}

fn protocol(out: &mut String, runs: &[&Run]) {
    out.push_str("<h2>Runs and protocol</h2>\n");
    let columns = figures(runs.iter().copied());
    let row = |run: &&Run| {
        let last_step = run.metrics.records.iter().filter(|r| r.split == Split::Train).map(|r| r.step).max();
        let tail = if run.metrics.torn { ", metrics end in a torn line" } else { "" };
        let missing = run.missing_results();
        let results = if !run.ended {
            "run not ended".to_string()
        } else if missing.is_empty() {
            "complete".to_string()
        } else {
            format!("no {}", missing.join(", no "))
        };
        let mut cells = vec![
            run.name(),
            run.loss_kind.clone(),
            run.seed.to_string(),
            format!("{}{tail}", last_step.map_or("-".to_string(), |s| s.to_string())),
            run.environment.get("started").map_or("-".to_string(), plain),
            results,
        ];
        cells.extend(columns.iter().map(|f| write_figure((f.of)(run).and_then(|v| Spread::of(&[v])), f.format)));
        cells
    };
    let mut head = ["run", "loss", "seed", "last step", "started", "results"].map(String::from).to_vec();
    head.extend(columns.iter().map(|f| f.title.to_string()));
    grid(out, &head, runs.iter().map(row).collect());

    let names: Vec<String> = runs.iter().map(|r| r.name()).collect();
    let by_run = |keys: Vec<String>, value: &dyn Fn(&Run, &str) -> String| -> Vec<Vec<String>> {
        let row = |key: String| {
            let values: Vec<String> = runs.iter().map(|r| value(r, &key)).collect();
            std::iter::once(key).chain(values).collect()
        };
        keys.into_iter().map(row).collect()
    };
    let heading = |first: &str| std::iter::once(first.to_string()).chain(names.clone()).collect::<Vec<_>>();

    let setting = |run: &Run, key: &str| run.setting(key).unwrap_or("-").to_string();
    let differing = differences(runs);
    if !differing.is_empty() {
        out.push_str("<h3>Settings that differ</h3>\n");
        grid(out, &heading("setting"), by_run(differing.clone(), &setting));
    }
    let shared: Vec<Vec<String>> = runs.first().map_or(Vec::new(), |run| {
        let common = run.config.iter().filter(|(key, _)| !differing.contains(key));
        common.map(|(key, value)| vec![key.clone(), value.clone()]).collect()
    });
    let _ = writeln!(out, "<details><summary>Settings that all runs share ({})</summary>", shared.len());
    grid(out, &["setting".to_string(), "value".to_string()], shared);
    out.push_str("</details>\n");

    out.push_str("<h3>Environment</h3>\n");
    let mut keys: Vec<String> = Vec::new();
    for key in runs.iter().flat_map(|run| run.environment.keys()) {
        if !keys.contains(key) && key != "started" {
            keys.push(key.clone());
        }
    }
    let value = |run: &Run, key: &str| run.environment.get(key).map_or("-".to_string(), plain);
    // What all runs have in common is said once.
    let (same, different): (Vec<String>, Vec<String>) =
        keys.into_iter().partition(|key| runs.iter().all(|run| value(run, key) == value(runs[0], key)));
    let same = same.into_iter().map(|key| vec![key.clone(), value(runs[0], &key)]).collect::<Vec<_>>();
    if !same.is_empty() {
        grid(out, &["all runs".to_string(), String::new()], same);
    }
    if !different.is_empty() {
        grid(out, &heading("differs"), by_run(different, &value));
    }
}

/// A JSON value as a person would write it; a command line as one line.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

fn note(out: &mut String, text: &str) {
    let _ = writeln!(out, "<p class=\"note\">{}</p>", escape(text));
}

fn figure(out: &mut String, svg: &str) {
    let _ = writeln!(out, "<figure>{svg}</figure>");
}

fn grid(out: &mut String, head: &[String], rows: Vec<Vec<String>>) {
    out.push_str("<div class=\"wide\"><table>\n<tr>");
    for cell in head {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escape(cell));
    }
    out.push_str("</tr>\n");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td>{}</td>", escape(&cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let word = three.iter().enumerate().fold(0u32, |word, (i, b)| word | u32::from(*b) << (16 - 8 * i));
        for digit in 0..4 {
            let used = digit <= three.len();
            let index = (word >> (18 - 6 * digit)) as usize & 63;
            out.push(if used { char::from(DIGITS[index]) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::metrics::{Metrics, Record};
    use super::*;

    fn run(seed: u64, records: Vec<Record>) -> Run {
        Run {
            folder: "r".into(),
            command: "pretrain-vision",
            seed,
            loss_kind: "infonce".into(),
            config: Vec::new(),
            environment: Default::default(),
            metrics: Metrics { records, torn: false },
            linear: None,
            knn: None,
            sts: Default::default(),
            ended: true,
            views: None,
            outdated: Vec::new(),
        }
    }

    #[test]
    fn curves_are_means_over_steps_and_then_over_runs() {
        let records = |shift: f64| (0..400).map(|s| Record::train(s, 0).with("loss", s as f64 + shift)).collect();
        let group = Group { label: "g".into(), runs: vec![run(0, records(0.0)), run(1, records(2.0))] };
        let curve = mean_curve(&group, &PROGRESS[0]);
        // Three steps a point: 0, 1, 2 give 1 and 3 in the two runs, whose standard deviation is the root of 2.
        assert_eq!(curve.len(), 134);
        assert_eq!((curve[0].x, curve[0].y), (1.0, 2.0));
        assert!(curve.iter().all(
            |p| p.band.is_some_and(|b| (b[1] - b[0] - 8f64.sqrt()).abs() < 1e-12) && (p.y - p.x - 1.0).abs() < 1e-9
        ));
        let alone = Group { label: "g".into(), runs: vec![run(0, records(0.0))] };
        assert!(mean_curve(&alone, &PROGRESS[0]).iter().all(|p| p.band.is_none()));
    }

    #[test]
    fn runs_without_any_line_make_a_page_too() {
        let html = to_html(&[Group { label: "<g>".into(), runs: vec![run(0, Vec::new())] }]).unwrap();
        assert!(!html.contains("<svg") && html.contains("&lt;g&gt;"));
    }

    #[test]
    fn base64_equals_the_vectors_of_rfc_4648() {
        for (plain, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }
}
