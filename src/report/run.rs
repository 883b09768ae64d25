//! A finished run's folder as the report reads it, and runs that differ in nothing but their seed as one group.

use super::metrics::{self, Metrics, Split};
use super::table::{Format, Table, write_figure};
use crate::checkpoint::sha256_of;
use crate::config::run::{RunConfig, command_of};
use crate::config::text::TextConfig;
use crate::error::{Error, Result};
use crate::run::RunFolder;
use crate::stats::Spread;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Larger pictures are not worth embedding in a page.
const MOST_PNG_BYTES: u64 = 32 << 20;

/// The files of one run.
#[derive(Debug, Clone)]
pub struct Run {
    /// The folder.
    pub folder: PathBuf,
    /// The command that ran it.
    pub command: &'static str,
    /// `seed` of the configuration.
    pub seed: u64,
    /// `loss.kind` of the configuration.
    pub loss_kind: String,
    /// `config.resolved.yaml` as dotted keys and their values, in the order of the file.
    pub config: Vec<(String, String)>,
    /// `environment.json`.
    pub environment: Map<String, Value>,
    /// `metrics.jsonl`.
    pub metrics: Metrics,
    /// `results/linear.json`, if the linear probe has run on the present weights.
    pub linear: Option<Map<String, Value>>,
    /// `results/knn.json`, if the kNN evaluation has run on the present weights.
    pub knn: Option<Map<String, Value>>,
    /// Spearman's correlation by `results/sts_*.json`, of the present weights, by the name of the set.
    pub sts: BTreeMap<String, f64>,
    /// Whether the run has left all that it leaves at its end.
    pub ended: bool,
    /// Evaluations whose results are of other weights, from before the run went on.
    pub outdated: Vec<&'static str>,
    /// `report/views.png`: augmented views, if the run left them.
    pub views: Option<Vec<u8>>,
}

/// What the evaluations of a run left.
#[derive(Debug, Clone, Default)]
pub struct Evaluations {
    /// `results/linear.json`, if the linear probe has run on the present weights.
    pub linear: Option<Map<String, Value>>,
    /// `results/knn.json`, if the kNN evaluation has run on the present weights.
    pub knn: Option<Map<String, Value>>,
    /// Evaluations whose results are of other weights, from before the run went on.
    pub outdated: Vec<&'static str>,
}

impl Evaluations {
    /// Reads the results in a run folder.
    ///
    /// # Errors
    /// A damaged file, named.
    pub fn read(folder: &Path) -> Result<Evaluations> {
        let mut linear = read_results(&folder.join("results/linear.json"))?;
        let mut knn = read_results(&folder.join("results/knn.json"))?;
        let mut outdated = Vec::new();
        if (linear.is_some() || knn.is_some())
            && let Some(weights) = RunFolder::open(folder)?.weights()?
        {
            let present = sha256_of(&weights)?;
            for (name, results) in [("eval-linear", &mut linear), ("eval-knn", &mut knn)] {
                let of = results.as_ref().and_then(|r| r.get("checkpoint_sha256")).and_then(Value::as_str);
                if of.is_some_and(|of| of != present) {
                    *results = None;
                    outdated.push(name);
                }
            }
        }
        Ok(Evaluations { linear, knn, outdated })
    }
}

