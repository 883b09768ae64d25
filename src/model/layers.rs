//! Convolution, normalisation and linear layers with PyTorch's names, initialisation and numbers.

use super::store::{Path, Processes};
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
    sync: Processes,
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
            sync: path.sync(),
        })
    }

    pub fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        if train {
            let (n, _, h, w) = x.size4()?;
            let alone = self.sync.get().is_none();
            if n * h * w < 2 && alone {
                return Err(Error::Input(format!(
                    "batch normalisation in training needs more than one value a channel, found a batch of {n} with \
                     {h}x{w} pixels left at this layer; use a larger batch or larger images"
                )));
            }
            let _ = self.num_batches_tracked.shallow_clone().f_add_scalar_(1)?;
        }
        if let Some(group) = self.sync.get().filter(|_| train) {
            let (affine, running) = ((&self.weight, &self.bias), (&self.running_mean, &self.running_var));
            return group.batch_norm(x, affine, running, Self::MOMENTUM, Self::EPS);
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

/// Layer normalisation over the last dimension: weight 1 and bias 0 at first.
#[derive(Debug)]
pub(super) struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl LayerNorm {
    /// `eps` is added to the variance; `torch.nn.LayerNorm` has 1e-5, timm 1e-6.
    pub fn new(path: &Path, width: i64, eps: f64) -> Result<LayerNorm> {
        Ok(LayerNorm {
            weight: path.parameter("weight", Tensor::f_ones([width], CPU)?)?,
            bias: path.parameter("bias", Tensor::f_zeros([width], CPU)?)?,
            eps,
        })
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_layer_norm(self.weight.size(), Some(&self.weight), Some(&self.bias), self.eps, true)?)
    }
}

/// A linear layer.
#[derive(Debug)]
pub(super) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// One without bias, initialised as `torch.nn.Linear`.
    pub fn new(path: &Path, inputs: i64, outputs: i64) -> Result<Linear> {
        // Kaiming uniform with a = sqrt(5) comes down to this bound.
        let bound = 1.0 / (inputs as f64).sqrt();
        let weight = Tensor::f_empty([outputs, inputs], CPU)?.f_uniform_(-bound, bound)?;
        Ok(Linear { weight: path.parameter("weight", weight)?, bias: None })
    }

    /// One with a bias, which is 0 at first; weights from [`trunc_normal`].
    pub fn trunc_normal(path: &Path, inputs: i64, outputs: i64, std: f64) -> Result<Linear> {
        Linear::with_bias(path, outputs, trunc_normal(&[outputs, inputs], std)?)
    }

    /// One with a bias, all 0, whose numbers are loaded later.
    pub fn zeros(path: &Path, inputs: i64, outputs: i64) -> Result<Linear> {
        Linear::with_bias(path, outputs, Tensor::f_zeros([outputs, inputs], CPU)?)
    }

    fn with_bias(path: &Path, outputs: i64, weight: Tensor) -> Result<Linear> {
        let weight = path.parameter("weight", weight)?;
        let bias = path.parameter("bias", Tensor::f_zeros([outputs], CPU)?)?;
        Ok(Linear { weight, bias: Some(bias) })
    }

    /// Draws its weights anew, with a normal distribution; the bias is 0.
    pub fn renew(&self, std: f64) -> Result<()> {
        let _guard = tch::no_grad_guard();
        let _ = self.weight.shallow_clone().f_normal_(0.0, std)?;
        self.bias.as_ref().map_or(Ok(()), |bias| Ok(bias.shallow_clone().f_zero_().map(drop)?))
    }

    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_linear(&self.weight, self.bias.as_ref())?)
    }
}

/// Normal numbers of mean 0 as timm's `trunc_normal_(std=std)` draws them, draw for draw: by the inverse of the distribution, cut
/// at -2 and 2. For a `std` of 0.02 that is no cut but for the one draw in 2^24 that would be minus infinity and is -2.
pub(super) fn trunc_normal(size: &[i64], std: f64) -> Result<Tensor> {
    let mut drawn = Tensor::f_empty(size, CPU)?.f_uniform_(-1.0, 1.0)?;
    Ok(drawn.f_erfinv_()?.f_mul_scalar_(std * std::f64::consts::SQRT_2)?.f_clamp_(-2.0, 2.0)?)
}
