//! What scripts/parity/test_model.py and test_vit.py need to see from Rust: an encoder run on weights from Python, and files to read there.
//!
//! parity_model encode ENCODER_YAML WEIGHTS IMAGES FOLDER   (WEIGHTS of any kind; IMAGES safetensors with `images`)
//! parity_model learn ENCODER_YAML PRECISION WEIGHTS BATCH STEPS LR FOLDER   (BATCH safetensors with `images`, `target`)
//! parity_model batch CONFIG STEP FILE                      (the two views of a step as safetensors)
//! parity_model images CONFIG PART FILE                     (what evaluation sees of `pretrain`, `train` or `test`)
//! parity_model initial MODEL_YAML SEED FOLDER [SIZE]
//! parity_model values FOLDER

use std::collections::BTreeMap;
use std::path::Path;
use tch::{Device, Kind, Tensor};
use weince::checkpoint::{Value, safetensors, torch_file};
use weince::config::model::{EncoderConfig, ModelConfig};
use weince::config::precision::Precision;
use weince::config::vision::VisionConfig;
use weince::data::{self, Split};
use weince::model::{Encoder, Fit, Found, Model};
use weince::optim::Optimizer;
use weince::train::{Plan, Vision};

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["encode", config, weights, images, folder] => {
            encode(config, Path::new(weights), Path::new(images), Path::new(folder))
        }
        ["learn", config, precision, weights, batch, steps, lr, folder] => {
            let precision = weince::config::parse(precision, "command line", &[])?;
            let files = [weights, batch, folder].map(Path::new);
            learn(config, precision, files, steps.parse()?, lr.parse()?)
        }
        ["initial", config, seed, folder] => initial(config, seed.parse()?, Path::new(folder), 32),
        ["initial", config, seed, folder, size] => initial(config, seed.parse()?, Path::new(folder), size.parse()?),
        ["values", folder] => values(Path::new(folder)),
        ["batch", config, step, file] => batch(Path::new(config), step.parse()?, Path::new(file)),
        ["images", config, part, file] => images(Path::new(config), part, Path::new(file)),
        _ => anyhow::bail!(
            "expected `encode`, `learn`, `initial`, `values`, `batch` or `images` with their arguments, found {args:?}"
        ),
    }
}

/// Features in evaluation, then a training pass that moves the running statistics, then all weights as files.
fn encode(config: &str, weights: &Path, images: &Path, folder: &Path) -> anyhow::Result<()> {
    let given = safetensors::load(images)?.tensors;
    let images = &given.first().ok_or_else(|| anyhow::anyhow!("no images"))?.1;
    let (encoder, fit) = loaded(config, weights, images)?;
    println!("{fit}");

    let features = |train| tch::no_grad(|| encoder.forward(images, train));
    let out = [("eval".to_string(), features(false)?), ("train".to_string(), features(true)?)];
    let none = BTreeMap::new();
    safetensors::save(&folder.join("features.safetensors"), &out, &none)?;
    let state = encoder.store().state_dict();
    let note = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    safetensors::save(&folder.join("encoder.safetensors"), &state, &note)?;
    torch_file::save(&folder.join("encoder.pt"), &Value::state_dict(state))?;
    Ok(())
}

/// An encoder for such images with a file's weights, and what was taken.
fn loaded(config: &str, weights: &Path, images: &Tensor) -> anyhow::Result<(Box<dyn Encoder>, Fit)> {
    let config: EncoderConfig = weince::config::parse(config, "command line", &[])?;
    let encoder = weince::model::encoder(&config, images.size()[2] as usize)?;
    let tensors = weince::checkpoint::tensors(weights)?;
    let found = weince::model::load(
        encoder.store(),
        "encoder",
        &tensors,
        &encoder.other_names(),
        &regex::RegexSet::empty(),
        "",
    )?;
    let Found::Loaded(fit) = found else { anyhow::bail!("{found:?}") };
    Ok((encoder, fit))
}

/// Gradient descent on the mean squared distance of the features from a target; prints the loss of each step, and keeps features
/// and gradients of the first.
fn learn(config: &str, precision: Precision, files: [&Path; 3], steps: usize, lr: f64) -> anyhow::Result<()> {
    let [weights, batch, folder] = files;
    let given = safetensors::load(batch)?.tensors;
    let part = |name: &str| {
        let found = given.iter().find(|(n, _)| n == name).map(|(_, t)| t.shallow_clone());
        found.ok_or_else(|| anyhow::anyhow!("no {name}"))
    };
    let (images, target) = (part("images")?, part("target")?);
    let (encoder, _) = loaded(config, weights, &images)?;
    let parameters = encoder.store().parameters();
    let mut optimizer = Optimizer::new(&weince::config::parse("{kind: sgd}", "sgd", &[])?, &parameters)?;
    for step in 0..steps {
        let forward = || encoder.forward(&images, true);
        let features = match precision.cast() {
            Some(kind) => weince::torch::autocast(Device::Cpu, kind, forward)?,
            None => forward()?,
        };
        let loss = (features.to_kind(Kind::Float) - &target).square().mean(Kind::Float);
        optimizer.zero_grad()?;
        loss.backward();
        if step == 0 {
            let gradients: Vec<_> = parameters.iter().map(|(name, p)| (name.clone(), p.grad())).collect();
            safetensors::save(&folder.join("gradients.safetensors"), &gradients, &BTreeMap::new())?;
            let features = [("features".to_string(), features.detach())];
            safetensors::save(&folder.join("features.safetensors"), &features, &BTreeMap::new())?;
        }
        optimizer.step(lr, None)?;
        println!("{}", loss.double_value(&[]));
    }
    Ok(())
}

