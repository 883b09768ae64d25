//! `run-sweep` as its user starts it: failures, continuing, interruption, and tables from the runs and from `runs.csv` alone.

use rustix::fs::{FlockOperation, flock};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

const BASE: &str = "
data: {kind: synthetic, train: 100, test: 40, size: 8, threads: 1}
augment: {size: 8}
model:
  encoder: {kind: resnet18, stem: small, width: 4}
  projector: {dim: 16}
loss: {kind: infonce}
optim: {kind: adam, lr: 1.0e-3}
train: {epochs: 2, batch_size: 16, log_every: 1}
";

const SWEEP: &str = "
base: base.yaml
seeds: [0, 1]
baseline: infonce
arms:
- name: infonce
- name: broken
  set: {optim.lr: 1.0e+30}
evaluate:
  knn: {k: [1, 5]}
";

/// A folder of its own with the sweep in it.
struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn new(sweep: &str) -> Desk {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("base.yaml"), BASE).unwrap();
        let desk = Desk { folder };
        desk.write(sweep);
        desk
    }

    fn write(&self, sweep: &str) {
        std::fs::write(self.path("s.yaml"), sweep).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_run-sweep"));
        command.args(["--sweep", "s.yaml", "--device", "cpu"]).args(more).current_dir(self.folder.path());
        command.env("OMP_NUM_THREADS", "1");
        command
    }

    fn run(&self, more: &[&str]) -> (Option<i32>, String, String) {
        read(&self.command(more).output().unwrap())
    }

    fn report(&self, more: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_run-sweep"));
        read(&command.arg("report").args(more).current_dir(self.folder.path()).output().unwrap())
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    fn changed(&self, name: &str) -> SystemTime {
        std::fs::metadata(self.path(name)).unwrap().modified().unwrap()
    }
}

fn read(out: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.code(), text(&out.stdout), text(&out.stderr))
}

