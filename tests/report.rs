//! Run records against what TensorBoard's own writer makes, and the report over whole run folders.

use std::path::{Path, PathBuf};
use weince::report::contact_sheet::{View, contact_sheet};
use weince::report::metrics::{MetricsWriter, Record};
use weince::report::page;
use weince::report::run::{comparison, read_groups};
use weince::report::tensorboard::{EventWriter, Events};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/report").join(name)
}

#[test]
fn events_equal_tensorboards_own_bytes() {
    let mut bytes = Vec::new();
    let mut events = Events::start(&mut bytes, 1700000000.0).unwrap();
    events.session_start(1700000000.5, 200).unwrap();
    events.scalars(1700000001.25, 0, &[("train/loss", 5.25), ("train/lr", 3e-4)]).unwrap();
    events.scalars(1700000002.5, 1, &[("train/loss", 0.1)]).unwrap();
    let hard = [("train/loss", f64::INFINITY), ("eval/kNN accuracy (k=200)", 0.0), ("λ", -1e-30)];
    events.scalars(1700000003.75, 300, &hard).unwrap();
    events.scalars(1700000005.0, 1 << 40, &[]).unwrap();
    assert_eq!(bytes, std::fs::read(golden("scalars.tfevents")).unwrap());
}

/// Leaves a run that was stopped after step 9 and resumed at step 6 where scripts/parity/test_report.py looks for it.
#[test]
fn event_files_of_a_resumed_run() {
    let given = std::env::var_os("WEINCE_EVENTS_FOLDER");
    let temporary = tempfile::tempdir().unwrap();
    let folder = given.map_or(temporary.path().join("tb"), PathBuf::from);
    let mut first = EventWriter::create(&folder).unwrap();
    for step in 0..10 {
        first.scalars(step, &[("train/loss", step as f64), ("train/lr", 0.5)]).unwrap();
    }
    // Not dropped before the second one: an interruption closes nothing in good order either.
    let mut second = EventWriter::resume(&folder, 6).unwrap();
    for step in 6..12 {
        second.scalars(step, &[("train/loss", 100.0 + step as f64)]).unwrap();
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
}

/// A run folder as training and evaluation leave it: `steps` steps of 20 to the epoch.
fn run_folder(root: &Path, kind: &str, seed: u64, steps: u64, accuracy: Option<f64>) -> PathBuf {
    let folder = root.join(format!("{kind}-{seed}"));
    for inner in ["results", "report"] {
        std::fs::create_dir_all(folder.join(inner)).unwrap();
    }
    let gate = if kind == "weince" { ", gate: {margin: 2.0, kappa_aic: 1.0}" } else { "" };
    let config = format!(
        "seed: {seed}\ndata: {{kind: fashion_mnist, threads: 2}}\nmodel: {{encoder: {{kind: resnet18, width: 16}}}}\n\
         loss: {{kind: {kind}, temperature: 0.5{gate}}}\ntrain: {{epochs: 3, milestones: [1, 2]}}\n"
    );
    std::fs::write(folder.join("config.resolved.yaml"), config).unwrap();
    let environment = serde_json::json!({
        "weince": "0.1.0", "libtorch": "2.11.0", "cpu": "Some CPU <2 GHz>", "threads": 2, "device": "cpu",
        "started": format!("2026-01-0{}T10:00:00Z", seed + 1), "command": ["pretrain-vision", "--config", "a & b.yaml"],
    });
    std::fs::write(folder.join("environment.json"), environment.to_string()).unwrap();
    let mut metrics = MetricsWriter::create(&folder.join("metrics.jsonl")).unwrap();
    for step in 0..steps {
        let t = step as f64 / steps as f64;
        let wiggle = (step as f64 * 12.9898 + seed as f64 * 78.233).sin() * 0.08;
        let mut record = Record::train(step, step / 20)
            .with("loss", 4.4 + 1.8 * (-4.0 * t).exp() + wiggle)
            .with("lr", 3e-4 * (1.0 + (3.1 * t).cos()) / 2.0);
        if kind == "weince" {
            record = record
                .with("lambda_mean", 0.1 + 0.1 * t + 0.05 * wiggle)
                .with("lambda_rho_mean", 0.2 + 0.05 * wiggle)
                .with("lambda_aic_mean", 0.5 + 0.5 * t)
                .with("delta_aic_min", -3.0 + 8.0 * t + 5.0 * wiggle)
                .with("rho_mean", 0.2 - 0.1 * t)
                .with("beta_mean", 3.0 + t + wiggle);
        }
        record = record.with("grad_norm", 1.0 + wiggle).with("images_per_second", 800.0 + 100.0 * wiggle);
        metrics.write(&record.with("data_wait", 0.01).with("seconds", 0.3 * (step + 1) as f64)).unwrap();
        if step % 20 == 19 {
            metrics.write(&Record::eval(step, step / 20).with("knn_accuracy", 0.5 + 0.3 * t + 0.1 * wiggle)).unwrap();
        }
    }
    if let Some(accuracy) = accuracy {
        let linear = serde_json::json!({"test_accuracy": accuracy, "val_accuracy": accuracy + 0.01});
        std::fs::write(folder.join("results/linear.json"), linear.to_string()).unwrap();
        let knn = serde_json::json!({
            "accuracy_at_k": {"1": accuracy - 0.06, "20": accuracy - 0.03, "200": accuracy - 0.04},
            "recall_at_1": accuracy - 0.06, "recall_at_5": accuracy + 0.03,
        });
        std::fs::write(folder.join("results/knn.json"), knn.to_string()).unwrap();
    }
    let pixels = |v: usize| (0..3 * 28 * 28).map(|i| ((i * (v + 3)) % 251) as u8).collect();
    let views = |r: usize| (0..8).map(|c| View { height: 28, width: 28, pixels: pixels(r * 8 + c) }).collect();
    let rows: Vec<Vec<View>> = (0..2).map(views).collect();
    std::fs::write(folder.join("report/views.png"), contact_sheet(&rows, 2).unwrap()).unwrap();
    folder
}

/// Two seeds of each of two losses, and one run that is not evaluated yet; left where WEINCE_RUNS_FOLDER says, if set.
fn example_runs(temporary: &Path) -> Vec<PathBuf> {
    let root = std::env::var_os("WEINCE_RUNS_FOLDER").map_or(temporary.to_path_buf(), PathBuf::from);
    vec![
        run_folder(&root, "infonce", 0, 60, Some(0.82)),
        run_folder(&root, "infonce", 1, 60, Some(0.84)),
        run_folder(&root, "weince", 0, 60, Some(0.85)),
        run_folder(&root, "weince", 1, 60, Some(0.86)),
        run_folder(&root, "reference", 0, 40, None),
    ]
}

#[test]
fn runs_that_differ_in_seed_alone_share_a_row() {
    let folder = tempfile::tempdir().unwrap();
    let runs: Vec<_> = [("infonce", 0, Some(0.82)), ("infonce", 1, Some(0.84)), ("weince", 0, None)]
        .map(|(kind, seed, accuracy)| run_folder(folder.path(), kind, seed, 60, accuracy))
        .to_vec();
    let groups = read_groups(&runs).unwrap();
    let text = comparison(&groups).to_text();
    assert_eq!(
        groups.iter().map(|g| (g.label.as_str(), g.runs.len())).collect::<Vec<_>>(),
        [("infonce", 2), ("weince", 1)]
    );
    // Mean 83, standard deviation sqrt(2) = 1.41 of 82 and 84; kNN takes the accuracy of the largest k: 78 and 80.
    assert!(text.contains("83.00 ± 1.41 (2)") && text.contains("79.00 ± 1.41 (2)") && text.contains("77.00"), "{text}");
    let weince = text.lines().find(|l| l.starts_with("weince")).unwrap();
    assert_eq!(weince.split_whitespace().filter(|c| *c == "-").count(), 3, "no results of three columns: {weince}");
    assert!(weince.ends_with("18"), "the last line's seconds: {weince}");
    assert_eq!(groups[1].runs[0].missing_results(), ["eval-linear", "eval-knn"]);
}

#[test]
fn namesakes_are_told_apart_by_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let a = run_folder(folder.path(), "weince", 0, 2, None);
    let b = run_folder(folder.path(), "weince", 1, 2, None);
    let path = b.join("config.resolved.yaml");
    let text = std::fs::read_to_string(&path).unwrap().replace("margin: 2.0", "margin: 6.0");
    std::fs::write(&path, text).unwrap();
    let labels: Vec<_> = read_groups(&[a, b]).unwrap().into_iter().map(|g| g.label).collect();
    assert_eq!(labels, ["weince (loss.gate.margin=2.0)", "weince (loss.gate.margin=6.0)"]);

    // Of other kinds of loss only what is no setting of the loss.
    let c = run_folder(folder.path(), "infonce", 0, 2, None);
    let path = c.join("config.resolved.yaml");
    let text = std::fs::read_to_string(&path).unwrap().replace("width: 16", "width: 8");
    std::fs::write(&path, text).unwrap();
    let labels: Vec<_> =
        read_groups(&[folder.path().join("weince-0"), c]).unwrap().into_iter().map(|g| g.label).collect();
    assert_eq!(labels, ["weince (model.encoder.width=16)", "infonce (model.encoder.width=8)"]);
}