impl Run {
    /// Reads a run folder.
    ///
    /// # Errors
    /// A missing or damaged file, named. Only `results/*.json` and `report/views.png` may be missing.
    pub fn read(folder: &Path) -> Result<Run> {
        if !folder.is_dir() {
            return Err(Error::data(folder, None, "no such run folder; give the folder that a training run wrote"));
        }
        let path = folder.join("config.resolved.yaml");
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path, "cannot read the run's configuration"))?;
        let tree: serde_yaml::Value =
            serde_yaml::from_str(&text).map_err(|e| Error::data(&path, None, format!("no YAML: {e}")))?;
        let lacks =
            |what: &str| Error::data(&path, None, format!("a run's configuration must have {what}; found none"));
        let seed = tree
            .get("seed")
            .and_then(serde_yaml::Value::as_u64)
            .ok_or_else(|| lacks("a whole number `seed` from 0 up"))?;
        let command = command_of(&tree);
        let kind = tree.get("loss").and_then(|l| l.get("kind")).and_then(serde_yaml::Value::as_str);
        let loss_kind = kind.ok_or_else(|| lacks("a name `loss.kind`"))?.to_string();
        let mut config = Vec::new();
        flatten("", &tree, &mut config);

        let path = folder.join("environment.json");
        let environment = read_object(&path)?.ok_or_else(|| {
            Error::data(&path, None, "missing; a training run writes it at its start, so this is no whole run folder")
        })?;
        let Evaluations { linear, knn, mut outdated } = Evaluations::read(folder)?;
        let sts = sts_results(folder, &mut outdated)?;
        let metrics = metrics::read(&folder.join("metrics.jsonl"))?;
        let views = read_png(&folder.join("report/views.png"))?;
        let ended = RunFolder::open(folder)?.has_ended();
        let folder = folder.to_path_buf();
        Ok(Run {
            folder,
            command,
            seed,
            loss_kind,
            config,
            environment,
            metrics,
            linear,
            knn,
            sts,
            ended,
            views,
            outdated,
        })
    }

    /// The results that are missing, by the command that makes them.
    pub fn missing_results(&self) -> Vec<&'static str> {
        // What a text run is measured by is many sets; the figures here are those of its training.
        if self.is_text() {
            return Vec::new();
        }
        let both = [("eval-linear", self.linear.is_none()), ("eval-knn", self.knn.is_none())];
        both.into_iter().filter(|(_, missing)| *missing).map(|(name, _)| name).collect()
    }

    /// The folder's name.
    pub fn name(&self) -> String {
        self.folder.file_name().unwrap_or(self.folder.as_os_str()).to_string_lossy().into_owned()
    }

    /// Mean of a training value over the last tenth of the run's steps, in which one epoch may be all there is.
    fn final_mean(&self, name: &str) -> Option<f64> {
        let series = self.metrics.series(Split::Train, name);
        let last = series.last()?.0;
        let from = last - last / 10;
        let values: Vec<f64> = series.into_iter().filter(|(step, _)| *step >= from).map(|(_, v)| v).collect();
        Spread::of(&values).map(|s| s.mean)
    }

    /// Whether it trained on text.
    fn is_text(&self) -> bool {
        self.command == TextConfig::COMMAND
    }

    /// Median of a training value over all of the run's lines.
    fn median(&self, name: &str) -> Option<f64> {
        median(self.metrics.series(Split::Train, name).into_iter().map(|(_, v)| v).collect())
    }

    fn knn_accuracy(&self) -> Option<f64> {
        let results = self.knn.as_ref()?;
        let largest_k = || {
            let by_k = results.get("accuracy_at_k")?.as_object()?;
            by_k.iter().max_by_key(|(k, _)| k.parse::<u64>().unwrap_or(0))?.1.as_f64()
        };
        results.get("test_accuracy").and_then(Value::as_f64).or_else(largest_k)
    }
}

/// What `eval-sts` found of a run's present weights, by the name of the set; results of others are named as outdated.
fn sts_results(folder: &Path, outdated: &mut Vec<&'static str>) -> Result<BTreeMap<String, f64>> {
    let run = RunFolder::open(folder)?;
    let Ok(entries) = std::fs::read_dir(run.results()) else { return Ok(BTreeMap::new()) };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut sets: Vec<String> =
        names.filter_map(|name| Some(name.strip_prefix("sts_")?.strip_suffix(".json")?.to_string())).collect();
    sets.sort();
    let Some(weights) = run.model_weights().filter(|_| !sets.is_empty()) else { return Ok(BTreeMap::new()) };
    let (present, mut found) = (sha256_of(&weights)?, BTreeMap::new());
    for set in sets {
        let results = read_results(&run.results().join(format!("sts_{set}.json")))?.unwrap_or_default();
        let of = results.get("protocol").and_then(|protocol| protocol.get("checkpoint_sha256")).and_then(Value::as_str);
        if of != Some(&present) {
            if !outdated.contains(&"eval-sts") {
                outdated.push("eval-sts");
            }
        } else if let Some(value) = results.get("all").and_then(|all| all.get("spearman")).and_then(Value::as_f64) {
            found.insert(set, value);
        }
    }
    Ok(found)
}

