//! BERT: Hugging Face's `BertModel`, name for name and number for number.

use super::fit::OtherNames;
use super::layers::{LayerNorm, Linear};
use super::store::{Path, Store};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

/// A BERT as the `config.json` of its folder describes it. Keys that are not there have the values of transformers' `BertConfig`; others
/// say nothing about what it computes and are passed over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BertConfig {
    /// The architecture's name: `bert`.
    pub model_type: String,
    /// Tokens that have an embedding.
    pub vocab_size: i64,
    /// Width of the hidden states.
    pub hidden_size: i64,
    /// Layers.
    pub num_hidden_layers: i64,
    /// Heads of attention; they divide the width.
    pub num_attention_heads: i64,
    /// Width inside the perceptrons.
    pub intermediate_size: i64,
    /// What the perceptrons' hidden numbers pass.
    pub hidden_act: Activation,
    /// The share of hidden numbers that training drops.
    pub hidden_dropout_prob: f64,
    /// The share of attention weights that training drops.
    pub attention_probs_dropout_prob: f64,
    /// The longest sequence of tokens.
    pub max_position_embeddings: i64,
    /// Kinds of segments; a sentence is of kind 0.
    pub type_vocab_size: i64,
    /// What layer normalisation adds to the variance.
    pub layer_norm_eps: f64,
    /// The token of padding, whose embedding is not trained.
    pub pad_token_id: Option<i64>,
    /// How positions are told: `absolute`.
    pub position_embedding_type: String,
    /// Whether tokens see those before them alone.
    pub is_decoder: bool,
    /// The standard deviation of new weights.
    pub initializer_range: f64,
}

impl Default for BertConfig {
    fn default() -> Self {
        BertConfig {
            model_type: String::new(),
            vocab_size: 30522,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            hidden_act: Activation::Gelu,
            hidden_dropout_prob: 0.1,
            attention_probs_dropout_prob: 0.1,
            max_position_embeddings: 512,
            type_vocab_size: 2,
            layer_norm_eps: 1e-12,
            pad_token_id: Some(0),
            position_embedding_type: "absolute".into(),
            is_decoder: false,
            initializer_range: 0.02,
        }
    }
}

/// An activation, by transformers' name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activation {
    /// x times the normal distribution's cumulative probability of x.
    #[serde(rename = "gelu")]
    Gelu,
    /// The same with a hyperbolic tangent in place of the error function.
    #[serde(rename = "gelu_new", alias = "gelu_pytorch_tanh")]
    GeluTanh,
    /// 0 below 0.
    #[serde(rename = "relu")]
    Relu,
}

impl Activation {
    fn apply(self, x: &Tensor) -> Result<Tensor> {
        Ok(match self {
            Activation::Gelu => x.f_gelu("none")?,
            Activation::GeluTanh => x.f_gelu("tanh")?,
            Activation::Relu => x.f_relu()?,
        })
    }
}

impl BertConfig {
    /// The most that a width or count may be: above it a file is damaged.
    const MOST: i64 = 1 << 24;

    /// Checks values beyond their types.
    ///
    /// # Errors
    /// Another architecture, and values that make no model, with their key.
    pub fn validate(&self) -> Result<()> {
        let refuse = |key: &str, expected: &str, found: &dyn std::fmt::Display| {
            Err(Error::Config(format!("{key}: expected {expected}, found {found}")))
        };
        if self.model_type != "bert" {
            let found = if self.model_type.is_empty() { "none" } else { &self.model_type };
            return refuse("model_type", "`bert`; other architectures can be had as TorchScript", &found);
        }
        for (key, value) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("intermediate_size", self.intermediate_size),
            ("max_position_embeddings", self.max_position_embeddings),
            ("type_vocab_size", self.type_vocab_size),
        ] {
            if !(1..=Self::MOST).contains(&value) {
                return refuse(key, &format!("a whole number from 1 to {}", Self::MOST), &value);
            }
        }
        if self.hidden_size % self.num_attention_heads != 0 {
            let expected = format!("a multiple of num_attention_heads, {}", self.num_attention_heads);
            return refuse("hidden_size", &expected, &self.hidden_size);
        }
        for (key, value) in [
            ("hidden_dropout_prob", self.hidden_dropout_prob),
            ("attention_probs_dropout_prob", self.attention_probs_dropout_prob),
        ] {
            if !(0.0..1.0).contains(&value) {
                return refuse(key, "a share from 0 to below 1", &value);
            }
        }
        if !(self.initializer_range >= 0.0 && self.initializer_range.is_finite()) {
            return refuse("initializer_range", "a finite number from 0 on", &self.initializer_range);
        }
        if !(self.layer_norm_eps >= 0.0 && self.layer_norm_eps < 1.0) {
            return refuse("layer_norm_eps", "a small number from 0 on", &self.layer_norm_eps);
        }
        if let Some(pad) = self.pad_token_id.filter(|pad| !(0..self.vocab_size).contains(pad)) {
            return refuse("pad_token_id", &format!("a token below vocab_size, {}", self.vocab_size), &pad);
        }
        if self.position_embedding_type != "absolute" {
            return refuse("position_embedding_type", "`absolute`", &self.position_embedding_type);
        }
        if self.is_decoder {
            return refuse("is_decoder", "false", &true);
        }
        Ok(())
    }
}

