//! The same loss by LibTorch's automatic differentiation: the slow twin that tests hold against the closed form.
//!
//! lambda, beta and the lists of hardest negatives are frozen at one batch; value and gradient are those of that frozen
//! loss at any batch, in float64 and with all similarities in the graph. Rows of zero norm are not its subject.

use super::pairs::{Pairs, Ranks, Shape};
use super::softmax::{Candidates, Plan, Term};
use super::{Layout, Loss};
use crate::config::loss::Floor;
use crate::error::Result;
use tch::{Kind, Tensor};

/// A loss with its statistics frozen at one batch.
#[doc(hidden)]
pub struct Frozen {
    /// One matrix of similarities; both ways the second is that of the views changed about.
    parts: Vec<FrozenPart>,
}

struct FrozenPart {
    shape: Shape,
    plan: Plan,
}

impl Loss {
    /// Freezes lambda, beta and the lists at this batch; counts as a batch for a moving average.
    #[doc(hidden)]
    pub fn freeze(&mut self, z_i: &Tensor, z_j: &Tensor) -> Result<Frozen> {
        let _guard = tch::no_grad_guard();
        let mut part = |z_i: &Tensor, z_j: &Tensor| -> Result<FrozenPart> {
            let (z_i, z_j) = (z_i.detach(), z_j.detach());
            let ranks = Ranks::alone(z_i.size()[0], z_j.size()[0] - z_i.size()[0]);
            let (pairs, plan): (Pairs, Plan) = self.plan(&z_i, &z_j, &ranks)?;
            Ok(FrozenPart { shape: pairs.shape, plan })
        };
        let mut parts = vec![part(z_i, z_j)?];
        if parts[0].shape.layout == Layout::BothWays {
            parts.push(part(&z_j.f_narrow(0, 0, z_i.size()[0])?, z_i)?);
        }
        Ok(Frozen { parts })
    }
}

impl Frozen {
    /// The loss at `z_i`, `z_j` as differentiable operations, 0-dim float64.
    pub fn loss(&self, z_i: &Tensor, z_j: &Tensor) -> Tensor {
        let there = self.parts[0].loss(z_i, z_j);
        match self.parts.get(1) {
            Some(back) => (there + back.loss(&z_j.narrow(0, 0, z_i.size()[0]), z_i)) / 2.0,
            None => there,
        }
    }
}

impl FrozenPart {
    fn loss(&self, z_i: &Tensor, z_j: &Tensor) -> Tensor {
        let unit = |z: &Tensor| {
            let z = z.to_kind(Kind::Double);
            let norm = z.norm_scalaropt_dim(2.0, [-1], true);
            z / norm
        };
        let similarity = match self.shape.layout {
            Layout::TwoView => {
                let u = unit(&Tensor::cat(&[z_i, z_j], 0));
                u.mm(&u.tr())
            }
            Layout::OneWay | Layout::BothWays => unit(z_i).mm(&unit(z_j).tr()),
        };
        self.plan
            .terms
            .iter()
            .map(|term| self.term(term, &similarity))
            .reduce(|a, b| a + b)
            .unwrap_or_else(|| similarity.mean(Kind::Double) * 0.0)
    }

    fn term(&self, term: &Term, similarity: &Tensor) -> Tensor {
        let blocks = self.shape.blocks();
        let positives: Vec<Tensor> = blocks.iter().map(|b| b.positives(&b.of(similarity))).collect();
        let positive = self.logits(term, &Tensor::cat(&positives, 0).view([-1, 1]));
        let all = match &term.candidates {
            Candidates::All => {
                let mask = similarity.zeros_like();
                blocks.iter().for_each(|b| b.fill_self(&b.of(&mask), f64::NEG_INFINITY));
                // The logit of the anchor itself is finite, so that the mask makes it minus infinity without a NaN.
                self.logits(term, similarity) + mask
            }
            Candidates::Hardest(list) => {
                let real = list.delta.size()[1].min(self.shape.negatives);
                let listed = similarity.gather(1, &list.columns.narrow(1, 0, real), false);
                let rest = 1.0 - list.delta.narrow(1, real, list.delta.size()[1] - real);
                let negatives = self.logits(term, &Tensor::cat(&[listed, rest], 1));
                Tensor::cat(&[positive.shallow_clone(), negatives], 1)
            }
        };
        let rows = all.logsumexp([1i64].as_slice(), true) - positive;
        match &term.weight {
            Some(weight) => (weight * rows).mean(Kind::Double),
            None => rows.mean(Kind::Double),
        }
    }

    fn logits(&self, term: &Term, similarity: &Tensor) -> Tensor {
        let eps = self.plan.cap.eps;
        let mut sum = similarity * 0.0;
        if let Some(slope) = &term.slope {
            sum += slope * similarity;
        }
        if let Some(power) = &term.power {
            let shortfall: Tensor = 1.0 - similarity;
            let floored = match self.plan.cap.floor {
                Floor::Clamp => shortfall.clamp_min(eps),
                Floor::Shift => shortfall.clamp_min(0.0) + eps,
            };
            sum -= power * floored.log();
        }
        sum
    }
}
