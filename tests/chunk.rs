//! Batches in chunks: the step is that of the whole batch where nothing in it depends on the chunk, and what does depend on it is what
//! the documentation says.

use crate::rows::bert;
use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;
use tch::{Device, Kind, Tensor};
use weince::config::parse;
use weince::config::precision::Precision;
use weince::config::text_model::TextModelConfig;
use weince::config::vision::Views;
use weince::data::text::Tokens;
use weince::loss::{Layout, Loss};
use weince::model::{Model, SentenceEncoder};
use weince::optim::Optimizer;
use weince::train::{Learner, StepOptions, StepScalars, Stepper, TextModel, VisionModel};
use weince::{Error, Result};

pub(super) const SAMPLES: i64 = 8;
pub(super) const VIT: &str =
    "{encoder: {kind: vit_small, patch_size: 4, width: 24, depth: 2, heads: 2}, projector: {dim: 8}}";
pub(super) const RESNET: &str = "{encoder: {kind: resnet18, stem: small, width: 4}, projector: {dim: 8}}";

/// Notes the embeddings of every pass.
struct Noting<L> {
    learner: L,
    seen: RefCell<Vec<(Tensor, Tensor)>>,
}

impl<L: Learner> Learner for Noting<L> {
    type Batch = L::Batch;

    fn parameters(&self) -> Vec<(String, Tensor)> {
        self.learner.parameters()
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.learner.buffers()
    }

    fn samples(batch: &L::Batch) -> i64 {
        L::samples(batch)
    }

    fn part(batch: &L::Batch, samples: Range<i64>) -> Result<L::Batch> {
        L::part(batch, samples)
    }

    fn embed(&self, batch: &L::Batch) -> Result<(Tensor, Tensor)> {
        let (z_1, z_2) = self.learner.embed(batch)?;
        self.seen.borrow_mut().push((z_1.detach().copy(), z_2.detach().copy()));
        Ok((z_1, z_2))
    }
}

/// Numbers from 0 to 1 without pattern, others for every `salt`. LibTorch's generator is the process's, and other tests draw from it.
fn numbers(size: &[i64], salt: f64) -> Tensor {
    let count = size.iter().product::<i64>();
    let phases = Tensor::arange(count, (Kind::Double, Device::Cpu)) * 12.9898 + 78.233 * salt;
    (phases.sin() * 43758.5453).frac().abs().view(size)
}

/// Gives a model weights that tell samples apart: as it is drawn, a transformer makes nearly the same of all.
pub(super) fn renew<L: Learner>(model: &L) {
    let _guard = tch::no_grad_guard();
    for (number, (name, mut p)) in model.parameters().into_iter().enumerate() {
        let norm = name.contains("norm") && name.ends_with("weight");
        p.copy_(&((numbers(&p.size(), number as f64) - 0.5) * 0.6 + if norm { 1.0 } else { 0.0 }));
    }
}

fn vision(model: &str, views: Views) -> VisionModel {
    let small = model == VIT;
    let model = Model::new(&parse(model, "model", &[]).unwrap(), 8).unwrap();
    let made = VisionModel { model, views, channels_last: false };
    if small {
        renew(&made);
    }
    made
}

pub(super) fn images(salt: i64) -> [Tensor; 2] {
    [0, 1].map(|view| numbers(&[SAMPLES, 3, 8, 8], (2 * salt + view) as f64).to_kind(Kind::Float))
}

/// The little BERT of a folder.
pub(super) fn text(folder: &Path, dropped: f64) -> TextModel {
    let path = bert(folder, dropped);
    let config: TextModelConfig =
        parse(&format!("{{path: {path:?}, pooler: avg, max_length: 16}}"), "model", &[]).unwrap();
    let tokenizer = SentenceEncoder::tokenizer(&config).unwrap();
    let made = TextModel { encoder: SentenceEncoder::to_train(&config, &tokenizer).unwrap() };
    renew(&made);
    made
}