/// Tokens, positions and kind of segment to the first hidden states.
#[derive(Debug)]
struct Embeddings {
    words: Tensor,
    positions: Tensor,
    kinds: Tensor,
    norm: LayerNorm,
}

impl Embeddings {
    fn new(path: &Path, config: &BertConfig) -> Result<Embeddings> {
        let table = |name: &str, rows: i64| {
            (path / name).parameter("weight", Tensor::f_zeros([rows, config.hidden_size], (Kind::Float, Device::Cpu))?)
        };
        Ok(Embeddings {
            words: table("word_embeddings", config.vocab_size)?,
            positions: table("position_embeddings", config.max_position_embeddings)?,
            kinds: table("token_type_embeddings", config.type_vocab_size)?,
            norm: LayerNorm::new(&(path / "LayerNorm"), config.hidden_size, config.layer_norm_eps)?,
        })
    }

    fn forward(&self, ids: &Tensor, config: &BertConfig) -> Result<Tensor> {
        let length = ids.size2()?.1;
        // No gradient reaches the embedding of padding, as in Hugging Face's.
        let words = Tensor::f_embedding(&self.words, ids, config.pad_token_id.unwrap_or(-1), false, false)?;
        let places = self.positions.f_narrow(0, 0, length)?.f_add(&self.kinds.f_narrow(0, 0, 1)?)?;
        self.norm.forward(&words.f_add(&places)?)
    }
}

/// Attention over all tokens and a perceptron, each with its normalisation behind it.
#[derive(Debug)]
struct Layer {
    query: Linear,
    key: Linear,
    value: Linear,
    attended: Linear,
    attended_norm: LayerNorm,
    inner: Linear,
    outer: Linear,
    outer_norm: LayerNorm,
}

impl Layer {
    fn new(path: &Path, config: &BertConfig) -> Result<Layer> {
        let (width, inner, eps) = (config.hidden_size, config.intermediate_size, config.layer_norm_eps);
        let attention = path / "attention";
        let square = |path: Path| Linear::zeros(&path, width, width);
        Ok(Layer {
            query: square(&attention / "self" / "query")?,
            key: square(&attention / "self" / "key")?,
            value: square(&attention / "self" / "value")?,
            attended: square(&attention / "output" / "dense")?,
            attended_norm: LayerNorm::new(&(&attention / "output" / "LayerNorm"), width, eps)?,
            inner: Linear::zeros(&(path / "intermediate" / "dense"), width, inner)?,
            outer: Linear::zeros(&(path / "output" / "dense"), inner, width)?,
            outer_norm: LayerNorm::new(&(path / "output" / "LayerNorm"), width, eps)?,
        })
    }

    /// [B, L, width] to the same; `mask`, [B, 1, 1, L], tells the tokens that are attended to.
    fn forward(&self, x: &Tensor, mask: Option<&Tensor>, config: &BertConfig, train: bool) -> Result<Tensor> {
        let (batch, length, width) = x.size3()?;
        let heads = config.num_attention_heads;
        let split = |layer: &Linear| -> Result<Tensor> {
            Ok(layer.forward(x)?.f_view([batch, length, heads, width / heads])?.f_transpose(1, 2)?)
        };
        let (q, k, v) = (split(&self.query)?, split(&self.key)?, split(&self.value)?);
        let dropped = if train { config.attention_probs_dropout_prob } else { 0.0 };
        let seen = Tensor::f_scaled_dot_product_attention(&q, &k, &v, mask, dropped, false, None, false)?;
        let seen = self.attended.forward(&seen.f_transpose(1, 2)?.f_reshape([batch, length, width])?)?;
        let x = self.attended_norm.forward(&seen.f_dropout(config.hidden_dropout_prob, train)?.f_add(x)?)?;
        let hidden = config.hidden_act.apply(&self.inner.forward(&x)?)?;
        let hidden = self.outer.forward(&hidden)?.f_dropout(config.hidden_dropout_prob, train)?;
        self.outer_norm.forward(&hidden.f_add(&x)?)
    }
}

