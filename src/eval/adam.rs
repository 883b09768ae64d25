//! The authors' linear probe: one linear layer, Adam at a constant 3e-4, 100 epochs in batches of 256, raw features.
//!
//! Fitted on the training part without the validation share; the figures are those after the last epoch. Weights start as
//! `torch.nn.Linear`'s do (uniform within 1/sqrt(d)), drawn from the seed, and the order of an epoch is a function of seed
//! and epoch. The gradient is written out: it is `x^T (softmax - onehot) / b`.

use super::linear::{Classifier, Fit, Task};
use crate::config::eval::AdamConfig;
use crate::error::{Error, Result};
use crate::torch::{AdamArgs, fused_adam};
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use tch::{Device, Kind, Tensor};

/// Classes are padded to a multiple of this: narrow float32 products are then several times as fast, and the same for
/// every thread count.
const LANES: usize = 16;

/// What is known of a fit by Adam.
#[derive(Debug, Clone, Serialize)]
pub struct AdamFit {
    /// Mean cross-entropy over the last epoch's steps, in nats, each before its update.
    pub train_loss: f64,
    /// Mean cross-entropy of the validation samples after the last epoch; absent where nothing was held out.
    pub val_loss: Option<f64>,
    /// Updates made.
    pub steps: usize,
}

pub(super) fn train(
    config: &AdamConfig,
    seed: u64,
    task: &Task,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Classifier, Option<f64>, Fit)> {
    let (d, classes) = (task.train.dim(), task.classes.count());
    let padded = classes.next_multiple_of(LANES);
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Generator stream 0 draws the weights, stream e + 1 the order of epoch e.
    rng.set_stream(0);
    let bound = 1.0 / (d as f32).sqrt();
    let mut initial = vec![0f32; (d + 1) * padded];
    for row in initial.chunks_mut(padded) {
        row[..classes].iter_mut().for_each(|w| *w = rng.random_range(-bound..bound));
    }
    let features = task.train.features().f_to_device(task.device)?.f_pad([0i64, 1], "constant", 1.0)?;
    let labels: Vec<i64> = task.classes.train.iter().map(|&c| c as i64).collect();
    let labels = Tensor::f_from_slice(&labels)?.f_to_device(task.device)?.f_unsqueeze(1)?;
    let weight = Tensor::f_from_slice(&initial)?.f_view([d as i64 + 1, padded as i64])?.f_to_device(task.device)?;
    let moments = [weight.f_zeros_like()?, weight.f_zeros_like()?];
    let step = Tensor::f_zeros([1i64; 0], (Kind::Float, task.device))?;
    let minus_one =
        Tensor::f_full([config.batch.min(task.split.fit.len()) as i64, 1], -1.0, (Kind::Float, task.device))?;
    let (params, first, second, steps) = ([weight], [moments[0].shallow_clone()], [moments[1].shallow_clone()], [step]);
    let args = AdamArgs { decoupled: false, lr: config.lr, beta1: 0.9, beta2: 0.999, weight_decay: 0.0, eps: 1e-8 };
    let (mut train_loss, mut done) = (0.0, 0);
    for epoch in 0..config.epochs {
        let mut order = task.split.fit.clone();
        rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(epoch as u64 + 1);
        order.shuffle(&mut rng);
        let last = epoch + 1 == config.epochs;
        for rows in order.chunks(config.batch) {
            let index = Tensor::f_from_slice(rows)?.f_to_device(task.device)?;
            let (x, y) = (features.f_index_select(0, &index)?, labels.f_index_select(0, &index)?);
            let log_p = x.f_matmul(&params[0])?.f_narrow(1, 0, classes as i64)?.f_log_softmax(1, Kind::Float)?;
            if last {
                let picked = log_p
                    .f_gather(1, &y, false)?
                    .f_to_device(Device::Cpu)?
                    .f_to_kind(Kind::Double)?
                    .f_flatten(0, -1)?;
                train_loss -= Vec::<f64>::try_from(&picked)?.iter().sum::<f64>();
            }
            let ones = minus_one.f_narrow(0, 0, rows.len() as i64)?;
            let residual = log_p.f_exp()?.f_scatter_add(1, &y, &ones)?.f_div_scalar(rows.len() as f64)?;
            let residual = residual.f_pad([0, (padded - classes) as i64], "constant", 0.0)?;
            let gradient = [x.f_tr()?.f_matmul(&residual)?];
            fused_adam(args, &params, &gradient, &first, &second, &steps, None, None)?;
            done += 1;
        }
        progress(epoch as u64 + 1, config.epochs as u64);
    }
    if !train_loss.is_finite() {
        let lr = config.lr;
        return Err(Error::NonFinite(format!(
            "the probe's loss is {train_loss} after {done} steps of lr {lr}; take a lower one"
        )));
    }
    let options = (Kind::Double, task.device);
    let model = Classifier {
        mean: Tensor::f_zeros([d as i64], options)?,
        scale: Tensor::f_ones([d as i64], options)?,
        weight: params[0].f_narrow(1, 0, classes as i64)?.f_to_kind(Kind::Double)?,
    };
    let validation = task.validate(&model)?;
    let fit = AdamFit {
        train_loss: train_loss / task.split.fit.len() as f64,
        val_loss: validation.map(|(_, loss)| loss),
        steps: done,
    };
    Ok((model, validation.map(|(accuracy, _)| accuracy), Fit::Adam(fit)))
}
