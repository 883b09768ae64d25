//! The library's one error type, and the exit code that each kind of error gets.

use std::path::{Path, PathBuf};

/// Result with the library's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that the library can refuse or fail at. A message names what, where, expected, found and what to try.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A configuration that cannot be run: unknown key, wrong type, values that contradict one another.
    #[error("{0}")]
    Config(String),
    /// A data file that is not what it should be.
    #[error("{}{}: {message}", path.display(), offset.map(|o| format!(", byte {o}")).unwrap_or_default())]
    Data {
        /// The file.
        path: PathBuf,
        /// Where in the (decompressed) file, in bytes.
        offset: Option<u64>,
        /// Expected, found, and what to try.
        message: String,
    },
    /// The operating system refused a file operation.
    #[error("{}: {doing}: {cause}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried, such as `cannot read`.
        doing: &'static str,
        /// The system's answer.
        cause: std::io::Error,
    },
    /// Arguments that a function cannot serve, such as tensors whose shapes do not match.
    #[error("{0}")]
    Input(String),
    /// NaN or infinity where numbers are needed.
    #[error("{0}")]
    NonFinite(String),
    /// Stopped by a signal after saving.
    #[error("{0}")]
    Interrupted(String),
    /// Another process of the run, by its rank, that does not go on.
    #[error("{0}")]
    Peer(String),
    /// An error from the C++ bridge, with LibTorch's text.
    #[error("LibTorch: {0}")]
    Bridge(String),
    /// An error from tch, with LibTorch's text.
    #[error("LibTorch: {}", without_frames(.0))]
    Torch(#[from] tch::TchError),
}

impl Error {
    /// An [`Error::Io`] as a closure for `map_err`.
    pub fn io(path: impl AsRef<Path>, doing: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.as_ref().to_path_buf();
        move |cause| Error::Io { path, doing, cause }
    }

    /// An [`Error::Data`].
    pub fn data(path: impl AsRef<Path>, offset: Option<u64>, message: impl Into<String>) -> Error {
        Error::Data { path: path.as_ref().to_path_buf(), offset, message: message.into() }
    }

    /// The process's exit code: 2 for usage and configuration, 3 for non-finite values, 130 for an interruption, else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Config(_) => 2,
            Error::NonFinite(_) => 3,
            Error::Interrupted(_) => 130,
            _ => 1,
        }
    }
}

/// LibTorch's text without the C++ stack frames that it appends.
fn without_frames(error: &tch::TchError) -> String {
    let text = match error {
        tch::TchError::Torch(text) => text.clone(),
        other => other.to_string(),
    };
    text.split("\nException raised from").next().unwrap_or_default().trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::{Device, Kind, Tensor};

    #[test]
    fn libtorch_errors_are_its_sentence_alone() {
        let t = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu));
        let text = Error::from(t.f_matmul(&t).unwrap_err()).to_string();
        assert!(text.contains("2x3") && text.lines().count() == 1, "{text}");
    }
}
