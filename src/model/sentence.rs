//! Sentences to vectors: BERT and one of SimCSE's poolers, from a folder as transformers and sentence-transformers write it, or a
//! TorchScript module.

use super::bert::{Bert, BertConfig};
use super::fit::{Found, OtherNames, load};
use super::folder::{Modules, POOLER, refuse_prompt};
use super::script::{Food, Module};
use super::store::Store;
use crate::checkpoint::{self, safetensors, sha256_of, write_bytes};
use crate::config::text_model::{Pooler, TextModelConfig};
use crate::config::whole_names;
use crate::data::text::{TextTokenizer, lower_case};
use crate::error::{Error, Result};
use crate::json::read_json;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};

/// The name of a TorchScript module in a folder that this project writes.
const SCRIPT: &str = "encoder.pt";

/// A BERT with a pooler, or a TorchScript module.
///
/// # Source
/// The poolers are those of T. Gao et al., *SimCSE*, 2021, and its code's `Pooler`; folders are those of sentence-transformers 5.
#[derive(Debug)]
pub struct SentenceEncoder {
    network: Network,
    file: PathBuf,
}

/// Which vectors of a sentence encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// Those that the loss sees: by the pooler of training, of any length.
    Trained,
    /// Those of evaluations: by their pooler, of length 1 where the folder says so.
    Evaluated,
}

#[derive(Debug)]
enum Network {
    Bert(Box<PooledBert>),
    Script(Module),
}

#[derive(Debug)]
struct PooledBert {
    bert: Bert,
    /// The pooler in training.
    trained: Pooler,
    /// The pooler in evaluation.
    pooler: Pooler,
    /// Whether vectors have length 1 in evaluation.
    normalize: bool,
    /// Whether the layer of the pooler `cls` was drawn from LibTorch's generator.
    drawn: bool,
}

impl SentenceEncoder {
    /// The encoder of a folder, on the CPU. Its pooler is `pooler` or, where none is given, what the folder says in
    /// sentence-transformers' `modules.json` or, without one, in this project's own `weince.json`.
    ///
    /// # Errors
    /// Files that are missing or damaged, another architecture, weights that do not fit, modules that cannot be served, and no
    /// pooler said by anyone.
    pub fn load(folder: &Path, pooler: Option<Pooler>) -> Result<SentenceEncoder> {
        let said = Said::read(folder)?;
        if let Some(name) = said.as_ref().and_then(|said| said.torchscript.as_ref()) {
            let file = folder.join(name);
            if pooler.is_some() {
                return Err(Error::Config(format!(
                    "{}: a TorchScript module makes its vectors itself; leave the pooler out",
                    file.display()
                )));
            }
            return Ok(SentenceEncoder { network: Network::Script(Module::load(&file)?), file });
        }
        refuse_prompt(folder)?;
        let modules = Modules::read(folder)?;
        let pooler = match (pooler, &modules.pooling, said.and_then(|said| said.pooler)) {
            (Some(pooler), _, _) => pooler,
            // What sentence-transformers may have written since.
            (None, Some(pooling), _) => pooling.pooler()?,
            (None, None, Some(pooler)) => pooler,
            (None, None, None) => {
                return Err(Error::Config(format!(
                    "{}: nothing there says how its hidden states become one vector a sentence (there is no modules.json); give \
                     the pooler that the model was trained with, one of {}: another gives other figures",
                    folder.display(),
                    Pooler::NAMES.join(", ")
                )));
            }
        };
        let (file, mut tensors) = modules.weights()?;
        if let Some(dense) = modules.dense.as_ref().filter(|_| pooler == Pooler::Cls) {
            dense.replace_in(&mut tensors)?;
        }
        let own = tensors.iter().any(|(name, _)| name.ends_with("pooler.dense.weight"));
        if pooler == Pooler::Cls && !own {
            return Err(Error::Config(format!(
                "{}: the pooler `cls` is the layer `pooler.dense` over the first token, and {} has none; `cls_before_pooler` takes \
                 the first token as it is",
                folder.display(),
                file.display()
            )));
        }
        let bert = modules.bert(own)?;
        fill(&bert, &file, &tensors, &[])?;
        let bert = PooledBert { bert, trained: pooler, pooler, normalize: modules.normalize, drawn: false };
        Ok(SentenceEncoder { network: Network::Bert(Box::new(bert)), file })
    }

