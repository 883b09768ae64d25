//! The loss of given embeddings, for people who check their own implementation against this one: files in, numbers out.

use super::{Diagnostics, Layout, Loss};
use crate::checkpoint;
use crate::config::loss::LossConfig;
use crate::error::{Error, Result};
use safetensors::tensor::{Dtype, SafeTensors};
use std::fs;
use std::path::Path;
use tch::{Kind, Tensor};

/// Two views of a batch, as read from a file.
#[derive(Debug)]
pub struct Embeddings {
    /// First views, [N, d] float32 or float64.
    pub z_i: Tensor,
    /// Second views, as `z_i`; further candidates may follow.
    pub z_j: Tensor,
}

impl Embeddings {
    /// Reads `z_i` and `z_j` from a safetensors file; other tensors in it are passed over.
    ///
    /// # Errors
    /// An unreadable or damaged file, missing keys, kinds other than float32 and float64, shapes that do not match.
    pub fn read(path: &Path) -> Result<Embeddings> {
        let bytes = fs::read(path).map_err(Error::io(path, "cannot read"))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| {
            Error::data(path, None, format!("expected a safetensors file, found a damaged or different one ({e})"))
        })?;
        let (z_i, z_j) = (matrix(&file, path, "z_i")?, matrix(&file, path, "z_j")?);
        if z_i.size()[1] != z_j.size()[1] || z_i.kind() != z_j.kind() {
            let message = format!(
                "expected z_i and z_j of one width and kind, found {:?} {:?} and {:?} {:?}",
                z_i.size(),
                z_i.kind(),
                z_j.size(),
                z_j.kind()
            );
            return Err(Error::data(path, None, message));
        }
        Ok(Embeddings { z_i, z_j })
    }
}

fn matrix(file: &SafeTensors, path: &Path, name: &str) -> Result<Tensor> {
    let view = file.tensor(name).map_err(|_| {
        let mut names = file.names();
        names.sort_unstable();
        let list = if names.is_empty() { "none".to_string() } else { names.join(", ") };
        Error::data(
            path,
            None,
            format!("expected the tensors z_i and z_j, found no {name}; tensors in the file: {list}"),
        )
    })?;
    let refuse = |what: &str| {
        let found = format!("{what}, found {:?} {:?}", view.shape(), view.dtype());
        Err(Error::data(path, None, format!("{name}: expected {found}")))
    };
    let kind = match view.dtype() {
        Dtype::F32 => Kind::Float,
        Dtype::F64 => Kind::Double,
        _ => return refuse("float32 or float64"),
    };
    let &[samples, dimensions] = view.shape() else { return refuse("a matrix [N, d]") };
    if samples == 0 || dimensions == 0 {
        return refuse("at least one sample and one dimension");
    }
    Ok(Tensor::f_from_data_size(view.data(), &[samples as i64, dimensions as i64], kind)?)
}

/// The loss of a batch with all that belongs to it.
pub struct Checked {
    kind: Kind,
    layout: Layout,
    samples: i64,
    dimensions: i64,
    config: LossConfig,
    loss: f64,
    scalars: Vec<f64>,
    diagnostics: Diagnostics,
    gradients: (Tensor, Tensor),
}

/// Computes loss, gradients and diagnostics of `embeddings`.
///
/// # Errors
/// Embeddings or results that are not finite, a configuration out of range, a batch that the loss cannot serve.
pub fn check(embeddings: &Embeddings, config: &LossConfig, layout: Layout) -> Result<Checked> {
    Loss::check_finite(&embeddings.z_i, &embeddings.z_j)?;
    let leaf = |z: &Tensor| z.copy().set_requires_grad(true);
    let (z_i, z_j) = (leaf(&embeddings.z_i), leaf(&embeddings.z_j));
    let output = Loss::new(config, layout)?.forward(&z_i, &z_j)?;
    output.loss.f_backward()?;
    let gradients = (z_i.grad(), z_j.grad());
    let loss = output.loss.detach().f_double_value(&[])?;
    for (name, finite) in [
        ("loss", loss.is_finite()),
        ("gradient", gradients.0.isfinite().all().f_int64_value(&[])? != 0),
        ("gradient", gradients.1.isfinite().all().f_int64_value(&[])? != 0),
    ] {
        if !finite {
            return Err(Error::NonFinite(format!(
                "the {name} is NaN or infinite although the embeddings are finite; their norms may differ by more \
                 than {:?} can hold",
                z_i.kind()
            )));
        }
    }
    Ok(Checked {
        kind: z_i.kind(),
        layout,
        samples: z_i.size()[0],
        dimensions: z_i.size()[1],
        config: config.clone(),
        loss,
        scalars: Vec::try_from(output.diagnostics.scalars())?,
        diagnostics: output.diagnostics,
        gradients,
    })
}

