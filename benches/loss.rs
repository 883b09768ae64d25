//! Time and memory of a loss, forward and backward, for `scripts/bench/loss.py`, which takes turns with its peers.
//!
//! loss time KIND N      (each line of the input asks for a few batches, each line of the output is the seconds that one took)
//! loss memory KIND N    (extra peak memory in MiB, between the end of a tiny warm-up batch and the end of two real ones)
//! loss value KIND N     (the loss of the first batch that a seed gives)

use std::io::BufRead;
use std::time::Instant;
use tch::{Device, Kind, Tensor};
use weince::config::loss::LossConfig;
use weince::loss::{Layout, Loss};
use weince::{Error, Result};

const DIMENSIONS: i64 = 128;

const FULL: &str = "{kind: reference, policy: tlambda_select, auto_weib_beta: true, use_weib_topm: true, weib_lambda: 0.5, \
                    weib_top_m: 50, use_pl_topm: true, pl_lambda: 0.5, pl_top_m: 50, anchor_r2_min: 0.2}";
const KINDS: [(&str, &str); 5] = [
    ("infonce", "{kind: infonce}"),
    ("infonce_tiled", "{kind: infonce, tile: 256}"),
    ("weince", "{kind: weince}"),
    ("weince_tiled", "{kind: weince, tile: 256}"),
    ("reference_full", FULL),
];

/// Seconds and loss of a batch.
fn step(loss: &mut Loss, n: i64) -> Result<(f64, f64)> {
    let leaf = || Ok::<_, Error>(Tensor::f_randn([n, DIMENSIONS], (Kind::Float, Device::Cpu))?.set_requires_grad(true));
    let (z_i, z_j) = (leaf()?, leaf()?);
    let start = Instant::now();
    let output = loss.forward(&z_i, &z_j)?;
    output.loss.f_backward()?;
    let seconds = start.elapsed().as_secs_f64();
    assert!(z_i.grad().defined());
    Ok((seconds, output.loss.f_double_value(&[])?))
}

/// Peak resident memory so far, in MiB.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|l| l.starts_with("VmHWM")).expect("VmHWM");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).expect("a number") / 1024.0
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [what, kind, n] = &arguments[..] else {
        eprintln!("run by scripts/bench/loss.py: loss time|memory|value KIND N");
        return Ok(());
    };
    let yaml = KINDS.iter().find(|(name, _)| name == kind).expect("a kind of the benchmark").1;
    let mut loss = Loss::new(&weince::config::parse::<LossConfig>(yaml, kind, &[])?, Layout::TwoView)?;
    let n: i64 = n.parse().expect("N");
    tch::manual_seed(1);
    match what.as_str() {
        "time" => {
            // Small batches are timed in groups.
            let group = (2048 / n).max(1);
            for line in std::io::stdin().lock().lines() {
                line.expect("a line of text");
                let mut seconds = 0.0;
                for _ in 0..group {
                    seconds += step(&mut loss, n)?.0;
                }
                println!("{}", seconds / group as f64);
            }
        }
        "memory" => {
            step(&mut loss, 8)?;
            let before = peak();
            step(&mut loss, n)?;
            step(&mut loss, n)?;
            println!("{}", peak() - before);
        }
        "value" => println!("{}", step(&mut loss, n)?.1),
        other => panic!("expected time, memory or value, found {other}"),
    }
    Ok(())
}
