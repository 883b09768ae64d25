//! Cross-entropy of an anchor's positive among its candidates, for every link between the softmax and the Weibull one:
//! the value and, in closed form, dL/dS.
//!
//! Every loss of this crate is a weighted sum of terms with logits
//!
//! ```text
//! l[a, c] = slope_a s[a, c] - power_a log(delta[a, c] floored),     delta = 1 - s
//! dl/ds   = slope_a + power_a / delta                               (0 for the second part below the floor)
//! L       = mean_a weight_a (logsumexp_c l[a, c] - l[a, pos])
//! dL/ds   = weight_a / A (p - [c = pos]) dl/ds
//! ```
//!
//! with slope, power and weight constant in the differentiation. What is the same for a whole row cancels, so that
//! -slope_a delta serves for slope_a s, and everything can be measured from the row's hardest negative.

use super::pairs::{Block, Centred, Gathered, Pairs, Products, Tile};
use super::{Diagnostics, anchors};
use crate::config::loss::Floor;
use crate::error::Result;
use tch::{Kind, Tensor};

/// The floor of the shortfall in the Weibull link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cap {
    pub floor: Floor,
    pub eps: f64,
}

impl Cap {
    /// The kind that products with the gradient need in a loss computed in `working`. A shifted floor gives exact duplicates
    /// entries of 1/eps, which have to cancel; a clamped one gives them none.
    pub fn product_kind(&self, working: Kind) -> Kind {
        match self.floor {
            Floor::Clamp => working,
            Floor::Shift => Kind::Double,
        }
    }

    /// Logarithm of the floored shortfall, written to `out`.
    fn log_out(&self, delta: &Tensor, out: &Tensor) -> Result<Tensor> {
        let mut floored = match self.floor {
            Floor::Clamp => delta.f_clamp_min_out(out, self.eps)?,
            Floor::Shift => delta.f_clamp_min_out(out, 0.0)?.f_add_scalar_(self.eps)?,
        };
        Ok(floored.f_log_()?)
    }

    /// Derivative of that by the shortfall, written to `out`.
    fn log_slope_out(&self, delta: &Tensor, out: &Tensor) -> Result<Tensor> {
        let mut floored = match self.floor {
            // Below the floor the slope is 1 / infinity. At the floor it is torch's, which lets the gradient pass.
            Floor::Clamp => delta.f_threshold_out(out, self.below_floor(delta.kind()), f64::INFINITY)?,
            Floor::Shift => delta.f_clamp_min_out(out, 0.0)?.f_add_scalar_(self.eps)?,
        };
        Ok(floored.f_reciprocal_()?)
    }

    /// The greatest number of this kind below the floor.
    fn below_floor(&self, kind: Kind) -> f64 {
        if kind == Kind::Float { (self.eps as f32).next_down().into() } else { self.eps.next_down() }
    }
}

/// Which negatives a term sees.
pub(super) enum Candidates {
    /// All of them.
    All,
    /// A list of the hardest, with the positive beside them.
    Hardest(Hardest),
}

/// The hardest negatives of each anchor, hardest first; equal ones in the order of their columns.
pub(super) struct Hardest {
    /// Shortfalls, [A, M] float64, not floored.
    pub delta: Tensor,
    /// Columns, [A, M] int64.
    pub columns: Tensor,
}

impl Hardest {
    /// The first `m` of the list.
    pub fn first(&self, m: i64) -> Hardest {
        Hardest { delta: self.delta.narrow(1, 0, m), columns: self.columns.narrow(1, 0, m) }
    }
}

/// One cross-entropy. The coefficients are float64, [A, 1] or [1, 1].
pub(super) struct Term {
    /// Coefficient of the similarity; none is 0.
    pub slope: Option<Tensor>,
    /// Coefficient of minus the logarithm of the shortfall; none is 0.
    pub power: Option<Tensor>,
    /// Weight of each anchor's loss; none is 1.
    pub weight: Option<Tensor>,
    pub candidates: Candidates,
}

impl Term {
    /// The same term with other tensors.
    fn of(&self, change: impl Fn(&Tensor) -> Tensor) -> Term {
        let of = |t: &Option<Tensor>| t.as_ref().map(&change);
        Term {
            slope: of(&self.slope),
            power: of(&self.power),
            weight: of(&self.weight),
            candidates: match &self.candidates {
                Candidates::All => Candidates::All,
                Candidates::Hardest(list) => {
                    Candidates::Hardest(Hardest { delta: change(&list.delta), columns: change(&list.columns) })
                }
            },
        }
    }
}

