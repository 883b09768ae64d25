//! Convolution, batch normalisation and linear layers with PyTorch's names, initialisation and numbers.

use super::store::Path;
use crate::error::{Error, Result};
use tch::{Device, Kind, Tensor};

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

/// A convolution without bias, initialised as torchvision does in its ResNets (Kaiming normal, fan out, ReLU).
#[derive(Debug)]
pub(super) struct Conv2d {
    weight: Tensor,
    stride: i64,
    padding: i64,
}

impl Conv2d {
    /// Padding keeps the size at stride 1, as in every convolution of a ResNet.
    pub fn new(path: &Path, inputs: i64, outputs: i64, kernel: i64, stride: i64) -> Result<Conv2d> {
        let fan_out = (outputs * kernel * kernel) as f64;
        let mut weight = Tensor::f_empty([outputs, inputs, kernel, kernel], CPU)?;
        let weight = weight.f_normal_(0.0, (2.0 / fan_out).sqrt())?;
        Ok(Conv2d { weight: path.parameter("weight", weight)?, stride, padding: kernel / 2 })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_conv2d(&self.weight, None::<&Tensor>, self.stride, self.padding, 1, 1)?)
    }
}

/// Batch normalisation over images: weight 1 and bias 0 at first, momentum 0.1, eps 1e-5, batches counted.
#[derive(Debug)]
pub(super) struct BatchNorm2d {
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    num_batches_tracked: Tensor,
}

impl BatchNorm2d {
    const MOMENTUM: f64 = 0.1;
    const EPS: f64 = 1e-5;

    pub fn new(path: &Path, channels: i64) -> Result<BatchNorm2d> {
        Ok(BatchNorm2d {
            weight: path.parameter("weight", Tensor::f_ones([channels], CPU)?)?,
            bias: path.parameter("bias", Tensor::f_zeros([channels], CPU)?)?,
            running_mean: path.buffer("running_mean", Tensor::f_zeros([channels], CPU)?),
            running_var: path.buffer("running_var", Tensor::f_ones([channels], CPU)?),
            num_batches_tracked: path.buffer("num_batches_tracked", Tensor::from(0i64)),
        })
    }

    pub fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        if train {
            let (n, _, h, w) = x.size4()?;
            if n * h * w < 2 {
                return Err(Error::Input(format!(
                    "batch normalisation in training needs more than one value a channel, found a batch of {n} with \
                     {h}x{w} pixels left at this layer; use a larger batch or larger images"
                )));
            }
            let _ = self.num_batches_tracked.shallow_clone().f_add_scalar_(1)?;
        }
        Ok(x.f_batch_norm(
            Some(&self.weight),
            Some(&self.bias),
            Some(&self.running_mean),
            Some(&self.running_var),
            train,
            Self::MOMENTUM,
            Self::EPS,
            true,
        )?)
    }
}

/// A linear layer without bias, initialised as `torch.nn.Linear`.
#[derive(Debug)]
pub(super) struct Linear {
    weight: Tensor,
}

impl Linear {
    pub fn new(path: &Path, inputs: i64, outputs: i64) -> Result<Linear> {
        // Kaiming uniform with a = sqrt(5) comes down to this bound.
        let bound = 1.0 / (inputs as f64).sqrt();
        let weight = Tensor::f_empty([outputs, inputs], CPU)?.f_uniform_(-bound, bound)?;
        Ok(Linear { weight: path.parameter("weight", weight)? })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_linear(&self.weight, None::<&Tensor>)?)
    }
}
