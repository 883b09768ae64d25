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
    Int(i128),
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

    /// JSON as Python's `json.loads` gives it.
    pub fn from_json(json: serde_json::Value) -> Value {
        use serde_json::Value as Json;
        match json {
            Json::Null => Value::None,
            Json::Bool(x) => Value::Bool(x),
            Json::Number(n) => match (n.as_i64(), n.as_u64()) {
                (Some(x), _) => Value::Int(x.into()),
                (None, Some(x)) => Value::Int(x.into()),
                (None, None) => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(x) => Value::Str(x),
            Json::Array(items) => Value::List(items.into_iter().map(Value::from_json).collect()),
            Json::Object(items) => Value::dict(items.into_iter().map(|(k, v)| (k, Value::from_json(v)))),
        }
    }

    /// The value as JSON, where it has plain data alone; numbers that JSON does not have come as text, tensors as null.
    pub fn to_json(&self) -> serde_json::Value {
        match self {
            Value::None | Value::Tensor(_) => serde_json::Value::Null,
            Value::Bool(x) => (*x).into(),
            Value::Int(x) => match (i64::try_from(*x), u64::try_from(*x)) {
                (Ok(x), _) => x.into(),
                (_, Ok(x)) => x.into(),
                _ => x.to_string().into(),
            },
            Value::Float(x) if x.is_finite() => (*x).into(),
            Value::Float(x) => x.to_string().into(),
            Value::Str(x) => x.as_str().into(),
            Value::List(items) | Value::Tuple(items) => items.iter().map(Value::to_json).collect(),
            Value::Dict(items) | Value::OrderedDict(items) => {
                let key = |key: &Value| key.as_str().map_or_else(|| key.to_json().to_string(), str::to_string);
                serde_json::Value::Object(items.iter().map(|(k, v)| (key(k), v.to_json())).collect())
            }
        }
    }

    /// The items of a dict of either kind.
    pub fn items(&self) -> Option<&[(Value, Value)]> {
        match self {
            Value::Dict(items) | Value::OrderedDict(items) => Some(items),
            _ => None,
        }
    }

    /// The value of a dict's text key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.items()?.iter().find(|(k, _)| k.as_str() == Some(key)).map(|(_, v)| v)
    }

    /// The elements of a list or tuple.
    pub fn elements(&self) -> Option<&[Value]> {
        match self {
            Value::List(items) | Value::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// A text.
    pub fn as_str(&self) -> Option<&str> {
        if let Value::Str(text) = self { Some(text) } else { None }
    }

    /// An integer that is no less than 0.
    pub fn as_u64(&self) -> Option<u64> {
        if let Value::Int(n) = self { u64::try_from(*n).ok() } else { None }
    }

    /// A number.
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Int(n) => Some(*n as f64),
            Value::Float(x) => Some(*x),
            _ => None,
        }
    }

    /// A tensor.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        if let Value::Tensor(t) = self { Some(t) } else { None }
    }

    /// The names and tensors of a state_dict; none where a key or value is another thing.
    pub fn tensors(&self) -> Option<Vec<(String, Tensor)>> {
        let named = |(k, v): &(Value, Value)| Some((k.as_str()?.to_string(), v.as_tensor()?.shallow_clone()));
        self.items()?.iter().map(named).collect()
    }
}

impl From<bool> for Value {
    fn from(x: bool) -> Value {
        Value::Bool(x)
    }
}

impl From<i32> for Value {
    fn from(x: i32) -> Value {
        Value::Int(x.into())
    }
}

impl From<i64> for Value {
    fn from(x: i64) -> Value {
        Value::Int(x.into())
    }
}

impl From<u64> for Value {
    fn from(x: u64) -> Value {
        Value::Int(x.into())
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
