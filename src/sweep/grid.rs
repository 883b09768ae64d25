//! From a sweep's configuration to its runs: every combination of every grid with every seed, all checked before the first.

use crate::config::from_tree;
use crate::config::run::RunConfig;
use crate::config::sweep::{ArmConfig, SweepConfig, apply};
use crate::config::vision::VisionConfig;
use crate::error::{Error, Result};
use serde_yaml::{Mapping, Value};
use std::path::Path;

/// A sweep whose runs are all possible.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// As the file says it, the base in its place.
    pub config: SweepConfig,
    /// The arms with their settings.
    pub arms: Vec<Arm>,
}

/// An arm and what it has to choose from.
#[derive(Debug, Clone)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// Every combination of its grid, the last key changing fastest; one where there is no grid.
    pub settings: Vec<Setting>,
    /// The setting that the arm has without its grid, if it is one of the grid's.
    pub default: Option<usize>,
}

/// One setting of an arm.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The grid's keys and values, such as `margin2-kappa_rho10`; `-` where there is no grid.
    pub name: String,
    /// The grid's key paths and values.
    pub values: Mapping,
    /// The run's configuration; its seed is the first of the sweep's.
    pub config: VisionConfig,
}

/// One run of a sweep.
#[derive(Debug, Clone)]
pub struct Job {
    /// The run's name: that of its folder, of its log and of its configuration's file.
    pub name: String,
    /// Index of its arm.
    pub arm: usize,
    /// Index of its setting in the arm.
    pub setting: usize,
    /// Seed of the encoder.
    pub seed: u64,
    /// All of its configuration.
    pub config: VisionConfig,
}

/// Longer names do not fit a file system with what is added to them.
const LONGEST_NAME: usize = 200;

impl Sweep {
    /// Reads a sweep file and checks every run that it stands for.
    ///
    /// # Errors
    /// As [`SweepConfig::load`]; a run whose configuration is wrong, and two that are the same.
    pub fn load(path: &Path) -> Result<Sweep> {
        Sweep::new(SweepConfig::load(path)?).map_err(|e| Error::Config(format!("{}: {e}", path.display())))
    }

    fn new(config: SweepConfig) -> Result<Sweep> {
        let arms = config.arms.iter().map(|arm| expand(arm, &config)).collect::<Result<Vec<Arm>>>()?;
        let sweep = Sweep { config, arms };
        let mut seen: Vec<(&VisionConfig, String)> = Vec::new();
        for (arm, setting) in sweep.arms.iter().flat_map(|arm| arm.settings.iter().map(move |s| (arm, s))) {
            let name = format!("{} {}", arm.name, setting.name);
            if let Some((_, other)) = seen.iter().find(|(config, _)| **config == setting.config) {
                return Err(Error::Config(format!(
                    "the runs of `{other}` and `{name}` are the same; take one of them out"
                )));
            }
            seen.push((&setting.config, name));
        }
        let mut jobs = sweep.jobs();
        jobs.sort_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = jobs.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(Error::Config(format!("two runs have the name `{}`; give an arm another name", pair[0].name)));
        }
        if let Some(job) = jobs.iter().find(|job| job.name.len() > LONGEST_NAME) {
            return Err(Error::Config(format!(
                "the run's name `{}` is longer than {LONGEST_NAME} characters; long values go into arms instead of grids",
                job.name
            )));
        }
        Ok(sweep)
    }

    /// The runs in their order: arms, their settings, and of each its seeds, so that settings become complete early.
    pub fn jobs(&self) -> Vec<Job> {
        let mut jobs = Vec::new();
        for (a, arm) in self.arms.iter().enumerate() {
            for (s, setting) in arm.settings.iter().enumerate() {
                for &seed in &self.config.seeds {
                    let between = if setting.values.is_empty() { String::new() } else { format!("-{}", setting.name) };
                    jobs.push(Job {
                        name: format!("{}{between}-seed{seed}", arm.name),
                        arm: a,
                        setting: s,
                        seed,
                        config: VisionConfig { seed, ..setting.config.clone() },
                    });
                }
            }
        }
        jobs
    }

    /// Index of the baseline among the arms.
    pub fn baseline(&self) -> usize {
        self.arms.iter().position(|arm| arm.name == self.config.baseline).unwrap_or(0)
    }

    /// What keeps a folder that was filled by `self` from being continued by `new`: runs that are gone or changed, and
    /// evaluations that changed. Further arms, values, seeds and evaluations may be added.
    ///
    /// # Errors
    /// None in practice: configurations serialise.
    pub fn conflicts(&self, new: &Sweep) -> Result<Vec<String>> {
        let jobs = new.jobs();
        let mut conflicts = Vec::new();
        for old in self.jobs() {
            match jobs.iter().find(|job| job.name == old.name) {
                None => conflicts.push(format!("run {} is no longer there", old.name)),
                Some(job) => {
                    let changes = old.config.changes_of_the_outcome(&job.config)?;
                    conflicts.extend(changes.iter().map(|change| format!("run {}: {change}", old.name)));
                }
            }
        }
        let (before, after) = (&self.config.evaluate, &new.config.evaluate);
        if before.linear.is_some() && before.linear != after.linear {
            conflicts.push("evaluate.linear has changed".into());
        }
        if before.knn.is_some() && before.knn != after.knn {
            conflicts.push("evaluate.knn has changed".into());
        }
        Ok(conflicts)
    }
}

