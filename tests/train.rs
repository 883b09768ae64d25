//! Runs of `pretrain-vision` as its user starts them: what they leave, that they repeat and resume to the bit, and what
//! bad input gets.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use weince::config::run::RunConfig;
use weince::config::vision::VisionConfig;
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
        for file in
            ["encoder.safetensors", "encoder.pt", "projector.safetensors", "projector.pt", "step-000000016.pt", "LAST"]
        {
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
    assert!(seen >= 6, "{seen} configurations");
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
        assert!(desk.state("whole") == desk.state("parts"), "stopped at {stopped_at}");
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

/// A copy of a run as it was when its process died right after it had saved the state of `step`.
fn as_if_killed_after(desk: &Desk, whole: &str, copy: &str, step: u64) {
    let (from, to) = (desk.path(whole), desk.path(copy));
    assert!(Command::new("cp").arg("-r").arg(&from).arg(&to).status().unwrap().success());
    let checkpoints = to.join("checkpoints");
    for entry in std::fs::read_dir(&checkpoints).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        let number = name.strip_prefix("step-").map(|rest| rest[..9].parse::<u64>().unwrap());
        if number.is_none_or(|n| n > step) {
            std::fs::remove_file(path).unwrap();
        }
    }
    std::fs::write(checkpoints.join("LAST"), format!("step-{step:09}.pt\n")).unwrap();
    std::fs::write(checkpoints.join(format!(".step-{:09}.pt.unfinished", step + 1)), "half").unwrap();
}

#[test]
fn a_run_that_died_anywhere_ends_in_the_same_bytes() {
    let desk = Desk::new();
    let settings = ["--set", "checkpoint={every_steps: 1, keep: 100}"];
    for kind in ["precision=fp32", "precision=bf16"] {
        let more = [&settings[..], &["--set", kind]].concat();
        let whole = format!("whole-{kind}");
        desk.must_run(&whole, &more);
        // Before the first step, within the first epoch, at its edge, after it, at the end.
        for step in [0, 2, 6, 7, 12] {
            let copy = format!("{kind}-{step}");
            as_if_killed_after(&desk, &whole, &copy, step);
            desk.must_run(&copy, &[&more[..], &["--resume"]].concat());
            assert!(desk.state(&whole) == desk.state(&copy), "{kind}, step {step}");
            for file in ["encoder.safetensors", "encoder.pt", "projector.pt"] {
                assert!(desk.bytes(&whole, file) == desk.bytes(&copy, file), "{kind}, step {step}: {file}");
            }
            for name in ["loss", "lr", "grad_norm", "lambda_mean"] {
                assert_eq!(desk.series(&whole, name), desk.series(&copy, name), "{kind}, step {step}: {name}");
            }
            let names = std::fs::read_dir(desk.path(&copy).join("checkpoints")).unwrap();
            let hidden = names.filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with('.'));
            assert_eq!(hidden.count(), 0, "{kind}, step {step}: unfinished files are left");
        }
    }
}

#[test]
fn the_newest_few_checkpoints_are_kept_and_the_best_one() {
    let desk = Desk::new();
    let more = [
        "--set",
        "train.epochs=4",
        "--set",
        "eval.knn_every=1",
        "--set",
        "checkpoint={keep: 2, best_by: knn_accuracy}",
    ];
    desk.must_run("run", &more);
    let mut names: Vec<String> = std::fs::read_dir(desk.path("run/checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("step-"))
        .collect();
    names.sort();
    assert_eq!(names, ["step-000000018.pt", "step-000000024.pt"]);
    let accuracy = metrics::read(&desk.path("run/metrics.jsonl")).unwrap().series(Split::Eval, "knn_accuracy");
    let best =
        accuracy.iter().fold((0, -1.0), |best, &(step, value)| if value > best.1 { (step, value) } else { best });
    let state = weince::checkpoint::torch_file::load(&desk.path("run/checkpoints/best.pt")).unwrap();
    assert_eq!(state.get("step").unwrap().as_u64(), Some(best.0), "{accuracy:?}");
    assert_eq!(state.get("best").unwrap().get("value").unwrap().as_f64(), Some(best.1));
    let out = desk.run("other", &["--set", "checkpoint.best_by=knn_accuracy"]);
    assert_eq!(code(&out), Some(2));
    assert!(stderr(&out).contains("eval.knn_every"), "{}", stderr(&out));
}

#[test]
fn a_run_killed_while_it_began_begins_again() {
    let desk = Desk::new();
    desk.must_run("whole", &[]);
    // What is there when the process dies in the first milliseconds: the lock alone, or a configuration without state.
    std::fs::create_dir(desk.path("lock")).unwrap();
    std::fs::write(desk.path("lock/.lock"), "").unwrap();
    std::fs::create_dir(desk.path("empty")).unwrap();
    desk.must_run("config", &[]);
    for gone in ["metrics.jsonl", "checkpoints", "tb", "report/views.png"] {
        let path = desk.path("config").join(gone);
        let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path));
    }
    for run in ["lock", "empty", "config"] {
        let out = desk.must_run(run, &["--resume"]);
        assert!(stderr(&out).contains("before its first checkpoint"), "{}", stderr(&out));
        assert!(desk.state("whole") == desk.state(run), "{run}");
        assert!(desk.path(run).join("report/views.png").exists());
    }
}

