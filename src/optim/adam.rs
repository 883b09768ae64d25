//! Adam and AdamW through LibTorch's fused kernel: `torch.optim.Adam(W)(fused=True)` to the bit.

use super::{Rule, Update, pick, zeros_like};
use crate::checkpoint::Value;
use crate::config::optim::{AdamConfig, AdamwConfig};
use crate::error::Result;
use crate::torch::{AdamArgs, fused_adam};
use tch::{Kind, Tensor};

pub(super) struct Adam {
    /// The rate is the step's; everything else stays.
    args: AdamArgs,
    step: Vec<Tensor>,
    exp_avg: Vec<Tensor>,
    exp_avg_sq: Vec<Tensor>,
}

impl Adam {
    pub fn coupled(c: &AdamConfig, params: &[Tensor]) -> Result<Adam> {
        Adam::new(false, c.betas, c.weight_decay, c.eps, params)
    }

    pub fn decoupled(c: &AdamwConfig, params: &[Tensor]) -> Result<Adam> {
        Adam::new(true, c.betas, c.weight_decay, c.eps, params)
    }

    fn new(decoupled: bool, betas: [f64; 2], weight_decay: f64, eps: f64, params: &[Tensor]) -> Result<Adam> {
        let step = params.iter().map(|p| Ok(Tensor::f_zeros([0i64; 0], (Kind::Float, p.device()))?));
        Ok(Adam {
            args: AdamArgs { decoupled, lr: 0.0, beta1: betas[0], beta2: betas[1], weight_decay, eps },
            step: step.collect::<Result<_>>()?,
            exp_avg: zeros_like(params)?,
            exp_avg_sq: zeros_like(params)?,
        })
    }
}

impl Rule for Adam {
    fn step(&mut self, u: &Update) -> Result<()> {
        let weight_decay = if u.regularized { self.args.weight_decay } else { 0.0 };
        fused_adam(
            AdamArgs { lr: u.lr, weight_decay, ..self.args },
            u.params,
            u.grads,
            &pick(&self.exp_avg, u.members),
            &pick(&self.exp_avg_sq, u.members),
            &pick(&self.step, u.members),
            None,
            u.found_inf,
        )
    }

    fn slots(&self) -> Vec<(&'static str, &[Tensor])> {
        vec![("step", &self.step), ("exp_avg", &self.exp_avg), ("exp_avg_sq", &self.exp_avg_sq)]
    }

    fn options(&self, regularized: bool) -> Vec<(&'static str, Value)> {
        let args = &self.args;
        vec![
            ("betas", Value::Tuple(vec![args.beta1.into(), args.beta2.into()])),
            ("eps", args.eps.into()),
            ("weight_decay", if regularized { args.weight_decay } else { 0.0 }.into()),
            ("amsgrad", false.into()),
            ("maximize", false.into()),
            ("foreach", Value::None),
            ("capturable", false.into()),
            ("differentiable", false.into()),
            ("fused", Value::None),
            ("decoupled_weight_decay", args.decoupled.into()),
        ]
    }
}
