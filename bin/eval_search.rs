//! `eval-search`: how well a similarity search with some embeddings works, and what would make it better.

use anyhow::bail;
use clap::{ArgGroup, Parser};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weince::checkpoint::write_bytes;
use weince::config::run::RunConfig;
use weince::config::text::TextConfig;
use weince::error::Error;
use weince::eval::Space;
use weince::eval::record::versions;
use weince::progress::progress_bar;
use weince::run::RunFolder;
use weince::search::analysis::DEFAULT_TAU;
use weince::search::source::{Files, OfRun};
use weince::search::weince::TailLogit;
use weince::search::{Analysis, Settings, analyse, compare, pictures, to_markdown, to_text};

/// Measures a similarity search: ranks, the search's cross-entropy with its error, what more negatives or another temperature would
/// change, and how far training generalises.
///
/// Anchors look for their positives among the items of a corpus by cosine. In nats, InfoNCE with k negatives approaches the search's
/// cross-entropy R_inf as k grows: docs/theory.md. --out keeps a page in plain words, pictures and tables.
#[derive(Parser)]
#[command(version, allow_negative_numbers = true, group(ArgGroup::new("source").required(true)))]
struct Args {
    /// A run: of images, two random views of each are the pairs; of text, the sentences of --data that people found alike. Given several
    /// times, they are also compared
    #[arg(long, value_name = "DIR", group = "source")]
    run: Vec<PathBuf>,
    /// Weights to take instead of the run's own, such as checkpoints/step-N.pt
    #[arg(long, value_name = "FILE", conflicts_with = "anchors")]
    checkpoint: Option<PathBuf>,
    /// Where the run's rows are taken: projector is where the loss acts, encoder is what is used afterwards
    #[arg(long, value_enum, default_value = "projector", conflicts_with = "anchors")]
    space: Space,
    /// Pairs with scores for a run on text, as eval-sts takes them
    #[arg(long, value_name = "PATH", conflicts_with = "anchors")]
    data: Option<PathBuf>,
    /// Pairs of images of the run, drawn at random
    #[arg(long, value_name = "N", default_value_t = 2000, conflicts_with = "anchors")]
    pairs: usize,
    /// Images in the run's corpus, drawn at random among the others
    #[arg(long, value_name = "M", default_value_t = 20_000, conflicts_with = "anchors")]
    items: usize,
    /// Rows of anchors: FILE.npy, FILE.safetensors or FILE.safetensors:KEY
    #[arg(long, value_name = "FILE", group = "source", requires = "positives")]
    anchors: Option<String>,
    /// Rows of their positives, in the same order; or whole numbers, which are rows of --corpus counted from 0
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    positives: Option<String>,
    /// Rows that are searched, without the positives unless those are given by their numbers [default: the other positives]
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    corpus: Option<String>,
    /// Search among the other anchors, where there is no --corpus
    #[arg(long, conflicts_with_all = ["corpus", "run"])]
    among_anchors: bool,
    /// A class for each anchor, whole numbers
    #[arg(long, value_name = "FILE", conflicts_with = "run")]
    labels: Option<String>,
    /// A class for each row of the corpus
    #[arg(long, value_name = "FILE", requires_all = ["corpus", "labels"], conflicts_with = "run")]
    corpus_labels: Option<String>,
    /// Anchors that the encoder was trained with, for the gap between held-out and training risk
    #[arg(long, value_name = "FILE", requires = "train_positives", conflicts_with = "run")]
    train_anchors: Option<String>,
    /// Their positives
    #[arg(long, value_name = "FILE", requires = "train_anchors", conflicts_with = "run")]
    train_positives: Option<String>,
    /// Their corpus
    #[arg(long, value_name = "FILE", requires = "train_anchors", conflicts_with = "run")]
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
    #[arg(long, default_value = "auto", conflicts_with = "anchors")]
    device: String,
}