impl Checked {
    fn header(&self) -> [(&'static str, serde_json::Value); 5] {
        let kind = match &self.config {
            LossConfig::Infonce(_) => "infonce",
            LossConfig::Weince(_) => "weince",
            LossConfig::Reference(_) => "reference",
        };
        let layout = match self.layout {
            Layout::TwoView => "two_view",
            Layout::OneWay => "one_way",
            Layout::BothWays => "both_ways",
        };
        [
            ("kind", kind.into()),
            ("layout", layout.into()),
            ("samples", self.samples.into()),
            ("dimensions", self.dimensions.into()),
            ("dtype", if self.kind == Kind::Double { "float64" } else { "float32" }.into()),
        ]
    }

    /// One object: the batch, the loss, the diagnostics (null where the loss has no such thing), the configuration.
    ///
    /// # Errors
    /// None that is expected: the configuration is plain data.
    pub fn json(&self) -> Result<serde_json::Value> {
        let mut object = serde_json::Map::new();
        object.extend(self.header().map(|(name, value)| (name.to_string(), value)));
        object.insert("loss".to_string(), self.loss.into());
        for (name, &value) in Diagnostics::SCALARS.iter().zip(&self.scalars) {
            // NaN, which stands for what the loss has no meaning for, becomes null.
            object.insert((*name).to_string(), value.into());
        }
        let config = serde_json::to_value(&self.config)
            .map_err(|e| Error::Config(format!("loss: cannot be written as JSON: {e}")))?;
        object.insert("config".to_string(), config);
        Ok(serde_json::Value::Object(object))
    }

    /// The same for people: a name and a value a line, the loss with all its digits.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |name: &str, value: &str| out.push_str(&format!("{name:<18}{value}\n"));
        for (name, value) in self.header() {
            line(name, value.as_str().map_or_else(|| value.to_string(), str::to_string).as_str());
        }
        line("loss", &significant(self.loss, if self.kind == Kind::Double { 17 } else { 9 }));
        for (name, &value) in Diagnostics::SCALARS.iter().zip(&self.scalars) {
            line(name, &if value.is_nan() { "-".to_string() } else { significant(value, 9) });
        }
        out
    }

    /// Names of what [`Checked::write`] leaves out because the loss has no such thing.
    pub fn left_out(&self) -> Vec<&'static str> {
        self.per_anchor().into_iter().filter(|(_, t)| t.is_none()).map(|(name, _)| name).collect()
    }

    fn per_anchor(&self) -> [(&'static str, Option<&Tensor>); 4] {
        let d = &self.diagnostics;
        [
            ("lambda", d.lambda.as_ref()),
            ("rho", Some(&d.rho)),
            ("beta", d.beta.as_ref()),
            ("delta_aic", d.delta_aic.as_ref()),
        ]
    }

    /// Writes `grad_z_i`, `grad_z_j` and the per-anchor statistics in the embeddings' kind. The file appears when it is
    /// complete.
    ///
    /// # Errors
    /// What the system reports.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut named = vec![("grad_z_i", &self.gradients.0), ("grad_z_j", &self.gradients.1)];
        named.extend(self.per_anchor().into_iter().filter_map(|(name, t)| Some((name, t?))));
        let tensors: Vec<(String, Tensor)> =
            named.into_iter().map(|(name, t)| (name.to_string(), t.detach().to_kind(self.kind))).collect();
        checkpoint::safetensors::save(path, &tensors, &Default::default())
    }
}

/// A number with so many significant digits.
fn significant(value: f64, digits: usize) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let magnitude = value.abs().log10().floor() as i32;
    if !(-5..15).contains(&magnitude) {
        return format!("{value:.*e}", digits - 1);
    }
    format!("{value:.*}", (digits as i32 - 1 - magnitude).max(0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_significant_ones() {
        assert_eq!(significant(0.1, 17), "0.10000000000000001");
        assert_eq!(significant(9.7, 17), "9.6999999999999993");
        assert_eq!(significant(12.5, 9), "12.5000000");
        assert_eq!(significant(1.25e-9, 3), "1.25e-9");
        assert_eq!(significant(0.0, 9), "0");
    }
}
