//! `augment`: how the two views of an image are made. The defaults are SimCLR's as its authors train on CIFAR.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// How views are made; the operations are applied in the order of the fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AugmentConfig {
    /// Edge of the square views; as the data's longer edge where absent.
    ///
    /// # Units
    /// Pixels.
    pub size: Option<usize>,
    /// The part of the image that is shown.
    pub crop: CropConfig,
    /// Probability of a horizontal flip.
    pub flip: f64,
    /// Random colours.
    pub jitter: JitterConfig,
    /// Probability of a grey view.
    pub grayscale: f64,
    /// Gaussian blur; none where absent.
    pub blur: Option<BlurConfig>,
    /// Subtraction of a mean and division by a standard deviation for each channel; none where absent. Evaluation does the same.
    pub normalize: Option<NormalizeConfig>,
}

/// The part of the image that a view shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CropConfig {
    /// Least and greatest share of the area.
    pub scale: [f64; 2],
    /// Least and greatest width over height.
    pub ratio: [f64; 2],
}

/// Strengths of the colour jitter: factors are drawn from 1 - x to 1 + x, the turn of the hue from -x to x.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JitterConfig {
    /// Probability of any jitter.
    pub p: f64,
    /// Strength of the change of brightness.
    pub brightness: f64,
    /// Strength of the change of contrast.
    pub contrast: f64,
    /// Strength of the change of saturation.
    pub saturation: f64,
    /// Greatest turn of the colour circle, at most 0.5.
    pub hue: f64,
}

/// Gaussian blur with a kernel of a tenth of the view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BlurConfig {
    /// Probability of a blur.
    pub p: f64,
    /// Least and greatest standard deviation.
    ///
    /// # Units
    /// Pixels.
    pub sigma: [f64; 2],
}

/// Mean and standard deviation of red, green and blue, of values from 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormalizeConfig {
    /// Subtracted.
    pub mean: [f32; 3],
    /// Divided by.
    pub std: [f32; 3],
}

impl Default for AugmentConfig {
    fn default() -> Self {
        AugmentConfig {
            size: None,
            crop: CropConfig::default(),
            flip: 0.5,
            jitter: JitterConfig::default(),
            grayscale: 0.2,
            blur: None,
            normalize: None,
        }
    }
}

impl Default for CropConfig {
    fn default() -> Self {
        CropConfig { scale: [0.08, 1.0], ratio: [3.0 / 4.0, 4.0 / 3.0] }
    }
}

impl Default for JitterConfig {
    fn default() -> Self {
        JitterConfig { p: 0.8, brightness: 0.8, contrast: 0.8, saturation: 0.8, hue: 0.2 }
    }
}

impl Default for BlurConfig {
    fn default() -> Self {
        BlurConfig { p: 0.5, sigma: [0.1, 2.0] }
    }
}

