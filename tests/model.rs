//! ResNets, Vision Transformer and projector against torchvision, timm and torch: names, outputs, gradients, running statistics.

use crate::formula::{assert_close, fingerprint, state_value, symmetric};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::PathBuf;
use tch::{Kind, Tensor};
use weince::config::model::ModelConfig;
use weince::model::{Encoder, Found, Model, Projector};
use weince::optim::Optimizer;

/// Everything that scripts/fixtures/model.py knows about one network; fingerprints as in `formula`.
#[derive(Deserialize)]
struct Case {
    encoder: serde_json::Value,
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
    // JSON is YAML too.
    let config: ModelConfig = weince::config::parse(&format!("encoder: {}", case.encoder), "golden", &[]).unwrap();
    Model::new(&config, case.images[2] as usize).unwrap()
}

/// The encoder's entries in order, with values by formula.
fn by_formula(encoder: &dyn Encoder) -> Vec<(String, Tensor)> {
    let state = encoder.store().state_dict();
    state.iter().enumerate().map(|(i, (n, t))| (n.clone(), state_value(i, n, &t.size()))).collect()
}

fn check(name: &str) {
    let case: Case = serde_json::from_str(&golden(name)).unwrap();
    let model = model(&case);
    let state = model.encoder.store().state_dict();
    let shapes: Vec<_> = state.iter().map(|(n, t)| (n.as_str(), serde_json::json!(t.size()))).collect();
    let expected: Vec<_> = case.state_dict.iter().map(|(n, s)| (n.as_str(), s.clone())).collect();
    assert_eq!(shapes, expected, "{name}");
    for run in &case.runs {
        check_run(name, &case, run);
    }
    if name.starts_with("resnet") {
        check_fresh(name, &state);
    }
}

