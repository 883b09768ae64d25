//! safetensors files, one tensor in memory at a time, strictly read.

use super::Names;
use super::atomic::write_atomically;
use crate::error::{Error, Result};
use crate::torch::with_bytes;
use ::safetensors::tensor::{Dtype, Metadata, TensorInfo};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use tch::{Kind, Tensor};

/// The format's own limit for the header.
const MAX_HEADER: u64 = 100_000_000;

const METADATA_KEY: &str = "__metadata__";

/// What a safetensors file holds.
#[derive(Debug)]
pub struct Contents {
    /// The tensors, on the CPU, in the order in which their data lie in the file.
    pub tensors: Vec<(String, Tensor)>,
    /// The free text that came with them.
    pub metadata: BTreeMap<String, String>,
}

/// Saves tensors and free text. The same content gives the same bytes.
///
/// # Errors
/// A name given twice, a tensor type that the format does not know, what LibTorch reports and the system refuses.
pub fn save(path: &Path, tensors: &[(String, Tensor)], metadata: &BTreeMap<String, String>) -> Result<()> {
    // Wide types first, so that every tensor is aligned to its type; in the given order otherwise.
    let mut order = Vec::new();
    for (name, t) in tensors {
        order.push((name, t, t.f_kind()?));
    }
    order.sort_by_key(|(_, _, kind)| std::cmp::Reverse(kind.elt_size_in_bytes()));

    let mut header = serde_json::Map::new();
    if !metadata.is_empty() {
        header.insert(METADATA_KEY.into(), serde_json::json!(metadata));
    }
    let mut end = 0;
    for &(name, t, kind) in &order {
        let begin = end;
        end += t.numel() * kind.elt_size_in_bytes();
        let info = TensorInfo {
            dtype: dtype(name, kind)?,
            shape: t.size().iter().map(|&n| n as usize).collect(),
            data_offsets: (begin, end),
        };
        let line = serde_json::to_value(info).map_err(|e| Error::Input(format!("safetensors: {name}: {e}")))?;
        if name == METADATA_KEY || header.insert(name.clone(), line).is_some() {
            return Err(Error::Input(format!("safetensors: the name `{name}` is given twice or reserved")));
        }
    }
    let mut header = serde_json::Value::Object(header).to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');

    write_atomically(path, |out| {
        let mut put = |bytes: &[u8]| out.write_all(bytes).map_err(Error::io(path, "cannot write"));
        put(&(header.len() as u64).to_le_bytes())?;
        put(&header)?;
        order.iter().try_for_each(|(_, t, _)| with_bytes(t, &mut put))
    })
}

/// Reads a whole file.
///
/// # Errors
/// A file that can't be read; a header or sizes that are not those of the file; element types that are not f16, bf16,
/// f32, f64, i8, i16, i32, i64, u8 or bool. Memory is taken only for what the file really holds.
pub fn load(path: &Path) -> Result<Contents> {
    let mut file = File::open(path).map_err(Error::io(path, "cannot open"))?;
    let length = file.metadata().map_err(Error::io(path, "cannot read"))?.len();
    let (header, data_begin) = read_header(path, &mut file, length)?;

    let mut tensors = Vec::new();
    for name in header.offset_keys() {
        let Some(info) = header.info(&name) else { continue };
        let (begin, end) = info.data_offsets;
        let at = data_begin + begin as u64;
        let wrong = |message: String| Error::data(path, Some(at), format!("tensor `{name}`: {message}"));
        let kind = kind(info.dtype).ok_or_else(|| {
            wrong(format!("elements of type {} are not supported; save it as F32, F16 or BF16", info.dtype))
        })?;
        if name.len() > Names::MOST || info.shape.len() > 64 {
            return Err(Error::data(
                path,
                Some(8),
                format!(
                    "a name of {} bytes, or a tensor of {} dimensions: at most 4096 and 64 are read",
                    name.len(),
                    info.shape.len()
                ),
            ));
        }
        let size = info.shape.iter().map(|&n| i64::try_from(n)).collect::<std::result::Result<Vec<i64>, _>>();
        let size = size.map_err(|_| wrong(format!("shape {:?} is beyond what a tensor can have", info.shape)))?;
        // The header's check has made sure that begin <= end <= the file's length.
        let mut bytes = vec![0; end - begin];
        file.seek(SeekFrom::Start(at)).map_err(Error::io(path, "cannot read"))?;
        file.read_exact(&mut bytes).map_err(Error::io(path, "cannot read"))?;
        if kind == Kind::Bool && bytes.iter().any(|&b| b > 1) {
            return Err(wrong("a BOOL element is neither 0 nor 1".into()));
        }
        let tensor = Tensor::f_from_data_size(&bytes, &size, kind)
            .map_err(|e| wrong(format!("{kind:?} {size:?} can't be made: {e}")))?;
        tensors.push((name, tensor));
    }
    let metadata = header.metadata().iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
    Ok(Contents { tensors, metadata })
}

