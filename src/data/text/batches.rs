//! Batches of tokenized sentences.

use super::corpus::Corpus;
use super::tokenizer::{TextTokenizer, Tokens};
use crate::data::loader::Source;
use crate::data::sampler::Position;
use crate::error::Result;
use std::sync::Arc;

/// What a training step sees of a corpus.
#[derive(Debug)]
pub struct TextBatch {
    /// Index of each example in its corpus.
    pub indices: Vec<i64>,
    /// The sentences.
    pub first: Tokens,
    /// The sentences that belong to them; none where a sentence belongs to itself.
    pub second: Option<Tokens>,
}

/// A corpus, and the tokenizer of its sentences.
pub struct Sentences {
    corpus: Arc<Corpus>,
    tokenizer: Arc<TextTokenizer>,
}

impl Sentences {
    /// Sentences of this corpus.
    pub fn new(corpus: Arc<Corpus>, tokenizer: Arc<TextTokenizer>) -> Sentences {
        Sentences { corpus, tokenizer }
    }
}

impl Source for Sentences {
    type Batch = TextBatch;
    type Bench = ();

    fn make(&self, _: u64, _: Position, samples: &[u32], _: &mut ()) -> Result<TextBatch> {
        let (mut texts, mut positives) = (Vec::with_capacity(samples.len()), Vec::new());
        for sample in samples {
            let example = self.corpus.get(*sample as usize)?;
            texts.push(example.text);
            positives.extend(example.positive);
        }
        let encode = |texts: &[String]| self.tokenizer.encode(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        Ok(TextBatch {
            indices: samples.iter().map(|sample| i64::from(*sample)).collect(),
            first: encode(&texts)?,
            second: if positives.is_empty() { None } else { Some(encode(&positives)?) },
        })
    }
}
