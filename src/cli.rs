//! What every binary does the same way: where errors are printed, and which exit code they give.

use crate::data::vision::silence_decoders;
use crate::error::Error;
use std::process::ExitCode;

/// Text that may come from a stranger's file, as a terminal can show it: control characters are spelt out.
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// Ends the program in silence once nobody reads its standard output any more, as `head` does; printing would panic.
fn end_with_the_reader() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let message = info.payload().downcast_ref::<String>();
        if message.is_some_and(|m| m.starts_with("failed printing to stdout") && m.contains("Broken pipe")) {
            // What a shell says of a program that SIGPIPE ended.
            std::process::exit(141);
        }
        if let Some(message) = message.filter(|m| m.starts_with("failed printing to stdout")) {
            eprintln!("error: {}", message.replace("failed printing to stdout", "cannot write the standard output"));
            std::process::exit(1);
        }
        before(info);
    }));
}

/// Runs a binary's body; prints its error once, on stderr, as `error: ...`, and gives the exit code that belongs to it.
pub fn run(body: impl FnOnce() -> anyhow::Result<()>) -> ExitCode {
    run_to(Error::exit_code, || body().map(|()| ExitCode::SUCCESS))
}

/// As [`run`], for a body that decides the exit code of its success, and `code` that of a library's error.
pub fn run_to(code: impl Fn(&Error) -> u8, body: impl FnOnce() -> anyhow::Result<ExitCode>) -> ExitCode {
    silence_decoders();
    end_with_the_reader();
    body().unwrap_or_else(|e| {
        eprintln!("error: {}", format!("{e:#}").lines().map(printable).collect::<Vec<_>>().join("\n"));
        ExitCode::from(e.chain().find_map(|c| c.downcast_ref::<Error>()).map_or(1, code))
    })
}
