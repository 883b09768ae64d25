//! Contrastive losses: InfoNCE, WEINCE as the paper has it, and the authors' released class with all its policies.
//!
//! # Formula
//! An anchor's cosines s with its candidates become logits
//! `l = (1 - lambda) s / temperature + lambda (-beta log(1 - s))`, and the loss is the mean over the anchors of
//! `logsumexp l - l[positive]`, the positive among the candidates. InfoNCE has lambda 0. In WEINCE each anchor's tail (the
//! shortfalls 1 - s of its hardest negatives) gives its lambda and beta, which count as constants in the gradient.
//!
//! # Numerics
//! Embeddings of any floating-point kind; half precision and float32 are computed in float32, float64 in float64. WEINCE
//! and the reference take the similarity product in float64 even then, because `1 - s` of a near pair is lost in float32.
//! The gradient with respect to the embeddings has a closed form: it is computed together with the value, without a graph,
//! in memory of O(N^2), by blocks of rows. The device is never waited for. Large batches, or `tile` anchors at a time where it is given, are
//! evaluated in tiles of rows that are made for the tails' statistics, if there are any, and again for the loss and its gradient, and never
//! kept: memory is then O(N (d + tile)), and the values are those of the whole matrix to rounding.
//!
//! Several processes ([`Loss::among`]) have all embeddings each and compute the rows of their own samples' anchors. What the tails say is
//! gathered before the pivot is chosen, the smallest shortfalls of all pairs before the moving average moves, and the gradients of the
//! candidates are summed: each process then has the loss of the whole batch, and its embeddings' gradients.
//!
//! # Paper and reference
//! `kind: weince` and `kind: reference` with `policy: tlambda_select` differ in this:
//!
//! | subject | `weince` | `reference` |
//! |---|---|---|
//! | exponent of the Weibull link | estimated for each anchor | 1 |
//! | regularisers | none | two cross-entropies over the top M, if asked for |
//! | list longer than the negatives | no lists | holds one entry of similarity -1e9 (two views) |
//! | a tail with fewer than 2 points to fit | lambda 0 | delta-AIC 0, pivot the lower median |
//! | rows with a norm below 1e-8 | similarity 0, gradient 0 | divided by 1e-8, gradient 1e8 times too large |
//! | pivot, evidence, exponent, floor | configurable | quantile, delta-AIC, clamp |
//! | policy `gate` with a constant exponent | no such policy | equals InfoNCE |
//! | state | none, or the average of a `shrunk` beta | moving average of the batch's exponent, stored as float32 |
//!
//! One thing is not reproduced: in float32 the released class computes `1 - s` by subtraction, floors it at 1.0133e-6 in
//! the logits and 1e-6 in the fits, and overflows norms above 1.8e19. Here float32 input gives what float64 input gives,
//! to float32's rounding.
//!
//! # Source
//! WEINCE: arXiv 2606.00262; the authors' code: github.com/hsme98/weince, `simclr/modules/nt_xent_hard_select.py`.

mod autograd;
pub mod check;
mod diagnostics;
mod infonce;
mod pairs;
mod reference;
mod softmax;
mod tail;
mod weince;

#[doc(hidden)]
pub use autograd::Frozen;
pub use diagnostics::Diagnostics;

use crate::config::loss::{InfonceConfig, LossConfig};
use crate::dist::Group;
use crate::error::{Error, Result};
use crate::torch::known_gradient;
use diagnostics::anchors;
use pairs::{Pairs, Ranks, Shape, ZeroRows};
use reference::Reference;
use softmax::Plan;
use tch::{Device, Kind, Tensor};
use weince::Weince;

/// Who is compared with whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Both views of all samples are anchors and candidates; an anchor's positive is the other view of its sample, its
    /// negatives the 2N - 2 views of the other samples. SimCLR's.
    TwoView,
    /// Anchors are the first views, candidates the second ones: N - 1 negatives. SimCSE's. Further candidates may follow the
    /// second views, such as a hard negative of each sample; to every anchor all of them are negatives.
    OneWay,
    /// The mean of [`Layout::OneWay`] and of the same with the views changed about, each with its own statistics: CLIP's. Further
    /// candidates are there for the first views alone. A moving average moves twice.
    BothWays,
}

/// A contrastive loss and its state.
pub struct Loss {
    config: LossConfig,
    layout: Layout,
    kind: KindOfLoss,
    group: Group,
}

enum KindOfLoss {
    Infonce(InfonceConfig),
    Weince(Box<Weince>),
    Reference(Box<Reference>),
}

/// What a batch gives.
#[derive(Debug)]
pub struct LossOutput {
    /// The loss, 0-dim; float64 for float64 embeddings, float32 for all others. `backward` reaches what the embeddings
    /// depend on.
    pub loss: Tensor,
    /// Statistics of the batch, without gradient.
    pub diagnostics: Diagnostics,
}

