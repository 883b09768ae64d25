//! One training step: a batch in, one update out, and its measurements left on the device.

use super::chunk::{self, Buffers};
use crate::config::precision::Precision;
use crate::dist::{Gradients, Group};
use crate::error::{Error, Result};
use crate::loss::{Diagnostics, Loss, LossOutput};
use crate::optim::{GradScaler, Optimizer, gradient_norm, gradients, non_finite_gradients};
use crate::torch::{allow_tf32, autocast, known_gradient};
use std::ops::Range;
use tch::{Device, Kind, Tensor};

/// What contrastive training trains.
pub trait Learner {
    /// What a step sees, on the learner's device.
    type Batch;

    /// The trainable parameters, by their names.
    fn parameters(&self) -> Vec<(String, Tensor)>;

    /// The buffers, such as running statistics, that passes in training change: handles to the tensors themselves.
    fn buffers(&self) -> Vec<Tensor>;

    /// The number of samples of a batch.
    fn samples(batch: &Self::Batch) -> i64;

    /// Some samples of a batch as a batch of their own, on the same device.
    ///
    /// # Errors
    /// Samples that the batch does not have.
    fn part(batch: &Self::Batch, samples: Range<i64>) -> Result<Self::Batch>;

    /// Two embeddings of each sample of a batch, in training. What is random in them is drawn from LibTorch's generator.
    ///
    /// # Shapes
    /// [N, d], and [N, d] or, with further candidates, [g N, d]; row i of each N rows is of sample i.
    ///
    /// # Errors
    /// Batches that do not fit, and whatever LibTorch reports.
    fn embed(&self, batch: &Self::Batch) -> Result<(Tensor, Tensor)>;

    /// What of a batch is not finite, if something is; whole numbers always are. Waits for the device.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    fn fault(&self, _batch: &Self::Batch) -> Result<Option<String>> {
        Ok(None)
    }
}

/// How a step computes.
#[derive(Debug, Clone, Copy, Default)]
pub struct StepOptions {
    /// What the encoder and projector compute in.
    pub precision: Precision,
    /// Whether their float32 products may use TensorFloat-32 on CUDA.
    pub tf32: bool,
    /// The largest norm of the gradient; a longer one is shortened to it.
    pub clip_norm: Option<f64>,
    /// Samples that pass the encoder at a time; all of a batch where there is none, or where a batch has no more.
    pub chunk: Option<u32>,
}

/// The embeddings of a batch and the loss over them.
struct Forward {
    z_1: Tensor,
    z_2: Tensor,
    output: LossOutput,
    /// Where the batch passed in chunks: the embeddings are leaves then.
    chunks: Option<Chunks>,
}

/// A batch in chunks.
struct Chunks {
    ranges: Vec<Range<i64>>,
    buffers: Buffers,
}

/// What a step needs, together.
pub struct Stepper<L> {
    /// What is trained.
    pub model: L,
    /// The optimizer over the model's parameters.
    pub optimizer: Optimizer,
    /// The loss, with its running state if it has one.
    pub loss: Loss,
    options: StepOptions,
    device: Device,
    /// For float16.
    scaler: Option<GradScaler>,
    parameters: Vec<(String, Tensor)>,
    /// 1 from the first step whose loss or gradient was not finite: from there on no update is made. In float16 a gradient
    /// that overflows is no such case: the scaler skips that step alone.
    halted: Tensor,
    /// Sums gradients over the processes, where there are several.
    shared: Option<Gradients>,
    group: Group,
}

/// The names of the leading entries of a step's packed measurements; the loss's own follow.
const STEP_SCALARS: [&str; 5] = ["halted", "loss", "grad_norm", "loss_scale", "skipped_steps"];

