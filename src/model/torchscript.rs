//! An encoder of images that Python exported as TorchScript.

use super::Encoder;
use super::resnet::check_images;
use super::script::{Food, Module};
use super::store::Store;
use crate::dist::Group;
use crate::error::{Error, Result};
use std::path::Path;
use tch::{Device, Kind, Tensor};

/// A TorchScript module as encoder, under the names that it has.
///
/// # Shapes
/// Images [B, 3, H, W] to features [B, F], whatever B.
#[derive(Debug)]
pub struct Torchscript {
    module: Module,
    features: i64,
}

impl Torchscript {
    /// Loads a module on the CPU and tries it on images of `size` pixels an edge.
    ///
    /// # Errors
    /// A file that is no TorchScript module; a module without parameters, whose training mode is fixed, that does not take
    /// such images or does not give one vector an image.
    pub fn load(path: &Path, size: usize) -> Result<Torchscript> {
        let module = Module::load(path)?;
        let edge = size as i64;
        let features = module.probe(&Food {
            name: "images",
            one: "an image",
            remedy: "flatten or pool in its forward, and leave out the classifier",
            batch: &|batch| Ok(vec![Tensor::f_rand([batch, 3, edge, edge], (Kind::Float, Device::Cpu))?]),
        })?;
        Ok(Torchscript { module, features })
    }
}

impl Encoder for Torchscript {
    fn forward(&self, images: &Tensor, train: bool) -> Result<Tensor> {
        check_images(images)?;
        self.module.forward(&[images.shallow_clone()], train, "images")
    }

    fn features(&self) -> i64 {
        self.features
    }

    fn store(&self) -> &Store {
        self.module.store()
    }

    fn to_device(&self, device: Device) -> Result<()> {
        self.module.to_device(device)
    }

    /// The module's code normalises over the rows that it is given.
    fn synchronise(&self, _: &Group) -> Result<()> {
        let state = self.module.store().state_dict();
        let Some((name, _)) = state.iter().find(|(name, _)| name.ends_with("running_mean")) else { return Ok(()) };
        Err(Error::Config(format!(
            "train.sync_batch_norm: true, but a TorchScript module's batch normalisation ({}) cannot take its statistics over several \
             processes; with false each takes those of its own share of the batch",
            name.trim_end_matches(".running_mean")
        )))
    }
}
