//! `eval-search` as a program on runs: what it takes of them, what it leaves, and several side by side. Its numbers are compared with
//! NumPy's by `scripts/parity/test_search.py`.

use rand::SeedableRng;
use rand::seq::SliceRandom;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tch::{Device, Tensor};
use weince::checkpoint::safetensors;
use weince::data::Split;
use weince::eval::{RunEncoder, Space};

const TINY: &str = "
data: {kind: synthetic, train: 100, test: 60, size: 8}
augment: {size: 8}
model:
  encoder: {kind: resnet18, stem: small, width: 4}
  projector: {dim: 16}
loss: {kind: LOSS, temperature: 0.3TAIL}
optim: {kind: adam, lr: 1.0e-3}
train: {epochs: 1, batch_size: 16}
";

fn search(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_eval-search"));
    command.args(arguments).env("OMP_NUM_THREADS", "1").output().unwrap()
}

fn figures(arguments: &[&str]) -> Value {
    let out = search(&[arguments, &["--json"]].concat());
    assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn refused(code: i32, arguments: &[&str]) -> String {
    let out = search(arguments);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(code), "{arguments:?}: {text}");
    assert!(!text.contains("panicked"), "{text}");
    text
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn pretrained(folder: &Path, loss: &str, tail: &str) -> PathBuf {
    let (config, run) = (folder.join(format!("{loss}.yaml")), folder.join(loss));
    std::fs::write(&config, TINY.replace("LOSS", loss).replace("TAIL", tail)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pretrain-vision"));
    command.args(["--config", text(&config), "--run-dir", text(&run), "--device", "cpu"]).env("OMP_NUM_THREADS", "1");
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    run
}

#[test]
fn runs_are_searched_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let plain = pretrained(folder.path(), "infonce", "");
    let weince = pretrained(folder.path(), "weince", ", tail: {min_points: 10}");
    let common = ["--device", "cpu", "--pairs", "25"];
    let found = figures(&[&["--run", text(&plain)], &common[..]].concat());
    assert_eq!((&found["checks"]["anchors"], &found["checks"]["items"]), (&25.into(), &35.into()));
    assert_eq!((&found["tau"], &found["protocol"]["k"]), (&0.3.into(), &30.into()));
    assert!(found["weince"].is_null() && found["generalisation"]["gap"]["se"].is_number());
    assert!(found["cross_entropy"]["labelled"]["classes"].as_u64().unwrap() > 1);
    let report = plain.join("report/search");
    for name in ["report.md", "search.json", "k_curve.csv", "k_curve.svg", "tau_curve.png", "recall_vs_m.csv"] {
        assert!(report.join(name).metadata().unwrap().len() > 0, "{name}");
    }
    let kept: Value = serde_json::from_slice(&std::fs::read(report.join("search.json")).unwrap()).unwrap();
    assert_eq!(kept, found);

    // The same rows as files give the same figures.
    let encoder = RunEncoder::open(&plain, None, Space::Projector, Device::Cpu).unwrap();
    let mut order: Vec<usize> = (0..60).collect();
    order.shuffle(&mut rand_chacha::ChaCha8Rng::seed_from_u64(0));
    let (pairs, others) = order.split_at(25);
    let rows = |numbers: &[usize], view: u64| {
        let m = encoder.views(Split::Test, numbers, 0, view).unwrap();
        let values = Tensor::from_slice(&m.read(0..m.rows()).unwrap());
        values.view([m.rows() as i64, m.columns() as i64])
    };
    let file = folder.path().join("rows.safetensors");
    let named = [("a", rows(pairs, 0)), ("p", rows(pairs, 1)), ("c", rows(others, 1))];
    safetensors::save(&file, &named.map(|(name, t)| (name.to_string(), t)), &Default::default()).unwrap();
    let of = |key: &str| format!("{}:{key}", file.display());
    let [a, p, c] = ["a", "p", "c"].map(of);
    let files = ["--anchors", &a, "--positives", &p, "--corpus", &c, "--tau", "0.3", "--k", "30"];
    let given = figures(&files);
    for key in ["retrieval", "temperature", "finite_k"] {
        assert_eq!(given[key], found[key], "{key}");
    }

    // WEINCE's logit, with each anchor's lambda and beta.
    let found = figures(&[&["--run", text(&weince)], &common[..]].concat());
    let shares = found["weince"]["shares"].as_array().unwrap();
    assert!((shares.iter().map(|s| s.as_f64().unwrap()).sum::<f64>() - 1.0).abs() < 1e-12);

    // Both, side by side.
    let out = folder.path().join("both");
    let both = ["--run", text(&plain), "--run", text(&weince), "--out", text(&out)];
    let done = search(&[&both, &common[..]].concat());
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let page = std::fs::read_to_string(out.join("compare.md")).unwrap();
    assert_eq!(page, String::from_utf8(done.stdout).unwrap());
    assert!(page.contains("infonce") && page.contains("weince") && page.contains("R_inf"), "{page}");
    assert!(out.join("infonce/report.md").is_file() && out.join("weince/search.json").is_file());
    let all = figures(&[&both, &common[..], &["--space", "encoder"]].concat());
    assert!(all["infonce"]["mrr"].is_null() && all["infonce"]["retrieval"]["mrr"]["value"].is_number());
    assert_ne!(all["weince"]["retrieval"], found["retrieval"]);

    let state = text(&plain).to_string() + "/checkpoints/step-000000006.pt";
    assert!(refused(2, &[&both, &["--checkpoint", &state][..]].concat()).contains("one --run"));
    assert!(refused(2, &["--run", text(&plain), "--data", "pairs.csv"]).contains("--data"));
    assert!(refused(2, &["--run", text(&plain), "--pairs", "1"]).contains("--pairs 1"));
    assert!(refused(2, &["--run", text(&plain), "--run", text(&plain)]).contains("given twice"));
    assert!(refused(2, &["--run", text(&plain), "--labels", "l.npy"]).contains("cannot be used with"));
    assert!(refused(2, &[]).contains("--run"));
}
