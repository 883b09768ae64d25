//! `loss-check`: its numbers, its files, its exit codes.

use super::{Geometry, batch, config, golden, relative, run_new, tensors};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tch::{Kind, Tensor};
use weince::loss::Layout;

fn loss_check(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_loss-check")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn save(folder: &Path, name: &str, tensors: &[(&str, &Tensor)]) -> PathBuf {
    let path = folder.join(name);
    Tensor::write_safetensors(tensors, &path).unwrap();
    path
}

#[test]
fn prints_the_golden_loss_and_writes_its_gradient() {
    let folder = tempfile::tempdir().unwrap();
    let file = tensors(&golden("paper").join("two_view_N32_d8_aniso.safetensors"));
    let variant = "a_raw_shift_hill_mild";
    let wide = ["z_i", "z_j"].map(|name| file[name].to_kind(Kind::Double));
    let embeddings = save(folder.path(), "z.safetensors", &[("z_i", &wide[0]), ("z_j", &wide[1])]);
    let yaml = folder.path().join("run.yaml");
    let run = "seed: 1\ndata: {anything: 2}\nloss: {kind: weince, gate: {kappa_rho: 1.5, kappa_aic: 0.03}, beta: {kind: hill}}\n";
    std::fs::write(&yaml, run).unwrap();
    let out = folder.path().join("out.safetensors");
    let output = loss_check(&[
        "--embeddings",
        embeddings.to_str().unwrap(),
        "--config",
        yaml.to_str().unwrap(),
        "--set",
        "loss.gate.margin=40",
        "--set",
        "loss.floor=shift",
        "--out",
        out.to_str().unwrap(),
        "--json",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let index = std::fs::read_to_string(golden("paper").join("index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    let entry = index.as_array().unwrap().iter().find(|e| e["file"] == "two_view_N32_d8_aniso.safetensors").unwrap();
    let case = entry["cases"].as_array().unwrap().iter().find(|c| c["variant"] == variant).unwrap();
    let (found, expected) = (json["loss"].as_f64().unwrap(), case["loss"].as_f64().unwrap());
    assert!((found / expected - 1.0).abs() < 1e-12);
    assert_eq!((json["samples"].as_i64(), json["dimensions"].as_i64()), (Some(32), Some(8)));
    assert!(json["lambda_mean"].as_f64().unwrap() > 0.0 && json["batch_beta"].is_null());
    assert_eq!(json["config"]["gate"]["margin"], 40.0);

    let written = tensors(&out);
    for (name, golden_name) in [
        ("grad_z_i", "grad_i"),
        ("grad_z_j", "grad_j"),
        ("lambda", "lam"),
        ("beta", "beta_i"),
        ("rho", "rho"),
        ("delta_aic", "dAIC"),
    ] {
        let (found, expected) = (&written[name], &file[&format!("{variant}/{golden_name}")]);
        assert_eq!(found.kind(), Kind::Double);
        assert!(relative(&[found.shallow_clone()], &[expected.shallow_clone()]) < 1e-7, "{name}");
    }
    assert_eq!(written.len(), 6);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "nothing else is left in the folder");
}

#[test]
fn prints_all_digits_and_says_what_it_leaves_out() {
    let folder = tempfile::tempdir().unwrap();
    let (z_i, z_j) = batch(Geometry::Random, 9, 5, 1);
    for (kind, digits) in [(Kind::Double, 1e-16), (Kind::Float, 1e-8)] {
        let (z_i, z_j) = (z_i.to_kind(kind), z_j.to_kind(kind));
        let embeddings = save(folder.path(), "z.safetensors", &[("z_i", &z_i), ("z_j", &z_j)]);
        let out = folder.path().join("out.safetensors");
        let output = loss_check(&[
            "--embeddings",
            embeddings.to_str().unwrap(),
            "--layout",
            "one_way",
            "--out",
            out.to_str().unwrap(),
            "--set",
            "loss.temperature=0.1",
        ]);
        assert!(output.status.success());
        let stdout = text(&output.stdout);
        let line = stdout.lines().find(|l| l.starts_with("loss ")).unwrap();
        let found: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
        let expected = run_new(&config("{kind: infonce, temperature: 0.1}"), Layout::OneWay, &z_i, &z_j).loss;
        assert!((found / expected - 1.0).abs() < digits, "{line} {expected:e}");
        assert!(text(&output.stderr).contains("without lambda, beta, delta_aic"));
        let mut names: Vec<String> = tensors(&out).into_keys().collect();
        names.sort();
        assert_eq!(names, ["grad_z_i", "grad_z_j", "rho"]);
    }
}

/// Each wrong input gets its exit code, one paragraph that names the cause, and leaves the output file alone.
#[test]
fn wrong_input_has_its_exit_code_and_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (z_i, z_j) = batch(Geometry::Random, 6, 5, 1);
    let good = save(folder.path(), "good.safetensors", &[("z_i", &z_i), ("z_j", &z_j)]);
    let bytes = std::fs::read(&good).unwrap();
    std::fs::write(path("cut.safetensors"), &bytes[..bytes.len() / 2]).unwrap();
    std::fs::write(path("empty.safetensors"), []).unwrap();
    std::fs::write(path("foreign.safetensors"), b"PK\x03\x04 this is something else, long enough to hold a length")
        .unwrap();
    save(folder.path(), "names.safetensors", &[("a", &z_i), ("z_j", &z_j)]);
    save(folder.path(), "shapes.safetensors", &[("z_i", &z_i), ("z_j", &z_j.narrow(0, 0, 4).copy())]);
    save(folder.path(), "kinds.safetensors", &[("z_i", &z_i), ("z_j", &z_j.to_kind(Kind::Float))]);
    save(folder.path(), "whole.safetensors", &[("z_i", &z_i.to_kind(Kind::Int64)), ("z_j", &z_j.to_kind(Kind::Int64))]);
    save(folder.path(), "vector.safetensors", &[("z_i", &z_i.view([-1])), ("z_j", &z_j.view([-1]))]);
    save(
        folder.path(),
        "one.safetensors",
        &[("z_i", &z_i.narrow(0, 0, 1).copy()), ("z_j", &z_j.narrow(0, 0, 1).copy())],
    );
    let nan = z_i.copy();
    let _ = nan.get(4).get(2).fill_(f64::NAN);
    save(folder.path(), "nan.safetensors", &[("z_i", &nan), ("z_j", &z_j)]);
    std::fs::write(path("other.yaml"), "model: {width: 3}\n").unwrap();
    std::fs::write(path("typo.yaml"), "loss: {kind: weince, gate: {margn: 3}}\n").unwrap();
    std::fs::write(path("policy.yaml"), "policy: pl\n").unwrap();
    std::fs::write(path("authors.yaml"), "policy: pl\nbatch_size: 3\nunheard_of: 3\n").unwrap();
    let out = path("out.safetensors");
    std::fs::write(&out, "precious").unwrap();

    let weince = ["--set", "loss.kind=weince"];
    let cases: [(&str, &[&str], i32, &str); 19] = [
        ("missing.safetensors", &[], 1, "cannot read"),
        ("cut.safetensors", &[], 1, "damaged"),
        ("empty.safetensors", &[], 1, "damaged"),
        ("foreign.safetensors", &[], 1, "damaged"),
        ("names.safetensors", &[], 1, "found no z_i; tensors in the file: a, z_j"),
        ("shapes.safetensors", &[], 1, "two matrices [N, d] of the same shape"),
        ("kinds.safetensors", &[], 1, "one width and kind"),
        ("whole.safetensors", &[], 1, "float32 or float64"),
        ("vector.safetensors", &[], 1, "a matrix [N, d]"),
        ("one.safetensors", &weince, 1, "batch of 1 sample"),
        ("nan.safetensors", &[], 3, "1 of 6 rows of z_i, counted from 0: 4"),
        ("good.safetensors", &["--set", "loss.temperature=-1"], 2, "error: loss.temperature: expected"),
        ("good.safetensors", &["--set", "loss.kind=wince"], 2, "weince"),
        ("good.safetensors", &["--config", "other.yaml"], 2, "key `loss`"),
        ("good.safetensors", &["--config", "typo.yaml"], 2, "`margin`"),
        ("good.safetensors", &["--config", "authors.yaml"], 2, "unheard_of"),
        ("good.safetensors", &["--layout", "three_view"], 2, "three_view"),
        ("good.safetensors", &["--set", "los.kind=weince"], 2, "loss.KEY=VALUE"),
        ("good.safetensors", &["--config", "policy.yaml", "--set", "loss.kind=weince"], 2, "no key `loss`"),
    ];
    for (file, more, code, part) in cases {
        let mut arguments = vec!["--embeddings", file, "--out", "out.safetensors"];
        arguments.extend(more);
        let output = Command::new(env!("CARGO_BIN_EXE_loss-check"))
            .args(&arguments)
            .current_dir(folder.path())
            .output()
            .unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{file} {more:?}: {error}");
        assert!(error.contains(part), "{file} {more:?}: {error}");
        assert!(output.stdout.is_empty(), "{file} {more:?}");
        assert_eq!(std::fs::read(&out).unwrap(), b"precious");
    }
    let output = Command::new(env!("CARGO_BIN_EXE_loss-check"))
        .args(["--embeddings", "good.safetensors", "--out", "./good.safetensors"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("would replace the file that is read"));
    assert!(std::fs::read(&good).unwrap() == bytes);
}