    /// The tokenizer of the encoder that a run trains.
    ///
    /// # Errors
    /// As [`TextTokenizer::load`].
    pub fn tokenizer(config: &TextModelConfig) -> Result<TextTokenizer> {
        // A module's own limit shows when it is tried.
        let positions = match &config.torchscript {
            Some(_) => config.max_length,
            None => SentenceEncoder::positions(&config.path)?,
        };
        TextTokenizer::load(&SentenceEncoder::transformer(&config.path)?, Some(config.max_length), positions)
    }

    /// Where in a folder the files of transformers are: mostly the folder itself.
    ///
    /// # Errors
    /// What is no model's folder.
    pub fn transformer(folder: &Path) -> Result<PathBuf> {
        Ok(Modules::read(folder)?.transformer)
    }

    /// What tells an encoder's code and tokenizer from others: everything that a run's states do not hold.
    ///
    /// # Errors
    /// What cannot be read.
    pub fn code_sha256(config: &TextModelConfig) -> Result<String> {
        let folder = SentenceEncoder::transformer(&config.path)?;
        let files =
            ["config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "sentence_bert_config.json"];
        let others = [Some(config.path.join("modules.json")), config.torchscript.clone()];
        let files = files.map(|name| folder.join(name)).into_iter().chain(others.into_iter().flatten());
        let mut hash = Sha256::new();
        for file in files.filter(|file| file.exists()) {
            hash.update(file.file_name().unwrap_or_default().as_encoded_bytes());
            hash.update(sha256_of(&file)?);
        }
        Ok(format!("{:x}", hash.finalize()))
    }

    /// The encoder that a run trains, on the CPU. The layer of the pooler `cls` is drawn anew from LibTorch's generator, as in SimCSE, but
    /// where the folder has it as a `Dense` behind its pooling. A
    /// TorchScript module is tried on sentences of a few and of the most tokens.
    ///
    /// # Errors
    /// As [`SentenceEncoder::load`]; a tokenizer of more tokens than the encoder embeds; a module that cannot be trained, or that does not
    /// give one vector a sentence.
    pub fn to_train(config: &TextModelConfig, tokenizer: &TextTokenizer) -> Result<SentenceEncoder> {
        if let Some(file) = &config.torchscript {
            let module = Module::load(file)?;
            let (last, lengths) = (tokenizer.greatest_id(), [8, tokenizer.max_length() as i64]);
            let batch = |size: i64| {
                let shape = [size, lengths[(size % 2) as usize].min(lengths[1])];
                // Every row has the greatest id.
                let ids = Tensor::f_arange(shape[1], (Kind::Int64, Device::Cpu))?.f_multiply_scalar(last)?;
                let ids =
                    ids.f_divide_scalar_mode((shape[1] - 1).max(1), "floor")?.f_expand(shape, false)?.f_contiguous()?;
                let mask = ids.f_ones_like()?;
                Ok(vec![ids, mask])
            };
            let remedy = "pool in its forward";
            module.probe(&Food { name: "token ids", one: "a sentence", remedy, batch: &batch }).map_err(|e| {
                let text = e.to_string();
                if !text.contains("index out of range") {
                    return e;
                }
                Error::Config(format!(
                    "{text}; it was given ids up to {last}, the tokenizer's greatest, and up to {} tokens, model.max_length: it \
                     has embeddings for fewer tokens, or for fewer positions",
                    lengths[1]
                ))
            })?;
            return Ok(SentenceEncoder { network: Network::Script(module), file: file.clone() });
        }
        let trained = config.pooler.ok_or_else(|| Error::Config("model.pooler: expected one, found none".into()))?;
        let modules = Modules::read(&config.path)?;
        let (file, mut tensors) = modules.weights()?;
        tensors.retain(|(name, _)| !name.contains(POOLER));
        match (&modules.dense, trained) {
            (Some(dense), Pooler::Cls) => dense.replace_in(&mut tensors)?,
            (Some(dense), _) => {
                return Err(Error::Config(format!(
                    "model.pooler: {} is a layer behind the folder's pooling, and only the pooler `cls` has such a layer; train \
                     with `cls`, or take {} out of modules.json",
                    dense.place.display(),
                    dense.place.file_name().unwrap_or_default().display()
                )));
            }
            (None, _) => {}
        }
        let bert = modules.bert(trained == Pooler::Cls)?;
        tokenizer.check_vocabulary(bert.config().vocab_size)?;
        fill(&bert, &file, &tensors, &["encoder\\.pooler\\.dense\\..*".to_string()])?;
        let drawn = trained == Pooler::Cls && modules.dense.is_none();
        if drawn {
            bert.renew_pooler()?;
        }
        let pooler = config.evaluated(trained);
        let bert = PooledBert { bert, trained, pooler, normalize: modules.normalize, drawn };
        Ok(SentenceEncoder { network: Network::Bert(Box::new(bert)), file })
    }

    /// Takes the weights that a run saved, of the same encoder.
    ///
    /// # Errors
    /// A file that is none of them.
    pub fn take(&mut self, file: &Path) -> Result<()> {
        let tensors = checkpoint::tensors(file)?;
        match &self.network {
            Network::Bert(network) => fill(&network.bert, file, &tensors, &[])?,
            Network::Script(module) => load_strictly(module.store(), file, &tensors, &OtherNames::default(), &[])?,
        }
        self.file = file.to_path_buf();
        Ok(())
    }

    /// The longest sequence of tokens that the encoder of a folder takes, where the folder tells.
    ///
    /// # Errors
    /// A configuration that cannot be read.
    pub fn positions(folder: &Path) -> Result<usize> {
        if let Some(Said { torchscript: Some(_), max_length: Some(length), .. }) = Said::read(folder)? {
            return Ok(length);
        }
        let config: BertConfig = read_json(&Modules::read(folder)?.transformer.join("config.json"))?;
        Ok(config.max_position_embeddings.max(0) as usize)
    }

    /// One vector a sentence. With `train` numbers are dropped, by LibTorch's generator.
    ///
    /// # Shapes
    /// As [`Bert::hidden_states`]; vectors [B, width].
    ///
    /// # Errors
    /// As [`Bert::hidden_states`]; what a module reports.
    pub fn forward(&self, ids: &Tensor, mask: Option<&Tensor>, train: bool) -> Result<Tensor> {
        self.forward_to(if train { Head::Trained } else { Head::Evaluated }, ids, mask, train)
    }

    /// As [`SentenceEncoder::forward`], with the choice which vectors are made, with or without `dropout`. A TorchScript module has
    /// one kind of vectors, and `dropout` sets its training mode.
    ///
    /// # Errors
    /// As there.
    pub fn forward_to(&self, head: Head, ids: &Tensor, mask: Option<&Tensor>, dropout: bool) -> Result<Tensor> {
        match &self.network {
            Network::Bert(network) => network.forward(head, ids, mask, dropout),
            Network::Script(module) => {
                let mask = mask.map_or_else(|| ids.f_ones_like(), |mask| mask.f_to_kind(Kind::Int64))?;
                let vectors = module.forward(&[ids.shallow_clone(), mask], dropout, "token ids")?;
                let expected = ids.size()[0];
                if !matches!(vectors.size()[..], [sentences, _] if sentences == expected) {
                    let message = format!(
                        "the module makes {:?} of token ids {:?}; expected one vector a sentence",
                        vectors.size(),
                        ids.size()
                    );
                    return Err(Error::data(module.path(), None, message));
                }
                Ok(vectors)
            }
        }
    }

    /// Its tensors.
    pub fn store(&self) -> &Store {
        match &self.network {
            Network::Bert(network) => network.bert.store(),
            Network::Script(module) => module.store(),
        }
    }

    /// What it is, in a word or two.
    pub fn name(&self) -> String {
        match &self.network {
            Network::Bert(network) => format!("bert, {} layers", network.bert.config().num_hidden_layers),
            Network::Script(_) => "torchscript".to_string(),
        }
    }

    /// The width of its vectors, where that is known before there are some.
    pub fn width(&self) -> Option<i64> {
        match &self.network {
            Network::Bert(network) => Some(network.bert.config().hidden_size),
            Network::Script(_) => None,
        }
    }

    /// Tokens that it embeds, where that is known.
    pub fn vocabulary(&self) -> Option<i64> {
        match &self.network {
            Network::Bert(network) => Some(network.bert.config().vocab_size),
            Network::Script(_) => None,
        }
    }

    /// What of it starts random.
    pub fn drawn(&self) -> Option<&'static str> {
        match &self.network {
            Network::Bert(network) if network.drawn => Some("pooler.dense"),
            _ => None,
        }
    }

