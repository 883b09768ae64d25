//! The state of a run as one value of plain types, which `torch.load(weights_only=True)` opens: everything that the run's next
//! step depends on, here or in Python.
//!
//! | key | what it is |
//! |---|---|
//! | `model` | the encoder's state_dict, with the names of the library that it is from |
//! | `projector` | the projector's state_dict, where there is a projector |
//! | `optimizer` | what the `torch.optim` class's `load_state_dict` takes; parameters are those of `model`, then of `projector` |
//! | `scheduler` | what `LambdaLR.load_state_dict` takes |
//! | `scaler` | what `GradScaler.load_state_dict` takes; empty without float16 |
//! | `loss_state` | `beta_ema`, the moving average of the reference loss, or None |
//! | `step`, `epoch` | updates and whole epochs behind this state |
//! | `sampler` | `epoch`, `position` in it in images, `batch_size`, the number of `images` or `sentences`, and `list_sha256` of what tells them from others |
//! | `seeds` | `run`, and `step`: what LibTorch's generators are seeded with before the next step |
//! | `rng` | states of the generators as that seed makes them: `cpu`, and `cuda` where the run is there |
//! | `best` | `value` and `step` of the best evaluation, or None |
//! | `config`, `versions` | the resolved configuration without `data.threads`; weince, LibTorch, and this format |

use super::plan::{Best, Plan, TakenUp};
use super::task::Task;
use crate::checkpoint::{Series, Value, torch_file};
use crate::config::run::RunConfig;
use crate::error::{Error, Result};
use crate::torch::{generator_state, libtorch_version};
use std::path::Path;

const FORMAT: u64 = 1;

/// The state after `step` updates. LibTorch's generators are left seeded for the next step.
///
/// # Errors
/// Whatever LibTorch reports.
pub fn capture<T: Task>(plan: &Plan<T>, step: u64) -> Result<Value> {
    let stepper = &plan.stepper;
    let lr = plan.schedule.lr(step);
    let seed = plan.step_seed(step);
    tch::manual_seed(seed);
    let mut rng = vec![("cpu", Value::from(generator_state(tch::Device::Cpu)?))];
    if plan.device.is_cuda() {
        rng.push(("cuda", generator_state(plan.device)?.into()));
    }
    let optimizer = stepper.optimizer.state_dict(lr);
    let groups = optimizer.get("param_groups").and_then(Value::elements).map_or(0, <[Value]>::len);
    let each = |rate: Option<f64>| Value::List((0..groups).map(|_| rate.map_or(Value::None, Value::from)).collect());
    let scheduler = Value::dict([
        ("base_lrs", each(Some(plan.config.common().optim.lr()))),
        ("last_epoch", step.into()),
        ("_step_count", (step + 1).into()),
        ("_is_initial", false.into()),
        ("_get_lr_called_within_step", false.into()),
        ("_last_lr", each(Some(lr))),
        ("lr_lambdas", each(None)),
    ]);
    let mut config = serde_json::to_value(&plan.config).map_err(|e| Error::Input(format!("checkpoint: {e}")))?;
    // The number of loader threads belongs to the machine, and changes no byte of the run.
    if let Some(data) = config.get_mut("data").and_then(serde_json::Value::as_object_mut) {
        data.remove("threads");
    }
    let in_epoch = step % plan.steps_per_epoch;
    let parts = T::parts(&stepper.model).into_iter();
    let mut state: Vec<(&str, Value)> =
        parts.map(|(key, store)| (key, Value::state_dict(store.state_dict()))).collect();
    state.extend([
        ("optimizer", optimizer),
        ("scheduler", scheduler),
        ("scaler", stepper.scaler().map_or(Ok(Value::Dict(vec![])), |s| s.state_dict())?),
        ("loss_state", Value::dict([("beta_ema", stepper.loss.state().map_or(Value::None, Value::from))])),
        ("step", step.into()),
        ("epoch", (step / plan.steps_per_epoch).into()),
        (
            "sampler",
            Value::dict([
                ("epoch", Value::from(step / plan.steps_per_epoch)),
                ("position", (in_epoch * plan.config.common().batch_size as u64).into()),
                ("batch_size", (plan.config.common().batch_size as u64).into()),
                (T::UNIT, (plan.task.samples() as u64).into()),
                ("list_sha256", plan.task.list_sha256().into()),
            ]),
        ),
        ("code_sha256", plan.code_sha256.as_deref().map_or(Value::None, Value::from)),
        ("seeds", Value::dict([("run", Value::from(plan.config.common().seed)), ("step", seed.into())])),
        ("rng", Value::dict(rng)),
        (
            "best",
            plan.best.map_or(Value::None, |b| {
                let measure = plan.task.measure().map_or(Value::None, Value::from);
                Value::dict([("value", Value::from(b.value)), ("step", b.step.into()), ("measure", measure)])
            }),
        ),
        ("config", Value::from_json(config)),
        (
            "versions",
            Value::dict([
                ("checkpoint", Value::from(FORMAT)),
                ("weince", env!("CARGO_PKG_VERSION").into()),
                ("libtorch", libtorch_version().into()),
            ]),
        ),
    ]);
    Ok(Value::dict(state))
}