impl Loss {
    /// A loss in the state before its first batch.
    ///
    /// # Errors
    /// Values out of range, see [`LossConfig::validate`].
    pub fn new(config: &LossConfig, layout: Layout) -> Result<Loss> {
        config.validate()?;
        let kind = match config {
            LossConfig::Infonce(c) => KindOfLoss::Infonce(c.clone()),
            LossConfig::Weince(c) => KindOfLoss::Weince(Box::new(Weince::new(c.clone()))),
            LossConfig::Reference(c) => KindOfLoss::Reference(Box::new(Reference::new(c.clone()))),
        };
        Ok(Loss { config: config.clone(), layout, kind, group: Group::alone() })
    }

    /// The loss of a batch that several processes share: each gives its samples' embeddings, all get the loss and the diagnostics of the
    /// whole batch, and each the gradient of its own embeddings. Summed over the processes, the gradients of a model's parameters
    /// are those of the whole batch.
    pub fn among(self, group: Group) -> Loss {
        Loss { group, ..self }
    }

    /// The configuration that the loss was made with.
    pub fn config(&self) -> &LossConfig {
        &self.config
    }

    /// How many of so many negatives an anchor's tail has; none where the loss estimates no tail.
    pub fn tail_points(&self, negatives: usize) -> Option<usize> {
        match &self.config {
            LossConfig::Weince(c) => Some(tail::points(negatives as i64, c.tail.fraction, c.tail.min_points) as usize),
            LossConfig::Infonce(_) | LossConfig::Reference(_) => None,
        }
    }

    /// About how many bytes the loss takes on the CPU for so many anchors and candidates of so many dimensions.
    pub fn bytes(&self, anchors: usize, candidates: usize, dimensions: usize) -> usize {
        pairs::bytes(self.config.tile().map(i64::from), anchors as i64, candidates as i64, dimensions as i64) as usize
    }

    /// Who is compared with whom.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The moving average of the batch's exponent, where the configuration has one; it belongs in a checkpoint. Reads from
    /// the device.
    pub fn state(&self) -> Option<f64> {
        match &self.kind {
            KindOfLoss::Infonce(_) => None,
            KindOfLoss::Weince(loss) => loss.batch.state(),
            KindOfLoss::Reference(loss) => loss.batch.state(),
        }
    }

    /// Puts back what [`Loss::state`] gave.
    ///
    /// # Errors
    /// A state where the configuration has none, none where it has one, or a number that is not positive.
    pub fn set_state(&mut self, state: Option<f64>) -> Result<()> {
        match &mut self.kind {
            KindOfLoss::Infonce(_) if state.is_none() => Ok(()),
            KindOfLoss::Infonce(_) => Err(Error::Input(format!(
                "state of the loss: InfoNCE has none, found {state:?}; use the configuration that the checkpoint was \
                 made with"
            ))),
            KindOfLoss::Weince(loss) => loss.batch.set_state(state),
            KindOfLoss::Reference(loss) => loss.batch.set_state(state),
        }
    }

    /// The loss of a batch. A moving average, if there is one, moves.
    ///
    /// Embeddings that are not finite give a NaN and no error, because looking for them would wait for the device:
    /// [`Loss::check_finite`] does that.
    ///
    /// # Shapes
    /// `z_i`, `z_j` [N, d], row n of both from sample n; not normalised. But with two views, `z_j` may be [C, d], its rows from
    /// N on further candidates.
    ///
    /// # Errors
    /// Shapes, kinds or devices that do not fit, here or in another process; a batch of one sample where negatives are needed; what LibTorch reports.
    pub fn forward(&mut self, z_i: &Tensor, z_j: &Tensor) -> Result<LossOutput> {
        let with_gradient = z_i.requires_grad() || z_j.requires_grad();
        let guard = tch::no_grad_guard();
        let (whole_i, whole_j, ranks) = self.whole_batch(z_i, z_j)?;
        let samples = ranks.all();
        let mut part = self.part(&whole_i, &whole_j, &ranks, with_gradient)?;
        if self.layout == Layout::BothWays {
            let ranks = Ranks { further: vec![0; ranks.further.len()], ..ranks };
            let back = self.part(&whole_j.f_narrow(0, 0, samples)?, &whole_i, &ranks, with_gradient)?;
            part = part.mean_with(back, z_i.size()[0])?;
        }
        drop(guard);
        let value = part.loss.to_kind(working_kind(z_i.kind()));
        let loss = match part.gradients {
            Some((g_i, g_j)) => known_gradient(z_i, z_j, &value, &g_i.to_kind(z_i.kind()), &g_j.to_kind(z_j.kind()))?,
            None => value,
        };
        Ok(LossOutput { loss, diagnostics: part.diagnostics })
    }

