//! Seconds of a whole training step: what WEINCE costs over InfoNCE, what the precisions save, what chunks cost, whether memory stays flat.
//!
//!     cargo bench --bench step -- [batch] [size] [rounds] [device] [precision]
//!     cargo bench --bench step -- profile BATCH STEPS PRECISION    (where a step of 32x32 pixels spends its time, on the CPU)
//!
//! ResNet-18 with the small stem, batch 256 of 32x32 on the CPU unless given. Prints one JSON object. The cases take turns from
//! the same weights on the same views; on CUDA the time is the device's own. A step takes seconds on a CPU and its time wanders
//! by more than the losses differ, so that the losses alone are timed too, forward and backward on embeddings of the same shape,
//! and their difference is given as a share of the step. A precision leaves only that one's cases.

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
use weince::optim::{Optimizer, gradient_norm};
use weince::torch::{Mark, autocast, device_memory};
use weince::train::{Learner, StepOptions, Stepper, VisionModel};
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

/// Median seconds of the parts of a step with InfoNCE on one batch, as one JSON object.
fn profile(batch: i64, steps: usize, precision: &str) -> Result<()> {
    let device = Device::Cpu;
    tch::manual_seed(0);
    let model = Model::new(&parse::<ModelConfig>(MODEL, "model", &[])?, 32)?;
    model.to_device(device)?;
    let parameters = model.parameters();
    let mut optimizer = Optimizer::new(&parse::<OptimConfig>("{kind: adam}", "optim", &[])?, &parameters)?;
    let model = VisionModel { model, views: Views::Separate, channels_last: false };
    let mut loss = loss("infonce")?;
    let view = || Ok::<_, Error>(Tensor::f_rand([batch, 3, 32, 32], (Kind::Float, device))?);
    let views = [view()?, view()?];
    let cast = parse::<Precision>(precision, "precision", &[])?.cast();
    let mut parts: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for round in 0..=steps {
        optimizer.zero_grad()?;
        let mut mark = std::time::Instant::now();
        let mut passed = |part: &'static str| {
            if round > 0 {
                parts.entry(part).or_default().push(mark.elapsed().as_secs_f64());
            }
            mark = std::time::Instant::now();
        };
        let (z_1, z_2) = match cast {
            Some(kind) => autocast(device, kind, || model.embed(&views))?,
            None => model.embed(&views)?,
        };
        passed("forward");
        let leaf = |z: &Tensor| Ok::<_, Error>(z.f_detach()?.f_to_kind(Kind::Float)?.set_requires_grad(true));
        let leaves = [leaf(&z_1)?, leaf(&z_2)?];
        loss.forward(&leaves[0], &leaves[1])?.loss.f_backward()?;
        passed("loss");
        // The sum whose gradient with respect to the embeddings is the loss's.
        let sum = |z: &Tensor, leaf: &Tensor| Ok::<_, Error>(z.f_mul(&leaf.f_grad()?)?.f_sum(Kind::Float)?);
        sum(&z_1, &leaves[0])?.f_add(&sum(&z_2, &leaves[1])?)?.f_backward()?;
        passed("backward");
        let _norm = gradient_norm(&parameters)?;
        optimizer.step(3e-4, None)?;
        passed("optimizer");
    }
    let medians: BTreeMap<&str, f64> = parts.iter().map(|(part, times)| (*part, median(times))).collect();
    println!("{}", serde_json::json!(medians));
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let profiled = arguments.first().is_some_and(|word| word == "profile");
    if profiled {
        arguments.remove(0);
    }
    let number = |i: usize, default: i64| match arguments.get(i) {
        Some(text) => text.parse().map_err(|_| Error::Config(format!("expected a whole number, found `{text}`"))),
        None => Ok(default),
    };
    if profiled {
        let precision = arguments.get(2).map_or("fp32", String::as_str);
        return profile(number(0, 256)?, number(1, 5)? as usize, precision);
    }
    let (batch, size, rounds) = (number(0, 256)?, number(1, 32)?, number(2, 5)?);
    let only = arguments.get(4).map_or("", String::as_str);
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
    for (name, kind, options, channels_last) in cases(device).into_iter().filter(|case| case.0.ends_with(only)) {
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
    let ratio = |a: &str, b: &str| Some(step.get(a)? / step.get(b)?);
    // In any other precision than float32, whatever the cases are of it.
    let [infonce, weince] = ["infonce", "weince"].map(|kind| match step.contains_key("infonce fp32") {
        true => format!("{kind} fp32"),
        false => format!("{kind} {only}"),
    });
    let full = step[&*infonce];
    println!(
        "{}",
        serde_json::json!({
            "batch": batch, "size": size, "device": weince::device::name(device), "threads": tch::get_num_threads(),
            "libtorch": weince::torch::libtorch_version(), "steps_s": steps, "median_step_s": step,
            "loss_alone_s": alone,
            "loss_alone_ms": {"infonce": 1e3 * median(&alone["infonce"]), "weince": 1e3 * median(&alone["weince"])},
            "weince_over_infonce_percent": {
                "whole_steps": 100.0 * (step[&*weince] / full - 1.0),
                "losses_alone_over_the_step": 100.0 * (median(&alone["weince"]) - median(&alone["infonce"])) / full,
            },
            "fp32_over_bf16": ratio("infonce fp32", "infonce bf16"),
            "chunks_over_whole": {"chunk": CHUNK, "ratio": ratio("infonce fp32 in chunks", "infonce fp32")},
            "memory_bytes": {
                "after_the_second_round": memory.get(1), "after_the_last_round": memory.last(),
                "peak": device_memory(device)?.map(|(_, peak)| peak),
            },
        })
    );
    Ok(())
}
