//! `eval-knn`: nearest neighbours on frozen features.

use clap::{Parser, ValueEnum};
use serde_json::json;
use std::process::ExitCode;
use weince::config::eval::{Bank, KnnConfig};
use weince::eval::command::CommonArgs;
use weince::eval::knn;
use weince::eval::record::record;
use weince::progress::progress_bar;

/// Classifies test features by a weighted vote of their nearest training features (cosine similarity).
///
/// A neighbour votes for its class with exp(similarity / temperature). Also reports recall: the fraction of test samples
/// with a neighbour of their class among the nearest 1, 2, 5, 10, 20, 50.
#[derive(Parser)]
#[command(version, allow_negative_numbers = true)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// full: the defaults below; authors: those of the WEINCE authors' scripts (docs/protocol.md), which are --k 50
    /// --val-fraction 0.2 --split-seed 1 --bank rest --drop-last
    #[arg(long, value_enum, default_value = "full")]
    protocol: Protocol,
    /// Numbers of neighbours that vote; the largest gives the headline accuracy [default: 1,5,20,200]
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    k: Option<Vec<usize>>,
    /// Temperature of the votes [default: 0.1]
    #[arg(long)]
    temperature: Option<f64>,
    /// Share of every class of the training samples that is held out and asks the rest, for the figures `val_...` [default: 0.1]
    #[arg(long, value_name = "SHARE")]
    val_fraction: Option<f64>,
    /// Seed of that split [default: 0]
    #[arg(long, value_name = "SEED")]
    split_seed: Option<u64>,
    /// The training samples that test samples ask: all, or the rest without those held out [default: all]
    #[arg(long, value_enum)]
    bank: Option<Bank>,
    /// Leave out, of training and test samples, what does not fill a batch of 256, as the authors' loader does
    #[arg(long)]
    drop_last: bool,
    /// Test samples compared at once; changes memory and speed, not the result
    #[arg(long, default_value_t = knn::DEFAULT_BATCH)]
    batch: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum Protocol {
    Full,
    Authors,
}

impl Args {
    fn config(&self) -> weince::Result<KnnConfig> {
        let base = match self.protocol {
            Protocol::Full => KnnConfig::default(),
            Protocol::Authors => KnnConfig::authors(),
        };
        let config = KnnConfig {
            k: self.k.clone().unwrap_or(base.k),
            temperature: self.temperature.unwrap_or(base.temperature),
            validation: self.val_fraction.unwrap_or(base.validation),
            split_seed: self.split_seed.unwrap_or(base.split_seed),
            bank: self.bank.unwrap_or(base.bank),
            drop_last: self.drop_last || base.drop_last,
        };
        config.validate()?;
        Ok(config)
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    weince::cli::run(|| {
        let config = args.config()?;
        let (inputs, classes, device) = args.common.load()?;
        let bar = progress_bar("samples");
        let result = knn::evaluate(&config, &inputs.train, &inputs.test, args.batch, device, &mut |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        })?;
        bar.finish_and_clear();
        if let Some(k) = config.k.iter().filter(|&&k| k > result.bank).max() {
            eprintln!("note: k = {k} is more than the {} samples of the bank; all of them vote", result.bank);
        }
        let mut figures = serde_json::to_value(&result)?;
        for (r, recall) in &result.recall_at {
            figures[format!("recall_at_{r}")] = json!(recall);
        }
        figures["val_accuracy"] = json!(result.validation.as_ref().map(|v| v.accuracy));
        if let Some(validation) = &result.validation {
            figures["val_accuracy_at_k"] = json!(validation.accuracy_at_k);
            for (r, recall) in &validation.recall_at {
                figures[format!("val_recall_at_{r}")] = json!(recall);
            }
            figures["val"] = json!(validation.samples);
        }
        let mut protocol = serde_json::to_value(&config)?;
        protocol["similarity"] = json!("cosine");
        protocol["vote"] = json!("exp(similarity / temperature) for the neighbour's class");
        protocol["ties"] = json!("neighbours: lower index of the training file; classes: lower label");
        protocol["split"] = json!(format!("stratified by class, drawn from seed {}", config.split_seed));
        protocol["reported"] =
            json!("test with `bank` of the training samples, val of the held-out ones with the rest as the bank");
        protocol["clipped"] = json!("k and recall sizes are at most `bank`");
        let record = record("knn", figures, protocol, &[], &inputs, &classes)?;

        let mut table: Vec<(String, String)> =
            result.accuracy_at_k.iter().map(|(k, a)| (format!("accuracy, k = {k}"), format!("{a:.4}"))).collect();
        table.extend(result.recall_at.iter().map(|(r, v)| (format!("recall at {r}"), format!("{v:.4}"))));
        if let Some(validation) = &result.validation {
            table.push(("validation accuracy".into(), format!("{:.4}", validation.accuracy)));
        }
        args.common.deliver(&record, &table)?;
        Ok(())
    })
}
