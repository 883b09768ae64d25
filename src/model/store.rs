//! An ordered store of named tensors: parameters and buffers as `state_dict()` lists them in PyTorch.
//!
//! tch's `VarStore` iterates a hash map, knows no integer buffers, and lets a file decide the type and shape of a
//! parameter when loading. Optimizer state and files that PyTorch reads need the order, the buffers and strictness.

use crate::dist::Group;
use crate::error::{Error, Result};
use std::cell::{OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Div;
use std::rc::Rc;
use tch::{Device, Kind, Tensor};

#[derive(Debug)]
struct Entry {
    name: String,
    tensor: Tensor,
    role: Role,
}

/// What training does to a tensor of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The optimizer changes it.
    Trained,
    /// A parameter that stays as it is.
    Frozen,
    /// Passes in training may change it, as running statistics.
    Buffer,
}

/// The parameters and buffers of one model, in order of registration.
///
/// Layers hold handles to the same tensors, so what is loaded, moved or converted here is at once what they compute with.
#[derive(Debug)]
pub struct Store {
    entries: Vec<Entry>,
    sync: Processes,
}

/// The processes over whose rows the layers of a model take their batch statistics, once there are several.
pub(super) type Processes = Rc<OnceCell<Group>>;

impl Store {
    /// Builds a model: `make` gets the root path and registers tensors under it.
    ///
    /// # Errors
    /// Two tensors of one name, and whatever `make` returns.
    pub fn build<T>(make: impl FnOnce(&Path) -> Result<T>) -> Result<(T, Store)> {
        let (entries, sync) = (RefCell::new(Vec::new()), Processes::default());
        let model = make(&Path { entries: &entries, sync: &sync, prefix: String::new() })?;
        Ok((model, Store { sync, ..Store::checked(entries.into_inner())? }))
    }

    /// The tensors of a model that is made elsewhere: name, handle, and what training does to it.
    ///
    /// # Errors
    /// Two tensors of one name.
    pub fn of(tensors: Vec<(String, Tensor, Role)>) -> Result<Store> {
        let entry = |(name, tensor, role)| Entry { name, tensor, role };
        Store::checked(tensors.into_iter().map(entry).collect())
    }

    fn checked(entries: Vec<Entry>) -> Result<Store> {
        let mut seen = HashSet::new();
        if let Some(twice) = entries.iter().find(|e| !seen.insert(e.name.as_str())) {
            return Err(Error::Input(format!("model: the name `{}` was registered twice", twice.name)));
        }
        Ok(Store { entries, sync: Processes::default() })
    }

    /// From now on batch statistics in training are those of all processes of the group.
    pub fn synchronise(&self, group: &Group) {
        if !group.is_alone() {
            let _ = self.sync.set(group.clone());
        }
    }

    /// All parameters and buffers, as `module.state_dict()`: handles to the tensors themselves, without gradient.
    pub fn state_dict(&self) -> Vec<(String, Tensor)> {
        self.entries.iter().map(|e| (e.name.clone(), e.tensor.detach())).collect()
    }

    /// The trainable parameters, as `module.named_parameters()`; buffers such as running statistics are not among them.
    pub fn parameters(&self) -> Vec<(String, Tensor)> {
        let trained = self.entries.iter().filter(|e| e.role == Role::Trained);
        trained.map(|e| (e.name.clone(), e.tensor.shallow_clone())).collect()
    }

    /// The buffers, such as running statistics, as `module.buffers()`: handles to the tensors themselves.
    pub fn buffers(&self) -> Vec<Tensor> {
        self.entries.iter().filter(|e| e.role == Role::Buffer).map(|e| e.tensor.detach()).collect()
    }

    /// How many numbers the trainable parameters hold.
    pub fn parameter_count(&self) -> usize {
        self.entries.iter().filter(|e| e.role == Role::Trained).map(|e| e.tensor.numel()).sum()
    }

