//! Seconds of what text training does, for `scripts/bench/text.py`, which takes turns with transformers: each line of the input asks
//! for one round, each line of the output is the seconds it took.
//!
//! text step FOLDER BATCH LENGTH PRECISION    (a SimCSE step over sentences of so many tokens)
//! text tokenize FOLDER LENGTH FILE           (token ids of every line, in chunks of 1,000)

use std::io::BufRead;
use std::path::Path;
use std::time::Instant;
use tch::{Device, Kind, Tensor};
use weince::config::parse;
use weince::config::text_model::TextModelConfig;
use weince::data::text::{TextTokenizer, Tokens};
use weince::loss::{Layout, Loss};
use weince::model::SentenceEncoder;
use weince::optim::Optimizer;
use weince::train::{Learner, StepOptions, Stepper, TextModel};
use weince::{Error, Result};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["step", folder, batch, length, precision] => step(folder, number(batch), number(length), precision),
        ["tokenize", folder, length, file] => tokenize(Path::new(folder), number(length) as usize, file),
        _ => {
            eprintln!(
                "run by scripts/bench/text.py: text step FOLDER BATCH LENGTH PRECISION, or tokenize FOLDER LENGTH FILE"
            );
            Ok(())
        }
    }
}

fn number(text: &str) -> i64 {
    text.parse().expect("a whole number")
}

/// Prints the seconds that a round takes, whenever one is asked for.
fn on_demand(mut round: impl FnMut() -> Result<()>) -> Result<()> {
    for line in std::io::stdin().lock().lines() {
        line.expect("a line of text");
        let start = Instant::now();
        round()?;
        println!("{}", start.elapsed().as_secs_f64());
    }
    Ok(())
}

fn step(folder: &str, batch: i64, length: i64, precision: &str) -> Result<()> {
    let config: TextModelConfig =
        parse(&format!("{{path: {folder:?}, pooler: avg, max_length: {length}}}"), "model", &[])?;
    let tokenizer = SentenceEncoder::tokenizer(&config)?;
    let model = TextModel { encoder: SentenceEncoder::to_train(&config, &tokenizer)? };
    let adamw = "{kind: adamw, lr: 3.0e-5, weight_decay: 0.0, exclude_bias_and_norm: true}";
    let optimizer = Optimizer::new(&parse(adamw, "optim", &[])?, &model.parameters())?;
    let loss = Loss::new(&parse("{kind: infonce, temperature: 0.05}", "loss", &[])?, Layout::OneWay)?;
    let options =
        StepOptions { precision: parse(precision, "precision", &[])?, clip_norm: Some(1.0), ..Default::default() };
    let mut stepper = Stepper::new(model, optimizer, loss, options, Device::Cpu)?;
    tch::manual_seed(0);
    let ids = Tensor::f_randint_low(1000, 20_000, [batch, length], (Kind::Int64, Device::Cpu))?;
    let tokens = (Tokens { ids, mask: None }, None);
    on_demand(|| stepper.step(&tokens, 3e-5, 0).map(drop))
}

fn tokenize(folder: &Path, length: usize, file: &str) -> Result<()> {
    let tokenizer = TextTokenizer::load(folder, Some(length), SentenceEncoder::positions(folder)?)?;
    let text = std::fs::read_to_string(file).map_err(|e| Error::Input(format!("{file}: {e}")))?;
    let lines: Vec<&str> = text.lines().collect();
    on_demand(|| lines.chunks(1000).try_for_each(|chunk| tokenizer.ids(chunk).map(drop)))
}