impl Args {
    /// Each run, or what was given, with its name among several.
    fn sources(&self) -> weince::Result<Vec<(String, Source)>> {
        if self.run.len() > 1 && self.checkpoint.is_some() {
            return Err(Error::Config("--checkpoint is of one run; give one --run".into()));
        }
        let device = weince::device::parse(&self.device, None)?;
        let mut seen = BTreeSet::new();
        for folder in &self.run {
            let text = RunFolder::open(folder)?.command()? == TextConfig::COMMAND;
            if text != self.data.is_some() {
                let message = match text {
                    true => "a run on text needs pairs that people scored: --data PATH, as eval-sts takes it",
                    false => "--data is for runs on text; a run on images has its own",
                };
                return Err(Error::Config(format!("{}: {message}", folder.display())));
            }
            let place = std::fs::canonicalize(folder).map_err(Error::io(folder, "cannot find"))?;
            if !seen.insert(place) {
                return Err(Error::Config(format!("{}: the run is given twice", folder.display())));
            }
        }
        let of_run = |folder: &PathBuf| {
            let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
            let of_run = OfRun {
                folder: folder.clone(),
                checkpoint: self.checkpoint.clone(),
                space: self.space,
                data: self.data.clone(),
                pairs: self.pairs,
                items: self.items,
                seed: self.seed,
                device,
            };
            (name, Source::Run(of_run))
        };
        let mut sources: Vec<(String, Source)> = self.run.iter().map(of_run).collect();
        // Folders of one name are told apart by their whole paths.
        let distinct: BTreeSet<String> = sources.iter().map(|(name, _)| name.clone()).collect();
        if distinct.len() < sources.len() {
            sources.iter_mut().zip(&self.run).for_each(|((name, _), folder)| *name = folder.display().to_string());
        }
        if sources.is_empty() {
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
            sources.push((String::new(), Source::Files(files)));
        }
        Ok(sources)
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

    /// The folder of the report of a source, where one is wanted: of several runs each has its own, beside what compares them.
    fn folder(&self, name: &str, source: &Source) -> weince::Result<Option<PathBuf>> {
        match (&self.out, source) {
            (Some(out), _) if self.run.len() > 1 => Ok(Some(out.join(name.replace(['/', '\\'], "_")))),
            (Some(out), _) => Ok(Some(out.clone())),
            (None, Source::Run(run)) if run.checkpoint.is_none() => {
                Ok(Some(RunFolder::open(&run.folder)?.report().join("search")))
            }
            _ => Ok(None),
        }
    }

    /// Measures a source and writes its report. Gives the whole record, too.
    fn measure(&self, name: &str, source: &Source) -> anyhow::Result<(Analysis, Map<String, Value>)> {
        let mut settings = self.settings()?;
        let folder = self.folder(name, source)?;
        let material = match source {
            Source::Run(run) => run.material()?,
            Source::Files(files) => files.material()?,
        };
        settings.tau = self.tau.or(material.tau).unwrap_or(DEFAULT_TAU);
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
        let record = record(&analysis, &settings, material.data)?;
        if let Some(folder) = &folder {
            make(folder)?;
            let shown = pictures(&analysis)?;
            for picture in &shown {
                picture.picture.write(folder)?;
            }
            write_bytes(&folder.join("report.md"), to_markdown(&material.title, &analysis, &shown))?;
            write_bytes(&folder.join("search.json"), format!("{}\n", serde_json::to_string_pretty(&record)?))?;
            eprintln!("report    {}", folder.join("report.md").display());
        }
        Ok((analysis, record))
    }
}

/// Where pairs and items are from.
enum Source {
    Run(OfRun),
    Files(Files),
}

fn make(folder: &Path) -> weince::Result<()> {
    std::fs::create_dir_all(folder).map_err(Error::io(folder, "cannot make the folder of the report"))
}

/// The JSON object of an analysis: the figures, and everything that is needed to get them again.
fn record(analysis: &Analysis, settings: &Settings, data: Value) -> anyhow::Result<Map<String, Value>> {
    let Value::Object(figures) = serde_json::to_value(analysis)? else { bail!("the figures are no JSON object") };
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
    record.insert("data".into(), data);
    record.insert("versions".into(), versions());
    Ok(record)
}

fn main() -> ExitCode {
    let args = Args::parse();
    // 3 is kept for inequalities that are broken: embeddings that are not finite are bad input.
    let code = |e: &Error| match e {
        Error::Input(_) | Error::NonFinite(_) | Error::Data { .. } => 2,
        other => other.exit_code(),
    };
    weince::cli::run_to(code, || {
        args.settings()?;
        if let Some(out) = args.out.as_ref().filter(|out| out.is_file()) {
            let message = format!("--out {}: this is a file, and the report goes to a folder", out.display());
            return Err(Error::Config(message).into());
        }
        if let Some(out) = &args.out {
            make(out)?;
        }
        let (mut analyses, mut records) = (Vec::new(), Vec::new());
        for (name, source) in args.sources()? {
            let (analysis, record) = args.measure(&name, &source)?;
            analyses.push((name, analysis));
            records.push(record);
        }
        let several = analyses.len() > 1;
        let comparison = compare(&analyses);
        if let Some(out) = args.out.as_ref().filter(|_| several) {
            make(out)?;
            write_bytes(&out.join("compare.md"), &comparison)?;
            eprintln!("compared  {}", out.join("compare.md").display());
        }
        match (args.json, several) {
            (true, true) => {
                let named: Map<String, Value> =
                    analyses.iter().map(|(name, _)| name.clone()).zip(records.into_iter().map(Value::Object)).collect();
                println!("{}", serde_json::to_string_pretty(&named)?);
            }
            (true, false) => println!("{}", serde_json::to_string_pretty(&records[0])?),
            (false, true) => print!("{comparison}"),
            (false, false) => print!("{}", to_text(&analyses[0].1)),
        }
        let broken: Vec<&String> = analyses.iter().flat_map(|(_, analysis)| &analysis.violations).collect();
        for violation in &broken {
            eprintln!("error: an inequality that holds for all unit rows is broken: {violation}");
        }
        Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(3) })
    })
}