/// The measurements of one step, read back from the device.
#[derive(Debug, Clone)]
pub struct StepScalars {
    /// Whether the loss or a gradient of this step, or of an earlier one, was not finite.
    pub halted: bool,
    /// The loss.
    pub loss: f64,
    /// The norm of the gradient over all parameters.
    pub grad_norm: f64,
    /// Scale and skipped steps of float16 training, and the loss's diagnostics, by name; those that there are not are left out.
    pub diagnostics: Vec<(&'static str, f64)>,
}

impl<L: Learner> Stepper<L> {
    /// Brings the parts together; `model` is on `device` already.
    ///
    /// # Errors
    /// Chunks of no samples, what the device cannot do, and whatever LibTorch reports.
    pub fn new(model: L, optimizer: Optimizer, loss: Loss, options: StepOptions, device: Device) -> Result<Stepper<L>> {
        if options.chunk == Some(0) {
            return Err(Error::Input("a step in chunks: expected at least 1 sample in a chunk, found 0".into()));
        }
        let scaler = if options.precision == Precision::Fp16 { Some(GradScaler::new(device)?) } else { None };
        Ok(Stepper {
            parameters: model.parameters(),
            model,
            optimizer,
            loss,
            options,
            device,
            scaler,
            halted: Tensor::f_zeros([0i64; 0], (Kind::Float, device))?,
            shared: None,
            group: Group::alone(),
        })
    }

    /// The step of one of several processes: the loss of the whole batch, and gradients that are summed over the processes.
    pub fn among(self, group: &Group) -> Stepper<L> {
        let shared = (!group.is_alone()).then(|| Gradients::new(group, &self.parameters));
        Stepper { loss: self.loss.among(group.clone()), shared, group: group.clone(), ..self }
    }

    /// The loss scale of float16 training.
    pub fn scaler(&self) -> Option<&GradScaler> {
        self.scaler.as_ref()
    }

    /// The same, to put a state into.
    pub fn scaler_mut(&mut self) -> Option<&mut GradScaler> {
        self.scaler.as_mut()
    }

    /// The embeddings of a batch and the loss over them. TensorFloat-32, where allowed, is on until the loss and again
    /// after it, for the backward pass of the encoder.
    fn forward(&mut self, batch: &L::Batch, seed: i64) -> Result<Forward> {
        let StepOptions { tf32, chunk, .. } = self.options;
        let samples = L::samples(batch);
        let chunk = chunk.map(i64::from).filter(|chunk| *chunk < samples);
        allow_tf32(tf32)?;
        let (z_1, z_2, chunks) = match chunk {
            None => {
                tch::manual_seed(seed);
                let (z_1, z_2) = self.embed(batch)?;
                (z_1, z_2, None)
            }
            Some(chunk) => {
                let buffers = Buffers::of(self.model.buffers())?;
                let chunks = Chunks { ranges: chunk::ranges(samples, chunk), buffers };
                let (z_1, z_2) = tch::no_grad(|| self.embed_in_chunks(batch, seed, &chunks))?;
                (z_1.f_set_requires_grad(true)?, z_2.f_set_requires_grad(true)?, Some(chunks))
            }
        };
        allow_tf32(false)?;
        let output = self.loss.forward(&z_1, &z_2)?;
        allow_tf32(tf32)?;
        Ok(Forward { z_1, z_2, output, chunks })
    }

    /// The embeddings of a batch as the encoder gives them in its precision.
    fn embed(&self, batch: &L::Batch) -> Result<(Tensor, Tensor)> {
        let embed = || self.model.embed(batch);
        match self.options.precision.cast() {
            Some(kind) => autocast(self.device, kind, embed),
            None => embed(),
        }
    }

    /// The same of one chunk, with the random numbers and the buffers that are its own.
    fn embed_chunk(&self, batch: &L::Batch, seed: i64, chunks: &Chunks, number: usize) -> Result<(Tensor, Tensor)> {
        let samples = &chunks.ranges[number];
        chunks.buffers.rewind()?;
        tch::manual_seed(chunk::seed(seed, number));
        self.embed(&L::part(batch, samples.clone())?).map_err(|e| {
            if samples.end - samples.start > 1 || !matches!(e, Error::Input(_) | Error::Data { .. }) {
                return e;
            }
            let (all, chunk) = (L::samples(batch), chunks.ranges[0].end);
            Error::Config(format!(
                "train.chunk: {chunk} makes chunk {} of {} a single one of {all} samples, which the model does not take: {e}. With {} no \
                 chunk is a single one",
                number + 1,
                chunks.ranges.len(),
                chunk::without_single(all, chunk)
            ))
        })
    }

