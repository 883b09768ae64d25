//! Encoders and projector: what is trained, under the names that PyTorch's libraries give it.

mod layers;
mod projector;
mod resnet;
mod store;

pub use projector::Projector;
pub use resnet::{Depth, Resnet};
pub use store::{LoadReport, Path, Store, WrongShape};

use crate::config::model::{EncoderConfig, ModelConfig};
use crate::error::Result;
use tch::{Device, Tensor};

/// What turns images into features.
pub trait Encoder {
    /// Features of a batch. With `train`, batch statistics are used and running statistics updated.
    ///
    /// # Shapes
    /// [B, 3, H, W] to [B, features].
    ///
    /// # Errors
    /// Input of another shape or type, and whatever LibTorch reports.
    fn forward(&self, images: &Tensor, train: bool) -> Result<Tensor>;

    /// The width of the features.
    fn features(&self) -> i64;

    /// The encoder's tensors.
    fn store(&self) -> &Store;
}

/// A freshly initialised encoder on the CPU, from LibTorch's generator.
///
/// # Errors
/// Values that the configuration does not allow, and whatever LibTorch reports.
pub fn encoder(config: &EncoderConfig) -> Result<Box<dyn Encoder>> {
    let (depth, config) = match config {
        EncoderConfig::Resnet18(c) => (Depth::Resnet18, c),
        EncoderConfig::Resnet50(c) => (Depth::Resnet50, c),
    };
    Ok(Box::new(Resnet::new(depth, config)?))
}

/// The encoder and its projector: what contrastive pretraining trains.
pub struct Model {
    /// Images to features; this is what is kept after training.
    pub encoder: Box<dyn Encoder>,
    /// Features to the space in which the loss compares.
    pub projector: Projector,
}

impl Model {
    /// A freshly initialised model on the CPU. The same `tch::manual_seed` gives the same weights for every device
    /// and thread count.
    ///
    /// # Errors
    /// Values that the configuration does not allow, and whatever LibTorch reports.
    pub fn new(config: &ModelConfig) -> Result<Model> {
        config.validate()?;
        let encoder = encoder(&config.encoder)?;
        let projector = Projector::new(&config.projector, encoder.features())?;
        Ok(Model { encoder, projector })
    }

    /// Moves the model; an optimizer is made after this.
    ///
    /// # Errors
    /// Whatever LibTorch reports, such as a device that is not there.
    pub fn to_device(&self, device: Device) -> Result<()> {
        self.encoder.store().to_device(device)?;
        self.projector.store().to_device(device)
    }

    /// The features `h` and their projection `z`.
    ///
    /// # Shapes
    /// Images [B, 3, H, W]; `h` [B, features], `z` [B, dim].
    ///
    /// # Errors
    /// As [`Encoder::forward`].
    pub fn forward(&self, images: &Tensor, train: bool) -> Result<(Tensor, Tensor)> {
        let h = self.encoder.forward(images, train)?;
        let z = self.projector.forward(&h)?;
        Ok((h, z))
    }

    /// The trainable parameters, encoder first, under `encoder.` and `projector.` as in the authors' SimCLR module.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        self.prefixed(Store::parameters)
    }

    /// All parameters and buffers under the same names.
    pub fn state_dict(&self) -> Vec<(String, Tensor)> {
        self.prefixed(Store::state_dict)
    }

    /// Loads parameters and buffers under the names of [`Model::state_dict`], all of them and no others.
    ///
    /// # Errors
    /// Names or shapes that are not the model's.
    pub fn load(&self, tensors: &[(String, Tensor)]) -> Result<()> {
        let (encoder, projector) = tensors.iter().partition::<Vec<_>, _>(|(name, _)| name.starts_with("encoder."));
        for (part, store, tensors) in
            [("encoder.", self.encoder.store(), encoder), ("projector.", self.projector.store(), projector)]
        {
            let own = tensors
                .into_iter()
                .map(|(name, t)| (name.strip_prefix(part).unwrap_or(name).to_string(), t.shallow_clone()));
            store.load(&own.collect::<Vec<_>>())?;
        }
        Ok(())
    }

    fn prefixed(&self, list: impl Fn(&Store) -> Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
        let parts = [("encoder", self.encoder.store()), ("projector", self.projector.store())];
        let named = parts.into_iter().flat_map(|(part, store)| {
            list(store).into_iter().map(move |(name, tensor)| (format!("{part}.{name}"), tensor))
        });
        named.collect()
    }
}