#[test]
fn the_page_is_self_contained_escaped_and_reproducible() {
    let temporary = tempfile::tempdir().unwrap();
    let runs = example_runs(temporary.path());
    let groups = read_groups(&runs).unwrap();
    let html = page::to_html(&groups).unwrap();
    assert_eq!(html, page::to_html(&read_groups(&runs).unwrap()).unwrap());
    for outside in ["<script", "<link", "url(", "src=\"http", "href="] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert!(html.contains("Some CPU &lt;2 GHz&gt;") && html.contains("a &amp; b.yaml") && !html.contains("<2 GHz>"));
    assert_eq!(html.matches("<svg").count(), 1 + 4 + 6, "bars, training curves, diagnostics");
    assert_eq!(html.matches("data:image/png;base64,").count(), 1, "equal pictures are shown once");
    assert!(html.contains("reference-0: no results of eval-linear and eval-knn yet."));
    let path = runs[0].parent().unwrap().join("report.html");
    page::write(&groups, &path).unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), html);
}

#[test]
fn missing_and_damaged_files_are_named() {
    let root = tempfile::tempdir().unwrap();
    let message = |runs: &[PathBuf]| read_groups(runs).unwrap_err().to_string();
    assert!(message(&[]).contains("no run folder given"));
    assert!(message(&[root.path().join("none")]).contains("no such run folder"));
    let run = run_folder(root.path(), "weince", 0, 2, Some(0.5));
    assert!(message(&[run.clone(), run.join("../weince-0")]).contains("given twice"));
    let cases: [(&str, Option<&[u8]>, &str); 12] = [
        ("config.resolved.yaml", None, "cannot read the run's configuration"),
        ("config.resolved.yaml", Some(b"a: [1"), "no YAML"),
        ("config.resolved.yaml", Some(b"loss: {kind: infonce}"), "a whole number `seed` from 0 up"),
        ("config.resolved.yaml", Some(b"seed: 1\nloss: {temperature: 1}"), "a name `loss.kind`"),
        ("config.resolved.yaml", Some(b"[]"), "a whole number `seed` from 0 up"),
        ("environment.json", None, "missing"),
        ("environment.json", Some(b"[1]"), "no JSON object"),
        ("metrics.jsonl", None, "cannot read the metrics"),
        ("metrics.jsonl", Some(b"{}\n"), "line 1"),
        ("results/linear.json", Some(b"{\"test_accuracy\": 85.1}"), "a fraction from 0 to 1, found 85.1"),
        ("results/knn.json", Some(b"{\"accuracy_at_k\": {\"5\": \"high\"}}"), "`accuracy_at_k.5`"),
        ("report/views.png", Some(b"GIF89a"), "expected a PNG's first bytes"),
    ];
    for (name, content, expected) in cases {
        let path = run.join(name);
        let whole = std::fs::read(&path).unwrap();
        match content {
            Some(bytes) => std::fs::write(&path, bytes).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let text = message(std::slice::from_ref(&run));
        assert!(text.contains(name) && text.contains(expected), "{name}: {text}");
        std::fs::write(&path, whole).unwrap();
    }
    read_groups(&[run]).unwrap();
}