#[test]
fn a_torchscript_backbone_trains_resumes_and_goes_back() {
    let desk = Desk::new();
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/script/net.pt");
    let model =
        format!("model={{backbone: {{kind: torchscript, path: {}}}, projector: {{dim: 16}}}}", module.display());
    let more = ["--set", &model, "--set", "checkpoint={every_steps: 1, keep: 100}"];
    let dry = desk.must_run("dry", &[&more[..], &["--dry-run"]].concat());
    assert!(String::from_utf8_lossy(&dry.stdout).contains("# encoder: torchscript (4 features)"));
    desk.must_run("whole", &more);
    as_if_killed_after(&desk, "whole", "parts", 7);
    desk.must_run("parts", &[&more[..], &["--resume"]].concat());
    assert!(desk.state("whole") == desk.state("parts"));
    // Its dropout, its buffers and its parameters took part; what is frozen did not.
    let first = desk.path("whole/checkpoints/step-000000000.pt");
    let tensors = |path: &Path| weince::checkpoint::tensors(path).unwrap();
    for ((name, a), (_, b)) in tensors(&first).iter().zip(&tensors(&desk.last("whole"))) {
        if name.starts_with("model.") {
            let still = ["model.shift", "model.scale"].contains(&name.as_str());
            assert_eq!(a.equal(b), still, "{name}");
        }
    }
    // The same code with the new weights, from a checkpoint and from the encoder alone.
    let convert = |from: &Path, to: &str, script: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_checkpoint"));
        command.arg("convert").arg(from).arg(desk.path(to)).arg("--script").arg(script).output().unwrap()
    };
    for (from, to) in [(desk.last("whole"), "a.pt"), (desk.path("whole/checkpoints/encoder.safetensors"), "b.pt")] {
        let out = convert(&from, to, &module);
        assert!(out.status.success(), "{}", stderr(&out));
        let script = weince::torch::Script::load(&desk.path(to)).unwrap();
        let expected: std::collections::BTreeMap<String, tch::Tensor> =
            tensors(&desk.path("whole/checkpoints/encoder.pt")).into_iter().collect();
        let members = script.members().unwrap();
        assert_eq!(members.len(), expected.len());
        members.iter().for_each(|m| assert!(m.tensor.equal(&expected[&m.name]), "{}", m.name));
    }
    let out = convert(&desk.path("a.pt"), "c.pt", &module);
    assert!(out.status.success(), "{}", stderr(&out));
    let out = convert(&desk.path("whole/checkpoints/projector.pt"), "d.pt", &module);
    assert_eq!(code(&out), Some(1));
    assert!(stderr(&out).contains("not the weights of"), "{}", stderr(&out));
    assert!(!desk.path("d.pt").exists() && !desk.path(".d.pt.unfinished").exists());
    let out = convert(&desk.last("whole"), "e.safetensors", &module);
    assert_eq!(code(&out), Some(2), "{}", stderr(&out));
    // It can be evaluated as any run.
    let mut command = Command::new(env!("CARGO_BIN_EXE_eval-knn"));
    let out = command.arg("--run").arg(desk.path("whole")).args(["--device", "cpu"]).output().unwrap();
    assert!(out.status.success(), "{}", stderr(&out));
}

