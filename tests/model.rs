//! ResNets and projector against torchvision and torch: names, outputs, gradients, running statistics.

use crate::formula::{assert_close, fingerprint, state_value, symmetric};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::PathBuf;
use tch::{Kind, Tensor};
use weince::config::model::ModelConfig;
use weince::model::{Model, Projector};
use weince::optim::Optimizer;

/// Everything that scripts/fixtures/model.py knows about one network; fingerprints as in `formula`.
#[derive(Deserialize)]
struct Case {
    kind: String,
    stem: String,
    width: i64,
    images: Vec<i64>,
    state_dict: serde_json::Map<String, serde_json::Value>,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    dtype: String,
    eval_features: Vec<Vec<f64>>,
    train_features: Vec<Vec<f64>>,
    gradients: HashMap<String, Vec<f64>>,
    buffers: HashMap<String, Vec<f64>>,
}

fn golden(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/model").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn model(case: &Case) -> Model {
    let text = format!("encoder: {{kind: {}, stem: {}, width: {}}}", case.kind, case.stem, case.width);
    let config: ModelConfig = weince::config::parse(&text, "golden", &[]).unwrap();
    Model::new(&config, 32).unwrap()
}

fn check(name: &str) {
    let case: Case = serde_json::from_str(&golden(name)).unwrap();
    check_fresh(name, &case);
    for run in &case.runs {
        check_run(name, &case, run);
    }
}

/// Names, order and shapes, and the spread of what was drawn; the draws themselves are compared in
/// scripts/parity/test_model.py, where no other test uses LibTorch's generator at the same time.
fn check_fresh(name: &str, case: &Case) {
    let model = model(case);
    let state = model.encoder.store().state_dict();
    let shapes: Vec<_> = state.iter().map(|(n, t)| (n.as_str(), serde_json::json!(t.size()))).collect();
    let expected: Vec<_> = case.state_dict.iter().map(|(n, s)| (n.as_str(), s.clone())).collect();
    assert_eq!(shapes, expected, "{name}");
    for (n, t) in state {
        let size = t.size();
        match size[..] {
            [outputs, _, height, width] => {
                let variance = 2.0 / (outputs * height * width) as f64;
                let found = t.square().mean(Kind::Double).double_value(&[]);
                // Six standard errors of the variance of as many normal numbers.
                let bound = 6.0 * (2.0 / t.numel() as f64).sqrt();
                assert!((found / variance - 1.0).abs() < bound, "{name} {n}: {found} {variance}");
            }
            _ => {
                let constant = if n.ends_with("running_var") || n.ends_with("weight") { 1.0 } else { 0.0 };
                assert_eq!(t.to_kind(Kind::Double).eq(constant).all().int64_value(&[]), 1, "{name} {n}");
            }
        }
    }
}

fn check_run(name: &str, case: &Case, run: &Run) {
    // Only the order of summation may differ, between processors and thread counts; it adds up over the layers: one and
    // two threads of torchvision itself differ by 5e-4 in float32.
    let (kind, tolerance) = match run.dtype.as_str() {
        "float64" => (Kind::Double, 1e-10),
        "float32" => (Kind::Float, 2e-3),
        other => panic!("{other}"),
    };
    let what = format!("{name} {}", run.dtype);
    let model = model(case);
    let encoder = &model.encoder;
    encoder.store().to_kind(kind).unwrap();
    let state = encoder.store().state_dict();
    let given = state.iter().enumerate().map(|(i, (n, t))| (n.clone(), state_value(i, n, &t.size())));
    encoder.store().load(&given.collect::<Vec<_>>()).unwrap();

    let images = symmetric(1, &case.images, 1.0).to_kind(kind);
    let rows = |what: String, expected: &[Vec<f64>], found: &Tensor| {
        assert_eq!(found.size(), [expected.len() as i64, encoder.features()], "{what}");
        for (i, e) in expected.iter().enumerate() {
            assert_close(&format!("{what} row {i}"), e, &fingerprint(&found.get(i as i64)), tolerance);
        }
    };
    let evaluated = tch::no_grad(|| encoder.forward(&images, false)).unwrap();
    rows(format!("{what} eval"), &run.eval_features, &evaluated);
    let trained = encoder.forward(&images, true).unwrap();
    rows(format!("{what} train"), &run.train_features, &trained);

    let cotangent = symmetric(2, &trained.size(), 1.0).to_kind(kind);
    (&trained * cotangent).sum(kind).backward();
    let parameters = encoder.store().parameters();
    assert_eq!(parameters.len(), run.gradients.len(), "{what}");
    for (n, p) in &parameters {
        assert_close(&format!("{what} gradient of {n}"), &run.gradients[n], &fingerprint(&p.grad()), tolerance);
    }
    let mut buffers = encoder.store().state_dict();
    buffers.retain(|(n, _)| !run.gradients.contains_key(n));
    assert_eq!(buffers.len(), run.buffers.len(), "{what}");
    for (n, b) in &buffers {
        assert_close(&format!("{what} buffer {n}"), &run.buffers[n], &fingerprint(b), tolerance);
    }
}

