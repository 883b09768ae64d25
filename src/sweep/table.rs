//! The table of a sweep: as CSV with all digits, as Markdown, as text, as JSON, and as a picture.

use super::aggregate::{Cell, Incomplete, Row, Summary, summarize};
use super::folder::SweepFolder;
use super::grid::Sweep;
use super::records::{collect, from_csv, to_csv as records_to_csv};
use crate::checkpoint::write_changed;
use crate::error::{Error, Result};
use crate::report::figure::{IntervalChart, sheet};
use crate::report::table::Table;
use crate::stats::Spread;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// Reads the runs of a sweep's folder, or where it has none its `runs.csv`, and writes `runs.csv`, `table.csv`, `table.md` and
/// `table.svg` into `out`, with `sweep.resolved.yaml`, so that `out` stands alone; gives the table. `tell` gets notes on runs.
///
/// # Errors
/// A folder without a sweep or without figures; damaged files; what the system refuses.
pub fn write(folder: &Path, out: &Path, tell: &mut dyn FnMut(String)) -> Result<Summary> {
    let from = SweepFolder::new(folder);
    if !from.sweep().is_file() {
        return Err(Error::Config(format!(
            "{}: no sweep's folder: it has no sweep.resolved.yaml; name the folder that `run-sweep --sweep` wrote (its --out)",
            folder.display()
        )));
    }
    let sweep = Sweep::load(&from.sweep())?;
    let read = |path: &Path| std::fs::read(path).map_err(Error::io(path, "cannot read"));
    let path = from.records();
    let csv = if from.runs().is_dir() {
        records_to_csv(&collect(&sweep, &from, tell))
    } else if path.is_file() {
        String::from_utf8(read(&path)?).map_err(|_| Error::data(&path, None, "no text; make it anew from the runs"))?
    } else {
        return Err(Error::Config(format!(
            "{}: neither runs/ nor runs.csv is there, so there is nothing to report",
            folder.display()
        )));
    };
    let summary = summarize(&sweep, &from_csv(&csv, &path, &sweep)?);
    let svg = to_svg(&summary)?;
    std::fs::create_dir_all(out).map_err(Error::io(out, "cannot make the folder of the report"))?;
    let to = SweepFolder::new(out);
    let files = [
        (to.sweep(), read(&from.sweep())?),
        (to.records(), csv.into_bytes()),
        (out.join("table.csv"), to_csv(&summary).into_bytes()),
        (out.join("table.md"), to_markdown(&summary).into_bytes()),
        (out.join("table.svg"), svg.into_bytes()),
    ];
    for (path, bytes) in files {
        write_changed(&path, bytes)?;
    }
    Ok(summary)
}

impl Row {
    /// The row's name with what it was chosen from.
    fn label(&self) -> String {
        match (self.default, self.settings) {
            (true, _) => format!("{}, not tuned", self.arm),
            (false, 1) => self.arm.clone(),
            (false, n) => format!("{}, best of {n}", self.arm),
        }
    }
}

/// `linear_accuracy` for people.
fn title(metric: &str) -> String {
    match metric {
        "linear_accuracy" => "linear probe".into(),
        "knn_accuracy" => "kNN".into(),
        other => other.replace("recall_at_", "recall@"),
    }
}

/// Percent, with the half-width of the 95 % interval where there is one.
fn percent(spread: Spread, signed: bool) -> String {
    let mean = 100.0 * spread.mean;
    // What rounds to nothing has no sign.
    let mean = if signed && mean.abs() >= 0.005 { format!("{mean:+.2}") } else { format!("{:.2}", mean.abs()) };
    spread.half_width_95().map_or(mean.clone(), |half| format!("{mean} ± {:.2}", 100.0 * half))
}