/// So many sentences of 3 to 7 tokens.
pub(super) fn sentences(count: i64, salt: i64) -> Tokens {
    let whole = |size: &[i64], from: i64, kinds: f64| (numbers(size, salt as f64) * kinds).to_kind(Kind::Int64) + from;
    let lengths = whole(&[count, 1], 3, 5.0);
    let mask = Tensor::arange(7, (Kind::Int64, Device::Cpu)).lt_tensor(&lengths);
    Tokens { ids: whole(&[count, 7], 5, 9.0), mask: Some(mask) }
}

fn stepper<L: Learner>(
    learner: L,
    layout: Layout,
    loss: &str,
    optim: &str,
    options: StepOptions,
) -> Stepper<Noting<L>> {
    let optimizer = Optimizer::new(&parse(optim, "optim", &[]).unwrap(), &learner.parameters()).unwrap();
    let loss = Loss::new(&parse(loss, "loss", &[]).unwrap(), layout).unwrap();
    let noting = Noting { learner, seen: RefCell::default() };
    Stepper::new(noting, optimizer, loss, options, Device::Cpu).unwrap()
}

fn flat(tensors: impl Iterator<Item = Tensor>) -> Tensor {
    Tensor::cat(&tensors.map(|t| t.detach().to_kind(Kind::Double).flatten(0, -1)).collect::<Vec<_>>(), 0)
}

pub(super) fn weights<L: Learner>(model: &L) -> Tensor {
    flat(model.parameters().into_iter().map(|(_, p)| p))
}

pub(super) fn gradients<L: Learner>(model: &L) -> Tensor {
    flat(model.parameters().into_iter().map(|(_, p)| p.grad()))
}

fn put<L: Learner>(from: &L, into: &L) {
    let _guard = tch::no_grad_guard();
    let all = |model: &L| model.parameters().into_iter().map(|(_, p)| p).chain(model.buffers()).collect::<Vec<_>>();
    all(from).iter().zip(all(into)).for_each(|(from, mut into)| into.copy_(from));
}

/// The largest distance, as a share of the largest number.
pub(super) fn apart(a: &Tensor, b: &Tensor) -> f64 {
    ((a - b).abs().max() / b.abs().max()).double_value(&[])
}

fn chunked(chunk: u32) -> StepOptions {
    StepOptions { chunk: Some(chunk), ..Default::default() }
}

/// Gradients and losses of a step, and weights after several, are those of whole batches, in float32 and float64.
///
/// Products over fewer rows are added up in another order, so that every number is off by some roundings of its kind (6e-8 and 1e-16);
/// the gradients by more, being sums of numbers that are larger and cancel. That float64 agrees to its own roundings
/// says that float32's distance is nothing else. SGD keeps it so; Adam, which divides a gradient by its size, would not. Tails
/// are of shortfalls, which are small where embeddings are near, and their estimates choose: they are compared in float64. The
/// reference's moving average is a float32.
fn equals_whole_batches<L: Learner>(
    make: &dyn Fn(Kind) -> L,
    batches: &dyn Fn(Kind) -> Vec<L::Batch>,
    layout: Layout,
    loss: &str,
) {
    let sgd = "{kind: sgd, lr: 0.1, momentum: 0.9}";
    let roundings = match loss.contains("infonce") {
        true => &[(Kind::Float, 1e-6, 1e-5), (Kind::Double, 1e-14, 1e-13)][..],
        false => &[(Kind::Double, 1e-8, 1e-10)],
    };
    for &(kind, close, of_gradients) in roundings {
        let batches = batches(kind);
        let mut whole = stepper(make(kind), layout, loss, sgd, StepOptions::default());
        let start = make(kind);
        put(&whole.model.learner, &start);
        let mut scalars = Vec::new();
        let mut first = None;
        for (number, batch) in batches.iter().enumerate() {
            let packed = whole.step(batch, 0.1, number as i64).unwrap();
            scalars.push(StepScalars::read(&packed).unwrap());
            first = first.or_else(|| Some(gradients(&whole.model)));
        }
        let (first, state) = (first.unwrap(), whole.loss.state());
        let moved = weights(&whole.model) - weights(&start);
        assert!(moved.abs().max().double_value(&[]) > 1e-4, "the steps moved nothing");
        for chunk in [1, 3, 5, 8, 64] {
            let learner = make(kind);
            put(&start, &learner);
            let mut parts = stepper(learner, layout, loss, sgd, chunked(chunk));
            for (number, batch) in batches.iter().enumerate() {
                let packed = parts.step(batch, 0.1, number as i64).unwrap();
                let (found, expected) = (StepScalars::read(&packed).unwrap(), &scalars[number]);
                // Read in float32, whatever they are.
                let same = |a: f64, b: f64| (a - b).abs() < 1e-4 * b.abs();
                assert!(same(found.loss, expected.loss), "{chunk}: {found:?} {expected:?}");
                assert!(same(found.grad_norm, expected.grad_norm), "{chunk}: {found:?} {expected:?}");
                assert_eq!(found.diagnostics.len(), expected.diagnostics.len());
                if number == 0 {
                    let off = apart(&gradients(&parts.model), &first);
                    assert!(off < of_gradients, "{kind:?}, chunk {chunk}: the gradients are {off:e} apart");
                }
            }
            let off = apart(&weights(&parts.model), &weights(&whole.model));
            assert!(off < close, "{kind:?}, chunk {chunk}: the weights are {off:e} apart");
            let states = (parts.loss.state(), state);
            let close = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-4;
            assert!(
                matches!(states, (None, None)) || matches!(states, (Some(a), Some(b)) if close(a, b)),
                "{states:?}"
            );
            let passes = if i64::from(chunk) < SAMPLES { 2 * (SAMPLES as usize).div_ceil(chunk as usize) } else { 1 };
            assert_eq!(parts.model.seen.borrow().len(), batches.len() * passes);
            if passes == 1 {
                assert!(weights(&parts.model).equal(&weights(&whole.model)), "chunk {chunk}: not to the bit");
            }
        }
    }
}

