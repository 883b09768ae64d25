//! Python's pickle format, protocol 2, as far as `torch.save` needs it for plain data and tensors.

use super::opcode::*;
use super::value::Value;
use crate::error::{Error, Result};
use std::collections::HashMap;
use tch::{Kind, Tensor};

/// The pickled form of a value: the byte stream, and the tensors whose elements belong in `data/0`, `data/1`, ...
pub(super) struct Pickled {
    pub stream: Vec<u8>,
    pub storages: Vec<Tensor>,
}

/// Pickles a value.
///
/// # Errors
/// A tensor type that has no storage class in PyTorch's files, and text longer than 4 GiB.
pub(super) fn pickle(value: &Value) -> Result<Pickled> {
    let mut p = Pickler { out: vec![PROTO, 2], storages: Vec::new(), known: HashMap::new() };
    p.value(value)?;
    p.out.push(STOP);
    Ok(Pickled { stream: p.out, storages: p.storages })
}

/// What makes two tensors the same elements in the same order: address, shape, strides, type.
type Identity = (usize, Vec<i64>, Vec<i64>, Kind);

struct Pickler {
    out: Vec<u8>,
    storages: Vec<Tensor>,
    known: HashMap<Identity, usize>,
}

impl Pickler {
    fn value(&mut self, value: &Value) -> Result<()> {
        match value {
            Value::None => self.out.push(NONE),
            Value::Bool(x) => self.bool(*x),
            Value::Int(x) => self.int(*x),
            Value::Float(x) => {
                self.out.push(BINFLOAT);
                self.out.extend(x.to_be_bytes());
            }
            Value::Str(x) => self.str(x)?,
            Value::List(items) => {
                self.out.push(EMPTY_LIST);
                if !items.is_empty() {
                    self.out.push(MARK);
                    items.iter().try_for_each(|x| self.value(x))?;
                    self.out.push(APPENDS);
                }
            }
            Value::Tuple(items) => {
                self.out.push(MARK);
                items.iter().try_for_each(|x| self.value(x))?;
                self.out.push(TUPLE);
            }
            Value::Dict(items) => {
                self.out.push(EMPTY_DICT);
                self.items(items)?;
            }
            Value::OrderedDict(items) => {
                self.ordered_dict();
                self.items(items)?;
            }
            Value::Tensor(t) => self.tensor(t)?,
        }
        Ok(())
    }

    fn bool(&mut self, x: bool) {
        self.out.push(if x { NEWTRUE } else { NEWFALSE });
    }

    fn int(&mut self, x: i128) {
        if let Ok(small) = u8::try_from(x) {
            self.out.extend([BININT1, small]);
        } else if let Ok(medium) = i32::try_from(x) {
            self.out.push(BININT);
            self.out.extend(medium.to_le_bytes());
        } else if let Ok(long) = i64::try_from(x) {
            self.out.extend([LONG1, 8]);
            self.out.extend(long.to_le_bytes());
        } else {
            self.out.extend([LONG1, 16]);
            self.out.extend(x.to_le_bytes());
        }
    }

    fn ints(&mut self, list: &[i64]) {
        self.out.push(MARK);
        list.iter().for_each(|&x| self.int(x.into()));
        self.out.push(TUPLE);
    }

    fn str(&mut self, x: &str) -> Result<()> {
        let Ok(length) = u32::try_from(x.len()) else {
            return Err(Error::Input(format!("checkpoint: text of {} bytes; at most 4 GiB can be saved", x.len())));
        };
        self.out.push(BINUNICODE);
        self.out.extend(length.to_le_bytes());
        self.out.extend(x.as_bytes());
        Ok(())
    }

    fn global(&mut self, module: &str, name: &str) {
        self.out.push(GLOBAL);
        self.out.extend(format!("{module}\n{name}\n").into_bytes());
    }

    /// An empty `OrderedDict()` on the stack.
    fn ordered_dict(&mut self) {
        self.global("collections", "OrderedDict");
        self.out.extend([EMPTY_TUPLE, REDUCE]);
    }

