//! `eval-search`: how well a similarity search with some embeddings works, and what would make it better.

use anyhow::bail;
use clap::{ArgGroup, Parser};
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use weince::checkpoint::write_bytes;
use weince::error::Error;
use weince::eval::Space;
use weince::eval::record::versions;
use weince::progress::progress_bar;
use weince::run::RunFolder;
use weince::search::analysis::DEFAULT_TAU;
use weince::search::source::{Files, Material, OfRun};
use weince::search::weince::TailLogit;
use weince::search::{Settings, analyse, pictures, to_markdown, to_text};

/// Measures a similarity search: ranks, the search's cross-entropy with its error, what more negatives or another temperature would
/// change, and how far training generalises.
///
/// Anchors look for their positives among the items of a corpus by cosine. In nats, InfoNCE with k negatives approaches the search's
/// cross-entropy R_inf as k grows: docs/theory.md. --out keeps a page in plain words, pictures and tables.
#[derive(Parser)]
#[command(version, allow_negative_numbers = true, group(ArgGroup::new("source").required(true)))]
struct Args {
    /// A run: of images, two random views of each are the pairs; of text, the sentences of --data that people found alike
    #[arg(long, value_name = "DIR", group = "source")]
    run: Option<PathBuf>,
    /// Weights to take instead of the run's own, such as checkpoints/step-N.pt
    #[arg(long, value_name = "FILE", requires = "run")]
    checkpoint: Option<PathBuf>,
    /// Where the run's rows are taken: projector is where the loss acts, encoder is what is used afterwards
    #[arg(long, value_enum, default_value = "projector", requires = "run")]
    space: Space,
    /// Pairs with scores for a run on text, as eval-sts takes them
    #[arg(long, value_name = "PATH", requires = "run")]
    data: Option<PathBuf>,
    /// Pairs of images of the run, drawn at random
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pairs: usize,
    /// Images in the run's corpus, drawn at random among the others
    #[arg(long, value_name = "M", default_value_t = 20_000)]
    items: usize,
    /// Rows of anchors: FILE.npy, FILE.safetensors or FILE.safetensors:KEY
    #[arg(long, value_name = "FILE", group = "source", requires = "positives")]
    anchors: Option<String>,
    /// Rows of their positives, in the same order; or whole numbers, which are rows of --corpus counted from 0
    #[arg(long, value_name = "FILE", requires = "anchors")]
    positives: Option<String>,
    /// Rows that are searched, without the positives unless those are given by their numbers [default: the other positives]
    #[arg(long, value_name = "FILE", requires = "anchors")]
    corpus: Option<String>,
    /// Search among the other anchors, where there is no --corpus
    #[arg(long, requires = "anchors", conflicts_with = "corpus")]
    among_anchors: bool,
    /// A class for each anchor, whole numbers
    #[arg(long, value_name = "FILE", requires = "anchors")]
    labels: Option<String>,
    /// A class for each row of the corpus
    #[arg(long, value_name = "FILE", requires_all = ["corpus", "labels"])]
    corpus_labels: Option<String>,
    /// Anchors that the encoder was trained with, for the gap between held-out and training risk
    #[arg(long, value_name = "FILE", requires_all = ["anchors", "train_positives"])]
    train_anchors: Option<String>,
    /// Their positives
    #[arg(long, value_name = "FILE", requires = "train_anchors")]
    train_positives: Option<String>,
    /// Their corpus
    #[arg(long, value_name = "FILE", requires = "train_anchors")]
    train_corpus: Option<String>,
    /// Temperature of the search softmax [default: the run's; of files 0.05]
    #[arg(long)]
    tau: Option<f64>,
    /// The number of negatives in training [default: the run's]
    #[arg(long, value_name = "K")]
    k: Option<usize>,
    /// Ranks at which recall is measured
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "1,5,10,100")]
    r: Vec<usize>,
    /// Biases, in nats, for which a number of negatives is recommended
    #[arg(long, value_delimiter = ',', value_name = "LIST", default_value = "0.1,0.01")]
    eps: Vec<f64>,
    /// Look at WEINCE's logit with this lambda and beta for all anchors [default: those of the run's loss, where it is WEINCE]
    #[arg(long, value_delimiter = ',', value_name = "LAMBDA,BETA", num_args = 1)]
    weince: Option<Vec<f64>>,
    /// The most anchors and items of what is measured on a sample: curves over k and temperature, the gap
    #[arg(long, value_delimiter = ',', value_name = "ANCHORS,ITEMS", default_value = "1500,20000")]
    sample: Vec<usize>,
    /// Seed of draws, views, permutations and resamples
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where report.md, search.json, tables and pictures go [default with --run and its own weights: report/search there]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", requires = "run")]
    device: String,
}