#[test]
fn steps_of_a_vision_transformer_are_those_of_whole_batches() {
    let images: Vec<[Tensor; 2]> = (0..4).map(images).collect();
    let batches = |kind| images.iter().map(|views| views.each_ref().map(|view| view.to_kind(kind))).collect();
    let make = |kind: Kind, views| {
        let made = vision(VIT, views);
        made.model.encoder.store().to_kind(kind).unwrap();
        made.model.projector.store().to_kind(kind).unwrap();
        made
    };
    for views in [Views::Separate, Views::Joint] {
        for loss in [
            "{kind: infonce}",
            "{kind: weince, tail: {min_points: 8}, beta: {kind: slope, min: 1, max: 4}}",
            "{kind: reference, policy: weibit, auto_weib_beta: true, min_tail_points: 4, r2_min: 0.0}",
        ] {
            equals_whole_batches(&|kind| make(kind, views), &batches, Layout::TwoView, loss);
        }
    }
}

#[test]
fn steps_over_sentences_are_those_of_whole_batches() {
    let folder = tempfile::tempdir().unwrap();
    let make = |kind: Kind| {
        let made = text(folder.path(), 0.0);
        made.encoder.store().to_kind(kind).unwrap();
        made
    };
    let infonce = "{kind: infonce, temperature: 0.2}";
    let weince = "{kind: weince, temperature: 0.2, tail: {min_points: 5}}";
    let tokens = |count: Option<i64>| {
        let pair = |salt| (sentences(SAMPLES, salt), count.map(|count| sentences(count, salt + 4)));
        (0..4).map(pair).collect::<Vec<_>>()
    };
    // Alone, a sentence passes twice, and without dropout is its own twin. Hard negatives, one a sentence, are behind the positives.
    let (alone, pairs, triples) = (tokens(None), tokens(Some(SAMPLES)), tokens(Some(2 * SAMPLES)));
    for (batches, layout, loss) in [
        (&alone, Layout::OneWay, infonce),
        (&pairs, Layout::OneWay, infonce),
        (&pairs, Layout::BothWays, infonce),
        (&triples, Layout::OneWay, infonce),
        (&triples, Layout::BothWays, infonce),
        (&triples, Layout::OneWay, weince),
    ] {
        let whole = |_| batches.iter().map(|batch| TextModel::part(batch, 0..SAMPLES).unwrap()).collect();
        equals_whole_batches(&make, &whole, layout, loss);
    }
}