/// The views of one step of a run.
fn batch(config: &Path, step: u64, file: &Path) -> anyhow::Result<()> {
    let config: VisionConfig = weince::config::load(config, &[])?;
    let batch = Plan::<Vision>::new(&config, Device::Cpu)?.batch(step)?;
    let views = [("view_1".to_string(), batch.view_1), ("view_2".to_string(), batch.view_2)];
    safetensors::save(file, &views, &BTreeMap::new())?;
    Ok(())
}

/// All images of a part of a run's data set, with their labels.
fn images(config: &Path, part: &str, file: &Path) -> anyhow::Result<()> {
    let config: VisionConfig = weince::config::load(config, &[])?;
    let split = match part {
        "pretrain" => Split::Pretrain,
        "train" => Split::Train,
        _ => Split::Test,
    };
    let set = data::load(&config.data, split)?;
    let size = config.augment.view_size(set.shape())?;
    let batches = data::eval_batches(&set, size, None, 256)?.collect::<weince::Result<Vec<_>>>()?;
    let images: Vec<&Tensor> = batches.iter().map(|b| &b.images).collect();
    let labels: Vec<&Tensor> = batches.iter().map(|b| &b.labels).collect();
    let tensors = [("images".to_string(), Tensor::cat(&images, 0)), ("labels".to_string(), Tensor::cat(&labels, 0))];
    let names = BTreeMap::from([("class_names".to_string(), set.class_names.join("\n"))]);
    safetensors::save(file, &tensors, &names)?;
    Ok(())
}

/// A model as it is before training.
fn initial(config: &str, seed: i64, folder: &Path, size: usize) -> anyhow::Result<()> {
    let config: ModelConfig = weince::config::parse(config, "command line", &[])?;
    tch::manual_seed(seed);
    let model = Model::new(&config, size)?;
    safetensors::save(&folder.join("initial.safetensors"), &model.state_dict(), &BTreeMap::new())?;
    Ok(())
}

/// Every kind of value and of tensor that can be saved.
fn values(folder: &Path) -> anyhow::Result<()> {
    let base = Tensor::from_slice(&[0i64, 1, 1, 0, 1, 1]).reshape([2, 3]);
    let kinds = [
        ("float32", Kind::Float),
        ("float64", Kind::Double),
        ("float16", Kind::Half),
        ("bfloat16", Kind::BFloat16),
        ("int64", Kind::Int64),
        ("int32", Kind::Int),
        ("int16", Kind::Int16),
        ("int8", Kind::Int8),
        ("uint8", Kind::Uint8),
        ("bool", Kind::Bool),
    ];
    let tensors = || kinds.iter().map(|(name, kind)| (name.to_string(), base.to_kind(*kind)));
    let shared = Tensor::from_slice(&[1f32, 2.0]);
    let ints = [0, 255, 256, -1, -(1 << 31), 1 << 31, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, -(1 << 100)];
    let value = Value::dict([
        ("kinds", Value::state_dict(tensors().collect())),
        ("transposed", (base.to_kind(Kind::Float).tr()).into()),
        ("scalar", Tensor::from(2.5f64).into()),
        ("empty", Tensor::zeros([0, 3], (Kind::Float, Device::Cpu)).into()),
        ("trained", Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true).into()),
        ("shared", Value::List(vec![shared.shallow_clone().into(), shared.into()])),
        ("ints", Value::List(ints.into_iter().map(Value::Int).collect())),
        ("floats", Value::Tuple([0.1, -0.0, f64::INFINITY, 5e-324].into_iter().map(Value::Float).collect())),
        ("flags", Value::List(vec![true.into(), false.into(), Value::None])),
        ("text", "\u{e9}\u{1f600}\n'\"".into()),
        ("long text", "x".repeat(300).into()),
        (
            "empty things",
            Value::List(vec![
                Value::List(vec![]),
                Value::Tuple(vec![]),
                Value::Dict(vec![]),
                Value::OrderedDict(vec![]),
                "".into(),
            ]),
        ),
        ("by number", Value::Dict(vec![(0.into(), Value::dict([("step", 1.0.into())])), (1.into(), Value::None)])),
    ]);
    torch_file::save(&folder.join("values.pt"), &value)?;
    safetensors::save(&folder.join("values.safetensors"), &tensors().collect::<Vec<_>>(), &BTreeMap::new())?;
    Ok(())
}
