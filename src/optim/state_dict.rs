//! An optimizer's state in the form of `torch.optim.Optimizer.state_dict()`, so that training can go on in Python and here.

use super::Optimizer;
use crate::checkpoint::Value;
use crate::error::{Error, Result};
use tch::Tensor;

impl Optimizer {
    /// The state as the `torch.optim` class of the same name gives it: `state` by the parameters' numbers, and `param_groups`
    /// with their options, `lr`, `params` and `param_names`. LARS, which PyTorch does not have, has the same form.
    ///
    /// Numbers run through the groups: first the regularised parameters, then those that are spared, each in the model's
    /// order. The tensors are the optimizer's own.
    pub fn state_dict(&self, lr: f64) -> Value {
        let slots = self.rule.slots();
        let (mut state, mut groups) = (Vec::new(), Vec::new());
        for (regularized, members) in &self.groups {
            let first = state.len();
            for &i in members {
                let of_one = slots.iter().map(|(slot, tensors)| (*slot, Value::from(tensors[i].shallow_clone())));
                state.push((Value::from(state.len() as u64), Value::dict(of_one)));
            }
            let names = members.iter().map(|&i| Value::from(self.names[i].as_str())).collect();
            let numbers = (first..state.len()).map(|n| Value::from(n as u64)).collect();
            let mut group = vec![("lr", lr.into())];
            group.extend(self.rule.options(*regularized));
            group.push(("param_names", Value::List(names)));
            group.push(("params", Value::List(numbers)));
            groups.push(Value::dict(group));
        }
        Value::dict([("state", Value::Dict(state)), ("param_groups", Value::List(groups))])
    }

    /// Takes over a state that [`Optimizer::state_dict`] gave, or the `torch.optim` class of the same name with the same
    /// groups. The options stay those of this optimizer; so do types and devices.
    ///
    /// # Errors
    /// Other groups, other names, any tensor missing or of another shape; then nothing has been changed.
    pub fn load_state_dict(&mut self, value: &Value) -> Result<()> {
        let refuse = |what: String| Err(Error::Input(format!("the optimizer's state does not fit: {what}")));
        let (Some(state), Some(groups)) =
            (value.get("state").and_then(Value::items), value.get("param_groups").and_then(Value::elements))
        else {
            return refuse("expected a dict with `state` and `param_groups`, as torch.optim's state_dict()".into());
        };
        if groups.len() != self.groups.len() {
            return refuse(format!("{} groups of parameters, expected {}", groups.len(), self.groups.len()));
        }
        let mut named: Vec<(String, Tensor)> = Vec::new();
        for (group, (_, members)) in groups.iter().zip(&self.groups) {
            let Some(numbers) = group.get("params").and_then(Value::elements) else {
                return refuse("a group without `params`".into());
            };
            if numbers.len() != members.len() {
                return refuse(format!("a group of {} parameters, expected {}", numbers.len(), members.len()));
            }
            let names = group.get("param_names").and_then(Value::elements);
            for (position, (number, &i)) in numbers.iter().zip(members).enumerate() {
                let own = &self.names[i];
                if let Some(name) = names.and_then(|n| n.get(position)).and_then(Value::as_str)
                    && name != own
                {
                    return refuse(format!("parameter {position} of a group is `{name}`, expected `{own}`"));
                }
                let number = number.as_u64();
                let slots = state.iter().find(|(k, _)| number.is_some() && k.as_u64() == number).map(|(_, v)| v);
                for (slot, value) in slots.and_then(Value::items).unwrap_or_default() {
                    if let (Some(slot), Some(tensor)) = (slot.as_str(), value.as_tensor()) {
                        named.push((format!("{own}/{slot}"), tensor.shallow_clone()));
                    }
                }
            }
        }
        self.load_state(&named)
    }
}