#[test]
fn hard_negatives_stay_with_their_sentences() {
    let ids = |rows: &[i64]| Tokens { ids: Tensor::from_slice(rows).view([-1, 1]), mask: None };
    let batch = (ids(&[0, 1, 2]), Some(ids(&[10, 11, 12, 20, 21, 22])));
    let (first, second) = TextModel::part(&batch, 1..3).unwrap();
    assert!(first.ids.equal(&ids(&[1, 2]).ids) && second.unwrap().ids.equal(&ids(&[11, 12, 21, 22]).ids));
    assert!(TextModel::part(&batch, 2..4).is_err());
    assert_eq!(TextModel::samples(&batch), 3);
}

/// Tries until a try holds. The generator is the process's, and other tests draw from it at the same time: some of many tries are undisturbed.
fn undisturbed(holds: impl Fn() -> bool) -> bool {
    (0..200).any(|_| holds())
}

#[test]
fn dropout_is_the_same_in_both_passes_and_another_in_each_chunk() {
    let folder = tempfile::tempdir().unwrap();
    let start = text(folder.path(), 0.2);
    // Equal sentences: what differs between chunks is dropout.
    let one = sentences(1, 0);
    let same = |t: &Tensor| t.repeat([SAMPLES, 1]);
    let batch = (Tokens { ids: same(&one.ids), mask: one.mask.as_ref().map(same) }, None);
    let adam = "{kind: adam, lr: 1.0e-3}";
    let run = |chunk: Option<u32>, precision: Precision| {
        let learner = text(folder.path(), 0.2);
        put(&start, &learner);
        let options = StepOptions { chunk, precision, ..Default::default() };
        let mut stepper = stepper(learner, Layout::OneWay, "{kind: infonce}", adam, options);
        let packed: Vec<Tensor> = (0..2).map(|step| stepper.step(&batch, 1e-3, step).unwrap()).collect();
        (weights(&stepper.model), Tensor::cat(&packed, 0).nan_to_num(0.0, None, None), stepper.model.seen.into_inner())
    };
    for precision in [Precision::Fp32, Precision::Bf16] {
        assert!(undisturbed(|| {
            let (_, _, seen) = run(Some(3), precision);
            assert_eq!(seen.len(), 2 * 2 * 3);
            [0, 6].iter().all(|step| {
                (0..3).all(|number| {
                    let (one, two) = (&seen[step + number], &seen[step + number + 3]);
                    one.0.equal(&two.0) && one.1.equal(&two.1)
                })
            })
        }));
    }
    let (_, _, seen) = run(Some(3), Precision::Fp32);
    for (a, b) in [(0, 1), (1, 2), (0, 6)] {
        assert!(!seen[a].0.get(0).equal(&seen[b].0.get(0)), "passes {a} and {b} drop the same");
    }
    assert!(!seen[0].0.get(0).equal(&seen[0].1.get(0)));
    let equal = |a: Option<u32>, b: Option<u32>| {
        undisturbed(|| {
            let (a, b) = (run(a, Precision::Fp32), run(b, Precision::Fp32));
            a.0.equal(&b.0) && a.1.equal(&b.1)
        })
    };
    assert!(equal(Some(3), Some(3)), "two runs differ");
    for chunk in [8, 9, 64] {
        assert!(equal(Some(chunk), None), "a chunk of {chunk} is not the whole batch");
    }
}

/// A layer's running statistics by hand: of the mean and the unbiased variance of each channel's values, momentum 0.1.
fn moved(images: &Tensor, before: &(Tensor, Tensor)) -> (Tensor, Tensor) {
    let values = images.to_kind(Kind::Double).transpose(0, 1).flatten(1, -1);
    let (mean, var) = (values.mean_dim(1, false, Kind::Double), values.var_dim(1, true, false));
    (&before.0 * 0.9 + mean * 0.1, &before.1 * 0.9 + var * 0.1)
}

