//! Sentences to vectors by a trained encoder, many at a time and in their order.

use crate::data::text::{TextTokenizer, Tokens};
use crate::error::{Error, Result};
use crate::model::SentenceEncoder;
use tch::{Device, Kind, Tensor};

/// Sentences of a batch unless the caller says otherwise.
pub const DEFAULT_BATCH: usize = 64;

/// The vectors of sentences, computed in evaluation and without gradient. Sentences of like length share a batch, so that there is little
/// padding; equal sentences have equal vectors, computed once. `progress` gets the sentences done and in all.
///
/// # Shapes
/// float32 [sentences, width], on the CPU.
///
/// # Errors
/// No sentences, a batch of 0, and what tokenizer and encoder report.
pub fn embed(
    encoder: &SentenceEncoder,
    tokenizer: &TextTokenizer,
    sentences: &[&str],
    batch: usize,
    device: Device,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Tensor> {
    let forward = |tokens: &Tokens| encoder.forward(&tokens.ids, tokens.mask.as_ref(), false);
    embed_by(&forward, tokenizer, sentences, Equal::Once, batch, device, progress)
}

/// What is done with equal sentences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Equal {
    /// They share a vector.
    Once,
    /// Each has its own, as dropout makes them differ.
    Each,
}

/// As [`embed`], with the vectors that `forward` makes of a batch.
pub(super) fn embed_by(
    forward: &dyn Fn(&Tokens) -> Result<Tensor>,
    tokenizer: &TextTokenizer,
    sentences: &[&str],
    equal: Equal,
    batch: usize,
    device: Device,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Tensor> {
    if batch == 0 || sentences.is_empty() {
        return Err(Error::Input(format!(
            "expected sentences and a batch of at least 1, found {} sentences and a batch of {batch}",
            sentences.len()
        )));
    }
    let _guard = tch::no_grad_guard();
    let ids = tokenizer.ids(sentences)?;
    let mut order: Vec<usize> = (0..ids.len()).collect();
    // Longest first: what does not fit in memory shows at once. Among those of a length by their tokens: equal ones meet.
    order.sort_by(|&a, &b| ids[b].len().cmp(&ids[a].len()).then_with(|| ids[a].cmp(&ids[b])).then(a.cmp(&b)));
    let mut different: Vec<usize> = Vec::new();
    let mut place = vec![0i64; ids.len()];
    for i in order {
        if equal == Equal::Each || different.last().is_none_or(|last| ids[*last] != ids[i]) {
            different.push(i);
        }
        place[i] = different.len() as i64 - 1;
    }
    let (mut vectors, all) = (Vec::new(), different.len() as u64);
    for indices in different.chunks(batch) {
        let rows: Vec<&[u32]> = indices.iter().map(|i| &ids[*i][..]).collect();
        let tokens = tokenizer.padded(&rows)?.to_device(device)?;
        vectors.push(forward(&tokens)?.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?);
        progress((vectors.len() * batch).min(different.len()) as u64, all);
    }
    Ok(Tensor::f_cat(&vectors, 0)?.f_index_select(0, &Tensor::f_from_slice(&place)?)?)
}
