//! Seconds to write and to read a checkpoint of ResNet-50 with Adam's state, for `scripts/bench/checkpoint.py`, which takes turns
//! with PyTorch: each line of the input is `save FILE` or `load FILE`, each line of the output the seconds it took.

use std::io::BufRead;
use std::path::Path;
use std::time::Instant;
use tch::Kind;
use weince::checkpoint::{Value, torch_file};
use weince::config::model::ModelConfig;
use weince::config::optim::OptimConfig;
use weince::config::parse;
use weince::model::Model;
use weince::optim::Optimizer;

fn main() -> weince::Result<()> {
    let model = Model::new(&parse::<ModelConfig>("encoder: {kind: resnet50}", "model", &[])?, 32)?;
    let parameters = model.parameters();
    let mut optimizer = Optimizer::new(&parse::<OptimConfig>("{kind: adam}", "optim", &[])?, &parameters)?;
    for (_, p) in &parameters {
        p.square().sum(Kind::Float).backward();
    }
    optimizer.step(1e-3, None)?;
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("a line of text");
        let (what, file) = line.split_once(' ').expect("`save FILE` or `load FILE`");
        let start = Instant::now();
        match what {
            "save" => {
                let value = Value::dict([
                    ("model", Value::state_dict(model.encoder.store().state_dict())),
                    ("projector", Value::state_dict(model.projector.store().state_dict())),
                    ("optimizer", optimizer.state_dict(1e-3)),
                ]);
                torch_file::save(Path::new(file), &value)?;
            }
            _ => drop(torch_file::load(Path::new(file))?),
        }
        println!("{}", start.elapsed().as_secs_f64());
    }
    Ok(())
}