#[test]
fn running_statistics_are_the_mean_of_what_each_chunk_makes_of_them() {
    let batch = images(0);
    for (views, passes) in [(Views::Separate, 2), (Views::Joint, 1)] {
        let mut stepper =
            stepper(vision(RESNET, views), Layout::TwoView, "{kind: infonce}", "{kind: adam}", chunked(3));
        let state = |stepper: &Stepper<Noting<VisionModel>>, name: &str| {
            let all = stepper.model.learner.model.state_dict();
            all.into_iter().find(|(n, _)| n == &format!("encoder.{name}")).unwrap().1.copy()
        };
        // What the first layer normalises does not depend on other layers: the first convolution's output.
        let filter = state(&stepper, "conv1.weight");
        let seen = |images: &Tensor| images.conv2d(&filter, None::<&Tensor>, 1, 1, 1, 1);
        let double = |stepper: &Stepper<Noting<VisionModel>>, name: &str| state(stepper, name).to_kind(Kind::Double);
        let before = (double(&stepper, "bn1.running_mean"), double(&stepper, "bn1.running_var"));
        let (mut mean, mut var) = (before.0.zeros_like(), before.0.zeros_like());
        for samples in [0..3, 3..6, 6..8] {
            let length = samples.end - samples.start;
            let [one, two] = [0, 1].map(|view: usize| seen(&batch[view].narrow(0, samples.start, length)));
            let (m, v) = match views {
                Views::Separate => moved(&two, &moved(&one, &before)),
                Views::Joint => moved(&Tensor::cat(&[one, two], 0), &before),
            };
            mean += m * (length as f64 / 8.0);
            var += v * (length as f64 / 8.0);
        }
        let _ = stepper.step(&batch, 1e-3, 0).unwrap();
        // float32's rounding of sums of some hundred terms.
        assert!(apart(&double(&stepper, "bn1.running_mean"), &mean) < 1e-6, "{views:?}");
        assert!(apart(&double(&stepper, "bn1.running_var"), &var) < 1e-6, "{views:?}");
        for name in ["bn1", "layer1.0.bn2", "layer4.1.bn2", "layer2.0.downsample.1"] {
            assert_eq!(state(&stepper, &format!("{name}.num_batches_tracked")).int64_value(&[]), passes, "{name}");
        }
        let _ = stepper.step(&batch, 1e-3, 1).unwrap();
        assert_eq!(state(&stepper, "bn1.num_batches_tracked").int64_value(&[]), 2 * passes);
    }
}

/// Each chunk alone, as a batch of its own from the same state, in every layer.
#[test]
fn statistics_of_all_layers_are_those_of_chunks_passed_alone() {
    let batch = images(0);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/script/net.pt");
    let script = format!("{{encoder: {{kind: torchscript, path: {script:?}}}, projector: {{dim: 8}}}}");
    for model in [RESNET, &script] {
        let start = vision(model, Views::Separate);
        let mut stepper =
            stepper(vision(model, Views::Separate), Layout::TwoView, "{kind: infonce}", "{kind: adam}", chunked(5));
        put(&start, &stepper.model.learner);
        let _ = stepper.step(&batch, 1e-3, 0).unwrap();
        let mut expected: Vec<Tensor> = start.buffers().iter().map(|t| t.zeros_like().to_kind(Kind::Double)).collect();
        for samples in [0..5, 5..8] {
            let share = (samples.end - samples.start) as f64 / 8.0;
            let alone = vision(model, Views::Separate);
            put(&start, &alone);
            let _ = tch::no_grad(|| alone.embed(&VisionModel::part(&batch, samples).unwrap())).unwrap();
            alone.buffers().iter().zip(&mut expected).for_each(|(t, sum)| *sum += t.to_kind(Kind::Double) * share);
        }
        let found = stepper.model.learner.buffers();
        assert!(!found.is_empty());
        let changed = found.iter().zip(start.buffers()).filter(|(now, before)| !now.equal(before)).count();
        assert!(changed >= 3, "{changed} buffers moved");
        for (number, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let off = (found.to_kind(Kind::Double) - expected).abs().max().double_value(&[]);
            assert!(off < 1e-6 * (1.0 + expected.abs().max().double_value(&[])), "{number}: {off:e}");
        }
    }
}