    /// How the names and shapes of `tensors` meet those of this store; changes nothing.
    pub fn compare(&self, tensors: &[(String, Tensor)]) -> LoadReport {
        let given: HashMap<&str, &Tensor> = tensors.iter().map(|(name, t)| (name.as_str(), t)).collect();
        let mut report = LoadReport::default();
        for entry in &self.entries {
            match given.get(entry.name.as_str()) {
                None => report.missing.push(entry.name.clone()),
                Some(t) if t.size() == entry.tensor.size() => report.matched.push(entry.name.clone()),
                Some(t) => report.wrong_shape.push(WrongShape {
                    name: entry.name.clone(),
                    expected: entry.tensor.size(),
                    found: t.size(),
                }),
            }
        }
        let known: HashSet<&str> = self.entries.iter().map(|e| e.name.as_str()).collect();
        let unknown = tensors.iter().filter(|(name, _)| !known.contains(name.as_str()));
        report.unexpected = unknown.map(|(name, _)| name.clone()).collect();
        report
    }

    /// Copies `tensors` into this store's, as `load_state_dict(strict=True)`: type and device stay the store's.
    ///
    /// # Errors
    /// Any name missing, unexpected or given twice, and any wrong shape; then nothing has been changed.
    pub fn load(&self, tensors: &[(String, Tensor)]) -> Result<LoadReport> {
        let report = self.compare(tensors);
        if !report.is_exact() {
            return Err(Error::Input(format!("the weights do not fit the model: {report}")));
        }
        if tensors.len() != self.entries.len() {
            return Err(Error::Input(format!(
                "the weights do not fit the model: {} tensors for {} names, so some name is given twice",
                tensors.len(),
                self.entries.len()
            )));
        }
        let given: HashMap<&str, &Tensor> = tensors.iter().map(|(name, t)| (name.as_str(), t)).collect();
        for entry in self.entries.iter().filter(|entry| is_float(entry.tensor.kind())) {
            if let Some(kind) = given.get(entry.name.as_str()).map(|t| t.kind()).filter(|kind| !is_float(*kind)) {
                return Err(Error::Input(format!(
                    "the weights do not fit the model: {} is of type {kind:?}, expected floating-point numbers; quantised \
                     weights are turned back into floats before they are saved",
                    entry.name
                )));
            }
        }
        let _guard = tch::no_grad_guard();
        for entry in &self.entries {
            if let Some(source) = given.get(entry.name.as_str()) {
                entry.tensor.shallow_clone().f_copy_(source)?;
            }
        }
        Ok(report)
    }

    /// Moves every tensor; handles that layers hold move along. An optimizer is made after this.
    ///
    /// # Errors
    /// Whatever LibTorch reports, such as a device that is not there or has no memory left.
    pub fn to_device(&self, device: Device) -> Result<()> {
        self.replace(|t| Ok(t.f_to_device(device)?))
    }

    /// Converts every floating-point tensor; integer buffers stay as they are. An optimizer is made after this.
    ///
    /// # Errors
    /// A kind that holds no floating-point numbers, and whatever LibTorch reports.
    pub fn to_kind(&self, kind: Kind) -> Result<()> {
        if !is_float(kind) {
            return Err(Error::Input(format!("model weights can't be {kind:?}: expected a floating-point type")));
        }
        self.replace(|t| if is_float(t.f_kind()?) { Ok(t.f_to_kind(kind)?) } else { Ok(t.shallow_clone()) })
    }

    /// Lays four-dimensional tensors out with their channels last, as `module.to(memory_format=torch.channels_last)`.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn channels_last(&self) -> Result<()> {
        self.replace(channels_last)
    }

    fn replace(&self, change: impl Fn(&Tensor) -> Result<Tensor>) -> Result<()> {
        for entry in &self.entries {
            let changed = change(&entry.tensor.detach())?;
            // The handle keeps its identity and gets other data, as `param.data = ...` does in Python.
            entry.tensor.shallow_clone().f_set_data(&changed)?;
        }
        Ok(())
    }
}

