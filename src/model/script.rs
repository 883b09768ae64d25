//! A module that Python exported as TorchScript, as something to train: its code runs as it is, its tensors are trained in place.

use super::store::{Role, Store};
use crate::checkpoint::{torch_file, write_beside_and_rename};
use crate::error::{Error, Result};
use crate::torch::{Script, clear_gradients};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};

/// A module and its tensors, under the names that they have.
#[derive(Debug)]
pub(super) struct Module {
    path: PathBuf,
    script: Script,
    store: Store,
    /// Devices that the code names.
    devices: Vec<String>,
}

/// What a module is fed with, for the probe and for messages.
pub(super) struct Food<'a> {
    /// `images`
    pub name: &'a str,
    /// What a vector is expected of: `an image`.
    pub one: &'a str,
    /// What to do where something else comes.
    pub remedy: &'a str,
    /// The inputs of a batch of so many.
    pub batch: &'a dyn Fn(i64) -> Result<Vec<Tensor>>,
}

/// What to do where a module's behaviour was fixed when it was exported.
const REMEDY: &str = "write it so that it follows train() and eval(), and export it with torch.jit.script (a trace keeps the \
                      mode that it was made in) or with scripts/export_backbone.py";

impl Module {
    /// Loads a module on the CPU.
    ///
    /// # Errors
    /// A file that is no TorchScript module; a module without parameters, or whose training mode is fixed.
    pub fn load(path: &Path) -> Result<Module> {
        let refuse = |message: String| Err(Error::data(path, None, message));
        torch_file::verify_script(path)?;
        let script = Script::load(path)?;
        let baked =
            script.baked().map_err(|e| Error::data(path, None, format!("the module has no code to look at: {e}")))?;
        if let Some(first) = baked.modes.first() {
            let more = baked.modes.len() - 1;
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            return refuse(format!("the module's mode is fixed in its code: {first}{more}; {REMEDY}"));
        }
        let mut trained: HashSet<usize> = HashSet::new();
        let members = script.members()?;
        let entries = members.into_iter().map(|m| {
            // A parameter of two names is trained once.
            let role = match m.is_parameter {
                true if m.tensor.requires_grad() && trained.insert(m.tensor.data_ptr() as usize) => Role::Trained,
                true => Role::Frozen,
                false => Role::Buffer,
            };
            (m.name, m.tensor, role)
        });
        let store = Store::of(entries.collect())?;
        if store.parameters().is_empty() {
            return refuse(format!(
                "the module has no parameters that require a gradient, perhaps because torch.jit.freeze made constants of \
                 them; {REMEDY}"
            ));
        }
        Ok(Module { path: path.to_path_buf(), script, store, devices: baked.devices })
    }

    /// The width of the features. Tried are: two batches of different size in evaluation mode, the same batch once more, and a
    /// training pass with its gradients, whose traces are taken back.
    pub fn probe(&self, food: &Food) -> Result<i64> {
        let refuse = |message: String| Err(Error::data(&self.path, None, message));
        let evaluate = |inputs: &[Tensor]| tch::no_grad(|| self.forward(inputs, false, food.name));
        let mut width = None;
        for batch in [2, 3] {
            let inputs = (food.batch)(batch)?;
            let features = evaluate(&inputs)?;
            let (shape, kind) = (features.size(), features.f_kind()?);
            match shape[..] {
                [b, features] if b == batch && features > 0 && width.is_none_or(|w| w == features) => {
                    width = Some(features);
                }
                _ => {
                    return refuse(format!(
                        "the module makes {shape:?} of {} {:?}; expected one vector {}, [{batch}, F]: {}",
                        food.name,
                        inputs[0].size(),
                        food.one,
                        food.remedy
                    ));
                }
            }
            if kind != Kind::Float {
                return refuse(format!("the module gives {kind:?}, expected float32; export it as module.float()"));
            }
        }
        let same = (food.batch)(2)?;
        let (first, second) = (evaluate(&same)?, evaluate(&same)?);
        if !first.f_equal(&second)? && first.f_isfinite()?.f_all()?.f_int64_value(&[])? != 0 {
            return refuse(format!(
                "the module gives other features of the same {} in evaluation mode; {REMEDY}",
                food.name
            ));
        }
        let before: Vec<Tensor> = self.store.state_dict().iter().map(|(_, t)| t.copy()).collect();
        let trained = self.probe_gradients(&same, food.name);
        let _guard = tch::no_grad_guard();
        self.store.state_dict().iter().zip(&before).for_each(|((_, t), before)| t.shallow_clone().copy_(before));
        let parameters: Vec<Tensor> = self.store.parameters().into_iter().map(|(_, p)| p).collect();
        clear_gradients(&parameters)?;
        trained?;
        Ok(width.unwrap_or_default())
    }

    /// A training pass forward and backward.
    fn probe_gradients(&self, inputs: &[Tensor], name: &str) -> Result<()> {
        let refuse = |message: String| Err(Error::data(&self.path, None, message));
        let features = self.forward(inputs, true, name)?;
        if !features.requires_grad() {
            return refuse(format!(
                "no gradient reaches the module's parameters, perhaps because it was exported under torch.no_grad(); {REMEDY}"
            ));
        }
        if let Err(e) = features.f_square()?.f_sum(Kind::Float)?.f_backward() {
            return refuse(format!(
                "the module has no backward pass ({}); {REMEDY}",
                last_error(&Error::from(e).to_string())
            ));
        }
        Ok(())
    }

    /// Runs the module; `name` is what its inputs are called.
    ///
    /// # Errors
    /// What the module reports.
    pub fn forward(&self, inputs: &[Tensor], train: bool, name: &str) -> Result<Tensor> {
        self.script.train(train)?;
        self.script.forward(inputs).map_err(|e| {
            let text = last_error(&e.to_string());
            Error::data(&self.path, None, format!("the module fails on {name} {:?}: {text}", inputs[0].size()))
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its tensors.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Writes the module with the tensors that it has now, on the CPU.
    ///
    /// # Errors
    /// What LibTorch or the system report.
    pub fn save(&self, path: &Path, device: Device) -> Result<()> {
        self.store.to_device(Device::Cpu)?;
        write_beside_and_rename(path, |beside| self.script.save(beside))?;
        self.store.to_device(device)
    }

    /// Asks whether the code can serve on a device, and moves its tensors there.
    ///
    /// # Errors
    /// Code that names another device, and whatever LibTorch reports.
    pub fn to_device(&self, device: Device) -> Result<()> {
        let wanted = if device.is_cuda() { "cuda" } else { "cpu" };
        if let Some(other) = self.devices.iter().find(|name| name.split(':').next() != Some(wanted)) {
            return Err(Error::data(
                &self.path,
                None,
                format!(
                    "the module's code names the device {other}, and it is to run on {wanted}; export it there, or write its \
                     code without a device: x.new_zeros(...), torch.arange(..., device=x.device) in a scripted module"
                ),
            ));
        }
        self.store.to_device(device)
    }
}

/// The line of LibTorch's text that says what was wrong: of the interpreter's traceback the last one.
fn last_error(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let told = lines.iter().rev().find(|line| line.contains("rror:")).or(lines.first());
    told.copied().unwrap_or_default().to_string()
}
