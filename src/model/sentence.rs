//! Sentences to vectors: BERT and one of SimCSE's poolers, from a folder as transformers and sentence-transformers write it.

use super::bert::{Bert, BertConfig};
use super::fit::{Found, load};
use crate::checkpoint::{self, safetensors, write_bytes};
use crate::config::text_model::Pooler;
use crate::config::whole_names;
use crate::error::{Error, Result};
use crate::json::read_json;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};

/// What the names of the layer over the first token begin with.
const POOLER: &str = "pooler.dense.";

/// A BERT with a pooler.
///
/// # Source
/// The poolers are those of T. Gao et al., *SimCSE*, 2021, and its code's `Pooler`; folders are those of sentence-transformers 5.
#[derive(Debug)]
pub struct SentenceEncoder {
    bert: Bert,
    /// The pooler in training.
    trained: Pooler,
    /// The pooler in evaluation.
    pooler: Pooler,
    normalize: bool,
    file: PathBuf,
}

impl SentenceEncoder {
    /// The encoder of a folder, on the CPU. Its pooler is `pooler` or, where none is given, what the folder says: in this project's
    /// own `weince.json`, or in sentence-transformers' `modules.json`.
    ///
    /// # Errors
    /// Files that are missing or damaged, another architecture, weights that do not fit, modules that cannot be served, and no
    /// pooler said by anyone.
    pub fn load(folder: &Path, pooler: Option<Pooler>) -> Result<SentenceEncoder> {
        let modules = Modules::read(folder)?;
        let said = Said::read(folder)?.map(|said| said.pooler);
        let pooler = match (pooler.or(said), &modules.pooling) {
            (Some(pooler), _) => pooler,
            (None, Some(pooling)) => pooling.pooler()?,
            (None, None) => {
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
            tensors.retain(|(name, _)| !name.contains(POOLER));
            let place = place_of(&tensors);
            tensors.extend(dense.tensors()?.into_iter().map(|(name, t)| (format!("{place}{POOLER}{name}"), t)));
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
        Ok(SentenceEncoder { bert, trained: pooler, pooler, normalize: modules.normalize, file })
    }

    /// The encoder of a folder, to be trained with one pooler and evaluated with another, on the CPU. The layer of the pooler `cls` is
    /// drawn anew from LibTorch's generator, as in SimCSE.
    ///
    /// # Errors
    /// As [`SentenceEncoder::load`].
    pub fn to_train(folder: &Path, trained: Pooler, evaluated: Pooler) -> Result<SentenceEncoder> {
        let modules = Modules::read(folder)?;
        let (file, mut tensors) = modules.weights()?;
        let with_layer = trained == Pooler::Cls;
        tensors.retain(|(name, _)| !name.contains(POOLER));
        let bert = modules.bert(with_layer)?;
        fill(&bert, &file, &tensors, &["encoder\\.pooler\\.dense\\..*".to_string()])?;
        bert.renew_pooler()?;
        Ok(SentenceEncoder { bert, trained, pooler: evaluated, normalize: false, file })
    }

    /// The longest sequence of tokens that the encoder of a folder takes.
    ///
    /// # Errors
    /// A configuration that cannot be read.
    pub fn positions(folder: &Path) -> Result<usize> {
        let config: BertConfig = read_json(&Modules::read(folder)?.transformer.join("config.json"))?;
        Ok(config.max_position_embeddings.max(0) as usize)
    }

    /// One vector a sentence. With `train` numbers are dropped, by LibTorch's generator.
    ///
    /// # Shapes
    /// As [`Bert::hidden_states`]; vectors [B, width].
    ///
    /// # Errors
    /// As [`Bert::hidden_states`].
    pub fn forward(&self, ids: &Tensor, mask: Option<&Tensor>, train: bool) -> Result<Tensor> {
        let states = self.bert.hidden_states(ids, mask, train)?;
        let last = &states[states.len() - 1];
        let average = |states: &Tensor| mean_of_tokens(states, mask);
        let halfway = |other: &Tensor| -> Result<Tensor> { Ok(other.f_add(last)?.f_div_scalar(2.0)?) };
        let pooled = match if train { self.trained } else { self.pooler } {
            Pooler::Cls => self.bert.pooled(last)?.ok_or_else(|| Error::Input("bert: there is no pooler".into()))?,
            Pooler::ClsBeforePooler => last.f_select(1, 0)?,
            Pooler::Avg => average(last)?,
            Pooler::AvgFirstLast => average(&halfway(&states[0])?)?,
            Pooler::AvgTop2 => average(&halfway(&states[states.len() - 2])?)?,
        };
        if train || !self.normalize {
            return Ok(pooled);
        }
        Ok(pooled.f_div(&pooled.f_norm_scalaropt_dim(2.0, [1i64], true)?.f_clamp_min(1e-12)?)?)
    }

    /// The BERT in it.
    pub fn bert(&self) -> &Bert {
        &self.bert
    }

    /// The file that its weights are from.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// How hidden states become a vector in evaluation.
    pub fn pooler(&self) -> Pooler {
        self.pooler
    }

    /// Writes a folder that transformers, sentence-transformers and [`SentenceEncoder::load`] open: the weights, and of the folder
    /// `from` configuration and tokenizer. sentence-transformers has no module for the poolers that take two layers' states; of these,
    /// `weince.json` alone tells.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn save(&self, from: &Path, to: &Path, max_length: usize) -> Result<()> {
        let make = |folder: &Path| std::fs::create_dir_all(folder).map_err(Error::io(folder, "cannot make the folder"));
        let write = |path: PathBuf, value: Value| write_bytes(&path, format!("{value:#}\n"));
        make(to)?;
        let from = Modules::read(from)?.transformer;
        for name in ["config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"] {
            let file = from.join(name);
            if file.exists() {
                write_bytes(&to.join(name), std::fs::read(&file).map_err(Error::io(&file, "cannot read"))?)?;
            }
        }
        let note = BTreeMap::from([("format".to_string(), "pt".to_string())]);
        safetensors::save(&to.join("model.safetensors"), &self.bert.store().state_dict(), &note)?;
        write(to.join("weince.json"), json!({ "pooler": self.pooler, "max_length": max_length }))?;
        let mode = match self.pooler {
            Pooler::Cls | Pooler::ClsBeforePooler => "cls",
            Pooler::Avg => "mean",
            Pooler::AvgFirstLast | Pooler::AvgTop2 => return Ok(()),
        };
        let width = self.bert.config().hidden_size;
        let module = |i: usize, path: &str, kind: &str| json!({ "idx": i, "name": i.to_string(), "path": path, "type": format!("sentence_transformers.models.{kind}") });
        let mut modules = vec![module(0, "", "Transformer"), module(1, "1_Pooling", "Pooling")];
        write(to.join("sentence_bert_config.json"), json!({ "max_seq_length": max_length, "do_lower_case": false }))?;
        make(&to.join("1_Pooling"))?;
        let pooling = json!({
            "word_embedding_dimension": width,
            "pooling_mode_cls_token": mode == "cls",
            "pooling_mode_mean_tokens": mode == "mean",
            "pooling_mode_max_tokens": false,
            "pooling_mode_mean_sqrt_len_tokens": false,
        });
        write(to.join("1_Pooling/config.json"), pooling)?;
        if self.pooler == Pooler::Cls {
            modules.push(module(2, "2_Dense", "Dense"));
            let place = to.join("2_Dense");
            make(&place)?;
            let activation = "torch.nn.modules.activation.Tanh";
            let dense =
                json!({ "in_features": width, "out_features": width, "bias": true, "activation_function": activation });
            write(place.join("config.json"), dense)?;
            let state = self.bert.store().state_dict().into_iter();
            let layer = state.filter_map(|(name, t)| Some((format!("linear.{}", name.strip_prefix(POOLER)?), t)));
            safetensors::save(&place.join("model.safetensors"), &layer.collect::<Vec<_>>(), &note)?;
        }
        write(to.join("modules.json"), Value::Array(modules))
    }

    /// Moves the encoder.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn to_device(&self, device: Device) -> Result<()> {
        self.bert.store().to_device(device)
    }
}

