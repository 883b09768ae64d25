//! SGD with momentum through LibTorch's fused kernel: `torch.optim.SGD(fused=True)`.

use super::{Rule, Update, pick, zeros_like};
use crate::checkpoint::Value;
use crate::config::optim::SgdConfig;
use crate::error::Result;
use crate::torch::{SgdArgs, fused_sgd};
use tch::Tensor;

pub(super) struct Sgd {
    /// The rate is the step's; everything else stays.
    args: SgdArgs,
    /// Empty without momentum.
    momentum_buffer: Vec<Tensor>,
}

impl Sgd {
    pub fn new(c: &SgdConfig, params: &[Tensor]) -> Result<Sgd> {
        Ok(Sgd {
            args: SgdArgs {
                lr: 0.0,
                momentum: c.momentum,
                dampening: 0.0,
                weight_decay: c.weight_decay,
                nesterov: c.nesterov,
                // From zero buffers and without dampening every step is alike, the first one too, also where
                // `found_inf` made the device skip it.
                first_step: false,
            },
            momentum_buffer: if c.momentum == 0.0 { Vec::new() } else { zeros_like(params)? },
        })
    }
}

impl Rule for Sgd {
    fn step(&mut self, u: &Update) -> Result<()> {
        let weight_decay = if u.regularized { self.args.weight_decay } else { 0.0 };
        let momenta = if self.momentum_buffer.is_empty() { Vec::new() } else { pick(&self.momentum_buffer, u.members) };
        fused_sgd(SgdArgs { lr: u.lr, weight_decay, ..self.args }, u.params, u.grads, &momenta, None, u.found_inf)
    }

    fn slots(&self) -> Vec<(&'static str, &[Tensor])> {
        if self.momentum_buffer.is_empty() { Vec::new() } else { vec![("momentum_buffer", &self.momentum_buffer)] }
    }

    fn options(&self, regularized: bool) -> Vec<(&'static str, Value)> {
        let args = &self.args;
        vec![
            ("momentum", args.momentum.into()),
            ("dampening", args.dampening.into()),
            ("weight_decay", if regularized { args.weight_decay } else { 0.0 }.into()),
            ("nesterov", args.nesterov.into()),
            ("maximize", false.into()),
            ("foreach", Value::None),
            ("differentiable", false.into()),
            ("fused", Value::None),
        ]
    }
}