fn expand(arm: &ArmConfig, config: &SweepConfig) -> Result<Arm> {
    let refuse = |at: &str, why: String| Error::Config(format!("{at}: {why}"));
    let here = format!("arm `{}`", arm.name);
    let mut tree = config.base.clone();
    apply(&mut tree, &arm.set).map_err(|why| refuse(&format!("{here}: set"), why))?;
    let seed = Mapping::from_iter([("seed".into(), config.seeds[0].into())]);
    let build = |values: &Mapping, at: &str| -> Result<VisionConfig> {
        let mut tree = tree.clone();
        for set in [values, &seed] {
            apply(&mut tree, set).map_err(|why| refuse(at, why))?;
        }
        let config: VisionConfig = from_tree(tree, at)?;
        config.validate().map_err(|e| refuse(at, e.to_string()))?;
        Ok(config)
    };
    let mut combinations = vec![Mapping::new()];
    for (key, values) in arm.choices() {
        let with = |before: &Mapping, value: &Value| {
            let mut longer = before.clone();
            longer.insert(key.into(), value.clone());
            longer
        };
        combinations = combinations.iter().flat_map(|c| values.iter().map(move |value| with(c, value))).collect();
    }
    let paths: Vec<&str> = arm.choices().map(|(path, _)| path).collect();
    let mut settings = Vec::new();
    for values in combinations {
        let name = if values.is_empty() { "-".to_string() } else { setting_name(&paths, &values) };
        let at = if values.is_empty() { here.clone() } else { format!("{here}, setting {name}") };
        settings.push(Setting { name, config: build(&values, &at)?, values });
    }
    // Where the grid has all values of a key that must be given, the arm is no run without it.
    let plain = build(&Mapping::new(), &here).ok();
    let default = settings.iter().position(|s| !arm.grid.is_empty() && Some(&s.config) == plain.as_ref());
    Ok(Arm { name: arm.name.clone(), settings, default })
}

/// The last part of each key path, or as much as tells it from the others, with the value; safe as a file's name.
fn setting_name(paths: &[&str], values: &Mapping) -> String {
    let short = |path: &str| -> String {
        let parts: Vec<&str> = path.split('.').collect();
        let suffix = |n: usize| parts[parts.len() - n..].join(".");
        let is_unique = |end: &str| {
            let shares = |p: &&&str| **p == end || p.ends_with(&format!(".{end}"));
            paths.iter().filter(shares).count() == 1
        };
        (1..=parts.len()).map(suffix).find(|end| is_unique(end)).unwrap_or_else(|| path.to_string())
    };
    let part = |(key, value): (&Value, &Value)| {
        let key = short(key.as_str().unwrap_or_default());
        match value {
            Value::Number(n) => format!("{key}{n}"),
            Value::Bool(b) => format!("{key}_{b}"),
            other => format!("{key}_{}", other.as_str().unwrap_or_default()),
        }
    };
    let text = values.iter().map(part).collect::<Vec<_>>().join("-");
    text.chars().map(|c| if c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-') { c } else { '_' }).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const BASE: &str = "data: {kind: synthetic}\nmodel: {encoder: {kind: resnet18}}\noptim: {kind: adam, lr: 1.0e-3}\n\
                        train: {epochs: 1, batch_size: 16}\nloss: {kind: infonce, temperature: 0.3}\n";

    /// A sweep over a small base.
    pub fn sweep(text: &str) -> Result<Sweep> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("base.yaml"), BASE).unwrap();
        let path = folder.path().join("s.yaml");
        std::fs::write(&path, text).unwrap();
        Sweep::load(&path)
    }

    const TWO: &str = "base: base.yaml
set: {train.epochs: 3}
seeds: [4, 1]
baseline: plain
arms:
- {name: plain}
- name: weince
  set: {loss.kind: weince, loss.gate.margin: 2}
  grid: {loss.gate.margin: [0, 2.0], loss.beta.kind: [slope, hill], optim.kind: [adam]}
