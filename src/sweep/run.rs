//! Runs a sweep: starts the project's commands as processes of their own, so that one that fails leaves the others.
//!
//! Each process holds the lock on its run's log, which it inherits as its standard output: whoever starts the sweep again,
//! even after a kill -9, sees by it that a process of the earlier start is still at work, and waits for it.

use super::folder::{SweepFolder, Task};
use super::grid::{Job, Sweep};
use crate::config::eval::{Bank, LinearConfig};
use crate::config::run::RunConfig;
use crate::device;
use crate::error::{Error, Result};
use crate::lock::try_lock;
use indicatif::{ProgressBar, ProgressStyle};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::VecDeque;
use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tch::Device;

/// How a sweep is run; none of it decides what comes out, but for `threads`, which may change the order of sums.
#[derive(Debug, Clone)]
pub struct Options {
    /// Processes at once.
    pub jobs: usize,
    /// LibTorch's threads of each process.
    pub threads: usize,
    /// Where they compute.
    pub device: Device,
    /// The folder of the project's other commands.
    pub commands: PathBuf,
}

impl Options {
    /// Processor threads shared evenly, unless `OMP_NUM_THREADS` is set; commands beside the one that runs.
    ///
    /// # Errors
    /// No job at once; an `OMP_NUM_THREADS` that is no number; what the system does not tell.
    pub fn new(jobs: usize, device: Device) -> Result<Options> {
        if jobs == 0 {
            return Err(Error::Config("--jobs: expected at least 1".into()));
        }
        let threads = match std::env::var("OMP_NUM_THREADS") {
            Ok(text) => text.trim().parse().ok().filter(|n| *n > 0).ok_or_else(|| {
                Error::Config(format!("OMP_NUM_THREADS is `{text}`; expected a whole number of at least 1"))
            })?,
            Err(_) => (std::thread::available_parallelism().map_or(1, |n| n.get()) / jobs).max(1),
        };
        let this = std::env::current_exe().map_err(Error::io("run-sweep", "cannot tell its own place"))?;
        Ok(Options { jobs, threads, device, commands: this.parent().unwrap_or(Path::new("")).to_path_buf() })
    }
}

/// What became of the runs of a sweep.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Finished by an earlier start.
    pub before: usize,
    /// Finished now.
    pub now: usize,
    /// Names of runs that failed, each with its reason.
    pub failed: Vec<(String, String)>,
}

/// How often a process is asked whether it has ended.
const POLL: Duration = Duration::from_millis(50);

/// Runs what is left of a sweep, several runs at once. Failed runs are told and left; the others go on.
///
/// # Errors
/// What keeps the sweep from starting; [`Error::Interrupted`] after SIGINT or SIGTERM, when every process has saved and ended.
pub fn run(sweep: &Sweep, folder: &SweepFolder, options: &Options) -> Result<Outcome> {
    for job in sweep.jobs() {
        job.config.check_device(options.device).map_err(|e| Error::Config(format!("run {}: {e}", job.name)))?;
    }
    let evaluations = Task::evaluations(&sweep.config.evaluate);
    for task in std::iter::once(Task::Pretrain { resume: false }).chain(evaluations) {
        let path = options.commands.join(task.command());
        if !path.is_file() {
            return Err(Error::Input(format!(
                "{}: the command is missing beside run-sweep; build all with `cargo build --release --bins`",
                path.display()
            )));
        }
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())
            .and_then(|_| signal_hook::flag::register(signal, stop.clone()))
            .map_err(Error::io(folder.root(), "cannot watch for interruption"))?;
    }
    // Held to the end: no other sweep works on the folder meanwhile.
    let _lock = folder.begin(sweep)?;

    let mut outcome = Outcome::default();
    let mut queue = VecDeque::new();
    for job in sweep.jobs() {
        match folder.left(sweep, &job) {
            Ok(tasks) if tasks.is_empty() => outcome.before += 1,
            // A run that cannot be read is told when its turn comes.
            _ => queue.push_back(job),
        }
    }
    let at_once = options.jobs.min(queue.len());
    eprintln!(
        "{} runs, {} of them finished; {} at once with {} LibTorch threads each on {}, in {}",
        outcome.before + queue.len(),
        outcome.before,
        options.jobs,
        options.threads,
        device::name(options.device),
        folder.root().display()
    );
    let progress = Progress::new(queue.len(), outcome.before);
    let (queue, shared) = (Mutex::new(queue), Mutex::new(outcome));
    // A call, so that the queue is not locked while its run is at work.
    let next = || locked(&queue).pop_front();
    let worker = || {
        while let Some(job) = next() {
            let work = Work { sweep, folder, options, job: &job, stop: &stop, progress: &progress };
            let began = Instant::now();
            let ended = work.all();
            if stop.load(Ordering::Relaxed) && !matches!(ended, Ok(true)) {
                return;
            }
            match ended {
                Ok(_) => {
                    locked(&shared).now += 1;
                    progress.advance(&format!("{}: finished in {}", job.name, seconds(began.elapsed())));
                }
                Err(e) => {
                    let reason = e.to_string();
                    progress.advance(&format!("{}: FAILED: {reason}", job.name));
                    locked(&shared).failed.push((job.name.clone(), reason));
                }
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(worker);
        }
    });
    progress.bar.finish_and_clear();
    let outcome = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    if stop.load(Ordering::Relaxed) {
        return Err(Error::Interrupted(format!(
            "interrupted with {} of {} runs finished; those under way have saved: run the same command again to continue",
            outcome.before + outcome.now,
            sweep.jobs().len()
        )));
    }
    Ok(outcome)
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// To the second.
fn seconds(duration: Duration) -> impl Display {
    humantime::format_duration(Duration::from_secs(duration.as_secs_f64().round() as u64))
}

