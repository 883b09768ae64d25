//! Optimizers against torch.optim (to the bit) and a plain LARS; schedules against torch's; skipping and saving.

use crate::formula::symmetric;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tch::{Device, Kind, Tensor};
use weince::checkpoint::Value;
use weince::config::optim::{OptimConfig, ScheduleConfig};
use weince::optim::{GradScaler, Optimizer, Schedule};

#[derive(Deserialize)]
struct Golden {
    cpu_capability: String,
    shapes: Vec<Vec<i64>>,
    rates: Vec<f64>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    config: String,
    dtype: String,
    /// Whether the first parameter gets no gradient in the first two steps.
    late: bool,
    params: Vec<Vec<f64>>,
    state: BTreeMap<String, Vec<f64>>,
}

fn golden<T: for<'a> Deserialize<'a>>(name: &str) -> T {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/optim").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn optimizer(config: &str, params: &[(String, Tensor)]) -> Optimizer {
    let config: OptimConfig = weince::config::parse(config, "test", &[]).unwrap();
    Optimizer::new(&config, params).unwrap()
}

fn parameters(shapes: &[Vec<i64>], kind: Kind) -> Vec<(String, Tensor)> {
    let make = |(i, s): (usize, &Vec<i64>)| {
        (format!("p{i}"), symmetric(i as u64, s, 1.0).to_kind(kind).set_requires_grad(true))
    };
    shapes.iter().enumerate().map(make).collect()
}

/// Gives each parameter the gradient of the golden run, or `value` everywhere.
fn set_gradients(params: &[(String, Tensor)], step: usize, skip_first: bool, value: Option<f64>) {
    for (i, (_, p)) in params.iter().enumerate() {
        if skip_first && i == 0 {
            continue;
        }
        let mut g = symmetric((100 + 10 * step + i) as u64, &p.size(), 1.0).to_kind(p.kind());
        if let Some(v) = value {
            g = g.full_like(v);
        }
        (p * g).sum(p.kind()).backward();
    }
}

fn values(t: &Tensor) -> Vec<f64> {
    Vec::<f64>::try_from(t.detach().to_kind(Kind::Double).reshape([-1])).unwrap()
}

fn assert_equal(what: &str, expected: &[f64], found: &[f64], tolerance: f64) {
    assert_eq!(expected.len(), found.len(), "{what}");
    for (i, (e, f)) in expected.iter().zip(found).enumerate() {
        let bound = tolerance * e.abs().max(1.0);
        assert!((e - f).abs() <= bound, "{what}[{i}]: expected {e:e}, found {f:e}");
    }
}

#[test]
fn steps_equal_those_of_torch() {
    let golden: Golden = golden("steps.json");
    let same_kernels = golden.cpu_capability == weince::torch::cpu_capability().unwrap();
    for case in &golden.cases {
        let what = format!("{} {} late={}", case.name, case.dtype, case.late);
        let (kind, epsilon) = match case.dtype.as_str() {
            "float32" => (Kind::Float, f32::EPSILON as f64),
            _ => (Kind::Double, f64::EPSILON),
        };
        // The fused kernels are the very same ones, so equal to the bit; with vector instructions of another width
        // their last bits may differ. LARS is written differently there: six steps of rounding.
        let fused = !case.name.starts_with("lars");
        let tolerance = if fused && same_kernels { 0.0 } else { 8.0 * epsilon };
        let params = parameters(&golden.shapes, kind);
        let mut optimizer = optimizer(&case.config, &params);
        for (step, &rate) in golden.rates.iter().enumerate() {
            optimizer.zero_grad().unwrap();
            set_gradients(&params, step, case.late && step < 2, None);
            optimizer.step(rate, None).unwrap();
        }
        for (expected, (name, p)) in case.params.iter().zip(&params) {
            assert_equal(&format!("{what} {name}"), expected, &values(p), tolerance);
        }
        let state: BTreeMap<String, Vec<f64>> =
            optimizer.state().iter().map(|(name, t)| (name.clone(), values(t))).collect();
        assert_eq!(state.keys().collect::<Vec<_>>(), case.state.keys().collect::<Vec<_>>(), "{what}");
        for (name, expected) in &case.state {
            assert_equal(&format!("{what} {name}"), expected, &state[name], tolerance);
        }
    }
}

