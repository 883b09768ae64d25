//! The claims of the similarity-search theory, checked by numbers.

use clap::Parser;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use weince::report::claims::picture;
use weince::theory::claims::{Checked, Claim, Expected, Formulas, GROUPS, Plan, Size};
use weince::{Error, cli};

/// Checks every claim of the theory (docs/theory.md), and WEINCE's noise-floor experiment, against exact values and simulations: a line
/// for each.
///
/// The same seed gives the same numbers on any number of threads.
#[derive(Parser)]
#[command(version)]
struct Args {
    /// Fewer models and repetitions: some seconds
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// All of them, which is the default: about half a minute on 2 cores
    #[arg(long)]
    full: bool,
    /// Seed of the simulations
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Groups of claims to check, such as T05 [default: all]
    #[arg(value_name = "GROUP")]
    groups: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Folder for pictures of T05, T08, T11, T18 and N01: SVG, PNG and their numbers as CSV
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn main() -> ExitCode {
    let args = Args::parse();
    cli::run(|| {
        if let Some(other) = args.groups.iter().find(|id| GROUPS.iter().all(|group| group.id != id.as_str())) {
            let ids: Vec<&str> = GROUPS.iter().map(|group| group.id).collect();
            return Err(Error::Config(format!("no group `{other}`; there are {}", ids.join(", "))).into());
        }
        if let Some(folder) = &args.out {
            std::fs::create_dir_all(folder).map_err(Error::io(folder, "cannot make the folder of pictures"))?;
        }
        let plan = Plan { seed: args.seed, size: if args.quick { Size::Quick } else { Size::Full } };
        let mut all: Vec<Claim> = Vec::new();
        for group in GROUPS.iter().filter(|g| args.groups.is_empty() || args.groups.iter().any(|id| id == g.id)) {
            let start = Instant::now();
            let Checked { claims, plots } = group.check(&plan, &Formulas::default())?;
            if !args.json {
                claims.iter().for_each(|claim| println!("{claim}"));
            }
            eprintln!("{} {}: {:.1} s", group.id, group.title, start.elapsed().as_secs_f64());
            if let Some(folder) = &args.out {
                for plot in &plots {
                    let files = picture(plot)?.write(folder)?;
                    let files: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
                    eprintln!("{} {}", group.id, files.join(", "));
                }
            }
            all.extend(claims);
        }
        let failed = all.iter().filter(|claim| !claim.pass).count();
        if args.json {
            let claims: Vec<_> = all.iter().map(json).collect();
            println!("{}", json!({ "seed": args.seed, "quick": args.quick, "failed": failed, "claims": claims }));
        } else {
            println!("{} claims, {failed} failed, seed {}", all.len(), args.seed);
        }
        match failed {
            0 => Ok(()),
            _ => Err(Error::Input(format!("{failed} of {} claims failed", all.len())).into()),
        }
    })
}

fn json(claim: &Claim) -> serde_json::Value {
    let (relation, numbers) = match claim.expected {
        Expected::Equal(x) => ("equal", vec![x]),
        Expected::AtMost(x) => ("at_most", vec![x]),
        Expected::AtLeast(x) => ("at_least", vec![x]),
        Expected::Between(low, high) => ("between", vec![low, high]),
    };
    json!({
        "id": claim.id, "claim": claim.what, "measured": claim.measured, "relation": relation, "expected": numbers,
        "tolerance": claim.tolerance, "pass": claim.pass,
    })
}