impl AugmentConfig {
    /// Edge of the views of images of a shape: as configured, or their longer edge.
    ///
    /// # Units
    /// Pixels.
    ///
    /// # Errors
    /// No size for images that have no common shape.
    pub fn view_size(&self, shape: Option<[usize; 2]>) -> Result<usize> {
        let longer = shape.map(|[height, width]| height.max(width));
        self.size.or(longer).ok_or_else(|| {
            Error::Config(
                "augment.size: missing; images in files of their own have no common size: give the edge of the views in pixels, \
                 such as 224"
                    .into(),
            )
        })
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The first value that is out of its range, with its key.
    pub fn validate(&self) -> Result<()> {
        if let Some(size) = self.size {
            check("size", size as f64, (1..=MAX_EDGE).contains(&size), "from 1 to 4096 pixels")?;
        }
        let ordered = |range: [f64; 2], low: f64, high: f64| range[0] > low && range[0] <= range[1] && range[1] <= high;
        let [low, high] = self.crop.scale;
        check_pair(
            "crop.scale",
            [low, high],
            ordered([low, high], 0.0, 1.0),
            "shares of the area, above 0, at most 1",
        )?;
        check_pair(
            "crop.ratio",
            self.crop.ratio,
            ordered(self.crop.ratio, 0.0, f64::MAX),
            "widths over heights, above 0",
        )?;
        let share = |x: f64| (0.0..=1.0).contains(&x);
        check("flip", self.flip, share(self.flip), "a probability from 0 to 1")?;
        let jitter = &self.jitter;
        check("jitter.p", jitter.p, share(jitter.p), "a probability from 0 to 1")?;
        for (key, value) in [
            ("jitter.brightness", jitter.brightness),
            ("jitter.contrast", jitter.contrast),
            ("jitter.saturation", jitter.saturation),
        ] {
            check(key, value, value >= 0.0 && value.is_finite(), "a finite strength of 0 or more")?;
        }
        check("jitter.hue", jitter.hue, (0.0..=0.5).contains(&jitter.hue), "a strength from 0 to 0.5")?;
        check("grayscale", self.grayscale, share(self.grayscale), "a probability from 0 to 1")?;
        if let Some(blur) = &self.blur {
            check("blur.p", blur.p, share(blur.p), "a probability from 0 to 1")?;
            check_pair("blur.sigma", blur.sigma, ordered(blur.sigma, 0.0, f64::MAX), "standard deviations above 0")?;
        }
        if let Some(NormalizeConfig { mean, std }) = &self.normalize {
            for (mean, std) in mean.iter().zip(std) {
                check("normalize.mean", f64::from(*mean), mean.is_finite(), "finite")?;
                check("normalize.std", f64::from(*std), *std > 0.0 && std.is_finite(), "finite and above 0")?;
            }
        }
        Ok(())
    }
}

/// Longest edge of a view, in pixels: what lies beyond is a mistake.
pub const MAX_EDGE: usize = 4096;

/// Longest edge of an image, in pixels: no JPEG can have a longer one.
pub const MAX_IMAGE_EDGE: usize = 65_535;

fn check(key: &str, value: f64, good: bool, allowed: &str) -> Result<()> {
    if good {
        Ok(())
    } else {
        Err(Error::Config(format!("augment.{key}: {value} is out of range; expected {allowed}")))
    }
}

fn check_pair(key: &str, value: [f64; 2], good: bool, allowed: &str) -> Result<()> {
    let [low, high] = value;
    if good {
        Ok(())
    } else {
        Err(Error::Config(format!(
            "augment.{key}: [{low}, {high}] is out of range; expected [least, greatest] {allowed}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct File {
        augment: AugmentConfig,
    }

    #[test]
    fn what_is_left_out_is_simclrs() {
        let read = |text| parse::<File>(text, "c", &[]).unwrap().augment;
        let defaults = AugmentConfig::default();
        assert_eq!(read("augment: {}"), defaults);
        assert_eq!(read("augment: {jitter: {hue: 0.1}}").jitter, JitterConfig { hue: 0.1, ..JitterConfig::default() });
        assert_eq!(read("augment: {blur: {}}").blur, Some(BlurConfig { p: 0.5, sigma: [0.1, 2.0] }));
        defaults.validate().unwrap();
    }

    #[test]
    fn what_is_written_can_be_read() {
        let normalize = Some(NormalizeConfig { mean: [0.4914, 0.4822, 0.4465], std: [0.247, 0.2435, 0.2616] });
        let file =
            File { augment: AugmentConfig { normalize, blur: Some(BlurConfig::default()), ..Default::default() } };
        assert_eq!(parse::<File>(&serde_yaml::to_string(&file).unwrap(), "c", &[]).unwrap(), file);
    }

    #[test]
    fn unknown_keys_are_refused_at_any_depth() {
        let e = parse::<File>("augment: {jitter: {hew: 0.1}}", "c", &[]).unwrap_err().to_string();
        assert!(e.contains("augment.jitter") && e.contains("`hew`") && e.contains("did you mean `hue`?"), "{e}");
        let e = parse::<File>("augment: {normalize: {mean: [0, 0, 0]}}", "c", &[]).unwrap_err().to_string();
        assert!(e.contains("`std`"), "{e}");
    }
}