/// The spread of what was drawn; the draws themselves are compared in
/// scripts/parity/test_model.py, where no other test uses LibTorch's generator at the same time.
fn check_fresh(name: &str, state: &[(String, Tensor)]) {
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
    // Only the order of summation may differ, between processors, layouts and thread counts; it adds up over the layers, and a ReLU that
    // opens is more than a rounding: in float32 torchvision's own gradients of a ResNet-50 are up to 2e-2 from those in float64, and
    // with channels last up to 4e-2.
    let (kind, tolerance) = match run.dtype.as_str() {
        "float64" => (Kind::Double, 1e-10),
        "float32" => (Kind::Float, 4e-2),
        other => panic!("{other}"),
    };
    let what = format!("{name} {}", run.dtype);
    let model = model(case);
    let encoder = &model.encoder;
    encoder.store().to_kind(kind).unwrap();
    encoder.store().load(&by_formula(encoder.as_ref())).unwrap();

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
fn narrow_vision_transformer() {
    check("vit_small_16.json");
}

fn vit(keys: &str, size: usize) -> weince::Result<Box<dyn Encoder>> {
    let text = format!("{{kind: vit_small, width: 16, depth: 2, heads: 2, {keys}}}");
    weince::model::encoder(&weince::config::parse(&text, "test", &[])?, size)
}

fn load(encoder: &dyn Encoder, file: &[(String, Tensor)]) -> weince::Result<String> {
    let others = encoder.other_names();
    match weince::model::load(encoder.store(), "encoder", file, &others, &regex::RegexSet::empty(), "")? {
        Found::Loaded(fit) => Ok(fit.to_string()),
        Found::Left(reason) => panic!("{reason}"),
    }
}

#[test]
fn a_parameter_is_finite_and_a_buffer_may_be_infinite() {
    let config = weince::config::parse("{kind: resnet18, stem: small, width: 4}", "test", &[]).unwrap();
    let encoder = weince::model::encoder(&config, 32).unwrap();
    let with = |name: &str, value: f64| {
        let entries = encoder.store().state_dict().into_iter();
        let file: Vec<(String, Tensor)> =
            entries.map(|(n, t)| if n == name { (n, t.full_like(value)) } else { (n, t.copy()) }).collect();
        load(encoder.as_ref(), &file)
    };
    assert!(with("bn1.running_mean", f64::NEG_INFINITY).is_ok());
    for (name, value) in [("bn1.running_mean", f64::NAN), ("conv1.weight", f64::NAN), ("conv1.weight", f64::INFINITY)] {
        let e = with(name, value).unwrap_err().to_string();
        assert!(e.contains(&format!("{name} has values that are not finite")), "{e}");
    }
}

#[test]
fn positions_of_another_grid_and_kernels_of_other_patches_become_timms() {
    #[derive(Deserialize)]
    struct Resampled {
        size: usize,
        patch_size: i64,
        tensors: HashMap<String, Vec<f64>>,
    }
    let cases: Vec<Resampled> = serde_json::from_str(&golden("vit_small_resampled.json")).unwrap();
    let file = by_formula(vit("patch_size: 8", 32).unwrap().as_ref());
    for case in cases {
        let what = format!("{} pixels, patches of {}", case.size, case.patch_size);
        let encoder = vit(&format!("patch_size: {}", case.patch_size), case.size).unwrap();
        let said = load(encoder.as_ref(), &file).unwrap();
        for (name, tensor) in encoder.store().state_dict() {
            if let Some(expected) = case.tensors.get(&name) {
                // float32; the pseudoinverse's smallest singular value is a tenth of its largest.
                assert_close(&format!("{what}: {name}"), expected, &fingerprint(&tensor), 1e-5);
            }
        }
        let grid = case.size as i64 / case.patch_size;
        let told = format!("pos_embed is resampled from [1, 17, 16] to [1, {}, 16]", 1 + grid * grid);
        assert_eq!(said.contains(&told), grid != 4, "{what}: {said}");
        let p = case.patch_size;
        let told = format!("patch_embed.proj.weight is resampled from [16, 3, 8, 8] to [16, 3, {p}, {p}]");
        assert_eq!(said.contains(&told), p != 8, "{what}: {said}");
        // A state of a run is taken by its store, which resamples nothing.
        let e = encoder.store().load(&file).unwrap_err().to_string();
        assert!(e.contains("of another shape: "), "{e}");
    }
}

#[test]
fn what_is_no_grid_of_positions_is_refused_by_its_shape() {
    let encoder = vit("patch_size: 8", 32).unwrap();
    for (name, shape) in [
        ("pos_embed", &[1i64, 18, 16][..]),
        ("pos_embed", &[1, 1, 16]),
        ("pos_embed", &[1, 0, 16]),
        ("pos_embed", &[1, 26, 8]),
        ("pos_embed", &[26, 16]),
        ("patch_embed.proj.weight", &[16, 3, 4, 8]),
        ("patch_embed.proj.weight", &[16, 3, 0, 0]),
        ("patch_embed.proj.weight", &[16, 1, 4, 4]),
        ("patch_embed.proj.weight", &[16, 3, 80, 80]),
        ("blocks.1.attn.qkv.weight", &[16, 16]),
    ] {
        let mut file = by_formula(encoder.as_ref());
        let entry = file.iter_mut().find(|(n, _)| n == name).unwrap();
        let expected = entry.1.size();
        entry.1 = Tensor::zeros(shape, (Kind::Float, tch::Device::Cpu));
        let e = load(encoder.as_ref(), &file).unwrap_err().to_string();
        assert!(e.contains(&format!("{name} (expected {expected:?}, found {shape:?})")), "{e}");
    }
}

#[test]
fn a_transformer_says_which_images_and_patches_go_together() {
    for (size, patch, advice) in [(30, 16, ["32", "15"]), (8, 16, ["16", "8"]), (31, 4, ["32", "1"])] {
        let e = vit(&format!("patch_size: {patch}"), size).err().unwrap().to_string();
        let named = format!("views of {size} pixels an edge are not made of whole patches of {patch}");
        let advised = format!("such as {}, or another patch_size, such as {}", advice[0], advice[1]);
        assert!(e.starts_with("model.encoder.patch_size: ") && e.contains(&named) && e.ends_with(&advised), "{e}");
    }
    let encoder = vit("patch_size: 8", 32).unwrap();
    let images = Tensor::zeros([2, 3, 32, 24], (Kind::Float, tch::Device::Cpu));
    let e = encoder.forward(&images, false).unwrap_err().to_string();
    assert!(e.contains("32x32") && e.contains("32x24"), "{e}");
}

#[test]
fn a_fresh_transformer_has_timms_spread_and_channels_last_changes_nothing() {
    // The draws themselves are compared in scripts/parity/test_vit.py.
    let encoder = vit("patch_size: 8", 32).unwrap();
    for (name, t) in encoder.store().state_dict() {
        let constant = |value: f64| t.to_kind(Kind::Double).eq(value).all().int64_value(&[]) == 1;
        // One draw in 2^24 is 100 standard deviations from 0.
        let spread = t.clamp(-0.2, 0.2).square().mean(Kind::Double).double_value(&[]).sqrt();
        // Six standard errors of the standard deviation of so many normal numbers; uniform ones spread less.
        let near = |std: f64| (spread / std - 1.0).abs() < 6.0 / (2.0 * t.numel() as f64).sqrt();
        let ok = match name.as_str() {
            "cls_token" => near(1e-6),
            "patch_embed.proj.weight" | "patch_embed.proj.bias" => near(1.0 / (3.0 * 3.0 * 64f64).sqrt()),
            name if name.ends_with("bias") => constant(0.0),
            name if name.contains("norm") => constant(1.0),
            _ => near(0.02),
        };
        assert!(ok, "{name}: {spread}");
    }
    let images = symmetric(1, &[2, 3, 32, 32], 1.0).to_kind(Kind::Float);
    let expected = tch::no_grad(|| encoder.forward(&images, false)).unwrap();
    encoder.store().channels_last().unwrap();
    let laid_out = images.permute([0, 2, 3, 1]).contiguous().permute([0, 3, 1, 2]);
    let found = tch::no_grad(|| encoder.forward(&laid_out, false)).unwrap();
    // The convolution alone sums in another order.
    assert!((found - &expected).abs().max().double_value(&[]) < 1e-5 * expected.abs().max().double_value(&[]));
}

#[test]
fn positions_and_class_token_are_spared_from_decay_where_biases_are() {
    let text = "encoder: {kind: vit_small, patch_size: 8, width: 16, depth: 1, heads: 2}\nprojector: {dim: 4}";
    let model = Model::new(&weince::config::parse(text, "test", &[]).unwrap(), 32).unwrap();
    let groups = |exclude: bool| {
        let config = format!("{{kind: adamw, exclude_bias_and_norm: {exclude}}}");
        let config = weince::config::parse(&config, "test", &[]).unwrap();
        let optimizer = Optimizer::sparing(&config, &model.parameters(), &model.no_weight_decay()).unwrap();
        let state = optimizer.state_dict(1e-3);
        let groups = state.get("param_groups").unwrap().elements().unwrap();
        let count = |group: &weince::checkpoint::Value| group.get("params").unwrap().elements().unwrap().len();
        groups.iter().map(count).collect::<Vec<_>>()
    };
    assert_eq!(groups(false), [20]);
    // Patches, four matrices of the block and two of the projector; the others are vectors, class token and positions.
    assert_eq!(groups(true), [7, 13]);
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