    /// The embeddings of a batch, chunk by chunk.
    fn embed_in_chunks(&self, batch: &L::Batch, seed: i64, chunks: &Chunks) -> Result<(Tensor, Tensor)> {
        let pairs = (0..chunks.ranges.len()).map(|number| self.embed_chunk(batch, seed, chunks, number));
        let (first, second): (Vec<Tensor>, Vec<Tensor>) = pairs.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        Ok((chunk::joined(&first, &chunks.ranges)?, chunk::joined(&second, &chunks.ranges)?))
    }

    /// The gradients of `loss`, the forward pass's own or a multiple of it, added to those of the parameters.
    fn backward(&mut self, batch: &L::Batch, seed: i64, forward: Forward, loss: &Tensor) -> Result<()> {
        let Some(mut chunks) = forward.chunks else { return self.last_backward(loss) };
        loss.f_backward()?;
        let all = L::samples(batch);
        let (grad_1, grad_2) = (forward.z_1.grad(), forward.z_2.grad());
        let value = Tensor::f_zeros([0i64; 0], (Kind::Float, self.device))?;
        for number in 0..chunks.ranges.len() {
            let (z_1, z_2) = self.embed_chunk(batch, seed, &chunks, number)?;
            let samples = &chunks.ranges[number];
            let (g_1, g_2) = (chunk::rows(&grad_1, all, samples)?, chunk::rows(&grad_2, all, samples)?);
            let passed_on = known_gradient(&z_1, &z_2, &value, &g_1, &g_2)?;
            if number + 1 < chunks.ranges.len() {
                passed_on.f_backward()?;
            } else {
                self.last_backward(&passed_on)?;
            }
            chunks.buffers.add(samples.end - samples.start)?;
        }
        chunks.buffers.settle(all)
    }

    /// The backward pass at whose end the parameters have their gradients: those of all processes.
    fn last_backward(&mut self, loss: &Tensor) -> Result<()> {
        self.shared.as_mut().map_or_else(|| Ok(loss.f_backward()?), |shared| shared.backward(loss))
    }

    /// One update with learning rate `lr`. Nothing is read from the device: what was measured is returned packed, for
    /// [`StepScalars::read`]. A step whose loss or gradient is not finite changes no weight.
    ///
    /// LibTorch's generator is seeded with `seed`. With `chunk` samples at a time the batch passes twice, without gradients for
    /// the loss and then with them (cached gradients, arXiv 2101.06983). Running statistics then move to the mean of what
    /// each chunk alone would have made of them, by their samples.
    ///
    /// # Errors
    /// What the model, the loss or LibTorch report.
    pub fn step(&mut self, batch: &L::Batch, lr: f64, seed: i64) -> Result<Tensor> {
        let packed = self.update(batch, lr, seed);
        self.group.watch(packed)
    }

    fn update(&mut self, batch: &L::Batch, lr: f64, seed: i64) -> Result<Tensor> {
        self.optimizer.zero_grad()?;
        let forward = self.forward(batch, seed)?;
        let diagnostics = forward.output.diagnostics.scalars().f_to_kind(Kind::Float)?;
        let own = forward.output.loss.shallow_clone();
        let loss = own.detach().f_to_kind(Kind::Float)?;
        let scaled = self.scaler.as_ref().map(|scaler| scaler.scale(&own)).transpose()?.unwrap_or(own);
        self.backward(batch, seed, forward, &scaled)?;
        let overflow = self.scaler.as_ref().map(|scaler| scaler.unscale(&gradients(&self.parameters))).transpose()?;
        let norm = gradient_norm(&self.parameters)?;
        if let Some(most) = self.options.clip_norm {
            shorten(&self.parameters, &norm, most)?;
        }
        let must_be_finite = if overflow.is_some() { loss.shallow_clone() } else { &loss + &norm };
        let broken = must_be_finite.f_isfinite()?.f_logical_not()?.f_to_kind(Kind::Float)?;
        self.halted = self.halted.f_maximum(&broken)?;
        let skip = overflow.as_ref().map_or(Ok(self.halted.shallow_clone()), |o| self.halted.f_maximum(o))?;
        self.optimizer.step(lr, Some(&skip))?;
        let none = loss.f_full_like(f64::NAN)?;
        let mut own = vec![self.halted.shallow_clone(), loss, norm, none.shallow_clone(), none];
        if let (Some(scaler), Some(overflow)) = (&mut self.scaler, overflow) {
            scaler.update(&overflow)?;
            let [scale, skipped] = scaler.measurements();
            (own[3], own[4]) = (scale.shallow_clone(), skipped.shallow_clone());
        }
        let own = Tensor::f_stack(&own, 0)?;
        Ok(Tensor::f_cat(&[own, diagnostics], 0)?)
    }

