//! Runs of `pretrain-vision` as its user starts them: what they leave, that they repeat and resume to the bit, and what
//! bad input gets.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use weince::report::metrics::{self, Split};

/// A run of 2 epochs of 6 steps on synthetic images, a second of work.
const TINY: &str = "
data: {kind: synthetic, train: 100, test: 40, size: 8}
augment: {size: 8}
model:
  encoder: {kind: resnet18, stem: small, width: 4}
  projector: {dim: 16}
loss: {kind: weince, tail: {min_points: 10}}
optim: {kind: adam, lr: 1.0e-3}
train: {epochs: 2, batch_size: 16, log_every: 1}
";

/// A folder of its own with the tiny configuration in it.
struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tiny.yaml"), TINY).unwrap();
        Desk { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, run: &str, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pretrain-vision"));
        command.arg("--config").arg(self.path("tiny.yaml")).arg("--run-dir").arg(self.path(run));
        command.args(["--device", "cpu"]).args(more);
        // Several runs share the processor in the tests; one thread each is faster than many that wait for one another.
        command.env("OMP_NUM_THREADS", "1").current_dir(self.folder.path());
        command
    }

    fn run(&self, run: &str, more: &[&str]) -> Output {
        self.command(run, more).output().unwrap()
    }

    fn must_run(&self, run: &str, more: &[&str]) -> Output {
        let out = self.run(run, more);
        assert!(out.status.success(), "{more:?}: {}", stderr(&out));
        out
    }

    fn bytes(&self, run: &str, file: &str) -> Vec<u8> {
        let path = self.path(run).join("checkpoints").join(file);
        std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// The newest checkpoint, which `LAST` names.
    fn last(&self, run: &str) -> PathBuf {
        let name = String::from_utf8(self.bytes(run, "LAST")).unwrap();
        self.path(run).join("checkpoints").join(name.trim())
    }

    fn state(&self, run: &str) -> Vec<u8> {
        std::fs::read(self.last(run)).unwrap()
    }

    /// The named train values of a run by step, which must have no gap and no repeat.
    fn series(&self, run: &str, name: &str) -> Vec<(u64, f64)> {
        metrics::read(&self.path(run).join("metrics.jsonl")).unwrap().series(Split::Train, name)
    }
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

fn code(out: &Output) -> Option<i32> {
    out.status.code()
}

#[test]
fn every_smoke_configuration_runs_and_leaves_a_whole_folder() {
    let desk = Desk::new();
    let mut seen = 0;
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/smoke")).unwrap() {
        let config = entry.unwrap().path();
        let name = config.file_stem().unwrap().to_string_lossy().into_owned();
        let out = Command::new(env!("CARGO_BIN_EXE_pretrain-vision"))
            .args(["--device", "cpu", "--config"])
            .arg(&config)
            .arg("--run-dir")
            .arg(desk.path(&name))
            .output()
            .unwrap();
        assert!(out.status.success(), "{name}: {}", stderr(&out));
        for file in ["encoder.safetensors", "encoder.pt", "projector.safetensors", "projector.pt", "step-000000016.pt", "LAST"] {
            assert!(!desk.bytes(&name, file).is_empty());
        }
        for file in ["config.resolved.yaml", "environment.json", "metrics.jsonl", "report/views.png"] {
            assert!(desk.path(&name).join(file).metadata().unwrap().len() > 0, "{name}: {file}");
        }
        assert_eq!(std::fs::read_dir(desk.path(&name).join("tb")).unwrap().count(), 1);
        let losses = desk.series(&name, "loss");
        assert_eq!(losses.iter().map(|(step, _)| *step).collect::<Vec<_>>(), [2, 4, 6, 8, 10, 12, 14, 16], "{name}");
        let lambda = desk.series(&name, "lambda_mean");
        assert_eq!(lambda.is_empty(), name.contains("infonce"), "{name}");
        assert!(lambda.iter().all(|(_, l)| (0.0..=1.0).contains(l)), "{name}: {lambda:?}");
        seen += 1;
    }
    assert!(seen >= 5, "{seen} configurations");
}

