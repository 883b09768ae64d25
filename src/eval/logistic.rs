//! The default linear probe: multinomial logistic regression with L2 on standardised features, solved by L-BFGS.
//!
//! Minimises, over weights W and biases b, `1/n sum_i -log softmax(W x_i + b)[y_i] + l2/2 |W|^2`. scikit-learn's
//! `LogisticRegression(C)` minimises `C sum_i loss_i + 1/2 |W|^2`: the same for `C = 1 / (l2 n)`. For two classes it fits one
//! weight vector, the difference of our two, and the same solution has `C = 2 / (l2 n)`.
//!
//! On a CPU most steps are taken in float32; float64 takes the last ones where they are needed, and decides when it is enough.
//!
//! Each penalty's fit starts from the solution of the next stronger one. The preconditioner is the inverse of the Hessian at
//! the start, from a part of the samples: all of it for few classes and dimensions, else its diagonal blocks for some classes
//! at a time, else an approximation of each class's block (`ByClass`). With all of it a fit takes some ten steps, where plain
//! L-BFGS takes many hundreds on features that nearly depend on each other. Where there are so few samples that it costs more
//! than many steps, those are tried first.

use super::lbfgs::{Minimum, dot, minimise};
use super::linear::{BLOCK, Classifier, Fit, Task, augmented};
use super::panels::Panels;
use super::precondition::{ByClass, Cholesky};
use super::softmax;
use crate::config::eval::LbfgsConfig;
use crate::error::{Error, Result};
use crate::torch::workers;
use rayon::ThreadPool;
use rayon::prelude::*;
use serde::Serialize;
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// Classes are padded to a multiple of this: narrow float64 products are then several times as fast.
const WIDTH: usize = 12;
/// Sums that are formed side by side.
const LANES: usize = 16;
/// Relative distance of the objective from its minimum that the final fit aims at, and that each fit of the sweep does.
const FINAL_GAP: f64 = 1e-6;
const SWEEP_GAP: f64 = 1e-3;
/// The same for fits that only lead to the next.
const WAY_GAP: f64 = 1e-1;
/// The most that is taken for the curvature of the objective: the biases have no penalty, and only what the classes' shares
/// give them.
const MOST_MODULUS: f64 = 1e-3;
const MOST_ITERATIONS: usize = 1000;
/// Rounding of the objective, relative, in float64 and in float32, where the rounding of single samples averages out: differences
/// below it say nothing about a step.
const ROUNDING: f64 = 1e-13;
const ROUGH_ROUNDING: f64 = 1e-7;
/// Share of the gap that steps in float32 aim at, so that float64 most often has nothing to add.
const ROUGH_SHARE: f64 = 0.5;
/// A start is found on one of so many samples.
const GLANCE: usize = 4;
/// Steps after which a preconditioner that is the whole Hessian is computed anew.
const RENEWED: usize = 40;
/// Steps that are first tried without a preconditioner that is dear: its multiplications are more than so many times those
/// of a step, and more than [`LITTLE`].
const PLAIN: usize = 300;
const DEAR: f64 = 60.0;
const LITTLE: f64 = 1e9;
/// Above this many dimensions the preconditioner would cost more than it saves, and none is used.
const MOST_PRECONDITIONED: usize = 4096;
/// Most numbers in the diagonal blocks of the Hessian for several classes (64 MiB).
const MOST_CURVATURE: usize = 1 << 23;
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
    /// Whether the gradient says that the objective is within a relative 1e-6 of its minimum.
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
    /// Whether the gradient says that the objective is within a relative 1e-3 of its minimum.
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
    let (mut sweep, mut solutions): (Vec<Candidate>, Vec<Vec<f64>>) = (Vec::new(), Vec::new());
    if !task.split.validation.is_empty() {
        let mut problem = Problem::new(task, &task.split.fit)?;
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
            solutions.push(next.x.clone());
            minimum = Some(next);
            progress(sweep.len() as u64, steps);
            if past_the_best(&sweep) {
                break;
            }
        }
    }
    let better = |a: &Candidate, b: &Candidate| {
        a.val_accuracy.total_cmp(&b.val_accuracy).then(b.val_loss.total_cmp(&a.val_loss)).then(a.l2.total_cmp(&b.l2))
    };
    let best = sweep.iter().zip(solutions).max_by(|(a, _), (b, _)| better(a, b));
    let (l2, val_accuracy) = best.as_ref().map_or((penalties[0], None), |(c, _)| (c.l2, Some(c.val_accuracy)));
    let everything: Vec<i64> = (0..task.train.samples() as i64).collect();
    let mut problem = Problem::new(task, &everything)?;
    let minimum = match best {
        None => problem.solve(l2, FINAL_GAP)?,
        Some((_, x)) => problem.proceed(Minimum { x, ..Minimum::default() }, l2, FINAL_GAP)?,
    };
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
    /// Each lane sums its blocks in turn, and the lanes' sums are added in order: the same for every number of threads.
    lanes: Vec<Vec<Block>>,
    /// The same in float32, on a CPU.
    rough: Vec<Vec<softmax::Block>>,
    pool: Arc<ThreadPool>,
    samples: usize,
    columns: usize,
    classes: usize,
    mean: Tensor,
    scale: Tensor,
    constant_features: usize,
    /// Of some samples, once a preconditioner asks for them.
    axes: Option<Axes>,
}

