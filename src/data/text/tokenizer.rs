//! Sentences to token ids, as the tokenizer of a model's folder makes them.

use crate::error::{Error, Result};
use crate::json::read_json;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::ops::Range;
use std::path::Path;
use tch::{Device, Tensor};
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;
use tokenizers::{AddedToken, PaddingDirection, PaddingParams, Tokenizer, TruncationDirection, TruncationParams};

/// Batches are as long as their longest sentence, rounded up to a multiple of this: few lengths, which suits a device's kernels.
const MULTIPLE: usize = 8;
/// The least that a sentence's tokens may be cut to: one between the two that every sentence has around it.
const SHORTEST: usize = 3;

/// The tokenizer of a model's folder.
#[derive(Debug)]
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    pad: u32,
    left: bool,
    /// Whether sentences are made small first, as sentence-transformers does where its configuration says so.
    lower: bool,
    max_length: usize,
}

/// A batch of sentences as a model wants it.
#[derive(Debug)]
pub struct Tokens {
    /// int64 [B, L].
    pub ids: Tensor,
    /// bool [B, L], true where there is a token and not padding; none where there is no padding.
    pub mask: Option<Tensor>,
}

impl Tokens {
    /// The same on a device.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn to_device(&self, device: Device) -> Result<Tokens> {
        let mask = self.mask.as_ref().map(|mask| mask.f_to_device(device)).transpose()?;
        Ok(Tokens { ids: self.ids.f_to_device(device)?, mask })
    }

    /// The same sentences twice, one batch after the other.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn twice(&self) -> Result<Tokens> {
        let mask = self.mask.as_ref().map(|mask| Tensor::f_cat(&[mask, mask], 0)).transpose()?;
        Ok(Tokens { ids: Tensor::f_cat(&[&self.ids, &self.ids], 0)?, mask })
    }

    /// These of every `of` sentences: where positives and then hard negatives of so many examples follow one another, both of some
    /// of them, in that order.
    ///
    /// # Errors
    /// Sentences beyond `of`, and whatever LibTorch reports.
    pub fn part(&self, sentences: Range<i64>, of: i64) -> Result<Tokens> {
        let chosen = |t: &Tensor| -> Result<Tensor> {
            let groups = t.f_view([-1, of, t.size()[1]])?;
            Ok(groups.f_narrow(1, sentences.start, sentences.end - sentences.start)?.f_flatten(0, 1)?)
        };
        Ok(Tokens { ids: chosen(&self.ids)?, mask: self.mask.as_ref().map(chosen).transpose()? })
    }
}

/// What `tokenizer_config.json` says, with the values of transformers' `BertTokenizer` where it is silent.
#[derive(Deserialize)]
#[serde(default)]
struct TokenizerConfig {
    do_lower_case: bool,
    strip_accents: Option<bool>,
    tokenize_chinese_chars: bool,
    unk_token: Token,
    sep_token: Token,
    pad_token: Token,
    cls_token: Token,
    mask_token: Token,
    padding_side: Option<String>,
    truncation_side: Option<String>,
    model_max_length: Option<f64>,
}

impl Default for TokenizerConfig {
    fn default() -> Self {
        let token = |text: &str| Token::Text(text.into());
        TokenizerConfig {
            do_lower_case: true,
            strip_accents: None,
            tokenize_chinese_chars: true,
            unk_token: token("[UNK]"),
            sep_token: token("[SEP]"),
            pad_token: token("[PAD]"),
            cls_token: token("[CLS]"),
            mask_token: token("[MASK]"),
            padding_side: None,
            truncation_side: None,
            model_max_length: None,
        }
    }
}

/// A special token: its text, or an object with it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Token {
    Text(String),
    Object { content: String },
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Token::Text(text) | Token::Object { content: text } => text,
        }
    }
}

