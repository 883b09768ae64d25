//! `eval-sts`: semantic textual similarity of a sentence encoder.

use anyhow::bail;
use clap::Parser;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tch::Tensor;
use weince::checkpoint::{refuse_same_file, safetensors, sha256_of, write_bytes};
use weince::config::text_model::Pooler;
use weince::data::text::sts::{self, Columns, StsSplit};
use weince::error::Error;
use weince::eval::embed::DEFAULT_BATCH;
use weince::eval::record::{check_target, versions};
use weince::eval::sts::{Gold, Similarities, evaluate, sides, similarities};
use weince::eval::{Space, TextRunEncoder};
use weince::run::RunFolder;

/// Ranks pairs of sentences by the cosine of their embeddings, and correlates that with people's scores.
///
/// Spearman (ties have the mean of their ranks) and Pearson, of all pairs at once (`all`, what SimCSE reports) and, where there
/// are several subsets, their means, plain (`mean`) and weighted by their pairs (`wmean`).
#[derive(Parser)]
#[command(version)]
struct Args {
    /// A run of pretrain-text: the weights that it ended with or, where it has not, its newest state
    #[arg(long, value_name = "DIR", requires = "data", conflicts_with_all = ["model", "embeddings", "pooler"])]
    run: Option<PathBuf>,
    /// Weights to take instead of the run's own: one of its states, such as checkpoints/best.pt
    #[arg(long, value_name = "FILE", requires = "run")]
    checkpoint: Option<PathBuf>,
    /// A model's folder as transformers or sentence-transformers write it
    #[arg(long, value_name = "DIR", requires = "data")]
    model: Option<PathBuf>,
    /// Embeddings in place of a model: safetensors with `a` and `b` [n, d], and `score` with a number a row
    #[arg(long, value_name = "FILE", conflicts_with_all = ["model", "data", "split", "columns", "pooler", "max_length", "save_embeddings"])]
    embeddings: Option<PathBuf>,
    /// The pairs: a folder of the STS Benchmark, SICK or SentEval's STS12 to STS16, or a csv, tsv or jsonl file
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Which file of a folder that has one for each split
    #[arg(long, value_enum, default_value = "test")]
    split: StsSplit,
    /// The names of the columns with first sentence, second sentence and score, where they are none of the usual
    #[arg(long, value_name = "A,B,SCORE", value_delimiter = ',', num_args = 1)]
    columns: Option<Vec<String>>,
    /// How hidden states become a vector, where the folder does not say or another way is wanted
    #[arg(long, value_enum)]
    pooler: Option<Pooler>,
    /// The most tokens of a sentence [default: what the folder says]
    #[arg(long, value_name = "TOKENS")]
    max_length: Option<usize>,
    /// Sentences encoded at once
    #[arg(long, default_value_t = DEFAULT_BATCH)]
    batch: usize,
    /// Where to keep the embeddings, in the form that --embeddings takes
    #[arg(long, value_name = "FILE")]
    save_embeddings: Option<PathBuf>,
    /// Where to write the result and the whole protocol as JSON [default with --run alone: results/sts_FOLDER_FILE_SPLIT.json there]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: String,
}

/// What is compared, and where it is from.
struct Pairs {
    name: String,
    gold: Vec<Gold>,
    similarities: Similarities,
    protocol: Value,
    data: Value,
}

fn main() -> ExitCode {
    let args = Args::parse();
    weince::cli::run(|| {
        for target in [&args.out, &args.save_embeddings].into_iter().flatten() {
            check_target(target)?;
            for input in [&args.embeddings, &args.data].into_iter().flatten().filter(|input| input.is_file()) {
                refuse_same_file(target, input)?;
            }
        }
        let pairs = match (&args.embeddings, &args.data) {
            (None, Some(data)) => of_encoder(&args, data)?,
            (Some(file), None) => of_embeddings(file)?,
            _ => {
                let message = "expected --run DIR or --model DIR, with --data PATH, or --embeddings FILE";
                return Err(Error::Config(message.into()).into());
            }
        };
        let result = evaluate(&pairs.gold, &pairs.similarities)?;
        let Value::Object(figures) = serde_json::to_value(&result)? else { bail!("the figures are no JSON object") };
        let mut record = Map::new();
        record.insert("evaluation".into(), json!("sts"));
        record.insert("set".into(), json!(pairs.name));
        record.extend(figures);
        record.insert("protocol".into(), pairs.protocol);
        record.insert("data".into(), pairs.data);
        record.insert("versions".into(), versions());
        let text = serde_json::to_string_pretty(&record)?;
        if let Some(out) = target(&args, &record["data"]["split"])? {
            write_bytes(&out, format!("{text}\n"))?;
        }
        if args.json {
            println!("{text}");
        } else {
            print!("{}", result.to_text(&pairs.name));
        }
        Ok(())
    })
}

/// Where the result goes: `--out`, else the run's folder of results for the run's own weights, else nowhere.
fn target(args: &Args, split: &Value) -> weince::Result<Option<PathBuf>> {
    match (&args.out, &args.run) {
        (Some(out), _) => Ok(Some(out.clone())),
        (None, Some(_)) if args.checkpoint.is_some() || args.max_length.is_some() => {
            eprintln!("note: the result is not of the run's own weights and length: --out FILE keeps it");
            Ok(None)
        }
        (None, Some(run)) => {
            let results = RunFolder::open(run)?.results();
            std::fs::create_dir_all(&results).map_err(Error::io(&results, "cannot make the folder of results"))?;
            let data = args.data.as_deref().unwrap_or(Path::new("."));
            Ok(Some(results.join(format!("sts_{}.json", name_of(data, split)?))))
        }
        (None, None) => Ok(None),
    }
}