/// The loss, 0-dim float64, and the gradients of this process's rows of both views in float64, if they were asked for.
pub(super) struct Evaluated {
    pub loss: Tensor,
    /// Shortfall of each anchor's hardest negative, not floored; [A, 1] float64.
    pub hardest: Tensor,
    /// 1 / sum p^2 over the negatives of each anchor, [A] float64; none without a term over all of them.
    pub n2: Option<Tensor>,
    pub gradients: Option<(Tensor, Tensor)>,
}

/// What a loss makes of a batch: the terms to evaluate, and what it learnt on the way.
pub(super) struct Plan {
    pub terms: Vec<Term>,
    /// Shortfall of each anchor's hardest negative, not floored, [A, 1] float64; none where the loss did not look for it.
    pub hardest: Option<Tensor>,
    pub cap: Cap,
    pub diagnostics: Diagnostics,
}

impl Plan {
    /// The terms for a worker.
    fn of_worker(&self) -> Worker {
        Worker {
            terms: self.terms.iter().map(|term| term.of(Tensor::shallow_clone)).collect(),
            hardest: self.hardest.as_ref().map(Tensor::shallow_clone),
            cap: self.cap,
            buffers: None,
        }
    }
}

/// Evaluates tiles one after the other.
struct Worker {
    terms: Vec<Term>,
    hardest: Option<Tensor>,
    cap: Cap,
    /// Two matrices for the longest block.
    buffers: Option<(Tensor, Tensor)>,
}

/// Evaluates the sum of the plan's terms, tile by tile; `product` is the kind of the products that bring the gradient back to the
/// embeddings, where there is one.
pub(super) fn evaluate(pairs: Pairs, plan: &Plan, product: Option<Kind>) -> Result<Evaluated> {
    let whole = pairs.is_whole();
    let (mut gathered, centred) = product.filter(|_| !whole).map(|kind| pairs.gathered(kind)).unzip();
    let of_tile = || {
        let (mut worker, centred) = (plan.of_worker(), centred.as_ref().map(Centred::shallow_clone));
        move |pairs: &Pairs, tile: &Tile| {
            let columns = worker.evaluate(pairs, tile, product.is_some())?;
            let products = centred.as_ref().map(|centred| centred.products(&tile.delta, tile.start)).transpose()?;
            Ok((columns, products, whole.then(|| tile.delta.shallow_clone())))
        }
    };
    let (mut columns, mut kept) = (Vec::new(), None);
    pairs.each_tile(of_tile, |(of_tile, products, gradient): (Tensor, Option<Products>, Option<Tensor>)| {
        columns.push(of_tile);
        kept = gradient;
        gathered
            .as_mut()
            .zip(products)
            .map_or(Ok(()), |(gathered, products): (&mut Gathered, _)| gathered.add(products))
    })?;
    let columns = pairs.of_all(&columns)?;
    let column = |i: i64| columns.narrow(1, i, 1);
    let full = plan.terms.iter().any(|term| matches!(term.candidates, Candidates::All));
    let n2 = (full && pairs.shape.negatives > 0).then(|| anchors(&column(2)));
    let (loss, hardest) = (anchors(&column(0)).mean(Kind::Double), column(1));
    let gradients = match (gathered, kept, product) {
        (Some(gathered), _, _) => Some(pairs.pull_back_gathered(gathered)?),
        (None, Some(g), Some(kind)) => Some(pairs.pull_back(&g, kind)?),
        _ => None,
    };
    Ok(Evaluated { loss, hardest, n2, gradients })
}

