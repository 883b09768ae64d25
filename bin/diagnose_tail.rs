//! `diagnose-tail`: what the hardest negatives of a frozen encoder look like.

use clap::{ArgGroup, Parser};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use weince::checkpoint::sha256_of;
use weince::error::Error;
use weince::eval::Space;
use weince::eval::matrix::read_numbers;
use weince::evt::Bootstrap;
use weince::report::table::Table;
use weince::run::RunFolder;
use weince::tail::Winner;
use weince::tail::diagnosis::{Bare, Diagnosis, FIT, over_training, record_of, to_text, write};
use weince::tail::record::table_of_fit;
use weince::tail::source::{Material, Negatives, OfRun, Options, Part, of_embeddings, of_similarities};
use weince::tail::words::Word;

/// Tells how the similarities of hard negatives end: peaks over threshold, each anchor's tail as WEINCE sees it, the link that choices follow.
///
/// Peaks are similarities above a quantile of all of them; a generalised Pareto law is fitted to what they exceed it by. xi < 0 means
/// that they have an endpoint (and not that it is 1), xi = 0 an exponential tail. Everything is told in words; --out keeps
/// pictures (SVG, PNG) with their numbers (CSV).
#[derive(Parser)]
#[command(version, allow_negative_numbers = true, group(ArgGroup::new("source").required(true)))]
struct Args {
    /// A run of pretrain-vision or pretrain-text
    #[arg(long, value_name = "DIR", group = "source")]
    run: Option<PathBuf>,
    /// Weights to take instead of the run's own, such as checkpoints/step-N.pt; given several times, everything is also shown over training
    #[arg(long, value_name = "FILE", conflicts_with_all = ["embeddings", "similarities", "exceedances"])]
    checkpoint: Vec<PathBuf>,
    /// Rows of embeddings: FILE.npy, FILE.safetensors or FILE.safetensors:KEY
    #[arg(long, value_name = "FILE", group = "source")]
    embeddings: Option<String>,
    /// Another view of each row of --embeddings, in their order: never a negative of it
    #[arg(long, value_name = "FILE", requires = "embeddings", conflicts_with_all = ["run", "similarities", "exceedances"])]
    second: Option<String>,
    /// A class for each row of --embeddings: negatives of the anchor's class are left out
    #[arg(long, value_name = "FILE", requires = "embeddings", conflicts_with_all = ["run", "similarities", "exceedances"])]
    labels: Option<String>,
    /// Cosine similarities [anchors, negatives], without an anchor's own and its positive's
    #[arg(long, value_name = "FILE", group = "source", conflicts_with_all = ["anchors", "candidates", "negatives", "winner", "link_candidates", "draws"])]
    similarities: Option<String>,
    /// Exceedances alone, positive numbers: a bare fit
    #[arg(long, value_name = "FILE", group = "source", conflicts_with_all = ["anchors", "candidates", "negatives", "quantile", "bootstrap", "batch_negatives", "winner", "link_candidates", "draws", "seed"])]
    exceedances: Option<String>,
    /// Which items of the run: test are held out, train are those that it trains on
    #[arg(long, value_enum, default_value = "test", conflicts_with_all = ["embeddings", "similarities", "exceedances"])]
    split: Part,
    /// Sentences for a run on text: a .txt with one a line, or pairs as eval-sts takes them
    #[arg(long, value_name = "PATH", conflicts_with_all = ["embeddings", "similarities", "exceedances"])]
    data: Option<PathBuf>,
    /// Where similarities are taken: projector is where the loss acts, encoder where evaluations look
    #[arg(long, value_enum, default_value = "projector", conflicts_with_all = ["embeddings", "similarities", "exceedances"])]
    space: Space,
    /// Which rows are compared: rows of --embeddings with one another, across-views with those of --second [default of a run: as its
    /// loss does, one-view for images and across-views for text]
    #[arg(long, value_enum)]
    negatives: Option<Negatives>,
    /// Leave out negatives of the anchor's class, which the loss does not
    #[arg(long, conflicts_with_all = ["embeddings", "similarities", "exceedances"])]
    leave_out_class: bool,
    /// Anchors, drawn at random [default: 1000]
    #[arg(long, value_name = "N")]
    anchors: Option<usize>,
    /// Negatives of each anchor, drawn at random [default: 5000]
    #[arg(long, value_name = "N")]
    candidates: Option<usize>,
    /// Seed of draws, views and resamples
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The quantile of all similarities above which they are peaks [default: 0.99]
    #[arg(long, value_name = "Q")]
    quantile: Option<f64>,
    /// Resamples of the anchors for the intervals; 0 for none [default: 1000]
    #[arg(long, value_name = "N")]
    bootstrap: Option<usize>,
    /// As many negatives of each anchor make up its own tail (beta, rho, lambda) [default: those of a batch of the run, else all]
    #[arg(long, value_name = "K")]
    batch_negatives: Option<usize>,
    /// What wins a choice of link selection: fresh, the candidate nearest to a fresh view of the anchor; positive, the anchor's other
    /// view, which good encoders separate from all others [default: fresh]
    #[arg(long, value_enum)]
    winner: Option<Winner>,
    /// Other items in a choice [default: 64]
    #[arg(long, value_name = "N")]
    link_candidates: Option<usize>,
    /// Fresh views of each anchor, a choice each; 0 leaves link selection out [default: 5, and with --second, which is one view, 1]
    #[arg(long, value_name = "N")]
    draws: Option<usize>,
    /// Where report.md, tail.json and the pictures go [default with --run and its own weights: report/tail there]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object instead of table and words
    #[arg(long)]
    json: bool,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", conflicts_with_all = ["embeddings", "similarities", "exceedances"])]
    device: String,
}