/// Samples along the principal axes of a part of them.
struct Axes {
    /// Orthonormal, in columns, [d + 1, d + 1].
    vectors: Tensor,
    /// Samples in their coordinates, [rows, d + 1].
    rotated: Tensor,
}

impl Axes {
    fn of(x: &Tensor) -> Result<Axes> {
        let centred = x.f_sub(&x.f_mean_dim(0i64, true, Kind::Double)?)?;
        let (_, vectors) = centred.f_tr()?.f_matmul(&centred)?.f_linalg_eigh("L")?;
        Ok(Axes { rotated: x.f_matmul(&vectors)?, vectors })
    }
}

/// An approximate inverse of the Hessian.
enum Curvature {
    /// Factors of diagonal blocks, for as many parameters each; the last may be smaller.
    Blocks(Vec<Cholesky>),
    /// A rougher block for each class.
    ByClass(ByClass),
}

impl Curvature {
    /// Whether it is that of all of the Hessian.
    fn is_whole(&self) -> bool {
        matches!(self, Curvature::Blocks(factors) if factors.len() == 1)
    }

    /// Solves in place.
    fn solve(&self, v: &mut [f64]) {
        match self {
            Curvature::Blocks(factors) => {
                v.par_chunks_mut(factors[0].n()).zip(factors).for_each(|(v, factor)| factor.solve(v));
            }
            Curvature::ByClass(inverse) => inverse.solve(v),
        }
    }
}

/// How products are computed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Precision {
    /// In float32 on some of the samples: near enough for a start.
    Glance,
    /// In float32, in a third of the time.
    Rough,
    /// In float64.
    Exact,
}

/// A part of the samples.
struct Block {
    /// [rows, d + 1]
    x: Tensor,
    /// Class numbers, [rows, 1].
    y: Tensor,
}

