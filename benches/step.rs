//! What WEINCE costs over InfoNCE in a whole training step, and what bfloat16 saves: `cargo bench --bench step -- [batch] [size] [rounds]
//! [device]`, ResNet-18 with the small stem, batch 256 of 32x32 on the CPU unless given.
//!
//! Prints one JSON object. Steps of both losses take turns from the same weights on the same views. A step takes seconds on a
//! CPU and its time wanders by more than the losses differ, so that the losses alone are timed too, forward and backward on
//! embeddings of the same shape, and their difference is given as a share of the step.

use std::time::Instant;
use tch::{Device, Kind, Tensor};
use weince::config::loss::LossConfig;
use weince::config::model::ModelConfig;
use weince::config::optim::OptimConfig;
use weince::config::parse;
use weince::config::precision::Precision;
use weince::loss::{Layout, Loss};
use weince::model::Model;
use weince::optim::Optimizer;
use weince::train::{StepOptions, Stepper};

const MODEL: &str = "{encoder: {kind: resnet18, stem: small}}";
const PROJECTED: i64 = 64;

fn loss(kind: &str) -> Loss {
    let config: LossConfig = parse(&format!("{{kind: {kind}}}"), kind, &[]).expect("a loss of the benchmark");
    Loss::new(&config, Layout::TwoView).expect("a loss of the benchmark")
}

fn stepper(kind: &str, precision: Precision, device: Device) -> Stepper {
    tch::manual_seed(0);
    let model = Model::new(&parse::<ModelConfig>(MODEL, "model", &[]).expect("a model"), 32).expect("a model");
    model.to_device(device).expect("the device");
    let adam: OptimConfig = parse("{kind: adam}", "optim", &[]).expect("an optimizer");
    let optimizer = Optimizer::new(&adam, &model.parameters()).expect("an optimizer");
    let options = StepOptions { precision, ..Default::default() };
    Stepper::new(model, optimizer, loss(kind), options, device).expect("a stepper")
}

fn seconds(device: Device, work: impl FnOnce()) -> f64 {
    let wait = || {
        if let Device::Cuda(index) = device {
            tch::Cuda::synchronize(index as i64);
        }
    };
    wait();
    let start = Instant::now();
    work();
    wait();
    start.elapsed().as_secs_f64()
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let number = |i: usize, default: i64| arguments.get(i).map_or(default, |a| a.parse().expect("a whole number"));
    let (batch, size, rounds) = (number(0, 256), number(1, 32), number(2, 5));
    let device = weince::device::parse(arguments.get(3).map_or("cpu", String::as_str)).expect("a device");
    tch::manual_seed(1);
    let view = || Tensor::rand([batch, 3, size, size], (Kind::Float, device));
    let (view_1, view_2) = (view(), view());
    let kinds = ["infonce", "weince"];

    let mut losses = kinds.map(loss);
    let mut alone = [Vec::new(), Vec::new()];
    for round in 0..40 {
        let leaf = || Tensor::randn([batch, PROJECTED], (Kind::Float, device)).set_requires_grad(true);
        let (z_1, z_2) = (leaf(), leaf());
        for (loss, times) in losses.iter_mut().zip(&mut alone) {
            let took = seconds(device, || loss.forward(&z_1, &z_2).expect("a batch").loss.backward());
            if round >= 10 {
                times.push(took);
            }
        }
    }
    let cases = [("infonce", Precision::Fp32), ("weince", Precision::Fp32), ("infonce", Precision::Bf16)];
    let mut steppers = cases.map(|(kind, precision)| stepper(kind, precision, device));
    let mut steps = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for (stepper, times) in steppers.iter_mut().zip(&mut steps) {
            let took = seconds(device, || drop(stepper.step(&view_1, &view_2, 1e-3).expect("a step")));
            if round > 0 {
                times.push(took);
            }
        }
        eprintln!("round {round} of {rounds}");
    }
    let step = median(&steps[0]);
    println!(
        "{}",
        serde_json::json!({
            "batch": batch, "size": size, "device": format!("{device:?}"), "threads": tch::get_num_threads(),
            "infonce_step_s": steps[0], "weince_step_s": steps[1], "infonce_bf16_step_s": steps[2],
            "fp32_over_bf16": step / median(&steps[2]),
            "loss_alone_ms": {"infonce": 1e3 * median(&alone[0]), "weince": 1e3 * median(&alone[1])},
            "weince_over_infonce_percent": {
                "whole_steps": 100.0 * (median(&steps[1]) / step - 1.0),
                "losses_alone_over_the_step": 100.0 * (median(&alone[1]) - median(&alone[0])) / step,
            },
        })
    );
}