/// The tables that people read: figures, differences, and what was chosen.
fn tables(summary: &Summary) -> Vec<(String, Table)> {
    let columns: Vec<String> = summary.metrics.iter().map(|m| title(m)).collect();
    let of = |row: &Row, show: &dyn Fn(&Cell) -> Option<String>| {
        let cell = |cell: &Option<Cell>| cell.as_ref().and_then(show).unwrap_or_else(|| "-".into());
        (row.label(), row.cells.iter().map(cell).collect::<Vec<_>>())
    };
    let n = summary.seeds;
    let interval = match n {
        1 => "of one encoder seed".to_string(),
        n => format!("mean ± half-width of the 95 % interval (Student's t) over {n} encoder seeds"),
    };
    let figures = summary.rows.iter().map(|row| of(row, &|cell| Some(percent(cell.test, false)))).collect();
    let mut tables = vec![(
        format!("Test samples, %: {interval}"),
        Table { corner: "arm".into(), columns: columns.clone(), rows: figures },
    )];
    let differing: Vec<&Row> = summary.rows.iter().filter(|row| row.default || row.arm != summary.baseline).collect();
    if !differing.is_empty() {
        let rows = differing.iter().map(|row| of(row, &|cell| cell.difference.map(|d| percent(d, true)))).collect();
        tables.push((
            format!("Difference from {}, points, seed by seed: {interval}", summary.baseline),
            Table { corner: "arm".into(), columns, rows },
        ));
    }
    let chosen: Vec<&Row> = summary.rows.iter().filter(|row| row.settings > 1).collect();
    if !chosen.is_empty() {
        let row = |(m, metric): (usize, &String)| {
            let cell = |row: &&Row| {
                let Some(cell) = &row.cells[m] else { return "-".to_string() };
                cell.val.map_or(cell.setting.clone(), |val| format!("{} ({:.2})", cell.setting, 100.0 * val))
            };
            (title(metric), chosen.iter().map(cell).collect())
        };
        tables.push((
            "Setting chosen, by the mean over encoder seeds on held-out training samples (that mean, %)".to_string(),
            Table {
                corner: "metric".into(),
                columns: chosen.iter().map(|row| row.label()).collect(),
                rows: summary.metrics.iter().enumerate().map(row).collect(),
            },
        ));
    }
    tables
}

/// What a reader has to know beside the figures.
fn notes(summary: &Summary) -> Vec<String> {
    let mut notes = Vec::new();
    if summary.probe_seeds > 1 {
        notes.push(format!(
            "The linear probe's {} seeds are averaged within an encoder seed, and do not count as repetitions.",
            summary.probe_seeds
        ));
    }
    if summary.rows.iter().any(|row| row.settings > 1) {
        let arms = summary.rows.iter().filter(|row| !row.default);
        let counts: Vec<String> = arms.map(|row| format!("{} from {}", row.arm, row.settings)).collect();
        notes.push(format!(
            "Every metric's setting is chosen by its own validation figure, among settings with all {} seeds: {}. The best of \
             more settings is higher by choice alone; `not tuned` is the arm without its grid.",
            summary.seeds,
            counts.join(", ")
        ));
    }
    for left in &summary.incomplete {
        let setting = if left.setting == "-" { String::new() } else { format!(" {}", left.setting) };
        let all = left.metrics.len() == summary.metrics.len();
        let of = if all { String::new() } else { format!(" ({})", left.metrics.join(", ")) };
        notes.push(format!("Left out: {}{setting}, with {} of {} seeds{of}.", left.arm, left.seeds, summary.seeds));
    }
    notes
}

/// The tables for a terminal.
pub fn to_text(summary: &Summary) -> String {
    let tables = tables(summary).into_iter().map(|(heading, table)| format!("{heading}\n\n{}", table.to_text()));
    let notes = notes(summary).into_iter().map(|note| note + "\n").collect::<String>();
    let parts: Vec<String> = tables.chain((!notes.is_empty()).then_some(notes)).collect();
    parts.join("\n")
}

/// The tables as Markdown.
pub fn to_markdown(summary: &Summary) -> String {
    let tables = tables(summary).into_iter().map(|(heading, table)| format!("{heading}\n\n{}", table.to_markdown()));
    let notes = notes(summary).into_iter().map(|note| format!("- {note}\n")).collect::<String>();
    let parts: Vec<String> = tables.chain((!notes.is_empty()).then_some(notes)).collect();
    parts.join("\n")
}