    /// Says what is not finite in a batch, by computing it once more, as the step of `seed` did: the batch, the embeddings, the loss,
    /// or gradients by name.
    ///
    /// # Errors
    /// What the model, the loss or LibTorch report; an explanation that names embeddings comes as [`Error::NonFinite`] from the loss.
    pub fn explain(&mut self, batch: &L::Batch, seed: i64) -> Result<String> {
        let fault = self.model.fault(batch)?;
        let parameter = self.parameters.iter().find(|(_, t)| !is_finite(t).unwrap_or(true));
        if let Some(what) =
            self.anywhere(fault.or(parameter.map(|(name, _)| format!("the parameter {name} is not finite"))))?
        {
            return Ok(what);
        }
        self.optimizer.zero_grad()?;
        let forward = self.forward(batch, seed)?;
        let embeddings = match Loss::check_finite(&forward.z_1, &forward.z_2) {
            Err(Error::NonFinite(what)) => Some(what),
            other => other.map(|()| None)?,
        };
        if let Some(what) = self.anywhere(embeddings)? {
            return Ok(what);
        }
        let loss = forward.output.loss.shallow_clone();
        if !is_finite(&loss)? {
            return Ok(format!("the loss is {} while all embeddings are finite", loss.f_double_value(&[])?));
        }
        self.backward(batch, seed, forward, &loss)?;
        let names = non_finite_gradients(&self.parameters)?;
        Ok(match names.len() {
            0 => "the norm of the gradient overflows float32, though each of its elements is finite".to_string(),
            n => format!("the gradient of {} is not finite ({n} of {} parameters)", names[0], self.parameters.len()),
        })
    }
}

impl<L> Stepper<L> {
    /// What this process or, with its rank, the first one of the others has found.
    fn anywhere(&self, found: Option<String>) -> Result<Option<String>> {
        if self.group.is_alone() {
            return Ok(found);
        }
        let first = self.group.first_said(found)?;
        Ok(first.map(|(rank, text)| format!("on rank {rank} {text}")))
    }
}

impl StepScalars {
    /// Reads packed measurements; this is where the host waits for the device.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn read(packed: &Tensor) -> Result<StepScalars> {
        let values = Vec::<f32>::try_from(packed.f_to_device(Device::Cpu)?)?;
        let diagnostics = STEP_SCALARS[3..].iter().chain(&Diagnostics::SCALARS).zip(&values[3..]);
        Ok(StepScalars {
            halted: values[0] != 0.0,
            loss: f64::from(values[1]),
            grad_norm: f64::from(values[2]),
            diagnostics: diagnostics.filter(|(_, v)| !v.is_nan()).map(|(name, v)| (*name, f64::from(*v))).collect(),
        })
    }
}

/// Shortens the gradients to a norm of at most `most` together, as PyTorch's `clip_grad_norm_`; nothing waits for the device.
fn shorten(parameters: &[(String, Tensor)], norm: &Tensor, most: f64) -> Result<()> {
    let _guard = tch::no_grad_guard();
    let share = norm.f_add_scalar(1e-6)?.f_reciprocal()?.f_mul_scalar(most)?.f_clamp_max(1.0)?;
    for mut gradient in gradients(parameters) {
        let _ = gradient.f_mul_(&share)?;
    }
    Ok(())
}

/// Whether all of a tensor is finite.
pub(super) fn is_finite(t: &Tensor) -> Result<bool> {
    Ok(t.f_isfinite()?.f_all()?.f_int64_value(&[])? != 0)
}