/// A column of the comparison: its key for machines, its title, how it is written, and where a run keeps it.
pub struct Figure {
    /// Key in JSON output.
    pub key: String,
    /// Title with unit.
    pub title: String,
    /// How it is written.
    pub format: Format,
    /// Whether only runs on text (or only others) can have it.
    pub of_text: Option<bool>,
    /// The value of one run, if it has it.
    pub of: OfRun,
}

/// A value that a run may have.
type OfRun = Box<dyn Fn(&Run) -> Option<f64>>;

/// A figure that does not depend on what the runs were evaluated on.
struct Fixed {
    key: &'static str,
    title: &'static str,
    format: Format,
    of_text: Option<bool>,
    of: fn(&Run) -> Option<f64>,
}

/// The columns of the comparison; those of sets of pairs come before the loss.
const FIGURES: [Fixed; 9] = [
    Fixed {
        key: "linear_accuracy",
        title: "linear probe (%)",
        format: Format::Percent,
        of_text: Some(false),
        of: |run| run.linear.as_ref()?.get("test_accuracy")?.as_f64(),
    },
    Fixed {
        key: "knn_accuracy",
        title: "kNN (%)",
        format: Format::Percent,
        of_text: Some(false),
        of: Run::knn_accuracy,
    },
    Fixed {
        key: "recall_at_1",
        title: "recall@1 (%)",
        format: Format::Percent,
        of_text: Some(false),
        of: |run| run.knn.as_ref()?.get("recall_at_1")?.as_f64(),
    },
    Fixed {
        key: "spearman",
        title: "best Spearman while training (%)",
        format: Format::Percent,
        of_text: Some(true),
        of: |run| run.metrics.series(Split::Eval, "spearman").into_iter().map(|(_, v)| v).max_by(f64::total_cmp),
    },
    Fixed {
        key: "final_loss",
        title: "final loss (nats)",
        format: Format::Decimals(4),
        of_text: None,
        of: |run| run.final_mean("loss"),
    },
    Fixed {
        key: "lambda_mean",
        title: "mean λ",
        format: Format::Decimals(3),
        of_text: None,
        of: |run| run.final_mean("lambda_mean"),
    },
    Fixed {
        key: "images_per_second",
        title: "images/s",
        format: Format::Decimals(0),
        of_text: Some(false),
        of: |run| run.median("images_per_second"),
    },
    Fixed {
        key: "sentences_per_second",
        title: "sentences/s",
        format: Format::Decimals(0),
        of_text: Some(true),
        of: |run| run.median("sentences_per_second"),
    },
    Fixed {
        key: "seconds",
        title: "training (s)",
        format: Format::Decimals(0),
        of_text: None,
        of: |run| run.metrics.series(Split::Train, "seconds").last().map(|(_, v)| *v),
    },
];

/// The columns that runs like these can have.
pub fn figures<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Vec<Figure> {
    let runs: Vec<&Run> = runs.into_iter().collect();
    let mut columns = Vec::new();
    for Fixed { key, title, format, of_text, of } in FIGURES {
        if key == "final_loss" {
            let sets: BTreeSet<&String> = runs.iter().flat_map(|run| run.sts.keys()).collect();
            columns.extend(sets.into_iter().map(|set| {
                let name = set.clone();
                Figure {
                    key: format!("sts_{set}"),
                    title: format!("Spearman, {set} (%)"),
                    format: Format::Percent,
                    of_text: Some(true),
                    of: Box::new(move |run| run.sts.get(&name).copied()),
                }
            }));
        }
        if of_text.is_none_or(|of_text| runs.iter().any(|run| run.is_text() == of_text)) {
            columns.push(Figure { key: key.into(), title: title.into(), format, of_text, of: Box::new(of) });
        }
    }
    columns
}

