//! `eval-linear`: a linear probe on frozen features.

use clap::{Parser, ValueEnum};
use serde_json::{Value, json};
use std::process::ExitCode;
use weince::config::eval::{AdamConfig, LbfgsConfig, LinearConfig};
use weince::eval::command::{CommonArgs, with_spread};
use weince::eval::linear::{self, Fit, LinearResult};
use weince::eval::record::record;
use weince::progress::progress_bar;

/// Fits a linear classifier to frozen features and reports its accuracy on the test features.
///
/// lbfgs: multinomial logistic regression on standardised features; the L2 penalty is chosen on a stratified validation
/// part, then everything is fitted with it. adam: a linear layer trained on raw features; the figures are those after the
/// last epoch. authors: what the WEINCE authors' scripts run (docs/protocol.md), adam with --val-fraction 0.2 --drop-last.
#[derive(Parser)]
#[command(version, allow_negative_numbers = true)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// How the probe is fitted
    #[arg(long, value_enum, default_value = "lbfgs")]
    protocol: Protocol,
    /// Seeds, one probe each; more than one gives mean, standard deviation and 95 % interval
    #[arg(long, visible_alias = "seed", value_delimiter = ',', default_value = "0", value_name = "LIST")]
    seeds: Vec<u64>,
    /// Share of every class held out for validation [default: 0.1]
    #[arg(long, value_name = "SHARE")]
    val_fraction: Option<f64>,
    /// lbfgs: penalties to choose from, l2/2 |W|^2 beside the mean loss (scikit-learn's C is 1/(l2 n), and 2/(l2 n) for two classes) [default: 1e-6 to 1]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    l2: Option<Vec<f64>>,
    /// adam: learning rate [default: 3e-4]
    #[arg(long)]
    lr: Option<f64>,
    /// adam: passes over the training part [default: 100]
    #[arg(long)]
    epochs: Option<usize>,
    /// adam: samples a step [default: 256]
    #[arg(long)]
    batch: Option<usize>,
    /// adam: leave out, of training and test samples, what does not fill a batch of 256, as the authors' loader does
    #[arg(long)]
    drop_last: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Protocol {
    Lbfgs,
    Adam,
    Authors,
}

impl Args {
    fn config(&self) -> weince::Result<LinearConfig> {
        let foreign: &[(&str, bool)] = match self.protocol {
            Protocol::Lbfgs => &[
                ("--lr", self.lr.is_some()),
                ("--epochs", self.epochs.is_some()),
                ("--batch", self.batch.is_some()),
                ("--drop-last", self.drop_last),
            ],
            Protocol::Adam | Protocol::Authors => &[("--l2", self.l2.is_some())],
        };
        if let Some((name, _)) = foreign.iter().find(|(_, given)| *given) {
            return Err(weince::Error::Config(format!("{name} does not belong to the protocol; see --protocol")));
        }
        let config = match self.protocol {
            Protocol::Lbfgs => {
                let default = LbfgsConfig::default();
                LinearConfig::Lbfgs(LbfgsConfig {
                    l2: self.l2.clone().unwrap_or(default.l2),
                    validation: self.val_fraction.unwrap_or(default.validation),
                })
            }
            Protocol::Adam | Protocol::Authors => {
                let authors = matches!(self.protocol, Protocol::Authors);
                let default = if authors { AdamConfig::authors() } else { AdamConfig::default() };
                LinearConfig::Adam(AdamConfig {
                    lr: self.lr.unwrap_or(default.lr),
                    epochs: self.epochs.unwrap_or(default.epochs),
                    batch: self.batch.unwrap_or(default.batch),
                    validation: self.val_fraction.unwrap_or(default.validation),
                    drop_last: self.drop_last || default.drop_last,
                })
            }
        };
        config.validate()?;
        Ok(config)
    }
}

fn protocol(config: &LinearConfig) -> anyhow::Result<Value> {
    let mut protocol = serde_json::to_value(config)?;
    if matches!(config, LinearConfig::Lbfgs(_)) {
        protocol["sweep"] =
            json!("from the strongest l2; ends after two less accurate ones, the second with a higher val loss");
    }
    protocol["split"] = json!("stratified by class, drawn from the seed");
    protocol["features"] = match config {
        LinearConfig::Lbfgs(_) => json!("standardised: mean 0, standard deviation 1 on the samples fitted"),
        LinearConfig::Adam(_) => json!("raw"),
    };
    protocol["reported"] = match config {
        LinearConfig::Lbfgs(_) => {
            json!("test after a fit on train + val with the chosen l2, val of the sweep's fit on train")
        }
        LinearConfig::Adam(_) => json!("test and val after the last epoch, fitted on train"),
    };
    Ok(protocol)
}

fn table(result: &LinearResult) -> Vec<(String, String)> {
    let n = result.outcomes.len();
    let mut rows = vec![("test accuracy".to_string(), with_spread(result.test_accuracy, result.test_accuracy_std, n))];
    if let Some(val) = result.val_accuracy {
        rows.push(("validation accuracy".into(), with_spread(val, result.val_accuracy_std, n)));
    }
    for o in &result.outcomes {
        let fit = match &o.fit {
            Fit::Lbfgs(f) => {
                let state = if f.converged { "converged" } else { "NOT CONVERGED" };
                format!("l2 {:e}, C {:.4e}, {} iterations, {state}", f.l2, f.c, f.iterations)
            }
            Fit::Adam(f) => format!("{} steps, last epoch's loss {:.4}", f.steps, f.train_loss),
        };
        rows.push((format!("seed {}", o.seed), format!("test {:.4}, {fit}", o.test_accuracy)));
    }
    rows
}

fn main() -> ExitCode {
    let args = Args::parse();
    weince::cli::run(|| {
        let config = args.config()?;
        let (inputs, classes, device) = args.common.load()?;
        let bar = progress_bar("fits or epochs");
        let result = linear::evaluate(&config, &args.seeds, &inputs.train, &inputs.test, device, &mut |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        })?;
        bar.finish_and_clear();
        let figures = serde_json::to_value(&result)?;
        let record = record("linear", figures, protocol(&config)?, &args.seeds, &inputs, &classes)?;
        args.common.deliver(&record, &table(&result))?;
        Ok(())
    })
}
