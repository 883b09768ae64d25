//! An encoder that Python exported as TorchScript: its code runs as it is, its tensors are trained in place.

use super::Encoder;
use super::resnet::check_images;
use super::store::Store;
use crate::checkpoint::torch_file;
use crate::error::{Error, Result};
use crate::torch::{Script, clear_gradients};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};

/// A TorchScript module as encoder, under the names that it has.
///
/// # Shapes
/// Images [B, 3, H, W] to features [B, F], whatever B.
#[derive(Debug)]
pub struct Torchscript {
    path: PathBuf,
    script: Script,
    store: Store,
    features: i64,
    /// Devices that the code names.
    devices: Vec<String>,
}

/// What to do where a module's behaviour was fixed when it was exported.
const REMEDY: &str = "write it so that it follows train() and eval(), and export it with torch.jit.script (a trace keeps the \
                      mode that it was made in) or with scripts/export_backbone.py";

impl Torchscript {
    /// Loads a module on the CPU and tries it on images of `size` pixels an edge.
    ///
    /// # Errors
    /// A file that is no TorchScript module; a module without parameters, whose training mode is fixed, that does not take
    /// such images or does not give one vector an image.
    pub fn load(path: &Path, size: usize) -> Result<Torchscript> {
        let refuse = |message: String| Err(Error::data(path, None, message));
        torch_file::verify_script(path)?;
        let script = Script::load(path)?;
        let baked =
            script.baked().map_err(|e| Error::data(path, None, format!("the module has no code to look at: {e}")))?;
        if let Some(first) = baked.modes.first() {
            let more = baked.modes.len() - 1;
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            return refuse(format!("the module's mode is fixed in its code: {first}{more}; {REMEDY}"));
        }
        let mut trained: HashSet<usize> = HashSet::new();
        let members = script.members()?;
        let entries = members.into_iter().map(|m| {
            // A parameter of two names is trained once.
            let trainable = m.is_parameter && m.tensor.requires_grad() && trained.insert(m.tensor.data_ptr() as usize);
            (m.name, m.tensor, trainable)
        });
        let store = Store::of(entries.collect())?;
        if store.parameters().is_empty() {
            return refuse(format!(
                "the module has no parameters that require a gradient, perhaps because torch.jit.freeze made constants of \
                 them; {REMEDY}"
            ));
        }
        let mut encoder = Torchscript { path: path.to_path_buf(), script, store, features: 0, devices: baked.devices };
        encoder.features = encoder.probe(size)?;
        Ok(encoder)
    }

    /// The width of the features. Tried are: two batches of different size in evaluation mode, the same images once more, and a
    /// training pass with its gradients, whose traces are taken back.
    fn probe(&self, size: usize) -> Result<i64> {
        let refuse = |message: String| Err(Error::data(&self.path, None, message));
        let edge = size as i64;
        let images = |batch: i64| Tensor::f_rand([batch, 3, edge, edge], (Kind::Float, Device::Cpu));
        let evaluate = |images: &Tensor| tch::no_grad(|| self.forward(images, false));
        let mut width = None;
        for batch in [2, 3] {
            let features = evaluate(&images(batch)?)?;
            let (shape, kind) = (features.size(), features.f_kind()?);
            match shape[..] {
                [b, features] if b == batch && features > 0 && width.is_none_or(|w| w == features) => {
                    width = Some(features);
                }
                _ => {
                    return refuse(format!(
                        "the module makes {shape:?} of images [{batch}, 3, {edge}, {edge}]; expected one vector an image, \
                         [{batch}, F]: flatten or pool in its forward, and leave out the classifier"
                    ));
                }
            }
            if kind != Kind::Float {
                return refuse(format!("the module gives {kind:?}, expected float32; export it as module.float()"));
            }
        }
        let same = images(2)?;
        let (first, second) = (evaluate(&same)?, evaluate(&same)?);
        if !first.f_equal(&second)? && first.f_isfinite()?.f_all()?.f_int64_value(&[])? != 0 {
            return refuse(format!("the module gives other features of the same images in evaluation mode; {REMEDY}"));
        }
        let before: Vec<Tensor> = self.store.state_dict().iter().map(|(_, t)| t.copy()).collect();
        let trained = self.probe_gradients(&same);
        let _guard = tch::no_grad_guard();
        self.store.state_dict().iter().zip(&before).for_each(|((_, t), before)| t.shallow_clone().copy_(before));
        let parameters: Vec<Tensor> = self.store.parameters().into_iter().map(|(_, p)| p).collect();
        clear_gradients(&parameters)?;
        trained?;
        Ok(width.unwrap_or_default())
    }

    /// A training pass forward and backward.
    fn probe_gradients(&self, images: &Tensor) -> Result<()> {
        let refuse = |message: String| Err(Error::data(&self.path, None, message));
        let features = self.forward(images, true)?;
        if !features.requires_grad() {
            return refuse(format!(
                "no gradient reaches the module's parameters, perhaps because it was exported under torch.no_grad(); {REMEDY}"
            ));
        }
        if let Err(e) = features.f_square()?.f_sum(Kind::Float)?.f_backward() {
            return refuse(format!(
                "the module has no backward pass ({}); {REMEDY}",
                last_error(&Error::from(e).to_string())
            ));
        }
        Ok(())
    }
}

/// The line of LibTorch's text that says what was wrong: of the interpreter's traceback the last one.
fn last_error(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let told = lines.iter().rev().find(|line| line.contains("rror:")).or(lines.first());
    told.copied().unwrap_or_default().to_string()
}

impl Encoder for Torchscript {
    fn forward(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        check_images(images)?;
        self.script.train(train)?;
        self.script.forward(&[images.shallow_clone()]).map_err(|e| {
            let text = last_error(&e.to_string());
            Error::data(&self.path, None, format!("the module fails on images {:?}: {text}", images.size()))
        })
    }

    fn features(&self) -> i64 {
        self.features
    }

    fn store(&self) -> &Store {
        &self.store
    }

    fn to_device(&self, device: Device) -> Result<()> {
        let wanted = if device.is_cuda() { "cuda" } else { "cpu" };
        if let Some(other) = self.devices.iter().find(|name| name.split(':').next() != Some(wanted)) {
            return Err(Error::data(
                &self.path,
                None,
                format!(
                    "the module's code names the device {other}, and it is to run on {wanted}; export it there, or write its \
                     code without a device: x.new_zeros(...), torch.arange(..., device=x.device) in a scripted module"
                ),
            ));
        }
        self.store.to_device(device)
    }
}
