//! The default linear probe: multinomial logistic regression with L2 on standardised features, solved by L-BFGS.
//!
//! Minimises, over weights W and biases b, `1/n sum_i -log softmax(W x_i + b)[y_i] + l2/2 |W|^2`. scikit-learn's
//! `LogisticRegression(C)` minimises `C sum_i loss_i + 1/2 |W|^2`: the same for `C = 1 / (l2 n)`. For two classes it fits one
//! weight vector, the difference of our two, and the same solution has `C = 2 / (l2 n)`.
//!
//! Each penalty's fit starts from the solution of the next stronger one. The preconditioner is the inverse of the Hessian at
//! the start with every class's weights `p (1 - p)` replaced by their mean over the classes, from a part of the samples; with
//! it a fit takes tens of steps where plain L-BFGS takes hundreds.

use super::lbfgs::{Minimum, minimise};
use super::linear::{BLOCK, Classifier, Fit, Task, augmented};
use super::precondition::Cholesky;
use crate::config::eval::LbfgsConfig;
use crate::error::Result;
use rayon::prelude::*;
use serde::Serialize;
use tch::{Device, Kind, Tensor};

/// Classes are padded to a multiple of this: narrow float64 products are then several times as fast, and the same for
/// every thread count.
const LANES: i64 = 12;
/// Relative distance of the objective from its minimum that a fit guarantees, and that each fit of the sweep does.
const FINAL_GAP: f64 = 1e-5;
const SWEEP_GAP: f64 = 1e-2;
/// The same for fits that only lead to the next.
const WAY_GAP: f64 = 1e-1;
const MOST_ITERATIONS: usize = 1000;
/// Above this many dimensions the preconditioner would cost more than it saves, and none is used.
const MOST_PRECONDITIONED: usize = 4096;
/// A standard deviation below this share of the mean is rounding: float32 values that differ at all differ by more.
const CONSTANT: f64 = 1e-12;

/// The final logistic regression, on training and validation part together, and the sweep that chose its penalty.
#[derive(Debug, Clone, Serialize)]
pub struct LbfgsFit {
    /// The chosen penalty.
    pub l2: f64,
    /// scikit-learn's `C` that gives the same solution on the samples of the final fit.
    pub c: f64,
    /// Mean cross-entropy plus penalty, in nats.
    pub objective: f64,
    /// Euclidean norm of the objective's gradient.
    pub gradient_norm: f64,
    /// Steps taken.
    pub iterations: usize,
    /// Whether the objective is within a relative 1e-5 of its minimum.
    pub converged: bool,
    /// Dimensions without variance; they are centred and not scaled.
    pub constant_features: usize,
    /// What the standardisation of the final fit was computed from.
    pub standardised_on: &'static str,
    /// The candidates, strongest penalty first; empty where there was a single one and nothing held out.
    pub sweep: Vec<Candidate>,
}

/// A penalty of the sweep.
#[derive(Debug, Clone, Serialize)]
pub struct Candidate {
    /// The penalty.
    pub l2: f64,
    /// Fraction of the validation samples classified right.
    pub val_accuracy: f64,
    /// Mean cross-entropy of the validation samples, in nats.
    pub val_loss: f64,
    /// Steps taken.
    pub iterations: usize,
    /// Whether the objective is within a relative 1e-2 of its minimum.
    pub converged: bool,
}

/// Chooses the penalty on the validation part, then fits it on everything.
///
/// Penalties are tried from the strongest; the sweep ends early after two that are less accurate than an earlier one where
/// the second has a higher loss too. The best validation accuracy wins; among equals the lowest validation loss, then the
/// strongest penalty.
pub(super) fn fit(
    config: &LbfgsConfig,
    task: &Task,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Classifier, Option<f64>, Fit)> {
    let mut penalties = config.l2.clone();
    penalties.sort_unstable_by(|a, b| b.total_cmp(a));
    penalties.dedup();
    let steps = penalties.len() as u64 + 1;
    let mut sweep: Vec<Candidate> = Vec::new();
    if !task.split.validation.is_empty() {
        let problem = Problem::new(task, &task.split.fit)?;
        let mut minimum: Option<Minimum> = None;
        for &l2 in &penalties {
            let next = match minimum {
                None => problem.solve(l2, SWEEP_GAP)?,
                Some(stronger) => problem.proceed(Minimum { iterations: 0, ..stronger }, l2, SWEEP_GAP)?,
            };
            if let Some((val_accuracy, val_loss)) = task.validate(&problem.classifier(&next.x)?)? {
                sweep.push(Candidate {
                    l2,
                    val_accuracy,
                    val_loss,
                    iterations: next.iterations,
                    converged: next.converged,
                });
            }
            minimum = Some(next);
            progress(sweep.len() as u64, steps);
            if past_the_best(&sweep) {
                break;
            }
        }
    }
    let better = |a: &&Candidate, b: &&Candidate| {
        a.val_accuracy.total_cmp(&b.val_accuracy).then(b.val_loss.total_cmp(&a.val_loss)).then(a.l2.total_cmp(&b.l2))
    };
    let best = sweep.iter().max_by(better);
    let (l2, val_accuracy) = (best.map_or(penalties[0], |c| c.l2), best.map(|c| c.val_accuracy));
    let everything: Vec<i64> = (0..task.train.samples() as i64).collect();
    let problem = Problem::new(task, &everything)?;
    let minimum = problem.solve(l2, FINAL_GAP)?;
    progress(steps, steps);
    let fit = LbfgsFit {
        l2,
        c: if problem.classes == 2 { 2.0 } else { 1.0 } / (l2 * task.train.samples() as f64),
        objective: minimum.value,
        gradient_norm: minimum.gradient_norm,
        iterations: minimum.iterations,
        converged: minimum.converged,
        constant_features: problem.constant_features,
        standardised_on: "train + val",
        sweep,
    };
    Ok((problem.classifier(&minimum.x)?, val_accuracy, Fit::Lbfgs(Box::new(fit))))
}