/// The bar over runs, and the lines about them; on a terminal the lines go above the bar.
struct Progress {
    bar: ProgressBar,
    before: usize,
    began: Instant,
}

impl Progress {
    fn new(left: usize, before: usize) -> Progress {
        let bar = ProgressBar::new((before + left) as u64).with_position(before as u64);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} runs  {elapsed} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_secs(1));
        Progress { bar, before, began: Instant::now() }
    }

    fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("{line}"));
    }

    /// One run more has come to its end; what is left is judged by those that this start has seen.
    fn advance(&self, line: &str) {
        self.bar.inc(1);
        let (done, all) = (self.bar.position(), self.bar.length().unwrap_or(0));
        let seen = (done as usize).saturating_sub(self.before).max(1) as u32;
        let left = self.began.elapsed() / seen * all.saturating_sub(done) as u32;
        let left = if done < all { format!(" (left about {})", seconds(left)) } else { String::new() };
        self.bar.set_message(left.clone());
        self.say(&format!("[{done}/{all}] {line}{left}"));
    }
}

/// One run at work.
struct Work<'a> {
    sweep: &'a Sweep,
    folder: &'a SweepFolder,
    options: &'a Options,
    job: &'a Job,
    stop: &'a AtomicBool,
    progress: &'a Progress,
}