    /// The embeddings of the whole batch, detached, and which of them belong to which process.
    fn whole_batch(&self, z_i: &Tensor, z_j: &Tensor) -> Result<(Tensor, Tensor, Ranks)> {
        let checked = check_embeddings(self.layout, z_i, z_j);
        let (z_i, z_j) = (z_i.detach(), z_j.detach());
        if self.group.is_alone() {
            let samples = checked?;
            let further = z_j.size()[0] - samples;
            return Ok((z_i, z_j, Ranks::alone(samples, further)));
        }
        let ranks = self.ranks(checked, &z_i, &z_j)?;
        let rows: Vec<i64> =
            ranks.samples.iter().zip(&ranks.further).map(|(samples, further)| 2 * samples + further).collect();
        let all = self.group.gather(&Tensor::f_cat(&[z_i, z_j], 0)?, &rows)?;
        let (mut firsts, mut seconds, mut further) = (Vec::new(), Vec::new(), Vec::new());
        let mut from = 0;
        for (&samples, &more) in ranks.samples.iter().zip(&ranks.further) {
            for (parts, length) in [(&mut firsts, samples), (&mut seconds, samples), (&mut further, more)] {
                parts.push(all.f_narrow(0, from, length)?);
                from += length;
            }
        }
        seconds.append(&mut further);
        Ok((Tensor::f_cat(&firsts, 0)?, Tensor::f_cat(&seconds, 0)?, ranks))
    }

    /// What each process has of the batch. What one of them cannot serve is an error in all, so that nobody waits for it.
    fn ranks(&self, checked: Result<i64>, z_i: &Tensor, z_j: &Tensor) -> Result<Ranks> {
        let here = match checked {
            Ok(samples) => {
                format!("{samples} {} {} {:?}", z_j.size()[0] - samples, z_i.size()[1], z_i.kind())
            }
            Err(error) => error.to_string(),
        };
        let mut ranks = Ranks { group: self.group.clone(), samples: Vec::new(), further: Vec::new() };
        let texts = self.group.texts(&here)?;
        let mut like: Option<(&str, &str)> = None;
        for (rank, text) in texts.iter().enumerate() {
            let wrong = |what: &str| Err(Error::Input(format!("embeddings of rank {rank}: {what}")));
            let &[samples, further, width, kind] = text.split(' ').collect::<Vec<_>>().as_slice() else {
                return wrong(text);
            };
            let (Ok(samples), Ok(further)) = (samples.parse(), further.parse()) else { return wrong(text) };
            let (first_width, first_kind) = *like.get_or_insert((width, kind));
            if (width, kind) != (first_width, first_kind) {
                return wrong(&format!(
                    "expected width {first_width} and {first_kind} as on rank 0, found {width} and {kind}"
                ));
            }
            ranks.samples.push(samples);
            ranks.further.push(further);
        }
        Ok(ranks)
    }

    /// One matrix of similarities, from end to end.
    fn part(&mut self, z_i: &Tensor, z_j: &Tensor, ranks: &Ranks, with_gradient: bool) -> Result<Part> {
        let (pairs, mut plan) = self.plan(z_i, z_j, ranks)?;
        let product = plan.cap.product_kind(working_kind(z_i.kind()));
        let evaluated = softmax::evaluate(pairs, &plan, with_gradient.then_some(product))?;
        plan.diagnostics.set_hardest(&evaluated.hardest, plan.cap.eps);
        plan.diagnostics.n2 = evaluated.n2;
        Ok(Part { loss: evaluated.loss, gradients: evaluated.gradients, diagnostics: plan.diagnostics })
    }

    /// Pairs and terms of a batch; to be called without gradient recording.
    fn plan(&mut self, z_i: &Tensor, z_j: &Tensor, ranks: &Ranks) -> Result<(Pairs, Plan)> {
        let shape = Shape::new(self.layout, z_i.size()[0], z_j.size()[0], z_i.device());
        let working = working_kind(z_i.kind());
        let tile = self.config.tile().map(i64::from);
        let pairs = |zero, product| Pairs::new(shape, (z_i, z_j), zero, (product, working), tile, ranks);
        match &mut self.kind {
            KindOfLoss::Infonce(config) => {
                let pairs = pairs(ZeroRows::Neutral, working)?;
                let plan = infonce::plan(config, &pairs);
                Ok((pairs, plan))
            }
            KindOfLoss::Weince(loss) => {
                let pairs = pairs(ZeroRows::Neutral, Kind::Double)?;
                let plan = loss.plan(&pairs)?;
                Ok((pairs, plan))
            }
            KindOfLoss::Reference(loss) => {
                let pairs = pairs(ZeroRows::AsTorch, Kind::Double)?;
                let plan = loss.plan(&pairs)?;
                Ok((pairs, plan))
            }
        }
    }