#[test]
fn loader_threads_change_no_byte_and_the_seed_changes_all() {
    let desk = Desk::new();
    desk.must_run("one", &["--set", "data.threads=1"]);
    desk.must_run("two", &["--set", "data.threads=2"]);
    desk.must_run("other", &["--set", "seed=1"]);
    for file in ["encoder.safetensors", "encoder.pt", "projector.safetensors", "step-000000012.pt"] {
        assert!(desk.bytes("one", file) == desk.bytes("two", file), "{file} differs between 1 and 2 threads");
        assert!(desk.bytes("one", file) != desk.bytes("other", file), "{file} does not depend on the seed");
    }
}

#[test]
fn a_longer_run_continues_a_shorter_one_to_the_bit() {
    let desk = Desk::new();
    for kind in ["loss.kind=weince", "optim={kind: lars, lr: 0.3}", "optim={kind: sgd, lr: 0.1, momentum: 0.9}"] {
        for run in ["whole", "parts"] {
            let _ = std::fs::remove_dir_all(desk.path(run));
        }
        desk.must_run("whole", &["--set", kind, "--set", "train.epochs=3"]);
        desk.must_run("parts", &["--set", kind, "--set", "train.epochs=1"]);
        let short = desk.bytes("parts", "encoder.safetensors");
        desk.must_run("parts", &["--set", kind, "--set", "train.epochs=3", "--resume"]);
        assert!(short != desk.bytes("parts", "encoder.safetensors"), "{kind}: resuming did nothing");
        for file in ["encoder.safetensors", "step-000000018.pt"] {
            assert!(desk.bytes("whole", file) == desk.bytes("parts", file), "{kind}: {file}");
        }
        for name in ["loss", "lr", "grad_norm", "lambda_mean"] {
            assert_eq!(desk.series("whole", name), desk.series("parts", name), "{kind}: {name}");
        }
        assert_eq!(desk.series("parts", "loss").len(), 18);
    }
}

#[test]
fn the_reference_losss_running_beta_is_part_of_the_state() {
    let desk = Desk::new();
    let kind = "loss={kind: reference, policy: weibit, auto_weib_beta: true, min_tail_points: 20, r2_min: 0.0}";
    desk.must_run("whole", &["--set", kind, "--set", "train.epochs=2"]);
    desk.must_run("parts", &["--set", kind, "--set", "train.epochs=1"]);
    desk.must_run("parts", &["--set", kind, "--set", "train.epochs=2", "--resume"]);
    assert!(desk.state("whole") == desk.state("parts"));
    let beta = desk.series("parts", "batch_beta");
    assert!(beta.windows(2).any(|w| w[0].1 != w[1].1), "the running beta never moved: {beta:?}");
}

#[test]
fn an_interrupted_run_saves_exits_with_130_and_continues_to_the_same_bytes() {
    let desk = Desk::new();
    let long = ["--set", "train.epochs=20"];
    desk.must_run("whole", &long);
    for signal in ["-INT", "-TERM"] {
        let _ = std::fs::remove_dir_all(desk.path("parts"));
        let mut child = desk.command("parts", &long).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let metrics = desk.path("parts").join("metrics.jsonl");
        let deadline = Instant::now() + Duration::from_secs(120);
        while std::fs::read_to_string(&metrics).map_or(0, |text| text.lines().count()) < 4 {
            assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "the run did not get to step 4");
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let out = child.wait_with_output().unwrap();
        assert_eq!(code(&out), Some(130), "{}", stderr(&out));
        assert!(stderr(&out).contains("--resume"), "{}", stderr(&out));
        let stopped_at = desk.series("parts", "loss").len();
        assert!((4..120).contains(&stopped_at), "{stopped_at}");
        desk.must_run("parts", &["--set", "train.epochs=20", "--resume"]);
        assert!(
            desk.state("whole") == desk.state("parts"),
            "stopped at {stopped_at}"
        );
        assert_eq!(desk.series("whole", "loss"), desk.series("parts", "loss"));
    }
}

