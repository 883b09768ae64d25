//! `eval-knn`: nearest neighbours on frozen features.

use clap::Parser;
use serde_json::json;
use std::process::ExitCode;
use weince::config::eval::KnnConfig;
use weince::eval::command::CommonArgs;
use weince::eval::knn;
use weince::eval::record::record;
use weince::progress::progress_bar;

/// Classifies test features by a weighted vote of their nearest training features (cosine similarity).
///
/// A neighbour votes for its class with exp(similarity / temperature). Also reports recall: the fraction of test samples
/// with a neighbour of their class among the nearest 1, 2, 5, 10, 20, 50.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Numbers of neighbours that vote; the largest gives the headline accuracy
    #[arg(long, value_delimiter = ',', default_value = "1,5,20,200", value_name = "LIST")]
    k: Vec<usize>,
    /// Temperature of the votes
    #[arg(long, default_value_t = KnnConfig::default().temperature)]
    temperature: f64,
    /// Share of every class of the training samples that is held out and asks the rest, for the figures `val_...`
    #[arg(long, value_name = "SHARE", default_value_t = KnnConfig::default().validation)]
    val_fraction: f64,
    /// Test samples compared at once; changes memory and speed, not the result
    #[arg(long, default_value_t = knn::DEFAULT_BATCH)]
    batch: usize,
}

fn main() -> ExitCode {
    let args = Args::parse();
    weince::cli::run(|| {
        let config = KnnConfig { k: args.k.clone(), temperature: args.temperature, validation: args.val_fraction };
        config.validate()?;
        let (inputs, classes, device) = args.common.load()?;
        let bar = progress_bar("samples");
        let result = knn::evaluate(&config, &inputs.train, &inputs.test, args.batch, device, &mut |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        })?;
        bar.finish_and_clear();
        if let Some(k) = config.k.iter().filter(|&&k| k > result.bank).max() {
            eprintln!("note: k = {k} is more than the {} training samples; all of them vote", result.bank);
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
        protocol["split"] = json!(format!("stratified by class, drawn from seed {}", knn::SPLIT_SEED));
        protocol["reported"] =
            json!("test with all training samples as the bank, val of the held-out ones with the rest as the bank");
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
