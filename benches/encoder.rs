//! Seconds of a forward and backward pass of an encoder, for `scripts/bench/encoder.py`, which takes turns with timm: each line of the
//! input asks for one pass, each line of the output is the seconds it took.
//!
//! encoder ENCODER_YAML BATCH SIZE

use std::io::BufRead;
use std::time::Instant;
use tch::{Device, Kind, Tensor};
use weince::config::model::EncoderConfig;
use weince::config::parse;
use weince::torch::clear_gradients;

fn main() -> weince::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let [config, batch, size] = &args[..] else {
        eprintln!("run by scripts/bench/encoder.py: encoder ENCODER_YAML BATCH SIZE");
        return Ok(());
    };
    let number = |text: &str| text.parse::<i64>().expect("a whole number");
    let (batch, size) = (number(batch), number(size));
    let encoder = weince::model::encoder(&parse::<EncoderConfig>(config, "encoder", &[])?, size as usize)?;
    let parameters: Vec<Tensor> = encoder.store().parameters().into_iter().map(|(_, p)| p).collect();
    let images = Tensor::f_randn([batch, 3, size, size], (Kind::Float, Device::Cpu))?;
    for line in std::io::stdin().lock().lines() {
        line.expect("a line of text");
        clear_gradients(&parameters)?;
        let start = Instant::now();
        encoder.forward(&images, true)?.f_square()?.f_sum(Kind::Float)?.f_backward()?;
        println!("{}", start.elapsed().as_secs_f64());
    }
    Ok(())
}
