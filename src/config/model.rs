//! The `model` section: encoder and projector.

use super::kind::by_kind;
use super::whole_names;
use crate::error::{Error, Result};
use regex::RegexSet;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What is trained.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Images to features; `backbone` is another name of this key.
    #[serde(alias = "backbone")]
    pub encoder: EncoderConfig,
    /// Features to the space of the loss.
    #[serde(default)]
    pub projector: ProjectorConfig,
    /// Weights to start from; random ones where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<WeightsConfig>,
}

/// Weights to start from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightsConfig {
    /// A safetensors or torch.save file: one of this project's checkpoints, or another's.
    pub path: PathBuf,
    /// Regular expressions of whole names, such as `projector\..*`, that need not be in the file; they start random.
    #[serde(default)]
    pub allow_missing: Vec<String>,
}

impl WeightsConfig {
    /// The patterns of `allow_missing`.
    ///
    /// # Errors
    /// One that is no regular expression.
    pub fn allowed(&self) -> Result<RegexSet> {
        whole_names(&self.allow_missing).map_err(|reason| {
            Error::Config(format!(
                "model.weights.allow_missing: {:?} is no regular expression: {reason}",
                self.allow_missing
            ))
        })
    }
}

impl ModelConfig {
    /// Checks values beyond their types.
    ///
    /// # Errors
    /// A value out of its range, with its key.
    pub fn validate(&self) -> Result<()> {
        match &self.encoder {
            EncoderConfig::Resnet18(c) | EncoderConfig::Resnet50(c) => c.validate()?,
            EncoderConfig::VitSmall(c) => c.validate()?,
            EncoderConfig::Torchscript(_) => (),
        }
        if let Some(weights) = &self.weights {
            weights.allowed()?;
        }
        self.projector.validate()
    }
}

/// The encoders by kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum EncoderConfig {
    /// torchvision's `resnet18` without its classifier.
    Resnet18(ResnetConfig),
    /// torchvision's `resnet50` without its classifier.
    Resnet50(ResnetConfig),
    /// timm's `vit_small_patch16_224` without its classifier.
    VitSmall(VitConfig),
    /// A module that Python exported, trained in place.
    Torchscript(TorchscriptConfig),
}

by_kind!(EncoderConfig, default None, "resnet18" => Resnet18, "resnet50" => Resnet50, "vit_small" => VitSmall, "torchscript" => Torchscript);

impl EncoderConfig {
    /// The `kind`.
    pub fn name(&self) -> &'static str {
        match self {
            EncoderConfig::Resnet18(_) => "resnet18",
            EncoderConfig::Resnet50(_) => "resnet50",
            EncoderConfig::VitSmall(_) => "vit_small",
            EncoderConfig::Torchscript(_) => "torchscript",
        }
    }
}

/// What can be chosen in a ResNet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResnetConfig {
    /// The first layers; `imagenet` unless given.
    #[serde(default)]
    pub stem: Stem,
    /// Channels of the first stage, doubled at each of the three others; 64 unless given.
    #[serde(default = "base_width")]
    pub width: i64,
}

fn base_width() -> i64 {
    64
}

impl ResnetConfig {
    /// Checks values beyond their types.
    ///
    /// # Errors
    /// A value out of its range, with its key.
    pub fn validate(&self) -> Result<()> {
        within("model.encoder.width", self.width, 1024)
    }
}

/// What can be chosen in a Vision Transformer. The size of its images is that of the views.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VitConfig {
    /// Edge of a patch in pixels, a divisor of that of the views; 16 unless given.
    #[serde(default = "patch_size")]
    pub patch_size: i64,
    /// Width of a token, and of the features; 384 unless given.
    #[serde(default = "vit_width")]
    pub width: i64,
    /// Blocks; 12 unless given.
    #[serde(default = "vit_depth")]
    pub depth: i64,
    /// Heads of attention, a divisor of the width; 6 unless given.
    #[serde(default = "vit_heads")]
    pub heads: i64,
}

fn patch_size() -> i64 {
    16
}

fn vit_width() -> i64 {
    384
}

fn vit_depth() -> i64 {
    12
}

fn vit_heads() -> i64 {
    6
}

impl VitConfig {
    /// Checks values beyond their types.
    ///
    /// # Errors
    /// A value out of its range, with its key; a width that the heads do not divide.
    pub fn validate(&self) -> Result<()> {
        within("model.encoder.patch_size", self.patch_size, 1024)?;
        within("model.encoder.width", self.width, 4096)?;
        within("model.encoder.depth", self.depth, 256)?;
        within("model.encoder.heads", self.heads, self.width)?;
        if self.width % self.heads != 0 {
            return Err(Error::Config(format!(
                "model.encoder.heads: {} heads do not divide a width of {}; timm's small one has 6 of 64 each",
                self.heads, self.width
            )));
        }
        Ok(())
    }
}