    /// The file that its weights are from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// How hidden states become a vector in evaluation; none where a module does that.
    pub fn pooler(&self) -> Option<Pooler> {
        self.pooler_of(Head::Evaluated)
    }

    /// How hidden states become the vectors of a head; none where a module does that.
    pub fn pooler_of(&self, head: Head) -> Option<Pooler> {
        match &self.network {
            Network::Bert(network) => Some(network.pooler_of(head)),
            Network::Script(_) => None,
        }
    }

    /// Writes a folder that [`SentenceEncoder::load`] opens and, of a BERT, transformers and sentence-transformers: the weights, and of the
    /// folder `from` configuration and tokenizer. A TorchScript module is `encoder.pt` there, with its tokenizer.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn save(&self, from: &Path, to: &Path, max_length: usize, device: Device) -> Result<()> {
        std::fs::create_dir_all(to).map_err(Error::io(to, "cannot make the folder"))?;
        let from = Modules::read(from)?.transformer;
        for name in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"] {
            let file = from.join(name);
            if file.exists() {
                write_bytes(&to.join(name), std::fs::read(&file).map_err(Error::io(&file, "cannot read"))?)?;
            }
        }
        match &self.network {
            Network::Bert(network) => network.save(&from, to, max_length),
            Network::Script(module) => {
                write_json(to.join("weince.json"), json!({ "torchscript": SCRIPT, "max_length": max_length }))?;
                module.save(&to.join(SCRIPT), device)
            }
        }
    }

    /// Moves the encoder.
    ///
    /// # Errors
    /// What binds it to another device, and whatever LibTorch reports.
    pub fn to_device(&self, device: Device) -> Result<()> {
        match &self.network {
            Network::Bert(network) => network.bert.store().to_device(device),
            Network::Script(module) => module.to_device(device),
        }
    }
}