#[test]
fn a_run_that_goes_on_is_evaluated_by_its_newest_state() {
    let desk = Desk::new();
    let settings = ["--set", "checkpoint={every_steps: 1, keep: 100}"];
    desk.must_run("run", &settings);
    desk.must_run("longer", &[&settings[..], &["--set", "train.epochs=4"]].concat());
    // The run went on and died after step 14: the encoder of step 12 is no longer its encoder.
    let folder = weince::run::RunFolder::open(&desk.path("run")).unwrap();
    let copy = |file: &str| {
        let from = desk.path("longer/checkpoints").join(file);
        std::fs::copy(from, desk.path("run/checkpoints").join(file)).unwrap();
    };
    copy("step-000000014.pt");
    std::fs::write(desk.path("run/checkpoints/LAST"), "step-000000014.pt\n").unwrap();
    let mut child = desk
        .command("run", &[&settings[..], &["--set", "train.epochs=400", "--resume"]].concat())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while folder.encoder().exists() {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "the old encoder stays");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let weights = folder.weights().unwrap().unwrap();
    assert!(weights.file_name().unwrap().to_string_lossy().starts_with("step-0000000"), "{weights:?}");
}

#[test]
fn a_state_says_itself_which_run_it_is_of() {
    let desk = Desk::new();
    desk.must_run("run", &["--set", "train.epochs=1"]);
    // Without the folder's own configuration the checkpoint's is asked.
    std::fs::remove_file(desk.path("run/config.resolved.yaml")).unwrap();
    let out = desk.run("run", &["--resume", "--set", "optim.lr=0.5", "--set", "seed=7"]);
    assert_eq!(code(&out), Some(2), "{}", stderr(&out));
    assert!(
        stderr(&out).contains("optim.lr was 0.001 and is now 0.5") && stderr(&out).contains("seed was 0 and is now 7")
    );
    desk.must_run("run", &["--resume", "--set", "data.threads=1", "--set", "train.log_every=3"]);
    desk.must_run("whole", &[]);
    assert!(desk.bytes("whole", "encoder.safetensors") == desk.bytes("run", "encoder.safetensors"));
}

#[test]
fn half_precision_trains_much_the_same_and_says_where_it_cannot() {
    let desk = Desk::new();
    // WEINCE's gate makes two runs of so few samples differ at every step.
    let more = ["--set", "train.epochs=6", "--set", "loss={kind: infonce}"];
    desk.must_run("full", &more);
    desk.must_run("half", &[&more[..], &["--set", "precision=bf16"]].concat());
    let (full, half) = (desk.series("full", "loss"), desk.series("half", "loss"));
    let gaps: Vec<f64> = full.iter().zip(&half).map(|(a, b)| (a.1 - b.1).abs()).collect();
    // bfloat16 has 8 bits: the first losses, of 3.5, differ by a part in 100; later ones as two runs do, which was .04 in the mean of six with
    // AVX2 and with AMX.
    assert!(gaps[0] > 0.0 && gaps[0] < 0.05, "{gaps:?}");
    let mean = |losses: &[(u64, f64)]| losses[30..].iter().map(|l| l.1).sum::<f64>() / 6.0;
    assert!((mean(&full) - mean(&half)).abs() < 0.15, "{} {}", mean(&full), mean(&half));
    // Weights and optimizer stay float32.
    for (name, t) in weince::checkpoint::tensors(&desk.last("half")).unwrap() {
        let counter = name.ends_with("num_batches_tracked") || name.starts_with("rng.");
        assert!(counter || t.kind() == tch::Kind::Float, "{name} is {:?}", t.kind());
    }
    for (setting, part) in
        [("precision=fp16", "bf16"), ("channels_last=true", "CUDA"), ("tf32=true", "CUDA"), ("precision=fp8", "`fp16`")]
    {
        let out = desk.run("none", &["--set", setting]);
        assert_eq!(code(&out), Some(2), "{setting}");
        assert!(stderr(&out).contains(part), "{setting}: {}", stderr(&out));
    }
    let out = desk.run("half", &["--resume", "--set", "train.epochs=7", "--set", "precision=fp32"]);
    assert_eq!(code(&out), Some(2));
    assert!(stderr(&out).contains("precision was bf16 and is now fp32"), "{}", stderr(&out));
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

/// Every configuration of a folder, checked as a run would be before it reads images.
#[test]
fn every_shipped_configuration_is_one() {
    let mut encoders = std::collections::BTreeMap::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/vision")).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let config: VisionConfig = weince::config::load(&path, &[]).unwrap();
        config.validate().unwrap();
        weince::loss::Loss::new(&config.loss, weince::loss::Layout::TwoView).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(text.starts_with("# ") && text.contains(&format!("--config configs/vision/{name}.yaml")), "{name}");
        if !name.starts_with("fashion") {
            assert!(text.contains("# Published: ") && text.contains("# Cost"), "{name}");
        }
        let size = config.augment.size.unwrap();
        let key = format!("{:?} at {size}", config.model.encoder);
        encoders.entry(key).or_insert((config.model.encoder, size));
    }
    // The encoders serve views of their size.
    assert_eq!(encoders.len(), 7);
    for (name, (encoder, size)) in encoders {
        let encoder = weince::model::encoder(&encoder, size).unwrap();
        let images = tch::Tensor::zeros([1, 3, size as i64, size as i64], (tch::Kind::Float, tch::Device::Cpu));
        let features = tch::no_grad(|| encoder.forward(&images, false)).unwrap();
        assert_eq!(features.size(), [1, encoder.features()], "{name}");
    }
}

