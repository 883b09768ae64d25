//! What every binary does the same way: where errors are printed, and which exit code they give.

use crate::error::Error;
use std::process::ExitCode;

/// Runs a binary's body; prints its error once, on stderr, as `error: ...`, and gives the exit code that belongs to it.
pub fn run(body: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    match body() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            let code = e.chain().find_map(|c| c.downcast_ref::<Error>()).map_or(1, Error::exit_code);
            ExitCode::from(code)
        }
    }
}