#[test]
fn resnet18_with_the_imagenet_stem() {
    check("resnet18_imagenet_64.json");
}

#[test]
fn resnet18_with_the_small_stem() {
    check("resnet18_small_64.json");
}

#[test]
fn narrow_resnet18() {
    check("resnet18_small_16.json");
    check("resnet18_imagenet_8.json");
}

#[test]
fn resnet50_with_the_imagenet_stem() {
    check("resnet50_imagenet_64.json");
}

#[test]
fn narrow_resnet50_with_the_small_stem() {
    check("resnet50_small_16.json");
}

#[test]
fn projector_equals_a_sequential_of_linear_layers() {
    #[derive(Deserialize)]
    struct Golden {
        z: Vec<f64>,
        grad_h: Vec<f64>,
        gradients: HashMap<String, Vec<f64>>,
    }
    let golden: Golden = serde_json::from_str(&golden("projector.json")).unwrap();
    let config = weince::config::model::ProjectorConfig { dim: 5, hidden: Some(12) };
    let projector = Projector::new(&config, 10).unwrap();
    projector.store().to_kind(Kind::Double).unwrap();
    let state = projector.store().state_dict();
    let given = state.iter().enumerate().map(|(i, (n, t))| (n.clone(), symmetric(20 + i as u64, &t.size(), 1.0)));
    projector.store().load(&given.collect::<Vec<_>>()).unwrap();
    let h = symmetric(1, &[4, 10], 1.0).set_requires_grad(true);
    let z = projector.forward(&h).unwrap();
    (&z * symmetric(2, &z.size(), 1.0)).sum(Kind::Double).backward();
    let close = |expected: &[f64], found: &Tensor| {
        let gap = (Tensor::from_slice(expected) - found.detach().reshape([-1])).abs().max().double_value(&[]);
        assert!(gap < 1e-13, "{gap:e}");
    };
    close(&golden.z, &z);
    close(&golden.grad_h, &h.grad());
    for (n, p) in projector.store().parameters() {
        close(&golden.gradients[&n], &p.grad());
    }
}

#[test]
fn a_model_joins_encoder_and_projector_and_learns() {
    let text = "encoder: {kind: resnet18, stem: small, width: 8}\nprojector: {dim: 6, hidden: 12}";
    let config: ModelConfig = weince::config::parse(text, "test", &[]).unwrap();
    let model = Model::new(&config, 32).unwrap();
    let (state, parameters) = (model.state_dict(), model.parameters());
    assert_eq!((state.len(), parameters.len()), (122, 62));
    assert_eq!((state[0].0.as_str(), state[120].0.as_str()), ("encoder.conv1.weight", "projector.0.weight"));
    assert!(parameters.iter().all(|(name, _)| !name.contains("running")));

    let optim = weince::config::parse("{kind: sgd, momentum: 0.9}", "test", &[]).unwrap();
    let mut optimizer = Optimizer::new(&optim, &parameters).unwrap();
    let images = symmetric(1, &[8, 3, 12, 12], 1.0).to_kind(Kind::Float);
    let target = symmetric(2, &[8, 6], 1.0).to_kind(Kind::Float);
    let mut losses = Vec::new();
    for _ in 0..30 {
        optimizer.zero_grad().unwrap();
        let (h, z) = model.forward(&images, true).unwrap();
        assert_eq!((h.size(), z.size()), (vec![8, 64], vec![8, 6]));
        let loss = (z - &target).square().mean(Kind::Float);
        loss.backward();
        assert!(weince::optim::gradient_norm(&parameters).unwrap().double_value(&[]) > 0.0);
        optimizer.step(0.02, None).unwrap();
        losses.push(loss.double_value(&[]));
    }
    // The start is random, so the bound is loose: it says that the loss falls.
    assert!(losses[29] < 0.6 * losses[0], "{losses:?}");
}
