//! Sums over all pairs of anchors and corpus items, in two passes of products in float32 that never hold more than some rows of the
//! corpus.
//!
//! The first pass finds each anchor's partition function, its moments and the rank of its positive; the second, with the partition
//! functions known, the probability that each item gathers from all anchors, and what the jackknife needs. Products are read from
//! the registers that hold them (`eval::panels`), so that an exponential costs a fraction of its product. Sums are
//! float32 over a stripe of the corpus and float64 beyond. An item that is as near as the positive within the rounding of
//! float32 is compared in float64, so that ranks are exact. Work is cut by the sizes alone: threads change no bit.

use super::kernel::{Gather, Lanes, NOTHING, Probabilities, Share};
use crate::error::Result;
use crate::eval::matrix::Matrix;
use crate::eval::panels::Panels;
use crate::eval::rows::{Rows, product_error};
use crate::torch::workers;
use rayon::prelude::*;
use std::ops::Range;

/// Corpus rows of a stripe: they stay in the cache that the cores share.
const STRIPE: usize = 1024;
/// The most stripes of a job.
const STRIPES: usize = 8;
/// Anchors that ask a stripe before the next: they stay in a core's own cache.
const PART: usize = 24;

/// The pairs.
#[derive(Clone, Copy)]
pub struct Pairs<'a> {
    /// n anchors.
    pub anchors: &'a Rows,
    /// The cosine of each anchor and its positive.
    pub positives: &'a [f64],
    /// The item of the corpus that is left out for each anchor, where there is one.
    pub own: Option<&'a [u32]>,
    /// m items.
    pub corpus: &'a Matrix,
    /// 1/τ.
    pub inverse_temperature: f64,
}

/// What the first pass finds of an anchor; `x` is the logit of an item less that of the nearest.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sums {
    /// The cosine of the nearest item, in float32.
    pub nearest: f32,
    /// Σ e^x.
    pub mass: f64,
    /// Σ e^2x.
    pub squares: f64,
    /// Σ x e^x.
    pub moment: f64,
    /// Items that are at least as near as the positive.
    pub above: u64,
    /// Those of them that are exactly as near.
    pub ties: u64,
}

impl Sums {
    const NONE: Sums = Sums { nearest: NOTHING, mass: 0.0, squares: 0.0, moment: 0.0, above: 0, ties: 0 };

    fn of(lanes: &Lanes) -> Sums {
        let [mass, squares, moment] = lanes.sums();
        Sums { nearest: lanes.nearest, mass, squares, moment, above: lanes.above(), ties: 0 }
    }

    /// The same sums with another reference.
    fn refer(&mut self, nearest: f32, inverse_temperature: f64) {
        if nearest != self.nearest {
            let shift = (f64::from(self.nearest) - f64::from(nearest)) * inverse_temperature;
            let factor = shift.exp();
            self.moment = (self.moment + shift * self.mass) * factor;
            self.mass *= factor;
            self.squares *= factor * factor;
            self.nearest = nearest;
        }
    }

    fn add(&mut self, mut other: Sums, inverse_temperature: f64) {
        let nearest = self.nearest.max(other.nearest);
        self.refer(nearest, inverse_temperature);
        other.refer(nearest, inverse_temperature);
        self.mass += other.mass;
        self.squares += other.squares;
        self.moment += other.moment;
        self.above += other.above;
        self.ties += other.ties;
    }

    /// log Σ e^{s/τ}.
    pub fn ln_mass(&self, inverse_temperature: f64) -> f64 {
        f64::from(self.nearest) * inverse_temperature + self.mass.ln()
    }
}

/// What the second pass finds.
#[derive(Debug, Clone, PartialEq)]
pub struct Shares {
    /// Σ_i p_ij of every item.
    pub items: Vec<f64>,
    /// Σ_j log(1 - p_ij) of every anchor.
    pub others: Vec<f64>,
}

