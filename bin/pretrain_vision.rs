//! `pretrain-vision`: contrastive pretraining on images, from one configuration file to one run folder.

use anyhow::Context;
use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use tch::Device;
use weince::config::vision::VisionConfig;
use weince::run::RunFolder;
use weince::train::Plan;
use weince::{cli, config, device};

/// Pretrain an image encoder with InfoNCE or WEINCE.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// The run's configuration (YAML)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Change a key of the configuration; may be given several times
    #[arg(long, value_name = "KEY.PATH=VALUE")]
    set: Vec<String>,
    /// The run's folder [default: runs/NAME, NAME being that of the configuration's file]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: String,
    /// Continue the run in the run folder from where it was saved last
    #[arg(long)]
    resume: bool,
    /// Print what would run, and write nothing
    #[arg(long)]
    dry_run: bool,
}

fn main() -> ExitCode {
    cli::run(|| {
        let args = Args::parse();
        let config: VisionConfig = config::load(&args.config, &args.set)?;
        let run_dir = args
            .run_dir
            .unwrap_or_else(|| PathBuf::from("runs").join(args.config.file_stem().unwrap_or(args.config.as_os_str())));
        match (args.dry_run, args.resume) {
            (true, _) => {}
            (false, true) => drop(RunFolder::open_begun(&run_dir)?),
            (false, false) => RunFolder::refuse_existing(&run_dir)?,
        }
        let device = device::parse(&args.device)?;
        config.check_device(device)?;
        if args.dry_run {
            print!("{}", Plan::new(&config, Device::Cpu)?.describe(device)?);
            return Ok(());
        }
        let plan = Plan::new(&config, device)?;
        eprintln!("{}", plan.headline(&run_dir));
        let summary = plan.pretrain(&run_dir, args.resume).with_context(|| format!("run {}", run_dir.display()))?;
        println!("run       {}", run_dir.display());
        println!("steps     {}", summary.steps);
        if let Some(loss) = summary.loss {
            println!("loss      {loss:.6}");
            println!("images/s  {:.0}", summary.images_per_second);
        }
        Ok(())
    })
}
