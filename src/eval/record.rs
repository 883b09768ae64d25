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
    record.insert(
        "versions".into(),
        json!({ "weince": env!("CARGO_PKG_VERSION"), "libtorch": crate::torch::libtorch_version() }),
    );
    Ok(record)
}

/// Mean, and standard deviation with n - 1 where there are two values or more.
pub fn spread(values: &[f64]) -> (Option<f64>, Option<f64>) {
    if values.is_empty() {
        return (None, None);
    }
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    (Some(mean), (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt()))
}

/// Refuses a path that [`write_beside`] could not write, before the work is done.
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

/// Writes a file whole or not at all: beside its place first, then renamed.
///
/// # Errors
/// What the file system refuses.
pub fn write_beside(path: &Path, bytes: &[u8]) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = folder_of(path).join(format!(".{name}.{}.partial", std::process::id()));
    let written = std::fs::write(&beside, bytes)
        .map_err(Error::io(path, "cannot write"))
        .and_then(|()| std::fs::rename(&beside, path).map_err(Error::io(path, "cannot write")));
    if written.is_err() {
        // What matters is the error above; a leftover that cannot be removed does no harm.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_has_n_minus_one() {
        assert_eq!(spread(&[]), (None, None));
        assert_eq!(spread(&[0.5]), (Some(0.5), None));
        assert_eq!(spread(&[1.0, 3.0]), (Some(2.0), Some(2f64.sqrt())));
    }

    #[test]
    fn files_are_replaced_whole_and_bad_targets_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r.json");
        write_beside(&path, b"one").unwrap();
        write_beside(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        check_target(&path).unwrap();
        check_target(Path::new("r.json")).unwrap();
        assert!(check_target(folder.path()).is_err());
        assert!(check_target(&folder.path().join("none/r.json")).unwrap_err().to_string().contains("none"));
        assert!(write_beside(&folder.path().join("none/r.json"), b"x").is_err());
    }
}