impl Pairs<'_> {
    /// The first pass. `progress` gets the items done.
    ///
    /// # Errors
    /// What the corpus reports.
    pub fn sums(&self, progress: &mut dyn FnMut(u64)) -> Result<Vec<Sums>> {
        let parts = self.parts();
        let mut all = vec![Sums::NONE; self.anchors.count()];
        let job = |items: Range<usize>| {
            let mut found = vec![Sums::NONE; self.anchors.count()];
            self.stripes(items, |stripe, rows| {
                let mut near = Vec::new();
                for (part, anchors) in parts.iter().zip(0..) {
                    let first = anchors * PART;
                    let found = &mut found[first..first + part.rows()];
                    let lanes = found.iter().zip(&self.positives[first..]);
                    let mut lanes: Vec<Lanes> = lanes.map(|(f, s)| Lanes::new(f.nearest, *s, self.margin())).collect();
                    let own = self.own_in(first, part.rows(), &stripe);
                    let inverse_temperature = self.inverse_temperature as f32;
                    let mut reader = Gather { lanes: &mut lanes, own: &own, inverse_temperature, near: &mut near };
                    part.products(rows.panels, 0, stripe.len(), &mut reader);
                    found.iter_mut().zip(&lanes).for_each(|(f, l)| f.add(Sums::of(l), self.inverse_temperature));
                    for (row, item) in near.drain(..) {
                        let anchor = first + row as usize;
                        let [similarity] = self.anchors.similarities(anchor, rows.rows, [item]);
                        found[row as usize].above += u64::from(similarity >= self.positives[anchor]);
                        found[row as usize].ties += u64::from(similarity == self.positives[anchor]);
                    }
                }
            })?;
            Ok(found)
        };
        self.jobs(job, progress, |_, found: Vec<Sums>| {
            all.iter_mut().zip(found).for_each(|(all, f)| all.add(f, self.inverse_temperature));
        })?;
        Ok(all)
    }

    /// The second pass, of the sums of the first.
    ///
    /// # Errors
    /// What the corpus reports.
    pub fn shares(&self, sums: &[Sums], progress: &mut dyn FnMut(u64)) -> Result<Shares> {
        let (n, parts) = (self.anchors.count(), self.parts());
        let mut shares = Shares { items: vec![0.0; self.corpus.rows()], others: vec![-1.0; n] };
        let job = |items: Range<usize>| {
            let (begin, mut columns) = (items.start, vec![0.0; items.len()]);
            let mut rest = vec![0.0; n];
            self.stripes(items, |stripe, rows| {
                let columns = &mut columns[stripe.start - begin..][..stripe.len()];
                let mut gathered = vec![0f32; stripe.len()];
                for (part, anchors) in parts.iter().zip(0..) {
                    let first = anchors * PART;
                    let own = self.own_in(first, part.rows(), &stripe);
                    let mut probabilities: Vec<Probabilities> = sums[first..first + part.rows()]
                        .iter()
                        .map(|s| Probabilities::new(s.nearest, s.mass))
                        .collect();
                    gathered.fill(0.0);
                    let mut reader = Share {
                        rows: &mut probabilities,
                        own: &own,
                        inverse_temperature: self.inverse_temperature as f32,
                        columns: &mut gathered,
                    };
                    part.products(rows.panels, 0, stripe.len(), &mut reader);
                    columns.iter_mut().zip(&gathered).for_each(|(c, g)| *c += f64::from(*g));
                    rest[first..].iter_mut().zip(&probabilities).for_each(|(r, p)| *r += p.rest());
                }
            })?;
            Ok((columns, rest))
        };
        self.jobs(job, progress, |begin, (columns, rest): (Vec<f64>, Vec<f64>)| {
            shares.items[begin..begin + columns.len()].copy_from_slice(&columns);
            shares.others.iter_mut().zip(rest).for_each(|(o, r)| *o -= r);
        })?;
        Ok(shares)
    }

    /// Twice the rounding of a product, and that of the positive's cosine to float32.
    fn margin(&self) -> f64 {
        2.0 * product_error(self.anchors.dim()) + f64::from(f32::EPSILON)
    }

    /// The place in a stripe of what some anchors leave out; beyond it where it is elsewhere.
    fn own_in(&self, first: usize, anchors: usize, stripe: &Range<usize>) -> Vec<usize> {
        let place = |i: usize| self.own.map_or(usize::MAX, |own| (own[i] as usize).wrapping_sub(stripe.start));
        (first..first + anchors).map(place).collect()
    }

    /// Does the jobs, as many at a time as there are workers, and takes what they give in the order of the corpus, with their first item.
    fn jobs<T: Send>(
        &self,
        job: impl Fn(Range<usize>) -> Result<T> + Sync,
        progress: &mut dyn FnMut(u64),
        mut take: impl FnMut(usize, T),
    ) -> Result<()> {
        let m = self.corpus.rows();
        // By the size alone, so that sums are the same on any number of threads.
        let step = STRIPE * (m / (64 * STRIPE)).clamp(1, STRIPES);
        let pool = workers()?;
        let round = step * pool.current_num_threads();
        for begin in (0..m).step_by(round) {
            let begins: Vec<usize> = (begin..m.min(begin + round)).step_by(step).collect();
            let one = |begin: &usize| job(*begin..m.min(begin + step));
            let found: Vec<Result<T>> = pool.install(|| begins.par_iter().map(one).collect());
            for (begin, found) in begins.into_iter().zip(found) {
                take(begin, found?);
            }
            progress(m.min(begin + round) as u64);
        }
        Ok(())
    }

    /// The anchors as the products want them.
    fn parts(&self) -> Vec<Panels> {
        let d = self.anchors.dim();
        self.anchors.units(0, self.anchors.count()).par_chunks(PART * d).map(|part| Panels::left(part, d)).collect()
    }

    /// Reads a range of the corpus stripe by stripe.
    fn stripes(&self, items: Range<usize>, mut take: impl FnMut(Range<usize>, &Stripe)) -> Result<()> {
        let d = self.anchors.dim();
        for begin in items.clone().step_by(STRIPE) {
            let stripe = begin..items.end.min(begin + STRIPE);
            let rows = Rows::new(self.corpus.read(stripe.clone())?, d);
            let panels = Panels::right_of(stripe.len(), d, |i, row| rows.write_unit(i, row));
            take(stripe, &Stripe { rows: &rows, panels: &panels });
        }
        Ok(())
    }
}

