//! Evaluations against figures by scikit-learn and NumPy (`scripts/fixtures/eval.py`).

use serde_json::Value;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};
use weince::config::eval::{AdamConfig, Bank, KnnConfig, LbfgsConfig, LinearConfig};
use weince::eval::linear::{self, Fit, LinearResult};
use weince::eval::{Features, knn};

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/eval").join(file)
}

fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(golden("expected.json")).unwrap()).unwrap()
}

fn sets() -> impl Iterator<Item = (Value, Features, Features)> {
    ["four", "two"].into_iter().map(|name| {
        let read = |part| Features::read(&golden(&format!("{name}_{part}.safetensors"))).unwrap();
        (expected()["sets"][name].clone(), read("train"), read("test"))
    })
}

fn probe(config: &LinearConfig, seeds: &[u64], train: &Features, test: &Features) -> LinearResult {
    linear::evaluate(config, seeds, train, test, Device::Cpu, &mut |_, _| ()).unwrap()
}

#[test]
fn logistic_regression_reaches_sklearns_minimum() {
    for (expected, train, test) in sets() {
        for want in expected["linear"].as_array().unwrap() {
            let l2 = vec![want["l2"].as_f64().unwrap()];
            let config = LinearConfig::Lbfgs(LbfgsConfig { l2, validation: 0.0 });
            let got = probe(&config, &[0], &train, &test);
            let Fit::Lbfgs(fit) = &got.outcomes[0].fit else { panic!("not the protocol asked for") };
            assert!(fit.converged);
            // The fit guarantees a relative 1e-7; scikit-learn's own minimum is closer.
            let objective = want["objective"].as_f64().unwrap();
            assert!((fit.objective / objective - 1.0).abs() < 1e-6, "{} {objective}", fit.objective);
            assert!((fit.c / want["c"].as_f64().unwrap() - 1.0).abs() < 1e-12);
            assert_eq!(got.test_accuracy, want["test_accuracy"].as_f64().unwrap(), "l2 {}", fit.l2);
        }
    }
}

#[test]
fn the_sweep_counts_every_sample_and_is_deterministic() {
    let (_, train, test) = sets().next().unwrap();
    let config = LinearConfig::Lbfgs(LbfgsConfig::default());
    let got = probe(&config, &[3, 4], &train, &test);
    for outcome in &got.outcomes {
        let Fit::Lbfgs(fit) = &outcome.fit else { panic!("not the protocol asked for") };
        assert_eq!(outcome.train + outcome.val, 160);
        assert!((3..=7).contains(&fit.sweep.len()));
        let best = fit.sweep.iter().map(|c| c.val_accuracy).fold(0.0, f64::max);
        assert_eq!(outcome.val_accuracy, Some(best));
        assert_eq!(outcome.test_accuracy, outcome.test_correct as f64 / 120.0);
    }
    let mean = (got.outcomes[0].test_accuracy + got.outcomes[1].test_accuracy) / 2.0;
    assert!((got.test_accuracy - mean).abs() < 1e-15 && got.test_accuracy_std.is_some());
    let text = |r: &LinearResult| serde_json::to_string(r).unwrap();
    assert_eq!(text(&got), text(&probe(&config, &[3, 4], &train, &test)));
}

#[test]
fn adam_learns_and_keeps_the_short_last_batch() {
    let (_, train, test) = sets().next().unwrap();
    let config = LinearConfig::Adam(AdamConfig { lr: 0.03, epochs: 60, batch: 100, ..AdamConfig::default() });
    let got = probe(&config, &[0], &train, &test);
    let Fit::Adam(fit) = &got.outcomes[0].fit else { panic!("not the protocol asked for") };
    // A tenth of each class, rounded: 145 samples in two steps an epoch.
    assert_eq!((got.outcomes[0].train, got.outcomes[0].val, fit.steps), (145, 15, 120));
    // torch.optim.Adam is at 0.83 to 0.88 nats here; knowing only the class sizes gives 1.28.
    assert!(fit.train_loss < 1.0, "{}", fit.train_loss);
    let text = |r: &LinearResult| serde_json::to_string(r).unwrap();
    assert_eq!(text(&got), text(&probe(&config, &[0], &train, &test)));
    assert_ne!(text(&got), text(&probe(&config, &[1], &train, &test)));
}