impl Worker {
    /// The weighted loss of each anchor of a tile, its hardest negative's shortfall and 1 / sum p^2, where there is such a thing;
    /// [T, 3] float64. With `gradient`, that takes the place of the tile's shortfalls, block after block.
    fn evaluate(&mut self, pairs: &Pairs, tile: &Tile, gradient: bool) -> Result<Tensor> {
        let full = self.terms.iter().filter(|term| matches!(term.candidates, Candidates::All)).count();
        let buffer = || Block::buffer(&tile.blocks, pairs.shape.candidates, tile.delta.kind(), tile.delta.device());
        let buffers = match &mut self.buffers {
            Some(buffers) => buffers,
            none => none.insert((buffer()?, buffer()?)),
        };
        let mut columns = Vec::new();
        for block in &tile.blocks {
            let delta = block.within(&tile.delta, tile.start);
            let hardest = match &self.hardest {
                Some(hardest) => block.of(hardest),
                None => delta.f_amin([1i64].as_slice(), true)?.f_to_kind(Kind::Double)?,
            };
            let rows = Rows {
                anchors: pairs.shape.anchors as f64,
                negatives: pairs.shape.negatives,
                gradient: gradient.then(|| delta.shallow_clone()),
                // The second full term still needs what the first one overwrites.
                delta: if full > 1 { delta.copy() } else { delta },
                positive: block.of(&pairs.positive),
                hardest,
                cap: self.cap,
                buffers: (block.part(&buffers.0), block.part(&buffers.1)),
            };
            let (loss, n2) = rows.evaluate(&self.terms, block)?;
            let n2 = n2.unwrap_or_else(|| loss.zeros_like());
            columns.push(Tensor::f_cat(&[loss, rows.hardest, n2], 1)?);
        }
        Ok(Tensor::f_cat(&columns, 0)?)
    }
}

/// Logits of shortfalls up to a constant, in the kind of the coefficients.
fn logits(term: &Term, delta: &Tensor, cap: Cap) -> Result<Tensor> {
    let mut sum = delta.zeros_like();
    if let Some(slope) = &term.slope {
        sum -= slope * delta;
    }
    if let Some(power) = &term.power {
        sum -= power * cap.log_out(delta, &delta.empty_like())?;
    }
    Ok(sum)
}

/// dl/ds of a term at given shortfalls, in the kind of the coefficients.
fn slopes(term: &Term, delta: &Tensor, cap: Cap) -> Result<Tensor> {
    let mut sum = delta.zeros_like();
    if let Some(slope) = &term.slope {
        sum += slope;
    }
    if let Some(power) = &term.power {
        sum += power * cap.log_slope_out(delta, &delta.empty_like())?;
    }
    Ok(sum)
}

/// The rows of a block: their entries of the pairs and of the gradient.
struct Rows {
    /// A, of the whole batch.
    anchors: f64,
    negatives: i64,
    /// [B, C].
    delta: Tensor,
    /// [B, 1] float64.
    positive: Tensor,
    /// [B, 1] float64.
    hardest: Tensor,
    cap: Cap,
    /// View of the rows of dL/dS to be written, [B, C].
    gradient: Option<Tensor>,
    /// Two matrices [B, C] to write to.
    buffers: (Tensor, Tensor),
}

/// What a term gives for a block of rows.
struct RowLosses {
    /// Weighted losses, [B, 1] float64.
    loss: Tensor,
    /// weight / A times the share of a negative whose unnormalised weight is 1, [B, 1] float64.
    factor: Tensor,
    /// dL/dS of the positives, [B, 1] float64.
    positive: Tensor,
    /// 1 / sum p^2 over all negatives, [B, 1] float64.
    n2: Option<Tensor>,
}

impl Rows {
    /// The weighted losses of the block and the first full term's 1 / sum p^2, [B, 1] float64; writes the gradient.
    fn evaluate(&self, terms: &[Term], block: &Block) -> Result<(Tensor, Option<Tensor>)> {
        // A multiple of the input, so that what is not finite shows even where there is no negative.
        let mut loss = &self.positive * 0.0;
        let mut positive = loss.copy();
        let (mut written, mut n2) = (false, None);
        // Lists come last: they are added to the gradient of the full terms.
        let (full, lists): (Vec<_>, Vec<_>) = terms.iter().partition(|t| matches!(t.candidates, Candidates::All));
        for term in full.into_iter().chain(lists) {
            let term = &term.of(|t| block.of(t));
            let rows = match &term.candidates {
                // Without negatives the positive is the only candidate and its loss is 0.
                Candidates::All if self.negatives == 0 => continue,
                Candidates::All => self.all(term, block, &mut written)?,
                Candidates::Hardest(list) => self.among_hardest(term, list, &mut written)?,
            };
            loss += rows.loss;
            positive += rows.positive;
            n2 = n2.or(rows.n2);
        }
        if let Some(gradient) = &self.gradient {
            if !written {
                let _ = gradient.shallow_clone().zero_();
            }
            block.positives(gradient).copy_(&positive.view([-1]));
        }
        Ok((loss, n2))
    }