";

    #[test]
    fn every_combination_with_every_seed_is_a_run() {
        let sweep = sweep(TWO).unwrap();
        let names: Vec<String> = sweep.jobs().into_iter().map(|job| job.name).collect();
        assert_eq!(names.len(), 2 + 8);
        assert_eq!(names[..3], ["plain-seed4", "plain-seed1", "weince-margin0-beta.kind_slope-optim.kind_adam-seed4"]);
        assert_eq!(names[9], "weince-margin2.0-beta.kind_hill-optim.kind_adam-seed1");
        let jobs = sweep.jobs();
        assert!(jobs.iter().all(|job| job.config.train.epochs == 3 && (job.config.seed == job.seed)));
        // An arm's own value is its default, also where a grid has it.
        assert_eq!((sweep.arms[1].default, sweep.arms[0].default), (Some(2), None));
        assert!(serde_yaml::to_string(&jobs[9].config).unwrap().contains("temperature: 0.3"), "the base's value stays");
    }

    #[test]
    fn a_resolved_sweep_is_the_same_sweep() {
        let made = sweep(TWO).unwrap();
        let again = sweep(&serde_yaml::to_string(&made.config).unwrap()).unwrap();
        assert_eq!(again.config, made.config);
        assert!(made.conflicts(&again).unwrap().is_empty());
        let more = TWO.replace("[4, 1]", "[4, 1, 9]").replace("[slope, hill]", "[slope, hill, fixed]");
        assert!(
            made.conflicts(&sweep(&(more + "- {name: third, set: {loss.temperature: 1}}\n")).unwrap())
                .unwrap()
                .is_empty()
        );
        let conflicts = |text: &str| made.conflicts(&sweep(text).unwrap()).unwrap().join("; ");
        assert!(conflicts(&TWO.replace("[4, 1]", "[4]")).contains("run plain-seed1 is no longer there"));
        assert!(
            conflicts(&TWO.replace("epochs: 3", "epochs: 4")).contains("plain-seed4: train.epochs was 3 and is now 4")
        );
        let e = conflicts(&(TWO.to_string() + "evaluate: {linear: {seeds: [1]}, knn: {}}\n"));
        assert_eq!(e, "evaluate.linear has changed");
    }

    #[test]
    fn what_cannot_run_is_refused_before_the_first_run() {
        let refused = |from: &str, to: &str, expected: &str| {
            assert!(TWO.contains(from), "{from}");
            let e = sweep(&TWO.replace(from, to)).unwrap_err();
            assert!(e.exit_code() == 2 && e.to_string().contains(expected) && e.to_string().contains("s.yaml"), "{e}");
        };
        refused("seeds: [4, 1]", "seeds: [4, 4]", "4 is there twice");
        refused("seeds: [4, 1]", "seeds: []", "at least one seed");
        refused("seeds: [4, 1]", "sedes: [4]", "did you mean `seeds`?");
        refused("name: weince", "name: plain", "two have the name `plain`");
        refused("name: weince", "name: a/b", "`a/b`");
        refused("baseline: plain", "baseline: plane", "no arm is called `plane`; there are plain, weince");
        refused("loss.gate.margin: 2}", "loss.gate.margn: 2}", "did you mean `margin`?");
        refused("loss.gate.margin: 2}", "seed: 2}", "the seed of a run is one of the sweep's `seeds`");
        refused("[0, 2.0]", "[0, 0]", "is there twice");
        refused("[0, 2.0]", "[]", "one or more values");
        refused("[0, 2.0]", "0", "one or more values");
        refused("[0, 2.0]", "[{a: 1}]", "expected numbers, names");
        refused("[0, 2.0]", "[.nan]", "setting margin.nan-");
        refused("{name: plain}", "{name: plain, set: {loss.kind: weince, loss.gate.margin: 0}}", "are the same");
        refused("set: {train.epochs: 3}", "set: {train.epochs: 0}", "train.epochs");
        refused("set: {train.epochs: 3}", "set: {train..epochs: 0}", "empty key");
        refused("baseline: plain", "baseline: plain\nevaluate: {}", "expected `linear`, `knn` or both");
        refused("baseline: plain", "baseline: plain\nevaluate: {knn: {validation: 0}}", "choose from by validation");
        refused("baseline: plain", "baseline: plain\nevaluate: {knn: {ks: [1]}}", "unknown field `ks`");
        refused("baseline: plain", "baseline: plain\nevaluate: {linear: {l2: [0]}}", "`l2`");
        refused("baseline: plain", "baseline: plain\nevaluate: {linear: {protocol: adm}}", "did you mean `adam`?");
        refused("baseline: plain", "baseline: plain\nevaluate: {linear: {seeds: [2, 2]}}", "evaluate.linear.seeds");
        let e = sweep(&TWO.replace("base.yaml", "none.yaml")).unwrap_err().to_string();
        assert!(e.contains("none.yaml: cannot read the configuration"), "{e}");
        let long = format!("[{}]", "x".repeat(200));
        refused("[slope, hill]", &long, "unknown variant");
    }
}