/// A tree of small images of two classes; their sizes differ.
fn photographs(root: &Path) {
    for (part, count) in [("train", 20), ("val", 6)] {
        for class in ["cat", "dog"] {
            let folder = root.join(part).join(class);
            std::fs::create_dir_all(&folder).unwrap();
            for i in 0..count {
                let (h, w) = (9 + i % 4, 8 + i % 5);
                let shade = |x: u32, y: u32| [(x * 20 + i) as u8, (y * 23) as u8, if class == "cat" { 9 } else { 200 }];
                let image = ::image::RgbImage::from_fn(w, h, |x, y| ::image::Rgb(shade(x, y)));
                image.save(folder.join(format!("{i:02}.png"))).unwrap();
            }
        }
    }
}

#[test]
fn a_folder_of_images_trains_alike_with_a_cache_and_is_evaluated() {
    let desk = Desk::new();
    photographs(&desk.path("tree"));
    let set = "data={kind: folder, root: tree, threads: 2}";
    let more = ["--set", set, "--set", "eval.knn_every=1"];
    desk.must_run("plain", &more);
    desk.must_run("cached", &[&more[..], &["--set", "data.cache=cache"]].concat());
    desk.must_run("again", &[&more[..], &["--set", "data.cache=cache"]].concat());
    let encoder = desk.bytes("plain", "encoder.pt");
    assert!(encoder == desk.bytes("cached", "encoder.pt") && encoder == desk.bytes("again", "encoder.pt"));
    assert!(desk.path("cache").read_dir().unwrap().count() >= 2);

    let evaluate = |run: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_eval-knn"));
        command.args(["--json", "--k", "3", "--device", "cpu", "--run"]).arg(desk.path(run));
        let out = command.current_dir(desk.folder.path()).output().unwrap();
        assert!(out.status.success(), "{}", stderr(&out));
        serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap()
    };
    let (plain, cached) = (evaluate("plain"), evaluate("cached"));
    assert_eq!(plain, cached);
    assert_eq!(plain["data"]["images"], "shorter edge 9, central 8 x 8");
    assert_eq!((&plain["counts"]["train"], &plain["counts"]["test"]), (&40.into(), &12.into()));

    // A run's order is of its images: others are refused, and the same ones served again.
    let resume =
        |more: &[&str]| desk.run("plain", &[&["--set", set, "--set", "eval.knn_every=1", "--resume"], more].concat());
    let tree = desk.path("tree/train");
    std::fs::rename(tree.join("cat/03.png"), tree.join("dog/zz.png")).unwrap();
    let out = resume(&[]);
    let text = stderr(&out);
    assert!(
        code(&out) == Some(2) && text.contains("no longer those that this run began with: 40, but of other"),
        "{text}"
    );
    std::fs::rename(tree.join("dog/zz.png"), desk.path("away.png")).unwrap();
    let out = resume(&[]);
    assert!(code(&out) == Some(2) && stderr(&out).contains(": 40 then, 39 now; bring those back"), "{}", stderr(&out));
    std::fs::rename(desk.path("away.png"), tree.join("cat/03.png")).unwrap();
    assert_eq!(code(&resume(&["--set", "data.cache=cache"])), Some(0));
    assert!(encoder == desk.bytes("plain", "encoder.pt"));

    let out = desk.run("unsized", &["--set", set, "--set", "augment={}"]);
    assert!(code(&out) == Some(2) && stderr(&out).contains("augment.size"), "{}", stderr(&out));
}

