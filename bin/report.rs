//! `report`: compares finished runs in a table, and writes one self-contained page about them.

use clap::Parser;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use weince::report::page;
use weince::report::run::{Group, comparison, figures, read_groups};
use weince::stats::Spread;

/// Compares finished runs: a table on stdout, and with --out a page with charts.
///
/// Runs whose configurations differ in `seed` alone share a row, as mean ± standard deviation (number of runs).
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Run folders
    #[arg(required = true)]
    run_dir: Vec<PathBuf>,
    /// Where to write the page, such as report.html
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// Print the table as Markdown
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    weince::cli::run(|| {
        let groups = read_groups(&arguments.run_dir)?;
        if let Some(path) = &arguments.out {
            page::write(&groups, path)?;
            eprintln!("report: {}", path.display());
        }
        for run in groups.iter().flat_map(|g| &g.runs) {
            if !run.ended {
                eprintln!("report: {}: the run has not ended; its figures are those so far", run.folder.display());
            }
            if run.metrics.torn {
                eprintln!("report: {}: the last line of metrics.jsonl is torn and left out", run.folder.display());
            }
            if !run.outdated.is_empty() {
                eprintln!(
                    "report: {}: the results of {} are of other weights than the run has now, and left out; evaluate again",
                    run.folder.display(),
                    run.outdated.join(" and ")
                );
            }
            let missing = run.missing_results();
            if !missing.is_empty() {
                eprintln!("report: {}: no results of {} yet", run.folder.display(), missing.join(" and "));
            }
        }
        if arguments.json {
            println!("{}", Value::Object(to_json(&groups)));
        } else if arguments.markdown {
            print!("{}", comparison(&groups).to_markdown());
        } else {
            print!("{}", comparison(&groups).to_text());
        }
        Ok(())
    })
}

fn to_json(groups: &[Group]) -> Map<String, Value> {
    let spread = |s: Spread| json!({"mean": s.mean, "std": s.std, "n": s.n});
    let group = |group: &Group| {
        let runs: Vec<Value> = group
            .runs
            .iter()
            .map(|run| json!({"folder": run.folder, "seed": run.seed, "missing_results": run.missing_results()}))
            .collect();
        let figures: Map<String, Value> =
            figures(&group.runs).iter().map(|f| (f.key.clone(), group.spread(f).map_or(Value::Null, spread))).collect();
        json!({"label": group.label, "loss_kind": group.runs[0].loss_kind, "runs": runs, "figures": figures})
    };
    Map::from_iter([("groups".to_string(), groups.iter().map(group).collect())])
}
