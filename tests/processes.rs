//! Runs of several processes as their user starts them: that they are the run of one process, what they leave, and what becomes of
//! the others when one is late, different, stopped or dead.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tch::{Kind, Tensor};

/// 20 short steps. Small nets and batches at their beginning are chaotic: a rounding of one step is a hundred of them in the next, and two
/// threads in place of one make another run. Long steps and WEINCE's gate add to that; `ranks` compares them in float64.
const IMAGES: &str = "
data: {kind: synthetic, train: 128, test: 12, size: 16}
augment: {size: 16}
model:
  encoder: {kind: resnet18, stem: small, width: 8}
  projector: {dim: 32}
loss: {kind: infonce}
optim: {kind: sgd, lr: 0.0001, momentum: 0.9}
train: {epochs: 5, batch_size: 32, log_every: 1}
";

const VIT: &str = "model.encoder={kind: vit_small, patch_size: 4, width: 24, depth: 2, heads: 2}";

/// How long anything here may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder with a configuration in it.
struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn new() -> Desk {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("run.yaml"), IMAGES).unwrap();
        Desk { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, run: &str, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pretrain-vision"));
        command.arg("--config").arg(self.path("run.yaml")).arg("--run-dir").arg(self.path(run));
        command.args(["--device", "cpu"]).args(more).current_dir(self.folder.path());
        command.env("OMP_NUM_THREADS", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
        for name in [
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
            "SLURM_STEP_NUM_TASKS",
        ] {
            command.env_remove(name);
        }
        command
    }

    fn alone(&self, run: &str, more: &[&str]) -> Output {
        let out = self.command(run, more).output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        out
    }

    /// The command of one rank of so many.
    fn rank(&self, run: &str, more: &[&str], rank: usize, size: usize, port: u16) -> Command {
        let mut command = self.command(run, more);
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("WORLD_SIZE", size.to_string()).env("LOCAL_WORLD_SIZE", size.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command
    }

    /// All ranks, started.
    fn start(&self, run: &str, more: &[&str], size: usize) -> Vec<Child> {
        let port = free_port();
        (0..size).map(|rank| self.rank(run, more, rank, size, port).spawn().unwrap()).collect()
    }

    /// A run of so many processes, to its end.
    fn together(&self, run: &str, more: &[&str], size: usize) -> Vec<Output> {
        let ended = all_end(self.start(run, more, size));
        for (rank, out) in ended.iter().enumerate() {
            assert!(out.status.success(), "rank {rank} of {size} {more:?}: {}", text(&out.stderr));
        }
        ended
    }

    /// What a run has trained.
    fn weights(&self, run: &str) -> Vec<(String, Tensor)> {
        let folder = self.path(run).join("checkpoints");
        let parts = ["encoder", "projector"].map(|part| folder.join(part).with_extension("safetensors"));
        let mut all: Vec<_> = parts.iter().flat_map(|part| Tensor::read_safetensors(part).unwrap()).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    fn losses(&self, run: &str) -> Vec<f64> {
        use weince::report::metrics::{Split, read};
        let series = read(&self.path(run).join("metrics.jsonl")).unwrap().series(Split::Train, "loss");
        assert!(series.iter().map(|(step, _)| *step).eq(1..=series.len() as u64));
        series.into_iter().map(|(_, loss)| loss).collect()
    }

    fn file(&self, run: &str, file: &str) -> Vec<u8> {
        std::fs::read(self.path(run).join(file)).unwrap()
    }

    /// Waits until a run has written so many lines.
    fn wait_for_steps(&self, run: &str, steps: usize) {
        let file = self.path(run).join("metrics.jsonl");
        let written = || std::fs::read_to_string(&file).map_or(0, |text| text.lines().count());
        let begun = Instant::now();
        while written() < steps {
            assert!(begun.elapsed() < PATIENCE, "no {steps} steps in {}", file.display());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

/// Waits for processes to end; none may hang.
fn all_end(mut children: Vec<Child>) -> Vec<Output> {
    let begun = Instant::now();
    while children.iter_mut().any(|child| child.try_wait().unwrap().is_none()) {
        if begun.elapsed() > PATIENCE {
            children.iter_mut().for_each(|child| child.kill().unwrap());
            let said: Vec<String> =
                children.into_iter().map(|child| text(&child.wait_with_output().unwrap().stderr)).collect();
            panic!("processes hang: {said:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
}

/// The difference of all weights, as a share of their length.
fn difference(a: &[(String, Tensor)], b: &[(String, Tensor)]) -> f64 {
    assert_eq!(a.len(), b.len());
    let flat = |all: &[(String, Tensor)]| {
        Tensor::cat(&all.iter().map(|(_, t)| t.to_kind(Kind::Double).flatten(0, -1)).collect::<Vec<_>>(), 0)
    };
    for ((name, a), (other, b)) in a.iter().zip(b) {
        assert_eq!((name, a.size(), a.kind()), (other, b.size(), b.kind()));
    }
    ((flat(a) - flat(b)).norm() / flat(b).norm()).double_value(&[])
}

/// Twenty steps in float32: sums in another order change the last places of every gradient, and later steps pass that on.
const TOLERANCE: f64 = 1e-5;

#[test]
fn ranks_are_one_process() {
    let desk = Desk::new();
    let cases: [(&str, &[&str], &[usize]); 4] = [
        ("resnet", &[], &[2, 4]),
        ("joint", &["--set", "train.views=joint", "--set", "train.batch_size=31"], &[2]),
        ("vit", &["--set", VIT, "--set", "loss={kind: infonce, tile: 5}", "--set", "optim.lr=0.01"], &[3]),
        ("chunks", &["--set", VIT, "--set", "train.chunk=5"], &[2]),
    ];
    for (name, more, sizes) in cases {
        desk.alone(name, more);
        let (weights, losses) = (desk.weights(name), desk.losses(name));
        assert_eq!(losses.len(), 20);
        for &size in sizes {
            let run = format!("{name}{size}");
            let out = desk.together(&run, more, size);
            let error = difference(&desk.weights(&run), &weights);
            assert!(error < TOLERANCE, "{run}: weights {error:.1e}");
            for (step, (a, b)) in desk.losses(&run).iter().zip(&losses).enumerate() {
                assert!((a / b - 1.0).abs() < TOLERANCE, "{run}: step {}: {a} {b}", step + 1);
            }
            // Only the first one narrates.
            assert!(text(&out[0].stdout).contains("steps     20"));
            for other in &out[1..] {
                assert!(other.stdout.is_empty() && other.stderr.is_empty(), "{run}: {}", text(&other.stderr));
            }
        }
    }
    // The state is the same file but for the last places of its numbers: it knows nothing of the number of processes.
    let state = |run: &str| desk.file(run, "checkpoints/step-000000020.pt");
    assert_eq!(state("resnet2").len(), state("resnet").len());
    let config = |run: &str| desk.file(run, "config.resolved.yaml");
    assert_eq!(config("resnet4"), config("resnet"));
    let environment = text(&desk.file("resnet4", "environment.json"));
    assert!(environment.contains("\"processes\": 4"), "{environment}");
}

/// Without the synchronised one, BatchNorm sees a rank's own images: the run is another one.
#[test]
fn batch_norm_of_the_own_share_is_another_run() {
    let desk = Desk::new();
    let own = ["--set", "train.sync_batch_norm=false"];
    desk.alone("alone", &own);
    desk.together("two", &own, 2);
    let [two, alone] = ["two", "alone"].map(|run| desk.losses(run)[0]);
    assert!((two / alone - 1.0).abs() > 1e-4, "{two} {alone}");
}

/// Equal runs leave equal bytes, and a run that is continued, by as many processes or by others, ends where it would have ended.
#[test]
fn ranks_repeat_and_resume_as_others() {
    let desk = Desk::new();
    let (half, whole) = (["--set", "train.epochs=2"], ["--resume"]);
    desk.together("whole", &[], 2);
    desk.together("again", &[], 2);
    let state = |run: &str| desk.file(run, "checkpoints/step-000000020.pt");
    assert!(state("whole") == state("again"), "two equal runs differ");
    desk.together("whole of 3", &[], 3);
    for (first, then) in [(2, 2), (3, 3), (1, 2), (3, 1)] {
        let run = format!("{first}then{then}");
        let start = |size: usize, more: &[&str]| match size {
            1 => drop(desk.alone(&run, more)),
            _ => drop(desk.together(&run, more, size)),
        };
        start(first, &half);
        start(then, &whole);
        let error = difference(&desk.weights(&run), &desk.weights("whole"));
        assert!(error < TOLERANCE, "{run}: {error:.1e}");
        if first == then {
            let uninterrupted = state(if then == 2 { "whole" } else { "whole of 3" });
            assert!(state(&run) == uninterrupted, "a resumed run of {then} ends in other bytes");
        }
    }
}

/// A run that is long enough to be disturbed.
const LONG: [&str; 2] = ["--set", "train.epochs=5000"];

#[test]
fn a_dead_rank_is_named_and_the_run_resumes() {
    let desk = Desk::new();
    for (dead, size) in [(1, 2), (0, 3), (2, 3)] {
        let run = format!("dead{dead}of{size}");
        let mut ranks =
            desk.start(&run, &[LONG.as_slice(), &["--set", VIT, "--set", "checkpoint.every_steps=2"]].concat(), size);
        desk.wait_for_steps(&run, 5);
        ranks[dead].kill().unwrap();
        let killed = Instant::now();
        let ended = all_end(ranks);
        assert!(killed.elapsed() < Duration::from_secs(60));
        for (rank, out) in ended.iter().enumerate().filter(|(rank, _)| *rank != dead) {
            let said = text(&out.stderr);
            assert_eq!(out.status.code(), Some(1), "rank {rank}: {said}");
            let errors: Vec<&str> = said.lines().filter(|line| line.starts_with("error:")).collect();
            assert!(errors.len() == 1 && errors[0].contains(&format!("rank {dead}")), "rank {rank}: {said}");
            // LibTorch's stack traces say nothing to a user.
            assert!(!said.contains("frame #"), "rank {rank}: {said}");
        }
        // Rank 0 may have gone on for a step or two.
        let epochs = desk.losses(&run).len() / 4 + 2;
        let more =
            ["--resume", "--set", VIT, "--set", &format!("train.epochs={epochs}"), "--set", "checkpoint.every_steps=2"];
        let out = desk.together(&run, &more, size);
        assert!(text(&out[0].stdout).contains(&format!("steps     {}", 4 * epochs)), "{}", text(&out[0].stdout));
        assert_eq!(desk.losses(&run).len(), 4 * epochs);
    }
}

#[test]
fn a_signal_to_one_rank_stops_all_after_saving() {
    let desk = Desk::new();
    let ranks = desk.start("run", &LONG, 2);
    desk.wait_for_steps("run", 5);
    let signal = Command::new("kill").args(["-TERM", &ranks[1].id().to_string()]).status().unwrap();
    assert!(signal.success());
    let ended = all_end(ranks);
    for out in &ended {
        assert_eq!(out.status.code(), Some(130), "{}", text(&out.stderr));
    }
    assert!(text(&ended[0].stderr).contains("the state is saved: continue with --resume"));
    let losses = desk.losses("run").len();
    let last = text(&desk.file("run", "checkpoints/LAST"));
    assert_eq!(last.trim(), format!("step-{losses:09}.pt"));
}

#[test]
fn a_rank_may_be_late_and_must_come() {
    let desk = Desk::new();
    let port = free_port();
    let first = desk.rank("late", &[], 0, 2, port).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let second = desk.rank("late", &[], 1, 2, port).spawn().unwrap();
    assert!(all_end(vec![first, second]).iter().all(|out| out.status.success()));

    let waiting = [desk.rank("never", &["--dist-timeout", "3s"], 0, 2, free_port()).spawn().unwrap()];
    let out = &all_end(waiting.into())[0];
    let said = text(&out.stderr);
    assert!(out.status.code() == Some(1) && said.contains("rank 1") && said.contains("3 s"), "{said}");
    // Nothing was begun, and the name is still free.
    assert!(!desk.path("never").exists());

    // Nobody serves the store.
    let lonely = [desk.rank("lonely", &["--dist-timeout", "3s"], 1, 2, free_port()).spawn().unwrap()];
    let out = &all_end(lonely.into())[0];
    let said = text(&out.stderr);
    assert!(out.status.code() == Some(1) && said.contains("127.0.0.1"), "{said}");
}

#[test]
fn ranks_that_do_not_belong_together_are_told() {
    let desk = Desk::new();
    let started = |changes: [&[&str]; 2], sizes: [usize; 2]| {
        let port = free_port();
        let rank = |rank: usize| {
            let more = [changes[rank], &["--dist-timeout", "20s"]].concat();
            desk.rank("run", &more, rank, sizes[rank], port).spawn().unwrap()
        };
        let ended = all_end(vec![rank(0), rank(1)]);
        assert!(!desk.path("run").exists(), "a run was begun");
        let failed = |out: &Output| !out.status.success();
        assert!(ended.iter().all(failed));
        ended.iter().map(|out| text(&out.stderr)).collect::<Vec<_>>()
    };
    for said in started([&[], &[]], [2, 3]) {
        assert!(said.contains("world size") && said.contains('2') && said.contains('3'), "{said}");
    }
    let other = ["--set", "optim.lr=0.1"];
    for said in started([&[], &other], [2, 2]) {
        assert!(said.contains("rank 1 has another configuration") && said.contains("0.1"), "{said}");
    }
    let fewer = ["--set", "data.train=100"];
    for said in started([&[], &fewer], [2, 2]) {
        assert!(
            said.contains("rank 1 has another images than rank 0") || said.contains("rank 1 has other images"),
            "{said}"
        );
    }
    let broken = ["--set", "model.projector.dim=0"];
    let said = started([&[], &broken], [2, 2]);
    assert!(said[1].contains("model.projector.dim"), "{said:?}");
    let many = ["--set", "train.batch_size=2"];
    let ended = all_end(desk.start("few", &many, 3));
    assert!(ended.iter().all(|out| out.status.code() == Some(2)));
    assert!(text(&ended[0].stderr).contains("cannot be shared among 3 processes"), "{}", text(&ended[0].stderr));
}

#[test]
fn the_launcher_starts_all_processes_and_passes_a_failure_on() {
    let desk = Desk::new();
    let launch = |run: &str, more: &[&str]| {
        let inner = desk.command(run, more);
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/launch.sh"));
        command.args(["--procs", "2", "--port", &free_port().to_string(), "--"]);
        command.arg(inner.get_program()).args(inner.get_args()).current_dir(desk.folder.path());
        command.output().unwrap()
    };
    let out = launch("run", &[]);
    assert!(out.status.success() && text(&out.stdout).contains("steps     20"), "{}", text(&out.stderr));
    assert_eq!(desk.losses("run").len(), 20);
    let out = launch("run", &[]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("not empty"));
}

/// The tasks of a step as srun starts them: the store is at a port that the job's number tells.
#[test]
fn tasks_of_srun_find_one_another() {
    let desk = Desk::new();
    let port = std::iter::repeat_with(free_port).find(|port| (20_000..60_000).contains(port)).unwrap();
    let tasks = (0..2).map(|rank| {
        let mut command = desk.command("run", &[]);
        command
            .env("SLURM_STEP_NUM_TASKS", "2")
            .env("SLURM_PROCID", rank.to_string())
            .env("SLURM_LOCALID", rank.to_string());
        command.env("SLURM_STEP_TASKS_PER_NODE", "2").env("SLURM_STEP_NODELIST", "localhost");
        command.env("SLURM_JOB_ID", (20_000 + u32::from(port)).to_string());
        command.spawn().unwrap()
    });
    let ended = all_end(tasks.collect());
    assert!(ended.iter().all(|out| out.status.success()), "{}", text(&ended[0].stderr));
    assert!(text(&ended[0].stdout).contains("steps     20") && ended[1].stdout.is_empty());
    assert!(text(&desk.file("run", "environment.json")).contains("\"processes\": 2"));
    assert_eq!(desk.losses("run").len(), 20);
}
