//! Seconds of a whole training step: what WEINCE costs over InfoNCE, what the precisions save, what chunks cost, whether memory stays flat.
//!
//!     cargo bench --bench step -- [batch] [size] [rounds] [device]
//!
//! ResNet-18 with the small stem, batch 256 of 32x32 on the CPU unless given. Prints one JSON object. The cases take turns from
//! the same weights on the same views; on CUDA the time is the device's own. A step takes seconds on a CPU and its time wanders
//! by more than the losses differ, so that the losses alone are timed too, forward and backward on embeddings of the same shape,
//! and their difference is given as a share of the step.

use std::collections::BTreeMap;
use tch::{Device, Kind, Tensor};
use weince::config::loss::LossConfig;
use weince::config::model::ModelConfig;
use weince::config::optim::OptimConfig;
use weince::config::parse;
use weince::config::precision::Precision;
use weince::config::vision::Views;
use weince::loss::{Layout, Loss};
use weince::model::Model;
use weince::optim::Optimizer;
use weince::torch::{Mark, device_memory};
use weince::train::{StepOptions, Stepper, VisionModel};
use weince::{Error, Result};

const MODEL: &str = "{encoder: {kind: resnet18, stem: small}}";
const PROJECTED: i64 = 64;
/// Samples of a chunk, in the case with chunks.
const CHUNK: u32 = 64;

/// Name, loss, how the step computes, and whether images lie channels last.
fn cases(device: Device) -> Vec<(&'static str, &'static str, StepOptions, bool)> {
    let options = |precision| StepOptions { precision, ..Default::default() };
    let mut cases = vec![
        ("infonce fp32", "infonce", options(Precision::Fp32), false),
        ("weince fp32", "weince", options(Precision::Fp32), false),
        ("infonce bf16", "infonce", options(Precision::Bf16), false),
        ("weince bf16", "weince", options(Precision::Bf16), false),
    ];
    cases.push(("infonce fp32 in chunks", "infonce", StepOptions { chunk: Some(CHUNK), ..Default::default() }, false));
    if device.is_cuda() {
        cases.push(("weince tf32", "weince", StepOptions { tf32: true, ..Default::default() }, false));
        cases.push(("weince fp16", "weince", options(Precision::Fp16), false));
        cases.push(("weince bf16 channels last", "weince", options(Precision::Bf16), true));
    }
    cases
}

fn loss(kind: &str) -> Result<Loss> {
    Loss::new(&parse::<LossConfig>(&format!("{{kind: {kind}}}"), kind, &[])?, Layout::TwoView)
}

fn stepper(kind: &str, options: StepOptions, channels_last: bool, device: Device) -> Result<Stepper<VisionModel>> {
    tch::manual_seed(0);
    let model = Model::new(&parse::<ModelConfig>(MODEL, "model", &[])?, 32)?;
    model.to_device(device)?;
    if channels_last {
        model.encoder.store().channels_last()?;
    }
    let adam: OptimConfig = parse("{kind: adam}", "optim", &[])?;
    let optimizer = Optimizer::new(&adam, &model.parameters())?;
    let model = VisionModel { model, views: Views::Separate, channels_last };
    Stepper::new(model, optimizer, loss(kind)?, options, device)
}

fn seconds(device: Device, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Mark::now(device)?;
    work()?;
    start.seconds_to(&Mark::now(device)?)
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let number = |i: usize, default: i64| match arguments.get(i) {
        Some(text) => text.parse().map_err(|_| Error::Config(format!("expected a whole number, found `{text}`"))),
        None => Ok(default),
    };
    let (batch, size, rounds) = (number(0, 256)?, number(1, 32)?, number(2, 5)?);
    let device = weince::device::parse(arguments.get(3).map_or("cpu", String::as_str), None)?;
    tch::manual_seed(1);
    let view = || Tensor::rand([batch, 3, size, size], (Kind::Float, device));
    let views = [view(), view()];

    let mut alone: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut losses = [("infonce", loss("infonce")?), ("weince", loss("weince")?)];
    for round in 0..40 {
        let leaf = || Tensor::randn([batch, PROJECTED], (Kind::Float, device)).set_requires_grad(true);
        let (z_1, z_2) = (leaf(), leaf());
        for (name, loss) in &mut losses {
            let took = seconds(device, || {
                loss.forward(&z_1, &z_2)?.loss.backward();
                Ok(())
            })?;
            if round >= 10 {
                alone.entry(name).or_default().push(took);
            }
        }
    }
    let mut steppers = Vec::new();
    for (name, kind, options, channels_last) in cases(device) {
        steppers.push((name, stepper(kind, options, channels_last, device)?));
    }
    let mut steps: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut memory: Vec<u64> = Vec::new();
    for round in 0..=rounds {
        for (name, stepper) in &mut steppers {
            let took = seconds(device, || stepper.step(&views, 1e-3, round).map(drop))?;
            if round > 0 {
                steps.entry(name).or_default().push(took);
            }
        }
        memory.extend(device_memory(device)?.map(|(now, _)| now));
        if round % 10 == 0 || rounds < 10 {
            eprintln!("round {round} of {rounds}");
        }
    }
    let step: BTreeMap<&str, f64> = steps.iter().map(|(name, times)| (*name, median(times))).collect();
    let full = step["infonce fp32"];
    println!(
        "{}",
        serde_json::json!({
            "batch": batch, "size": size, "device": weince::device::name(device), "threads": tch::get_num_threads(),
            "libtorch": weince::torch::libtorch_version(), "steps_s": steps, "median_step_s": step,
            "loss_alone_ms": {"infonce": 1e3 * median(&alone["infonce"]), "weince": 1e3 * median(&alone["weince"])},
            "weince_over_infonce_percent": {
                "whole_steps": 100.0 * (step["weince fp32"] / full - 1.0),
                "losses_alone_over_the_step": 100.0 * (median(&alone["weince"]) - median(&alone["infonce"])) / full,
            },
            "fp32_over_bf16": full / step["infonce bf16"],
            "chunks_over_whole": {"chunk": CHUNK, "ratio": step["infonce fp32 in chunks"] / full},
            "memory_bytes": {
                "after_the_second_round": memory.get(1), "after_the_last_round": memory.last(),
                "peak": device_memory(device)?.map(|(_, peak)| peak),
            },
        })
    );
    Ok(())
}
