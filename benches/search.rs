//! Rate of the two passes of a search over all pairs, beside that of LibTorch's plain products of the same rows in the same run.
//!
//! Arguments: anchors, items and dimensions [default: 4096 65536 128]. Prints one JSON object; rates are in products of numbers a second.

use std::time::Instant;
use tch::{Device, Kind, Tensor};
use weince::eval::matrix::Matrix;
use weince::eval::rows::Rows;
use weince::search::passes::Pairs;

const ROUNDS: usize = 5;
/// Items of a plain product.
const BLOCK: i64 = 4096;

fn main() -> weince::Result<()> {
    let arguments: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let [n, m, d] = arguments[..] else { return run(4096, 65_536, 128) };
    run(n, m, d)
}

fn run(n: usize, m: usize, d: usize) -> weince::Result<()> {
    tch::manual_seed(0);
    let random = |rows: usize| {
        let rows = Tensor::randn([rows as i64, d as i64], (Kind::Float, Device::Cpu));
        &rows / rows.square().sum_dim_intlist([1i64].as_slice(), true, Kind::Float).sqrt()
    };
    let (anchors, items) = (random(n), random(m));
    let values = |t: &Tensor| Vec::<f32>::try_from(t.flatten(0, -1)).expect("numbers");
    let rows = Rows::new(values(&anchors), d);
    let corpus = Matrix::of("items", values(&items), d)?;
    let positives = vec![0.3; n];
    let pairs = Pairs { anchors: &rows, positives: &positives, own: None, corpus: &corpus, inverse_temperature: 20.0 };
    let products = (n * m * d) as f64;
    let mut plain = Vec::new();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let out = Tensor::empty([n as i64, BLOCK], (Kind::Float, Device::Cpu));
        for block in items.split(BLOCK, 0) {
            if block.size()[0] == BLOCK {
                let _ = anchors.matmul_out(&out, &block.tr());
            } else {
                let _ = anchors.matmul(&block.tr());
            }
        }
        plain.push(products / start.elapsed().as_secs_f64());
        let start = Instant::now();
        let sums = pairs.sums(&mut |_| ())?;
        first.push(products / start.elapsed().as_secs_f64());
        let start = Instant::now();
        pairs.shares(&sums, &mut |_| ())?;
        second.push(products / start.elapsed().as_secs_f64());
    }
    let median = |rates: &mut Vec<f64>| {
        rates.sort_by(f64::total_cmp);
        rates[ROUNDS / 2]
    };
    let [plain, first, second] = [&mut plain, &mut first, &mut second].map(median);
    println!(
        "{}",
        serde_json::json!({"anchors": n, "items": m, "dimensions": d, "threads": tch::get_num_threads(), "plain": plain, "sums": first,
            "shares": second, "sums_to_plain": first / plain, "shares_to_plain": second / plain})
    );
    Ok(())
}
