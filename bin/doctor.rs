//! `doctor`: says what this machine and this build are, whether a training step can run, and what a run's images are.

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use weince::checkpoint::write_bytes;
use weince::config;
use weince::config::vision::VisionConfig;
use weince::doctor::{examine, examine_data, load_parts, preview};
use weince::eval::record::check_target;

/// Prints versions, processor, memory and CUDA devices (or why there are none), and runs one tiny training step.
///
/// Exits with 0 if the step runs on the CPU, and on the first CUDA device if there is one; otherwise with 1 and the reason.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    about: Option<About>,
}

#[derive(Subcommand)]
enum About {
    /// Reads every image of a run: classes, sizes, mean and deviation, damaged files
    ///
    /// Exits with 0 if all files are whole images, otherwise with 1.
    Data(DataArguments),
}

#[derive(Parser)]
struct DataArguments {
    /// The run's configuration (YAML)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Change a key of the configuration; may be given several times
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    set: Vec<String>,
    /// Where to write a sheet of augmented views, such as views.png
    #[arg(long, value_name = "FILE")]
    preview: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    weince::cli::run(|| match &arguments.about {
        None => machine(arguments.json),
        Some(About::Data(arguments)) => data(arguments),
    })
}

fn machine(json: bool) -> anyhow::Result<()> {
    let findings = examine()?;
    if json {
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
}

fn data(arguments: &DataArguments) -> anyhow::Result<()> {
    let config: VisionConfig = config::load(&arguments.config, &arguments.set)?;
    if let Some(path) = &arguments.preview {
        anyhow::ensure!(
            path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("png")),
            "--preview {}: the sheet is written as PNG; expected a name that ends in .png",
            path.display()
        );
        check_target(path)?;
    }
    let parts = load_parts(&config)?;
    if let (Some(path), Some((_, set))) = (&arguments.preview, parts.first()) {
        write_bytes(path, preview(&config, set)?)?;
        eprintln!("views: {}", path.display());
    }
    let findings = examine_data(&config, &parts)?;
    if arguments.json {
        println!("{}", serde_json::to_string(&findings)?);
    } else {
        print!("{}", findings.to_text());
    }
    match findings.damaged() {
        0 => Ok(()),
        n => anyhow::bail!(
            "{n} files can't be read as images; mend or remove them, or leave them out: data.bad_files: skip"
        ),
    }
}
