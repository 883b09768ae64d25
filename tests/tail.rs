//! `diagnose-tail` as a program: on files, on a run, and on what it refuses.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tch::{Kind, Tensor};
use weince::checkpoint::safetensors;

fn diagnose(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_diagnose-tail"));
    command.args(arguments).env("OMP_NUM_THREADS", "1").output().unwrap()
}

fn printed(arguments: &[&str]) -> String {
    let out = diagnose(arguments);
    assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn figures(arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(&[arguments, &["--json"]].concat())).unwrap()
}

fn refused(code: i32, arguments: &[&str]) -> String {
    let out = diagnose(arguments);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(code), "{arguments:?}: {text}");
    assert!(out.stdout.is_empty() && !text.contains("panicked"), "{text}");
    text
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A float64 array as numpy.save writes it.
fn npy(path: &Path, values: &[f64], shape: &str) {
    let mut header = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}");
    header += &" ".repeat(63 - (header.len() + 10) % 64);
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    std::fs::write(path, bytes).unwrap();
}

/// Quantiles of the uniform law from 0 to 2, in an order of no importance: xi is -1.
fn uniform(n: usize) -> Vec<f64> {
    (0..n).map(|i| 2.0 * ((i * 7 % n) as f64 + 0.5) / n as f64).collect()
}

#[test]
fn exceedances_are_fitted_alone() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("y.npy"), folder.path().join("report"));
    // Of an exponential law: -log of uniform numbers.
    let values: Vec<f64> = uniform(1000).iter().map(|u| -(u / 2.0).ln()).collect();
    npy(&file, &values, "(1000,)");
    let found = figures(&["--exceedances", text(&file)]);
    assert!(found["xi"].as_f64().unwrap().abs() < 0.02, "{found}");
    assert!((found["sigma"].as_f64().unwrap() - 1.0).abs() < 0.02);
    assert_eq!((&found["n"], &found["shape"]), (&1000.into(), &"near_zero".into()));
    for key in ["se_xi", "log_likelihood", "exponential_lr", "moments_xi", "xi_interval"] {
        assert!(!found[key].is_null(), "{key}");
    }
    let said = printed(&["--exceedances", text(&file), "--out", text(&out)]);
    assert!(said.contains("cannot be told from 0"), "{said}");
    for name in ["report.md", "tail.json", "exceedances.png", "exceedances_log.svg", "quantiles.csv"] {
        assert!(out.join(name).metadata().unwrap().len() > 0, "{name}");
    }
    npy(&file, &uniform(500), "(500, 1)");
    let found = figures(&["--exceedances", text(&file)]);
    assert_eq!((&found["xi"], &found["at_boundary"], &found["se_xi"]), (&(-1.0).into(), &true.into(), &Value::Null));
    npy(&file, &[0.5; 50], "(50,)");
    assert!(refused(1, &["--exceedances", text(&file)]).contains("all 50 exceedances are 0.5"));
    assert!(refused(2, &["--exceedances", text(&file), "--quantile", "0.9"]).contains("--quantile"));
}

#[test]
fn embeddings_and_their_similarities_give_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    tch::manual_seed(3);
    let (n, d) = (150, 6);
    let z = Tensor::randn([n, d], (Kind::Double, tch::Device::Cpu));
    safetensors::save(&path("z.safetensors"), &[("z".into(), z.shallow_clone())], &Default::default()).unwrap();
    let unit = &z / z.norm_scalaropt_dim(2.0, [1], true);
    let all = Vec::<f64>::try_from(unit.matmul(&unit.tr()).view([-1])).unwrap();
    // Without the diagonal.
    let n = n as usize;
    let off: Vec<f64> = all.iter().enumerate().filter(|(i, _)| i / n != i % n).map(|(_, s)| *s).collect();
    npy(&path("s.npy"), &off, &format!("({n}, {})", n - 1));
    let common = ["--bootstrap", "0", "--quantile", "0.98"];
    let ours = figures(&[&["--embeddings", text(&path("z.safetensors"))], &common[..]].concat());
    let theirs = figures(&[&["--similarities", text(&path("s.npy"))], &common[..]].concat());
    for key in ["xi", "sigma", "threshold", "log_likelihood", "tail_index"] {
        let (a, b) = (ours[key].as_f64().unwrap(), theirs[key].as_f64().unwrap());
        assert!((a - b).abs() < 1e-9 * a.abs().max(1.0), "{key}: {a} {b}");
    }
    assert_eq!(ours["n"], theirs["n"]);
    assert!(ours["hub_ratio"].is_number() && theirs["hub_ratio"].is_null());
    assert!(ours["no_link"].as_str().unwrap().contains("--second"));
    // Same seed, same bytes, whatever the number of threads.
    let again = |threads: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_diagnose-tail"));
        command.args(["--embeddings", text(&path("z.safetensors")), "--json", "--anchors", "60", "--candidates", "80"]);
        command.args(["--quantile", "0.95", "--bootstrap", "50", "--seed", "5"]).env("RAYON_NUM_THREADS", threads);
        command.output().unwrap().stdout
    };
    assert_eq!(again("1"), again("3"));
    assert!(refused(2, &["--similarities", "s.npy", "--anchors", "5"]).contains("--anchors"));
    assert!(refused(2, &["--exceedances", "y.npy", "--draws", "5"]).contains("--draws"));
    assert!(refused(2, &[]).contains("--embeddings"));
    for (flag, value) in [
        ("--quantile", "1"),
        ("--bootstrap", "19"),
        ("--anchors", "0"),
        ("--candidates", "0"),
        ("--link-candidates", "1"),
        ("--batch-negatives", "0"),
    ] {
        let message = refused(2, &["--embeddings", "e.npy", "--second", "f.npy", flag, value]);
        assert!(message.contains(&format!("{flag}: expected")), "{flag}: {message}");
    }
}