/// Runs whose configurations differ in `seed` alone.
#[derive(Debug, Clone)]
pub struct Group {
    /// The loss's kind, and what else tells the group from others with that kind.
    pub label: String,
    /// The runs, in the order given.
    pub runs: Vec<Run>,
}

impl Group {
    /// A figure over the group's runs that have it.
    pub fn spread(&self, figure: &Figure) -> Option<Spread> {
        let values: Vec<f64> = self.runs.iter().filter_map(|run| (figure.of)(run)).collect();
        Spread::of(&values)
    }
}

/// Reads run folders and groups them, groups in the order of their first run.
///
/// # Errors
/// As [`Run::read`]; no folder at all; a folder given twice, which would count it twice.
pub fn read_groups(folders: &[PathBuf]) -> Result<Vec<Group>> {
    if folders.is_empty() {
        return Err(Error::Input("report: no run folder given; give one or more".to_string()));
    }
    let mut seen: Vec<PathBuf> = Vec::new();
    let mut groups: Vec<(Vec<(String, String)>, Group)> = Vec::new();
    for folder in folders {
        let run = Run::read(folder)?;
        let real = folder.canonicalize().map_err(Error::io(folder, "cannot find the run folder"))?;
        if seen.contains(&real) {
            return Err(Error::data(
                folder,
                None,
                "this run folder is given twice; its figures would be counted twice",
            ));
        }
        seen.push(real);
        if let Some((_, group)) = groups.first()
            && group.runs[0].is_text() != run.is_text()
        {
            let message = "this run is of text and others are of images, or the other way round; compare them apart";
            return Err(Error::data(folder, None, message));
        }
        let key: Vec<_> = run.config.iter().filter(|(key, _)| key != "seed").cloned().collect();
        match groups.iter_mut().find(|(k, _)| *k == key) {
            Some((_, group)) => group.runs.push(run),
            None => groups.push((key, Group { label: run.loss_kind.clone(), runs: vec![run] })),
        }
    }
    let mut groups: Vec<Group> = groups.into_iter().map(|(_, group)| group).collect();
    let labels: Vec<String> = (0..groups.len()).map(|index| label(&groups, index)).collect();
    for (group, label) in groups.iter_mut().zip(labels) {
        group.label = label;
    }
    Ok(groups)
}

/// The loss's kind, and the settings in which groups differ: all but those of the loss, and those too among groups that
/// share its kind.
fn label(groups: &[Group], index: usize) -> String {
    let this = &groups[index].runs[0];
    let namesakes: Vec<&Run> =
        groups.iter().map(|g| &g.runs[0]).filter(|run| run.loss_kind == this.loss_kind).collect();
    let all: Vec<&Run> = groups.iter().map(|g| &g.runs[0]).collect();
    let among_namesakes = differences(&namesakes);
    let settings: Vec<String> = differences(&all)
        .into_iter()
        .filter(|key| key != "seed" && (!key.starts_with("loss.") || among_namesakes.contains(key)))
        .map(|key| format!("{key}={}", this.setting(&key).unwrap_or("-")))
        .collect();
    if settings.is_empty() { this.loss_kind.clone() } else { format!("{} ({})", this.loss_kind, settings.join(", ")) }
}

impl Run {
    /// The value of a dotted key of the configuration.
    pub fn setting(&self, key: &str) -> Option<&str> {
        self.config.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }
}

/// The dotted keys whose value is not the same in all configurations.
pub fn differences(runs: &[&Run]) -> Vec<String> {
    let mut keys: Vec<String> = Vec::new();
    for (key, _) in runs.iter().flat_map(|run| &run.config) {
        let first = runs[0].setting(key);
        if !keys.contains(key) && runs.iter().any(|run| run.setting(key) != first) {
            keys.push(key.clone());
        }
    }
    keys
}