#[test]
fn non_finite_values_stop_the_run_and_keep_the_last_good_state() {
    let desk = Desk::new();
    let wild = ["--set", "optim={kind: sgd, lr: 1.0e38}"];
    let out = desk.run("wild", &wild);
    let text = stderr(&out);
    assert_eq!(code(&out), Some(3), "{text}");
    assert!(text.contains("error: ") && text.contains("step ") && text.contains("images are ["), "{text}");
    assert!(text.contains("not finite") || text.contains("infinite"), "{text}");
    assert!(
        !desk.path("wild").join("checkpoints/encoder.safetensors").exists(),
        "broken weights were written as trained"
    );
    let state = weince::checkpoint::tensors(&desk.last("wild")).unwrap();
    assert!(state.iter().any(|(name, _)| name == "model.conv1.weight"));
    for (name, tensor) in state {
        assert_eq!(tensor.isfinite().all().int64_value(&[]), 1, "{name} in the kept state is not finite");
    }
}

#[test]
fn what_a_run_may_not_change_is_refused_with_both_values() {
    let desk = Desk::new();
    desk.must_run("run", &["--set", "train.epochs=1"]);
    let before = desk.state("run");
    let out = desk.run("run", &["--resume", "--set", "train.batch_size=20", "--set", "loss.temperature=0.1"]);
    let text = stderr(&out);
    assert_eq!(code(&out), Some(2), "{text}");
    assert!(text.contains("train.batch_size was 16 and is now 20"), "{text}");
    assert!(text.contains("loss.temperature was 0.5 and is now 0.1"), "{text}");
    assert!(before == desk.state("run"));
}

#[test]
fn a_damaged_newest_checkpoint_is_named_and_the_one_before_it_used() {
    let desk = Desk::new();
    let more = ["--set", "train.epochs=3"];
    desk.must_run("whole", &more);
    desk.must_run("run", &["--set", "checkpoint.every_steps=4", "--set", "checkpoint.keep=3"]);
    let newest = desk.path("run/checkpoints/step-000000012.pt");
    let good = std::fs::read(&newest).unwrap();
    let damage = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        std::fs::write(&newest, &bytes).unwrap();
    };
    damage(good.len() / 2);
    let out = desk.must_run("run", &["--set", "train.epochs=3", "--resume"]);
    let text = stderr(&out);
    assert!(text.contains("step-000000012.pt") && text.contains("damaged") && text.contains("after step 8"), "{text}");
    assert!(desk.bytes("whole", "encoder.safetensors") == desk.bytes("run", "encoder.safetensors"));
    assert_eq!(desk.series("whole", "loss"), desk.series("run", "loss"));
    // None of them usable: the run fails, and what is there stays.
    let files: Vec<PathBuf> = (0..=18).map(|n| desk.path(&format!("run/checkpoints/step-{n:09}.pt"))).collect();
    let there: Vec<&PathBuf> = files.iter().filter(|f| f.exists()).collect();
    assert_eq!(there.len(), 2, "{there:?}");
    there.iter().for_each(|file| std::fs::write(file, &good[..100]).unwrap());
    let out = desk.run("run", &["--set", "train.epochs=4", "--resume"]);
    assert_eq!(code(&out), Some(1), "{}", stderr(&out));
    assert!(there.iter().all(|file| std::fs::read(file).unwrap() == good[..100]));
    there.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    let out = desk.run("run", &["--set", "train.epochs=4", "--resume"]);
    assert_eq!(code(&out), Some(2));
    assert!(stderr(&out).contains("measurements but no checkpoint"), "{}", stderr(&out));
}

