//! `pretrain-vision`: contrastive pretraining on images, from one configuration file to one run folder.

use clap::Parser;
use std::process::ExitCode;
use weince::cli;
use weince::train::Vision;
use weince::train::command::TrainArgs;

/// Pretrain an image encoder with InfoNCE or WEINCE.
#[derive(Parser)]
#[command(version)]
struct Args {
    #[command(flatten)]
    train: TrainArgs,
}

fn main() -> ExitCode {
    cli::run(|| Args::parse().train.run::<Vision>())
}