/// A line a metric and row, fractions with all digits.
fn to_csv(summary: &Summary) -> String {
    let mut out =
        "metric,arm,tuned,settings,complete_settings,setting,seeds,val_mean,test_mean,test_std,test_ci95_low,\
                   test_ci95_high,difference_mean,difference_std,difference_ci95_low,difference_ci95_high\n"
            .to_string();
    for (m, metric) in summary.metrics.iter().enumerate() {
        for row in &summary.rows {
            let _ = write!(out, "{metric},{},{},{}", row.arm, u8::from(!row.default && row.settings > 1), row.settings);
            let Some(cell) = &row.cells[m] else {
                out.push_str(",0,,,,,,,,,,,\n");
                continue;
            };
            let text = |value: Option<f64>| value.map(|v| format!("{v:?}")).unwrap_or_default();
            let spread = |s: Option<Spread>| {
                let ends = s.and_then(|s| s.interval_95());
                let all = [s.map(|s| s.mean), s.and_then(|s| s.std), ends.map(|e| e[0]), ends.map(|e| e[1])];
                all.map(text).join(",")
            };
            let (test, difference) = (spread(Some(cell.test)), spread(cell.difference));
            let (candidates, setting, n, val) = (cell.candidates, &cell.setting, cell.test.n, text(cell.val));
            let _ = writeln!(out, ",{candidates},{setting},{n},{val},{test},{difference}");
        }
    }
    out
}

/// The table for machines.
pub fn to_json(summary: &Summary) -> Value {
    let spread =
        |s: Spread| json!({"mean": s.mean, "std": s.std, "n": s.n, "ci95": s.interval_95().map(|ends| ends.to_vec())});
    let cell = |metric: &String, cell: &Option<Cell>| {
        let Some(cell) = cell else { return json!({"metric": metric, "setting": null}) };
        json!({
            "metric": metric, "setting": cell.setting, "complete_settings": cell.candidates, "val_mean": cell.val,
            "test": spread(cell.test), "difference": cell.difference.map(spread),
            "by_seed": cell.tests.iter().map(|(seed, test)| json!({"seed": seed, "test": test})).collect::<Vec<_>>(),
        })
    };
    let row = |row: &Row| {
        let figures: Vec<Value> = summary.metrics.iter().zip(&row.cells).map(|(m, c)| cell(m, c)).collect();
        json!({
            "arm": row.arm, "tuned": !row.default && row.settings > 1, "settings": row.settings, "figures": figures,
        })
    };
    let incomplete = |left: &Incomplete| json!({"arm": left.arm, "setting": left.setting, "metrics": left.metrics, "seeds": left.seeds});
    json!({
        "baseline": summary.baseline, "seeds": summary.seeds, "probe_seeds": summary.probe_seeds,
        "rows": summary.rows.iter().map(row).collect::<Vec<_>>(),
        "incomplete": summary.incomplete.iter().map(incomplete).collect::<Vec<_>>(),
    })
}

/// A chart a metric: the seeds' figures, their mean and its interval for every row.
///
/// # Errors
/// A chart that cannot be drawn.
fn to_svg(summary: &Summary) -> Result<String> {
    let mut charts = Vec::new();
    for (m, metric) in summary.metrics.iter().enumerate() {
        let series = |(colour, row): (usize, &Row)| {
            let values = row.cells[m].iter().flat_map(|cell| &cell.tests).map(|(_, test)| 100.0 * test).collect();
            (row.label(), colour, values)
        };
        let series: Vec<(String, usize, Vec<f64>)> = summary.rows.iter().enumerate().map(series).collect();
        if series.iter().any(|(_, _, values)| !values.is_empty()) {
            let title = format!("{}: seeds, mean and 95 % interval", title(metric));
            charts.push(IntervalChart { title, y: "test samples (%)".into(), series }.to_svg()?);
        }
    }
    Ok(sheet(&charts, 2))
}
