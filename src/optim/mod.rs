//! Optimizers that own their state, so that it can be saved; learning-rate schedules; gradient checks.

mod adam;
mod gradient;
mod lars;
mod scaler;
mod schedule;
mod sgd;
mod state_dict;

pub use gradient::{gradient_norm, gradients, non_finite_gradients};
pub use scaler::GradScaler;
pub use schedule::Schedule;

use crate::checkpoint::Value;
use crate::config::optim::OptimConfig;
use crate::error::{Error, Result};
use crate::torch::clear_gradients;
use std::collections::{HashMap, HashSet};
use tch::{Device, Kind, Tensor};

/// What one call of a rule updates: parameters of one group that have gradients.
struct Update<'a> {
    /// Positions in the optimizer's list, for the rule's own state.
    members: &'a [usize],
    params: &'a [Tensor],
    grads: &'a [Tensor],
    /// False for parameters that are spared from weight decay (and from LARS's adaptation).
    regularized: bool,
    lr: f64,
    found_inf: Option<&'a Tensor>,
}

/// How weights are updated. State is made for all parameters at once, in their order.
trait Rule {
    fn step(&mut self, update: &Update) -> Result<()>;
    /// The state by PyTorch's names, such as `exp_avg`; one tensor a parameter.
    fn slots(&self) -> Vec<(&'static str, &[Tensor])>;
    /// The options of a group of parameters by the names that the `torch.optim` class gives them in 2.11, without the rate.
    fn options(&self, regularized: bool) -> Vec<(&'static str, Value)>;
}

/// An optimizer over named parameters.
///
/// Parameters without a gradient are left alone, as in PyTorch, with their state.
pub struct Optimizer {
    names: Vec<String>,
    params: Vec<Tensor>,
    rule: Box<dyn Rule>,
    /// Whether weight decay and adaptation apply, with the parameters' positions.
    groups: Vec<(bool, Vec<usize>)>,
    device: Device,
}

impl Optimizer {
    /// An optimizer for `parameters`, such as `Model::parameters()`, where they are now.
    ///
    /// # Errors
    /// Values that the configuration does not allow; no parameters; parameters on several devices or of several types.
    pub fn new(config: &OptimConfig, parameters: &[(String, Tensor)]) -> Result<Optimizer> {
        Optimizer::sparing(config, parameters, &[])
    }

    /// As [`Optimizer::new`]; where `exclude_bias_and_norm` spares parameters of one dimension, those named `spared` are too.
    ///
    /// # Errors
    /// As [`Optimizer::new`].
    pub fn sparing(config: &OptimConfig, parameters: &[(String, Tensor)], spared: &[String]) -> Result<Optimizer> {
        config.validate()?;
        let Some((first_name, first)) = parameters.first() else {
            return Err(Error::Input("optimizer: expected at least one parameter, found none".into()));
        };
        let (kind, device) = (first.f_kind()?, first.device());
        for (name, t) in parameters {
            let (k, d) = (t.f_kind()?, t.device());
            if (k, d) != (kind, device) {
                return Err(Error::Input(format!(
                    "optimizer: parameters must share device and type: `{first_name}` is {kind:?} on {device:?}, \
                     `{name}` is {k:?} on {d:?}; convert and move the whole model first"
                )));
            }
        }
        let params: Vec<Tensor> = parameters.iter().map(|(_, t)| t.shallow_clone()).collect();
        let (rule, exclude): (Box<dyn Rule>, bool) = match config {
            OptimConfig::Adam(c) => (Box::new(adam::Adam::coupled(c, &params)?), c.exclude_bias_and_norm),
            OptimConfig::Adamw(c) => (Box::new(adam::Adam::decoupled(c, &params)?), c.exclude_bias_and_norm),
            OptimConfig::Sgd(c) => (Box::new(sgd::Sgd::new(c, &params)?), c.exclude_bias_and_norm),
            OptimConfig::Lars(c) => (Box::new(lars::Lars::new(c, &params)?), c.exclude_bias_and_norm),
        };
        let (regularized, spared): (Vec<usize>, Vec<usize>) =
            (0..params.len()).partition(|&i| !exclude || params[i].dim() > 1 && !spared.contains(&parameters[i].0));
        let groups = [(true, regularized), (false, spared)].into_iter().filter(|(_, members)| !members.is_empty());
        Ok(Optimizer {
            names: parameters.iter().map(|(name, _)| name.clone()).collect(),
            groups: groups.collect(),
            params,
            rule,
            device,
        })
    }

    /// Updates every parameter that has a gradient.
    ///
    /// Where `found_inf` is 1 (float32, 0-dim, on the parameters' device), nothing changes: no weight, no moment, no
    /// step count. The device decides that by itself; the host does not wait.
    ///
    /// # Errors
    /// A rate that is negative or not finite; a `found_inf` of another type, shape or device; what LibTorch reports.
    pub fn step(&mut self, lr: f64, found_inf: Option<&Tensor>) -> Result<()> {
        if !(lr >= 0.0 && lr.is_finite()) {
            return Err(Error::Input(format!("optimizer: expected a finite rate of at least 0, found {lr}")));
        }
        if let Some(flag) = found_inf {
            let got = (flag.f_kind()?, flag.device(), flag.dim());
            if got != (Kind::Float, self.device, 0) {
                return Err(Error::Input(format!(
                    "optimizer: expected found_inf as a 0-dim Float tensor on {:?}, found {got:?}",
                    self.device
                )));
            }
        }
        let grads: Vec<Tensor> = self.params.iter().map(Tensor::grad).collect();
        for (regularized, members) in &self.groups {
            let members: Vec<usize> = members.iter().copied().filter(|&i| grads[i].defined()).collect();
            if members.is_empty() {
                continue;
            }
            self.rule.step(&Update {
                params: &pick(&self.params, &members),
                grads: &pick(&grads, &members),
                members: &members,
                regularized: *regularized,
                lr,
                found_inf,
            })?;
        }
        Ok(())
    }

    /// Drops all gradients, as `zero_grad()` does in PyTorch.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn zero_grad(&mut self) -> Result<()> {
        clear_gradients(&self.params)
    }

    /// The parameters' names and tensors, in order.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.names.iter().map(String::as_str).zip(&self.params)
    }