impl Args {
    fn options(&self) -> Options {
        Options {
            anchors: self.anchors.unwrap_or(1000),
            candidates: self.candidates.unwrap_or(5000),
            seed: self.seed,
            negatives: self.negatives,
            winner: self.winner.unwrap_or(Winner::Fresh),
            link_candidates: self.link_candidates.unwrap_or(64),
            draws: self.draws.unwrap_or(if self.second.is_some() { 1 } else { 5 }),
            leave_out_class: self.leave_out_class,
        }
    }

    /// Refuses numbers that nothing can be done with, before the work begins.
    fn validate(&self) -> weince::Result<()> {
        let refuse = |flag: &str, expected: &str, found: String| {
            Err(Error::Config(format!("--{flag}: expected {expected}, found {found}")))
        };
        if let Some(q) = self.quantile.filter(|q| !(*q > 0.0 && *q < 1.0)) {
            return refuse("quantile", "a number between 0 and 1, such as 0.99", q.to_string());
        }
        if let Some(n) = self.bootstrap.filter(|n| (1..20).contains(n)) {
            return refuse("bootstrap", "at least 20 resamples, or 0 for none", n.to_string());
        }
        let options = self.options();
        let counts = [
            ("anchors", options.anchors, 1),
            ("candidates", options.candidates, 1),
            ("batch-negatives", self.batch_negatives.unwrap_or(1), 1),
            ("link-candidates", options.link_candidates, if options.winner == Winner::Fresh { 2 } else { 1 }),
        ];
        if let Some((flag, found, least)) = counts.into_iter().find(|(_, found, least)| found < least) {
            return refuse(flag, &format!("at least {least}"), found.to_string());
        }
        if self.embeddings.is_none() {
            return Ok(());
        }
        let of_choices = [
            ("winner", self.winner.is_some()),
            ("link-candidates", self.link_candidates.is_some()),
            ("draws", self.draws.is_some()),
        ];
        match of_choices.into_iter().find(|(_, given)| *given && self.second.is_none()) {
            Some((flag, _)) => {
                let message =
                    format!("--{flag} is for link selection, which needs another view of the rows: --second FILE");
                Err(Error::Config(message))
            }
            None if self.second.is_some() && options.draws > 1 => {
                refuse("draws", "at most 1 with --second, which is one view of each row", options.draws.to_string())
            }
            None => Ok(()),
        }
    }

    /// Each state of the run, or what was given.
    fn materials(&self) -> anyhow::Result<Vec<Material>> {
        let options = self.options();
        if let Some(file) = &self.similarities {
            return Ok(vec![of_similarities(file)?]);
        }
        if let Some(file) = &self.embeddings {
            return Ok(vec![of_embeddings(file, self.second.as_deref(), self.labels.as_deref(), &options)?]);
        }
        let Some(run) = &self.run else {
            let message = "expected --run DIR, --embeddings FILE, --similarities FILE or --exceedances FILE";
            return Err(Error::Config(message.into()).into());
        };
        let of_run = OfRun {
            folder: run.clone(),
            part: self.split,
            space: self.space,
            data: self.data.clone(),
            device: weince::device::parse(&self.device, None)?,
        };
        if self.checkpoint.is_empty() {
            return Ok(vec![of_run.material(None, &options)?]);
        }
        if let Some(file) = self.checkpoint.iter().find(|file| !file.is_file()) {
            return Err(Error::Config(format!("--checkpoint {}: there is no such file", file.display())).into());
        }
        let mut all: Vec<Material> = Vec::new();
        for file in &self.checkpoint {
            let material = of_run.material(Some(file), &options)?;
            if self.checkpoint.len() > 1 && material.step.is_none() {
                let message = format!(
                    "{}: the file does not say its step, which several states are ordered by; give training states, such as checkpoints/step-N.pt",
                    file.display()
                );
                return Err(Error::Config(message).into());
            }
            material.cautions.iter().for_each(|caution| eprintln!("note: {caution}"));
            if let Some(place) = all.iter().position(|m| m.step == material.step) {
                let message = format!(
                    "--checkpoint {} and {} are both of step {}; expected one state of each step",
                    self.checkpoint[place].display(),
                    file.display(),
                    material.step.unwrap_or(0)
                );
                return Err(Error::Config(message).into());
            }
            all.push(material);
        }
        all.sort_by_key(|m| m.step);
        Ok(all)
    }