/// One configuration of each rule, with everything switched on.
const ALL: [&str; 4] = [
    "{kind: adam, weight_decay: 0.1}",
    "{kind: adamw, exclude_bias_and_norm: true}",
    "{kind: sgd, momentum: 0.9, nesterov: true, weight_decay: 0.1}",
    "{kind: lars, lr: 1, weight_decay: 0.1}",
];

fn shapes() -> Vec<Vec<i64>> {
    vec![vec![5, 7], vec![7], vec![40]]
}

fn everything(optimizer: &Optimizer, params: &[(String, Tensor)]) -> Vec<Vec<f64>> {
    let state = optimizer.state();
    params.iter().chain(&state).map(|(_, t)| values(t)).collect()
}

#[test]
fn a_step_with_non_finite_gradients_is_skipped_as_if_it_had_not_been() {
    let flag = |x: f64| Tensor::full([0i64; 0], x, (Kind::Float, Device::Cpu));
    for config in ALL {
        let run = |bad_steps: &[usize]| {
            let params = parameters(&shapes(), Kind::Float);
            let mut optimizer = optimizer(config, &params);
            for step in 0..4 {
                if bad_steps.contains(&step) {
                    for bad in [f64::NAN, f64::INFINITY] {
                        optimizer.zero_grad().unwrap();
                        set_gradients(&params, step, false, Some(bad));
                        let before = everything(&optimizer, &params);
                        optimizer.step(0.1, Some(&flag(1.0))).unwrap();
                        assert_eq!(before, everything(&optimizer, &params), "{config}");
                    }
                }
                optimizer.zero_grad().unwrap();
                set_gradients(&params, step, false, None);
                optimizer.step(0.1, Some(&flag(0.0))).unwrap();
            }
            everything(&optimizer, &params)
        };
        // The very first step matters most: momentum is set up there.
        assert_eq!(run(&[]), run(&[0, 2]), "{config}");
    }
}

#[test]
fn a_saved_state_continues_the_same_series() {
    for config in ALL {
        let train = |params: &[(String, Tensor)], optimizer: &mut Optimizer, steps: std::ops::Range<usize>| {
            for step in steps {
                optimizer.zero_grad().unwrap();
                set_gradients(params, step, false, None);
                optimizer.step(0.1, None).unwrap();
            }
        };
        let params = parameters(&shapes(), Kind::Float);
        let mut whole = optimizer(config, &params);
        train(&params, &mut whole, 0..3);
        let saved: Vec<(String, Tensor)> = whole.state().iter().map(|(n, t)| (n.clone(), t.copy())).collect();
        let resumed: Vec<(String, Tensor)> =
            params.iter().map(|(n, t)| (n.clone(), t.detach().copy().set_requires_grad(true))).collect();
        train(&params, &mut whole, 3..5);
        let mut second = optimizer(config, &resumed);
        second.load_state(&saved).unwrap();
        train(&resumed, &mut second, 3..5);
        assert_eq!(everything(&whole, &params), everything(&second, &resumed), "{config}");

        let mut third = optimizer(config, &resumed);
        let before = everything(&third, &resumed);
        let mut wrong = third.state();
        wrong.pop();
        assert!(third.load_state(&wrong).unwrap_err().to_string().contains("missing"));
        let mut wrong = third.state().iter().map(|(n, t)| (n.clone(), t.copy())).collect::<Vec<_>>();
        wrong[0].0.push('x');
        assert!(third.load_state(&wrong).unwrap_err().to_string().contains("unknown"));
        wrong = third.state();
        wrong[1].1 = Tensor::zeros([3, 3], (Kind::Float, Device::Cpu));
        assert!(third.load_state(&wrong).unwrap_err().to_string().contains("[3, 3]"));
        assert_eq!(before, everything(&third, &resumed));
    }
}

