//! Golden files of tests/golden/{loss,paper,edge}: the authors' class, and an independent implementation of the paper.

use super::{Outcome, golden, relative, run, run_new, tensors};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use tch::{Kind, Tensor};
use weince::config::loss::LossConfig;
use weince::loss::{Layout, Loss};

/// float32 embeddings against results in float64: the products are in float64 and only the entries are rounded.
const IMPROVED_LOSS: f64 = 1e-6;
const IMPROVED_LOSS_ABSOLUTE: f64 = 1e-7;
const IMPROVED_GRAD: f64 = 2e-4;

fn index(topic: &str) -> Value {
    let text = std::fs::read_to_string(golden(topic).join("index.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

fn layout(value: &Value) -> Layout {
    match text(value) {
        "two_view" => Layout::TwoView,
        "one_way" => Layout::OneWay,
        other => panic!("layout {other}"),
    }
}

/// The reference with the constructor parameters of a case.
fn reference(hyper: &Value) -> LossConfig {
    let mut keys: Map<String, Value> = hyper.as_object().unwrap().clone();
    if let Some(tau) = keys.remove("tau") {
        keys.insert("temperature".to_string(), tau);
    }
    keys.insert("kind".to_string(), "reference".into());
    serde_json::from_value(Value::Object(keys)).unwrap()
}

/// Collects what is off, so that one run shows all of it.
#[derive(Default)]
struct Ledger {
    checked: usize,
    wrong: Vec<String>,
}

impl Ledger {
    fn loss(&mut self, case: &str, found: f64, expected: f64, relative: f64, absolute: f64) {
        self.checked += 1;
        let allowed = relative * expected.abs() + absolute;
        let difference = (found - expected).abs();
        if difference.is_nan() || difference > allowed {
            self.wrong.push(format!("{case}: loss {found}, expected {expected}"));
        }
    }

    fn within(&mut self, case: &str, error: f64, tolerance: f64) {
        self.checked += 1;
        if error.is_nan() || error > tolerance {
            self.wrong.push(format!("{case}: error {error:.2e}, tolerance {tolerance:.0e}"));
        }
    }

    fn close(self, at_least: usize) {
        assert!(self.wrong.is_empty(), "{} of {} wrong:\n{}", self.wrong.len(), self.checked, self.wrong.join("\n"));
        assert!(self.checked >= at_least, "only {} checks", self.checked);
    }
}

fn grads(file: &HashMap<String, Tensor>, prefix: &str) -> [Tensor; 2] {
    ["grad_i", "grad_j"].map(|name| file[&format!("{prefix}/{name}")].shallow_clone())
}

/// Per-anchor statistics under the names of the golden files.
fn statistics(outcome: &Outcome) -> Vec<(&'static str, Tensor)> {
    let d = &outcome.diagnostics;
    let mut all = vec![("rho", d.rho.shallow_clone())];
    for (name, t) in
        [("lam", &d.lambda), ("dAIC", &d.delta_aic), ("beta_i", &d.beta), ("R2", &d.r2), ("beta_hat", &d.slope)]
    {
        if let Some(t) = t {
            all.push((name, t.shallow_clone()));
        }
    }
    all
}

/// Statistics in float64: rounding of the sums is amplified by the logarithm of a small residual, hence 1e-7.
fn compare_statistics(
    ledger: &mut Ledger,
    case: &str,
    outcome: &Outcome,
    file: &HashMap<String, Tensor>,
    prefix: &str,
) {
    for (name, found) in statistics(outcome) {
        if let Some(expected) = file.get(&format!("{prefix}/{name}")) {
            let error = relative(&[found], &[expected.shallow_clone()]);
            ledger.within(&format!("{case} {name}"), error, 1e-7);
        }
    }
}

fn widen(file: &HashMap<String, Tensor>, prefix: &str) -> [(Kind, [Tensor; 2]); 2] {
    [Kind::Double, Kind::Float]
        .map(|kind| (kind, ["z_i", "z_j"].map(|name| file[&format!("{prefix}{name}")].to_kind(kind))))
}

#[test]
fn the_released_class_with_all_its_policies() {
    let mut ledger = Ledger::default();
    for entry in list(&index("loss")) {
        let file = tensors(&golden("loss").join(text(&entry["file"])));
        for case in list(&entry["cases"]) {
            let variant = text(&case["variant"]);
            let config = reference(&case["hyper"]);
            let expected = case["loss_f64"].as_f64().unwrap();
            for (kind, [z_i, z_j]) in widen(&file, "") {
                let name = format!("{} {variant} {kind:?}", text(&entry["file"]));
                let outcome = run_new(&config, layout(&entry["layout"]), &z_i, &z_j);
                let error = relative(&outcome.grads, &grads(&file, variant));
                let tie = case["tie_at_topm_boundary"].as_bool().unwrap();
                let tolerance = |key: &str| case["tol"][key].as_f64().unwrap();
                if kind == Kind::Double {
                    ledger.loss(&name, outcome.loss, expected, tolerance("f64_loss"), 0.0);
                    if !tie {
                        ledger.within(&format!("{name} grad"), error, tolerance("f64_grad"));
                    }
                    compare_statistics(&mut ledger, &name, &outcome, &file, variant);
                    let state = case["scalars"]["beta_ema"].as_f64();
                    let auto = case["hyper"]["auto_weib_beta"] == json!(true);
                    assert_eq!(outcome.diagnostics.batch_r2.is_some(), auto, "{name}");
                    if auto {
                        let beta = outcome.diagnostics.batch_beta.as_ref().unwrap().double_value(&[]);
                        // The golden average is float32.
                        ledger.loss(&format!("{name} batch beta"), beta, state.unwrap(), 1e-7, 0.0);
                    }
                } else {
                    let theirs = case["loss_f32"].as_f64().unwrap();
                    ledger.loss(&format!("{name} (theirs)"), outcome.loss, theirs, tolerance("f32_loss"), 1e-7);
                    ledger.loss(&name, outcome.loss, expected, IMPROVED_LOSS, IMPROVED_LOSS_ABSOLUTE);
                    if !tie {
                        ledger.within(&format!("{name} grad"), error, IMPROVED_GRAD);
                    }
                }
            }
        }
    }
    ledger.close(2000);
}

/// `weince`, or `reference` for the variants that are the released class one way, in the terms of a case.
fn paper_config(case: &Value) -> LossConfig {
    let number = |key: &str, default: f64| case["hyper"][key].as_f64().unwrap_or(default);
    let (kappa_rho, kappa_aic) = (number("select_kappa_rho", 10.0), number("select_kappa_aic", 1.0));
    let (margin, tau) = (number("select_aic_margin", 2.0), case["tau"].as_f64().unwrap());
    let (fraction, points) = (number("select_tail_frac", 0.1), number("select_min_tail_points", 32.0) as u32);
    let variant = text(&case["variant"]);
    if variant.starts_with("b_") {
        let policy = if variant == "b_pl" { "pl" } else { "tlambda_select" };
        return serde_json::from_value(json!({
            "kind": "reference", "policy": policy, "temperature": tau, "select_kappa_rho": kappa_rho,
            "select_kappa_aic": kappa_aic, "select_aic_margin": margin, "select_tail_frac": fraction,
            "select_min_tail_points": points,
        }))
        .unwrap();
    }
    let params = &case["params"];
    let beta = match (text(&params["beta_mode"]), text(&params["estimator"])) {
        ("raw", "ols") => json!({"kind": "slope", "fallback": number("weib_beta", 4.0)}),
        ("raw", "hill") => json!({"kind": "hill"}),
        ("shrink", "ols") => json!({
            "kind": "shrunk", "global": {"fixed": number("weib_beta", 4.0)}, "r2_min": number("anchor_r2_min", 0.0),
        }),
        other => panic!("beta {other:?}"),
    };
    let pivot = match params["rho0"].as_f64() {
        Some(value) => json!({"absolute": value}),
        None => json!({"quantile": 0.2}),
    };
    serde_json::from_value(json!({
        "kind": "weince", "temperature": tau, "tail": {"fraction": fraction, "min_points": points},
        "gate": {
            "evidence": if text(&params["aic"]) == "lik" { "likelihood" } else { "aic" }, "pivot": pivot,
            "margin": margin, "kappa_rho": kappa_rho, "kappa_aic": kappa_aic,
        },
        "beta": beta, "floor": params["floor"],
    }))
    .unwrap()
}

#[test]
fn the_papers_formula() {
    let mut ledger = Ledger::default();
    for entry in list(&index("paper")) {
        let file = tensors(&golden("paper").join(text(&entry["file"])));
        for case in list(&entry["cases"]) {
            let variant = text(&case["variant"]);
            // With fewer than two points to fit `weince` sets lambda to 0 and these cases do not.
            if case["n_eff"].as_i64().is_some_and(|n| n < 2) && variant.starts_with("a_") {
                continue;
            }
            let mut configs = vec![paper_config(case)];
            if variant == "b_pl" {
                let tau = case["tau"].as_f64().unwrap();
                configs.push(serde_json::from_value(json!({"kind": "infonce", "temperature": tau})).unwrap());
            }
            let expected = case["loss"].as_f64().unwrap();
            for config in configs {
                for (kind, [z_i, z_j]) in widen(&file, "") {
                    let name = format!("{} {variant} {kind:?}", text(&entry["file"]));
                    let outcome = run_new(&config, layout(&entry["layout"]), &z_i, &z_j);
                    let error = relative(&outcome.grads, &grads(&file, variant));
                    if kind == Kind::Double {
                        ledger.loss(&name, outcome.loss, expected, 1e-10, 0.0);
                        ledger.within(&format!("{name} grad"), error, 1e-8);
                        compare_statistics(&mut ledger, &name, &outcome, &file, variant);
                    } else {
                        ledger.loss(&name, outcome.loss, expected, IMPROVED_LOSS, IMPROVED_LOSS_ABSOLUTE);
                        ledger.within(&format!("{name} grad"), error, IMPROVED_GRAD);
                    }
                }
            }
        }
    }
    ledger.close(500);
}

#[test]
fn the_released_class_at_its_edges() {
    let mut ledger = Ledger::default();
    let index = index("edge");
    let file = tensors(&golden("edge").join("edge.safetensors"));
    for case in list(&index["cases"]) {
        let key = text(&case["key"]);
        let config = reference(&case["hyper"]);
        for (kind, [z_i, z_j]) in widen(&file, &format!("{key}/")) {
            let name = format!("{key} {kind:?}");
            if !case["error_f64"].is_null() {
                let error = Loss::new(&config, Layout::TwoView).unwrap().forward(&z_i, &z_j).unwrap_err().to_string();
                assert!(error.contains("at least one negative"), "{name}: {error}");
                continue;
            }
            let mut loss = Loss::new(&config, Layout::TwoView).unwrap();
            let outcome = run(&mut loss, &z_i, &z_j);
            let Some(expected) = case["loss_f64"].as_f64() else {
                assert!(outcome.loss.is_nan(), "{name}: {}", outcome.loss);
                assert!(outcome.grads.iter().all(|g| g.isnan().all().double_value(&[]) == 1.0), "{name}");
                let error = Loss::check_finite(&z_i, &z_j).unwrap_err();
                assert_eq!(error.exit_code(), 3, "{error}");
                continue;
            };
            let double = kind == Kind::Double;
            let (relative_loss, absolute) =
                if double { (1e-9, 1e-12) } else { (IMPROVED_LOSS, IMPROVED_LOSS_ABSOLUTE) };
            ledger.loss(&name, outcome.loss, expected, relative_loss, absolute);
            let expected_grads = grads(&file, key);
            let greatest = case["gmax_f64"].as_f64().unwrap();
            if case["tie"].as_bool().unwrap() {
                continue;
            }
            if greatest < 1e-15 && !(1e-22..1e-18).contains(&greatest) || case["name"] == "constant" {
                // Rounding noise around a gradient of zero.
                let found = outcome.grads.iter().map(|g| g.abs().max().double_value(&[])).fold(0.0, f64::max);
                ledger.within(&format!("{name} zero grad"), found, if double { 1e-12 } else { 1e-7 });
            } else if case["name"] == "pos_identical" && text(&case["hyper"]["policy"]) == "weibit" {
                // The loss is 0 to float64's rounding, and so is the gradient.
                let found = outcome.grads.iter().map(|g| g.abs().max().double_value(&[])).fold(0.0, f64::max);
                ledger.within(&format!("{name} zero grad"), found, 1e-15);
            } else {
                let error = relative(&outcome.grads, &expected_grads);
                ledger.within(&format!("{name} grad"), error, if double { 1e-8 } else { IMPROVED_GRAD });
            }
            if let (Some(found), Some(expected)) = (loss.state(), case["beta_ema_f64"].as_f64()) {
                ledger.loss(&format!("{name} average"), found, expected, if double { 1e-9 } else { 1e-6 }, 0.0);
            }
        }
    }
    ledger.close(150);
}

#[test]
fn the_moving_average_over_six_batches() {
    let mut ledger = Ledger::default();
    let index = &index("edge")["ema"];
    let file = tensors(&golden("edge").join("ema_sequence.safetensors"));
    let config = reference(&index["hyper"]);
    for kind in [Kind::Double, Kind::Float] {
        let mut loss = Loss::new(&config, Layout::TwoView).unwrap();
        for (step, case) in list(&index["steps"]).iter().enumerate() {
            let [z_i, z_j] = ["z_i", "z_j"].map(|name| file[&format!("step{step}/{name}")].to_kind(kind));
            let name = format!("step {step} {kind:?}");
            // A new instance that gets the state goes on like the old one.
            let state = loss.state();
            loss = Loss::new(&config, Layout::TwoView).unwrap();
            loss.set_state(state).unwrap();
            let outcome = run(&mut loss, &z_i, &z_j);
            let value = |key: &str| case[key].as_f64().unwrap();
            let (relative_loss, absolute, grad, beta) = if kind == Kind::Double {
                (1e-9, 0.0, 1e-8, 1e-9)
            } else {
                (IMPROVED_LOSS, IMPROVED_LOSS_ABSOLUTE, IMPROVED_GRAD, 1e-6)
            };
            ledger.loss(&name, outcome.loss, value("loss_f64"), relative_loss, absolute);
            if !case["tie"].as_bool().unwrap() {
                ledger.within(
                    &format!("{name} grad"),
                    relative(&outcome.grads, &grads(&file, &format!("step{step}"))),
                    grad,
                );
            }
            let d = &outcome.diagnostics;
            for (key, found) in
                [("beta_t_f64", &d.batch_beta), ("beta_hat_f64", &d.batch_slope), ("R2_f64", &d.batch_r2)]
            {
                let found = found.as_ref().unwrap().double_value(&[]);
                ledger.loss(&format!("{name} {key}"), found, value(key), beta, 0.0);
            }
            ledger.loss(&format!("{name} average"), loss.state().unwrap(), value("beta_ema_f64"), beta, 0.0);
        }
    }
    ledger.close(60);
}
