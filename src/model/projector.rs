//! The projector between encoder and loss: two linear layers without bias and a ReLU, as in the authors' SimCLR.

use super::fit::OtherNames;
use super::layers::Linear;
use super::store::Store;
use crate::config::model::ProjectorConfig;
use crate::error::{Error, Result};
use tch::Tensor;

/// `Linear(features, hidden)`, ReLU, `Linear(hidden, dim)`; the names `0.weight` and `2.weight` are those of `nn.Sequential`.
///
/// # Shapes
/// [B, features] to [B, dim].
#[derive(Debug)]
pub struct Projector {
    first: Linear,
    second: Linear,
    store: Store,
    features: i64,
}

impl Projector {
    /// A freshly initialised projector on the CPU, from LibTorch's generator.
    ///
    /// # Errors
    /// A width below 1, and whatever LibTorch reports.
    pub fn new(config: &ProjectorConfig, features: i64) -> Result<Projector> {
        config.validate()?;
        let hidden = config.hidden.unwrap_or(features);
        let ((first, second), store) = Store::build(|root| {
            Ok((Linear::new(&(root / 0), features, hidden)?, Linear::new(&(root / 2), hidden, config.dim)?))
        })?;
        Ok(Projector { first, second, store, features })
    }

    /// Projects features.
    ///
    /// # Errors
    /// Features of another width, and whatever LibTorch reports.
    pub fn forward(&self, features: &Tensor) -> Result<Tensor> {
        let size = features.size();
        if size.len() != 2 || size[1] != self.features {
            return Err(Error::Input(format!("projector: expected features [B, {}], found {size:?}", self.features)));
        }
        self.second.forward(&self.first.forward(features)?.f_relu_()?)
    }

    /// Where other projects have a projector: its own names, `0.weight` and `2.weight`, are those of many parts.
    pub fn other_names(&self) -> OtherNames {
        let levels = &["projector", "projection_head", "projection", "proj_head", "head", "fc", "layers"];
        OtherNames { levels, ..OtherNames::default() }
    }

    /// The projector's tensors.
    pub fn store(&self) -> &Store {
        &self.store
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind};

    #[test]
    fn the_widths_are_checked() {
        let p = Projector::new(&ProjectorConfig { dim: 4, hidden: Some(5) }, 6).unwrap();
        let sizes: Vec<Vec<i64>> = p.store().state_dict().iter().map(|(_, t)| t.size()).collect();
        assert_eq!(sizes, [[5, 6], [4, 5]]);
        assert_eq!(p.forward(&Tensor::ones([2, 6], (Kind::Float, Device::Cpu))).unwrap().size(), [2, 4]);
        let e = p.forward(&Tensor::ones([2, 5], (Kind::Float, Device::Cpu))).unwrap_err().to_string();
        assert!(e.contains("[B, 6]") && e.contains("[2, 5]"), "{e}");
    }
}
