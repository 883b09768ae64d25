//! A loss over more similarities than memory holds: its time beside that of the matrix products that it must do, in the same run, and its memory.
//!
//!     cargo bench --bench tiled -- [threads] [N ...]
//!
//! Prints one JSON object a line for each kind and N: `seconds` of forward and backward, `products` of the bare products, `extra_mib`, the
//! peak memory above that before the batch, measured in a fresh process. The products are those that a loss without the
//! [2N, 2N] matrix cannot do without: the similarities (WEINCE: in float64 and twice, since lambda needs the statistics of all anchors before
//! the first logit), and the two that take the gradient back to rows and columns. They are done in pieces that stay in the processor's cache as
//! well as can be.

use std::process::Command;
use std::time::Instant;
use tch::{Device, Kind, Tensor};
use weince::config::loss::LossConfig;
use weince::loss::{Layout, Loss};

const DIMENSIONS: i64 = 128;
const SIZES: [i64; 4] = [4096, 8192, 16_384, 32_768];
const KINDS: [&str; 2] = ["infonce", "weince"];

fn leaf(n: i64) -> Tensor {
    Tensor::randn([n, DIMENSIONS], (Kind::Float, Device::Cpu)).set_requires_grad(true)
}

/// Tiles whatever N is, of about as many entries as they have by themselves.
fn loss(kind: &str, n: i64) -> Loss {
    let tile = ((1i64 << 25) / (2 * n)).clamp(1, 2 * n - 1);
    let config: LossConfig =
        weince::config::parse(&format!("{{kind: {kind}, tile: {tile}}}"), kind, &[]).expect("a configuration");
    Loss::new(&config, Layout::TwoView).expect("a loss")
}

fn step(loss: &mut Loss, n: i64) -> f64 {
    let (z_i, z_j) = (leaf(n), leaf(n));
    let start = Instant::now();
    loss.forward(&z_i, &z_j).expect("a batch").loss.backward();
    start.elapsed().as_secs_f64()
}

/// Seconds of the products alone.
fn products(kind: &str, n: i64) -> f64 {
    const ROWS: i64 = 1024;
    const COLUMNS: i64 = 4096;
    let (rows, (similarity, times)) = (2 * n, if kind == "weince" { (Kind::Double, 2) } else { (Kind::Float, 1) });
    let unit = Tensor::randn([rows, DIMENSIONS], (Kind::Float, Device::Cpu));
    let (rows, wide) = (rows.min(1 << 20), unit.to_kind(similarity));
    let start = Instant::now();
    let out = Tensor::empty([ROWS, COLUMNS], (similarity, Device::Cpu));
    for _ in 0..times {
        for a in (0..rows).step_by(ROWS as usize) {
            for c in (0..rows).step_by(COLUMNS as usize) {
                let _ = wide.narrow(0, a, ROWS).f_mm_out(&out, &wide.narrow(0, c, COLUMNS).tr()).expect("a product");
            }
        }
    }
    let g = Tensor::randn([ROWS, rows], (Kind::Float, Device::Cpu));
    for a in (0..rows).step_by(ROWS as usize) {
        let _ = g.mm(&unit);
        let _ = g.tr().mm(&unit.narrow(0, a, ROWS));
    }
    start.elapsed().as_secs_f64()
}

/// Peak resident memory so far, in MiB.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|l| l.starts_with("VmHWM")).expect("VmHWM");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).expect("a number") / 1024.0
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let number = |text: &String| text.parse::<i64>().expect("a whole number");
    tch::manual_seed(1);
    if let [command, kind, n, threads] = &arguments[..]
        && command == "once"
    {
        let n = number(n);
        tch::set_num_threads(number(threads) as i32);
        let mut loss = loss(kind, n);
        step(&mut loss, 8);
        let before = peak();
        let seconds = step(&mut loss, n);
        let extra = peak() - before;
        let products = products(kind, n);
        println!(
            "{{\"kind\": \"{kind}\", \"n\": {n}, \"threads\": {threads}, \"seconds\": {seconds:.3}, \"products\": {products:.3}, \"ratio\": {:.3}, \
             \"extra_mib\": {extra:.1}}}",
            seconds / products
        );
        return;
    }
    let threads = arguments.first().cloned().unwrap_or_else(|| tch::get_num_threads().to_string());
    let sizes = if arguments.len() > 1 { arguments[1..].iter().map(number).collect() } else { SIZES.to_vec() };
    for kind in KINDS {
        for n in &sizes {
            let again = Command::new(std::env::current_exe().expect("this program"));
            let status = { again }.args(["once", kind, &n.to_string(), &threads]).status();
            assert!(status.expect("this program again").success());
        }
    }
}
