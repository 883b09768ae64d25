//! Batches of tokenized sentences.

use super::corpus::Corpus;
use super::tokenizer::{TextTokenizer, Tokens};
use crate::augment::random::{Keyed, Purpose};
use crate::data::loader::Source;
use crate::data::sampler::{Position, Sampler};
use crate::error::Result;
use std::sync::Arc;

/// Batches of the plain order that are sorted by length together.
const WINDOW: u64 = 50;

/// What a training step sees of a corpus.
#[derive(Debug)]
pub struct TextBatch {
    /// Index of each example in its corpus.
    pub indices: Vec<i64>,
    /// The sentences.
    pub first: Tokens,
    /// The sentences that belong to them, and behind them the hard negatives of all, where there are some; none where a sentence
    /// belongs to itself.
    pub second: Option<Tokens>,
}

/// A corpus, and the tokenizer of its sentences.
pub struct Sentences {
    corpus: Arc<Corpus>,
    tokenizer: Arc<TextTokenizer>,
    group_by_length: bool,
}

/// An example as token ids: its sentences in the order of their roles.
struct Encoded {
    sample: u32,
    sides: Vec<Vec<u32>>,
}

/// The window of batches that a worker has made.
#[derive(Default)]
pub struct Window {
    /// Its epoch and its number there.
    place: Option<(u64, u64)>,
    batches: Vec<Vec<Encoded>>,
}

impl Sentences {
    /// Sentences of this corpus; with `group_by_length` those of like length share a batch.
    pub fn new(corpus: Arc<Corpus>, tokenizer: Arc<TextTokenizer>, group_by_length: bool) -> Sentences {
        Sentences { corpus, tokenizer, group_by_length }
    }

    /// Reads and tokenizes.
    fn encode(&self, samples: &[u32]) -> Result<Vec<Encoded>> {
        let mut texts = Vec::with_capacity(samples.len());
        for sample in samples {
            let example = self.corpus.get(*sample as usize)?;
            texts.extend([Some(example.text), example.positive, example.hard_negative].into_iter().flatten());
        }
        let mut ids = self.tokenizer.ids(&texts.iter().map(String::as_str).collect::<Vec<_>>())?.into_iter();
        // A corpus has the same sides everywhere.
        let sides = texts.len() / samples.len().max(1);
        Ok(samples
            .iter()
            .map(|sample| Encoded { sample: *sample, sides: ids.by_ref().take(sides).collect() })
            .collect())
    }

    fn batch(&self, examples: &[Encoded]) -> Result<TextBatch> {
        let side = |side: usize| examples.iter().filter_map(move |example| example.sides.get(side).map(Vec::as_slice));
        let first: Vec<&[u32]> = side(0).collect();
        let second: Vec<&[u32]> = side(1).chain(side(2)).collect();
        Ok(TextBatch {
            indices: examples.iter().map(|example| i64::from(example.sample)).collect(),
            first: self.tokenizer.padded(&first)?,
            second: if second.is_empty() { None } else { Some(self.tokenizer.padded(&second)?) },
        })
    }

    /// The batches of a window: its samples by length, the batches in a random order.
    fn window(&self, sampler: &Sampler, order: &[u32], epoch: u64, number: u64) -> Result<Vec<Vec<Encoded>>> {
        let (begin, end) = (number * WINDOW, ((number + 1) * WINDOW).min(sampler.steps_per_epoch()));
        let samples = &order[begin as usize * sampler.batch()..end as usize * sampler.batch()];
        let mut examples = self.encode(samples)?;
        // Stable: where lengths are equal, the plain order stays.
        examples.sort_by_key(|example| example.sides.iter().map(Vec::len).sum::<usize>());
        let mut examples = examples.into_iter();
        let mut batches: Vec<Vec<Encoded>> =
            (begin..end).map(|_| examples.by_ref().take(sampler.batch()).collect()).collect();
        Keyed::new(sampler.seed(), epoch, Purpose::Window { number }).shuffle(&mut batches);
        Ok(batches)
    }
}

impl Source for Sentences {
    type Batch = TextBatch;
    type Bench = Window;

    fn make(&self, sampler: &Sampler, position: Position, order: &[u32], window: &mut Window) -> Result<TextBatch> {
        if !self.group_by_length {
            return self.batch(&self.encode(sampler.step(order, position.step))?);
        }
        let place = (position.epoch, position.step / WINDOW);
        if window.place != Some(place) {
            *window = Window { batches: self.window(sampler, order, place.0, place.1)?, place: Some(place) };
        }
        self.batch(&window.batches[(position.step % WINDOW) as usize][sampler.share()])
    }
}
