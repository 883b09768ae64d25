//! JSON files of others.

use crate::error::{Error, Result};
use serde::de::DeserializeOwned;
use std::path::Path;

/// A JSON file as what it should be.
///
/// # Errors
/// A file that cannot be read; text that is no JSON or not of this kind, with line and column.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "cannot read"))?;
    serde_json::from_str(&text).map_err(|e| Error::data(path, None, e.to_string()))
}