/// Whether the last two penalties are less accurate than an earlier one and the last has a higher loss too: weaker ones,
/// which take by far the most steps, will not be chosen.
fn past_the_best(sweep: &[Candidate]) -> bool {
    let Some((earlier, last)) = sweep.split_last_chunk::<2>() else { return false };
    let less_accurate = |e: &Candidate| last.iter().all(|l| l.val_accuracy < e.val_accuracy);
    earlier.iter().any(|e| less_accurate(e) && last[1].val_loss > e.val_loss)
}

/// Standardised samples in blocks, with a last column of ones for the bias.
///
/// Parameters are one vector: for each class its d weights, then its bias.
struct Problem {
    blocks: Vec<(Tensor, Tensor)>,
    samples: usize,
    columns: usize,
    classes: usize,
    mean: Tensor,
    scale: Tensor,
    constant_features: usize,
}

impl Problem {
    fn new(task: &Task, rows: &[i64]) -> Result<Problem> {
        let features = task.train.features();
        let block = |rows: &[i64]| -> Result<Tensor> {
            Ok(features.f_index_select(0, &Tensor::f_from_slice(rows)?)?.f_to_device(task.device)?)
        };
        let (samples, d) = (rows.len(), task.train.dim());
        let options = (Kind::Double, task.device);
        let mut mean = Tensor::f_zeros([d as i64], options)?;
        for rows in rows.chunks(BLOCK as usize) {
            mean = mean.f_add(&block(rows)?.f_sum_dim_intlist(0i64, false, Kind::Double)?)?;
        }
        mean = mean.f_div_scalar(samples as f64)?;
        let mut variance = Tensor::f_zeros([d as i64], options)?;
        for rows in rows.chunks(BLOCK as usize) {
            let centred = block(rows)?.f_to_kind(Kind::Double)?.f_sub(&mean)?;
            variance = variance.f_add(&centred.f_square()?.f_sum_dim_intlist(0i64, false, Kind::Double)?)?;
        }
        let deviation = variance.f_div_scalar(samples as f64)?.f_sqrt()?;
        let constant = deviation.f_le_tensor(&mean.f_abs()?.f_mul_scalar(CONSTANT)?)?;
        let constant_features = usize::try_from(constant.f_sum(Kind::Int64)?.f_int64_value(&[])?).unwrap_or(0);
        let scale = deviation.f_masked_fill(&constant, 1.0)?;

        let mut blocks = Vec::new();
        for rows in rows.chunks(BLOCK as usize) {
            let y: Vec<i64> = rows.iter().map(|&i| task.classes.train[i as usize] as i64).collect();
            let y = Tensor::f_from_slice(&y)?.f_to_device(task.device)?.f_unsqueeze(1)?;
            blocks.push((augmented(&block(rows)?, &mean, &scale)?, y));
        }
        Ok(Problem { blocks, samples, columns: d + 1, classes: task.classes.count(), mean, scale, constant_features })
    }

    /// [d + 1, classes]
    fn weight(&self, parameters: &[f64]) -> Result<Tensor> {
        let weight = Tensor::f_from_slice(parameters)?.f_view([self.classes as i64, self.columns as i64])?;
        Ok(weight.f_to_device(self.mean.device())?.f_tr()?.f_contiguous()?)
    }

    fn classifier(&self, parameters: &[f64]) -> Result<Classifier> {
        Ok(Classifier {
            mean: self.mean.shallow_clone(),
            scale: self.scale.shallow_clone(),
            weight: self.weight(parameters)?,
        })
    }

