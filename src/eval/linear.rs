//! The linear probe: how well a linear classifier reads the classes from frozen features.
//!
//! The default protocol is multinomial logistic regression, fitted to convergence, which leaves no learning rate to tune;
//! [`super::adam`] is the authors' protocol. Both hold out a stratified validation part by the seed and count every test
//! sample once.

use super::features::{Classes, Features};
use super::split::{Split, stratified};
use super::{adam, logistic};
use crate::config::distinct_seeds;
use crate::config::eval::{AUTHORS_BATCH, LinearConfig};
use crate::error::Result;
use crate::stats::Spread;
use serde::Serialize;
use tch::{Device, Kind, Tensor};

/// Rows that are multiplied at once: little enough to stay in the cache between the two products of a step.
pub(super) const BLOCK: usize = 2048;

/// What a probe reached, for one seed.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Seed of the split, and of the initialisation and order where the protocol has them.
    pub seed: u64,
    /// Fraction of the test samples that are classified right.
    pub test_accuracy: f64,
    /// Fraction of the validation samples; absent where nothing was held out.
    pub val_accuracy: Option<f64>,
    /// Test samples classified right.
    pub test_correct: usize,
    /// Samples that were fitted while choosing.
    pub train: usize,
    /// Samples held out.
    pub val: usize,
    /// What the protocol tells of its fit.
    #[serde(flatten)]
    pub fit: Fit,
}

/// What a protocol tells of its fit.
#[derive(Debug, Clone, Serialize)]
#[serde(untagged)]
pub enum Fit {
    /// Of the logistic regression.
    Lbfgs(Box<logistic::LbfgsFit>),
    /// Of the authors' protocol.
    Adam(adam::AdamFit),
}

/// Outcomes over seeds. Fractions, not percents.
#[derive(Debug, Clone, Serialize)]
pub struct LinearResult {
    /// Mean over the seeds.
    pub test_accuracy: f64,
    /// Standard deviation over the seeds (n - 1); absent for one seed.
    pub test_accuracy_std: Option<f64>,
    /// Both ends of the mean's 95 % interval by Student's t, over the seeds of the probe alone; absent for one seed.
    pub test_accuracy_ci95: Option<[f64; 2]>,
    /// Mean over the seeds; absent where nothing was held out.
    pub val_accuracy: Option<f64>,
    /// Standard deviation over the seeds; absent for one seed.
    pub val_accuracy_std: Option<f64>,
    /// As `test_accuracy_ci95`.
    pub val_accuracy_ci95: Option<[f64; 2]>,
    /// Training and test samples that the figures are of.
    pub samples: [usize; 2],
    /// One outcome a seed.
    pub outcomes: Vec<Outcome>,
}

/// Fits a probe for every seed. `progress` gets the steps done and the steps in all.
///
/// A test sample of a class that the training part lacks counts as wrong.
///
/// # Errors
/// Values out of range, no seed, features that do not belong together, fewer than two classes, no possible validation split.
pub fn evaluate(
    config: &LinearConfig,
    seeds: &[u64],
    train: &Features,
    test: &Features,
    device: Device,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<LinearResult> {
    config.validate()?;
    distinct_seeds("seeds", seeds)?;
    let kept = (kept(config, train, true)?, kept(config, test, false)?);
    let (train, test) = (kept.0.as_ref().unwrap_or(train), kept.1.as_ref().unwrap_or(test));
    let classes = Classes::of(train, test)?;
    classes.refuse_one()?;
    let _guard = tch::no_grad_guard();
    let mut outcomes = Vec::new();
    for (i, &seed) in seeds.iter().enumerate() {
        let mut step = |done, steps| progress(i as u64 * steps + done, seeds.len() as u64 * steps);
        let Fitted { model, val_accuracy, fit, split } = fit_one(config, seed, train, &classes, device, &mut step)?;
        let (test_correct, _) = model.score(test.features(), None, &classes.test)?;
        outcomes.push(Outcome {
            seed,
            test_accuracy: test_correct as f64 / test.samples() as f64,
            val_accuracy,
            test_correct,
            train: split.fit.len(),
            val: split.validation.len(),
            fit,
        });
    }
    let tests: Vec<f64> = outcomes.iter().map(|o| o.test_accuracy).collect();
    let vals: Vec<f64> = outcomes.iter().filter_map(|o| o.val_accuracy).collect();
    let samples = [train.samples(), test.samples()];
    let (test, val) = (Spread::of(&tests), Spread::of(&vals));
    Ok(LinearResult {
        samples,
        test_accuracy: test.map_or(f64::NAN, |t| t.mean),
        test_accuracy_std: test.and_then(|t| t.std),
        test_accuracy_ci95: test.and_then(|t| t.interval_95()),
        val_accuracy: val.map(|v| v.mean),
        val_accuracy_std: val.and_then(|v| v.std),
        val_accuracy_ci95: val.and_then(|v| v.interval_95()),
        outcomes,
    })
}

/// Fits the probe of one seed, as [`evaluate`] does for each: the classifier, and what is known of its fit.
///
/// # Errors
/// As [`evaluate`], but for those of the test part.
pub fn fit(
    config: &LinearConfig,
    seed: u64,
    train: &Features,
    device: Device,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Classifier, Fit)> {
    config.validate()?;
    let kept = kept(config, train, true)?;
    let train = kept.as_ref().unwrap_or(train);
    let classes = Classes::of(train, train)?;
    classes.refuse_one()?;
    let _guard = tch::no_grad_guard();
    let Fitted { model, fit, .. } = fit_one(config, seed, train, &classes, device, progress)?;
    Ok((model, fit))
}

/// The features that a protocol keeps where it drops the last batch; none where it keeps all. Training samples are dropped from one
/// drawn order, whatever the probe's seed, test samples from the end.
fn kept(config: &LinearConfig, features: &Features, drawn: bool) -> Result<Option<Features>> {
    match config {
        LinearConfig::Adam(c) if c.drop_last => features.drop_last(AUTHORS_BATCH, drawn.then_some(0)).map(Some),
        _ => Ok(None),
    }
}

/// A probe of one seed.
struct Fitted {
    model: Classifier,
    val_accuracy: Option<f64>,
    fit: Fit,
    split: Split,
}

fn fit_one(
    config: &LinearConfig,
    seed: u64,
    train: &Features,
    classes: &Classes,
    device: Device,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Fitted> {
    let split = stratified(&classes.train, classes.count(), config.validation(), seed)?;
    let task = Task { train, classes, split: &split, device };
    let (model, val_accuracy, fit) = match config {
        LinearConfig::Lbfgs(config) => logistic::fit(config, &task, progress)?,
        LinearConfig::Adam(config) => adam::train(config, seed, &task, progress)?,
    };
    Ok(Fitted { model, val_accuracy, fit, split })
}

/// One seed's data.
pub(super) struct Task<'a> {
    pub train: &'a Features,
    pub classes: &'a Classes,
    pub split: &'a Split,
    pub device: Device,
}

impl Task<'_> {
    /// Accuracy and mean loss of a classifier on the validation part; none where nothing was held out.
    pub fn validate(&self, model: &Classifier) -> Result<Option<(f64, f64)>> {
        let held = &self.split.validation;
        if held.is_empty() {
            return Ok(None);
        }
        let targets: Vec<Option<usize>> = held.iter().map(|&i| Some(self.classes.train[i as usize])).collect();
        let (correct, loss) = model.score(self.train.features(), Some(held), &targets)?;
        Ok(Some((correct as f64 / held.len() as f64, loss)))
    }
}

