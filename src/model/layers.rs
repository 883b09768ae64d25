//! Convolution, normalisation and linear layers with PyTorch's names, initialisation and numbers.

use super::store::{Path, Processes};
use crate::error::{Error, Result};
use crate::torch::batch_norm;
use tch::{Device, Kind, Tensor};

const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

/// Float32 numbers in the widest vector of a CPU.
const VECTOR: i64 = 16;

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

    /// # Numerics
    /// Two kernels of the oneDNN in LibTorch 2.11 are never asked, since their gradients of the weights are wrong on a CPU: the one of 1x1
    /// convolutions with a stride and channels last, which writes beyond its memory where channels do not fill its vectors (seen with 4, 8
    /// and 12), so that pixels are left out here first; and in bfloat16 the one with a stride over images of a single pixel, of which only the
    /// middle of the kernel sees anything.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let convolve = |x: &Tensor, weight: &Tensor, stride: i64, padding: i64| -> Result<Tensor> {
            Ok(x.f_conv2d(weight, None::<&Tensor>, stride, padding, 1, 1)?)
        };
        match x.size()[..] {
            _ if x.device() != Device::Cpu => convolve(x, &self.weight, self.stride, self.padding),
            [_, _, 1, 1] => {
                let middle = self.weight.f_narrow(2, self.padding, 1)?.f_narrow(3, self.padding, 1)?;
                convolve(x, &middle, 1, 0)
            }
            [_, channels, _, _] if self.padding == 0 && self.stride > 1 && channels % VECTOR != 0 => {
                let pixels = x.f_slice(2, None, None, self.stride)?.f_slice(3, None, None, self.stride)?;
                convolve(&pixels, &self.weight, 1, 0)
            }
            _ => convolve(x, &self.weight, self.stride, self.padding),
        }
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
        let (affine, running) = ((&self.weight, &self.bias), (&self.running_mean, &self.running_var));
        match self.sync.get() {
            Some(group) if train => return group.batch_norm(x, affine, running, Self::MOMENTUM, Self::EPS),
            None if train && x.device() == Device::Cpu => {
                return batch_norm(x, affine, running, Self::MOMENTUM, Self::EPS);
            }
            _ => {}
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Store, channels_last};

    /// The gradients of the weight and of images, of the sum of the squared outputs.
    fn gradients(conv: &Conv2d, store: &Store, images: &Tensor, kind: Kind) -> [Tensor; 2] {
        store.to_kind(kind).unwrap();
        conv.weight.shallow_clone().zero_grad();
        let x = channels_last(&images.to_kind(kind)).unwrap().set_requires_grad(true);
        conv.forward(&x).unwrap().square().sum(kind).backward();
        [conv.weight.grad(), x.grad()].map(|g| g.to_kind(Kind::Double))
    }

    #[test]
    fn strided_convolutions_have_right_gradients_channels_last() {
        tch::manual_seed(3);
        let cases = [
            (1, 8, Kind::Float),
            (1, 2, Kind::Float),
            (3, 8, Kind::Float),
            (3, 1, Kind::Float),
            (3, 1, Kind::BFloat16),
        ];
        for (channels, (kernel, size, kind)) in
            [3, 4, 8, 12, 16, 24, 64].into_iter().flat_map(|c| cases.map(|case| (c, case)))
        {
            let build = |root: &Path| Conv2d::new(&(root / "conv"), channels, 2 * channels, kernel, 2);
            let (conv, store) = Store::build(build).unwrap();
            store.to_kind(kind).unwrap();
            let images = Tensor::randn([7, channels, size, size], CPU).to_kind(kind);
            let found = gradients(&conv, &store, &images, kind);
            let expected = gradients(&conv, &store, &images, Kind::Double);
            // bfloat16 has 8 bits, of outputs and of their gradients.
            let tolerance = if kind == Kind::Float { 1e-5 } else { 3e-2 };
            for (found, expected) in found.iter().zip(&expected) {
                let error = ((found - expected).abs().max() / expected.abs().max()).double_value(&[]);
                assert!(error < tolerance, "{channels} channels, kernel {kernel}, {size} pixels, {kind:?}: {error:e}");
            }
        }
    }

    #[test]
    fn batch_normalisation_is_precise_channels_last() {
        tch::manual_seed(4);
        let images = Tensor::randn([128, 8, 32, 32], CPU) * 2.0 + 1.0;
        let slope = Tensor::randn(images.size(), CPU);
        let (norm, store) = Store::build(|root| BatchNorm2d::new(&(root / "bn"), 8)).unwrap();
        let run = |kind: Kind| {
            let x = channels_last(&images.to_kind(kind)).unwrap().set_requires_grad(true);
            let out = match kind {
                Kind::Double => {
                    let [weight, bias] =
                        [Tensor::ones([8], (kind, Device::Cpu)), Tensor::zeros([8], (kind, Device::Cpu))];
                    x.contiguous().batch_norm(
                        Some(&weight),
                        Some(&bias),
                        None::<&Tensor>,
                        None::<&Tensor>,
                        true,
                        0.1,
                        1e-5,
                        false,
                    )
                }
                _ => norm.forward(&x, true).unwrap(),
            };
            (&out * channels_last(&slope.to_kind(kind)).unwrap()).sum(kind).backward();
            [out.detach(), x.grad()].map(|t| t.to_kind(Kind::Double))
        };
        let (found, expected) = (run(Kind::Float), run(Kind::Double));
        for (found, expected) in found.iter().zip(&expected) {
            // LibTorch's own is 1e-5 off here.
            let error = (found - expected).abs().max().double_value(&[]);
            assert!(error < 4e-6, "{error:e}");
        }
        let wide = images.to_kind(Kind::Double);
        let (variance, mean) = wide.var_mean_dim([0i64, 2, 3].as_slice(), true, false);
        for (name, expected) in [("bn.running_mean", mean * 0.1), ("bn.running_var", variance * 0.1 + 0.9)] {
            let state = store.state_dict();
            let found = &state.iter().find(|(n, _)| n == name).unwrap().1;
            let error = (found.to_kind(Kind::Double) - expected).abs().max().double_value(&[]);
            assert!(error < 2e-7, "{name}: {error:e}");
        }
    }
}