#[test]
fn lars_takes_ratio_one_where_a_norm_is_zero() {
    let ones = |x: f64| Tensor::full([2, 2], x, (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let params = [("zero weight".to_string(), ones(0.0)), ("zero gradient".to_string(), ones(2.0))];
    let mut optimizer = optimizer("{kind: lars, lr: 1, weight_decay: 0.1}", &params);
    (&params[0].1 * 3.0 + &params[1].1 * 0.0).sum(Kind::Float).backward();
    optimizer.step(0.5, None).unwrap();
    assert_eq!(values(&params[0].1), [-1.5; 4]);
    // Decay alone: 2 - 0.5 * (0.1 * 2).
    assert_equal("decay", &[1.9; 4], &values(&params[1].1), 1e-6);
}

#[test]
fn what_an_optimizer_cannot_serve_is_refused() {
    let config: OptimConfig = weince::config::parse("kind: adam", "test", &[]).unwrap();
    let text = |params: &[(String, Tensor)]| Optimizer::new(&config, params).err().unwrap().to_string();
    assert!(text(&[]).contains("at least one"));
    let mut mixed = parameters(&shapes(), Kind::Float);
    mixed[1].1 = mixed[1].1.to_kind(Kind::Double);
    assert!(text(&mixed).contains("`p1` is Double"));

    let params = parameters(&shapes(), Kind::Float);
    let mut o = optimizer("kind: adam", &params);
    for rate in [f64::NAN, f64::INFINITY, -1.0] {
        assert!(o.step(rate, None).unwrap_err().to_string().contains("rate"));
    }
    for flag in [Tensor::zeros([1], (Kind::Float, Device::Cpu)), Tensor::from(0i64)] {
        assert!(o.step(0.1, Some(&flag)).unwrap_err().to_string().contains("found_inf"));
    }
}

#[test]
fn schedules_equal_those_of_torch() {
    #[derive(Deserialize)]
    struct Golden {
        config: String,
        base: f64,
        total: u64,
        rates: Vec<f64>,
    }
    for case in golden::<Vec<Golden>>("schedules.json") {
        let config: ScheduleConfig = weince::config::parse(&case.config, "test", &[]).unwrap();
        let schedule = Schedule::new(&config, case.base, 10, case.total).unwrap();
        let found: Vec<f64> = (0..case.total).map(|t| schedule.lr(t)).collect();
        // torch computes each rate from the one before: its rounding adds up over the steps.
        for (t, (e, f)) in case.rates.iter().zip(&found).enumerate() {
            assert!((e - f).abs() <= 1e-12 * case.base, "{} step {t}: {e:e} {f:e}", case.config);
        }
    }
}

#[derive(Deserialize)]
struct ScalerGolden {
    start: [Vec<f32>; 2],
    state: serde_json::Value,
    steps: Vec<ScalerStep>,
}

#[derive(Deserialize)]
struct ScalerStep {
    grads: [Vec<f32>; 2],
    overflow: bool,
    set_tracker: Option<u64>,
    scale: f64,
    growth_tracker: u64,
    params: [Vec<f32>; 2],
}

#[test]
fn the_scaler_is_pytorchs_step_by_step() {
    let golden: ScalerGolden = golden("scaler.json");
    let leaf = |values: &Vec<f32>| Tensor::from_slice(values).set_requires_grad(true);
    let params: Vec<(String, Tensor)> = golden.start.iter().map(|v| (format!("p{}", v.len()), leaf(v))).collect();
    let mut optimizer = optimizer("{kind: adamw, lr: 0.01}", &params);
    let mut scaler = GradScaler::new(Device::Cpu).unwrap();
    let get = |scaler: &GradScaler, key: &str| scaler.state_dict().unwrap().get(key).unwrap().as_f64().unwrap();
    assert_eq!((get(&scaler, "scale"), get(&scaler, "_growth_tracker")), (65536.0, 0.0));
    scaler.load_state_dict(&Value::from_json(golden.state)).unwrap();
    let mut skipped = 0.0;
    for (i, step) in golden.steps.iter().enumerate() {
        if let Some(tracker) = step.set_tracker {
            let scale = get(&scaler, "scale");
            let state = Value::dict([
                ("scale", Value::from(scale)),
                ("_growth_tracker", tracker.into()),
                ("skipped_steps", skipped.into()),
            ]);
            scaler.load_state_dict(&state).unwrap();
        }
        optimizer.zero_grad().unwrap();
        // The loss whose gradient these numbers are; an overflow comes from the backward pass.
        let terms = params.iter().zip(&step.grads).map(|((_, p), g)| (p * Tensor::from_slice(g)).sum(Kind::Float));
        let loss = terms.reduce(|a, b| a + b).unwrap();
        scaler.scale(&loss).unwrap().backward();
        let grads: Vec<Tensor> = params.iter().map(|(_, p)| p.grad()).collect();
        if step.overflow {
            let bad = if i == 3 { f64::NAN } else { f64::INFINITY };
            let _ = grads[i % 2].get(1).fill_(bad);
        }
        let found = scaler.unscale(&grads).unwrap();
        assert_eq!(found.double_value(&[]) != 0.0, step.overflow, "step {i}");
        optimizer.step(0.01, Some(&found)).unwrap();
        scaler.update(&found).unwrap();
        skipped += f64::from(step.overflow);
        assert_eq!(get(&scaler, "scale"), step.scale, "step {i}");
        assert_eq!(get(&scaler, "_growth_tracker"), step.growth_tracker as f64, "step {i}");
        assert_eq!(get(&scaler, "skipped_steps"), skipped, "step {i}");
        for ((_, p), expected) in params.iter().zip(&step.params) {
            let gap = (p - Tensor::from_slice(expected)).abs().max().double_value(&[]);
            // PyTorch ran its own loop over the parameters and not the fused kernel: some roundings a step.
            assert!(gap < 1e-6, "step {i}: {gap}");
        }
    }
    for state in [Value::None, Value::dict([("scale", Value::from(0.0)), ("_growth_tracker", 1.into())])] {
        assert!(scaler.load_state_dict(&state).unwrap_err().to_string().contains("positive `scale`"));
    }
}

#[test]
fn a_state_dict_in_pytorchs_form_comes_back() {
    for config in [
        "{kind: adamw, exclude_bias_and_norm: true}",
        "{kind: sgd, lr: 1, momentum: 0.9}",
        "{kind: sgd, lr: 1}",
        "{kind: lars, lr: 1}",
    ] {
        let shapes = [vec![3, 2], vec![4], vec![2, 2], vec![5]];
        let make = || {
            let params = parameters(&shapes, Kind::Float);
            (optimizer(config, &params), params)
        };
        let (mut first, params) = make();
        for step in 0..2 {
            first.zero_grad().unwrap();
            set_gradients(&params, step, false, None);
            first.step(0.01, None).unwrap();
        }
        let saved = first.state_dict(0.01);
        let (mut second, _) = make();
        second.load_state_dict(&saved).unwrap();
        for ((name, a), (_, b)) in first.state().iter().zip(&second.state()) {
            assert!(a == b, "{config}: {name}");
        }
        // Other groups, other names, nothing at all.
        let (mut third, _) = make();
        for (broken, part) in [
            (Value::None, "state_dict()"),
            (Value::dict([("state", Value::Dict(vec![])), ("param_groups", Value::List(vec![]))]), "0 groups"),
        ] {
            assert!(third.load_state_dict(&broken).unwrap_err().to_string().contains(part));
        }
        let params: Vec<(String, Tensor)> =
            parameters(&shapes, Kind::Float).into_iter().map(|(n, t)| (format!("x{n}"), t)).collect();
        let e = optimizer(config, &params).load_state_dict(&saved).unwrap_err().to_string();
        assert!(e.contains("expected `xp"), "{config}: {e}");
    }
}
