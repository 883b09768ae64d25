//! Sections whose `kind` says which keys they have.
//!
//! Serde's own tagged enums lose the path of a wrong key and know no default for the tag.

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_yaml::{Mapping, Value};

/// Implements `Deserialize` for an enum with one newtype variant a kind; `default` is the kind where none is given.
macro_rules! by_kind {
    ($section:ident, default $default:expr, $($name:literal => $variant:ident),+ $(,)?) => {
        impl<'de> serde::Deserialize<'de> for $section {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
                let (kind, rest) = $crate::config::kind::split(deserializer, $default)?;
                match kind.as_str() {
                    $($name => rest.read().map($section::$variant),)+
                    other => Err(serde::de::Error::unknown_variant(other, &[$($name),+])),
                }
            }
        }
    };
}
pub(super) use by_kind;

/// A mapping whose `kind` is already taken out.
pub(super) struct Rest(Mapping);

impl Rest {
    pub fn read<T: DeserializeOwned, E: Error>(self) -> Result<T, E> {
        read_named(Value::Mapping(self.0)).map_err(E::custom)
    }
}

/// Takes `kind` out of a mapping.
pub(super) fn split<'de, D: Deserializer<'de>>(
    deserializer: D,
    default: Option<&str>,
) -> Result<(String, Rest), D::Error> {
    // A section that is there and empty is an oversight: its defaults are had by leaving it out.
    let mut map = match Value::deserialize(deserializer)? {
        Value::Mapping(map) => map,
        Value::Null => return Err(D::Error::custom("expected a mapping of keys, found nothing; give its `kind`")),
        other => return Err(D::Error::custom(format!("expected a mapping of keys, found {}", shown(&other)))),
    };
    let kind = match (map.remove("kind"), default) {
        (Some(Value::String(kind)), _) => kind,
        (Some(other), _) => return Err(D::Error::custom(format!("`kind` is a name, found {}", shown(&other)))),
        (None, Some(default)) => default.to_string(),
        (None, None) => return Err(D::Error::missing_field("kind")),
    };
    Ok((kind, Rest(map)))
}

/// A value as YAML has it.
pub(super) fn shown(value: &Value) -> String {
    serde_yaml::to_string(value).map_or_else(|e| e.to_string(), |text| format!("`{}`", text.trim_end()))
}

/// Reads a value; the message of an error begins with the path of the key it concerns.
pub(super) fn read_named<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|e| match e.path().to_string().as_str() {
        "." => e.inner().to_string(),
        path => format!("{path}: {}", e.inner()),
    })
}
