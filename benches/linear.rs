//! Seconds of the linear probe's fit at one penalty, to be compared with scikit-learn's by `scripts/bench/linear.py`.
//!
//! Arguments: safetensors with `features` [n, d] and `labels` [n]; the penalty; where `weight` [classes, d] and `bias` [classes], of
//! standardised features, go. Prints one JSON object.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;
use tch::Device;
use weince::checkpoint::safetensors;
use weince::config::eval::{LbfgsConfig, LinearConfig};
use weince::eval::Features;
use weince::eval::linear::{self, Fit};

const ROUNDS: usize = 2;

fn main() -> weince::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let [train, l2, out] = &arguments[..] else { panic!("expected FEATURES L2 OUT, found {arguments:?}") };
    let train = Features::read(Path::new(train))?;
    let config = LbfgsConfig { l2: vec![l2.parse().expect("a penalty")], validation: 0.0 };
    let mut seconds = Vec::new();
    let mut last = None;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        last = Some(linear::fit(&LinearConfig::Lbfgs(config.clone()), 0, &train, Device::Cpu, &mut |_, _| ())?);
        seconds.push(start.elapsed().as_secs_f64());
    }
    let Some((model, Fit::Lbfgs(fit))) = last else { panic!("no fit of L-BFGS") };
    let (weight, bias) = model.weight_and_bias()?;
    safetensors::save(Path::new(out), &[("weight".into(), weight), ("bias".into(), bias)], &BTreeMap::new())?;
    let line = serde_json::json!({"seconds": seconds, "objective": fit.objective, "iterations": fit.iterations});
    println!("{line}");
    Ok(())
}
