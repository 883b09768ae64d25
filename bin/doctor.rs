//! `doctor`: says what this machine and this build are, and whether a training step can run.

use clap::Parser;
use std::process::ExitCode;
use weince::doctor::examine;

/// Prints versions, processor, memory and CUDA devices (or why there are none), and runs one tiny training step.
///
/// Exits with 0 if the step runs on the CPU, and on the first CUDA device if there is one; otherwise with 1 and the reason.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    weince::cli::run(|| {
        let findings = examine()?;
        if arguments.json {
            println!("{}", serde_json::to_string(&findings)?);
        } else {
            print!("{}", findings.to_text());
        }
        for warning in findings.warnings() {
            eprintln!("warning: {warning}");
        }
        match findings.failure() {
            Some(reason) => anyhow::bail!(reason),
            None => Ok(()),
        }
    })
}