/// The header, whose tensors follow one another without gaps up to the file's end, and where their data begin.
pub(crate) fn read_header(path: &Path, file: &mut File, length: u64) -> Result<(Metadata, u64)> {
    let mut size = [0; 8];
    if length == 0 {
        return Err(Error::data(path, None, "the file is empty"));
    }
    if length < 8 {
        return Err(Error::data(path, None, format!("{length} bytes are no safetensors file: it begins with 8 bytes")));
    }
    file.read_exact(&mut size).map_err(Error::io(path, "cannot read"))?;
    if size.starts_with(b"PK\x03\x04") {
        let message = "this is no safetensors file but a zip archive, as torch.save and numpy.savez write them";
        return Err(Error::data(path, Some(0), message));
    }
    let size = u64::from_le_bytes(size);
    if size > MAX_HEADER || size > length - 8 {
        return Err(Error::data(
            path,
            Some(0),
            format!("a header of {size} bytes in a file of {length}; it is damaged or no safetensors file"),
        ));
    }
    let mut text = vec![0; size as usize];
    file.read_exact(&mut text).map_err(Error::io(path, "cannot read"))?;
    let header: Metadata = serde_json::from_slice(&text)
        .map_err(|e| Error::data(path, Some(8), format!("the header is not that of a safetensors file: {e}")))?;
    let expected = (8 + size).saturating_add(header.data_len() as u64);
    if expected != length {
        let state = if length < expected { "cut off" } else { "followed by foreign bytes" };
        return Err(Error::data(
            path,
            None,
            format!("expected {expected} bytes after its header, found {length}: the file is {state}; fetch it again"),
        ));
    }
    Ok((header, 8 + size))
}

fn dtype(name: &str, kind: Kind) -> Result<Dtype> {
    Ok(match kind {
        Kind::Float => Dtype::F32,
        Kind::Double => Dtype::F64,
        Kind::Half => Dtype::F16,
        Kind::BFloat16 => Dtype::BF16,
        Kind::Int64 => Dtype::I64,
        Kind::Int => Dtype::I32,
        Kind::Int16 => Dtype::I16,
        Kind::Int8 => Dtype::I8,
        Kind::Uint8 => Dtype::U8,
        Kind::Bool => Dtype::BOOL,
        other => return Err(Error::Input(format!("safetensors: `{name}` of type {other:?} can't be saved"))),
    })
}

/// LibTorch's name of an element type; none for those that it is not asked for here.
pub(crate) fn kind(dtype: Dtype) -> Option<Kind> {
    Some(match dtype {
        Dtype::F32 => Kind::Float,
        Dtype::F64 => Kind::Double,
        Dtype::F16 => Kind::Half,
        Dtype::BF16 => Kind::BFloat16,
        Dtype::I64 => Kind::Int64,
        Dtype::I32 => Kind::Int,
        Dtype::I16 => Kind::Int16,
        Dtype::I8 => Kind::Int8,
        Dtype::U8 => Kind::Uint8,
        Dtype::BOOL => Kind::Bool,
        _ => return None,
    })
}