#[derive(Debug)]
struct Layers {
    embeddings: Embeddings,
    layers: Vec<Layer>,
    pooler: Option<Linear>,
}

/// A BERT encoder, with the layer over its first token (`pooler`) where its file has one.
///
/// # Source
/// transformers 5.24, `BertModel` with `attn_implementation="sdpa"`: J. Devlin et al., *BERT*, 2019.
#[derive(Debug)]
pub struct Bert {
    config: BertConfig,
    layers: Layers,
    store: Store,
}

impl Bert {
    /// One whose numbers are all 0, to be loaded, on the CPU.
    ///
    /// # Errors
    /// As [`BertConfig::validate`], and whatever LibTorch reports.
    pub fn zeros(config: &BertConfig, pooler: bool) -> Result<Bert> {
        config.validate()?;
        let (layers, store) = Store::build(|root| {
            let path = root / "encoder" / "layer";
            Ok(Layers {
                embeddings: Embeddings::new(&(root / "embeddings"), config)?,
                layers: (0..config.num_hidden_layers)
                    .map(|i| Layer::new(&(&path / i), config))
                    .collect::<Result<_>>()?,
                pooler: pooler
                    .then(|| Linear::zeros(&(root / "pooler" / "dense"), config.hidden_size, config.hidden_size))
                    .transpose()?,
            })
        })?;
        Ok(Bert { config: config.clone(), layers, store })
    }

    /// The hidden states: those of the embeddings, then those behind each layer. With `train` numbers are dropped, by LibTorch's
    /// generator.
    ///
    /// # Shapes
    /// `ids` int64 [B, L], L at most `max_position_embeddings`; `mask` bool [B, L], true where there is a token and not padding,
    /// none where there is no padding. Hidden states [B, L, width].
    ///
    /// # Errors
    /// Input of another shape or type, sequences that are too long, tokens beyond the vocabulary, and whatever LibTorch reports.
    pub fn hidden_states(&self, ids: &Tensor, mask: Option<&Tensor>, train: bool) -> Result<Vec<Tensor>> {
        let shape = ids.size();
        let &[batch, length] = &shape[..] else {
            return Err(Error::Input(format!("bert: expected token ids [B, L], found {shape:?}")));
        };
        if length == 0 || length > self.config.max_position_embeddings {
            return Err(Error::Input(format!(
                "bert: expected sequences of 1 to {} tokens, for which there are positions, found {length}",
                self.config.max_position_embeddings
            )));
        }
        if let Some(mask) = mask.filter(|mask| mask.size() != shape || mask.kind() != Kind::Bool) {
            return Err(Error::Input(format!(
                "bert: expected a mask of bool {shape:?}, as the token ids, found {:?} {:?}",
                mask.kind(),
                mask.size()
            )));
        }
        let mask = mask.map(|mask| mask.f_view([batch, 1, 1, length])).transpose()?;
        let first = self.layers.embeddings.forward(ids, &self.config)?;
        let mut states = vec![first.f_dropout(self.config.hidden_dropout_prob, train)?];
        for layer in &self.layers.layers {
            let next = layer.forward(&states[states.len() - 1], mask.as_ref(), &self.config, train)?;
            states.push(next);
        }
        Ok(states)
    }

    /// What the file's own layer over the first token makes of the last hidden states, as `pooler_output`; `None` where it has none.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn pooled(&self, last: &Tensor) -> Result<Option<Tensor>> {
        let pooler = self.layers.pooler.as_ref();
        pooler.map(|pooler| Ok(pooler.forward(&last.f_select(1, 0)?)?.f_tanh()?)).transpose()
    }

    /// Draws the layer over the first token anew, as transformers does: normal weights, and a bias of 0.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn renew_pooler(&self) -> Result<()> {
        self.layers.pooler.as_ref().map_or(Ok(()), |pooler| pooler.renew(self.config.initializer_range))
    }

    /// What it is made for.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// Its tensors, under Hugging Face's names.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// How other files name its tensors, and what they have beside them.
    pub fn other_names() -> OtherNames {
        OtherNames {
            spellings: vec![before_2019],
            classifiers: &["cls.", "classifier.", "qa_outputs.", "mlp.", "lm_head.", "embeddings.position_ids"],
            ..OtherNames::default()
        }
    }
}

/// The names that Google's checkpoints were first converted to, and that `bert-base-uncased` still has.
fn before_2019(name: &str) -> String {
    name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
}