    /// The whole state as named tensors, `<parameter>/<slot>` with PyTorch's slot names, such as `fc.weight/exp_avg`:
    /// handles to the tensors themselves.
    pub fn state(&self) -> Vec<(String, Tensor)> {
        let slots = self.rule.slots();
        let of = |i: usize| slots.iter().map(move |(slot, tensors)| (*slot, tensors[i].shallow_clone()));
        let all = self.names.iter().enumerate();
        all.flat_map(|(i, name)| of(i).map(move |(slot, t)| (format!("{name}/{slot}"), t))).collect()
    }

    /// Takes over a state that [`Optimizer::state`] gave; types and devices stay those of this optimizer.
    ///
    /// # Errors
    /// Any name missing, unknown or given twice, and any wrong shape; then nothing has been changed.
    pub fn load_state(&mut self, state: &[(String, Tensor)]) -> Result<()> {
        let own = self.state();
        let given: HashMap<&str, &Tensor> = state.iter().map(|(name, t)| (name.as_str(), t)).collect();
        let known: HashSet<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
        let refuse = |what: String| Err(Error::Input(format!("the optimizer's state does not fit: {what}")));
        if let Some((name, _)) = state.iter().find(|(name, _)| !known.contains(name.as_str())) {
            return refuse(format!("`{name}` is unknown; was it saved with another model or optimizer?"));
        }
        for (name, t) in &own {
            match given.get(name.as_str()) {
                None => return refuse(format!("`{name}` is missing; was it saved with another model or optimizer?")),
                Some(g) if g.size() != t.size() => {
                    return refuse(format!("`{name}`: expected {:?}, found {:?}", t.size(), g.size()));
                }
                Some(_) => {}
            }
        }
        if state.len() != own.len() {
            return refuse(format!("{} tensors for {} names, so some name is given twice", state.len(), own.len()));
        }
        let _guard = tch::no_grad_guard();
        for (name, mut t) in own {
            if let Some(source) = given.get(name.as_str()) {
                t.f_copy_(source)?;
            }
        }
        Ok(())
    }
}

/// Handles to some of a list's tensors.
fn pick(list: &[Tensor], members: &[usize]) -> Vec<Tensor> {
    members.iter().map(|&i| list[i].shallow_clone()).collect()
}

/// Zeros for each parameter: a fresh slot.
fn zeros_like(params: &[Tensor]) -> Result<Vec<Tensor>> {
    params.iter().map(|p| Ok(p.detach().f_zeros_like()?)).collect()
}