/// The tensor with its second dimension innermost in memory if it has four dimensions, else as it is.
pub(crate) fn channels_last(t: &Tensor) -> Result<Tensor> {
    match t.size()[..] {
        [n, channels, height, width] => {
            let laid_out = t.f_permute([0, 2, 3, 1])?.f_contiguous()?;
            // Said in full: where there is one pixel, a permutation leaves other steps than LibTorch has for this layout.
            let steps = [height * width * channels, 1, width * channels, channels];
            Ok(laid_out.f_as_strided([n, channels, height, width], steps, None)?)
        }
        _ => Ok(t.shallow_clone()),
    }
}

/// A name as messages show it.
pub(crate) fn shortened(name: &str) -> String {
    const MOST: usize = 100;
    let short: String = name.chars().take(MOST).collect();
    if short.len() < name.len() { short + "..." } else { short }
}

/// Whether a type holds real floating-point numbers.
pub(crate) fn is_float(kind: Kind) -> bool {
    matches!(kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16)
}

/// A place in the tree of names: `path / "layer1" / 0` is `layer1.0`.
#[derive(Clone)]
pub struct Path<'a> {
    entries: &'a RefCell<Vec<Entry>>,
    sync: &'a Processes,
    prefix: String,
}

impl Path<'_> {
    fn join(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) }
    }

    fn push(&self, name: &str, tensor: &Tensor, role: Role) {
        let entry = Entry { name: self.join(name), tensor: tensor.shallow_clone(), role };
        self.entries.borrow_mut().push(entry);
    }

    /// Registers a trainable parameter and returns the handle that the layer computes with.
    ///
    /// # Errors
    /// A tensor that can have no gradient.
    pub fn parameter(&self, name: &str, value: Tensor) -> Result<Tensor> {
        let tensor = value.detach().f_set_requires_grad(true)?;
        self.push(name, &tensor, Role::Trained);
        Ok(tensor)
    }

    /// What tells a layer of the processes that its batch statistics are of.
    pub(super) fn sync(&self) -> Processes {
        self.sync.clone()
    }

    /// Registers a tensor that belongs to the state but is not trained, and returns the layer's handle.
    pub fn buffer(&self, name: &str, value: Tensor) -> Tensor {
        let tensor = value.detach();
        self.push(name, &tensor, Role::Buffer);
        tensor
    }
}

impl<'a, T: fmt::Display> Div<T> for &Path<'a> {
    type Output = Path<'a>;
    fn div(self, name: T) -> Path<'a> {
        Path { prefix: self.join(&name.to_string()), ..self.clone() }
    }
}

impl<'a, T: fmt::Display> Div<T> for Path<'a> {
    type Output = Path<'a>;
    fn div(self, name: T) -> Path<'a> {
        &self / name
    }
}

/// A tensor whose shape is not the model's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongShape {
    /// Its name.
    pub name: String,
    /// The model's shape.
    pub expected: Vec<i64>,
    /// The shape that was given.
    pub found: Vec<i64>,
}

/// How given tensors meet a model's names and shapes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Names with the right shape, in the model's order.
    pub matched: Vec<String>,
    /// Names of the model that were not given.
    pub missing: Vec<String>,
    /// Given names that the model does not have.
    pub unexpected: Vec<String>,
    /// Names whose shapes differ.
    pub wrong_shape: Vec<WrongShape>,
}

