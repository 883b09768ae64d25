//! Nested data of the plain types that `torch.load(weights_only=True)` accepts.

use tch::Tensor;

/// A Python object of a plain type.
#[derive(Debug)]
pub enum Value {
    /// `None`.
    None,
    /// `bool`.
    Bool(bool),
    /// `int`.
    Int(i64),
    /// `float`.
    Float(f64),
    /// `str`.
    Str(String),
    /// `list`.
    List(Vec<Value>),
    /// `tuple`.
    Tuple(Vec<Value>),
    /// `dict`, in order.
    Dict(Vec<(Value, Value)>),
    /// `collections.OrderedDict`, the type of a state_dict.
    OrderedDict(Vec<(Value, Value)>),
    /// `torch.Tensor`, without gradient.
    Tensor(Tensor),
}

impl Value {
    /// A `dict` with string keys.
    pub fn dict<K: Into<String>>(items: impl IntoIterator<Item = (K, Value)>) -> Value {
        Value::Dict(items.into_iter().map(|(k, v)| (Value::Str(k.into()), v)).collect())
    }

    /// Named tensors as PyTorch's `state_dict()` gives them.
    pub fn state_dict(tensors: Vec<(String, Tensor)>) -> Value {
        Value::OrderedDict(tensors.into_iter().map(|(k, t)| (Value::Str(k), Value::Tensor(t))).collect())
    }
}

impl From<bool> for Value {
    fn from(x: bool) -> Value {
        Value::Bool(x)
    }
}

impl From<i64> for Value {
    fn from(x: i64) -> Value {
        Value::Int(x)
    }
}

impl From<f64> for Value {
    fn from(x: f64) -> Value {
        Value::Float(x)
    }
}

impl From<&str> for Value {
    fn from(x: &str) -> Value {
        Value::Str(x.to_string())
    }
}

impl From<String> for Value {
    fn from(x: String) -> Value {
        Value::Str(x)
    }
}

impl From<Tensor> for Value {
    fn from(x: Tensor) -> Value {
        Value::Tensor(x)
    }
}