    fn padding(&self) -> i64 {
        (LANES - self.classes as i64 % LANES) % LANES
    }

    /// The mean cross-entropy, and its gradient.
    fn loss(&self, parameters: &[f64]) -> Result<(f64, Vec<f64>)> {
        let (classes, padding) = (self.classes as i64, self.padding());
        let weight = self.weight(parameters)?.f_pad([0, padding], "constant", 0.0)?;
        let mut loss = Tensor::f_zeros([1i64; 0], (Kind::Double, weight.device()))?;
        let mut gradient = weight.f_zeros_like()?;
        for (x, y) in &self.blocks {
            let log_p = x.f_matmul(&weight)?.f_narrow(1, 0, classes)?.f_log_softmax(1, Kind::Double)?;
            // A block of numbers: too few for LibTorch to split the sum among threads.
            loss = loss.f_sub(&log_p.f_gather(1, y, false)?.f_sum(Kind::Double)?)?;
            let residual = log_p.f_exp()?.f_scatter_add(1, y, &y.f_to_kind(Kind::Double)?.f_fill(-1.0)?)?;
            gradient = gradient.f_addmm(&x.f_tr()?, &residual.f_pad([0, padding], "constant", 0.0)?)?;
        }
        let gradient = gradient.f_narrow(1, 0, classes)?.f_tr()?.f_contiguous()?.f_div_scalar(self.samples as f64)?;
        Ok((loss.f_double_value(&[])? / self.samples as f64, numbers(&gradient)?))
    }

    /// The preconditioner at a point; none where it would be too large.
    fn preconditioner(&self, parameters: &[f64], l2: f64) -> Result<Option<Cholesky>> {
        if self.columns > MOST_PRECONDITIONED {
            return Ok(None);
        }
        let weight = self.weight(parameters)?.f_pad([0, self.padding()], "constant", 0.0)?;
        let wanted = (16 * self.columns).min(8192.max(4 * self.columns));
        let every = self.samples.div_ceil(wanted) as i64;
        let mut hessian = Tensor::f_zeros([self.columns as i64; 2], (Kind::Double, weight.device()))?;
        let mut used = 0;
        for (x, _) in &self.blocks {
            let x = x.f_slice(0, 0, None, every)?.f_contiguous()?;
            let p = x.f_matmul(&weight)?.f_narrow(1, 0, self.classes as i64)?.f_softmax(1, Kind::Double)?;
            let spread = p.f_sub(&p.f_square()?)?.f_mean_dim(1i64, true, Kind::Double)?;
            hessian = hessian.f_addmm(&x.f_tr()?, &x.f_mul(&spread)?)?;
            used += x.size()[0];
        }
        let mut matrix = numbers(&hessian.f_div_scalar(used as f64)?)?;
        matrix.iter_mut().step_by(self.columns + 1).for_each(|v| *v += l2);
        Cholesky::factor(matrix, self.columns).map(Some)
    }

    /// Fits one penalty from zero, by way of stronger ones.
    fn solve(&self, l2: f64, gap: f64) -> Result<Minimum> {
        let mut minimum = Minimum { x: vec![0.0; self.columns * self.classes], ..Minimum::default() };
        let mut stronger = 1.0;
        while stronger > 2.0 * l2 {
            minimum = self.proceed(minimum, stronger, WAY_GAP)?;
            stronger *= 0.1;
        }
        self.proceed(minimum, l2, gap)
    }

    /// Fits one penalty from a known point, adding to its steps. The objective is strongly convex in the weights with modulus
    /// l2, so that a gradient of norm g bounds its distance from the minimum by g^2 / (2 l2).
    fn proceed(&self, from: Minimum, l2: f64, gap: f64) -> Result<Minimum> {
        let factor = self.preconditioner(&from.x, l2)?;
        let precondition = |v: &mut [f64]| {
            if let Some(factor) = &factor {
                v.par_chunks_mut(self.columns).for_each(|v| factor.solve(v));
            }
        };
        let objective = |parameters: &[f64]| {
            let (mut value, mut gradient) = self.loss(parameters)?;
            for (w, g) in parameters.chunks(self.columns).zip(gradient.chunks_mut(self.columns)) {
                for (w, g) in w[..self.columns - 1].iter().zip(g) {
                    value += 0.5 * l2 * w * w;
                    *g += l2 * w;
                }
            }
            Ok((value, gradient))
        };
        let enough = |value: f64, norm: f64| norm * norm <= 2.0 * l2 * gap * value;
        let minimum = minimise(from.x, objective, precondition, enough, MOST_ITERATIONS)?;
        Ok(Minimum { iterations: minimum.iterations + from.iterations, ..minimum })
    }
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(Vec::<f64>::try_from(&tensor.f_to_device(Device::Cpu)?.f_flatten(0, -1)?)?)
}
