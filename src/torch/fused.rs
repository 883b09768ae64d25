//! LibTorch's fused optimizer kernels: one call updates all parameters.

use super::ffi::{check, raw_or_null, raws, weince_fused_adam, weince_fused_sgd};
use crate::error::{Error, Result};
use tch::Tensor;

/// Scalars of one Adam or AdamW step.
#[derive(Debug, Clone, Copy)]
pub struct AdamArgs {
    /// AdamW's decoupled weight decay instead of Adam's L2 term.
    pub decoupled: bool,
    /// Learning rate.
    pub lr: f64,
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Added to the denominator.
    pub eps: f64,
}

/// Scalars of one SGD step.
#[derive(Debug, Clone, Copy)]
pub struct SgdArgs {
    /// Learning rate.
    pub lr: f64,
    /// Momentum; 0 needs no buffers.
    pub momentum: f64,
    /// Dampening of the momentum.
    pub dampening: f64,
    /// L2 term.
    pub weight_decay: f64,
    /// Nesterov momentum.
    pub nesterov: bool,
    /// Whether this is the first step: the momentum buffers are then set to the gradient.
    pub first_step: bool,
}

fn same_count(what: &str, lists: &[&[Tensor]]) -> Result<usize> {
    let n = lists[0].len();
    if lists.iter().any(|l| l.len() != n) {
        let counts: Vec<usize> = lists.iter().map(|l| l.len()).collect();
        return Err(Error::Input(format!("{what}: lists of unequal length {counts:?}")));
    }
    Ok(n)
}

/// One Adam or AdamW step over all `params`, in place; equals `torch.optim.Adam(W)(fused=True)`.
///
/// # Shapes
/// `grads`, `exp_avgs`, `exp_avg_sqs` as `params`; `steps` float32 0-dim, advanced by one. All on one device, one dtype.
/// `found_inf` float32 0-dim: where it is 1, nothing changes, the steps included, and nothing waits for the device.
///
/// # Errors
/// Lists of unequal length, and whatever LibTorch reports.
#[allow(clippy::too_many_arguments)]
pub fn fused_adam(
    args: AdamArgs,
    params: &[Tensor],
    grads: &[Tensor],
    exp_avgs: &[Tensor],
    exp_avg_sqs: &[Tensor],
    steps: &[Tensor],
    grad_scale: Option<&Tensor>,
    found_inf: Option<&Tensor>,
) -> Result<()> {
    let n = same_count("fused_adam", &[params, grads, exp_avgs, exp_avg_sqs, steps])?;
    let (p, g, m, v, s) = (raws(params), raws(grads), raws(exp_avgs), raws(exp_avg_sqs), raws(steps));
    // SAFETY: five arrays of `n` live tensors each; the bridge copies the handles before it returns.
    check(unsafe {
        weince_fused_adam(
            args.decoupled.into(),
            p.as_ptr(),
            g.as_ptr(),
            m.as_ptr(),
            v.as_ptr(),
            s.as_ptr(),
            n,
            args.lr,
            args.beta1,
            args.beta2,
            args.weight_decay,
            args.eps,
            raw_or_null(grad_scale),
            raw_or_null(found_inf),
        )
    })
}

/// One SGD step over all `params`, in place; equals `torch.optim.SGD(fused=True)`.
///
/// # Shapes
/// `grads` as `params`; `momenta` as `params`, or empty without momentum. All on one device, one dtype.
/// `found_inf` float32 0-dim: where it is 1, nothing changes, and nothing waits for the device.
///
/// # Errors
/// Lists of unequal length, and whatever LibTorch reports.
pub fn fused_sgd(
    args: SgdArgs,
    params: &[Tensor],
    grads: &[Tensor],
    momenta: &[Tensor],
    grad_scale: Option<&Tensor>,
    found_inf: Option<&Tensor>,
) -> Result<()> {
    let n = same_count("fused_sgd", &[params, grads])?;
    if args.momentum != 0.0 {
        same_count("fused_sgd", &[params, momenta])?;
    }
    let (p, g, m) = (raws(params), raws(grads), raws(momenta));
    // SAFETY: arrays of `n` live tensors; `momenta` is read only with momentum, and then has `n` as checked above.
    check(unsafe {
        weince_fused_sgd(
            p.as_ptr(),
            g.as_ptr(),
            m.as_ptr(),
            n,
            args.weight_decay,
            args.momentum,
            args.lr,
            args.dampening,
            args.nesterov.into(),
            args.first_step.into(),
            raw_or_null(grad_scale),
            raw_or_null(found_inf),
        )
    })
}
