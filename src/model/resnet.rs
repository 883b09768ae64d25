//! ResNet-18 and ResNet-50 without the classifier: torchvision's with `fc = Identity()`, name for name and number for number.

use super::Encoder;
use super::fit::OtherNames;
use super::layers::{BatchNorm2d, Conv2d};
use super::store::{Path, Store, channels_last, is_float};
use crate::config::model::{ResnetConfig, Stem};
use crate::error::{Error, Result};
use tch::{Device, Tensor};

/// Which of torchvision's ResNets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// `resnet18`: basic blocks 2, 2, 2, 2.
    Resnet18,
    /// `resnet50`: bottleneck blocks 3, 4, 6, 3.
    Resnet50,
}

impl Depth {
    fn blocks(self) -> [usize; 4] {
        match self {
            Depth::Resnet18 => [2, 2, 2, 2],
            Depth::Resnet50 => [3, 4, 6, 3],
        }
    }

    fn expansion(self) -> i64 {
        match self {
            Depth::Resnet18 => 1,
            Depth::Resnet50 => 4,
        }
    }
}

/// Convolution and normalisation, the unit that blocks are made of.
#[derive(Debug)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm2d,
}

impl ConvNorm {
    fn new(conv: &Path, norm: &Path, inputs: i64, outputs: i64, kernel: i64, stride: i64) -> Result<ConvNorm> {
        Ok(ConvNorm {
            conv: Conv2d::new(conv, inputs, outputs, kernel, stride)?,
            norm: BatchNorm2d::new(norm, outputs)?,
        })
    }

    fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.norm.forward(&self.conv.forward(x)?, train)
    }
}

/// A residual block, basic (two 3x3) or bottleneck (1x1, 3x3, 1x1; the stride in the 3x3, as torchvision has it).
#[derive(Debug)]
struct Block {
    branch: Vec<ConvNorm>,
    downsample: Option<ConvNorm>,
}

impl Block {
    fn new(path: &Path, depth: Depth, inputs: i64, planes: i64, stride: i64) -> Result<Block> {
        let outputs = planes * depth.expansion();
        // Inputs, outputs, kernel, stride of each convolution.
        let shapes: &[(i64, i64, i64, i64)] = match depth {
            Depth::Resnet18 => &[(inputs, planes, 3, stride), (planes, planes, 3, 1)],
            Depth::Resnet50 => &[(inputs, planes, 1, 1), (planes, planes, 3, stride), (planes, outputs, 1, 1)],
        };
        let branch = shapes.iter().enumerate().map(|(i, &(from, to, kernel, stride))| {
            let n = i + 1;
            ConvNorm::new(&(path / format!("conv{n}")), &(path / format!("bn{n}")), from, to, kernel, stride)
        });
        let branch = branch.collect::<Result<Vec<_>>>()?;
        let downsample = if stride != 1 || inputs != outputs {
            let at = path / "downsample";
            Some(ConvNorm::new(&(&at / 0), &(&at / 1), inputs, outputs, 1, stride)?)
        } else {
            None
        };
        Ok(Block { branch, downsample })
    }

    fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let mut out = x.shallow_clone();
        for (i, unit) in self.branch.iter().enumerate() {
            if i > 0 {
                out = out.f_relu_()?;
            }
            out = unit.forward(&out, train)?;
        }
        let mut sum = match &self.downsample {
            Some(unit) => out.f_add_(&unit.forward(x, train)?)?,
            None => out.f_add_(x)?,
        };
        Ok(sum.f_relu_()?)
    }
}

#[derive(Debug)]
struct Layers {
    stem: ConvNorm,
    pool: bool,
    blocks: Vec<Block>,
}

/// A ResNet that gives the average-pooled features of its last stage.
///
/// # Shapes
/// Images [B, 3, H, W] to features [B, 8 * width] (ResNet-18) or [B, 32 * width] (ResNet-50).
///
/// # Source
/// torchvision's `resnet18` and `resnet50`; the small stem is SimCLR's for CIFAR (its appendix B.9).
#[derive(Debug)]
pub struct Resnet {
    layers: Layers,
    store: Store,
    features: i64,
}

impl Resnet {
    /// A freshly initialised ResNet on the CPU, from LibTorch's generator (`tch::manual_seed`).
    ///
    /// # Errors
    /// A width below 1, and whatever LibTorch reports.
    pub fn new(depth: Depth, config: &ResnetConfig) -> Result<Resnet> {
        config.validate()?;
        let width = config.width;
        let (layers, store) = Store::build(|root| {
            let (kernel, stride) = match config.stem {
                Stem::Imagenet => (7, 2),
                Stem::Small => (3, 1),
            };
            let stem = ConvNorm::new(&(root / "conv1"), &(root / "bn1"), 3, width, kernel, stride)?;
            let mut blocks = Vec::new();
            let mut inputs = width;
            for (stage, count) in depth.blocks().into_iter().enumerate() {
                let planes = width << stage;
                for i in 0..count {
                    let stride = if stage > 0 && i == 0 { 2 } else { 1 };
                    let at = root / format!("layer{}", stage + 1) / i;
                    blocks.push(Block::new(&at, depth, inputs, planes, stride)?);
                    inputs = planes * depth.expansion();
                }
            }
            Ok(Layers { stem, pool: config.stem == Stem::Imagenet, blocks })
        })?;
        Ok(Resnet { layers, store, features: 8 * width * depth.expansion() })
    }
}