/// The comparison: a row a group, a column a figure.
pub fn comparison(groups: &[Group]) -> Table {
    let figures = figures(groups.iter().flat_map(|group| &group.runs));
    let row = |group: &Group| {
        (group.label.clone(), figures.iter().map(|f| write_figure(group.spread(f), f.format)).collect())
    };
    Table {
        corner: "loss".to_string(),
        columns: figures.iter().map(|f| f.title.to_string()).collect(),
        rows: groups.iter().map(row).collect(),
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (n > 0).then(|| (values[(n - 1) / 2] + values[n / 2]) / 2.0)
}

fn flatten(prefix: &str, value: &serde_yaml::Value, out: &mut Vec<(String, String)>) {
    if let serde_yaml::Value::Mapping(map) = value
        && !map.is_empty()
    {
        for (key, inner) in map {
            let dot = if prefix.is_empty() { "" } else { "." };
            flatten(&format!("{prefix}{dot}{}", inline(key)), inner, out);
        }
    } else {
        out.push((prefix.to_string(), inline(value)));
    }
}

/// A YAML value on one line.
fn inline(value: &serde_yaml::Value) -> String {
    match value {
        serde_yaml::Value::String(text) => text.clone(),
        serde_yaml::Value::Sequence(items) => {
            format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", "))
        }
        serde_yaml::Value::Mapping(map) => {
            let entries = map.iter().map(|(k, v)| format!("{}: {}", inline(k), inline(v)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
        serde_yaml::Value::Null => "null".to_string(),
        serde_yaml::Value::Bool(b) => b.to_string(),
        serde_yaml::Value::Number(n) => n.to_string(),
        serde_yaml::Value::Tagged(t) => format!("{} {}", t.tag, inline(&t.value)),
    }
}

/// The JSON object of a file; `None` if there is no such file.
fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(path, "cannot read it")(e)),
    };
    let object = serde_json::from_slice(&bytes).map_err(|e| Error::data(path, None, format!("no JSON object: {e}")))?;
    Ok(Some(object))
}

/// The results of an evaluation; every accuracy and recall in it is a fraction.
fn read_results(path: &Path) -> Result<Option<Map<String, Value>>> {
    let Some(results) = read_object(path)? else { return Ok(None) };
    let is_fraction = |key: &str| {
        matches!(key, "test_accuracy" | "val_accuracy") || key.trim_start_matches("val_").starts_with("recall_at_")
    };
    let single = results.iter().filter(|(key, _)| is_fraction(key)).map(|(k, v)| (k.clone(), v));
    let by_k = results.get("accuracy_at_k").and_then(Value::as_object).into_iter().flatten();
    let by_k = by_k.map(|(k, v)| (format!("accuracy_at_k.{k}"), v));
    for (key, value) in single.chain(by_k) {
        // A value that an evaluation did not have is null.
        if !value.is_null() && !value.as_f64().is_some_and(|v| (0.0..=1.0).contains(&v)) {
            let message = format!("`{key}` must be a fraction from 0 to 1, found {value}; run the evaluation again");
            return Err(Error::data(path, None, message));
        }
    }
    Ok(Some(results))
}

fn read_png(path: &Path) -> Result<Option<Vec<u8>>> {
    let size = match std::fs::metadata(path) {
        Ok(data) => data.len(),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(path, "cannot read it")(e)),
    };
    if size > MOST_PNG_BYTES {
        return Err(Error::data(
            path,
            None,
            format!("{size} bytes; a picture for the page has {MOST_PNG_BYTES} at most"),
        ));
    }
    let bytes = std::fs::read(path).map_err(Error::io(path, "cannot read it"))?;
    if !bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Err(Error::data(
            path,
            Some(0),
            "expected a PNG's first bytes, found others; remove it or write it again",
        ));
    }
    Ok(Some(bytes))
}