/// Puts a state into a freshly built plan; gives the number of updates behind it.
///
/// # Errors
/// A damaged file, one of another kind, configuration or model, and what the system refuses.
pub fn restore<T: Task>(path: &Path, plan: &mut Plan<T>) -> Result<u64> {
    let value = torch_file::load(path)?;
    let wrong = |message: String| Error::data(path, None, message);
    let need =
        |key: &str| value.get(key).ok_or_else(|| wrong(format!("no checkpoint of this project: it has no `{key}`")));
    let format = need("versions")?.get("checkpoint").and_then(Value::as_u64);
    if format != Some(FORMAT) {
        return Err(wrong(format!(
            "a checkpoint of format {format:?}, expected {FORMAT}; use the version that wrote it"
        )));
    }
    let config = serde_json::from_value::<T::Config>(need("config")?.to_json());
    let config = config.map_err(|e| wrong(format!("its `config` cannot be read: {e}")))?;
    plan.refuse_changes(&config, path)?;
    let sampler = need("sampler")?;
    let (samples, list) = (sampler.get(T::UNIT), sampler.get("list_sha256"));
    plan.refuse_other_samples(samples.and_then(Value::as_u64), list.and_then(Value::as_str), path)?;
    let code = value.get("code_sha256").and_then(Value::as_str);
    if code.is_some_and(|code| Some(code) != plan.code_sha256.as_deref()) {
        return Err(Error::Config(format!(
            "{}: the files that make the model are no longer those that this run began with (TorchScript module; of text: config.json, \
             tokenizer); bring those back, or start a new run",
            path.display()
        )));
    }
    let number = |key: &str| need(key)?.as_u64().ok_or_else(|| wrong(format!("`{key}` is no count")));
    let step = number("step")?;
    let tensors = |key: &str| need(key)?.tensors().ok_or_else(|| wrong(format!("`{key}` is no state_dict")));
    let fits = |e: Error| wrong(e.to_string());
    let stepper = &mut plan.stepper;
    for (key, store) in T::parts(&stepper.model) {
        store.load(&tensors(key)?).map_err(fits)?;
    }
    stepper.optimizer.load_state_dict(need("optimizer")?).map_err(fits)?;
    if let Some(scaler) = stepper.scaler_mut() {
        scaler.load_state_dict(need("scaler")?).map_err(fits)?;
    }
    stepper.loss.set_state(need("loss_state")?.get("beta_ema").and_then(Value::as_f64)).map_err(fits)?;
    let best = need("best")?;
    plan.best = match (best.get("value").and_then(Value::as_f64), best.get("step").and_then(Value::as_u64)) {
        (Some(value), Some(step)) => Some(Best { value, step }),
        _ => None,
    };
    let measure = best.get("measure").and_then(Value::as_str);
    if measure.is_some() && measure != plan.task.measure() && plan.best.take().is_some() {
        eprintln!("note: the evaluation is another one now, and the best state so far does not count any more");
    }
    Ok(step)
}

/// Puts the newest usable state of a run into a freshly built plan; gives which one, or nothing where
/// there is no checkpoint at all. A damaged one is named on stderr, and the one before it used.
///
/// # Errors
/// That of the newest checkpoint, if none is usable.
pub fn restore_newest<T: Task>(series: &Series, plan: &mut Plan<T>) -> Result<Option<TakenUp>> {
    let mut first = None;
    for path in series.newest_first()? {
        match restore(&path, plan) {
            Ok(step) => {
                if first.is_some() {
                    eprintln!("note: continuing from {}, after step {step}", path.display());
                }
                return Ok(Some(TakenUp { path, step }));
            }
            // The checkpoint is sound, and the run is another one.
            Err(e @ Error::Config(_)) => return Err(e),
            Err(e) => {
                eprintln!("note: this checkpoint cannot be used: {e}");
                first = first.or(Some(e));
            }
        }
    }
    first.map_or(Ok(None), Err)
}