    fn items(&mut self, items: &[(Value, Value)]) -> Result<()> {
        if items.is_empty() {
            return Ok(());
        }
        self.out.push(MARK);
        for (key, value) in items {
            self.value(key)?;
            self.value(value)?;
        }
        self.out.push(SETITEMS);
        Ok(())
    }

    /// `_rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)`, the storage by a persistent id.
    fn tensor(&mut self, t: &Tensor) -> Result<()> {
        let class = storage_class(t.f_kind()?)?;
        let key = self.storage(t)?;
        let size = t.size();
        self.global("torch._utils", "_rebuild_tensor_v2");
        self.out.extend([MARK, MARK]);
        self.str("storage")?;
        self.global("torch", class);
        self.str(&key.to_string())?;
        self.str("cpu")?;
        self.int(t.numel() as i128);
        self.out.extend([TUPLE, BINPERSID]);
        self.int(0);
        self.ints(&size);
        self.ints(&row_major(&size));
        self.bool(false);
        self.ordered_dict();
        self.out.extend([TUPLE, REDUCE]);
        Ok(())
    }

    /// The number of the storage of `t`. A tensor that occurs twice is stored once, and is one tensor's memory again
    /// when PyTorch reads it; other views of common memory are stored apart.
    fn storage(&mut self, t: &Tensor) -> Result<usize> {
        let next = self.storages.len();
        let identity = (t.data_ptr() as usize, t.size(), t.stride(), t.f_kind()?);
        if t.numel() > 0 {
            if let Some(&known) = self.known.get(&identity) {
                return Ok(known);
            }
            self.known.insert(identity, next);
        }
        self.storages.push(t.detach());
        Ok(next)
    }
}

/// The strides of a tensor of this size whose elements lie row by row.
fn row_major(size: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; size.len()];
    for i in (1..size.len()).rev() {
        strides[i - 1] = strides[i] * size[i].max(1);
    }
    strides
}

fn storage_class(kind: Kind) -> Result<&'static str> {
    let known = STORAGES.iter().find(|(k, _)| *k == kind).map(|(_, class)| *class);
    known.ok_or_else(|| Error::Input(format!("checkpoint: a tensor of type {kind:?} can't be saved")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_are_the_bytes_that_python_writes() {
        // pickletools.optimize(pickle.dumps(x, protocol=2)), with BININT for what Python writes as BININT2.
        let cases: [(Value, &[u8]); 7] = [
            (Value::None, b"\x80\x02N."),
            (true.into(), b"\x80\x02\x88."),
            (255.into(), b"\x80\x02K\xff."),
            ((-2).into(), b"\x80\x02J\xfe\xff\xff\xff."),
            (1.5.into(), b"\x80\x02G?\xf8\0\0\0\0\0\0."),
            ("\u{e9}".into(), b"\x80\x02X\x02\0\0\0\xc3\xa9."),
            (Value::List(vec![]), b"\x80\x02]."),
        ];
        for (value, expected) in cases {
            assert_eq!(pickle(&value).unwrap().stream, expected, "{value:?}");
        }
    }

    #[test]
    fn a_tensor_that_occurs_twice_is_stored_once() {
        let t = Tensor::from_slice(&[1f32, 2.0, 3.0, 4.0]).reshape([2, 2]);
        let value = Value::List(vec![
            t.shallow_clone().into(),
            t.detach().into(),
            t.tr().into(),
            t.get(0).into(),
            Tensor::zeros([0, 3], (Kind::Float, tch::Device::Cpu)).into(),
            Tensor::zeros([0, 3], (Kind::Float, tch::Device::Cpu)).into(),
        ]);
        assert_eq!(pickle(&value).unwrap().storages.len(), 5);
    }

    #[test]
    fn strides_are_row_major_and_complex_numbers_are_refused() {
        assert_eq!(row_major(&[2, 3, 4]), [12, 4, 1]);
        assert_eq!(row_major(&[]), [0i64; 0]);
        let t = Tensor::zeros([2], (Kind::ComplexFloat, tch::Device::Cpu));
        assert!(pickle(&t.into()).err().unwrap().to_string().contains("ComplexFloat"));
    }
}