    /// Looks for NaN and infinity in the embeddings of a batch; waits for the device.
    ///
    /// # Errors
    /// [`Error::NonFinite`], naming the view and the rows.
    pub fn check_finite(z_i: &Tensor, z_j: &Tensor) -> Result<()> {
        let mut found = Vec::new();
        for (name, z) in [("z_i", z_i), ("z_j", z_j)] {
            let bad = z.detach().f_isfinite()?.f_logical_not()?.f_flatten(1, -1)?.f_any_dim(1, false)?;
            let rows = Vec::<i64>::try_from(bad.f_nonzero()?.f_flatten(0, -1)?)?;
            if !rows.is_empty() {
                found.push(describe_rows(name, &rows, z.size()[0]));
            }
        }
        if found.is_empty() {
            return Ok(());
        }
        Err(Error::NonFinite(format!(
            "embeddings are NaN or infinite: {}; look at the learning rate, the input of these rows and, in half \
             precision, the loss scale",
            found.join("; ")
        )))
    }
}

/// What one matrix of similarities gives: the loss and the gradients of both sides, in float64.
struct Part {
    loss: Tensor,
    gradients: Option<(Tensor, Tensor)>,
    diagnostics: Diagnostics,
}

impl Part {
    /// The mean with the part whose views are changed about; of this one's second view, `samples` rows are its anchors.
    fn mean_with(self, back: Part, samples: i64) -> Result<Part> {
        let gradients = match (self.gradients, back.gradients) {
            (Some((mut g_i, mut g_j)), Some((back_j, back_i))) => {
                let _ = g_i.f_add_(&back_i)?.f_mul_scalar_(0.5)?;
                let _ = g_j.f_narrow(0, 0, samples)?.f_add_(&back_j)?;
                Some((g_i, g_j.f_mul_scalar_(0.5)?))
            }
            _ => None,
        };
        let loss = self.loss.f_add(&back.loss)?.f_mul_scalar(0.5)?;
        Ok(Part { loss, gradients, diagnostics: self.diagnostics.with(back.diagnostics) })
    }
}

fn describe_rows(name: &str, rows: &[i64], all: i64) -> String {
    const SHOWN: usize = 20;
    if rows.len() as i64 == all {
        return format!("all {all} rows of {name}");
    }
    let shown: Vec<String> = rows.iter().take(SHOWN).map(i64::to_string).collect();
    let more = if rows.len() > SHOWN { format!(" and {} more", rows.len() - SHOWN) } else { String::new() };
    format!("{} of {all} rows of {name}, counted from 0: {}{more}", rows.len(), shown.join(", "))
}

/// The kind that a loss is computed in for embeddings of this kind.
fn working_kind(kind: Kind) -> Kind {
    if kind == Kind::Double { Kind::Double } else { Kind::Float }
}

/// A float64 constant of shape [1, 1].
fn constant(value: f64, device: Device) -> Tensor {
    Tensor::full([1, 1], value, (Kind::Double, device))
}

/// Refuses what is no batch of embeddings; returns the number of samples.
fn check_embeddings(layout: Layout, z_i: &Tensor, z_j: &Tensor) -> Result<i64> {
    let describe = |z: &Tensor| format!("{:?} {:?} on {:?}", z.size(), z.kind(), z.device());
    let refuse = |what: &str| Err(Error::Input(format!("{what}, found z_i {}, z_j {}", describe(z_i), describe(z_j))));
    let (&[samples, width], &[others, other_width]) = (&z_i.size()[..], &z_j.size()[..]) else {
        return refuse("embeddings: expected two matrices [N, d] of the same shape");
    };
    if width != other_width || others < samples || others > samples && layout == Layout::TwoView {
        return refuse(match layout {
            Layout::TwoView => "embeddings: expected two matrices [N, d] of the same shape",
            Layout::OneWay | Layout::BothWays => {
                "embeddings: expected two matrices, [N, d] and, with further candidates, [C, d]"
            }
        });
    }
    if samples == 0 || width == 0 {
        return refuse("embeddings: expected at least one sample and one dimension");
    }
    if !matches!(z_i.kind(), Kind::Half | Kind::BFloat16 | Kind::Float | Kind::Double) || z_i.kind() != z_j.kind() {
        return refuse("embeddings: expected one floating-point kind");
    }
    if z_i.device() != z_j.device() {
        return refuse("embeddings: expected one device");
    }
    Ok(samples)
}