#[test]
fn a_failing_run_is_told_the_rest_goes_on_and_what_is_finished_stays() {
    let desk = Desk::new(SWEEP);
    let (code, stdout, _) = desk.run(&["--dry-run"]);
    assert_eq!((code, stdout.matches("  missing  ").count()), (Some(0), 4), "{stdout}");
    assert!(stdout.contains("broken-seed1  missing  optim.lr=1e+30 seed=1\n4 runs, 4 left to do\n"), "{stdout}");
    assert!(!desk.path("runs").exists(), "a dry run writes nothing");
    // A run-sweep without the other commands beside it.
    let alone = desk.path("run-sweep");
    std::fs::copy(env!("CARGO_BIN_EXE_run-sweep"), &alone).unwrap();
    let out =
        Command::new(&alone).args(["--sweep", "s.yaml", "--device", "cpu"]).current_dir(desk.folder.path()).output();
    let (code, _, stderr) = read(&out.unwrap());
    assert!(code == Some(1) && stderr.contains("pretrain-vision: the command is missing beside run-sweep"), "{stderr}");
    assert!(!desk.path("runs").exists());

    let (code, stdout, stderr) = desk.run(&["--out", "out", "--jobs", "2"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("infonce-seed1: finished in") && stderr.contains("error: 2 of 4 runs failed"), "{stderr}");
    let broken = stderr.lines().rfind(|line| line.contains("broken-seed0")).unwrap();
    assert!(broken.contains("step 1 (epoch 0)") || broken.contains("step 2 (epoch 0)"), "{broken}");
    assert!(broken.contains("exit code 3") && broken.contains("out/logs/broken-seed0.log"), "{broken}");
    let row = stdout.lines().find(|line| line.starts_with("broken")).unwrap();
    assert!(row.split_whitespace().skip(1).all(|cell| cell == "-"), "{row}");
    assert!(
        stdout.contains("Left out: broken, with 0 of 2 seeds.") && stdout.contains("over 2 encoder seeds"),
        "{stdout}"
    );
    assert!(desk.text("out/table.md").contains("| infonce |") && desk.text("out/table.svg").contains("kNN"));
    // Two finished runs, kNN and six recalls each.
    assert_eq!(desk.text("out/runs.csv").lines().count(), 1 + 2 * 7);

    // What is finished stays; the failed ones are tried again from where they were.
    let kept = ["checkpoints/encoder.safetensors", "results/knn.json"].map(|f| format!("out/runs/infonce-seed0/{f}"));
    let times = kept.clone().map(|f| desk.changed(&f));
    let (code, _, stderr) = desk.run(&["--out", "out"]);
    assert!(code == Some(1) && stderr.contains("4 runs, 2 of them finished"), "{stderr}");
    assert_eq!(kept.clone().map(|f| desk.changed(&f)), times);
    assert_eq!(desk.text("out/logs/infonce-seed0.log").matches("$ ").count(), 2, "pretraining and kNN, once");
    assert!(desk.text("out/logs/broken-seed0.log").contains("--resume"));

    // Results of another protocol or of other weights are made anew, and nothing else.
    let changed = desk.text(&kept[1]).replace("\"temperature\": 0.1", "\"temperature\": 0.2");
    std::fs::write(desk.path(&kept[1]), changed).unwrap();
    let (_, stdout, _) = desk.run(&["--out", "out", "--dry-run"]);
    assert!(stdout.contains("infonce-seed0  trained, to be evaluated  seed=0"), "{stdout}");

    // Another sweep is refused with the difference; one that only adds is not.
    desk.write(&SWEEP.replace("lr: 1.0e+30", "lr: 1.0e-4").replace("[1, 5]", "[1]"));
    let (code, _, stderr) = desk.run(&["--out", "out"]);
    assert!(
        code == Some(2) && stderr.contains("broken-seed0: optim.lr was") && stderr.contains("evaluate.knn"),
        "{stderr}"
    );
    desk.write(&SWEEP.replace("seeds: [0, 1]", "seeds: [0, 1, 2]"));
    let (code, stdout, stderr) = desk.run(&["--out", "out", "--dry-run"]);
    assert!(code == Some(0) && stdout.contains("infonce-seed2  missing"), "{stdout} {stderr}");
    // A folder that is no sweep's.
    let (code, _, stderr) = desk.run(&["--out", "."]);
    assert!(code == Some(2) && stderr.contains("no sweep has begun in it"), "{stderr}");
}

#[test]
fn tables_come_from_runs_csv_alone_to_the_byte() {
    let desk = Desk::new(&SWEEP.replace("optim.lr: 1.0e+30", "loss: {kind: weince, tail: {min_points: 10}}"));
    let (code, printed, stderr) = desk.run(&["--out", "out"]);
    assert_eq!(code, Some(0), "{stderr}");
    let (code, stdout, stderr) = desk.report(&["out", "--out", "kept"]);
    assert_eq!((code, &stdout), (Some(0), &printed), "{stderr}");
    let files = ["runs.csv", "sweep.resolved.yaml", "table.csv", "table.md", "table.svg"];
    std::fs::create_dir(desk.path("again")).unwrap();
    for file in &files[..2] {
        std::fs::copy(desk.path("kept").join(file), desk.path("again").join(file)).unwrap();
    }
    let (code, stdout, stderr) = desk.report(&["again"]);
    assert_eq!((code, &stdout), (Some(0), &printed), "{stderr}");
    for file in files {
        let bytes = |folder: &str| std::fs::read(desk.path(folder).join(file)).unwrap();
        assert!(bytes("again") == bytes("out") && bytes("kept") == bytes("out"), "{file}");
    }
    let mut names: Vec<_> = std::fs::read_dir(desk.path("again")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, files);
    // A resolved sweep is a sweep: the published runs can be made again from it.
    std::fs::copy(desk.path("kept/sweep.resolved.yaml"), desk.path("s.yaml")).unwrap();
    let (code, stdout, _) = desk.run(&["--out", "out", "--dry-run"]);
    assert!(code == Some(0) && stdout.contains("4 runs, 0 left to do"), "{stdout}");
    let (code, stdout, _) = desk.report(&["out", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert!(code == Some(0) && json["rows"][1]["figures"][0]["difference"]["n"] == 2, "{stdout}");
    std::fs::remove_file(desk.path("again/runs.csv")).unwrap();
    let (code, _, stderr) = desk.report(&["again"]);
    assert!(code == Some(2) && stderr.contains("neither runs/ nor runs.csv"), "{stderr}");
}

#[test]
fn an_interrupted_sweep_saves_and_continues() {
    let desk = Desk::new(&SWEEP.replace("\n- name: broken\n  set: {optim.lr: 1.0e+30}", ""));
    let long = BASE.replace("epochs: 2", "epochs: 20");
    std::fs::write(desk.path("base.yaml"), long).unwrap();
    let child = desk.command(&["--out", "out"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let metrics = desk.path("out/runs/infonce-seed0/metrics.jsonl");
    let since = Instant::now();
    while !std::fs::metadata(&metrics).is_ok_and(|data| data.len() > 0) {
        assert!(since.elapsed() < Duration::from_secs(120), "the first run does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    // While it runs, the folder is taken.
    let (code, _, stderr) = desk.run(&["--out", "out"]);
    assert!(code == Some(2) && stderr.contains("another run-sweep is at work"), "{stderr}");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let (code, _, stderr) = read(&child.wait_with_output().unwrap());
    assert!(code == Some(130) && stderr.contains("0 of 2 runs finished"), "{code:?} {stderr}");
    assert!(desk.text("out/logs/infonce-seed0.log").contains("the state is saved"));
    let (_, stdout, _) = desk.run(&["--out", "out", "--dry-run"]);
    assert!(stdout.contains("infonce-seed0  begun") && stdout.contains("infonce-seed1  missing"), "{stdout}");

    // A process of an earlier start that is still at work on the second run has its log locked.
    let log = std::fs::File::create(desk.path("out/logs/infonce-seed1.log")).unwrap();
    flock(&log, FlockOperation::LockExclusive).unwrap();
    let child =
        desk.command(&["--out", "out", "--jobs", "2"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let since = Instant::now();
    while !desk.path("out/runs/infonce-seed0/results/knn.json").is_file() {
        assert!(since.elapsed() < Duration::from_secs(300), "the first run does not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(desk.text("out/logs/infonce-seed0.log").contains("--resume"));
    assert!(!desk.path("out/runs/infonce-seed1").exists(), "the second run waits");
    drop(log);
    let (code, _, stderr) = read(&child.wait_with_output().unwrap());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("infonce-seed1: a process of an earlier start is still at work on it"), "{stderr}");
}

#[test]
fn the_sweeps_in_configs_are_what_they_say() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, runs) in [("fashion-mnist-cpu", 12), ("paper-grid", 4 + 27 * 4)] {
        let file = format!("configs/sweeps/{name}.yaml");
        let folder = tempfile::tempdir().unwrap();
        let out = Command::new(env!("CARGO_BIN_EXE_run-sweep"))
            .args(["--dry-run", "--device", "cpu", "--sweep", &file, "--out"])
            .arg(folder.path())
            .current_dir(root)
            .output()
            .unwrap();
        let (code, stdout, stderr) = read(&out);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stdout.ends_with(&format!("{runs} runs, {runs} left to do\n")), "{name}: {stdout}");
        if name == "paper-grid" {
            let last = "weince-margin6-kappa_rho20-kappa_aic2-seed84  missing  loss.kind=\"weince\" loss.gate.margin=6 \
                        loss.gate.kappa_rho=20 loss.gate.kappa_aic=2 seed=84";
            assert!(stdout.contains(last), "{stdout}");
        }
    }
    let seen = std::fs::read_dir(root.join("configs/sweeps")).unwrap().count();
    assert_eq!(seen, 2, "each sweep in configs/sweeps is looked at here");
}