impl Encoder for Resnet {
    fn forward(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        check_images(images)?;
        // On a CPU convolutions and batch normalisation are faster so: a step at batch 256 1.4 times (AVX-512). The layers keep the layout.
        let mut x = if images.device() == Device::Cpu { channels_last(images)? } else { images.shallow_clone() };
        x = self.layers.stem.forward(&x, train)?.f_relu_()?;
        if self.layers.pool {
            x = x.f_max_pool2d(3, 2, 1, 1, false)?;
        }
        for block in &self.layers.blocks {
            x = block.forward(&x, train)?;
        }
        Ok(x.f_adaptive_avg_pool2d([1, 1])?.f_flatten(1, -1)?)
    }

    fn features(&self) -> i64 {
        self.features
    }

    fn store(&self) -> &Store {
        &self.store
    }

    /// On a CPU weights lie as images do, and as their gradients come.
    fn to_device(&self, device: Device) -> Result<()> {
        self.store.to_device(device)?;
        if device == Device::Cpu { self.store.channels_last() } else { Ok(()) }
    }

    fn other_names(&self) -> OtherNames {
        // nn.Sequential(*resnet.children()) of torchvision's (as in lightly's examples); the ResNets of many CIFAR repositories,
        // whose shortcut has another name; lightly's own ResNet, which is such a one as nn.Sequential.
        fn children(name: &str) -> String {
            renamed(name, &["conv1", "bn1", "", "", "layer1", "layer2", "layer3", "layer4"])
        }
        fn shortcut(name: &str) -> String {
            name.replace(".downsample.", ".shortcut.")
        }
        fn lightly(name: &str) -> String {
            shortcut(&renamed(name, &["conv1", "bn1", "layer1", "layer2", "layer3", "layer4"]))
        }
        OtherNames {
            spellings: vec![children, shortcut, lightly],
            classifiers: &["fc.", "linear.", "classifier."],
            ..OtherNames::default()
        }
    }
}

/// The name with its first level replaced by the level's place in a list.
fn renamed(name: &str, levels: &[&str]) -> String {
    let (first, rest) = name.split_once('.').unwrap_or((name, ""));
    match levels.iter().position(|level| *level == first) {
        Some(i) => format!("{i}.{rest}"),
        None => name.to_string(),
    }
}

pub(super) fn check_images(images: &Tensor) -> Result<()> {
    let size = images.size();
    let kind = images.f_kind()?;
    if !matches!(size[..], [b, 3, h, w] if b > 0 && h > 0 && w > 0) || !is_float(kind) {
        return Err(Error::Input(format!(
            "encoder: expected floating-point images [B, 3, H, W] with B, H, W above 0, found {kind:?} {size:?}; \
             repeat the channel of grey images three times and scale bytes to floats first"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    fn narrow(stem: Stem) -> Resnet {
        Resnet::new(Depth::Resnet18, &ResnetConfig { stem, width: 4 }).unwrap()
    }

    #[test]
    fn images_of_another_shape_or_type_are_refused() {
        let net = narrow(Stem::Small);
        for (shape, kind) in [
            (&[2i64, 1, 8, 8][..], Kind::Float),
            (&[3, 8, 8], Kind::Float),
            (&[0, 3, 8, 8], Kind::Float),
            (&[2, 3, 0, 8], Kind::Float),
            (&[2, 3, 8, 8], Kind::Uint8),
        ] {
            let e = net.forward(&Tensor::zeros(shape, (kind, Device::Cpu)), false).unwrap_err().to_string();
            assert!(e.contains("[B, 3, H, W]") && e.contains(&format!("{shape:?}")), "{e}");
        }
    }

    #[test]
    fn one_value_a_channel_is_refused_in_training_and_served_in_evaluation() {
        let net = narrow(Stem::Imagenet);
        let x = Tensor::ones([1, 3, 32, 32], (Kind::Float, Device::Cpu));
        let e = net.forward(&x, true).unwrap_err().to_string();
        assert!(e.contains("batch of 1") && e.contains("1x1"), "{e}");
        assert_eq!(net.forward(&x, false).unwrap().size(), [1, 32]);
    }

    #[test]
    fn evaluation_leaves_the_statistics_alone_and_does_not_depend_on_the_batch() {
        let net = narrow(Stem::Small);
        tch::manual_seed(3);
        let x = Tensor::randn([4, 3, 9, 7], (Kind::Float, Device::Cpu));
        let _ = net.forward(&x, true).unwrap();
        let before: Vec<Tensor> = net.store().state_dict().iter().map(|(_, t)| t.copy()).collect();
        let whole = net.forward(&x, false).unwrap();
        for i in 0..4 {
            let one = net.forward(&x.narrow(0, i, 1), false).unwrap();
            let gap = (one.get(0) - whole.get(i)).abs().max().double_value(&[]);
            // Convolutions sum in another order for another batch: some tens of float32 roundings of the largest value.
            assert!(gap < 1e-5 * whole.abs().max().double_value(&[]).max(1.0), "{gap}");
        }
        assert!(net.store().state_dict().iter().zip(&before).all(|((_, now), then)| now == then));
    }
}
