//! `--set a.b=c` and a sweep's settings: changes to a configuration before it is read.

use crate::error::{Error, Result};
use serde_yaml::{Mapping, Value};

/// Applies `key.path=value` to a YAML tree; the value is read as YAML, missing mappings on the way are made.
///
/// # Errors
/// An assignment without `=`, an empty key, or a path through something that is no mapping.
pub fn apply(root: &mut Value, assignment: &str) -> Result<()> {
    let (path, text) = assignment
        .split_once('=')
        .ok_or_else(|| Error::Config(format!("--set {assignment}: expected key.path=value, found no `=`")))?;
    if text.trim().is_empty() {
        return Err(Error::Config(format!(
            "--set {assignment}: no value after `=`; write null to take a setting away"
        )));
    }
    let value: Value = serde_yaml::from_str(text)
        .map_err(|e| Error::Config(format!("--set {assignment}: `{text}` is no YAML value: {e}")))?;
    set(root, path.trim(), value).map_err(|why| Error::Config(format!("--set {assignment}: {why}")))
}

/// Sets the key at a dotted path of a YAML tree; missing mappings on the way are made. The error is the reason alone.
pub fn set(root: &mut Value, path: &str, value: Value) -> std::result::Result<(), String> {
    let keys: Vec<&str> = path.split('.').collect();
    if keys.iter().any(|k| k.is_empty()) {
        return Err(format!("`{path}` has an empty key; write it as a.b.c"));
    }
    let mut node = root;
    for (depth, key) in keys.iter().enumerate() {
        if node.is_null() {
            *node = Value::Mapping(Mapping::new());
        }
        let Value::Mapping(map) = node else {
            return Err(format!("`{}` is no mapping, so `{key}` can't be set in it", keys[..depth].join(".")));
        };
        node = map.entry(Value::String((*key).to_string())).or_insert(Value::Null);
    }
    *node = value;
    Ok(())
}
