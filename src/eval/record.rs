//! The result of an evaluation as JSON: the figures and everything that is needed to get them again.

use super::features::Classes;
use super::source::Inputs;
use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use std::path::Path;

/// The JSON object of a result: `figures` first, then protocol, seeds, counts, data, checkpoint and versions.
///
/// `protocol` is the configuration with everything that is fixed. Nothing here depends on time or on thread counts.
///
/// # Errors
/// Where `figures` is no JSON object.
pub fn record(
    evaluation: &str,
    figures: Value,
    protocol: Value,
    seeds: &[u64],
    inputs: &Inputs,
    classes: &Classes,
) -> Result<Map<String, Value>> {
    let Value::Object(figures) = figures else {
        return Err(Error::Input(format!("the figures of `{evaluation}` are no JSON object")));
    };
    let mut record = Map::new();
    record.insert("evaluation".into(), json!(evaluation));
    record.extend(figures);
    record.insert("protocol".into(), protocol);
    record.insert("seeds".into(), json!(seeds));
    let mut counts = json!({
        "train": inputs.train.samples(),
        "test": inputs.test.samples(),
        "classes": classes.count(),
        "dim": inputs.train.dim(),
    });
    counts["classes_only_in_test"] = json!(classes.only_in_test);
    record.insert("counts".into(), counts);
    record.insert("data".into(), json!(inputs.data));
    record.insert("checkpoint_sha256".into(), json!(inputs.checkpoint_sha256));
    record.insert("versions".into(), versions());
    Ok(record)
}

/// What computed a result: the versions of this crate and of LibTorch.
pub fn versions() -> Value {
    json!({ "weince": env!("CARGO_PKG_VERSION"), "libtorch": crate::torch::libtorch_version() })
}

/// Refuses a path that no file could be written to, before the work is done.
///
/// # Errors
/// [`Error::Input`] for a folder, or a file in a folder that is not there.
pub fn check_target(path: &Path) -> Result<()> {
    let folder = folder_of(path);
    if path.is_dir() || path.file_name().is_none() {
        return Err(Error::Input(format!("{}: the result goes to a file, and this is a folder", path.display())));
    }
    if !folder.is_dir() {
        return Err(Error::Input(format!(
            "{}: there is no folder {} to write it in; make it first",
            path.display(),
            folder.display()
        )));
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_targets_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.json");
        check_target(&path).unwrap();
        check_target(Path::new("r.json")).unwrap();
        assert!(check_target(folder.path()).is_err());
        assert!(check_target(&folder.path().join("none/r.json")).unwrap_err().to_string().contains("none"));
    }
}