#[test]
fn options_without_use_are_refused() {
    let of_runs: [&[&str]; 6] = [
        &["--checkpoint", "x.pt"],
        &["--data", "x.txt"],
        &["--device", "cpu"],
        &["--split", "test"],
        &["--space", "projector"],
        &["--leave-out-class"],
    ];
    for source in ["--embeddings", "--similarities", "--exceedances"] {
        for options in of_runs {
            let message = refused(2, &[&[source, "x.npy"], options].concat());
            assert!(message.contains("cannot be used with") && message.contains(options[0]), "{source}: {message}");
        }
    }
    for source in ["--run", "--similarities", "--exceedances"] {
        for flag in ["--second", "--labels"] {
            let message = refused(2, &[source, "x.npy", flag, "y.npy"]);
            assert!(message.contains("cannot be used with") && message.contains(flag), "{source}: {message}");
        }
    }
    for (flag, value) in [("--winner", "fresh"), ("--draws", "1"), ("--link-candidates", "5")] {
        let message = refused(2, &["--embeddings", "x.npy", flag, value]);
        assert!(message.contains(flag) && message.contains("--second FILE"), "{message}");
        for source in ["--similarities", "--exceedances"] {
            assert!(refused(2, &[source, "x.npy", flag, value]).contains("cannot be used with"), "{source} {flag}");
        }
    }
    let message = refused(2, &["--embeddings", "x.npy", "--second", "y.npy", "--draws", "2"]);
    assert!(message.contains("--draws: expected at most 1 with --second"), "{message}");
}

#[test]
fn a_folder_that_is_used_again_keeps_only_what_is_not_ours() {
    let folder = tempfile::tempdir().unwrap();
    let (file, out) = (folder.path().join("y.npy"), folder.path().join("report"));
    npy(&file, &uniform(500), "(500,)");
    let (own, other) = (out.join("step-000000004"), out.join("step-000000008"));
    for path in [&own, &other] {
        std::fs::create_dir_all(path).unwrap();
    }
    let stale = ["stability_xi.svg", "anchors_beta.csv", "training_xi.png", "step-000000004/exceedances.png"];
    let kept = ["mine.png", "anchors_mine.csv", "stability_xi.txt", "step-000000008/notes.csv"];
    for name in stale.iter().chain(&kept) {
        std::fs::write(out.join(name), "x").unwrap();
    }
    printed(&["--exceedances", text(&file), "--out", text(&out)]);
    assert!(stale.iter().all(|name| !out.join(name).exists()) && !own.exists());
    assert!(kept.iter().all(|name| out.join(name).exists()) && out.join("exceedances.png").is_file());
}

/// Two epochs of 6 steps on synthetic images, with a state at every fourth.
const TINY: &str = "
data: {kind: synthetic, train: 100, test: 60, size: 8}
augment: {size: 8}
model:
  encoder: {kind: resnet18, stem: small, width: 4}
  projector: {dim: 16}
loss: {kind: weince, tail: {min_points: 10}}
optim: {kind: adam, lr: 1.0e-3}
train: {epochs: 2, batch_size: 16, log_every: 1}
checkpoint: {every_steps: 4, keep: 10}
";