impl PooledBert {
    fn pooler_of(&self, head: Head) -> Pooler {
        match head {
            Head::Trained => self.trained,
            Head::Evaluated => self.pooler,
        }
    }

    fn forward(&self, head: Head, ids: &Tensor, mask: Option<&Tensor>, dropout: bool) -> Result<Tensor> {
        let states = self.bert.hidden_states(ids, mask, dropout)?;
        let last = &states[states.len() - 1];
        let average = |states: &Tensor| mean_of_tokens(states, mask);
        let halfway = |other: &Tensor| -> Result<Tensor> { Ok(other.f_add(last)?.f_div_scalar(2.0)?) };
        let pooled = match self.pooler_of(head) {
            Pooler::Cls => self.bert.pooled(last)?.ok_or_else(|| Error::Input("bert: there is no pooler".into()))?,
            Pooler::ClsBeforePooler => last.f_select(1, 0)?,
            Pooler::Avg => average(last)?,
            Pooler::AvgFirstLast => average(&halfway(&states[0])?)?,
            Pooler::AvgTop2 => average(&halfway(&states[states.len() - 2])?)?,
        };
        if head == Head::Trained || !self.normalize {
            return Ok(pooled);
        }
        Ok(pooled.f_div(&pooled.f_norm_scalaropt_dim(2.0, [1i64], true)?.f_clamp_min(1e-12)?)?)
    }

