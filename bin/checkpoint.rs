//! `checkpoint`: what is in a file of weights, whether it is whole, the same in another format, and what distinguishes two.

use clap::{Parser, Subcommand};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weince::cli::{self, printable};
use weince::error::{Error, Result};
use weince::files::{Difference, Format, Rules, convert, diff, inspect};

/// Looks into, checks, converts and compares files of weights: safetensors, torch.save, TorchScript.
///
/// Nothing in a file is run, TorchScript modules apart: those are loaded with their code.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Lists every tensor (name, type, shape) and every plain value (step, epoch, configuration)
    Inspect {
        file: PathBuf,
        /// One JSON object instead of lines
        #[arg(long)]
        json: bool,
    },
    /// Reads files whole and checks them: sizes, and the checksums that torch.save and torch.jit.save write (safetensors has
    /// none). Of a run folder, all of its checkpoints. Exit code 1 where one is damaged
    Verify {
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Writes the tensors of a file in the format that the new name tells: .safetensors, or .pt, .pth, .bin, .tar, .ckpt
    Convert {
        input: PathBuf,
        out: PathBuf,
        #[command(flatten)]
        rules: Rules,
        /// Write this TorchScript module with the weights of the input instead of a state_dict
        #[arg(long, value_name = "MODULE")]
        script: Option<PathBuf>,
    },
    /// Tells what distinguishes two files. Exit code 1 where anything does
    Diff {
        first: PathBuf,
        second: PathBuf,
        #[command(flatten)]
        rules: Rules,
        /// One JSON object instead of lines
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    let done = cli::run(|| {
        let fine = match Args::parse().what {
            What::Inspect { file, json } => show(&file, json).map(|()| true),
            What::Verify { files } => verify(&files),
            What::Convert { input, out, rules, script } => {
                let count = convert(&input, &out, &rules, script.as_deref())?;
                println!("{}: {count} tensors", out.display());
                Ok(true)
            }
            What::Diff { first, second, rules, json } => compare(&first, &second, &rules, json),
        }?;
        if !fine {
            code = ExitCode::FAILURE;
        }
        Ok(())
    });
    if done == ExitCode::SUCCESS { code } else { done }
}

fn show(file: &Path, as_json: bool) -> Result<()> {
    let found = inspect(file)?;
    let (numbers, bytes) = found.size();
    let infos = found.infos()?;
    if as_json {
        let object = json!({
            "format": found.format, "numbers": numbers, "bytes": bytes, "tensors": infos,
            "values": found.values_by_name(),
        });
        println!("{object:#}");
        return Ok(());
    }
    let width = infos.iter().map(|info| printable(&info.name).chars().count()).max().unwrap_or(0);
    for info in &infos {
        let name = printable(&info.name);
        let finite = if info.finite { "" } else { "  not finite" };
        println!("{name:<width$}  {:<8}  {:?}{finite}", info.dtype, info.shape);
    }
    for (name, value) in &found.values {
        let shown = value.to_string();
        let shown =
            if shown.chars().count() > 100 { shown.chars().take(97).collect::<String>() + "..." } else { shown };
        println!("{} = {shown}", printable(name));
    }
    println!("{:?}: {} tensors, {numbers} numbers, {bytes} bytes", found.format, infos.len());
    Ok(())
}

fn verify(files: &[PathBuf]) -> Result<bool> {
    let mut all = Vec::new();
    for path in files {
        if path.is_dir() {
            let inside = files_of_weights(path)?;
            if inside.is_empty() {
                return Err(Error::Config(format!("{}: no .pt or .safetensors file in it", path.display())));
            }
            all.extend(inside);
        } else {
            all.push(path.clone());
        }
    }
    let mut fine = true;
    for path in all {
        match inspect(&path).and_then(|found| Ok((found.infos()?, found))) {
            Ok((infos, found)) => {
                let odd: Vec<&str> = infos.iter().filter(|i| !i.finite).map(|i| i.name.as_str()).collect();
                let note = if odd.is_empty() { String::new() } else { format!(", not finite: {}", odd.join(", ")) };
                let checked =
                    if found.format == Format::Safetensors { " (sizes; the format has no checksums)" } else { "" };
                println!("ok       {}: {} tensors{checked}{}", path.display(), infos.len(), printable(&note));
            }
            Err(e) => {
                let what = if matches!(e, Error::Io { .. }) { "failed " } else { "damaged" };
                println!("{what}  {}", printable(&e.to_string()));
                fine = false;
            }
        }
    }
    Ok(fine)
}

/// Those of a folder, and of its `checkpoints` and models, in order of their names.
fn files_of_weights(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    let inside = ["checkpoints", "model", "model-best"].map(|name| folder.join(name));
    for folder in [folder.to_path_buf()].iter().chain(&inside).filter(|f| f.is_dir()) {
        for entry in std::fs::read_dir(folder).map_err(Error::io(folder, "cannot list the folder"))? {
            let path = entry.map_err(Error::io(folder, "cannot list the folder"))?.path();
            let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
            let known = path.extension().is_some_and(|e| e == "pt" || e == "safetensors");
            if known && !hidden && path.is_file() {
                out.push(path);
            }
        }
    }
    out.sort();
    Ok(out)
}

fn compare(first: &Path, second: &Path, rules: &Rules, as_json: bool) -> Result<bool> {
    let differences = diff(first, second, rules)?;
    if as_json {
        println!("{:#}", json!({ "equal": differences.is_empty(), "differences": differences }));
        return Ok(differences.is_empty());
    }
    for difference in &differences {
        let line = match difference {
            Difference::OnlyInFirst { name } => format!("only in the first   {name}"),
            Difference::OnlyInSecond { name } => format!("only in the second  {name}"),
            Difference::Layout { name, first, second } => format!("{name}: {first}, {second}"),
            Difference::Elements { name, max_abs, relative } => {
                format!("{name}: differs by up to {max_abs:.3e}, {relative:.3e} of its norm")
            }
            Difference::Value { name, first, second } => format!("{name}: {first}, {second}"),
        };
        println!("{}", printable(&line));
    }
    match differences.len() {
        0 => println!("no difference"),
        n => println!("{n} differences"),
    }
    Ok(differences.is_empty())
}
