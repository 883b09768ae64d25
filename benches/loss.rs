//! Time and memory of a loss, forward and backward: `cargo bench --bench loss`, or `scripts/bench/loss.sh` beside its peers.
//!
//! Prints one JSON object a line: kind, n, processor milliseconds (median and least of the repeats), extra peak memory in MiB. The
//! memory is measured in a fresh process each, between the end of a tiny warm-up batch and the end of two real ones.

use std::process::Command;
use tch::{Device, Kind, Tensor};
use weince::config::loss::LossConfig;
use weince::loss::{Layout, Loss};

const DIMENSIONS: i64 = 128;
const SIZES: [i64; 3] = [256, 512, 1024];

const FULL: &str = "{kind: reference, policy: tlambda_select, auto_weib_beta: true, use_weib_topm: true, weib_lambda: 0.5, \
                    weib_top_m: 50, use_pl_topm: true, pl_lambda: 0.5, pl_top_m: 50, anchor_r2_min: 0.2}";
const KINDS: [(&str, &str); 3] =
    [("infonce", "{kind: infonce}"), ("weince", "{kind: weince}"), ("reference_full", FULL)];

fn step(loss: &mut Loss, n: i64) -> f64 {
    let leaf = || Tensor::randn([n, DIMENSIONS], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    let (z_i, z_j) = (leaf(), leaf());
    let start = processor_ms();
    let output = loss.forward(&z_i, &z_j).expect("a batch of the benchmark");
    output.loss.backward();
    let end = processor_ms();
    assert!(z_i.grad().defined());
    end - start
}

/// Time that this thread had on a processor, in milliseconds: other programs' turns don't count.
fn processor_ms() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).expect("nanoseconds") / 1e6
}

/// Peak resident memory so far, in MiB.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|l| l.starts_with("VmHWM")).expect("VmHWM");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).expect("a number") / 1024.0
}

fn main() {
    tch::set_num_threads(1);
    tch::manual_seed(1);
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let yaml = |kind: &str| KINDS.iter().find(|(name, _)| *name == kind).expect("a kind of the benchmark").1;
    let new = |kind: &str| {
        let config: LossConfig =
            weince::config::parse(yaml(kind), kind, &[]).expect("a configuration of the benchmark");
        Loss::new(&config, Layout::TwoView).expect("a configuration of the benchmark")
    };
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["memory", kind, n] => {
            let mut loss = new(kind);
            step(&mut loss, 8);
            let before = peak();
            step(&mut loss, n.parse().expect("N"));
            step(&mut loss, n.parse().expect("N"));
            println!("{}", peak() - before);
        }
        // One measurement, for callers that take turns with their peers.
        ["time", kind, n, repeats] => {
            let n = n.parse().expect("N");
            let mut loss = new(kind);
            step(&mut loss, n);
            // The processor's time is known to a few milliseconds: small batches are timed in groups.
            let group = (2048 / n).max(1);
            let mean = |loss: &mut Loss| (0..group).map(|_| step(loss, n)).sum::<f64>() / group as f64;
            let mut times: Vec<f64> = (0..repeats.parse().expect("repeats")).map(|_| mean(&mut loss)).collect();
            times.sort_by(f64::total_cmp);
            let memory = Command::new(std::env::current_exe().expect("this program"))
                .args(["memory", kind, &n.to_string()])
                .output()
                .expect("this program again");
            let extra: f64 = String::from_utf8_lossy(&memory.stdout).trim().parse().expect("MiB");
            println!(
                "{{\"kind\": \"{kind}\", \"n\": {n}, \"median_ms\": {:.3}, \"least_ms\": {:.3}, \"extra_mib\": {extra:.1}}}",
                times[times.len() / 2],
                times[0]
            );
        }
        _ => {
            for (kind, _) in KINDS {
                for n in SIZES {
                    let status = Command::new(std::env::current_exe().expect("this program"))
                        .args(["time", kind, &n.to_string(), "15"])
                        .status();
                    assert!(status.expect("this program again").success());
                }
            }
        }
    }
}
