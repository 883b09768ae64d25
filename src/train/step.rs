//! One training step: two views in, one update out, and its measurements left on the device.

use crate::config::vision::Views;
use crate::error::{Error, Result};
use crate::loss::{Diagnostics, Loss, LossOutput};
use crate::model::Model;
use crate::optim::{Optimizer, gradient_norm, non_finite_gradients};
use tch::{Device, Kind, Tensor};

/// What a step needs, together.
pub struct Stepper {
    /// Encoder and projector.
    pub model: Model,
    /// The optimizer over the model's parameters.
    pub optimizer: Optimizer,
    /// The loss, with its running state if it has one.
    pub loss: Loss,
    views: Views,
    parameters: Vec<(String, Tensor)>,
    /// 1 from the first step whose loss or gradient was not finite: from there on no update is made.
    halted: Tensor,
}

/// The names of the leading entries of a step's packed measurements; the loss's own follow.
const STEP_SCALARS: [&str; 3] = ["halted", "loss", "grad_norm"];

/// The measurements of one step, read back from the device.
#[derive(Debug, Clone)]
pub struct StepScalars {
    /// Whether the loss or a gradient of this step, or of an earlier one, was not finite.
    pub halted: bool,
    /// The loss.
    pub loss: f64,
    /// The norm of the gradient over all parameters.
    pub grad_norm: f64,
    /// The loss's diagnostics by name; those that the loss does not have are left out.
    pub diagnostics: Vec<(&'static str, f64)>,
}

impl Stepper {
    /// Brings the parts together; `model` is on `device` already.
    pub fn new(model: Model, optimizer: Optimizer, loss: Loss, views: Views, device: Device) -> Stepper {
        let parameters = model.parameters();
        Stepper { model, optimizer, loss, views, parameters, halted: Tensor::zeros([], (Kind::Float, device)) }
    }

    /// The embeddings of both views and the loss over them.
    fn forward(&mut self, view_1: &Tensor, view_2: &Tensor) -> Result<(Tensor, Tensor, LossOutput)> {
        let (z_1, z_2) = match self.views {
            Views::Separate => (self.model.forward(view_1, true)?.1, self.model.forward(view_2, true)?.1),
            Views::Joint => {
                let n = view_1.size()[0];
                let z = self.model.forward(&Tensor::f_cat(&[view_1, view_2], 0)?, true)?.1;
                (z.f_narrow(0, 0, n)?, z.f_narrow(0, n, n)?)
            }
        };
        let output = self.loss.forward(&z_1, &z_2)?;
        Ok((z_1, z_2, output))
    }

    /// One update with learning rate `lr`. Nothing is read from the device: what was measured is returned packed, for
    /// [`Stepper::read`]. A step whose loss or gradient is not finite changes no weight.
    ///
    /// # Shapes
    /// Views [B, 3, H, W] on the model's device.
    ///
    /// # Errors
    /// What the model, the loss or LibTorch report.
    pub fn step(&mut self, view_1: &Tensor, view_2: &Tensor, lr: f64) -> Result<Tensor> {
        self.optimizer.zero_grad()?;
        let (_, _, output) = self.forward(view_1, view_2)?;
        output.loss.f_backward()?;
        let loss = output.loss.detach().f_to_kind(Kind::Float)?;
        let norm = gradient_norm(&self.parameters)?;
        let broken = (&loss + &norm).f_isfinite()?.f_logical_not()?.f_to_kind(Kind::Float)?;
        self.halted = self.halted.f_maximum(&broken)?;
        self.optimizer.step(lr, Some(&self.halted))?;
        let own = Tensor::f_stack(&[&self.halted, &loss, &norm], 0)?;
        Ok(Tensor::f_cat(&[own, output.diagnostics.scalars().f_to_kind(Kind::Float)?], 0)?)
    }

    /// Reads packed measurements; this is where the host waits for the device.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn read(packed: &Tensor) -> Result<StepScalars> {
        let values = Vec::<f32>::try_from(packed.f_to_device(Device::Cpu)?)?;
        let diagnostics = Diagnostics::SCALARS.iter().zip(&values[STEP_SCALARS.len()..]);
        Ok(StepScalars {
            halted: values[0] != 0.0,
            loss: f64::from(values[1]),
            grad_norm: f64::from(values[2]),
            diagnostics: diagnostics.filter(|(_, v)| !v.is_nan()).map(|(name, v)| (*name, f64::from(*v))).collect(),
        })
    }

    /// Says what is not finite in a batch, by computing it once more: the images, the embeddings, the loss, or gradients by name.
    ///
    /// # Errors
    /// What the model, the loss or LibTorch report; an explanation that names embeddings comes as [`Error::NonFinite`] from the loss.
    pub fn explain(&mut self, view_1: &Tensor, view_2: &Tensor) -> Result<String> {
        for (name, view) in [("view 1", view_1), ("view 2", view_2)] {
            if !is_finite(view)? {
                return Ok(format!("the images of {name} are not finite"));
            }
        }
        if let Some(name) = self.parameters.iter().find_map(|(name, t)| (!is_finite(t).unwrap_or(true)).then_some(name))
        {
            return Ok(format!("the parameter {name} is not finite"));
        }
        self.optimizer.zero_grad()?;
        let (z_1, z_2, output) = self.forward(view_1, view_2)?;
        if let Err(Error::NonFinite(what)) = Loss::check_finite(&z_1, &z_2) {
            return Ok(what);
        }
        if !is_finite(&output.loss)? {
            return Ok(format!("the loss is {} while all embeddings are finite", output.loss.f_double_value(&[])?));
        }
        output.loss.f_backward()?;
        let names = non_finite_gradients(&self.parameters)?;
        Ok(match names.len() {
            0 => "the norm of the gradient overflows float32, though each of its elements is finite".to_string(),
            n => format!("the gradient of {} is not finite ({n} of {} parameters)", names[0], self.parameters.len()),
        })
    }
}

fn is_finite(t: &Tensor) -> Result<bool> {
    Ok(t.f_isfinite()?.f_all()?.f_int64_value(&[])? != 0)
}
