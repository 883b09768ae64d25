//! A sentence encoder opened for evaluation: of a run of pretrain-text, or of a model's folder.

use super::embed::{DEFAULT_BATCH, Equal, embed_by};
use super::matrix::Matrix;
use super::run_encoder::Space;
use crate::checkpoint::sha256_of;
use crate::config::text::TextConfig;
use crate::config::text_model::Pooler;
use crate::data::text::{TextTokenizer, Tokens};
use crate::error::{Error, Result};
use crate::model::{Head, SentenceEncoder};
use crate::progress::progress_bar;
use crate::run::RunFolder;
use crate::torch::allow_tf32;
use serde_json::{Value, json};
use std::path::Path;
use tch::{Device, Tensor};

/// A sentence encoder with its tokenizer, on its device.
#[derive(Debug)]
pub struct TextRunEncoder {
    encoder: SentenceEncoder,
    tokenizer: TextTokenizer,
    space: Space,
    device: Device,
}

impl TextRunEncoder {
    /// Opens a model's folder as transformers or sentence-transformers write it. `pooler` and `max_length` replace what
    /// the folder says.
    ///
    /// # Errors
    /// A run's folder; as [`SentenceEncoder::load`] and [`TextTokenizer::load`]; a tokenizer of more tokens than the
    /// encoder embeds.
    pub fn open_model(
        folder: &Path,
        pooler: Option<Pooler>,
        max_length: Option<usize>,
        device: Device,
    ) -> Result<TextRunEncoder> {
        if RunFolder::open(folder).is_ok() {
            return Err(Error::Config(format!("{0}: this is a run; give --run {0}", folder.display())));
        }
        let encoder = SentenceEncoder::load(folder, pooler)?;
        let positions = SentenceEncoder::positions(folder)?;
        let tokenizer = TextTokenizer::load(&SentenceEncoder::transformer(folder)?, max_length, positions)?;
        encoder.vocabulary().map_or(Ok(()), |rows| tokenizer.check_vocabulary(rows))?;
        TextRunEncoder::on(encoder, tokenizer, Space::Encoder, device)
    }

    /// Opens a run of pretrain-text.
    ///
    /// `checkpoint` replaces the run's own weights. These are, for [`Space::Encoder`], those that it ended with, or,
    /// where it has not ended, its newest state; for [`Space::Projector`] the newest state, which has the pooler of
    /// training with all that is in it.
    ///
    /// # Errors
    /// A folder that is no run, or is one on images; no weights, or such as do not fit.
    pub fn open_run(
        folder: &Path,
        checkpoint: Option<&Path>,
        max_length: Option<usize>,
        space: Space,
        device: Device,
    ) -> Result<TextRunEncoder> {
        let run = RunFolder::open(folder)?;
        let mut config: TextConfig = run.read_config()?;
        if checkpoint.is_none() && space == Space::Encoder && run.has_ended() {
            return TextRunEncoder::open_model(&run.model(), None, max_length, device);
        }
        let states = run.series().newest_first()?;
        let Some(file) = checkpoint.or(states.first().map(|state| state.as_path())) else {
            let message = "the run has no weights yet; wait for its first checkpoint";
            return Err(Error::data(folder, None, message));
        };
        eprintln!("weights   {}", file.display());
        config.model.max_length = max_length.unwrap_or(config.model.max_length);
        let tokenizer = SentenceEncoder::tokenizer(&config.model)?;
        let mut encoder = SentenceEncoder::to_train(&config.model, &tokenizer)?;
        encoder.take(file)?;
        TextRunEncoder::on(encoder, tokenizer, space, device)
    }

    fn on(encoder: SentenceEncoder, tokenizer: TextTokenizer, space: Space, device: Device) -> Result<TextRunEncoder> {
        encoder.to_device(device)?;
        if device.is_cuda() {
            allow_tf32(false)?;
        }
        Ok(TextRunEncoder { encoder, tokenizer, space, device })
    }

    /// The encoder.
    pub fn encoder(&self) -> &SentenceEncoder {
        &self.encoder
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &TextTokenizer {
        &self.tokenizer
    }

    /// The vectors of sentences in evaluation mode, `batch` at once; equal sentences have equal vectors.
    ///
    /// # Shapes
    /// float32 [sentences, width], on the CPU.
    ///
    /// # Errors
    /// No sentences, a batch of 0, and what tokenizer and encoder report.
    pub fn embed(&self, sentences: &[&str], batch: usize) -> Result<Tensor> {
        self.vectors(sentences, Equal::Once, batch)
    }

    /// The vectors of sentences in evaluation mode as rows, in their order.
    ///
    /// # Errors
    /// As [`TextRunEncoder::embed`]; vectors that are not finite.
    pub fn sentences(&self, sentences: &[&str]) -> Result<Matrix> {
        self.matrix(self.vectors(sentences, Equal::Once, DEFAULT_BATCH)?, "sentences")
    }

    /// A view of sentences as SimCSE trains with: dropout is on, everything else as in [`TextRunEncoder::sentences`].
    /// Equal sentences have views of their own.
    ///
    /// LibTorch's generator is seeded with `seed`, and the batches, which depend on all of the sentences, decide who gets
    /// which of its numbers: the same sentences have the same view on the same kind of device, and another list has other
    /// views throughout.
    ///
    /// # Errors
    /// As [`TextRunEncoder::sentences`].
    pub fn dropout(&self, sentences: &[&str], seed: u64) -> Result<Matrix> {
        tch::manual_seed(seed as i64);
        let vectors = self.vectors(sentences, Equal::Each, DEFAULT_BATCH)?;
        self.matrix(vectors, &format!("sentences, dropout of seed {seed}"))
    }

    /// What rows come from, for records: the weights with their SHA-256, pooler and length, and the space.
    ///
    /// # Errors
    /// A file of weights that cannot be read.
    pub fn source(&self) -> Result<Value> {
        Ok(json!({
            "checkpoint": self.encoder.file().display().to_string(),
            "checkpoint_sha256": sha256_of(self.encoder.file())?,
            "pooler": self.encoder.pooler_of(self.head()),
            "max_length": self.tokenizer.max_length(),
            "space": self.space,
        }))
    }

    fn head(&self) -> Head {
        match self.space {
            Space::Projector => Head::Trained,
            Space::Encoder => Head::Evaluated,
        }
    }

    /// Vectors with dropout where each sentence has its own.
    fn vectors(&self, sentences: &[&str], equal: Equal, batch: usize) -> Result<Tensor> {
        let dropout = equal == Equal::Each;
        let forward =
            |tokens: &Tokens| self.encoder.forward_to(self.head(), &tokens.ids, tokens.mask.as_ref(), dropout);
        let bar = progress_bar("sentences");
        let vectors = embed_by(&forward, &self.tokenizer, sentences, equal, batch, self.device, &mut |done, all| {
            bar.set_length(all);
            bar.set_position(done);
        });
        bar.finish_and_clear();
        vectors
    }

    fn matrix(&self, vectors: Tensor, what: &str) -> Result<Matrix> {
        let columns = vectors.size().last().map_or(0, |&n| n as usize);
        let name = format!("{}, {what} ({})", self.encoder.file().display(), self.space.name());
        Matrix::of(&name, Vec::<f32>::try_from(vectors.f_flatten(0, -1)?)?, columns)
    }
}
