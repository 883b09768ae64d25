//! What is in a file: every tensor by name, type and shape, and every plain value beside them.

use crate::checkpoint::{Names, Value, safetensors, torch_file};
use crate::error::Result;
use crate::torch::Script;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use tch::{Kind, Tensor};

/// How a file stores its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// safetensors.
    Safetensors,
    /// `torch.save`.
    TorchSave,
    /// `torch.jit.save`.
    Torchscript,
}

/// What is known of a tensor without its elements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorInfo {
    /// Its name; within dicts their keys, joined by dots.
    pub name: String,
    /// PyTorch's name of its element type, such as `float32`.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<i64>,
    /// Whether each element is finite.
    pub finite: bool,
}

/// A file that was read whole.
#[derive(Debug)]
pub struct Inspection {
    /// How it stores its tensors.
    pub format: Format,
    /// The tensors, in its order.
    pub tensors: Vec<(String, Tensor)>,
    /// Plain values by name, such as `step`.
    pub values: Vec<(String, serde_json::Value)>,
}

/// Reads a file whole, checksums included, whatever its format.
///
/// # Errors
/// As [`safetensors::load`], [`torch_file::load`] and [`Script::load`].
pub fn inspect(path: &Path) -> Result<Inspection> {
    let mut out = Inspection { format: Format::Safetensors, tensors: Vec::new(), values: Vec::new() };
    if !torch_file::is_one(path)? {
        let contents = safetensors::load(path)?;
        out.tensors = contents.tensors;
        out.values = contents.metadata.into_iter().map(|(k, v)| (k, v.into())).collect();
    } else if torch_file::is_script(path)? {
        out.format = Format::Torchscript;
        torch_file::verify_script(path)?;
        out.tensors = Script::load(path)?.members()?.into_iter().map(|m| (m.name, m.tensor.detach())).collect();
    } else {
        out.format = Format::TorchSave;
        walk(path, String::new(), torch_file::load(path)?, &mut Names::new(), &mut out)?;
    }
    Ok(out)
}

impl Inspection {
    /// The tensors without their elements.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn infos(&self) -> Result<Vec<TensorInfo>> {
        let info = |(name, t): &(String, Tensor)| {
            let kind = t.f_kind()?;
            let finite = t.f_isfinite()?.f_all()?.f_int64_value(&[])? != 0;
            Ok(TensorInfo { name: name.clone(), dtype: dtype(kind), shape: t.size(), finite })
        };
        self.tensors.iter().map(info).collect()
    }

    /// Numbers and bytes of all tensors.
    pub fn size(&self) -> (usize, usize) {
        let sizes = self.tensors.iter().map(|(_, t)| (t.numel(), t.numel() * t.kind().elt_size_in_bytes()));
        sizes.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// The plain values as one JSON object.
    pub fn values_by_name(&self) -> BTreeMap<&str, &serde_json::Value> {
        self.values.iter().map(|(name, value)| (name.as_str(), value)).collect()
    }
}

/// PyTorch's name of an element type.
fn dtype(kind: Kind) -> String {
    match kind {
        Kind::Float => "float32".into(),
        Kind::Double => "float64".into(),
        Kind::Half => "float16".into(),
        Kind::Int => "int32".into(),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// Sorts what is within a value into tensors and plain values. Lists of plain values stay together.
fn walk(path: &Path, name: String, value: Value, names: &mut Names, out: &mut Inspection) -> Result<()> {
    match value {
        Value::Tensor(t) => out.tensors.push((name, t)),
        Value::Dict(items) | Value::OrderedDict(items) => {
            for (key, value) in items {
                let key = match &key {
                    Value::Str(key) => key.clone(),
                    other => other.to_json().to_string(),
                };
                let name = names.join(path, &name, &key)?;
                walk(path, name, value, names, out)?;
            }
        }
        Value::List(items) | Value::Tuple(items) if !items.iter().all(is_plain) => {
            for (i, item) in items.into_iter().enumerate() {
                let name = names.join(path, &name, &i.to_string())?;
                walk(path, name, item, names, out)?;
            }
        }
        other => out.values.push((name, other.to_json())),
    }
    Ok(())
}

fn is_plain(value: &Value) -> bool {
    match value {
        Value::Tensor(_) | Value::Dict(_) | Value::OrderedDict(_) => false,
        Value::List(items) | Value::Tuple(items) => items.iter().all(is_plain),
        _ => true,
    }
}
