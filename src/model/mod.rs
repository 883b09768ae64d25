//! Encoders and projector: what is trained, under the names that PyTorch's libraries give it.

mod bert;
mod fit;
mod folder;
mod layers;
mod projector;
mod resnet;
mod script;
mod sentence;
mod store;
mod torchscript;
mod vit;

pub use bert::{Activation, Bert, BertConfig};
pub use fit::{Fit, Found, OtherNames, Resample, load};
pub use projector::Projector;
pub use resnet::{Depth, Resnet};
pub use sentence::{Head, SentenceEncoder};
pub use store::{LoadReport, Path, Role, Store, WrongShape};
pub(crate) use store::{channels_last, is_float};
pub use torchscript::Torchscript;
pub use vit::Vit;

use crate::checkpoint;
use crate::config::model::{EncoderConfig, ModelConfig, WeightsConfig};
use crate::dist::Group;
use crate::error::{Error, Result};
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

    /// How files of other projects name its tensors; none unless told.
    fn other_names(&self) -> OtherNames {
        OtherNames::default()
    }

    /// Names of parameters that are spared from weight decay whatever their shape, where biases and normalisation are.
    fn no_weight_decay(&self) -> &'static [&'static str] {
        &[]
    }

    /// From now on takes batch statistics in training over all processes of a group.
    ///
    /// # Errors
    /// Batch normalisation that cannot do that.
    fn synchronise(&self, group: &Group) -> Result<()> {
        self.store().synchronise(group);
        Ok(())
    }

    /// Asks whether it can serve on a device, and moves it there; an optimizer is made after this.
    ///
    /// # Errors
    /// What binds it to another device, and whatever LibTorch reports.
    fn to_device(&self, device: Device) -> Result<()> {
        self.store().to_device(device)
    }
}

/// An encoder on the CPU: freshly initialised from LibTorch's generator, or, as TorchScript, with the weights of its file.
///
/// `size` is the edge of the images that it will get, in pixels: a Vision Transformer is made for it, a TorchScript module is
/// tried on such ones.
///
/// # Errors
/// Values that the configuration does not allow, a size that is not made of whole patches, a module that cannot be trained, and whatever LibTorch reports.
pub fn encoder(config: &EncoderConfig, size: usize) -> Result<Box<dyn Encoder>> {
    Ok(match config {
        EncoderConfig::Resnet18(c) => Box::new(Resnet::new(Depth::Resnet18, c)?),
        EncoderConfig::Resnet50(c) => Box::new(Resnet::new(Depth::Resnet50, c)?),
        EncoderConfig::VitSmall(c) => Box::new(Vit::new(c, size)?),
        EncoderConfig::Torchscript(c) => Box::new(Torchscript::load(&c.path, size)?),
    })
}

/// The encoder and its projector: what contrastive pretraining trains.
pub struct Model {
    /// Images to features; this is what is kept after training.
    pub encoder: Box<dyn Encoder>,
    /// Features to the space in which the loss compares.
    pub projector: Projector,
}

impl Model {
    /// A model on the CPU as [`encoder`] and [`Projector::new`] make it. The same `tch::manual_seed` gives the same weights
    /// for every device and thread count. `size` is the edge of the images, in pixels.
    ///
    /// # Errors
    /// Values that the configuration does not allow, and whatever LibTorch reports.
    pub fn new(config: &ModelConfig, size: usize) -> Result<Model> {
        config.validate()?;
        let encoder = encoder(&config.encoder, size)?;
        let projector = Projector::new(&config.projector, encoder.features())?;
        Ok(Model { encoder, projector })
    }

    /// Moves the model; an optimizer is made after this.
    ///
    /// # Errors
    /// Whatever LibTorch reports, such as a device that is not there.
    pub fn to_device(&self, device: Device) -> Result<()> {
        self.encoder.to_device(device)?;
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

    /// Those of [`Model::parameters`] that are spared from weight decay whatever their shape.
    pub fn no_weight_decay(&self) -> Vec<String> {
        self.encoder.no_weight_decay().iter().map(|name| format!("encoder.{name}")).collect()
    }

    /// The buffers, such as running statistics.
    pub fn buffers(&self) -> Vec<Tensor> {
        [self.encoder.store(), self.projector.store()].into_iter().flat_map(Store::buffers).collect()
    }

    /// All parameters and buffers under the same names.
    pub fn state_dict(&self) -> Vec<(String, Tensor)> {
        self.prefixed(Store::state_dict)
    }

    /// Loads a file's weights into encoder and projector, see [`load`]; says what was taken, a line for each.
    ///
    /// # Errors
    /// As [`load`], with the file's name; a file that cannot be read. The encoder may then have its weights already.
    pub fn load_file(&self, config: &WeightsConfig) -> Result<Vec<String>> {
        let allowed = config.allowed()?;
        let tensors = checkpoint::tensors(&config.path)?;
        let parts = [
            ("encoder", self.encoder.store(), self.encoder.other_names()),
            ("projector", self.projector.store(), self.projector.other_names()),
        ];
        let mut said = Vec::new();
        // The projector is looked for beside the encoder: under the level that the encoder's place is in.
        let mut around = String::new();
        for (part, store, others) in &parts {
            let beside: Vec<(String, Tensor)> = tensors
                .iter()
                .filter(|(name, _)| name.starts_with(&around))
                .map(|(name, t)| (name.clone(), t.shallow_clone()))
                .collect();
            let remedy =
                format!("; names that may be missing are given in model.weights.allow_missing, as in `{part}\\..*`");
            let found = load(store, part, &beside, others, &allowed, &remedy)
                .map_err(|e| Error::data(&config.path, None, e.to_string()))?;
            said.push(match &found {
                Found::Loaded(fit) => format!("{part} from {}: {fit}", config.path.display()),
                Found::Left(reason) => format!("{part} starts random, of {}: {reason}", config.path.display()),
            });
            if let Found::Loaded(fit) = found {
                let above = fit.place.trim_end_matches('.').rsplit_once('.');
                around = above.map_or(String::new(), |(above, _)| format!("{above}."));
            }
        }
        Ok(said)
    }

    fn prefixed(&self, list: impl Fn(&Store) -> Vec<(String, Tensor)>) -> Vec<(String, Tensor)> {
        let parts = [("encoder", self.encoder.store()), ("projector", self.projector.store())];
        let named = parts.into_iter().flat_map(|(part, store)| {
            list(store).into_iter().map(move |(name, tensor)| (format!("{part}.{name}"), tensor))
        });
        named.collect()
    }
}