impl Problem {
    fn new(task: &Task, rows: &[i64]) -> Result<Problem> {
        let features = task.train.features();
        let block = |rows: &[i64]| -> Result<Tensor> {
            Ok(features.f_index_select(0, &Tensor::f_from_slice(rows)?)?.f_to_device(task.device)?)
        };
        let pool = Arc::new(workers()?);
        let (samples, d) = (rows.len(), task.train.dim());
        let options = (Kind::Double, task.device);
        let mut mean = Tensor::f_zeros([d as i64], options)?;
        for rows in rows.chunks(BLOCK) {
            mean = mean.f_add(&block(rows)?.f_sum_dim_intlist(0i64, false, Kind::Double)?)?;
        }
        mean = mean.f_div_scalar(samples as f64)?;
        let mut variance = Tensor::f_zeros([d as i64], options)?;
        for rows in rows.chunks(BLOCK) {
            let centred = block(rows)?.f_to_kind(Kind::Double)?.f_sub(&mean)?;
            variance = variance.f_add(&centred.f_square()?.f_sum_dim_intlist(0i64, false, Kind::Double)?)?;
        }
        let deviation = variance.f_div_scalar(samples as f64)?.f_sqrt()?;
        let constant = deviation.f_le_tensor(&mean.f_abs()?.f_mul_scalar(CONSTANT)?)?;
        let constant_features = usize::try_from(constant.f_sum(Kind::Int64)?.f_int64_value(&[])?).unwrap_or(0);
        let scale = deviation.f_masked_fill(&constant, 1.0)?;

        // By class, and then in turn: every lane has its share of every class, in whatever order they came.
        let mut rows = rows.to_vec();
        rows.sort_by_key(|&i| task.classes.train[i as usize]);
        let count = LANES.min(samples.div_ceil(softmax::BLOCK));
        let (columns, classes) = (d + 1, task.classes.count());
        let (mut lanes, mut rough) = (Vec::new(), Vec::new());
        for lane in 0..count {
            let rows: Vec<i64> = rows.iter().skip(lane).step_by(count).copied().collect();
            let (mut blocks, mut rough_blocks) = (Vec::new(), Vec::new());
            for rows in even_chunks(&rows, BLOCK) {
                let y: Vec<usize> = rows.iter().map(|&i| task.classes.train[i as usize]).collect();
                let x = augmented(&block(rows)?, &mean, &scale)?;
                if task.device == Device::Cpu {
                    let x = Vec::<f32>::try_from(&x.f_to_kind(Kind::Float)?.f_flatten(0, -1)?)?;
                    let mut x = x.as_slice();
                    for y in even_chunks(&y, softmax::BLOCK) {
                        let (own, rest) = x.split_at(y.len() * columns);
                        rough_blocks.push(pool.install(|| softmax::Block::new(own, columns, y)));
                        x = rest;
                    }
                }
                let y: Vec<i64> = y.into_iter().map(|y| y as i64).collect();
                blocks.push(Block { x, y: Tensor::f_from_slice(&y)?.f_to_device(task.device)?.f_unsqueeze(1)? });
            }
            lanes.push(blocks);
            rough.push(rough_blocks);
        }
        Ok(Problem { lanes, rough, pool, samples, columns, classes, mean, scale, constant_features, axes: None })
    }

    fn classifier(&self, parameters: &[f64]) -> Result<Classifier> {
        Ok(Classifier {
            mean: self.mean.shallow_clone(),
            scale: self.scale.shallow_clone(),
            weight: matrix(parameters, self.columns, self.mean.device())?,
        })
    }

    /// The mean cross-entropy, and its gradient.
    fn loss(&mut self, parameters: &[f64], precision: Precision) -> Result<(f64, Vec<f64>)> {
        let (samples, loss, mut gradient) = match precision {
            Precision::Glance => {
                rough_sums(&self.pool, &self.rough[..self.rough.len().div_ceil(GLANCE)], parameters, self.columns)
            }
            Precision::Rough => rough_sums(&self.pool, &self.rough, parameters, self.columns),
            Precision::Exact => self.sums(parameters)?,
        };
        let samples = samples as f64;
        gradient.iter_mut().for_each(|g| *g /= samples);
        Ok((loss / samples, gradient))
    }

