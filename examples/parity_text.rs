//! What scripts/parity/test_text.py needs to see from Rust of a text model's folder.
//!
//! parity_text tokens FOLDER MAX_LENGTH SENTENCES OUT      (`-` for the folder's own length; SENTENCES a JSON list, OUT one of lists of ids)
//! parity_text encode FOLDER POOLER MAX_LENGTH SENTENCES OUT   (`-` for the folder's own pooler; OUT safetensors with `embeddings`)
//! parity_text learn FOLDER POOLER TARGET SENTENCES OUT    (in training mode; TARGET safetensors with `target`; OUT has `embeddings` and all gradients)
//! parity_text batch CONFIG STEP|FROM-TO ...               (prints which examples steps of a run see, a JSON list for each)

use anyhow::{Context, bail};
use clap::ValueEnum;
use std::collections::BTreeMap;
use std::path::Path;
use tch::{Device, Kind, Tensor};
use weince::checkpoint::safetensors;
use weince::config::text_model::Pooler;
use weince::data::text::TextTokenizer;
use weince::model::SentenceEncoder;
use weince::train::{Plan, Text};

fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tokens", folder, length, sentences, out] => {
            let tokenizer = TextTokenizer::load(Path::new(folder), given(length, |l| Ok(l.parse()?))?, 512)?;
            let ids = tokenizer.ids(&borrowed(&read(sentences)?))?;
            std::fs::write(out, serde_json::to_string(&ids)?)?;
        }
        ["encode", folder, pooler, length, sentences, out] => {
            let (encoder, tokenizer) = open(folder, pooler, length)?;
            let tokens = tokenizer.encode(&borrowed(&read(sentences)?))?;
            let embeddings = tch::no_grad(|| encoder.forward(&tokens.ids, tokens.mask.as_ref(), false))?;
            write(out, vec![("embeddings".into(), embeddings)])?;
        }
        ["learn", folder, pooler, target, sentences, out] => {
            let (encoder, tokenizer) = open(folder, pooler, "-")?;
            let target = &safetensors::load(Path::new(target))?.tensors[0].1;
            let tokens = tokenizer.encode(&borrowed(&read(sentences)?))?;
            let embeddings = encoder.forward(&tokens.ids, tokens.mask.as_ref(), true)?;
            (&embeddings - target).square().mean(Kind::Float).backward();
            let mut found = vec![("embeddings".to_string(), embeddings.detach())];
            let gradients = encoder.store().parameters().into_iter().map(|(name, t)| (name, t.grad()));
            found.extend(gradients.filter(|(_, gradient)| gradient.defined()));
            write(out, found)?;
        }
        ["batch", config, ref steps @ ..] => {
            let plan = Plan::<Text>::new(&weince::config::load(Path::new(config), &[])?, Device::Cpu)?;
            for range in steps {
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                let (from, to) = (from.parse::<u64>()?, to.parse::<u64>()?);
                for batch in plan.batches(from)?.take((to - from + 1) as usize) {
                    println!("{}", serde_json::to_string(&batch?.indices)?);
                }
            }
        }
        _ => bail!("expected `tokens`, `encode`, `learn` or `batch` with their arguments, found {args:?}"),
    }
    Ok(())
}

fn open(folder: &str, pooler: &str, length: &str) -> anyhow::Result<(SentenceEncoder, TextTokenizer)> {
    let named = |name: &str| Pooler::from_str(name, false).map_err(anyhow::Error::msg);
    let encoder = SentenceEncoder::load(Path::new(folder), given(pooler, named)?)?;
    let length = given(length, |l| Ok(l.parse()?))?;
    let tokenizer = TextTokenizer::load(
        &SentenceEncoder::transformer(Path::new(folder))?,
        length,
        SentenceEncoder::positions(Path::new(folder))?,
    )?;
    encoder.vocabulary().map_or(Ok(()), |rows| tokenizer.check_vocabulary(rows))?;
    println!("{:?}, at most {} tokens", encoder.pooler().context("no pooler")?, tokenizer.max_length());
    Ok((encoder, tokenizer))
}

/// What an argument gives, unless it is `-`.
fn given<T>(argument: &str, parse: impl Fn(&str) -> anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    (argument != "-").then(|| parse(argument)).transpose()
}

fn read(path: &str) -> anyhow::Result<Vec<String>> {
    let text = std::fs::read_to_string(path).with_context(|| path.to_string())?;
    Ok(serde_json::from_str(&text)?)
}

fn borrowed(sentences: &[String]) -> Vec<&str> {
    sentences.iter().map(String::as_str).collect()
}

fn write(path: &str, tensors: Vec<(String, Tensor)>) -> anyhow::Result<()> {
    let plain: Vec<(String, Tensor)> = tensors.into_iter().map(|(name, t)| (name, t.contiguous())).collect();
    Ok(safetensors::save(Path::new(path), &plain, &BTreeMap::new())?)
}