    /// Configuration and weights, and what sentence-transformers has beside them.
    fn save(&self, from: &Path, to: &Path, max_length: usize) -> Result<()> {
        let place = |name: &str| {
            let place = to.join(name);
            std::fs::create_dir_all(&place).map_err(Error::io(&place, "cannot make the folder")).map(|()| place)
        };
        let note = BTreeMap::from([("format".to_string(), "pt".to_string())]);
        let (width, layers) = (self.bert.config().hidden_size, self.bert.config().num_hidden_layers);
        // The states of which layers are taken, from which on.
        let two_layers = match self.pooler {
            Pooler::AvgFirstLast => Some((0, (0..=layers).map(|i| f32::from(i == 0 || i == layers)).collect())),
            Pooler::AvgTop2 => Some((layers - 1, vec![1.0; 2])),
            Pooler::Cls | Pooler::ClsBeforePooler | Pooler::Avg => None,
        };
        let mut config: Map<String, Value> = read_json(&from.join("config.json"))?;
        // The weights are float32, whatever those were that they come from.
        for key in ["dtype", "torch_dtype"] {
            config.entry(key).and_modify(|dtype| *dtype = "float32".into());
        }
        if two_layers.is_some() {
            config.insert("output_hidden_states".into(), true.into());
        }
        write_json(to.join("config.json"), config.into())?;
        let lower = lower_case(from)?;
        let length = json!({ "max_seq_length": max_length, "do_lower_case": lower });
        write_json(to.join("sentence_bert_config.json"), length)?;
        let mut modules = vec![("Transformer", String::new())];
        if let Some((start, weights)) = two_layers {
            let name = "1_WeightedLayerPooling";
            let (place, weights): (PathBuf, Vec<f32>) = (place(name)?, weights);
            let config =
                json!({ "word_embedding_dimension": width, "layer_start": start, "num_hidden_layers": layers });
            write_json(place.join("config.json"), config)?;
            let weights = [("layer_weights".to_string(), Tensor::f_from_slice(&weights)?)];
            safetensors::save(&place.join("model.safetensors"), &weights, &note)?;
            modules.push(("WeightedLayerPooling", name.into()));
        }
        let first = matches!(self.pooler, Pooler::Cls | Pooler::ClsBeforePooler);
        let name = format!("{}_Pooling", modules.len());
        let pooling = json!({
            "word_embedding_dimension": width,
            "pooling_mode_cls_token": first,
            "pooling_mode_mean_tokens": !first,
            "pooling_mode_max_tokens": false,
            "pooling_mode_mean_sqrt_len_tokens": false,
        });
        write_json(place(&name)?.join("config.json"), pooling)?;
        modules.push(("Pooling", name));
        if self.pooler == Pooler::Cls {
            let name = format!("{}_Dense", modules.len());
            let place = place(&name)?;
            let activation = "torch.nn.modules.activation.Tanh";
            let dense =
                json!({ "in_features": width, "out_features": width, "bias": true, "activation_function": activation });
            write_json(place.join("config.json"), dense)?;
            let state = self.bert.store().state_dict().into_iter();
            let layer = state.filter_map(|(name, t)| Some((format!("linear.{}", name.strip_prefix(POOLER)?), t)));
            safetensors::save(&place.join("model.safetensors"), &layer.collect::<Vec<_>>(), &note)?;
            modules.push(("Dense", name));
        }
        if self.normalize {
            let name = format!("{}_Normalize", modules.len());
            place(&name)?;
            modules.push(("Normalize", name));
        }
        let modules = modules.into_iter().enumerate().map(|(i, (kind, path))| {
            json!({ "idx": i, "name": i.to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}") })
        });
        write_json(to.join("modules.json"), modules.collect())?;
        // Last: that it is there says that the folder is whole.
        safetensors::save(&to.join("model.safetensors"), &self.bert.store().state_dict(), &note)
    }
}

/// Writes a JSON file for people.
fn write_json(path: PathBuf, value: Value) -> Result<()> {
    write_bytes(&path, format!("{value:#}\n"))
}

/// What a folder of this project says besides.
#[derive(Deserialize)]
struct Said {
    pooler: Option<Pooler>,
    torchscript: Option<String>,
    max_length: Option<usize>,
}

impl Said {
    fn read(folder: &Path) -> Result<Option<Said>> {
        let file = folder.join("weince.json");
        file.exists().then(|| read_json(&file)).transpose()
    }
}

/// Loads BERT's tensors strictly; what `allowed` matches may be missing.
fn fill(bert: &Bert, file: &Path, tensors: &[(String, Tensor)], allowed: &[String]) -> Result<()> {
    load_strictly(bert.store(), file, tensors, &Bert::other_names(), allowed)
}

fn load_strictly(
    store: &Store,
    file: &Path,
    tensors: &[(String, Tensor)],
    others: &OtherNames,
    allowed: &[String],
) -> Result<()> {
    let allowed = whole_names(allowed).map_err(Error::Input)?;
    match load(store, "encoder", tensors, others, &allowed, "").map_err(|e| Error::data(file, None, e.to_string()))? {
        Found::Loaded(_) => Ok(()),
        Found::Left(reason) => Err(Error::data(file, None, reason)),
    }
}

/// The mean over the tokens that are no padding: [B, L, width] to [B, width].
fn mean_of_tokens(states: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let Some(mask) = mask else { return Ok(states.f_mean_dim(1i64, false, None::<Kind>)?) };
    let mask = mask.f_unsqueeze(-1)?.f_to_kind(states.kind())?;
    Ok(states.f_mul(&mask)?.f_sum_dim_intlist(1i64, false, None::<Kind>)?.f_div(&mask.f_sum_dim_intlist(
        1i64,
        false,
        None::<Kind>,
    )?)?)
}
