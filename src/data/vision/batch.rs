//! Batches of images as Python pickled them, or as numpy saved them: `data` [n, 3 * edge * edge], bytes, and a list of labels.

use crate::checkpoint::{Value, load_npz, load_pickle};
use crate::error::{Error, Result};
use crate::torch::with_bytes;
use std::path::Path;
use tch::Kind;

/// Images and labels of a file.
pub(super) struct Batch {
    /// The planes of image after image.
    pub pixels: Vec<u8>,
    /// As the file has them.
    pub labels: Vec<i64>,
}

/// Reads a batch of images of 3 x `edge` x `edge` bytes, with labels from `least` on, of `classes` classes, under the key
/// `label_key`.
///
/// # Errors
/// A file that cannot be read, is damaged, or has other keys, types, shapes or labels.
pub(super) fn read(path: &Path, edge: usize, label_key: &str, least: i64, classes: usize) -> Result<Batch> {
    let wrong = |message: String| Error::data(path, None, message);
    let items: Vec<(Value, Value)> = if path.extension().is_some_and(|e| e == "npz") {
        load_npz(path)?.into_iter().map(|(name, array)| (Value::Str(name), Value::Tensor(array))).collect()
    } else {
        match load_pickle(path)? {
            Value::Dict(items) => items,
            _ => return Err(wrong("holds no dict; expected one with `data` and labels".into())),
        }
    };
    let file = Value::Dict(items);
    let get = |key: &str| {
        let keys: Vec<&str> = file.items().unwrap_or_default().iter().filter_map(|(k, _)| k.as_str()).collect();
        file.get(key).ok_or_else(|| wrong(format!("has no `{key}`; it has {}: it is another file", keys.join(", "))))
    };
    let row = 3 * edge * edge;
    let data = get("data")?.as_tensor().ok_or_else(|| wrong("`data` is no array".into()))?;
    let (kind, shape) = (data.f_kind()?, data.size());
    if kind != Kind::Uint8 || !matches!(shape[..], [n, d] if n > 0 && d == row as i64) {
        return Err(wrong(format!("`data` is {kind:?} of shape {shape:?}; expected bytes of shape [images, {row}]")));
    }
    let labels = match get(label_key)? {
        Value::Tensor(t) if !t.is_floating_point() && t.dim() == 1 => {
            Some(Vec::<i64>::try_from(&t.f_to_kind(Kind::Int64)?)?)
        }
        list => list.elements().and_then(|items| {
            items.iter().map(|item| if let Value::Int(n) = item { i64::try_from(*n).ok() } else { None }).collect()
        }),
    };
    let labels = labels.ok_or_else(|| wrong(format!("`{label_key}` is no list of whole numbers")))?;
    if labels.len() as i64 != shape[0] {
        return Err(wrong(format!("has {} labels for {} images; expected as many", labels.len(), shape[0])));
    }
    let most = least + classes as i64 - 1;
    if let Some(index) = labels.iter().position(|label| !(least..=most).contains(label)) {
        return Err(wrong(format!("label {} of image {index} is no class; expected {least} to {most}", labels[index])));
    }
    let pixels = with_bytes(data, |bytes| Ok(bytes.to_vec()))?;
    Ok(Batch { pixels, labels })
}
