//! Processes that compute together, as threads that are connected like processes: what they exchange, and that a step of theirs is the
//! step of one with the whole batch.

use crate::chunk::{RESNET, SAMPLES, VIT, apart, gradients, images, renew, sentences, text, weights};
use std::net::TcpListener;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tch::{Device, Kind, Tensor};
use weince::Error;
use weince::config::parse;
use weince::config::precision::Precision;
use weince::config::vision::Views;
use weince::data::text::Tokens;
use weince::dist::{Gradients, Group, Place, share};
use weince::loss::{Layout, Loss};
use weince::model::{Encoder, Model, Torchscript};
use weince::optim::Optimizer;
use weince::train::{Learner, StepOptions, StepScalars, Stepper, TextModel, VisionModel};

fn place(rank: usize, size: usize, port: u16) -> Place {
    Place {
        rank,
        size,
        local_rank: rank,
        local_size: size,
        host: "127.0.0.1".into(),
        port,
        agent_store: false,
        attempt: "test".into(),
        restarted: false,
        timeout: Duration::from_secs(60),
    }
}

/// What each of so many ranks makes of its group.
fn together<T: Send>(size: usize, work: impl Fn(Group) -> T + Sync) -> Vec<T> {
    within(Duration::from_secs(60), size, work)
}

