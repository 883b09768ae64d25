//! Gradients of parameters, summed over the processes while the backward pass goes on.

use super::Group;
use crate::error::{Error, Result};
use crate::torch::{Reducer, Wire};
use tch::Tensor;

/// Sums gradients over the processes of a group, in buckets of up to 25 MiB, each as soon as the backward pass has filled it.
///
/// The first pass shows which parameters have gradients at all, and is summed at its end. The others, such as those of a head that
/// nothing goes through, stay without.
///
/// # Source
/// S. Li et al., *PyTorch Distributed: Experiences on Accelerating Data Parallel Training*, 2020, arXiv 2006.15704; `c10d::Reducer`.
pub struct Gradients {
    group: Group,
    /// From the first pass on those that have a gradient.
    parameters: Vec<(String, Tensor)>,
    /// The others.
    without: Vec<(String, Tensor)>,
    reducer: Option<Reducer>,
}

impl Gradients {
    /// Of these parameters, which are the same in all processes of the group.
    pub fn new(group: &Group, parameters: &[(String, Tensor)]) -> Gradients {
        let parameters = parameters.iter().map(|(name, t)| (name.clone(), t.shallow_clone())).collect();
        Gradients { group: group.clone(), parameters, reducer: None, without: Vec::new() }
    }

    /// The backward pass of `loss` after which `grad()` of each parameter is the sum over the processes of what their passes, this one
    /// and plain ones before it, have added up.
    ///
    /// # Errors
    /// A process that does not answer, a parameter that has a gradient in some passes only, and whatever LibTorch reports.
    pub fn backward(&mut self, loss: &Tensor) -> Result<()> {
        let group = self.group.clone();
        group.watch(match group.wire() {
            None => loss.f_backward().map_err(Error::from),
            Some(wire) => self.pass(wire, loss),
        })
    }

    fn pass(&mut self, wire: &Wire, loss: &Tensor) -> Result<()> {
        let Some(reducer) = &mut self.reducer else { return self.first_pass(wire, loss) };
        reducer.arm()?;
        loss.f_backward()?;
        if let Some((name, _)) = self.without.iter().find(|(_, t)| t.grad().defined()) {
            return Err(Error::Input(format!(
                "the parameter {name} has a gradient now and had none in the first step; several processes cannot train a model that uses \
                 other parameters in other steps"
            )));
        }
        reducer.finish().map_err(|e| {
            let missing = self.parameters.iter().filter(|(_, t)| !t.grad().defined());
            let missing: Vec<&str> = missing.map(|(name, _)| name.as_str()).collect();
            Error::Input(format!(
                "no gradient of {} in this step, though there was one in the first; several processes cannot train a model that uses other \
                 parameters in other steps ({e})",
                if missing.is_empty() { "some parameters".to_string() } else { missing.join(", ") }
            ))
        })
    }

    fn first_pass(&mut self, wire: &Wire, loss: &Tensor) -> Result<()> {
        loss.f_backward()?;
        let here: Vec<i64> = self.parameters.iter().map(|(_, t)| i64::from(t.grad().defined())).collect();
        let mut ranks = Tensor::f_from_slice(&here)?;
        wire.sum(&mut ranks)?;
        let ranks = Vec::<i64>::try_from(ranks)?;
        let partly = ranks.iter().position(|ranks| *ranks != 0 && *ranks as usize != self.group.size());
        if let Some(at) = partly {
            return Err(Error::Input(format!(
                "the parameter {} has a gradient in {} of {} processes; they cannot train a model that uses other parameters for other samples",
                self.parameters[at].0,
                ranks[at],
                self.group.size()
            )));
        }
        let all = std::mem::take(&mut self.parameters);
        (self.parameters, self.without) = all.into_iter().partition(|(_, t)| t.grad().defined());
        let Some((_, first)) = self.parameters.first() else { return Ok(()) };
        let mut reducer = Reducer::new(wire, &self.parameters)?;
        // Through the same buckets as in later passes, by one that adds nothing: a run that is continued sums in the same order.
        let mut nothing = Tensor::f_zeros([0i64; 0], (first.kind(), first.device()))?;
        for (_, parameter) in &self.parameters {
            nothing = nothing.f_add(&parameter.f_mul_scalar(0.0)?.f_sum(first.kind())?)?;
        }
        reducer.arm()?;
        nothing.f_backward()?;
        reducer.finish()?;
        self.reducer = Some(reducer);
        Ok(())
    }
}
