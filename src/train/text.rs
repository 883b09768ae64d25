//! Text pretraining: two dropout masks of each sentence (SimCSE), or pairs of sentences.

use super::plan::Plan;
use super::step::Learner;
use super::task::Task;
use crate::config::text::TextConfig;
use crate::data::text::sts::{self, StsSet};
use crate::data::text::{Corpus, Sentences, TextBatch, TextTokenizer, Tokens};
use crate::error::Result;
use crate::eval::embed::{DEFAULT_BATCH, embed};
use crate::eval::sts::{Gold, cosines_of_pairs, evaluate};
use crate::loss::Layout;
use crate::model::{SentenceEncoder, Store};
use crate::run::RunFolder;
use std::sync::Arc;
use tch::{Device, Tensor};

/// Threads that tokenize: the tokenizer itself works with all processors.
const THREADS: usize = 1;

/// Training on sentences.
pub struct Text {
    corpus: Arc<Corpus>,
    tokenizer: Arc<TextTokenizer>,
    monitor: Option<StsSet>,
}

/// A sentence encoder in training.
pub struct TextModel {
    /// The encoder.
    pub encoder: SentenceEncoder,
}

impl Learner for TextModel {
    /// The sentences, and those that belong to them, where they are not the same.
    type Batch = (Tokens, Option<Tokens>);

    fn parameters(&self) -> Vec<(String, Tensor)> {
        self.encoder.bert().store().parameters()
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

    fn fault(&self, _: &(Tokens, Option<Tokens>)) -> Result<Option<String>> {
        Ok(None)
    }
}

impl Task for Text {
    type Config = TextConfig;
    type Model = TextModel;
    type Source = Sentences;

    const UNIT: &'static str = "sentences";
    const OTHERS: &'static str = "other ones";
    const LAYOUT: Layout = Layout::OneWay;

    fn open(config: &TextConfig) -> Result<Text> {
        let corpus = Arc::new(Corpus::open(&config.data)?);
        let monitor =
            config.eval.as_ref().map(|eval| sts::load(&eval.path, eval.split, eval.columns.as_ref())).transpose()?;
        let positions = SentenceEncoder::positions(&config.model.path)?;
        let tokenizer = TextTokenizer::load(&config.model.path, Some(config.model.max_length), positions)?;
        Ok(Text { corpus, tokenizer: Arc::new(tokenizer), monitor })
    }

    fn model(&self, config: &TextConfig, device: Device) -> Result<TextModel> {
        let encoder = SentenceEncoder::to_train(&config.model.path, config.model.pooler, config.model.evaluated())?;
        self.tokenizer.check_vocabulary(encoder.bert().config().vocab_size)?;
        encoder.to_device(device)?;
        Ok(TextModel { encoder })
    }

    fn spared(_: &TextModel) -> Vec<String> {
        Vec::new()
    }

    fn parts(model: &TextModel) -> Vec<(&'static str, &Store)> {
        vec![("model", model.encoder.bert().store())]
    }

    fn load_weights(_: &Plan<Text>) -> Result<Vec<String>> {
        Ok(Vec::new())
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

    fn source(&self, _: &TextConfig) -> Result<(Sentences, usize)> {
        Ok((Sentences::new(self.corpus.clone(), self.tokenizer.clone()), THREADS))
    }

    fn on_device(batch: &TextBatch, device: Device) -> Result<(Tokens, Option<Tokens>)> {
        let second = batch.second.as_ref().map(|tokens| tokens.to_device(device)).transpose()?;
        Ok((batch.first.to_device(device)?, second))
    }

    fn indices(batch: &TextBatch) -> Vec<i64> {
        batch.indices.clone()
    }

    fn probe(batch: &TextBatch, samples: i64) -> Result<(Tokens, Option<Tokens>)> {
        let second = batch.second.as_ref().map(|tokens| tokens.first(samples)).transpose()?;
        Ok((batch.first.first(samples)?, second))
    }

    fn evaluate(plan: &Plan<Text>, step: u64) -> Result<Option<(&'static str, f64)>> {
        let (Some(config), Some(set)) = (&plan.config.eval, &plan.task.monitor) else { return Ok(None) };
        if !step.is_multiple_of(config.every_steps) && step != plan.total_steps() {
            return Ok(None);
        }
        let sentences: Vec<&str> = set.pairs().flat_map(|pair| [pair.a.as_str(), pair.b.as_str()]).collect();
        let (encoder, tokenizer) = (&plan.stepper.model.encoder, &plan.task.tokenizer);
        let embeddings = embed(encoder, tokenizer, &sentences, DEFAULT_BATCH, plan.device, &mut |_, _| ())?;
        let found = evaluate(&Gold::of(set), &cosines_of_pairs(&embeddings)?)?;
        // Where all predictions are the same there is no correlation, and nothing worse.
        Ok(Some(("spearman", found.all.spearman.unwrap_or(-1.0))))
    }

    /// What of the corpus was left out.
    fn write_notes(plan: &Plan<Text>, _: &RunFolder) -> Result<()> {
        eprintln!("{}", plan.task.corpus.report());
        Ok(())
    }

    fn write_pictures(_: &Plan<Text>, _: &RunFolder) -> Result<()> {
        Ok(())
    }

    /// A folder that transformers and sentence-transformers open.
    fn write_weights(plan: &Plan<Text>, folder: &RunFolder) -> Result<()> {
        let (encoder, config) = (&plan.stepper.model.encoder, &plan.config.model);
        encoder.save(&config.path, &folder.model(), config.max_length)
    }

    fn describe(plan: &Plan<Text>) -> (String, i64) {
        let config = plan.stepper.model.encoder.bert().config();
        (format!("bert, {} layers", config.num_hidden_layers), config.hidden_size)
    }
}