impl TextTokenizer {
    /// The tokenizer of `tokenizer.json`, or else of BERT's `vocab.txt`, with what `tokenizer_config.json` says.
    ///
    /// Sentences longer than `max_length` tokens, those around them included, are cut. Where it is not given, what
    /// `sentence_bert_config.json`, `weince.json` and then `tokenizer_config.json` say holds, at most `positions`, the longest that the model takes.
    ///
    /// # Errors
    /// Files that are missing or damaged, a `max_length` below 3 or beyond `positions`, special tokens that the vocabulary lacks.
    pub fn load(folder: &Path, max_length: Option<usize>, positions: usize) -> Result<TextTokenizer> {
        let file = folder.join("tokenizer_config.json");
        let config: TokenizerConfig = if file.exists() { read_json(&file)? } else { TokenizerConfig::default() };
        let (json, vocabulary) = (folder.join("tokenizer.json"), folder.join("vocab.txt"));
        let (source, mut tokenizer) = if json.exists() {
            let read =
                Tokenizer::from_file(&json).map_err(|e| Error::data(&json, None, format!("no tokenizer: {e}")))?;
            (json, read)
        } else if vocabulary.exists() {
            let made = word_piece(&vocabulary, &config)?;
            (vocabulary, made)
        } else {
            return Err(Error::data(
                folder,
                None,
                "expected a tokenizer in tokenizer.json, or BERT's vocabulary in vocab.txt, found neither",
            ));
        };
        let pad_text = config.pad_token.text().to_string();
        let pad = tokenizer.token_to_id(&pad_text).ok_or_else(|| {
            Error::data(
                &source,
                None,
                format!(
                    "the vocabulary has no token `{pad_text}` for padding; tokenizer_config.json names it as pad_token"
                ),
            )
        })?;
        let left = |side: &Option<String>, own: bool| side.as_deref().map_or(own, |side| side == "left");
        let own = tokenizer.get_padding().is_some_and(|p| matches!(p.direction, PaddingDirection::Left));
        let padded_left = left(&config.padding_side, own);
        let own = tokenizer.get_truncation().is_some_and(|t| matches!(t.direction, TruncationDirection::Left));
        let cut_left = left(&config.truncation_side, own);
        let max_length = match max_length {
            Some(given) if !(SHORTEST..=positions).contains(&given) => {
                return Err(Error::Config(format!(
                    "max_length: expected {SHORTEST} to {positions} tokens, the longest sequence that the model has positions for, \
                     found {given}"
                )));
            }
            Some(given) => given,
            None => folder_length(folder, &config)?.unwrap_or(positions).min(positions).max(SHORTEST),
        };
        let direction = if cut_left { TruncationDirection::Left } else { TruncationDirection::Right };
        let cut = TruncationParams { max_length, direction, ..TruncationParams::default() };
        tokenizer
            .with_truncation(Some(cut))
            .map_err(|e| Error::data(&source, None, format!("cannot cut sentences to {max_length} tokens: {e}")))?
            .with_padding(None::<PaddingParams>);
        Ok(TextTokenizer { tokenizer, pad, left: padded_left, lower: lower_case(folder)?, max_length })
    }

    /// The token ids of sentences, see [`TextTokenizer::padded`].
    ///
    /// # Errors
    /// No sentences, and what the tokenizer reports.
    pub fn encode(&self, sentences: &[&str]) -> Result<Tokens> {
        self.padded(&self.ids(sentences)?)
    }

    /// Token ids padded to the longest sentence, rounded up to a multiple of 8 but not beyond the longest allowed.
    ///
    /// # Errors
    /// No sentence that has a token, and what LibTorch reports.
    pub fn padded(&self, rows: &[impl AsRef<[u32]>]) -> Result<Tokens> {
        let rows: Vec<&[u32]> = rows.iter().map(AsRef::as_ref).collect();
        let longest = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        if longest == 0 {
            return Err(Error::Input("tokenizer: expected at least one sentence that has a token, found none".into()));
        }
        let length = longest.next_multiple_of(MULTIPLE).min(self.max_length.max(longest));
        let mut ids = Vec::with_capacity(rows.len() * length);
        let mut mask = Vec::with_capacity(rows.len() * length);
        for row in &rows {
            let padding = length - row.len();
            let (before, behind) = if self.left { (padding, 0) } else { (0, padding) };
            let pad = |count| std::iter::repeat_n(i64::from(self.pad), count);
            ids.extend(pad(before).chain(row.iter().map(|id| i64::from(*id))).chain(pad(behind)));
            let none = |count| std::iter::repeat_n(false, count);
            mask.extend(none(before).chain(std::iter::repeat_n(true, row.len())).chain(none(behind)));
        }
        let shape = [rows.len() as i64, length as i64];
        let mask =
            mask.contains(&false).then(|| Ok::<_, Error>(Tensor::f_from_slice(&mask)?.f_view(shape)?)).transpose()?;
        Ok(Tokens { ids: Tensor::f_from_slice(&ids)?.f_view(shape)?, mask })
    }