#[test]
fn a_bad_image_stops_a_run_with_its_name_and_its_work_saved_or_is_left_out_and_listed() {
    let desk = Desk::new();
    photographs(&desk.path("tree"));
    let set = "data={kind: folder, root: tree, threads: 1}";
    let order = weince::data::Sampler::new(40, 16, 0).unwrap().order(0);
    // The image that comes in the second step.
    let index = order[20] as usize;
    let bad = format!("tree/train/{}/{:02}.png", if index < 20 { "cat" } else { "dog" }, index % 20);
    let whole = std::fs::read(desk.path(&bad)).unwrap();
    std::fs::write(desk.path(&bad), &whole[..whole.len() / 2]).unwrap();
    let out = desk.run("run", &["--set", set]);
    let text = stderr(&out);
    assert!(
        code(&out) == Some(1) && text.contains(&bad[5..]) && text.contains("state after step 1 is saved"),
        "{text}"
    );
    assert!(desk.last("run").ends_with("step-000000001.pt"));
    // Mended, it goes on to where a run without damage ends.
    std::fs::write(desk.path(&bad), &whole).unwrap();
    desk.must_run("run", &["--set", set, "--resume"]);
    desk.must_run("clean", &["--set", set]);
    assert!(desk.bytes("run", "encoder.pt") == desk.bytes("clean", "encoder.pt"));

    std::fs::write(desk.path("tree/train/cat/zz.jpg"), "no image").unwrap();
    let out = desk.must_run("skip", &["--set", set, "--set", "data.bad_files=skip"]);
    assert!(stderr(&out).contains("1 of 41 images are left out"), "{}", stderr(&out));
    let list = std::fs::read_to_string(desk.path("skip").join("bad_files.txt")).unwrap();
    assert!(list.contains("train/cat/zz.jpg\tbegins with 6e 6f 20") && list.lines().count() == 1, "{list}");
    assert!(desk.bytes("skip", "encoder.pt") == desk.bytes("clean", "encoder.pt"));
}

#[test]
fn a_run_in_chunks_is_cut_and_continued_like_any_other() {
    let desk = Desk::new();
    let settings = ["--set", "train.chunk=6", "--set", "checkpoint={every_steps: 1, keep: 100}"];
    desk.must_run("whole", &settings);
    for step in [0, 4, 12] {
        let copy = format!("parts-{step}");
        as_if_killed_after(&desk, "whole", &copy, step);
        desk.must_run(&copy, &[&settings[..], &["--resume"]].concat());
        assert!(desk.state("whole") == desk.state(&copy), "step {step}");
        assert_eq!(desk.series("whole", "loss"), desk.series(&copy, "loss"));
    }
    desk.must_run("plain", &[]);
    desk.must_run("one", &["--set", "train.chunk=16"]);
    assert!(desk.bytes("plain", "encoder.safetensors") == desk.bytes("one", "encoder.safetensors"));
    assert!(desk.bytes("plain", "encoder.safetensors") != desk.bytes("whole", "encoder.safetensors"));
    let out = desk.run("whole", &["--resume", "--set", "train.chunk=4"]);
    assert_eq!(code(&out), Some(2), "{}", stderr(&out));
    assert!(stderr(&out).contains("train.chunk was 6 and is now 4"), "{}", stderr(&out));
    let out = desk.run("none", &["--set", "train.chunk=0"]);
    assert_eq!(code(&out), Some(2), "{}", stderr(&out));
    assert!(stderr(&out).contains("train.chunk: expected at least 1"), "{}", stderr(&out));
    // 16 images in chunks of 5 leave one, and its last stage has one value a channel: said before anything is lost.
    let out = desk.run("single", &["--set", "train.chunk=5"]);
    assert_eq!(code(&out), Some(2), "{}", stderr(&out));
    assert!(stderr(&out).contains("chunk 4 of 4 a single one of 16 samples"), "{}", stderr(&out));
    assert!(stderr(&out).contains("With 6 no chunk is a single one"), "{}", stderr(&out));
}

#[test]
fn a_dry_run_counts_a_chunks_activations() {
    let desk = Desk::new();
    let told = |more: &[&str]| {
        let model = "model={encoder: {kind: resnet18, stem: small, width: 16}, projector: {dim: 16}}";
        let sets = [model, "data.train=1024", "train.batch_size=512", "augment.size=32"];
        let sets = sets.into_iter().flat_map(|set| ["--set", set]);
        let out = desk
            .must_run("dry", &["--dry-run"].into_iter().chain(sets).chain(more.iter().copied()).collect::<Vec<_>>());
        let text = String::from_utf8(out.stdout).unwrap();
        text.lines().find(|line| line.starts_with("#   passes, gradients")).unwrap().to_string()
    };
    let mebibytes = |line: &str| line.split_whitespace().find_map(|word| word.parse::<u64>().ok()).unwrap();
    let (whole, parts) = (told(&[]), told(&["--set", "train.chunk=32"]));
    assert!(whole.contains("scaled to the batch)"), "{whole}");
    assert!(parts.contains("scaled to a chunk of 32 images of the batch's 512)"), "{parts}");
    assert!(mebibytes(&whole) > 8 * mebibytes(&parts), "{whole}\n{parts}");
}