#[test]
fn bad_input_gets_one_paragraph_the_right_code_and_no_run_folder() {
    let desk = Desk::new();
    std::fs::write(desk.path("file"), "x").unwrap();
    let idx = format!("data={{kind: idx, root: {}}}", desk.path("nowhere").display());
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["--set", "train.bach_size=8"], 2, &["train", "`bach_size`", "did you mean `batch_size`?"]),
        (&["--set", "train.batch_size=many"], 2, &["train.batch_size", "many"]),
        (&["--set", "loss.kind=weincee"], 2, &["loss", "did you mean `weince`?"]),
        (&["--set", "loss.temperature=0"], 2, &["loss.temperature", "0"]),
        (&["--set", "train.batch_size=101"], 2, &["101", "100"]),
        (&["--set", "train.batch_size=1"], 2, &["train.batch_size", "negatives"]),
        (&["--set", "train.epochs=0"], 2, &["train.epochs"]),
        (&["--set", "data.threads=0"], 2, &["threads"]),
        (&["--set", &idx], 1, &["nowhere", "data.root", "fetch_data.py"]),
        (&["--device", "tpu"], 2, &["tpu"]),
        (&["--resume"], 2, &["config.resolved.yaml"]),
    ];
    for (arguments, expected, parts) in cases {
        // --device may be given once only.
        let mut command = Command::new(env!("CARGO_BIN_EXE_pretrain-vision"));
        command.arg("--config").arg(desk.path("tiny.yaml")).arg("--run-dir").arg(desk.path("run")).args(*arguments);
        let out = command.output().unwrap();
        let text = stderr(&out);
        assert_eq!(code(&out), Some(*expected), "{arguments:?}: {text}");
        assert!(text.starts_with("error: ") && text.trim_end().lines().count() == 1, "{arguments:?}: {text}");
        assert!(!text.contains("panicked"), "{text}");
        for part in *parts {
            assert!(text.contains(part), "{arguments:?}: `{part}` is not in: {text}");
        }
        assert!(!desk.path("run").exists(), "{arguments:?} made the run folder");
    }
    let out = desk.run("file/run", &[]);
    assert_eq!(code(&out), Some(1), "{}", stderr(&out));
    assert_eq!(std::fs::read_to_string(desk.path("file")).unwrap(), "x");
    let out = Command::new(env!("CARGO_BIN_EXE_pretrain-vision")).args(["--config", "none.yaml"]).output().unwrap();
    assert_eq!(code(&out), Some(2));
    assert!(stderr(&out).contains("none.yaml"));
}

#[test]
fn an_existing_folder_is_left_alone() {
    let desk = Desk::new();
    std::fs::create_dir(desk.path("run")).unwrap();
    std::fs::write(desk.path("run").join("notes.txt"), "mine").unwrap();
    let out = desk.run("run", &[]);
    assert_eq!(code(&out), Some(2));
    assert!(stderr(&out).contains("--resume"), "{}", stderr(&out));
    assert_eq!(std::fs::read_dir(desk.path("run")).unwrap().count(), 1);
}

#[test]
fn one_process_trains_in_a_folder_at_a_time() {
    let desk = Desk::new();
    desk.must_run("run", &[]);
    let folder = weince::run::RunFolder::open(&desk.path("run")).unwrap();
    let before = std::fs::read(folder.metrics()).unwrap();
    let lock = folder.lock().unwrap();
    let out = desk.run("run", &["--resume", "--set", "train.epochs=3"]);
    assert_eq!(code(&out), Some(2));
    assert!(stderr(&out).contains("another process is training"), "{}", stderr(&out));
    assert_eq!(std::fs::read(folder.metrics()).unwrap(), before);
    drop(lock);
    desk.must_run("run", &["--resume", "--set", "train.epochs=3"]);
    assert_eq!(desk.series("run", "loss").len(), 18);
}