#[test]
fn a_broken_step_is_explained_in_chunks() {
    let mut stepper =
        stepper(vision(VIT, Views::Separate), Layout::TwoView, "{kind: infonce}", "{kind: adam}", chunked(3));
    let [one, two] = images(0);
    let batch = [one, two.index_fill(0, &Tensor::from_slice(&[4i64]), f64::NAN)];
    let start = weights(&stepper.model);
    let told = StepScalars::read(&stepper.step(&batch, 1e-3, 7).unwrap()).unwrap();
    assert!(told.halted && told.loss.is_nan(), "{told:?}");
    assert!(weights(&stepper.model).equal(&start));
    let said = stepper.explain(&batch, 7).unwrap();
    // The row's number is that of the batch and not of its chunk.
    assert!(said.contains("z_j") && said.contains(": 4"), "{said}");
}

/// What a step needs of an optimizer in float16: gradients of the scaled loss, brought back.
#[test]
fn float16s_scale_reaches_the_second_pass() {
    let batch = images(0);
    let options = |chunk, precision| StepOptions { chunk, precision, ..Default::default() };
    let start = vision(VIT, Views::Separate);
    let gradient = |chunk, precision| {
        let learner = vision(VIT, Views::Separate);
        put(&start, &learner);
        let mut stepper =
            stepper(learner, Layout::TwoView, "{kind: infonce}", "{kind: adam}", options(chunk, precision));
        if let Some(scaler) = stepper.scaler_mut() {
            let state = [("scale", weince::checkpoint::Value::from(1024.0)), ("_growth_tracker", 0.into())];
            scaler.load_state_dict(&weince::checkpoint::Value::dict(state)).unwrap();
        }
        let told = StepScalars::read(&stepper.step(&batch, 1e-3, 0).unwrap()).unwrap();
        assert!(!told.halted && told.diagnostics.iter().all(|(name, value)| *name != "skipped_steps" || *value == 0.0));
        gradients(&stepper.model)
    };
    let full = gradient(None, Precision::Fp32);
    for precision in [Precision::Fp16, Precision::Bf16] {
        let (whole, parts) = (gradient(None, precision), gradient(Some(3), precision));
        // Parameters' gradients of several chunks are added in float32; each chunk's own are off by the precision's rounding (8 bits, 11 bits).
        let (off, between) = (apart(&whole, &full), apart(&parts, &whole));
        assert!(between < 2.0 * off + 1e-6 && off < 0.1, "{precision:?}: {off:e}, {between:e}");
    }
}

#[test]
fn chunks_that_cannot_be_are_refused() {
    let model = || vision(RESNET, Views::Separate);
    let optimizer = Optimizer::new(&parse("{kind: adam}", "optim", &[]).unwrap(), &model().parameters()).unwrap();
    let loss = Loss::new(&parse("{kind: infonce}", "loss", &[]).unwrap(), Layout::TwoView).unwrap();
    let e = Stepper::new(model(), optimizer, loss, chunked(0), Device::Cpu).err().unwrap();
    assert!(e.to_string().contains("at least 1 sample"), "{e}");
    // Images of 8 pixels are one value a channel in the last stage.
    for (chunk, number, better) in [(7, "chunk 2 of 2", 8), (1, "chunk 1 of 8", 2)] {
        let mut stepper = stepper(model(), Layout::TwoView, "{kind: infonce}", "{kind: adam}", chunked(chunk));
        let e = stepper.step(&images(0), 1e-3, 0).unwrap_err();
        let said = e.to_string();
        assert!(matches!(e, Error::Config(_)) && said.contains(&format!("train.chunk: {chunk}")), "{said}");
        assert!(
            said.contains(number) && said.contains("of 8 samples") && said.contains("batch normalisation"),
            "{said}"
        );
        assert!(said.contains(&format!("With {better} ")), "{said}");
    }
}