    /// The token ids of sentences as they are, without padding; those around a sentence are there.
    ///
    /// # Errors
    /// What the tokenizer reports.
    pub fn ids(&self, sentences: &[&str]) -> Result<Vec<Vec<u32>>> {
        let encoded = match self.lower {
            true => self.tokenizer.encode_batch_fast(sentences.iter().map(|s| s.to_lowercase()).collect(), true),
            false => self.tokenizer.encode_batch_fast(sentences.to_vec(), true),
        };
        let encoded = encoded.map_err(|e| Error::Input(format!("tokenizer: {e}")))?;
        Ok(encoded.iter().map(|encoding| encoding.get_ids().to_vec()).collect())
    }

    /// The greatest id of a token.
    pub fn greatest_id(&self) -> i64 {
        self.tokenizer.get_vocab(true).values().max().map_or(0, |id| i64::from(*id))
    }

    /// The most tokens of a sentence.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// Refuses a table of embeddings that lacks some of the tokens; `rows` are its own.
    ///
    /// # Errors
    /// Tokens beyond the table.
    pub fn check_vocabulary(&self, rows: i64) -> Result<()> {
        let vocabulary = self.tokenizer.get_vocab(true);
        let beyond = vocabulary.iter().filter(|(_, id)| i64::from(**id) >= rows);
        let Some((token, id)) = beyond.clone().max_by_key(|(_, id)| **id) else { return Ok(()) };
        Err(Error::Config(format!(
            "the tokenizer has {} tokens beyond the model's {rows} embeddings, such as `{token}` with the id {id}; tokenizer and weights \
             are of different models, or tokens were added and the table was not enlarged",
            beyond.count()
        )))
    }
}

/// Whether sentence-transformers makes a folder's sentences small before they are tokenized.
pub(crate) fn lower_case(folder: &Path) -> Result<bool> {
    let file = folder.join("sentence_bert_config.json");
    let said: Map<String, Value> = if file.exists() { read_json(&file)? } else { Map::new() };
    Ok(said.get("do_lower_case").and_then(Value::as_bool).unwrap_or(false))
}

/// The longest sentence as the folder says: sentence-transformers' file, this project's own, transformers'.
fn folder_length(folder: &Path, config: &TokenizerConfig) -> Result<Option<usize>> {
    for (name, key) in [("sentence_bert_config.json", "max_seq_length"), ("weince.json", "max_length")] {
        let file = folder.join(name);
        if file.exists() {
            let said: Map<String, Value> = read_json(&file)?;
            if let Some(length) = said.get(key).and_then(Value::as_u64) {
                return Ok(Some(length as usize));
            }
        }
    }
    // Where there is no limit, transformers writes 1e30.
    Ok(config.model_max_length.filter(|length| (1.0..1e9).contains(length)).map(|length| length as usize))
}

/// BERT's word pieces.
fn word_piece(vocabulary: &Path, config: &TokenizerConfig) -> Result<Tokenizer> {
    let refuse =
        |e: &dyn std::fmt::Display| Error::data(vocabulary, None, format!("no vocabulary of word pieces: {e}"));
    let pieces = WordPiece::from_file(&vocabulary.to_string_lossy())
        .unk_token(config.unk_token.text().into())
        .build()
        .map_err(|e| refuse(&e))?;
    let mut tokenizer = Tokenizer::new(pieces);
    let id = |tokenizer: &Tokenizer, token: &Token| {
        let text = token.text();
        let missing = || refuse(&format!("it has no token `{text}`"));
        Ok::<_, Error>((text.to_string(), tokenizer.token_to_id(text).ok_or_else(missing)?))
    };
    let (sep, cls) = (id(&tokenizer, &config.sep_token)?, id(&tokenizer, &config.cls_token)?);
    id(&tokenizer, &config.unk_token)?;
    let normalizer =
        BertNormalizer::new(true, config.tokenize_chinese_chars, config.strip_accents, config.do_lower_case);
    tokenizer
        .with_normalizer(Some(normalizer))
        .map_err(|e| refuse(&e))?
        .with_pre_tokenizer(Some(BertPreTokenizer))
        .with_post_processor(Some(BertProcessing::new(sep, cls)));
    let special = [&config.unk_token, &config.sep_token, &config.pad_token, &config.cls_token, &config.mask_token];
    let special: Vec<AddedToken> = special
        .into_iter()
        .filter(|token| tokenizer.token_to_id(token.text()).is_some())
        .map(|token| AddedToken::from(token.text(), true))
        .collect();
    tokenizer.add_special_tokens(special).map_err(|e| refuse(&e))?;
    Ok(tokenizer)
}