impl Args {
    fn material(&self) -> weince::Result<Material> {
        if let Some(folder) = &self.run {
            let of_run = OfRun {
                folder: folder.clone(),
                checkpoint: self.checkpoint.clone(),
                space: self.space,
                data: self.data.clone(),
                pairs: self.pairs,
                items: self.items,
                seed: self.seed,
                device: weince::device::parse(&self.device)?,
            };
            return of_run.material();
        }
        let files = Files {
            anchors: self.anchors.clone().unwrap_or_default(),
            positives: self.positives.clone().unwrap_or_default(),
            corpus: self.corpus.clone(),
            among_anchors: self.among_anchors,
            labels: self.labels.clone(),
            corpus_labels: self.corpus_labels.clone(),
            train_anchors: self.train_anchors.clone(),
            train_positives: self.train_positives.clone(),
            train_corpus: self.train_corpus.clone(),
        };
        files.material()
    }

    fn settings(&self) -> weince::Result<Settings> {
        let weince = match self.weince.as_deref() {
            None => None,
            Some(&[lambda, beta]) => Some(TailLogit::Fixed { lambda, beta }),
            Some(other) => {
                return Err(Error::Config(format!("--weince: expected LAMBDA,BETA, found {} numbers", other.len())));
            }
        };
        let &[anchors, items] = &self.sample[..] else {
            return Err(Error::Config(format!(
                "--sample: expected ANCHORS,ITEMS, found {} numbers",
                self.sample.len()
            )));
        };
        let settings = Settings {
            tau: self.tau.unwrap_or(DEFAULT_TAU),
            k: self.k,
            ranks: self.r.clone(),
            eps: self.eps.clone(),
            seed: self.seed,
            sample: [anchors, items],
            weince,
        };
        settings.validate()?;
        Ok(settings)
    }

    /// The folder of the report, where one is wanted.
    fn folder(&self) -> weince::Result<Option<PathBuf>> {
        match (&self.out, &self.run) {
            (Some(out), _) if out.is_file() => {
                Err(Error::Config(format!("--out {}: this is a file, and the report goes to a folder", out.display())))
            }
            (Some(out), _) => Ok(Some(out.clone())),
            (None, Some(run)) if self.checkpoint.is_none() => Ok(Some(RunFolder::open(run)?.report().join("search"))),
            _ => Ok(None),
        }
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    // 3 is kept for inequalities that are broken: embeddings that are not finite are bad input.
    let code = |e: &Error| {
        if matches!(e, Error::Input(_) | Error::NonFinite(_) | Error::Data { .. }) { 2 } else { e.exit_code() }
    };
    weince::cli::run_to(code, || {
        let mut settings = args.settings()?;
        let folder = args.folder()?;
        let material = args.material()?;
        settings.tau = args.tau.or(material.tau).unwrap_or(DEFAULT_TAU);
        settings.k = settings.k.or(material.k);
        settings.weince = settings.weince.or(material.weince);
        let (mut unit, mut bar) = ("", progress_bar(""));
        let analysis = analyse(&material.input, material.train.as_ref(), &settings, &mut |what, done, all| {
            if what != unit {
                bar.finish_and_clear();
                (unit, bar) = (what, progress_bar(what));
            }
            bar.set_length(all);
            bar.set_position(done);
        })?;
        bar.finish_and_clear();
        let Value::Object(figures) = serde_json::to_value(&analysis)? else { bail!("the figures are no JSON object") };
        let mut record = Map::new();
        record.insert("evaluation".into(), json!("search"));
        record.extend(figures);
        record.insert(
            "protocol".into(),
            json!({
                "similarity": "cosine", "normalisation": "log k", "ties": "count against the positive",
                "ranks": settings.ranks, "eps": settings.eps, "sample": settings.sample, "seed": settings.seed, "k": settings.k,
                "intervals": "95 %: ranks by resampling anchors, risks by the standard error over anchors and items",
            }),
        );
        record.insert("data".into(), material.data);
        record.insert("versions".into(), versions());
        let text = serde_json::to_string_pretty(&record)?;
        if let Some(folder) = &folder {
            std::fs::create_dir_all(folder).map_err(Error::io(folder, "cannot make the folder of the report"))?;
            let shown = pictures(&analysis)?;
            for picture in &shown {
                picture.picture.write(folder)?;
            }
            write_bytes(&folder.join("report.md"), to_markdown(&material.title, &analysis, &shown))?;
            write_bytes(&folder.join("search.json"), format!("{text}\n"))?;
            eprintln!("report    {}", folder.join("report.md").display());
        }
        if args.json {
            println!("{text}");
        } else {
            print!("{}", to_text(&analysis));
        }
        for violation in &analysis.violations {
            eprintln!("error: an inequality that holds for all unit rows is broken: {violation}");
        }
        Ok(if analysis.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(3) })
    })
}