    fn protocol(&self, quantile: f64, bootstrap: Option<Bootstrap>) -> Value {
        let drawn = self.similarities.is_none();
        let options = self.options();
        let chosen = self.run.is_some() || self.second.is_some();
        json!({
            "quantile": quantile,
            "fit": FIT,
            "intervals": bootstrap.map(|b| json!({ "by": "resampling anchors, percentiles", "replicates": b.replicates, "level": b.level, "seed": b.seed })),
            "draw": drawn.then(|| json!({ "anchors": options.anchors, "candidates": options.candidates, "seed": options.seed })),
            "link": chosen.then(|| json!({ "winner": options.winner, "candidates": options.link_candidates, "draws": options.draws })),
            "batch_negatives": self.batch_negatives,
        })
    }

    /// The folder of the report, where one is wanted; it is made.
    fn folder(&self) -> weince::Result<Option<PathBuf>> {
        let folder = match (&self.out, &self.run) {
            (Some(out), _) => {
                if out.is_file() {
                    let message = format!("--out {}: this is a file, and the report goes to a folder", out.display());
                    return Err(Error::Config(message));
                }
                Some(out.clone())
            }
            (None, Some(run)) if self.checkpoint.is_empty() => Some(RunFolder::open(run)?.report().join("tail")),
            _ => None,
        };
        // Before the work, which would be lost where it cannot be made.
        if let Some(folder) = &folder {
            std::fs::create_dir_all(folder).map_err(Error::io(folder, "cannot make the folder of the report"))?;
        }
        Ok(folder)
    }

    fn print(
        &self,
        title: &str,
        record: &Map<String, Value>,
        rows: Vec<(String, String)>,
        words: &[Word],
    ) -> weince::Result<()> {
        if self.json {
            println!("{}", to_text(record)?);
            return Ok(());
        }
        let rows = rows.into_iter().map(|(name, value)| (name, vec![value])).collect();
        print!("{}", Table { corner: "tail".into(), columns: vec![title.into()], rows }.to_text());
        for (caution, heading) in [(false, "Found"), (true, "To know about it")] {
            let said: Vec<&Word> = words.iter().filter(|w| w.caution == caution).collect();
            if !said.is_empty() {
                println!("\n{heading}");
                said.iter().for_each(|word| println!("- {}", word.text));
            }
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    weince::cli::run(|| {
        args.validate()?;
        let folder = args.folder()?;
        let told = |written: Vec<PathBuf>| {
            if let Some(folder) = &folder {
                eprintln!("report    {} ({} files)", folder.join("report.md").display(), written.len());
            }
        };
        if let Some(file) = &args.exceedances {
            let path = file.rsplit_once(':').filter(|_| !PathBuf::from(file).is_file()).map_or(file.as_str(), |f| f.0);
            let bare = Bare::of(read_numbers(file)?, file, sha256_of(path.as_ref())?)?;
            let record = bare.record();
            if let Some(folder) = &folder {
                told(bare.write(folder, &record)?);
            }
            return Ok(args.print("value", &record, table_of_fit(&bare.fit), &bare.words)?);
        }
        let quantile = args.quantile.unwrap_or(weince::evt::pot::QUANTILE);
        let bootstrap = match args.bootstrap.unwrap_or(Bootstrap::default().replicates) {
            0 => None,
            replicates => Some(Bootstrap { replicates, seed: args.seed, ..Bootstrap::default() }),
        };
        let mut diagnoses = Vec::new();
        for material in args.materials()? {
            diagnoses.push(Diagnosis::of(material, quantile, bootstrap, args.batch_negatives)?);
        }
        let record = record_of(&diagnoses, args.protocol(quantile, bootstrap));
        if let Some(folder) = &folder {
            told(write(folder, &diagnoses, &record)?);
        }
        let Some(last) = diagnoses.last() else { return Ok(()) };
        if !args.json && diagnoses.len() > 1 {
            over_training(&diagnoses).iter().for_each(|word| println!("- {}", word.text));
            println!("\nThe last of {} states; --json and --out have all.\n", diagnoses.len());
        }
        let title = last.step.map_or("value".to_string(), |step| format!("step {step}"));
        Ok(args.print(&title, &record, last.table(), &last.words)?)
    })
}