/// The same for ranks that wait for one another so long.
fn within<T: Send>(timeout: Duration, size: usize, work: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    std::thread::scope(|scope| {
        let work = &work;
        let start = |rank| {
            let place = Place { timeout, ..place(rank, size, port) };
            scope.spawn(move || work(Group::join(&place, Device::Cpu).unwrap()))
        };
        let ranks: Vec<_> = (0..size).map(start).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn rows_sums_and_texts_go_round() {
    for size in [2, 3, 4] {
        let rows: Vec<i64> = (0..size as i64).map(|rank| [2, 0, 3, 1][rank as usize]).collect();
        let all: i64 = rows.iter().sum();
        let of_ranks = together(size, |group| {
            let rank = group.rank();
            let begin: i64 = rows[..rank].iter().sum();
            for kind in [Kind::Float, Kind::Double, Kind::BFloat16, Kind::Half, Kind::Int64, Kind::Uint8, Kind::Bool] {
                let whole = Tensor::arange(all * 6, (Kind::Float, Device::Cpu)).view([all, 2, 3]).to_kind(kind);
                // A view with strides of its own.
                let own = whole.transpose(1, 2).contiguous().transpose(1, 2).narrow(0, begin, rows[rank]);
                let found = group.gather(&own, &rows).unwrap();
                assert!(found.kind() == kind && found.equal(&whole), "{kind:?}");
            }
            let mut sum = Tensor::from_slice(&[1.5, rank as f64]).view([2, 1]).expand([2, 2], false).copy().tr();
            group.sum(&mut sum).unwrap();
            let ranks = (size * (size - 1) / 2) as f64;
            assert!(sum.equal(&Tensor::from_slice(&[1.5 * size as f64, ranks]).view([1, 2]).expand([2, 2], false)));
            assert!(!group.any(false).unwrap() && group.any(rank + 1 == size).unwrap());
            let mut given = [Tensor::from(rank as f32), Tensor::from_slice(&[rank as i64, 7])];
            group.broadcast(&mut given).unwrap();
            assert!(given[0].double_value(&[]) == 0.0 && given[1].equal(&Tensor::from_slice(&[0i64, 7])));
            let wrong = group.gather(&Tensor::zeros([5, 2], (Kind::Float, Device::Cpu)), &rows).unwrap_err();
            assert!(wrong.to_string().contains("found [5, 2]"), "{wrong}");
            group.texts(["first", "", "third rank's \u{3b2}", "4"][rank]).unwrap()
        });
        for texts in of_ranks {
            assert_eq!(texts, ["first", "", "third rank's \u{3b2}", "4"][..size]);
        }
    }
}

/// Sums over buckets of a few MiB, after plain passes and over several steps; a parameter that nothing uses stays without a gradient.
#[test]
fn gradients_are_summed() {
    let of_ranks = together(3, |group| {
        let leaf =
            |value: f64, n: i64| (Tensor::ones([n], (Kind::Double, Device::Cpu)) * value).set_requires_grad(true);
        let (mut a, mut b, unused) = (leaf(2.0, 400_000), leaf(3.0, 3), leaf(1.0, 5));
        let named = [("a", &a), ("b", &b), ("unused", &unused)].map(|(name, t)| (name.to_string(), t.shallow_clone()));
        let mut shared = Gradients::new(&group, &named);
        let factor = group.rank() as f64 + 1.0;
        for _ in 0..4 {
            let loss = |factor: f64| (&a * &b.narrow(0, 0, 1)).sum(Kind::Double) * factor;
            loss(10.0 * factor).backward();
            shared.backward(&loss(factor)).unwrap();
            // 1 + 2 + 3 of both passes.
            let expected = 66.0 * b.double_value(&[0]);
            assert!((a.grad() - expected).abs().max().double_value(&[]) < 1e-9);
            assert!((b.grad().double_value(&[0]) - 66.0 * 400_000.0 * a.double_value(&[0])).abs() < 1e-3);
            assert_eq!(b.grad().double_value(&[1]), 0.0);
            assert!(!unused.grad().defined());
            tch::no_grad(|| {
                a += 0.25;
                b += 0.5;
            });
            a.zero_grad();
            b.zero_grad();
        }
        let late = shared.backward(&(&unused * &a.narrow(0, 0, 5)).sum(Kind::Double));
        late.unwrap_err().to_string()
    });
    for said in of_ranks {
        assert!(said.contains("unused has a gradient now") || said.contains("no gradient of b"), "{said}");
    }
}

/// The order of a sum is that of the buckets, which do not depend on what was summed before: a run that is continued has the bits of one
/// that was not stopped.
#[test]
fn a_first_pass_sums_as_later_ones_do() {
    let equal = together(3, |group| {
        let numbers =
            |salt: f64, n: i64| (Tensor::arange(n, (Kind::Float, Device::Cpu)) * salt).sin().set_requires_grad(true);
        let named = |all: &[Tensor]| -> Vec<(String, Tensor)> {
            all.iter().enumerate().map(|(i, t)| (i.to_string(), t.shallow_clone())).collect()
        };
        let parameters: Vec<Tensor> = (1..6).map(|i| numbers(f64::from(i) * 0.7, 70_000 * i64::from(i) + 3)).collect();
        let rank = group.rank() as f64;
        let pass = |shared: &mut Gradients, step: f64| {
            let losses = parameters.iter().map(|p| (p * (p * (1.3 * rank + step)).cos()).sum(Kind::Float));
            shared.backward(&losses.reduce(|a, b| a + b).unwrap()).unwrap();
            parameters.iter().map(|p| p.grad().copy()).collect::<Vec<Tensor>>()
        };
        let clear = || parameters.iter().for_each(|p| p.shallow_clone().zero_grad());
        let mut used = Gradients::new(&group, &named(&parameters));
        for step in 0..3 {
            pass(&mut used, f64::from(step));
            clear();
        }
        let later = pass(&mut used, 3.0);
        clear();
        drop(used);
        let first = pass(&mut Gradients::new(&group, &named(&parameters)), 3.0);
        later.iter().zip(&first).all(|(a, b)| a.equal(b)) && later[0].abs().max().double_value(&[]) > 0.0
    });
    assert_eq!(equal, [true; 3]);
}

/// What a rank has after some steps.
struct Trained {
    first_gradients: Tensor,
    weights: Tensor,
    buffers: Vec<Tensor>,
    scalars: Vec<StepScalars>,
    state: Option<f64>,
}

/// A case of training: how the model is made, the batches, the loss, the samples at a time.
struct Case<'a, L: Learner> {
    make: &'a (dyn Fn(&Group) -> L + Sync),
    batches: &'a (dyn Fn() -> Vec<L::Batch> + Sync),
    layout: Layout,
    loss: &'a str,
    options: StepOptions,
    lr: f64,
}

fn train<L: Learner>(case: &Case<L>, group: &Group) -> Trained {
    let learner = (case.make)(group);
    let sgd = format!("{{kind: sgd, lr: {}, momentum: 0.9}}", case.lr);
    let optimizer = Optimizer::new(&parse(&sgd, "optim", &[]).unwrap(), &learner.parameters()).unwrap();
    let loss = Loss::new(&parse(case.loss, "loss", &[]).unwrap(), case.layout).unwrap();
    let mut stepper = Stepper::new(learner, optimizer, loss, case.options, Device::Cpu).unwrap().among(group);
    let own = share(SAMPLES as usize, group.rank(), group.size());
    let own = own.start as i64..own.end as i64;
    let (mut first, mut scalars) = (None, Vec::new());
    for batch in (case.batches)() {
        let packed = stepper.step(&L::part(&batch, own.clone()).unwrap(), case.lr, 0).unwrap();
        scalars.push(StepScalars::read(&packed).unwrap());
        first = first.or_else(|| Some(gradients(&stepper.model)));
    }
    Trained {
        first_gradients: first.unwrap(),
        weights: weights(&stepper.model),
        buffers: stepper.model.buffers().iter().map(|t| t.copy().to_kind(Kind::Double)).collect(),
        scalars,
        state: stepper.loss.state(),
    }
}

/// Twenty steps of several ranks, in float64, are those of one process: what rounding there is stays far below what a wrong
/// statistic, share or sum would make. The reference's average is stored as a float32.
fn is_one_process<L: Learner>(case: &Case<L>, sizes: &[usize]) {
    let alone = train(case, &Group::alone());
    let rounding = if case.loss.contains("reference") { 1e-6 } else { 1e-9 };
    for &size in sizes {
        for (rank, found) in together(size, |group| train(case, &group)).into_iter().enumerate() {
            let what = format!("{}, rank {rank} of {size}", case.loss);
            let off = apart(&found.first_gradients, &alone.first_gradients);
            assert!(off < 1e-10, "{what}: gradients {off:.1e}");
            let off = apart(&found.weights, &alone.weights);
            assert!(off < rounding, "{what}: weights {off:.1e}");
            for (a, b) in found.buffers.iter().zip(&alone.buffers) {
                assert!((a - b).abs().max().double_value(&[]) < rounding, "{what}: running statistics");
            }
            for (step, (a, b)) in found.scalars.iter().zip(&alone.scalars).enumerate() {
                assert_eq!(a.diagnostics.len(), b.diagnostics.len());
                let pairs = [(a.loss, b.loss), (a.grad_norm, b.grad_norm)].into_iter();
                let named = a.diagnostics.iter().zip(&b.diagnostics).map(|((_, a), (_, b))| (*a, *b));
                for (a, b) in pairs.chain(named) {
                    // Read in float32.
                    assert!((a - b).abs() <= 1e-5 * b.abs().max(1e-6), "{what}, step {step}: {a} {b}");
                }
            }
            assert_eq!(found.state.is_some(), alone.state.is_some());
            assert!(found.state.zip(alone.state).is_none_or(|(a, b)| (a / b - 1.0).abs() < 1e-6), "{what}: state");
        }
    }
}

fn vision(model: &str, views: Views, group: &Group) -> VisionModel {
    let model = Model::new(&parse(model, "model", &[]).unwrap(), 8).unwrap();
    model.encoder.store().to_kind(Kind::Double).unwrap();
    model.projector.store().to_kind(Kind::Double).unwrap();
    model.encoder.synchronise(group).unwrap();
    let made = VisionModel { model, views, channels_last: false };
    renew(&made);
    made
}

fn views() -> Vec<[Tensor; 2]> {
    (0..20).map(|step| images(step).map(|view| view.to_kind(Kind::Double))).collect()
}

const LOSSES: [&str; 5] = [
    "{kind: weince, tail: {min_points: 8}, beta: {kind: slope, min: 1, max: 4}, gate: {kappa_rho: 2.0}}",
    "{kind: infonce, tile: 3}",
    "{kind: weince, tile: 2, floor: shift, beta: {kind: hill}, gate: {evidence: likelihood, pivot: {absolute: 0.1}}}",
    "{kind: weince, beta: {kind: shrunk, global: {ema: {min_points: 20}}}, gate: {kappa_rho: 2.0}}",
    "{kind: reference, policy: hard_select, auto_weib_beta: true, min_tail_points: 12, use_weib_topm: true, weib_top_m: 5, \
      use_pl_topm: true, pl_top_m: 50}",
];

#[test]
fn steps_of_a_vision_transformer_are_those_of_one_process() {
    for (number, loss) in LOSSES.into_iter().enumerate() {
        let options = StepOptions { chunk: (number == 0).then_some(1), clip_norm: Some(1.0), ..Default::default() };
        let make = |group: &Group| vision(VIT, Views::Separate, group);
        let case = Case { make: &make, batches: &views, layout: Layout::TwoView, loss, options, lr: 0.02 };
        is_one_process(&case, if number == 0 { &[2, 4] } else { &[3] });
    }
}

#[test]
fn steps_of_a_resnet_with_synchronised_batch_norm_are_those_of_one_process() {
    for (views_pass, sizes) in [(Views::Separate, &[2, 3, 4][..]), (Views::Joint, &[3])] {
        let make = |group: &Group| vision(RESNET, views_pass, group);
        let options = StepOptions::default();
        // The net of eight images at its beginning is chaotic: with steps of 0.02 a rounding is 2e-2 of the weights after 20 of them.
        let lr = 1e-4;
        let case = Case { make: &make, batches: &views, layout: Layout::TwoView, loss: LOSSES[0], options, lr };
        is_one_process(&case, sizes);
    }
}

#[test]
fn steps_over_sentences_with_hard_negatives_are_those_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    // All write the same files.
    let one_at_a_time = Mutex::new(());
    let make = |_: &Group| {
        let _turn = one_at_a_time.lock().unwrap();
        let made: TextModel = text(folder.path(), 0.0);
        made.encoder.store().to_kind(Kind::Double).unwrap();
        made
    };
    let batches = || -> Vec<(Tokens, Option<Tokens>)> {
        (0..20).map(|step| (sentences(SAMPLES, 2 * step), Some(sentences(2 * SAMPLES, 2 * step + 1)))).collect()
    };
    for layout in [Layout::OneWay, Layout::BothWays] {
        for loss in [LOSSES[0], "{kind: infonce, temperature: 0.05}"] {
            let case = Case { make: &make, batches: &batches, layout, loss, options: StepOptions::default(), lr: 0.02 };
            is_one_process(&case, &[3]);
        }
    }
}

/// In bfloat16 the synchronised statistics are float32, as PyTorch's are: the step is that of one process to bfloat16's roundings.
#[test]
fn half_precision_goes_through_synchronised_batch_norm() {
    let make = |group: &Group| {
        let made = vision(RESNET, Views::Separate, group);
        made.model.encoder.store().to_kind(Kind::Float).unwrap();
        made.model.projector.store().to_kind(Kind::Float).unwrap();
        made
    };
    let batches = || (0..2).map(images).collect();
    let options = StepOptions { precision: Precision::Bf16, ..Default::default() };
    let case =
        Case { make: &make, batches: &batches, layout: Layout::TwoView, loss: "{kind: infonce}", options, lr: 0.02 };
    let alone = train(&case, &Group::alone());
    for found in together(2, |group| train(&case, &group)) {
        let off = (&found.first_gradients - &alone.first_gradients).norm() / alone.first_gradients.norm();
        assert!(off.double_value(&[]) < 0.05, "{off:?}");
        assert!((found.scalars[0].loss / alone.scalars[0].loss - 1.0).abs() < 0.01);
    }
}

#[test]
fn a_rank_that_fails_is_quoted_and_one_that_vanishes_is_named() {
    let begun = Instant::now();
    let said = together(3, |group| {
        if group.rank() == 1 {
            group.fail("the disk is full");
            return "the disk is full".to_string();
        }
        let error = (0..).find_map(|_| group.texts("still here").err()).unwrap();
        assert!(matches!(error, Error::Peer(_)), "{error}");
        error.to_string()
    });
    for rank in [0, 2] {
        assert_eq!(said[rank], "rank 1 stopped: the disk is full");
    }
    let said = together(3, |group| {
        if group.rank() == 2 {
            return String::new();
        }
        (0..).find_map(|_| group.any(false).err()).unwrap().to_string()
    });
    for rank in [0, 1] {
        assert!(said[rank].starts_with("rank 2 no longer answers; --resume"), "{}", said[rank]);
    }
    assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
}

#[test]
fn a_rank_that_is_busy_for_longer_than_the_timeout_is_named() {
    let said = within(Duration::from_secs(3), 2, |group| {
        if group.rank() == 1 {
            std::thread::sleep(Duration::from_secs(10));
        }
        group.any(false).unwrap_err().to_string()
    });
    assert_eq!(said[0], "rank 1 is busy with something else for longer than the timeout of 3 s");
    assert_eq!(said[1], "rank 0 gave up waiting for others");
}

#[test]
fn a_script_with_batch_normalisation_is_not_synchronised() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/script/net.pt");
    let error = Torchscript::load(&path, 8).unwrap().synchronise(&Group::alone()).unwrap_err();
    let said = error.to_string();
    assert!(error.exit_code() == 2 && said.contains("train.sync_batch_norm") && said.contains("with false"), "{said}");
}

#[test]
fn embeddings_that_do_not_fit_are_an_error_of_all_ranks() {
    let said = together(2, |group| {
        let loss = Loss::new(&parse("{kind: infonce}", "loss", &[]).unwrap(), Layout::TwoView).unwrap();
        let mut loss = loss.among(group.clone());
        let z = |rows: i64, width: i64| Tensor::ones([rows, width], (Kind::Float, Device::Cpu));
        let width = 3 + group.rank() as i64;
        let others = loss.forward(&z(2, width), &z(2, width)).unwrap_err().to_string();
        let ragged = loss.forward(&z(2, 3), &z(2 + group.rank() as i64, 3)).unwrap_err().to_string();
        // Nobody is out of step.
        loss.forward(&z(1, 3), &z(1, 3)).unwrap();
        (others, ragged)
    });
    for (others, ragged) in said {
        assert!(others.contains("rank 1: expected width 3"), "{others}");
        assert!(ragged.contains("rank 1: embeddings: expected two matrices"), "{ragged}");
    }
}