    /// The samples, and the cross-entropy and its gradient summed over them.
    fn sums(&mut self, parameters: &[f64]) -> Result<(usize, f64, Vec<f64>)> {
        let (columns, classes, device) = (self.columns, self.classes as i64, self.mean.device());
        let padding = (self.classes.next_multiple_of(WIDTH) - self.classes) as i64;
        let lane_sums = |lane: &mut Vec<Block>| -> Result<Option<(Tensor, Tensor)>> {
            let weight = matrix(parameters, columns, device)?.f_pad([0, padding], "constant", 0.0)?;
            let mut sums: Option<(Tensor, Tensor)> = None;
            for Block { x, y } in lane.iter() {
                let log_p = x.f_matmul(&weight)?.f_narrow(1, 0, classes)?.f_log_softmax(1, Kind::Double)?;
                let loss = log_p.f_gather(1, y, false)?.f_sum(Kind::Double)?.f_neg()?;
                let residual = log_p.f_exp()?.f_scatter_add(1, y, &y.f_to_kind(Kind::Double)?.f_fill(-1.0)?)?;
                let gradient = x.f_tr()?.f_matmul(&residual.f_pad([0, padding], "constant", 0.0)?)?;
                sums = Some(match sums {
                    None => (loss, gradient),
                    Some((l, g)) => (l.f_add(&loss)?, g.f_add(&gradient)?),
                });
            }
            Ok(sums)
        };
        let lanes = &mut self.lanes;
        let sums: Vec<_> = self.pool.install(|| lanes.par_iter_mut().map(lane_sums).collect::<Result<_>>())?;
        let mut sums = sums.into_iter().flatten();
        let (mut loss, mut gradient) = sums.next().ok_or_else(|| Error::Input("no samples to fit".into()))?;
        for (l, g) in sums {
            (loss, gradient) = (loss.f_add(&l)?, gradient.f_add(&g)?);
        }
        let gradient = numbers(&gradient.f_narrow(1, 0, classes)?.f_tr()?.f_contiguous()?)?;
        Ok((self.samples, loss.f_double_value(&[])?, gradient))
    }

    /// The loss with its penalty, and the gradient of both.
    fn objective(&mut self, parameters: &[f64], l2: f64, precision: Precision) -> Result<(f64, Vec<f64>)> {
        let (mut value, mut gradient) = self.loss(parameters, precision)?;
        for (w, g) in parameters.chunks(self.columns).zip(gradient.chunks_mut(self.columns)) {
            for (w, g) in w[..self.columns - 1].iter().zip(g) {
                value += 0.5 * l2 * w * w;
                *g += l2 * w;
            }
        }
        Ok((value, gradient))
    }

    /// Classes whose weights the preconditioner takes together: as many as there is room for.
    fn together(&self) -> usize {
        (MOST_CURVATURE / (self.classes * self.columns * self.columns)).min(self.classes)
    }

    /// Whether the preconditioner costs more than many steps do without it.
    fn is_preconditioner_dear(&self) -> bool {
        let block = (self.together().max(1) * self.columns) as f64;
        let blocks = if self.together() == 0 { 1 } else { self.classes.div_ceil(self.together()) };
        let cost = blocks as f64 * block.powi(3);
        let step = (self.samples * self.columns * self.classes) as f64;
        cost > LITTLE && cost > DEAR * step
    }

    /// The preconditioner at a point; none where it would be too large.
    fn preconditioner(&mut self, parameters: &[f64], l2: f64) -> Result<Option<Curvature>> {
        let (columns, classes) = (self.columns, self.classes);
        if columns > MOST_PRECONDITIONED {
            return Ok(None);
        }
        let together = self.together();
        let wanted = (4 * together * columns).max(16 * columns).min(8192.max(4 * columns));
        let every = self.samples.div_ceil(wanted) as i64;
        let parts: Vec<Tensor> =
            self.lanes.iter().flatten().map(|block| Ok(block.x.f_slice(0, 0, None, every)?)).collect::<Result<_>>()?;
        let x = Tensor::f_cat(&parts, 0)?;
        if together == 0 {
            return Ok(Some(Curvature::ByClass(self.by_class(x, parameters, l2)?)));
        }
        // On a worker, as all products here: LibTorch's own threads may sum in another order.
        let (x, p) = self.pool.install(move || -> Result<(Tensor, Tensor)> {
            let p = x.f_matmul(&matrix(parameters, columns, x.device())?)?.f_softmax(1, Kind::Double)?;
            Ok((x, p))
        })?;
        let (samples, diagonal) = (x.size()[0] as f64, p.f_sub(&p.f_square()?)?);
        // For each class: the weights of the samples in its row of blocks of the Hessian, [samples, classes taken together].
        let weights: Vec<(Tensor, Tensor)> = (0..classes)
            .map(|class| {
                let first = class / together * together;
                let (class, count) = (class as i64, together.min(classes - first) as i64);
                let weights = p.f_narrow(1, first as i64, count)?.f_mul(&p.f_narrow(1, class, 1)?.f_neg()?)?;
                let mut own = weights.f_narrow(1, class - first as i64, 1)?;
                own.f_copy_(&diagonal.f_narrow(1, class, 1)?)?;
                Ok((x.shallow_clone(), weights))
            })
            .collect::<Result<_>>()?;
        let rows = |(x, weights): (Tensor, Tensor)| -> Result<Vec<f64>> {
            let scaled = x.f_unsqueeze(1)?.f_mul(&weights.f_unsqueeze(2)?)?.f_flatten(1, 2)?;
            numbers(&x.f_tr()?.f_matmul(&scaled)?.f_div_scalar(samples)?)
        };
        let rows: Vec<Vec<f64>> = self.pool.install(|| weights.into_par_iter().map(rows).collect::<Result<_>>())?;
        let factor = |rows: &[Vec<f64>]| {
            let n = rows.len() * columns;
            let mut matrix = rows.concat();
            matrix.iter_mut().step_by(n + 1).for_each(|v| *v += l2);
            Cholesky::factor(matrix, n)
        };
        let factors = self.pool.install(|| rows.chunks(together).map(factor).collect::<Result<_>>())?;
        Ok(Some(Curvature::Blocks(factors)))
    }