#[test]
fn every_start_is_recorded_and_a_run_cannot_shrink() {
    let desk = Desk::new();
    desk.must_run("run", &[]);
    let config = || std::fs::read_to_string(desk.path("run/config.resolved.yaml")).unwrap();
    let before = config();
    let out = desk.run("run", &["--resume", "--set", "train.epochs=1"]);
    assert_eq!(code(&out), Some(2));
    let message = stderr(&out);
    assert!(message.contains("1 are 6 steps") && message.contains("already done 12") && message.contains("at least 2"));
    assert_eq!(config(), before);
    desk.must_run("run", &["--resume", "--set", "train.epochs=3"]);
    desk.must_run("run", &["--resume", "--set", "train.epochs=4"]);
    let text = std::fs::read(desk.path("run/environment.json")).unwrap();
    let environment: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let epochs = |record: &serde_json::Value| record["command"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(epochs(&environment), "train.epochs=4");
    let earlier = environment["earlier"].as_array().unwrap();
    assert_eq!((earlier.len(), epochs(&earlier[1])), (2, "train.epochs=3".into()));
}

#[test]
#[cfg(unix)]
fn a_name_that_is_no_text_is_a_name() {
    use std::os::unix::ffi::OsStrExt;
    let desk = Desk::new();
    let name = std::ffi::OsStr::from_bytes(b"z_\xff");
    let mut command = desk.command("unused", &["--set", "train.epochs=1"]);
    let out = command.arg("--dry-run").output().unwrap();
    assert!(out.status.success());
    let mut command = Command::new(env!("CARGO_BIN_EXE_pretrain-vision"));
    command.arg("--config").arg(desk.path("tiny.yaml")).arg("--run-dir").arg(desk.folder.path().join(name));
    let out = command.args(["--device", "cpu", "--set", "train.epochs=1"]).output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
}

#[test]
fn results_belong_to_the_weights_they_are_of() {
    let desk = Desk::new();
    desk.must_run("run", &["--set", "train.epochs=1"]);
    desk.must_run("other", &["--set", "train.epochs=1", "--set", "seed=5"]);
    let knn = |more: &[&std::ffi::OsStr]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_eval-knn"));
        let out = command.arg("--run").arg(desk.path("run")).args(more).args(["--device", "cpu"]).output().unwrap();
        assert!(out.status.success(), "{}", stderr(&out));
        out
    };
    let report = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_report"));
        let out = command.arg(desk.path("run")).arg("--json").output().unwrap();
        let value: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        (value["groups"][0]["figures"]["recall_at_1"].clone(), stderr(&out))
    };
    let file = desk.path("run/results/knn.json");
    knn(&[]);
    let own = std::fs::read(&file).unwrap();
    // Another encoder's figures are not the run's.
    let foreign = desk.path("other/checkpoints/encoder.safetensors");
    let out = knn(&["--checkpoint".as_ref(), foreign.as_os_str()]);
    assert!(stderr(&out).contains("--out FILE keeps it"), "{}", stderr(&out));
    assert_eq!(std::fs::read(&file).unwrap(), own);
    assert!(report().0.is_object());
    // The file that PyTorch reads gives the same figures as the safetensors file.
    let (weights, again) = (desk.path("run/checkpoints/encoder.pt"), desk.path("again.json"));
    knn(&["--checkpoint".as_ref(), weights.as_os_str(), "--out".as_ref(), again.as_os_str()]);
    let recall = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap()["recall_at_1"].clone();
    assert_eq!(recall(&std::fs::read(&again).unwrap()), recall(&own));
    // Neither are those of its weights before it went on.
    desk.must_run("run", &["--resume", "--set", "train.epochs=2"]);
    let (figure, said) = report();
    assert!(figure.is_null() && said.contains("eval-knn are of other weights"), "{figure} {said}");
    knn(&[]);
    assert!(report().0.is_object());
}

#[test]
fn a_dry_run_prints_the_resolved_run_and_writes_nothing() {
    let desk = Desk::new();
    let out = desk.must_run("run", &["--dry-run"]);
    let text = String::from_utf8(out.stdout).unwrap();
    for part in ["kappa_rho: 10.0", "# parameters: ", "# steps: 12 (2 epochs of 6)", "# memory: about "] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    // What it prints is a configuration again.
    weince::config::parse::<weince::config::vision::VisionConfig>(&text, "dry run", &[]).unwrap();
    assert!(!desk.path("run").exists());
}
