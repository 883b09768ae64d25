//! What scripts/parity/test_model.py needs to see from Rust: an encoder run on weights from Python, and files to read there.
//!
//! parity_model encode ENCODER_YAML WEIGHTS IMAGES FOLDER   (WEIGHTS of any kind; IMAGES safetensors with `images`)
//! parity_model batch CONFIG STEP FILE                      (the two views of a step as safetensors)
//! parity_model images CONFIG PART FILE                     (what evaluation sees of `pretrain`, `train` or `test`)
//! parity_model initial MODEL_YAML SEED FOLDER
//! parity_model values FOLDER

use std::collections::BTreeMap;
use std::path::Path;
use tch::{Device, Kind, Tensor};
use weince::checkpoint::{Value, safetensors, torch_file};
use weince::config::model::{EncoderConfig, ModelConfig};
use weince::config::vision::VisionConfig;
use weince::data::{self, Split};
use weince::model::Model;
use weince::train::Plan;

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["encode", config, weights, images, folder] => {
            encode(config, Path::new(weights), Path::new(images), Path::new(folder))
        }
        ["initial", config, seed, folder] => initial(config, seed.parse()?, Path::new(folder)),
        ["values", folder] => values(Path::new(folder)),
        ["batch", config, step, file] => batch(Path::new(config), step.parse()?, Path::new(file)),
        ["images", config, part, file] => images(Path::new(config), part, Path::new(file)),
        _ => anyhow::bail!(
            "expected `encode`, `initial`, `values`, `batch` or `images` with their arguments, found {args:?}"
        ),
    }
}

/// Features in evaluation, then a training pass that moves the running statistics, then all weights as files.
fn encode(config: &str, weights: &Path, images: &Path, folder: &Path) -> anyhow::Result<()> {
    let config: EncoderConfig = weince::config::parse(config, "command line", &[])?;
    let encoder = weince::model::encoder(&config, 32)?;
    let tensors = weince::checkpoint::tensors(weights)?;
    let fit =
        weince::model::load(encoder.store(), "encoder", &tensors, &encoder.other_names(), &regex::RegexSet::empty())?;
    if let weince::model::Found::Loaded(fit) = fit {
        println!("{fit}");
    }
    let given = safetensors::load(images)?.tensors;
    let images = &given.first().ok_or_else(|| anyhow::anyhow!("no images"))?.1;

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

/// The views of one step of a run.
fn batch(config: &Path, step: u64, file: &Path) -> anyhow::Result<()> {
    let config: VisionConfig = weince::config::load(config, &[])?;
    let batch = Plan::new(&config, Device::Cpu)?.batch(step)?;
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
fn initial(config: &str, seed: i64, folder: &Path) -> anyhow::Result<()> {
    let config: ModelConfig = weince::config::parse(config, "command line", &[])?;
    tch::manual_seed(seed);
    let model = Model::new(&config, 32)?;
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