    /// The preconditioner from samples [rows, d + 1], which are the same in every call.
    fn by_class(&mut self, x: Tensor, parameters: &[f64], l2: f64) -> Result<ByClass> {
        let (columns, axes) = (self.columns, self.axes.take());
        let (axes, inverse) = self.pool.install(move || -> Result<(Axes, ByClass)> {
            let axes = axes.map_or_else(|| Axes::of(&x), Ok)?;
            let (x, samples) = (&axes.rotated, x.size()[0] as f64);
            let turned = axes.vectors.f_tr()?.f_matmul(&matrix(parameters, columns, x.device())?)?;
            let p = x.f_matmul(&turned)?.f_softmax(1, Kind::Double)?;
            let weights = p.f_sub(&p.f_square()?)?;
            let sums = weights.f_sum_dim_intlist(0i64, false, Kind::Double)?;
            // A class without any weight has neither mean nor variance.
            let shares = weights.f_div(&sums.f_clamp_min(f64::MIN_POSITIVE)?)?.f_tr()?;
            let means = shares.f_matmul(x)?;
            let variances = shares.f_matmul(&x.f_square()?)?.f_sub(&means.f_square()?)?.f_clamp_min(0.0)?;
            let [vectors, weights, means, variances] =
                [&axes.vectors, &sums.f_div_scalar(samples)?, &means, &variances].map(numbers);
            let inverse = ByClass::new(&vectors?, &weights?, &means?, &variances?, l2);
            Ok((axes, inverse))
        })?;
        self.axes = Some(axes);
        Ok(inverse)
    }

    /// Fits one penalty from zero, by way of stronger ones.
    fn solve(&mut self, l2: f64, gap: f64) -> Result<Minimum> {
        let mut minimum = Minimum { x: vec![0.0; self.columns * self.classes], ..Minimum::default() };
        let mut stronger = 1.0;
        while stronger > 2.0 * l2 {
            minimum = match self.mean.device() {
                Device::Cpu => self.approach(minimum, stronger, WAY_GAP, Precision::Glance)?,
                _ => self.descend(minimum, stronger, WAY_GAP, Precision::Exact)?,
            };
            stronger *= 0.1;
        }
        self.proceed(minimum, l2, gap)
    }

    /// Fits one penalty from a known point, adding to its steps: on a CPU as far as float32 leads, and from there in float64,
    /// which alone says that it is enough.
    fn proceed(&mut self, from: Minimum, l2: f64, gap: f64) -> Result<Minimum> {
        if self.mean.device() != Device::Cpu {
            return self.descend(from, l2, gap, Precision::Exact);
        }
        let near = self.approach(from, l2, ROUGH_SHARE * gap, Precision::Rough)?;
        let (value, gradient) = self.objective(&near.x, l2, Precision::Exact)?;
        let gradient_norm = dot(&gradient, &gradient).sqrt();
        if enough(value, gradient_norm, l2, gap) {
            return Ok(Minimum { value, gradient_norm, converged: true, ..near });
        }
        self.descend(near, l2, gap, Precision::Exact)
    }

