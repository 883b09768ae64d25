//! Text pretraining: two dropout masks of each sentence (SimCSE), or pairs of sentences.

use super::plan::Plan;
use super::step::Learner;
use super::task::Task;
use crate::checkpoint::write_bytes;
use crate::config::text::TextConfig;
use crate::data::text::sts::{self, StsSet};
use crate::data::text::{Corpus, Sentences, TextBatch, TextTokenizer, Tokens};
use crate::dist::Group;
use crate::error::{Error, Result};
use crate::eval::embed::{DEFAULT_BATCH, embed};
use crate::eval::sts::{Gold, evaluate, sides, similarities};
use crate::loss::Layout;
use crate::model::{SentenceEncoder, Store};
use crate::progress::progress_bar;
use crate::run::RunFolder;
use sha2::{Digest, Sha256};
use std::ops::Range;
use std::sync::Arc;
use tch::{Device, Tensor};

/// Threads that tokenize: the tokenizer itself works with all processors.
const THREADS: usize = 1;

/// Training on sentences.
pub struct Text {
    corpus: Arc<Corpus>,
    tokenizer: Arc<TextTokenizer>,
    monitor: Option<StsSet>,
    /// The hash of the monitor's pairs and their scores.
    measure: Option<String>,
}

/// A sentence encoder in training.
pub struct TextModel {
    /// The encoder.
    pub encoder: SentenceEncoder,
}

impl Learner for TextModel {
    /// The sentences, and those that belong to them, where they are not the same; hard negatives behind these.
    type Batch = (Tokens, Option<Tokens>);

    fn parameters(&self) -> Vec<(String, Tensor)> {
        self.encoder.store().parameters()
    }

    fn buffers(&self) -> Vec<Tensor> {
        self.encoder.store().buffers()
    }

    fn samples((first, _): &(Tokens, Option<Tokens>)) -> i64 {
        first.ids.size()[0]
    }

    /// A sentence's hard negative stays with it.
    fn part(batch: &(Tokens, Option<Tokens>), samples: Range<i64>) -> Result<(Tokens, Option<Tokens>)> {
        let (first, second) = batch;
        let of = TextModel::samples(batch);
        let second = second.as_ref().map(|tokens| tokens.part(samples.clone(), of)).transpose()?;
        Ok((first.part(samples, of)?, second))
    }

    /// A sentence passes twice, in one batch with itself: dropout makes the two views.
    fn embed(&self, (first, second): &(Tokens, Option<Tokens>)) -> Result<(Tensor, Tensor)> {
        let embed = |tokens: &Tokens| self.encoder.forward(&tokens.ids, tokens.mask.as_ref(), true);
        if let Some(second) = second {
            return Ok((embed(first)?, embed(second)?));
        }
        let n = first.ids.size()[0];
        let z = embed(&first.twice()?)?;
        Ok((z.f_narrow(0, 0, n)?, z.f_narrow(0, n, n)?))
    }
}

/// The hash of all pairs of a set and their scores.
fn hash_of(set: &StsSet) -> String {
    let mut hash = Sha256::new();
    for subset in &set.subsets {
        hash.update(format!("{:?}", (&subset.name, &subset.pairs)));
    }
    format!("{:x}", hash.finalize())
}

impl Task for Text {
    type Config = TextConfig;
    type Model = TextModel;
    type Source = Sentences;

    const UNIT: &'static str = "sentences";
    const OTHERS: &'static str = "other ones";

    fn layout(config: &TextConfig) -> Layout {
        if config.train.both_directions { Layout::BothWays } else { Layout::OneWay }
    }

    fn compared(config: &TextConfig) -> (usize, usize) {
        (config.train.batch_size, config.batch_candidates())
    }

    fn open(config: &TextConfig) -> Result<Text> {
        let corpus = Arc::new(Corpus::open(&config.data)?);
        if corpus.len() == 1 && corpus.get(0)?.text.contains('\r') {
            let message = "expected lines that end with a line feed, found a single one with carriage returns in it; tr '\\r' '\\n' \
                           makes lines of them";
            return Err(Error::data(&config.data.path, None, message));
        }
        let monitor =
            config.eval.as_ref().map(|eval| sts::load(&eval.path, eval.split, eval.columns.as_ref())).transpose()?;
        if let Some(set) = &monitor {
            let gold: Vec<f64> = Gold::of(set).into_iter().flat_map(|subset| subset.scores).collect();
            if gold.iter().all(|score| *score == gold[0]) {
                return Err(Error::Config(format!(
                    "eval.path: {} pairs, all with the same score, have no correlation with anything; expected different scores",
                    gold.len()
                )));
            }
        }
        let tokenizer = SentenceEncoder::tokenizer(&config.model)?;
        let measure = monitor.as_ref().map(hash_of);
        Ok(Text { corpus, tokenizer: Arc::new(tokenizer), monitor, measure })
    }

