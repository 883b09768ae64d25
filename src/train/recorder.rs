//! What a run tells while it goes: progress bar, `metrics.jsonl`, TensorBoard; and the check that every step was finite.

use super::step::StepScalars;
use crate::error::Result;
use crate::report::metrics::{MetricsWriter, Record, Split};
use crate::report::tensorboard::EventWriter;
use crate::run::RunFolder;
use crate::torch::device_memory;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use tch::Tensor;

/// A step whose measurements are still on the device.
struct Pending {
    step: u64,
    epoch: u64,
    lr: f64,
    packed: Tensor,
    indices: Vec<i64>,
}

/// The first step of a run whose loss or gradient was not finite.
pub struct Broken {
    /// Its number, counted from 1.
    pub step: u64,
    /// Its epoch, counted from 0.
    pub epoch: u64,
    /// The samples of its batch, as positions in the training set.
    pub indices: Vec<i64>,
    /// What was measured.
    pub scalars: StepScalars,
}

/// Collects the measurements of steps and writes them out.
///
/// Of several processes one writes; the others check.
pub struct Recorder {
    files: Option<(MetricsWriter, EventWriter)>,
    bar: ProgressBar,
    pending: Vec<Pending>,
    total: u64,
    log_every: u64,
    read_every: usize,
    samples_per_step: usize,
    /// What the samples are: `images`.
    unit: &'static str,
    /// Since the last written line.
    since: Instant,
    steps_since: u64,
    waited_before: Duration,
    /// Since the start of this process, and before it.
    started: Instant,
    seconds_before: f64,
    samples: u64,
    last: Option<StepScalars>,
}

