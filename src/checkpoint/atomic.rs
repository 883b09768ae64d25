//! Writing a file so that its name never shows anything unfinished.

use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Writes `path` through `body`: beside it first, then to the disk, then renamed over it.
///
/// Whoever opens `path` finds the old file or the whole new one, even after a power failure. If anything fails the
/// unfinished file is removed and the old one stays.
///
/// # Errors
/// Whatever `body` returns, and what the operating system refuses.
pub fn write_atomically(path: &Path, body: impl FnOnce(&mut BufWriter<File>) -> Result<()>) -> Result<()> {
    write_beside_and_rename(path, |beside| {
        let file = File::create(beside).map_err(Error::io(beside, "cannot create"))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        body(&mut out)?;
        out.flush().map_err(Error::io(beside, "cannot write"))
    })
}

/// [`write_atomically`] for who writes files by name: `body` gets the name to write to.
///
/// # Errors
/// As there.
pub fn write_beside_and_rename(path: &Path, body: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let beside = unfinished(path)?;
    let written = body(&beside).and_then(|()| {
        let file = File::open(&beside).map_err(Error::io(&beside, "cannot open what was written"))?;
        file.sync_all().map_err(Error::io(&beside, "cannot bring to the disk"))?;
        fs::rename(&beside, path).map_err(Error::io(path, "cannot put the finished file in its place"))?;
        sync_folder(path)
    });
    if written.is_err() {
        // The first error is the one to tell; this file may not even be there.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// [`write_atomically`] for content that is at hand.
///
/// # Errors
/// What the operating system refuses.
pub fn write_bytes(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    write_atomically(path, |out| out.write_all(bytes.as_ref()).map_err(Error::io(path, "cannot write")))
}

/// [`write_bytes`] where the file has another content or is not there: its time then tells when it changed.
///
/// # Errors
/// What the operating system refuses.
pub fn write_changed(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    if fs::read(path).is_ok_and(|before| before == bytes.as_ref()) { Ok(()) } else { write_bytes(path, bytes) }
}

/// How the name of a file that is being written ends.
pub(super) const UNFINISHED: &str = ".unfinished";

/// One name a target, so that a killed run leaves one such file at most, and the next one overwrites it.
fn unfinished(path: &Path) -> Result<PathBuf> {
    let Some(name) = path.file_name() else {
        return Err(Error::Input(format!("{}: expected the path of a file to write", path.display())));
    };
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(UNFINISHED);
    Ok(path.with_file_name(hidden))
}

/// The rename itself is on the disk only when the folder is.
fn sync_folder(path: &Path) -> Result<()> {
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let opened = File::open(folder).map_err(Error::io(folder, "cannot open the folder"))?;
    opened.sync_all().map_err(Error::io(folder, "cannot bring the folder to the disk"))
}

/// Refuses to write to a file that is being read from.
///
/// # Errors
/// [`Error::Config`] where both paths lead to one file, whatever they look like.
pub fn refuse_same_file(out: &Path, input: &Path) -> Result<()> {
    let same = match (out.canonicalize(), input.canonicalize()) {
        (Ok(out), Ok(input)) => out == input,
        _ => false,
    };
    if same {
        return Err(Error::Config(format!(
            "{}: the result would replace the file that is read, {}; name another file",
            out.display(),
            input.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let all = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        write_atomically(&path, |w| w.write_all(b"old").map_err(Error::io("a", "cannot write"))).unwrap();
        let failed = write_atomically(&path, |w| {
            w.write_all(b"new").map_err(Error::io("a", "cannot write"))?;
            Err(Error::Input("stop".into()))
        });
        assert!(failed.unwrap_err().to_string().contains("stop"));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(names(folder.path()), ["a.bin"]);
        write_atomically(&path, |w| w.write_all(b"new").map_err(Error::io("a", "cannot write"))).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["a.bin"]);
    }

    #[test]
    fn targets_that_cannot_be_written_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let e = write_atomically(&folder.path().join("no/such/a.bin"), |_| Ok(())).unwrap_err().to_string();
        assert!(e.contains("no/such") && e.contains("cannot create"), "{e}");
        assert!(write_atomically(Path::new("/"), |_| Ok(())).unwrap_err().to_string().contains("path of a file"));
    }
}