/// What tells the data from others of like names: `wordnet_test` for `data/wordnet/test.tsv`; the split follows where it chose.
fn name_of(data: &Path, split: &Value) -> weince::Result<String> {
    let path = std::fs::canonicalize(data).map_err(Error::io(data, "cannot find"))?;
    let last = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut name = last(&path);
    if path.is_file() {
        let plain = name.strip_suffix(".gz").unwrap_or(&name);
        let stem = plain.rsplit_once('.').map_or(plain, |(stem, _)| stem);
        name = format!("{}_{stem}", path.parent().map(last).unwrap_or_default());
    }
    Ok(split.as_str().map_or(name.clone(), |split| format!("{name}_{split}")))
}

/// Pairs of a data set, encoded.
fn of_encoder(args: &Args, data: &Path) -> anyhow::Result<Pairs> {
    let device = weince::device::parse(&args.device, None)?;
    let columns = match args.columns.as_deref() {
        None => None,
        Some([a, b, score]) => {
            let [a, b, score] = [a, b, score].map(|name| name.trim().to_string());
            Some(Columns { a, b, score })
        }
        Some(other) => {
            let message = format!("--columns: expected three names, such as text1,text2,label, found {}", other.len());
            return Err(Error::Config(message).into());
        }
    };
    let set = sts::load(data, args.split, columns.as_ref())?;
    let model = match (&args.run, &args.model) {
        (Some(run), _) => {
            TextRunEncoder::open_run(run, args.checkpoint.as_deref(), args.max_length, Space::Encoder, device)?
        }
        (None, Some(model)) => TextRunEncoder::open_model(model, args.pooler, args.max_length, device)?,
        (None, None) => return Err(Error::Config("expected --run DIR or --model DIR".into()).into()),
    };
    let embeddings = model.embed(&set.sentences(), args.batch)?;
    let encoder = model.encoder();
    let (a, b) = sides(&embeddings)?;
    let similarities = similarities(&a, &b)?;
    let gold = Gold::of(&set);
    if let Some(path) = &args.save_embeddings {
        let scores: Vec<f64> = gold.iter().flat_map(|subset| &subset.scores).copied().collect();
        let tensors = [("a".into(), a), ("b".into(), b), ("score".into(), Tensor::f_from_slice(&scores)?)];
        safetensors::save(path, &tensors, &BTreeMap::new())?;
    }
    let protocol = json!({
        "similarity": "cosine",
        "pooler": encoder.pooler(),
        "max_length": model.tokenizer().max_length(),
        "checkpoint_sha256": sha256_of(encoder.file())?,
    });
    let data = json!({ "path": data.display().to_string(), "split": set.split, "model": encoder.file().display().to_string() });
    Ok(Pairs { name: set.name, gold, similarities, protocol, data })
}

/// Pairs of embeddings that are there.
fn of_embeddings(file: &Path) -> anyhow::Result<Pairs> {
    let tensors: BTreeMap<String, Tensor> = safetensors::load(file)?.tensors.into_iter().collect();
    let named = |name: &str, dimensions: usize| {
        let found = tensors.get(name).ok_or_else(|| {
            let mut there: Vec<String> = tensors.keys().take(4).cloned().collect();
            there.extend((tensors.len() > there.len()).then(|| format!("{} more", tensors.len() - there.len())));
            Error::data(file, None, format!("expected the tensors a, b and score, found {}", there.join(", ")))
        })?;
        if found.dim() != dimensions || !found.is_floating_point() {
            let message = format!(
                "`{name}`: expected floating-point numbers [{}], found {:?} {:?}",
                ["n", "n, d"][dimensions - 1],
                found.kind(),
                found.size()
            );
            return Err(Error::data(file, None, message));
        }
        Ok(found)
    };
    let (a, b, score) = (named("a", 2)?, named("b", 2)?, named("score", 1)?);
    if a.size() != b.size() || a.size()[0] != score.size()[0] {
        let sizes = [a, b, score].map(Tensor::size);
        return Err(Error::data(
            file,
            None,
            format!("a, b and score are of {sizes:?}; expected as many rows, and a and b as wide"),
        )
        .into());
    }
    let floats = |t: &Tensor| t.f_to_kind(tch::Kind::Float);
    let scores = Vec::<f64>::try_from(score.f_to_kind(tch::Kind::Double)?)?;
    if let Some(row) = scores.iter().position(|score| !score.is_finite()) {
        let message = format!("`score`: row {row}, counted from 0, is {}; expected finite numbers", scores[row]);
        return Err(Error::data(file, None, message).into());
    }
    let name = file.file_stem().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
    Ok(Pairs {
        gold: vec![Gold { name: name.clone(), scores, unscored: 0 }],
        name,
        similarities: similarities(&floats(a)?, &floats(b)?)?,
        protocol: json!({ "similarity": "cosine" }),
        data: json!({ "path": file.display().to_string(), "sha256": sha256_of(file)? }),
    })
}
