//! `run-sweep`: many runs from one file, and the table that compares them.

use clap::{Args, Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weince::sweep::{self, Options, Sweep, SweepFolder, Task};
use weince::{Error, cli, device};

/// Runs every setting of every arm of a sweep with every seed, evaluates each run, and makes the table that compares the arms.
///
/// Run again, it goes on where it was: finished runs are kept, begun ones resumed, failed ones tried again.
#[derive(Parser)]
#[command(version, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    run: Option<Run>,
}

#[derive(Args)]
struct Run {
    /// The sweep (YAML)
    #[arg(long, value_name = "FILE")]
    sweep: PathBuf,
    /// The sweep's folder [default: runs/sweeps/NAME, NAME being that of the sweep's file]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Runs at once; they share the processor's threads, unless OMP_NUM_THREADS is set. Threads may change the order of sums in
    /// LibTorch's kernels: for the same bytes set OMP_NUM_THREADS. Every run's environment.json records its own
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: String,
    /// List the runs and what is left of each, and write nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Makes the tables of a sweep's folder anew, from its runs, or where it has none from its runs.csv
    Report {
        /// The sweep's folder
        dir: PathBuf,
        /// Where runs.csv, table.csv, table.md, table.svg and sweep.resolved.yaml go [default: DIR]
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// Print one JSON object instead of the tables
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    cli::run(|| match (arguments.action, arguments.run) {
        (Some(Action::Report { dir, out, json }), _) => report(&dir, out.as_deref().unwrap_or(&dir), json),
        (None, Some(arguments)) => run(&arguments),
        (None, None) => Err(Error::Config("give --sweep FILE, or `report DIR`; see --help".into()).into()),
    })
}

fn run(arguments: &Run) -> anyhow::Result<()> {
    let sweep = Sweep::load(&arguments.sweep)?;
    let name = arguments.sweep.file_stem().unwrap_or(arguments.sweep.as_os_str());
    let folder = SweepFolder::new(arguments.out.clone().unwrap_or_else(|| Path::new("runs/sweeps").join(name)));
    let options = Options::new(arguments.jobs, device::parse(&arguments.device, None)?)?;
    if arguments.dry_run {
        folder.check(&sweep)?;
        list(&sweep, &folder);
        return Ok(());
    }
    let outcome = sweep::run(&sweep, &folder, &options)?;
    let table = sweep::write(folder.root(), folder.root(), &mut |note| eprintln!("note: {note}"))?;
    print!("{}", sweep::to_text(&table));
    eprintln!("{} runs finished before, {} now; tables in {}", outcome.before, outcome.now, folder.root().display());
    if outcome.failed.is_empty() {
        return Ok(());
    }
    let lines: String = outcome.failed.iter().map(|(name, reason)| format!("\n  {name}: {reason}")).collect();
    let all = outcome.before + outcome.now + outcome.failed.len();
    Err(Error::Input(format!(
        "{} of {all} runs failed; the same command tries them again:{lines}",
        outcome.failed.len()
    ))
    .into())
}

fn report(dir: &Path, out: &Path, json: bool) -> anyhow::Result<()> {
    let table = sweep::write(dir, out, &mut |note| eprintln!("note: {note}"))?;
    if json {
        println!("{}", sweep::to_json(&table))
    } else {
        print!("{}", sweep::to_text(&table))
    }
    Ok(())
}

/// The runs, what is left of each, and what sets it apart from its arm.
fn list(sweep: &Sweep, folder: &SweepFolder) {
    let (mut left, jobs) = (0, sweep.jobs());
    for job in &jobs {
        let state = match folder.left(sweep, job).map(|tasks| tasks.first().copied()) {
            Ok(None) => "finished".to_string(),
            Ok(Some(Task::Pretrain { resume: false })) => "missing".to_string(),
            Ok(Some(Task::Pretrain { resume: true })) => "begun".to_string(),
            Ok(Some(Task::Linear | Task::Knn)) => "trained, to be evaluated".to_string(),
            Err(e) => format!("cannot be continued: {e}"),
        };
        left += usize::from(state != "finished");
        let set = &sweep.config.arms[job.arm].set;
        let values = &sweep.arms[job.arm].settings[job.setting].values;
        // A grid's value stands in the place of its arm's.
        let of_arm = set.iter().filter(|(key, _)| !values.contains_key(*key));
        let show = |value: &serde_yaml::Value| serde_json::to_string(value).unwrap_or_default();
        let line: Vec<String> = of_arm
            .chain(values)
            .map(|(key, value)| format!("{}={}", key.as_str().unwrap_or_default(), show(value)))
            .chain([format!("seed={}", job.seed)])
            .collect();
        println!("{}  {state}  {}", job.name, line.join(" "));
    }
    println!("{} runs, {left} left to do", jobs.len());
}
