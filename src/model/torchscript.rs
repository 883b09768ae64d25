//! An encoder that Python exported as TorchScript: its code runs as it is, its tensors are trained in place.

use super::Encoder;
use super::resnet::check_images;
use super::store::Store;
use crate::error::{Error, Result};
use crate::torch::Script;
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
const REMEDY: &str =
    "export it with torch.jit.script, or with scripts/export_backbone.py, so that it follows train() and eval()";

impl Torchscript {
    /// Loads a module on the CPU and tries it on images of `size` pixels an edge.
    ///
    /// # Errors
    /// A file that is no TorchScript module; a module without parameters, whose training mode is fixed, that does not take
    /// such images or does not give one vector an image.
    pub fn load(path: &Path, size: usize) -> Result<Torchscript> {
        let refuse = |message: String| Err(Error::data(path, None, message));
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

    /// The width of the features, from two batches of different size in evaluation mode.
    fn probe(&self, size: usize) -> Result<i64> {
        let edge = size as i64;
        let mut width = None;
        for batch in [2, 3] {
            let images = Tensor::f_zeros([batch, 3, edge, edge], (Kind::Float, Device::Cpu))?;
            let shape = tch::no_grad(|| self.forward(&images, false))?.size();
            match shape[..] {
                [b, features] if b == batch && features > 0 && width.is_none_or(|w| w == features) => {
                    width = Some(features);
                }
                _ => {
                    return Err(Error::data(
                        &self.path,
                        None,
                        format!(
                            "the module makes {shape:?} of images [{batch}, 3, {edge}, {edge}]; expected one vector an image, \
                             [{batch}, F]: flatten or pool in its forward, and leave out the classifier"
                        ),
                    ));
                }
            }
        }
        Ok(width.unwrap_or_default())
    }
}

impl Encoder for Torchscript {
    fn forward(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        check_images(images)?;
        self.script.train(train)?;
        self.script.forward(&[images.shallow_clone()]).map_err(|e| {
            // The interpreter's text is a traceback whose end says what was wrong.
            let text = e.to_string();
            let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
            let last =
                lines.iter().rev().find(|line| line.contains("rror:")).or(lines.last()).copied().unwrap_or_default();
            Error::data(&self.path, None, format!("the module fails on images {:?}: {last}", images.size()))
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