impl Work<'_> {
    /// Does what is left of the run; false if it was stopped on the way.
    fn all(&self) -> Result<bool> {
        let Some(log) = self.own_log()? else { return Ok(false) };
        let mut done: Vec<&str> = Vec::new();
        loop {
            let Some(task) = self.folder.left(self.sweep, self.job)?.first().copied() else { return Ok(true) };
            if self.stop.load(Ordering::Relaxed) {
                return Ok(false);
            }
            if done.contains(&task.command()) {
                return Err(Error::Input(format!(
                    "{} has ended well, and what it should have left is not in {}",
                    task.command(),
                    self.folder.run(self.job).display()
                )));
            }
            done.push(task.command());
            if !self.one(task, &log)? {
                return Ok(false);
            }
        }
    }

    /// The run's log, locked: nothing else is at work on the run. `None` if the sweep was stopped meanwhile.
    fn own_log(&self) -> Result<Option<File>> {
        let path = self.folder.log(self.job);
        let open = File::options().create(true).append(true).open(&path);
        let log = open.map_err(Error::io(&path, "cannot open the log"))?;
        let mut told = false;
        while !self.stop.load(Ordering::Relaxed) {
            if try_lock(&log).map_err(Error::io(&path, "cannot lock the log"))? {
                return Ok(Some(log));
            }
            if !told {
                self.progress.say(&format!(
                    "{}: a process of an earlier start is still at work on it; waiting for it to end",
                    self.job.name
                ));
                told = true;
            }
            std::thread::sleep(POLL);
        }
        Ok(None)
    }

    /// Runs one command to its end; false if it was stopped.
    fn one(&self, task: Task, log: &File) -> Result<bool> {
        let path = self.folder.log(self.job);
        let handle = |log: &File| log.try_clone().map_err(Error::io(&path, "cannot share the log"));
        let mut command = self.command(task);
        let words = std::iter::once(command.get_program()).chain(command.get_args()).map(|word| word.to_string_lossy());
        let line = format!("$ {}\n", words.collect::<Vec<_>>().join(" "));
        handle(log)?.write_all(line.as_bytes()).map_err(Error::io(&path, "cannot write the log"))?;
        let from = log.metadata().map_or(0, |data| data.len());
        command.stdin(Stdio::null()).stdout(handle(log)?).stderr(handle(log)?);
        // A group of its own: Ctrl-C reaches the sweep alone, which then asks once; a second signal would keep it from saving.
        command.process_group(0);
        let program = self.options.commands.join(task.command());
        let mut child = command.spawn().map_err(Error::io(&program, "cannot start it"))?;
        drop(command);
        let status = self.wait(&mut child, &program)?;
        if status.success() {
            return Ok(true);
        }
        if self.stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        Err(Error::Input(format!("{}: {}; see {}", task.command(), reason(status, &path, from), path.display())))
    }

    fn wait(&self, child: &mut Child, program: &Path) -> Result<ExitStatus> {
        let mut asked = false;
        loop {
            if let Some(status) = child.try_wait().map_err(Error::io(program, "cannot wait for it"))? {
                return Ok(status);
            }
            if !asked && self.stop.load(Ordering::Relaxed) {
                asked = true;
                // Where the process has just ended by itself, there is none to ask.
                let _ = kill_process(Pid::from_child(child), Signal::TERM);
            }
            std::thread::sleep(POLL);
        }
    }

    fn command(&self, task: Task) -> Command {
        let run = self.folder.run(self.job);
        let mut command = Command::new(self.options.commands.join(task.command()));
        match task {
            Task::Pretrain { resume } => {
                command.arg("--config").arg(self.folder.config(self.job)).arg("--run-dir").arg(run);
                command.args(resume.then_some("--resume"));
            }
            Task::Linear => {
                command.arg("--run").arg(run);
                if let Some(probe) = &self.sweep.config.evaluate.linear {
                    command.args(["--seeds", &list(&probe.seeds)]);
                    match &probe.probe {
                        LinearConfig::Lbfgs(c) => {
                            command.args(["--protocol", "lbfgs", "--l2", &list(&c.l2)]);
                            command.args(["--val-fraction", &c.validation.to_string()]);
                        }
                        LinearConfig::Adam(c) => {
                            command.args(["--protocol", "adam", "--lr", &c.lr.to_string()]);
                            command.args(["--epochs", &c.epochs.to_string(), "--batch", &c.batch.to_string()]);
                            command.args(["--val-fraction", &c.validation.to_string()]);
                            command.args(c.drop_last.then_some("--drop-last"));
                        }
                    }
                }
            }
            Task::Knn => {
                command.arg("--run").arg(run);
                if let Some(knn) = &self.sweep.config.evaluate.knn {
                    command.args(["--k", &list(&knn.k), "--temperature", &knn.temperature.to_string()]);
                    command.args(["--val-fraction", &knn.validation.to_string()]);
                    command.args(["--split-seed", &knn.split_seed.to_string()]);
                    command.args((knn.bank == Bank::Rest).then_some("--bank=rest"));
                    command.args(knn.drop_last.then_some("--drop-last"));
                }
            }
        }
        command.args(["--device", &device::name(self.options.device)]);
        let threads = self.options.threads.to_string();
        // Threads that spin while they wait take the processor from the other processes.
        let defaults = [
            ("OMP_NUM_THREADS", threads.as_str()),
            ("RAYON_NUM_THREADS", threads.as_str()),
            ("OMP_WAIT_POLICY", "passive"),
        ];
        for (name, value) in defaults {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        command
    }
}

/// Values as the commands take lists.
fn list<T: Display>(values: &[T]) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

/// Why a command failed: its own last words, from byte `from` of the log on, and how it ended.
fn reason(status: ExitStatus, log: &Path, from: u64) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let said = String::from_utf8_lossy(bytes.get(from as usize..).unwrap_or_default()).into_owned();
    let lines = || said.lines().map(str::trim).filter(|line| !line.is_empty());
    let error = lines().rfind(|line| line.starts_with("error: ")).or_else(|| lines().next_back());
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(9)) => "killed by signal 9, as the system does when memory runs out; fewer --jobs need less".into(),
        (None, signal) => format!("killed by signal {}", signal.unwrap_or(0)),
    };
    let Some(line) = error.map(|line| line.trim_start_matches("error: ")) else { return how };
    const SHOWN: usize = 240;
    let shown: String = line.chars().take(SHOWN).collect();
    format!("{shown}{} ({how})", if shown.len() < line.len() { "..." } else { "" })
}