    fn model(&self, config: &TextConfig, device: Device, _: &Group) -> Result<TextModel> {
        let encoder = SentenceEncoder::to_train(&config.model, &self.tokenizer)?;
        encoder.to_device(device)?;
        Ok(TextModel { encoder })
    }

    fn load_weights(plan: &Plan<Text>) -> Result<Vec<String>> {
        let drawn = plan.stepper.model.encoder.drawn();
        Ok(drawn.into_iter().map(|name| format!("{name} starts random, as in SimCSE")).collect())
    }

    fn code_sha256(config: &TextConfig) -> Result<Option<String>> {
        SentenceEncoder::code_sha256(&config.model).map(Some)
    }

    fn parts(model: &TextModel) -> Vec<(&'static str, &Store)> {
        vec![("model", model.encoder.store())]
    }

    fn samples(&self) -> usize {
        self.corpus.len()
    }

    fn list_sha256(&self) -> &str {
        self.corpus.sha256()
    }

    fn location(config: &TextConfig) -> String {
        config.data.path.display().to_string()
    }

    /// The corpus is mapped.
    fn memory(&self) -> usize {
        0
    }

    fn source(&self, config: &TextConfig) -> Result<(Sentences, usize)> {
        let group_by_length = config.train.group_by_length;
        Ok((Sentences::new(self.corpus.clone(), self.tokenizer.clone(), group_by_length), THREADS))
    }

    fn on_device(batch: &TextBatch, device: Device) -> Result<(Tokens, Option<Tokens>)> {
        let second = batch.second.as_ref().map(|tokens| tokens.to_device(device)).transpose()?;
        Ok((batch.first.to_device(device)?, second))
    }

    fn indices(batch: &TextBatch) -> Vec<i64> {
        batch.indices.clone()
    }

    fn measure(&self) -> Option<&str> {
        self.measure.as_deref()
    }

    fn evaluate(plan: &Plan<Text>, step: u64) -> Result<Option<(&'static str, f64)>> {
        let (Some(config), Some(set)) = (&plan.config.eval, &plan.task.monitor) else { return Ok(None) };
        if !step.is_multiple_of(config.every_steps) && step != plan.total_steps() {
            return Ok(None);
        }
        let sentences = set.sentences();
        let (encoder, tokenizer) = (&plan.stepper.model.encoder, &plan.task.tokenizer);
        let bar = progress_bar("sentences");
        let embeddings = embed(encoder, tokenizer, &sentences, DEFAULT_BATCH, plan.device, &mut |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        let (a, b) = sides(&embeddings?)?;
        let found = evaluate(&Gold::of(set), &similarities(&a, &b)?)?.all;
        if let Some(reason) = &found.reason {
            eprintln!("note: no Spearman after step {step}: {reason}");
        }
        Ok(found.spearman.map(|spearman| ("spearman", spearman)))
    }

    /// What the corpus has, and what of it was left out.
    fn write_notes(plan: &Plan<Text>, folder: &RunFolder) -> Result<()> {
        let report = plan.task.corpus.report();
        eprintln!("{report}");
        let json = serde_json::to_string_pretty(report).map_err(|e| Error::Input(format!("corpus.json: {e}")))?;
        write_bytes(&folder.corpus(), json + "\n")
    }

    /// A folder that transformers and sentence-transformers open, and another with the weights of the best state, where one is kept.
    fn write_weights(plan: &mut Plan<Text>, folder: &RunFolder) -> Result<()> {
        let config = plan.config.model.clone();
        let encoder = &mut plan.stepper.model.encoder;
        if folder.best().is_file() && plan.config.checkpoint.best_by.is_some() {
            let last: Vec<Tensor> = encoder.store().state_dict().iter().map(|(_, t)| t.copy()).collect();
            encoder.take(&folder.best())?;
            encoder.save(&config.path, &folder.best_model(), config.max_length, plan.device)?;
            let _guard = tch::no_grad_guard();
            for ((_, t), last) in encoder.store().state_dict().iter_mut().zip(&last) {
                t.f_copy_(last)?;
            }
        }
        // Last: that it is there says that the run has ended.
        encoder.save(&config.path, &folder.model(), config.max_length, plan.device)
    }

    fn name(plan: &Plan<Text>) -> String {
        plan.stepper.model.encoder.name()
    }

    fn features(plan: &Plan<Text>) -> Option<i64> {
        plan.stepper.model.encoder.width()
    }

    fn dimensions(plan: &Plan<Text>) -> Option<i64> {
        Self::features(plan)
    }
}