impl Recorder {
    /// Opens the records of a run that has `step` of `total` steps behind it; none without a folder. `read_every` is the number of steps between
    /// reads from the device: 1 where reading is free.
    ///
    /// # Errors
    /// Files that cannot be opened or, when resuming, read.
    pub fn open(
        folder: Option<&RunFolder>,
        step: u64,
        total: u64,
        (samples_per_step, unit): (usize, &'static str),
        log_every: u64,
        read_every: u64,
    ) -> Result<Recorder> {
        let (mut seconds_before, first) = (0.0, step + 1);
        let files = match folder {
            Some(folder) if folder.metrics().exists() => {
                let metrics = MetricsWriter::resume(&folder.metrics(), first)?;
                let logged = crate::report::metrics::read(&folder.metrics())?.series(Split::Train, "seconds");
                seconds_before = logged.last().map_or(0.0, |(_, seconds)| *seconds);
                Some((metrics, EventWriter::resume(&folder.tensorboard(), first)?))
            }
            Some(folder) => {
                Some((MetricsWriter::create(&folder.metrics())?, EventWriter::create(&folder.tensorboard())?))
            }
            None => None,
        };
        let bar = if files.is_some() { ProgressBar::new(total) } else { ProgressBar::hidden() }.with_position(step);
        let template = "{bar:24} {pos}/{len} steps  {msg}  ETA {eta}";
        bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.reset_eta();
        let now = Instant::now();
        Ok(Recorder {
            files,
            bar,
            pending: Vec::new(),
            total,
            log_every,
            read_every: read_every.max(1) as usize,
            samples_per_step,
            unit,
            since: now,
            steps_since: 0,
            waited_before: Duration::ZERO,
            started: now,
            seconds_before,
            samples: 0,
            last: None,
        })
    }

    /// Takes a step's packed measurements; `waited` is the time spent waiting for data since the start.
    ///
    /// # Errors
    /// As [`Recorder::flush`].
    pub fn push(
        &mut self,
        step: u64,
        epoch: u64,
        lr: f64,
        packed: Tensor,
        indices: Vec<i64>,
        waited: Duration,
    ) -> Result<Option<Broken>> {
        self.samples += self.samples_per_step as u64;
        self.pending.push(Pending { step, epoch, lr, packed, indices });
        if self.pending.len() < self.read_every {
            return Ok(None);
        }
        self.flush(waited)
    }

    /// Reads what is pending and writes the lines that are due; gives the first step that was not finite, if there is one.
    ///
    /// # Errors
    /// What LibTorch or the system report.
    pub fn flush(&mut self, waited: Duration) -> Result<Option<Broken>> {
        for p in std::mem::take(&mut self.pending) {
            let scalars = StepScalars::read(&p.packed)?;
            if scalars.halted {
                return Ok(Some(Broken { step: p.step, epoch: p.epoch, indices: p.indices, scalars }));
            }
            self.steps_since += 1;
            if p.step.is_multiple_of(self.log_every) || p.step == self.total {
                self.write(&p, &scalars, waited)?;
            }
            self.bar.set_position(p.step);
            self.last = Some(scalars);
        }
        Ok(None)
    }

    fn write(&mut self, p: &Pending, scalars: &StepScalars, waited: Duration) -> Result<()> {
        let (&Pending { step, epoch, lr, .. }, device) = (p, p.packed.device());
        let seconds = self.since.elapsed().as_secs_f64().max(1e-9);
        let rate = (self.steps_since as usize * self.samples_per_step) as f64 / seconds;
        let wait = ((waited.saturating_sub(self.waited_before)).as_secs_f64() / seconds).min(1.0);
        let mut record =
            Record::train(step, epoch).with("loss", scalars.loss).with("lr", lr).with("grad_norm", scalars.grad_norm);
        for (name, value) in &scalars.diagnostics {
            record = record.with(name, *value);
        }
        let seconds = self.seconds_before + self.started.elapsed().as_secs_f64();
        let mut record =
            record.with(&format!("{}_per_second", self.unit), rate).with("data_wait", wait).with("seconds", seconds);
        if let Some((_, peak)) = device_memory(device)? {
            record = record.with("gpu_peak_mib", peak as f64 / f64::from(1 << 20));
        }
        self.emit("train", &record)?;
        let lambda = scalars.diagnostics.iter().find(|(name, _)| *name == "lambda_mean");
        let lambda = lambda.map(|(_, v)| format!("  lambda {v:.3}")).unwrap_or_default();
        self.bar.set_message(format!(
            "loss {:.4}{lambda}  {rate:.0} {}/s  {:.0}% waiting for data",
            scalars.loss,
            self.unit,
            100.0 * wait
        ));
        self.since = Instant::now();
        self.steps_since = 0;
        self.waited_before = waited;
        Ok(())
    }

    /// Writes the result of an evaluation during training.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn evaluation(&mut self, step: u64, epoch: u64, name: &str, value: f64) -> Result<()> {
        self.emit("eval", &Record::eval(step, epoch).with(name, value))
    }

    fn emit(&mut self, group: &str, record: &Record) -> Result<()> {
        let Some((metrics, events)) = &mut self.files else { return Ok(()) };
        metrics.write(record)?;
        let tagged: Vec<(String, f64)> = record.values.iter().map(|(n, v)| (format!("{group}/{n}"), *v)).collect();
        let borrowed: Vec<(&str, f64)> = tagged.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        events.scalars(record.step, &borrowed)
    }

    /// A line among the progress: above the bar in a terminal, plainly on stderr otherwise.
    pub fn say(&self, line: &str) {
        if self.files.is_none() {
            return;
        }
        if std::io::stderr().is_terminal() {
            self.bar.println(line);
        } else {
            eprintln!("{line}");
        }
    }

    /// The loss of the last step that was read.
    pub fn last_loss(&self) -> Option<f64> {
        self.last.as_ref().map(|s| s.loss)
    }

    /// Samples a second since the start, each counted once though it gives two views.
    pub fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.started.elapsed().as_secs_f64().max(1e-9)
    }

    /// Takes the bar off the screen.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
