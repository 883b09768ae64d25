//! `precision`: the number format that the encoder computes in.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind};

/// What the encoder and projector compute in during training. Weights, loss, statistics and optimizer are float32 always, and
/// so are evaluations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// float32.
    #[default]
    Fp32,
    /// Automatic casting to bfloat16.
    Bf16,
    /// Automatic casting to float16, with a scaled loss; on CUDA only.
    Fp16,
}

impl Precision {
    /// The type that products are cast to, where they are.
    pub fn cast(self) -> Option<Kind> {
        match self {
            Precision::Fp32 => None,
            Precision::Bf16 => Some(Kind::BFloat16),
            Precision::Fp16 => Some(Kind::Half),
        }
    }

    /// Whether a device can train in this precision.
    ///
    /// # Errors
    /// float16 elsewhere than on CUDA.
    pub fn check(self, device: Device) -> Result<()> {
        if self == Precision::Fp16 && !device.is_cuda() {
            return Err(Error::Config(
                "precision: fp16 needs a CUDA device, and this run is on the CPU; use bf16 there, or --device cuda"
                    .into(),
            ));
        }
        Ok(())
    }
}
