//! `pretrain-text`: contrastive pretraining on sentences, from one configuration file to one run folder.

use clap::Parser;
use std::process::ExitCode;
use weince::cli;
use weince::train::Text;
use weince::train::command::TrainArgs;

/// Pretrain a sentence encoder with InfoNCE or WEINCE (SimCSE).
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
}

fn main() -> ExitCode {
    cli::run(|| Args::parse().train.run::<Text>())
}