impl LoadReport {
    /// Whether every name of the model was given with the right shape, and no other.
    pub fn is_exact(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.wrong_shape.is_empty()
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} names match", self.matched.len())?;
        let shapes = self.wrong_shape.iter();
        let shapes: Vec<String> =
            shapes.map(|w| format!("{} (expected {:?}, found {:?})", w.name, w.expected, w.found)).collect();
        for (what, names) in
            [("missing", &self.missing), ("unexpected", &self.unexpected), ("of another shape", &shapes)]
        {
            if !names.is_empty() {
                // Enough to see the pattern, such as a prefix; a whole ResNet-50 would be 318 names.
                const SHOWN: usize = 6;
                let more = names.len().saturating_sub(SHOWN);
                let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
                let first: Vec<String> = names.iter().take(SHOWN).map(|name| shortened(name)).collect();
                write!(f, "; {} {what}: {}{rest}", names.len(), first.join(", "))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> (Tensor, Store) {
        Store::build(|root| {
            let at = root / "layer1" / 0;
            let weight = at.parameter("weight", Tensor::zeros([2, 3], (Kind::Float, Device::Cpu)))?;
            let _ = at.buffer("running_mean", Tensor::zeros([3], (Kind::Float, Device::Cpu)));
            let _ = at.buffer("num_batches_tracked", Tensor::from(0i64));
            let _ = root.parameter("bias", Tensor::zeros([3], (Kind::Float, Device::Cpu)))?;
            Ok(weight)
        })
        .unwrap()
    }

    fn names(list: &[(String, Tensor)]) -> Vec<&str> {
        list.iter().map(|(n, _)| n.as_str()).collect()
    }

    #[test]
    fn names_keep_the_order_of_registration_and_buffers_are_not_trained() {
        let (_, store) = small();
        let all = ["layer1.0.weight", "layer1.0.running_mean", "layer1.0.num_batches_tracked", "bias"];
        assert_eq!(names(&store.state_dict()), all);
        assert_eq!(names(&store.parameters()), ["layer1.0.weight", "bias"]);
        assert_eq!(store.parameter_count(), 9);
        assert_eq!(store.buffers().iter().map(Tensor::size).collect::<Vec<_>>(), [vec![3], vec![]]);
        assert!(store.parameters().iter().all(|(_, t)| t.requires_grad()));
    }

    #[test]
    fn loading_copies_in_place_and_keeps_the_types_of_the_model() {
        let (weight, store) = small();
        let mut given = store.state_dict().iter().map(|(n, t)| (n.clone(), t.ones_like())).collect::<Vec<_>>();
        given[0].1 = given[0].1.to_kind(Kind::Double) * 2.5;
        given.reverse();
        let report = store.load(&given).unwrap();
        assert_eq!(report.matched.len(), 4);
        assert_eq!((weight.kind(), weight.double_value(&[1, 2])), (Kind::Float, 2.5));
        assert_eq!(store.state_dict()[2].1.kind(), Kind::Int64);
        assert!(weight.requires_grad() && weight.is_leaf());
    }

    #[test]
    fn a_load_that_does_not_fit_changes_nothing_and_says_why() {
        let (weight, store) = small();
        let ones = |s: &[i64]| Tensor::ones(s, (Kind::Float, Device::Cpu));
        let given = vec![
            ("layer1.0.weight".to_string(), ones(&[2, 3])),
            ("layer1.0.running_mean".to_string(), ones(&[1])),
            ("fc.weight".to_string(), ones(&[1])),
        ];
        let text = store.load(&given).unwrap_err().to_string();
        for part in ["1 names match", "num_batches_tracked, bias", "fc.weight", "expected [3], found [1]"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(weight.sum(Kind::Double).double_value(&[]), 0.0);
        let mut twice = store.state_dict();
        twice.push((twice[0].0.clone(), twice[0].1.shallow_clone()));
        assert!(store.load(&twice).unwrap_err().to_string().contains("given twice"));
    }

    #[test]
    fn conversion_reaches_the_handles_of_layers_and_spares_integers() {
        let (weight, store) = small();
        store.to_kind(Kind::Double).unwrap();
        assert_eq!(weight.kind(), Kind::Double);
        assert_eq!(store.state_dict()[2].1.kind(), Kind::Int64);
        (&weight * 3.0).sum(Kind::Double).backward();
        assert_eq!(store.parameters()[0].1.grad().double_value(&[0, 0]), 3.0);
        assert!(store.to_kind(Kind::Int64).is_err());
    }

    #[test]
    fn a_name_registered_twice_is_refused() {
        let made = Store::build(|root| {
            let _ = root.buffer("a", Tensor::from(0i64));
            let _ = root.buffer("a", Tensor::from(0i64));
            Ok(())
        });
        assert!(made.unwrap_err().to_string().contains("`a`"));
    }
}