    /// Descends in float32, where that has the range for it.
    fn approach(&mut self, from: Minimum, l2: f64, gap: f64, precision: Precision) -> Result<Minimum> {
        match self.descend(from.clone(), l2, gap, precision) {
            Err(Error::NonFinite(_)) => Ok(from),
            near => near,
        }
    }

    fn descend(&mut self, from: Minimum, l2: f64, gap: f64, precision: Precision) -> Result<Minimum> {
        let rounding = if precision == Precision::Exact { ROUNDING } else { ROUGH_ROUNDING };
        let mut minimum = from;
        let mut plain = self.is_preconditioner_dear();
        loop {
            let curvature = if plain { None } else { self.preconditioner(&minimum.x, l2)? };
            let pool = self.pool.clone();
            let precondition = |v: &mut [f64]| pool.install(|| curvature.iter().for_each(|c| c.solve(v)));
            // Where the Hessian has changed so much that its old self is no help, it is taken anew; an approximation of it
            // gains nothing by that.
            let most = match &curvature {
                _ if plain => PLAIN,
                Some(curvature) if curvature.is_whole() => RENEWED,
                _ => MOST_ITERATIONS,
            };
            let objective = |x: &[f64]| self.objective(x, l2, precision);
            let enough = |value, norm| enough(value, norm, l2, gap);
            let next = minimise(minimum.x, objective, precondition, enough, rounding, most)?;
            let stuck = next.iterations < most;
            minimum = Minimum { iterations: next.iterations + minimum.iterations, ..next };
            if minimum.converged || stuck || minimum.iterations >= MOST_ITERATIONS {
                return Ok(minimum);
            }
            plain = false;
        }
    }
}

/// The samples of lanes in float32, and the cross-entropy and its gradient [classes, d + 1] summed over them.
fn rough_sums(
    pool: &ThreadPool,
    lanes: &[Vec<softmax::Block>],
    parameters: &[f64],
    columns: usize,
) -> (usize, f64, Vec<f64>) {
    let weights: Vec<f32> = parameters.iter().map(|w| *w as f32).collect();
    let weights = Panels::left(&weights, columns);
    let samples = lanes.iter().flatten().map(softmax::Block::rows).sum();
    let lane_sums = |lane: &Vec<softmax::Block>| {
        let mut sums = softmax::Sums::new(parameters.len());
        lane.iter().for_each(|block| sums.add(block, &weights));
        sums
    };
    let sums: Vec<_> = pool.install(|| lanes.par_iter().map(lane_sums).collect());
    let (mut loss, mut gradient) = (0.0, vec![0.0; parameters.len()]);
    for lane in sums {
        loss += lane.loss;
        gradient.iter_mut().zip(lane.gradient).for_each(|(sum, v)| *sum += f64::from(v));
    }
    (samples, loss, gradient)
}

/// Chunks of at most `most`, none of which is much smaller than another.
fn even_chunks<T>(items: &[T], most: usize) -> std::slice::Chunks<'_, T> {
    items.chunks(items.len().div_ceil(items.len().div_ceil(most).max(1)).max(1))
}

/// Whether an objective is within a relative `gap` of its minimum: one that is strongly convex with modulus m is within
/// g^2 / (2 m) of it where its gradient has norm g; m is l2, or less where the biases bend less.
fn enough(value: f64, gradient_norm: f64, l2: f64, gap: f64) -> bool {
    gradient_norm * gradient_norm <= 2.0 * l2.min(MOST_MODULUS) * gap * value
}

/// Parameters as a matrix [d + 1, classes].
fn matrix(parameters: &[f64], columns: usize, device: Device) -> Result<Tensor> {
    let rows = Tensor::f_from_slice(parameters)?.f_view([-1, columns as i64])?;
    Ok(rows.f_to_device(device)?.f_tr()?.f_contiguous()?)
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(Vec::<f64>::try_from(&tensor.f_to_device(Device::Cpu)?.f_flatten(0, -1)?)?)
}