#[test]
fn a_run_is_looked_at_in_all_its_states() {
    let folder = tempfile::tempdir().unwrap();
    let (config, run) = (folder.path().join("tiny.yaml"), folder.path().join("run"));
    std::fs::write(&config, TINY).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pretrain-vision"));
    command.args(["--config", text(&config), "--run-dir", text(&run), "--device", "cpu"]).env("OMP_NUM_THREADS", "1");
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let common = ["--run", text(&run), "--device", "cpu", "--quantile", "0.95", "--bootstrap", "30"];
    fn joined<'a>(common: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
        [common, more].concat()
    }

    // Its own weights: a report in its own folder, with the gate and the batch of its loss.
    let found = figures(&joined(&common, &[]));
    assert_eq!(found["step"], 12);
    assert_eq!(found["anchors"], 60);
    assert_eq!(found["per_anchor"]["negatives"], 30);
    assert_eq!(found["per_anchor"]["tail_points"], 10);
    assert_eq!(found["per_anchor"]["gate_of"], "the run's loss");
    assert_eq!(found["data"]["negatives"], "one_view");
    assert_eq!(found["link"]["winner"], "fresh");
    assert_eq!((&found["link"]["choices"], &found["link"]["candidates"]), (&300.into(), &59.into()));
    let report = run.join("report/tail");
    let page = std::fs::read_to_string(report.join("report.md")).unwrap();
    assert!(page.contains("### Found") && page.contains("![Shape over thresholds](stability_xi.png)"), "{page}");
    let kept: Value = serde_json::from_slice(&std::fs::read(report.join("tail.json")).unwrap()).unwrap();
    assert_eq!(kept, found);

    // Other rows, other items, other winners.
    let mut seen = vec![found["threshold"].clone()];
    for more in [
        &["--negatives", "plain"][..],
        &["--negatives", "across-views"],
        &["--space", "encoder"],
        &["--split", "train", "--leave-out-class"],
    ] {
        let out = folder.path().join(more[1]);
        let other = figures(&joined(&common, &[more, &["--draws", "0", "--out", text(&out)]].concat()));
        assert!(!seen.contains(&other["threshold"]) && other["link"].is_null(), "{more:?}");
        assert!(out.join("report.md").is_file());
        seen.push(other["threshold"].clone());
        assert_eq!(other["left_out"].as_u64().unwrap() > 0, more.contains(&"--leave-out-class"));
    }
    let out = folder.path().join("w2");
    let positive = figures(&joined(&common, &["--winner", "positive", "--out", text(&out)]));
    assert!(positive["link"]["winner"] == "positive" && positive["link"]["choices"] == 60, "{}", positive["link"]);

    // Its states: all of them, by step, and the quantities over training.
    let state = |step: u64| run.join(format!("checkpoints/step-{step:09}.pt"));
    let states: Vec<PathBuf> = [12, 4, 8].map(state).to_vec();
    let mut arguments = joined(&common, &["--draws", "2", "--out", text(&out)]);
    states.iter().for_each(|state| arguments.extend(["--checkpoint", text(state)]));
    let all = figures(&arguments);
    let steps: Vec<u64> = all["states"].as_array().unwrap().iter().map(|s| s["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [4, 8, 12]);
    assert_eq!(all["threshold"], found["threshold"]);
    assert_eq!(all["xi"], all["states"][2]["xi"]);
    for name in
        ["training_xi.png", "training_lambda.csv", "step-000000004/stability_xi.svg", "step-000000012/anchors.csv"]
    {
        assert!(out.join(name).is_file(), "{name}");
    }
    let change = all["over_training"][0]["text"].as_str().unwrap();
    assert!(change.starts_with("From step 4 to step 12, xi goes from "), "{change}");
    let csv = std::fs::read_to_string(out.join("training_xi.csv")).unwrap();
    assert_eq!(
        csv.lines().filter(|line| line.contains(",4,") || line.contains(",8,") || line.contains(",12,")).count(),
        3
    );
    assert!(std::fs::read_to_string(out.join("report.md")).unwrap().contains("(step-000000008/anchors_beta.png)"));

    // The same folder for one state: nothing of the three is left.
    figures(&joined(&common, &["--draws", "0", "--out", text(&out)]));
    assert!(!out.join("training_xi.png").exists() && !out.join("step-000000004").exists());
    assert!(out.join("stability_xi.png").is_file() && out.join("anchors.csv").is_file());

    // A state twice, and one from elsewhere.
    let elsewhere = folder.path().join("moved.pt");
    std::fs::copy(&states[0], &elsewhere).unwrap();
    let twice = joined(&common, &["--checkpoint", text(&states[0]), "--checkpoint", text(&elsewhere)]);
    let message = refused(2, &[&twice[..], &["--draws", "0"]].concat());
    assert!(
        message.contains("are both of step 12") && message.contains("moved.pt") && message.contains(text(&states[0]))
    );
    let outside = diagnose(&joined(&common, &["--draws", "0", "--checkpoint", text(&elsewhere)]));
    assert!(outside.status.success());
    for (name, stream) in [("stderr", &outside.stderr), ("stdout", &outside.stdout)] {
        assert!(String::from_utf8_lossy(stream).contains("lie outside of the run's folder"), "{name}");
    }

    // What cannot be asked.
    let encoder = run.join("checkpoints/encoder.safetensors");
    let nameless =
        joined(&common, &["--space", "encoder", "--checkpoint", text(&encoder), "--checkpoint", text(&states[0])]);
    assert!(refused(2, &nameless).contains("does not say its step"));
    assert!(refused(1, &joined(&common, &["--checkpoint", text(&encoder)])).contains("--space encoder"));
    assert!(refused(2, &joined(&common, &["--checkpoint", "none.pt"])).contains("no such file"));
    assert!(refused(2, &joined(&common, &["--data", "x.txt"])).contains("for runs on text"));
    assert!(
        refused(1, &["--run", text(&run), "--draws", "0", "--quantile", "0.9999"]).contains("take a quantile below")
    );
    assert!(refused(2, &["--run", text(folder.path())]).contains("no run folder"));
}
