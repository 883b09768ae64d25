//! The loss, its gradient and its statistics for embeddings in a file.

use anyhow::Context;
use clap::{Parser, ValueEnum};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weince::config::loss::LossConfig;
use weince::config::loss_reference::ReferenceConfig;
use weince::loss::Layout;
use weince::loss::check::{Embeddings, check};
use weince::{Error, Result};

/// Computes a contrastive loss on given embeddings, for checking other implementations against this one.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Safetensors file with z_i and z_j, [N, d] float32 or float64; one way, rows of z_j from N on are further candidates.
    #[arg(long, value_name = "FILE")]
    embeddings: PathBuf,
    /// YAML file with a `loss:` key (a run's whole configuration will do), or the reference's own config.yaml.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Sets a key of the configuration, such as loss.kind=weince; the default is loss.kind=infonce.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Who is compared with whom.
    #[arg(long, value_enum, default_value_t = LayoutArg::TwoView)]
    layout: LayoutArg,
    /// Safetensors file to write: grad_z_i, grad_z_j, lambda, rho, beta, delta_aic.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Prints one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum LayoutArg {
    /// SimCLR: both views are anchors, 2N - 2 negatives.
    #[value(name = "two_view")]
    TwoView,
    /// SimCSE: first views against second views, N - 1 negatives.
    #[value(name = "one_way")]
    OneWay,
    /// One way, and once more with the views changed about.
    #[value(name = "both_ways")]
    BothWays,
}

/// The one key of a run's configuration that matters here.
#[derive(Deserialize)]
struct Run {
    loss: Option<LossConfig>,
}

/// Reads the loss from a run's configuration, from a mapping with `kind` at its top, or from the authors' own file.
fn loss_config(file: Option<&Path>, sets: &[String]) -> Result<LossConfig> {
    if let Some(other) = sets.iter().find(|s| !s.starts_with("loss.") && !s.starts_with("loss=")) {
        return Err(Error::Config(format!("--set {other}: only the loss is read here; write it as loss.KEY=VALUE")));
    }
    let Some(path) = file else {
        let run: Run = weince::config::parse("", "--set", sets)?;
        return Ok(run.loss.unwrap_or_default());
    };
    let origin = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|e| Error::Config(format!("{origin}: cannot read the configuration: {e}")))?;
    let tree: serde_yaml::Value = weince::config::parse(&text, &origin, &[])?;
    if tree.get("loss").is_some() {
        let run: Run = weince::config::parse(&text, &origin, sets)?;
        return Ok(run.loss.unwrap_or_default());
    }
    if tree.get("kind").is_some() {
        let wrapped = serde_yaml::Mapping::from_iter([("loss".into(), tree)]);
        let text = serde_yaml::to_string(&wrapped).map_err(|e| Error::Config(format!("{origin}: {e}")))?;
        let run: Run = weince::config::parse(&text, &origin, sets)?;
        return Ok(run.loss.unwrap_or_default());
    }
    if tree.get("policy").is_some() {
        if let Some(set) = sets.first() {
            return Err(Error::Config(format!(
                "--set {set}: {origin} is the reference's own configuration, which has no key `loss`; change the file instead"
            )));
        }
        return ReferenceConfig::from_authors_file(&text, &origin).map(LossConfig::Reference);
    }
    Err(Error::Config(format!(
        "{origin}: expected a key `loss`, as in `loss: {{kind: weince}}`, or a loss itself with its `kind`, or the \
         reference's own configuration with a key `policy`; found none of them"
    )))
}

fn body() -> anyhow::Result<()> {
    let args = Args::parse();
    let config = loss_config(args.config.as_deref(), &args.sets)?;
    config.validate()?;
    let layout = match args.layout {
        LayoutArg::TwoView => Layout::TwoView,
        LayoutArg::OneWay => Layout::OneWay,
        LayoutArg::BothWays => Layout::BothWays,
    };
    if let Some(out) = &args.out {
        weince::checkpoint::refuse_same_file(out, &args.embeddings)?;
    }
    let embeddings = Embeddings::read(&args.embeddings)?;
    let checked = check(&embeddings, &config, layout).with_context(|| format!("{}", args.embeddings.display()))?;
    if let Some(out) = &args.out {
        checked.write(out)?;
        let left_out = checked.left_out();
        if !left_out.is_empty() {
            eprintln!("{}: without {}, which this loss does not have", out.display(), left_out.join(", "));
        }
    }
    if args.json {
        println!("{}", checked.json()?);
    } else {
        print!("{}", checked.text());
    }
    Ok(())
}

fn main() -> ExitCode {
    weince::cli::run(body)
}
