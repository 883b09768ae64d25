//! What `pretrain-vision` and `pretrain-text` share: their arguments and what they say.

use super::plan::Plan;
use super::task::Task;
use crate::config::run::RunConfig;
use crate::dist::{Group, Place};
use crate::run::RunFolder;
use crate::{config, device};
use std::path::PathBuf;
use tch::Device;

/// The arguments of a pretraining command.
#[derive(Debug, Clone, clap::Args)]
pub struct TrainArgs {
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
    /// Of several processes: how long one waits for another before it gives up
    #[arg(long, value_name = "DURATION", default_value = "30m")]
    dist_timeout: humantime::Duration,
}

impl TrainArgs {
    /// Runs what the arguments ask for; as one of several processes where the environment says so.
    ///
    /// # Errors
    /// Everything that keeps the run from starting or ending; what the run itself reports begins with its folder.
    pub fn run<T: Task>(self) -> anyhow::Result<()> {
        let config: T::Config = config::run::load(&self.config, &self.set)?;
        let run_dir = self
            .run_dir
            .unwrap_or_else(|| PathBuf::from("runs").join(self.config.file_stem().unwrap_or(self.config.as_os_str())));
        let variable = |name: &str| std::env::var(name).ok();
        let place = if self.dry_run { None } else { Place::from_env(variable, self.dist_timeout.into())? };
        // What torchrun starts again goes on.
        let restarted = place.as_ref().is_some_and(|place| place.restarted);
        let resume = self.resume || restarted && RunFolder::open_begun(&run_dir).is_ok();
        match (self.dry_run || place.as_ref().is_some_and(|place| place.rank > 0), resume) {
            (true, _) => {}
            (false, true) => drop(RunFolder::open_begun(&run_dir)?),
            (false, false) => RunFolder::refuse_existing(&run_dir)?,
        }
        let device = device::parse(&self.device, place.as_ref().map(|place| place.local_rank))?;
        config.check_device(device)?;
        if self.dry_run {
            let mut plan = Plan::<T>::new(&config, Device::Cpu)?;
            let from = if resume { plan.take_up(&RunFolder::open_begun(&run_dir)?)? } else { None };
            print!("{}", plan.describe(device)?);
            from.inspect(|from| println!("# goes on after step {}", from.step));
            return Ok(());
        }
        let group = place.map_or(Ok(Group::alone()), |place| Group::join(&place, device))?;
        let plan = Plan::<T>::among(&config, device, group.clone()).inspect_err(|e| group.fail(&e.to_string()))?;
        if group.is_first() {
            eprintln!("{}", plan.headline(&run_dir));
            plan.note().inspect(|note| eprintln!("{note}"));
        }
        let summary = plan.pretrain(&run_dir, resume).inspect_err(|e| group.fail(&e.to_string()));
        let summary = summary.map_err(|e| anyhow::Error::from(e).context(format!("run {}", run_dir.display())))?;
        if !group.is_first() {
            return Ok(());
        }
        println!("run       {}", run_dir.display());
        println!("steps     {}", summary.steps);
        if let Some(loss) = summary.loss {
            println!("loss      {loss:.6}");
            println!("{:<9} {:.0}", format!("{}/s", T::UNIT), summary.samples_per_second);
        }
        Ok(())
    }
}