/// A linear classifier of features that are centred and scaled first. Float64.
///
/// # Shapes
/// `mean`, `scale` `[d]`; `weight` [d + 1, classes], the last row the bias.
#[derive(Debug)]
pub struct Classifier {
    pub(super) mean: Tensor,
    pub(super) scale: Tensor,
    pub(super) weight: Tensor,
}

impl Classifier {
    /// Weights and biases for features that are centred and scaled.
    ///
    /// # Shapes
    /// [classes, d] and `[classes]`, float64, classes in the order of their labels.
    ///
    /// # Errors
    /// Whatever LibTorch reports.
    pub fn weight_and_bias(&self) -> Result<(Tensor, Tensor)> {
        let d = self.weight.size()[0] - 1;
        let weight = self.weight.f_narrow(0, 0, d)?.f_tr()?.f_contiguous()?;
        Ok((weight, self.weight.f_get(d)?.f_contiguous()?))
    }

    /// How many of the rows are right, and their mean cross-entropy over those with a known class. `rows` selects and
    /// orders; the lowest class wins a tie.
    pub(super) fn score(
        &self,
        features: &Tensor,
        rows: Option<&[i64]>,
        targets: &[Option<usize>],
    ) -> Result<(usize, f64)> {
        let classes = self.weight.size()[1] as usize;
        let (mut correct, mut loss, mut known) = (0, 0.0, 0usize);
        for (b, targets) in targets.chunks(BLOCK).enumerate() {
            let begin = b * BLOCK;
            let block = match rows {
                Some(rows) => {
                    features.f_index_select(0, &Tensor::f_from_slice(&rows[begin..begin + targets.len()])?)?
                }
                None => features.f_narrow(0, begin as i64, targets.len() as i64)?,
            };
            let x = augmented(&block.f_to_device(self.mean.device())?, &self.mean, &self.scale)?;
            let log_p = x.f_matmul(&self.weight)?.f_log_softmax(1, Kind::Double)?;
            let log_p = Vec::<f64>::try_from(&log_p.f_to_device(Device::Cpu)?.f_flatten(0, -1)?)?;
            for (row, target) in log_p.chunks_exact(classes).zip(targets) {
                let mut best = 0;
                for (class, value) in row.iter().enumerate() {
                    if *value > row[best] {
                        best = class;
                    }
                }
                if let &Some(target) = target {
                    correct += usize::from(best == target);
                    loss -= row[target];
                    known += 1;
                }
            }
        }
        Ok((correct, loss / known.max(1) as f64))
    }
}

/// Centred, scaled, with a last column of ones for the bias; float64.
pub(super) fn augmented(features: &Tensor, mean: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let x = features.f_to_kind(Kind::Double)?.f_sub(mean)?.f_div(scale)?;
    Ok(x.f_pad([0i64, 1], "constant", 1.0)?)
}
