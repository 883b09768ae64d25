//! Seconds of the search for nearest neighbours, to be compared with faiss's by `scripts/bench/knn.py`.
//!
//! Arguments: safetensors of the bank and of the queries, each with `features` [n, d] of norm 1; k; where `indices` and `similarities`
//! [queries, k] go. Prints one JSON object.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;
use tch::{Device, Kind, Tensor};
use weince::checkpoint::safetensors;
use weince::eval::{Features, knn};

const ROUNDS: usize = 2;

fn main() -> weince::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let [bank, queries, k, out] = &arguments[..] else { panic!("expected BANK QUERIES K OUT, found {arguments:?}") };
    let (bank, queries, k) = (read(bank)?, read(queries)?, k.parse().expect("a number of neighbours"));
    let mut seconds = Vec::new();
    let mut found = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        found = knn::neighbours(&bank, &queries, k, Device::Cpu)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    let shape = [queries.samples() as i64, k as i64];
    let indices: Vec<i64> = found.iter().flatten().map(|n| i64::from(n.1)).collect();
    let similarities: Vec<f32> = found.iter().flatten().map(|n| n.0 as f32).collect();
    let tensors = [
        ("indices".to_string(), Tensor::from_slice(&indices).reshape(shape)),
        ("similarities".to_string(), Tensor::from_slice(&similarities).reshape(shape)),
    ];
    safetensors::save(Path::new(out), &tensors, &BTreeMap::new())?;
    println!("{}", serde_json::json!({"seconds": seconds}));
    Ok(())
}

/// The features of a file, which need no labels here.
fn read(path: &str) -> weince::Result<Features> {
    let tensors = safetensors::load(Path::new(path))?.tensors;
    let features = &tensors.iter().find(|(name, _)| name == "features").expect("`features`").1;
    Features::new(features, &Tensor::zeros([features.size()[0]], (Kind::Int64, Device::Cpu)))
}