/// What a folder of this project says besides.
#[derive(Deserialize)]
struct Said {
    pooler: Pooler,
}

impl Said {
    fn read(folder: &Path) -> Result<Option<Said>> {
        let file = folder.join("weince.json");
        file.exists().then(|| read_json(&file)).transpose()
    }
}

/// Loads BERT's tensors strictly; what `allowed` matches may be missing.
fn fill(bert: &Bert, file: &Path, tensors: &[(String, Tensor)], allowed: &[String]) -> Result<()> {
    let allowed = whole_names(allowed).map_err(Error::Input)?;
    let found = load(bert.store(), "encoder", tensors, &Bert::other_names(), &allowed, "")
        .map_err(|e| Error::data(file, None, e.to_string()))?;
    match found {
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

/// What stands before a file's names of BERT, such as `bert.`.
fn place_of(tensors: &[(String, Tensor)]) -> String {
    let mark = "embeddings.word_embeddings.weight";
    tensors.iter().find_map(|(name, _)| name.strip_suffix(mark)).unwrap_or_default().to_string()
}

/// The parts that sentence-transformers' `modules.json` lists.
struct Modules {
    /// Where transformers' files are.
    transformer: PathBuf,
    pooling: Option<Pooling>,
    dense: Option<Dense>,
    normalize: bool,
}

impl Modules {
    /// The file of weights, and what is in it.
    fn weights(&self) -> Result<(PathBuf, Vec<(String, Tensor)>)> {
        let file = weights_file(&self.transformer)?;
        let tensors = checkpoint::tensors(&file)?;
        Ok((file, tensors))
    }

    /// The BERT that `config.json` describes, all 0.
    fn bert(&self, pooler: bool) -> Result<Bert> {
        let file = self.transformer.join("config.json");
        let config: BertConfig = read_json(&file)?;
        Bert::zeros(&config, pooler).map_err(|e| Error::data(&file, None, e.to_string()))
    }

    fn read(folder: &Path) -> Result<Modules> {
        #[derive(Deserialize)]
        struct Module {
            path: String,
            #[serde(rename = "type")]
            kind: String,
        }
        let mut found = Modules { transformer: folder.to_path_buf(), pooling: None, dense: None, normalize: false };
        let list = folder.join("modules.json");
        if !folder.is_dir() {
            return Err(Error::data(folder, None, "expected a model's folder, with config.json and model.safetensors"));
        }
        if !list.exists() {
            return Ok(found);
        }
        for Module { path, kind } in read_json::<Vec<Module>>(&list)? {
            let place = folder.join(path);
            // Their packages move from version to version; the class's name stays.
            match kind.rsplit('.').next().unwrap_or_default() {
                "Transformer" => found.transformer = place,
                "Pooling" if found.pooling.is_none() => {
                    let file = place.join("config.json");
                    found.pooling = Some(Pooling { modes: read_json(&file)?, dense: false, file });
                }
                "Dense" if found.pooling.is_some() && found.dense.is_none() && !found.normalize => {
                    found.dense = Some(Dense::read(place)?);
                }
                "Normalize" if found.pooling.is_some() => found.normalize = true,
                _ => {
                    return Err(Error::data(
                        list,
                        None,
                        format!(
                            "the module {kind} cannot be served at its place; expected Transformer, Pooling, and then at most a Dense \
                             with a tanh and a Normalize"
                        ),
                    ));
                }
            }
        }
        if let Some(pooling) = &mut found.pooling {
            pooling.dense = found.dense.is_some();
        }
        Ok(found)
    }
}

/// The configuration of sentence-transformers' `Pooling`.
struct Pooling {
    modes: Map<String, Value>,
    dense: bool,
    file: PathBuf,
}

impl Pooling {
    fn pooler(&self) -> Result<Pooler> {
        let modes =
            self.modes.iter().filter(|(key, value)| key.starts_with("pooling_mode_") && value.as_bool() == Some(true));
        let mut modes: Vec<&str> = modes.map(|(key, _)| key.as_str()).collect();
        modes.extend(self.modes.get("pooling_mode").and_then(Value::as_str));
        match (&modes[..], self.dense) {
            (["pooling_mode_mean_tokens" | "mean"], false) => Ok(Pooler::Avg),
            (["pooling_mode_cls_token" | "cls"], false) => Ok(Pooler::ClsBeforePooler),
            (["pooling_mode_cls_token" | "cls"], true) => Ok(Pooler::Cls),
            _ => {
                let dense = if self.dense { " and a Dense behind it" } else { "" };
                let found = if modes.is_empty() { "none".to_string() } else { modes.join(", ") };
                Err(Error::data(
                    &self.file,
                    None,
                    format!(
                        "expected one pooling mode, of the mean or of the first token (with a Dense, of the first), found {found}{dense}"
                    ),
                ))
            }
        }
    }
}

/// sentence-transformers' `Dense`, a linear layer and a tanh: SimCSE's pooler.
struct Dense {
    place: PathBuf,
}

impl Dense {
    fn read(place: PathBuf) -> Result<Dense> {
        let file = place.join("config.json");
        let config: Map<String, Value> = read_json(&file)?;
        let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
        if !text("activation_function").ends_with(".Tanh") || config.get("bias").and_then(Value::as_bool) == Some(false)
        {
            return Err(Error::data(
                file,
                None,
                format!(
                    "expected a layer with a bias and the activation torch.nn.modules.activation.Tanh, found {}",
                    Value::from(config)
                ),
            ));
        }
        Ok(Dense { place })
    }

    /// Its `weight` and `bias`.
    fn tensors(&self) -> Result<Vec<(String, Tensor)>> {
        let tensors = checkpoint::tensors(&weights_file(&self.place)?)?;
        Ok(tensors.into_iter().map(|(name, t)| (name.trim_start_matches("linear.").to_string(), t)).collect())
    }
}

/// The file of weights in a folder.
fn weights_file(folder: &Path) -> Result<PathBuf> {
    const NAMES: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];
    if let Some(file) = NAMES.iter().map(|name| folder.join(name)).find(|file| file.exists()) {
        return Ok(file);
    }
    let split = ["model.safetensors.index.json", "pytorch_model.bin.index.json"];
    let hint = match split.iter().find(|name| folder.join(name).exists()) {
        Some(name) => {
            format!("; {name} tells of weights in several files: save them as one, with max_shard_size=\"100GB\"")
        }
        None => String::new(),
    };
    Err(Error::data(folder, None, format!("expected weights in {}, found neither{hint}", NAMES.join(" or "))))
}
