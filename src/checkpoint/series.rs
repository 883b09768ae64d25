//! The checkpoints of a run: `step-000000120.pt` and its like, the newest few of them, and `LAST`, which names the newest.

use super::atomic::{UNFINISHED, write_bytes};
use super::{Value, torch_file};
use crate::error::{Error, Result};
use std::fs;
use std::path::{Path, PathBuf};

const LAST: &str = "LAST";

/// A folder of checkpoints by step.
#[derive(Debug, Clone)]
pub struct Series {
    folder: PathBuf,
}

impl Series {
    /// The series in a folder.
    pub fn new(folder: impl Into<PathBuf>) -> Series {
        Series { folder: folder.into() }
    }

    /// The file of a step.
    pub fn path(&self, step: u64) -> PathBuf {
        self.folder.join(format!("step-{step:09}.pt"))
    }

    /// Writes the checkpoint of a step, then names it in `LAST`, then removes all but the newest `keep` of those up to it.
    ///
    /// A process that is killed at any moment leaves the former checkpoints, or this one whole.
    ///
    /// # Errors
    /// As [`torch_file::save`], and what the system refuses.
    pub fn save(&self, step: u64, value: &Value, keep: u64) -> Result<()> {
        let path = self.path(step);
        torch_file::save(&path, value)?;
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        write_bytes(&self.folder.join(LAST), name + "\n")?;
        let behind = self.steps()?.into_iter().filter(|&s| s <= step);
        for old in behind.skip(usize::try_from(keep.max(1)).unwrap_or(usize::MAX)) {
            let old = self.path(old);
            fs::remove_file(&old).map_err(Error::io(&old, "cannot remove the old checkpoint"))?;
        }
        Ok(())
    }

    /// The checkpoints to try in turn: the one that `LAST` names, then the others from the newest to the oldest.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn newest_first(&self) -> Result<Vec<PathBuf>> {
        let steps = self.steps()?;
        let last = fs::read_to_string(self.folder.join(LAST)).ok();
        let named = last.and_then(|text| step_of(text.trim())).filter(|step| steps.contains(step));
        let others = steps.iter().copied().filter(|step| Some(*step) != named);
        Ok(named.into_iter().chain(others).map(|step| self.path(step)).collect())
    }

    /// Removes what a killed process left half written.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn remove_unfinished(folder: &Path) -> Result<()> {
        for name in names(folder)?.iter().filter(|name| name.starts_with('.') && name.ends_with(UNFINISHED)) {
            let path = folder.join(name);
            fs::remove_file(&path).map_err(Error::io(&path, "cannot remove the unfinished file"))?;
        }
        Ok(())
    }

    /// The steps that have a file, the newest first.
    fn steps(&self) -> Result<Vec<u64>> {
        let mut steps: Vec<u64> = names(&self.folder)?.iter().filter_map(|name| step_of(name)).collect();
        steps.sort_unstable_by(|a, b| b.cmp(a));
        Ok(steps)
    }
}

/// Names of a folder's files, those that are no text left out; none where there is no folder.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(Error::io(folder, "cannot list the folder"))?,
    };
    let name = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry.map_err(Error::io(folder, "cannot list the folder"))?;
        Ok(entry.file_name().into_string().ok())
    };
    entries.filter_map(|entry| name(entry).transpose()).collect()
}

fn step_of(name: &str) -> Option<u64> {
    name.strip_prefix("step-")?.strip_suffix(".pt")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps_of(paths: &[PathBuf]) -> Vec<u64> {
        paths.iter().map(|p| step_of(p.file_name().unwrap().to_str().unwrap()).unwrap()).collect()
    }

    #[test]
    fn the_newest_few_stay_and_last_names_the_newest() {
        let folder = tempfile::tempdir().unwrap();
        let series = Series::new(folder.path());
        assert!(series.newest_first().unwrap().is_empty());
        for step in [0, 8, 16, 1_000_000_000] {
            series.save(step, &Value::from(step), 2).unwrap();
        }
        assert_eq!(steps_of(&series.newest_first().unwrap()), [1_000_000_000, 16]);
        assert_eq!(fs::read_to_string(folder.path().join(LAST)).unwrap(), "step-1000000000.pt\n");
        // A run that was taken up at an older step: what lies ahead is neither removed nor first.
        series.save(24, &Value::None, 2).unwrap();
        assert_eq!(steps_of(&series.newest_first().unwrap()), [24, 1_000_000_000, 16]);
        // LAST may name nothing of use.
        for text in ["step-000000007.pt\n", "nonsense", ""] {
            fs::write(folder.path().join(LAST), text).unwrap();
            assert_eq!(steps_of(&series.newest_first().unwrap()), [1_000_000_000, 24, 16]);
        }
    }

    #[test]
    fn what_was_half_written_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        for name in [".step-000000003.pt.unfinished", ".LAST.unfinished", ".lock", "step-000000002.pt", "unfinished"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        Series::remove_unfinished(folder.path()).unwrap();
        let mut left = names(folder.path()).unwrap();
        left.sort();
        assert_eq!(left, [".lock", "step-000000002.pt", "unfinished"]);
        Series::remove_unfinished(&folder.path().join("none")).unwrap();
    }
}
