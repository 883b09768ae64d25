//! Single training steps: float16's scaler within them.

use tch::{Device, Kind, Tensor};
use weince::checkpoint::Value;
use weince::config::parse;
use weince::config::precision::Precision;
use weince::config::vision::Views;
use weince::loss::{Layout, Loss};
use weince::model::Model;
use weince::optim::Optimizer;
use weince::train::{Learner, StepOptions, StepScalars, Stepper, VisionModel};

fn stepper(precision: Precision) -> Stepper<VisionModel> {
    let model = parse("{encoder: {kind: resnet18, stem: small, width: 4}, projector: {dim: 8}}", "model", &[]).unwrap();
    let model = Model::new(&model, 8).unwrap();
    let optimizer = Optimizer::new(&parse("{kind: adamw}", "optim", &[]).unwrap(), &model.parameters()).unwrap();
    let loss = Loss::new(&parse("{kind: infonce}", "loss", &[]).unwrap(), Layout::TwoView).unwrap();
    let options = StepOptions { precision, ..Default::default() };
    Stepper::new(
        VisionModel { model, views: Views::Separate, channels_last: false },
        optimizer,
        loss,
        options,
        Device::Cpu,
    )
    .unwrap()
}

/// The parameters, one after another.
fn weights(stepper: &Stepper<VisionModel>) -> Tensor {
    let flat: Vec<Tensor> = stepper.model.parameters().iter().map(|(_, p)| p.detach().flatten(0, -1)).collect();
    Tensor::cat(&flat, 0)
}

/// Their gradients, as the optimizer got them.
fn gradients(stepper: &Stepper<VisionModel>) -> Tensor {
    let flat: Vec<Tensor> = stepper.model.parameters().iter().map(|(_, p)| p.grad().flatten(0, -1)).collect();
    Tensor::cat(&flat, 0)
}

/// LibTorch's CPU computes in float16 too, slowly, so that the path of a step can be tested without CUDA.
#[test]
fn a_step_whose_gradients_overflow_float16_is_skipped_and_the_next_is_taken() {
    let views = [0, 1].map(|_| Tensor::rand([6, 3, 8, 8], (Kind::Float, Device::Cpu)));
    let (mut half, mut full) = (stepper(Precision::Fp16), stepper(Precision::Fp32));
    // The tests of one process share LibTorch's generator, so that a seed alone does not make two models equal.
    for (from, to) in [
        (half.model.model.encoder.store(), full.model.model.encoder.store()),
        (half.model.model.projector.store(), full.model.model.projector.store()),
    ] {
        to.load(&from.state_dict()).unwrap();
    }
    let start = weights(&half);
    // A scale that no float16 gradient survives.
    let huge = Value::dict([("scale", Value::from(1e30)), ("_growth_tracker", 7.into())]);
    half.scaler_mut().unwrap().load_state_dict(&huge).unwrap();
    let told = |packed: &Tensor| {
        let scalars = StepScalars::read(packed).unwrap();
        let get = |name: &str| scalars.diagnostics.iter().find(|(n, _)| *n == name).map(|(_, v)| *v);
        (scalars.halted, get("loss_scale"), get("skipped_steps"), scalars.loss)
    };
    let first = told(&half.step(&views, 1e-3, 0).unwrap());
    assert_eq!((first.0, first.2), (false, Some(1.0)));
    assert!((first.1.unwrap() / 5e29 - 1.0).abs() < 1e-6, "{first:?}");
    assert!(weights(&half).equal(&start));
    let usual =
        Value::dict([("scale", Value::from(1024.0)), ("_growth_tracker", 0.into()), ("skipped_steps", 1.into())]);
    half.scaler_mut().unwrap().load_state_dict(&usual).unwrap();
    let second = told(&half.step(&views, 1e-3, 0).unwrap());
    assert_eq!((second.0, second.1, second.2), (false, Some(1024.0), Some(1.0)));
    let expected = told(&full.step(&views, 1e-3, 0).unwrap());
    assert_eq!((expected.1, expected.2), (None, None));
    // float16 has 11 bits: the loss is that of float32 to about a part in a thousand.
    assert!((second.3 / expected.3 - 1.0).abs() < 5e-3, "{} {}", second.3, expected.3);
    // Adam's first step is the gradient's sign, so that the gradients themselves are compared. Batch statistics of 12 views
    // amplify float16's rounding; gradients that have nothing to do with one another have a cosine of 0.00 in so many dimensions.
    let cosine =
        (&gradients(&half) * &gradients(&full)).sum(Kind::Double) / (gradients(&half).norm() * gradients(&full).norm());
    assert!(cosine.double_value(&[]) > 0.5, "{cosine:?}");
    assert!(!weights(&half).equal(&start));
    // What is not finite before the gradient stops the run, as in every precision.
    let broken = half.step(&[&views[0] * f64::NAN, views[1].shallow_clone()], 1e-3, 0).unwrap();
    assert!(StepScalars::read(&broken).unwrap().halted);
}
