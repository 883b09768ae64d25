//! Time and memory of a loss, forward and backward, for `scripts/bench/loss.py`, which takes turns with its peers, and `scripts/bench/tiled.py`.
//!
//! loss time KIND N      (each line of the input asks for a few batches, each line of the output is the seconds that one took)
//! loss memory KIND N    (extra peak memory in MiB, between the end of a tiny warm-up batch and the end of two real ones)
//! loss value KIND N     (the loss of the first batch that a seed gives)
//! loss tiled KIND N     (one batch in tiles beside the bare matrix products that it must do: seconds, products, extra_mib)
//!
//! The products are those that a loss without the [2N, 2N] matrix cannot do without: the similarities (WEINCE: in float64 and twice, since
//! lambda needs the tails of all anchors before the first logit), and the two that take the gradient back to rows and columns. They are done
//! in pieces that stay in the processor's cache as well as can be.

use std::io::BufRead;
use std::time::Instant;
use tch::{Device, Kind, Tensor};
use weince::config::loss::LossConfig;
use weince::loss::{Layout, Loss};
use weince::{Error, Result};

const DIMENSIONS: i64 = 128;

const KINDS: [(&str, &str); 4] = [
    ("infonce", "{kind: infonce}"),
    ("infonce_tiled", "{kind: infonce, tile: 256}"),
    ("weince", "{kind: weince}"),
    ("weince_tiled", "{kind: weince, tile: 256}"),
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

/// A configuration with tiles whatever N is, of as many entries as they have by themselves.
fn in_tiles(kind: &str, n: i64) -> String {
    format!("{{kind: {kind}, tile: {}}}", ((1i64 << 25) / (2 * n)).clamp(1, 2 * n - 1))
}

/// Seconds of the products alone.
fn products(kind: &str, n: i64) -> Result<f64> {
    const ROWS: i64 = 1024;
    const COLUMNS: i64 = 4096;
    let (rows, (similarity, times)) = (2 * n, if kind == "weince" { (Kind::Double, 2) } else { (Kind::Float, 1) });
    let unit = Tensor::f_randn([rows, DIMENSIONS], (Kind::Float, Device::Cpu))?;
    let (wide, g) = (unit.to_kind(similarity), Tensor::f_randn([ROWS, rows], (Kind::Float, Device::Cpu))?);
    let out = Tensor::f_empty([ROWS, COLUMNS], (similarity, Device::Cpu))?;
    let start = Instant::now();
    for _ in 0..times {
        for a in (0..rows).step_by(ROWS as usize) {
            let height = ROWS.min(rows - a);
            for c in (0..rows).step_by(COLUMNS as usize) {
                let width = COLUMNS.min(rows - c);
                let out = out.narrow(0, 0, height).narrow(1, 0, width);
                let _ = wide.narrow(0, a, height).f_mm_out(&out, &wide.narrow(0, c, width).tr())?;
            }
        }
    }
    for a in (0..rows).step_by(ROWS as usize) {
        let g = g.narrow(0, 0, ROWS.min(rows - a));
        let _ = g.f_mm(&unit)?;
        let _ = g.tr().f_mm(&unit.narrow(0, a, g.size()[0]))?;
    }
    Ok(start.elapsed().as_secs_f64())
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
        eprintln!("run by scripts/bench/loss.py and tiled.py: loss time|memory|value|tiled KIND N");
        return Ok(());
    };
    let n: i64 = n.parse().expect("N");
    let yaml = match what.as_str() {
        "tiled" => in_tiles(kind, n),
        _ => KINDS.iter().find(|(name, _)| name == kind).expect("a kind of the benchmark").1.to_string(),
    };
    let mut loss = Loss::new(&weince::config::parse::<LossConfig>(&yaml, kind, &[])?, Layout::TwoView)?;
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
        "tiled" => {
            step(&mut loss, 8)?;
            let before = peak();
            let seconds = step(&mut loss, n)?.0;
            let extra = peak() - before;
            println!("{}", serde_json::json!({"seconds": seconds, "products": products(kind, n)?, "extra_mib": extra}));
        }
        other => panic!("expected time, memory, value or tiled, found {other}"),
    }
    Ok(())
}