/// A TorchScript module as encoder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TorchscriptConfig {
    /// What `torch.jit.save` wrote; `scripts/export_backbone.py` makes such files. It is a program and runs here: use only files
    /// that you trust.
    pub path: PathBuf,
}

/// The first layers of a ResNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stem {
    /// 7x7 convolution of stride 2 and max pooling: for images of some 100 pixels and more.
    #[default]
    Imagenet,
    /// 3x3 convolution of stride 1, no pooling: for images of some 32 pixels, as SimCLR on CIFAR.
    Small,
}

/// What can be chosen in the projector.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProjectorConfig {
    /// Width of its output; 64 unless given.
    #[serde(default = "projection_dim")]
    pub dim: i64,
    /// Width between its two layers; that of the features unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<i64>,
}

fn projection_dim() -> i64 {
    64
}

impl Default for ProjectorConfig {
    fn default() -> Self {
        ProjectorConfig { dim: projection_dim(), hidden: None }
    }
}

impl ProjectorConfig {
    /// Checks values beyond their types.
    ///
    /// # Errors
    /// A value out of its range, with its key.
    pub fn validate(&self) -> Result<()> {
        within("model.projector.dim", self.dim, 65536)?;
        self.hidden.map_or(Ok(()), |h| within("model.projector.hidden", h, 65536))
    }
}

fn within(key: &str, value: i64, most: i64) -> Result<()> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::Config(format!("{key}: expected a whole number from 1 to {most}, found {value}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn read(text: &str) -> Result<ModelConfig> {
        parse(text, "m.yaml", &[])
    }

    #[test]
    fn defaults_are_torchvisions_timms_and_the_authors() {
        let got = read("encoder: {kind: resnet50}").unwrap();
        assert_eq!(got.encoder, EncoderConfig::Resnet50(ResnetConfig { stem: Stem::Imagenet, width: 64 }));
        assert_eq!(got.projector, ProjectorConfig { dim: 64, hidden: None });
        let got = read("encoder: {kind: resnet18, stem: small, width: 16}\nprojector: {dim: 32, hidden: 48}").unwrap();
        assert_eq!(got.encoder, EncoderConfig::Resnet18(ResnetConfig { stem: Stem::Small, width: 16 }));
        let vit = VitConfig { patch_size: 16, width: 384, depth: 12, heads: 6 };
        assert_eq!(read("encoder: {kind: vit_small}").unwrap().encoder, EncoderConfig::VitSmall(vit));
        let text = serde_yaml::to_string(&got).unwrap();
        assert_eq!(read(&text).unwrap(), got);
    }

    #[test]
    fn misspelt_keys_and_kinds_are_refused_with_the_nearest_one() {
        for (text, hint) in [
            ("encoder: {kind: resnet81}", "`resnet18`"),
            ("encoder: {kind: resnet18, steam: small}", "`stem`"),
            ("encoder: {kind: resnet18, stem: smal}", "`small`"),
            ("encoder: {kind: vit_small, patch_sise: 8}", "`patch_size`"),
            ("encoder: {kind: vit_smal}", "`vit_small`"),
            ("encoder: {kind: resnet18}\nprojector: {dims: 3}", "`dim`"),
        ] {
            let e = read(text).unwrap_err().to_string();
            assert!(e.contains(&format!("did you mean {hint}?")), "{e}");
        }
        assert!(read("projector: {dim: 3}").unwrap_err().to_string().contains("encoder"));
    }

    #[test]
    fn values_out_of_range_name_the_key() {
        for (text, key) in [
            ("encoder: {kind: resnet18, width: 0}", "model.encoder.width"),
            ("encoder: {kind: vit_small, patch_size: 0}", "model.encoder.patch_size"),
            ("encoder: {kind: vit_small, width: 100000}", "model.encoder.width"),
            ("encoder: {kind: vit_small, depth: 0}", "model.encoder.depth"),
            ("encoder: {kind: vit_small, heads: 0}", "model.encoder.heads"),
            ("encoder: {kind: vit_small, heads: 7}", "model.encoder.heads"),
            ("encoder: {kind: resnet18}\nprojector: {dim: 0}", "model.projector.dim"),
            ("encoder: {kind: resnet18}\nprojector: {hidden: 1000000}", "model.projector.hidden"),
        ] {
            let e = read(text).unwrap().validate().unwrap_err().to_string();
            assert!(e.starts_with(key), "{e}");
        }
    }
}