    /// Completes a term: `base` is the logit that unnormalised weights are measured from, `z` their sum over the negatives,
    /// all [B, 1] float64. The loss is log(1 + z exp(base - l_pos)): nothing is lost when it is tiny.
    fn complete(&self, term: &Term, base: &Tensor, z: &Tensor) -> Result<RowLosses> {
        let l_pos = logits(term, &self.positive, self.cap)?;
        let odds = z.log() + base - &l_pos;
        let loss = odds.zeros_like().logaddexp(&odds);
        let weighted = |x: Tensor| match &term.weight {
            Some(weight) => weight * x,
            None => x,
        };
        let factor = weighted((base - &l_pos - &loss).exp()) / self.anchors;
        // p_pos - 1 = exp(-loss) - 1.
        let positive = weighted((-&loss).expm1()) * slopes(term, &self.positive, self.cap)? / self.anchors;
        Ok(RowLosses { loss: weighted(loss), factor, positive, n2: None })
    }

    /// A term over all negatives. This is where the time goes: everything on [B, C] happens in the two buffers.
    fn all(&self, term: &Term, block: &Block, written: &mut bool) -> Result<RowLosses> {
        let working = self.delta.kind();
        let narrow = |t: &Tensor| t.to_kind(working);
        let base = logits(term, &self.hardest, self.cap)?;
        let (mut e, mut other) = (self.buffers.0.shallow_clone(), self.buffers.1.shallow_clone());
        // Unnormalised weights exp(l - base), at most 1.
        match (&term.power, &term.slope) {
            (Some(power), slope) => {
                let _ = self.cap.log_out(&self.delta, &e)?;
                e *= narrow(&-power);
                if let Some(slope) = slope {
                    let _ = self.delta.f_mul_out(&other, &narrow(slope))?;
                    e -= &other;
                }
            }
            (None, Some(slope)) => {
                let _ = self.delta.f_mul_out(&e, &narrow(&-slope))?;
            }
            (None, None) => {
                let _ = e.zero_();
            }
        }
        e -= narrow(&base);
        let _ = e.exp_();
        block.fill_non_negatives(&e, 0.0);
        let z = e.sum_dim_intlist([1i64].as_slice(), true, working).to_kind(Kind::Double);
        let mut rows = self.complete(term, &base, &z)?;
        let length = e.norm_scalaropt_dim(2.0, [1i64].as_slice(), true).to_kind(Kind::Double);
        rows.n2 = Some((z / length).square());
        let Some(gradient) = &self.gradient else { return Ok(rows) };
        // dl/ds times what the entries of a row have in common.
        match (&term.power, &term.slope) {
            (Some(power), slope) => {
                let _ = self.cap.log_slope_out(&self.delta, &other)?;
                other *= narrow(&(power * &rows.factor));
                if let Some(slope) = slope {
                    other += narrow(&(slope * &rows.factor));
                }
            }
            (None, slope) => {
                let slope = slope.as_ref().map_or_else(|| rows.factor.zeros_like(), |slope| slope * &rows.factor);
                other = narrow(&slope);
            }
        }
        if *written {
            e *= other;
            let mut gradient = gradient.shallow_clone();
            gradient += e;
        } else {
            let _ = e.f_mul_out(gradient, &other)?;
            *written = true;
        }
        Ok(rows)
    }

    /// A term over lists of the hardest negatives, in float64.
    fn among_hardest(&self, term: &Term, list: &Hardest, written: &mut bool) -> Result<RowLosses> {
        let base = logits(term, &list.delta.narrow(1, 0, 1), self.cap)?;
        let e = (logits(term, &list.delta, self.cap)? - &base).exp();
        let z = e.sum_dim_intlist([1i64].as_slice(), true, Kind::Double);
        let rows = self.complete(term, &base, &z)?;
        if let Some(gradient) = &self.gradient {
            let mut gradient = gradient.shallow_clone();
            if !*written {
                let _ = gradient.zero_();
                *written = true;
            }
            let entries = e * slopes(term, &list.delta, self.cap)? * &rows.factor;
            // A list longer than the negatives ends in entries that are none, and have no gradient.
            let real = list.delta.size()[1].min(self.negatives);
            let entries = entries.narrow(1, 0, real).to_kind(gradient.kind());
            let _ = gradient.f_scatter_add_(1, &list.columns.narrow(1, 0, real), &entries)?;
        }
        Ok(rows)
    }
}
