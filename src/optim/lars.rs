//! LARS: SGD with momentum whose rate follows, layer by layer, the ratio of the weights' norm to the gradient's.

use super::{Rule, Update, zeros_like};
use crate::checkpoint::Value;
use crate::config::optim::LarsConfig;
use crate::error::Result;
use tch::Tensor;

/// For each weight w with gradient g:
///
/// ratio = eta * |w| / (|g| + weight_decay * |w| + 1e-8), or 1 where |w| or |g| is 0;
/// v = momentum * v + ratio * (g + weight_decay * w);
/// w = w - lr * v.
///
/// Parameters that are spared have ratio 1 and no decay. The rate stays outside of v, as in PyTorch's SGD, so a
/// schedule acts at once.
///
/// # Source
/// You, Gitman, Ginsburg, "Large Batch Training of Convolutional Networks" (2017), section 5, with PyTorch's momentum.
pub(super) struct Lars {
    config: LarsConfig,
    momentum_buffer: Vec<Tensor>,
}

/// Keeps the ratio finite where both norms are tiny.
const EPS: f64 = 1e-8;

impl Lars {
    pub fn new(config: &LarsConfig, params: &[Tensor]) -> Result<Lars> {
        Ok(Lars { config: config.clone(), momentum_buffer: zeros_like(params)? })
    }

    fn direction(&self, w: &Tensor, g: &Tensor) -> Result<Tensor> {
        let decay = self.config.weight_decay;
        let (w_norm, g_norm) = (w.f_norm()?, g.f_norm()?);
        let bound = g_norm.f_add(&w_norm.f_mul_scalar(decay)?)?.f_add_scalar(EPS)?;
        let ratio = w_norm.f_mul_scalar(self.config.eta)?.f_div(&bound)?;
        let both = w_norm.f_gt(0.0)?.f_logical_and(&g_norm.f_gt(0.0)?)?;
        let ratio = ratio.f_where_self(&both, &ratio.f_ones_like()?)?;
        Ok(g.f_add(&w.f_mul_scalar(decay)?)?.f_mul_(&ratio)?)
    }
}

impl Rule for Lars {
    fn step(&mut self, u: &Update) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let go = u.found_inf.map(|flag| flag.f_eq(0.0)).transpose()?;
        // What a skipped step would have written may be NaN, so it is selected away and not multiplied by 0.
        let keep_if_skipped = |new: Tensor, old: &Tensor| match &go {
            Some(go) => new.f_where_self(go, old),
            None => Ok(new),
        };
        for ((&i, w), g) in u.members.iter().zip(u.params).zip(u.grads) {
            let v = &mut self.momentum_buffer[i].shallow_clone();
            let direction = if u.regularized { self.direction(w, g)? } else { g.shallow_clone() };
            let next_v = v.f_mul_scalar(self.config.momentum)?.f_add_(&direction)?;
            let next_w = w.f_sub(&next_v.f_mul_scalar(u.lr)?)?;
            v.f_copy_(&keep_if_skipped(next_v, v)?)?;
            w.shallow_clone().f_copy_(&keep_if_skipped(next_w, w)?)?;
        }
        Ok(())
    }

    fn slots(&self) -> Vec<(&'static str, &[Tensor])> {
        vec![("momentum_buffer", &self.momentum_buffer)]
    }

    fn options(&self, regularized: bool) -> Vec<(&'static str, Value)> {
        let c = &self.config;
        vec![
            ("momentum", c.momentum.into()),
            ("weight_decay", if regularized { c.weight_decay } else { 0.0 }.into()),
            ("eta", c.eta.into()),
            ("adapted", regularized.into()),
        ]
    }
}