/// Some rows of the corpus.
struct Stripe<'a> {
    rows: &'a Rows,
    panels: &'a Panels,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theory::estimators::AnchorEstimate;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// Rows with a few directions in common, of any norm.
    fn rows(count: usize, d: usize, seed: u64) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut hubs = ChaCha8Rng::seed_from_u64(99);
        let centres: Vec<f32> = (0..5 * d).map(|_| hubs.random_range(-1.0..1.0)).collect();
        let row = |i: usize, rng: &mut ChaCha8Rng| -> Vec<f32> {
            let scale: f32 = rng.random_range(0.5..3.0);
            (0..d).map(|j| scale * (centres[i % 5 * d + j] + rng.random_range(-0.7..0.7))).collect()
        };
        (0..count).flat_map(|i| row(i, &mut rng)).collect()
    }

    #[test]
    fn both_passes_are_the_plain_sums() {
        // More than a stripe and no multiple of anything; duplicates of positives and of anchors among the items.
        let (n, m, d) = (53, 2309, 19);
        let anchors = Rows::new(rows(n, d, 1), d);
        let mut positives = rows(n, d, 2);
        let mut corpus = rows(m, d, 3);
        for (anchor, item) in [(0, 5), (0, 1500), (7, 2308), (52, 1023)] {
            let positive = &mut positives[anchor * d..][..d];
            positive.copy_from_slice(&corpus[item * d..][..d]);
        }
        corpus.copy_within(5 * d..6 * d, 1500 * d);
        positives[3 * d..4 * d].copy_from_slice(&rows(n, d, 1)[3 * d..4 * d]);
        let positives = Rows::new(positives, d);
        let near: Vec<f64> = (0..n).map(|i| anchors.similarities(i, &positives, [i as u32])[0]).collect();
        let bank = Rows::new(corpus.clone(), d);
        let corpus = Matrix::of("corpus", corpus, d).unwrap();
        let own: Vec<u32> = (0..n as u32).map(|i| i * 43).collect();
        for (tau, own) in [(0.05, None), (0.5, None), (0.05, Some(&own[..])), (0.01, None)] {
            let pairs =
                Pairs { anchors: &anchors, positives: &near, own, corpus: &corpus, inverse_temperature: 1.0 / tau };
            let sums = pairs.sums(&mut |_| ()).unwrap();
            let shares = pairs.shares(&sums, &mut |_| ()).unwrap();
            let mut items = vec![0.0; m];
            for i in 0..n {
                let kept: Vec<u32> = (0..m as u32).filter(|j| own.is_none_or(|own| own[i] != *j)).collect();
                let cosines: Vec<f64> = kept.iter().map(|j| anchors.similarities(i, &bank, [*j])[0]).collect();
                let logits: Vec<f64> = cosines.iter().map(|s| s / tau).collect();
                let exact = AnchorEstimate::of(&logits, near[i] / tau).unwrap();
                // float32 cosines are off by 1e-7 or two: their logits by that over tau.
                let slack = 1e-6 + 3e-7 / tau;
                let count = kept.len() as f64;
                let ln_z = sums[i].ln_mass(1.0 / tau) - count.ln();
                assert!((ln_z - exact.ln_z).abs() < slack, "{tau} {i}: {ln_z} {}", exact.ln_z);
                let concentration = sums[i].squares / sums[i].mass.powi(2);
                assert!((concentration / exact.concentration - 1.0).abs() < 4.0 * slack);
                let divergence = sums[i].moment / sums[i].mass + f64::from(sums[i].nearest) / tau - ln_z;
                assert!((divergence - exact.divergence).abs() < 4.0 * slack, "{divergence} {}", exact.divergence);
                assert_eq!(sums[i].above as usize, cosines.iter().filter(|s| **s >= near[i]).count());
                assert_eq!(sums[i].ties as usize, cosines.iter().filter(|s| **s == near[i]).count());
                let lse = exact.ln_z + count.ln();
                let mut others = 0.0;
                for (j, x) in kept.iter().zip(&logits) {
                    let p = (x - lse).exp();
                    others += (-p).ln_1p();
                    items[*j as usize] += p;
                }
                if exact.largest < 0.9 {
                    assert!(
                        (shares.others[i] - others).abs() < 10.0 * slack,
                        "{tau} {i}: {} {others}",
                        shares.others[i]
                    );
                }
                assert!(shares.others[i].is_finite());
            }
            for (got, expected) in shares.items.iter().zip(&items) {
                assert!(
                    (got - expected).abs() < 2e-5 * expected.max(1e-3) + 1e-9 + 4e-7 / tau * expected,
                    "{got} {expected}"
                );
            }
            assert!((shares.items.iter().sum::<f64>() - n as f64).abs() < 1e-3);
        }
    }

    #[test]
    fn threads_change_no_bit() {
        let (n, m, d) = (30, 70 * STRIPE + 17, 3);
        let anchors = Rows::new(rows(n, d, 1), d);
        let near: Vec<f64> = vec![0.9; n];
        let corpus = Matrix::of("corpus", rows(m, d, 3), d).unwrap();
        let pairs =
            Pairs { anchors: &anchors, positives: &near, own: None, corpus: &corpus, inverse_temperature: 12.0 };
        let threads = tch::get_num_threads();
        let mut found = [1, 3].map(|count| {
            tch::set_num_threads(count);
            let sums = pairs.sums(&mut |_| ()).unwrap();
            let shares = pairs.shares(&sums, &mut |_| ()).unwrap();
            (sums, shares)
        });
        tch::set_num_threads(threads);
        let [one, three] = &mut found;
        assert!(one.0 == three.0 && one.1 == three.1);
    }
}