#[test]
fn neighbours_vote_as_in_numpy() {
    let temperature = expected()["temperature"].as_f64().unwrap();
    for (expected, train, test) in sets() {
        let config = KnnConfig { k: vec![1, 3, 10, 200], temperature, validation: 0.0, ..KnnConfig::default() };
        let got = knn::evaluate(&config, &train, &test, 50, Device::Cpu, &mut |_, _| ()).unwrap();
        let want = &expected["knn"];
        for (k, accuracy) in &got.accuracy_at_k {
            assert_eq!(*accuracy, want["accuracy_at_k"][k.to_string()].as_f64().unwrap(), "k {k}");
        }
        for (r, recall) in &got.recall_at {
            assert_eq!(*recall, want["recall_at"][r.to_string()].as_f64().unwrap(), "recall at {r}");
        }
        assert_eq!((got.accuracy_at_k.len(), got.recall_at.len(), got.test_accuracy), (4, 6, got.accuracy_at_k[&200]));
    }
}

/// Rows of `n` samples that lie on a circle, of two classes by turns.
fn circle(n: usize) -> Features {
    let angles = Tensor::arange(n as i64, (Kind::Float, Device::Cpu)) * 0.01;
    let rows = Tensor::stack(&[angles.cos(), angles.sin()], 1);
    Features::new(&rows, &Tensor::arange(n as i64, (Kind::Int64, Device::Cpu)).remainder(2)).unwrap()
}

#[test]
fn dropping_the_last_batch_leaves_whole_ones() {
    let all = circle(600);
    let first = all.drop_last(256, None).unwrap();
    assert_eq!((first.samples(), first.label_values()), (512, &all.label_values()[..512]));
    assert_eq!(first.features(), &all.features().narrow(0, 0, 512));
    let drawn = all.drop_last(256, Some(1)).unwrap();
    assert_eq!(drawn.samples(), 512);
    assert_ne!(drawn.features(), first.features());
    assert_eq!(drawn.features(), all.drop_last(256, Some(1)).unwrap().features());
    assert_ne!(drawn.features(), all.drop_last(256, Some(2)).unwrap().features());
    // Rows keep their order and their labels.
    let angles: Vec<f32> = drawn.features().select(1, 1).atan2(&drawn.features().select(1, 0)).try_into().unwrap();
    let places: Vec<i64> =
        angles.iter().map(|a| ((if *a < 0.0 { a + 6.283_185_5 } else { *a }) * 100.0).round() as i64).collect();
    assert!(places.is_sorted() && places.iter().zip(drawn.label_values()).all(|(p, l)| p % 2 == *l));
    let e = circle(200).drop_last(256, None).unwrap_err().to_string();
    assert!(e.contains("200 samples are less than a batch of 256") && e.contains("--drop-last"), "{e}");
}

#[test]
fn the_authors_protocols_hold_out_a_fifth_and_drop_the_last_batch() {
    let (train, test) = (circle(600), circle(300));
    let got = probe(&LinearConfig::Adam(AdamConfig { epochs: 1, ..AdamConfig::authors() }), &[1], &train, &test);
    assert_eq!(got.samples, [512, 256]);
    let outcome = &got.outcomes[0];
    // A fifth of each of the two classes of what is left.
    assert!(outcome.train + outcome.val == 512 && outcome.val.abs_diff(102) <= 1, "{} {}", outcome.train, outcome.val);
    assert_eq!(outcome.test_accuracy, outcome.test_correct as f64 / 256.0);

    let config = KnnConfig::authors();
    let got = knn::evaluate(&config, &train, &test, 64, Device::Cpu, &mut |_, _| ()).unwrap();
    assert_eq!((got.samples, got.accuracy_at_k.keys().copied().collect::<Vec<_>>()), ([512, 256], vec![50]));
    assert!(got.bank.abs_diff(410) <= 1, "{}", got.bank);
    // Each test sample is itself in the training part, and found where the bank has it: a fifth of them is held out.
    let whole = KnnConfig { bank: Bank::All, drop_last: false, ..config };
    let found = knn::evaluate(&whole, &train, &test, 64, Device::Cpu, &mut |_, _| ()).unwrap();
    assert_eq!((found.recall_at[&1], found.bank), (1.0, 600));
    assert!((0.6..0.9).contains(&got.recall_at[&1]), "{}", got.recall_at[&1]);
}

#[test]
fn neighbours_are_the_same_for_every_block() {
    let (_, train, test) = sets().next().unwrap();
    let config = KnnConfig::default();
    let of = |batch| knn::evaluate(&config, &train, &test, batch, Device::Cpu, &mut |_, _| ()).unwrap();
    let one = of(1);
    assert!([7, 64, 384, 100_000].into_iter().all(|batch| of(batch) == one));
}
