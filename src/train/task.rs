//! What a run trains on, as the loop needs to know it: images or sentences.

use super::plan::Plan;
use super::step::Learner;
use crate::config::run::RunConfig;
use crate::data::Source;
use crate::dist::Group;
use crate::error::Result;
use crate::loss::Layout;
use crate::model::Store;
use crate::run::RunFolder;
use tch::{Device, Tensor};

/// A kind of run: its data, its model, and what it leaves beside what every run does.
pub trait Task: Sized {
    /// Its configuration.
    type Config: RunConfig;
    /// What it trains.
    type Model: Learner;
    /// What its batches are made of.
    type Source: Source;

    /// What its samples are called.
    const UNIT: &'static str;
    /// How a list of as many others differs.
    const OTHERS: &'static str;

    /// Who is compared with whom.
    fn layout(config: &Self::Config) -> Layout;

    /// Anchors and candidates that are compared at a time.
    fn compared(config: &Self::Config) -> (usize, usize) {
        let samples = config.common().batch_size;
        match Self::layout(config) {
            Layout::TwoView => (2 * samples, 2 * samples),
            Layout::OneWay | Layout::BothWays => (samples, samples),
        }
    }

    /// Reads the data.
    ///
    /// # Errors
    /// What cannot be read.
    fn open(config: &Self::Config) -> Result<Self>;

    /// The model, on the device; what of it is random is drawn from LibTorch's generator. `group` are the processes that train it.
    ///
    /// # Errors
    /// What cannot be made or read.
    fn model(&self, config: &Self::Config, device: Device, group: &Group) -> Result<Self::Model>;

    /// Names of parameters that are spared from weight decay whatever their shape; none unless told.
    fn spared(_model: &Self::Model) -> Vec<String> {
        Vec::new()
    }

    /// What tells the code of a model and whatever else a state does not hold of it from others; none where the configuration tells all.
    ///
    /// # Errors
    /// What cannot be read.
    fn code_sha256(config: &Self::Config) -> Result<Option<String>>;

    /// The model's parts under their keys in a checkpoint.
    fn parts(model: &Self::Model) -> Vec<(&'static str, &Store)>;

    /// Takes the weights that a new run begins with, where the model does not have them already; says what was taken.
    ///
    /// # Errors
    /// Weights that do not fit.
    fn load_weights(_plan: &Plan<Self>) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// The number of training samples.
    fn samples(&self) -> usize;
    /// What tells the list of samples from others.
    fn list_sha256(&self) -> &str;
    /// Where they are, for messages.
    fn location(config: &Self::Config) -> String;
    /// Memory of all data, in bytes.
    fn memory(&self) -> usize;

    /// What batches are made of, and the threads that make them.
    ///
    /// # Errors
    /// Settings that do not fit the data.
    fn source(&self, config: &Self::Config) -> Result<(Self::Source, usize)>;

    /// A batch as the model takes it, on the device.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    fn on_device(batch: &<Self::Source as Source>::Batch, device: Device) -> Result<<Self::Model as Learner>::Batch>;

    /// The samples of a batch, as positions in the training set.
    fn indices(batch: &<Self::Source as Source>::Batch) -> Vec<i64>;

    /// What tells the evaluation while training from others, whose best state is no better; none where the run's data tell.
    fn measure(&self) -> Option<&str> {
        None
    }

    /// Evaluates after `step` updates, if it is time: what was measured, and its value.
    ///
    /// # Errors
    /// What the evaluation reports.
    fn evaluate(plan: &Plan<Self>, step: u64) -> Result<Option<(&'static str, f64)>>;

    /// Writes what the folder of a run has besides, whenever the run starts.
    ///
    /// # Errors
    /// What the system refuses.
    fn write_notes(plan: &Plan<Self>, folder: &RunFolder) -> Result<()>;

    /// Writes pictures of the first batch, at the run's beginning, where there is something to see.
    ///
    /// # Errors
    /// What the system refuses.
    fn write_pictures(_plan: &Plan<Self>, _folder: &RunFolder) -> Result<()> {
        Ok(())
    }

    /// Writes the trained weights.
    ///
    /// # Errors
    /// What the system refuses.
    fn write_weights(plan: &mut Plan<Self>, folder: &RunFolder) -> Result<()>;

    /// The model's name.
    fn name(plan: &Plan<Self>) -> String;

    /// The width of what is kept of it, where that is known.
    fn features(plan: &Plan<Self>) -> Option<i64>;

    /// The width of what the loss compares, where that is known.
    fn dimensions(plan: &Plan<Self>) -> Option<i64>;

    /// All tensors of the model.
    fn tensors(model: &Self::Model) -> Vec<Tensor> {
        Self::parts(model).into_iter().flat_map(|(_, store)| store.state_dict()).map(|(_, t)| t).collect()
    }
}
