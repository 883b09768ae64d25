//! What is in the folder of a sentence encoder, as transformers and sentence-transformers write it.

use super::bert::{Bert, BertConfig};
use crate::checkpoint;
use crate::config::text_model::Pooler;
use crate::error::{Error, Result};
use crate::json::read_json;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use tch::{Kind, Tensor};

/// What the names of the layer over the first token begin with.
pub(super) const POOLER: &str = "pooler.dense.";

/// Refuses a folder that wants words before every sentence.
pub(super) fn refuse_prompt(folder: &Path) -> Result<()> {
    let file = folder.join("config_sentence_transformers.json");
    if !file.exists() {
        return Ok(());
    }
    let said: Map<String, Value> = read_json(&file)?;
    let name = said.get("default_prompt_name").and_then(Value::as_str);
    let prompt = name.and_then(|name| said.get("prompts")?.get(name)?.as_str()).filter(|prompt| !prompt.is_empty());
    prompt.map_or(Ok(()), |prompt| {
        let message = format!(
            "the model puts `{prompt}` before every sentence (default_prompt_name), which is not done here; write the sentences so, \
             and set default_prompt_name to null in a copy"
        );
        Err(Error::data(&file, None, message))
    })
}

/// What stands before a file's names of BERT, such as `bert.`.
fn place_of(tensors: &[(String, Tensor)]) -> String {
    let mark = "embeddings.word_embeddings.weight";
    tensors.iter().find_map(|(name, _)| name.strip_suffix(mark)).unwrap_or_default().to_string()
}

/// The parts that sentence-transformers' `modules.json` lists.
pub(super) struct Modules {
    /// Where transformers' files are.
    pub transformer: PathBuf,
    pub pooling: Option<Pooling>,
    /// The folder of a pooling over several layers' states before it.
    layers: Option<PathBuf>,
    pub dense: Option<Dense>,
    pub normalize: bool,
}

impl Modules {
    /// The file of weights, and what is in it.
    pub fn weights(&self) -> Result<(PathBuf, Vec<(String, Tensor)>)> {
        let file = weights_file(&self.transformer)?;
        let tensors = checkpoint::tensors(&file)?;
        Ok((file, tensors))
    }

    /// The BERT that `config.json` describes, all 0.
    pub fn bert(&self, pooler: bool) -> Result<Bert> {
        let file = self.transformer.join("config.json");
        let config: BertConfig = read_json(&file)?;
        Bert::zeros(&config, pooler).map_err(|e| Error::data(&file, None, e.to_string()))
    }

    pub fn read(folder: &Path) -> Result<Modules> {
        #[derive(Deserialize)]
        struct Module {
            path: String,
            #[serde(rename = "type")]
            kind: String,
        }
        let transformer = folder.to_path_buf();
        let mut found = Modules { transformer, pooling: None, layers: None, dense: None, normalize: false };
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
                "WeightedLayerPooling" if found.pooling.is_none() => found.layers = Some(place),
                "Pooling" if found.pooling.is_none() => {
                    let file = place.join("config.json");
                    found.pooling =
                        Some(Pooling { modes: read_json(&file)?, layers: found.layers.clone(), dense: false, file });
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
pub(super) struct Pooling {
    modes: Map<String, Value>,
    layers: Option<PathBuf>,
    dense: bool,
    file: PathBuf,
}

impl Pooling {
    pub fn pooler(&self) -> Result<Pooler> {
        if let Some(place) = &self.layers {
            return two_layers(place);
        }
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

/// The pooler of two layers' states that sentence-transformers' `WeightedLayerPooling` stands for; a mean over tokens follows it.
fn two_layers(place: &Path) -> Result<Pooler> {
    #[derive(Deserialize)]
    struct Layers {
        layer_start: usize,
        num_hidden_layers: usize,
    }
    let Layers { layer_start, num_hidden_layers } = read_json(&place.join("config.json"))?;
    let file = weights_file(place)?;
    let tensors = checkpoint::tensors(&file)?;
    let weights = match &tensors[..] {
        [(_, weights)] => Vec::<f32>::try_from(weights.f_to_kind(Kind::Float)?.f_flatten(0, -1)?)?,
        _ => Vec::new(),
    };
    let all: Vec<f32> = std::iter::repeat_n(0.0, layer_start).chain(weights).collect();
    let of = |taken: [usize; 2]| (0..=num_hidden_layers).map(|i| f32::from(taken.contains(&i))).collect::<Vec<f32>>();
    match all {
        all if all == of([0, num_hidden_layers]) => Ok(Pooler::AvgFirstLast),
        all if num_hidden_layers > 0 && all == of([num_hidden_layers - 1, num_hidden_layers]) => Ok(Pooler::AvgTop2),
        all => Err(Error::data(
            file,
            None,
            format!(
                "weighs the layers by {all:?}, and expected are those of `avg_first_last` or `avg_top2`, 1 for each of its two layers and \
                 0 for all others; give one of them as the pooler to take it in place of the folder's"
            ),
        )),
    }
}

/// sentence-transformers' `Dense`, a linear layer and a tanh: SimCSE's pooler.
pub(super) struct Dense {
    pub place: PathBuf,
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

    /// Puts its layer in the place of BERT's own.
    pub fn replace_in(&self, tensors: &mut Vec<(String, Tensor)>) -> Result<()> {
        tensors.retain(|(name, _)| !name.contains(POOLER));
        let place = place_of(tensors);
        tensors.extend(self.tensors()?.into_iter().map(|(name, t)| (format!("{place}{POOLER}{name}"), t)));
        Ok(())
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
