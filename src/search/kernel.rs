//! What a pass makes of the products of an anchor with some items, while they are in the registers.
//!
//! Numbers are taken sixteen at a time, in loops over arrays of that length that become vector instructions where they are inlined into
//! the product's kernel; what is not inlined there would be compiled without them, and is marked so.
#![allow(clippy::needless_range_loop)] // Several arrays of one length: as iterators they would be nests of zips.

use crate::eval::panels::Reader;

/// Numbers that are taken at once.
const LANES: usize = 16;
/// What an exponent is raised to: e^-87 is the least normal number.
const LEAST: f32 = -87.0;
/// A probability above it is treated in float64.
const LARGE: f32 = 1.0 / 64.0;
/// Below every cosine.
pub(super) const NOTHING: f32 = -2.0;

type Vector = [f32; LANES];

/// An anchor's sums over some items, side by side; `x` is an item's logit less that of the nearest.
pub(super) struct Lanes {
    /// The cosine of the nearest.
    pub nearest: f32,
    mass: Vector,
    squares: Vector,
    moment: Vector,
    above: [u32; LANES],
    /// Between them a cosine may be above the positive's or not.
    doubtful: [f32; 2],
}

impl Lanes {
    /// Of no items.
    pub fn new(nearest: f32, positive: f64, margin: f64) -> Lanes {
        let zero = [0.0; LANES];
        let doubtful = [(positive - margin) as f32, (positive + margin) as f32];
        Lanes { nearest, mass: zero, squares: zero, moment: zero, above: [0; LANES], doubtful }
    }

    /// Σ e^x, Σ e^2x and Σ x e^x.
    pub fn sums(&self) -> [f64; 3] {
        [&self.mass, &self.squares, &self.moment].map(total)
    }

    /// Items above the positive beyond doubt.
    pub fn above(&self) -> u64 {
        self.above.iter().map(|a| u64::from(*a)).sum()
    }

    #[inline(always)]
    fn add(&mut self, cosines: &Vector, inverse_temperature: f32) {
        if any_above(cosines, self.nearest) {
            self.refer(cosines, inverse_temperature);
        }
        // One loop for each that is written: the compiler cannot tell that several lie apart.
        let (mut x, mut w) = ([0f32; LANES], [0f32; LANES]);
        for l in 0..LANES {
            x[l] = raised((cosines[l] - self.nearest) * inverse_temperature);
        }
        for l in 0..LANES {
            w[l] = exp(x[l]);
        }
        for l in 0..LANES {
            self.mass[l] += w[l];
        }
        for l in 0..LANES {
            self.squares[l] = w[l].mul_add(w[l], self.squares[l]);
        }
        for l in 0..LANES {
            self.moment[l] = w[l].mul_add(x[l], self.moment[l]);
        }
    }

    /// Counts what is above the positive, and tells whether there may be more.
    #[inline(always)]
    fn rank(&mut self, cosines: &Vector) -> bool {
        let [low, high] = self.doubtful;
        if !any_above(cosines, low) {
            return false;
        }
        let mut between = false;
        for l in 0..LANES {
            self.above[l] += u32::from(cosines[l] > high);
            between |= (cosines[l] > low) & (cosines[l] <= high);
        }
        between
    }

    /// Makes the nearest of some items the reference.
    #[inline(never)]
    fn refer(&mut self, cosines: &Vector, inverse_temperature: f32) {
        let nearest = cosines.iter().copied().fold(NOTHING, f32::max);
        let shift = (self.nearest - nearest) * inverse_temperature;
        let factor = shift.exp();
        for l in 0..LANES {
            self.moment[l] = (self.moment[l] + shift * self.mass[l]) * factor;
            self.mass[l] *= factor;
            self.squares[l] *= factor * factor;
        }
        self.nearest = nearest;
    }
}

/// The reader of the first pass.
pub(super) struct Gather<'a> {
    pub lanes: &'a mut [Lanes],
    /// The place of each anchor's own item, which is left out.
    pub own: &'a [usize],
    pub inverse_temperature: f32,
    /// Place of the anchor, and of the item, of what may or may not be above the positive.
    pub near: &'a mut Vec<(u32, u32)>,
}

impl Reader for Gather<'_> {
    #[inline(always)]
    fn floor(&self, _: usize) -> f32 {
        f32::NEG_INFINITY
    }

    #[inline(always)]
    fn read(&mut self, row: usize, products: &[f32], first: usize) {
        let (lanes, own) = (&mut self.lanes[row], self.own[row]);
        let (whole, rest) = products.as_chunks::<LANES>();
        let masked = own.wrapping_sub(first) < products.len();
        let mut place = first;
        for cosines in whole {
            let mut filled = [0.0; LANES];
            let cosines = if masked { without(cosines, own, place, &mut filled) } else { cosines };
            lanes.add(cosines, self.inverse_temperature);
            if lanes.rank(cosines) {
                note(cosines, lanes.doubtful, row, place, self.near);
            }
            place += LANES;
        }
        if !rest.is_empty() {
            let cosines = filled_up(rest, own, place);
            lanes.add(&cosines, self.inverse_temperature);
            if lanes.rank(&cosines) {
                note(&cosines, lanes.doubtful, row, place, self.near);
            }
        }
    }
}

#[inline(never)]
fn note(cosines: &Vector, [low, high]: [f32; 2], row: usize, place: usize, near: &mut Vec<(u32, u32)>) {
    let doubtful = cosines.iter().zip(place as u32..).filter(|(s, _)| **s > low && **s <= high);
    near.extend(doubtful.map(|(_, item)| (row as u32, item)));
}

/// The cosines with -inf at the place of the anchor's own item.
#[inline(never)]
fn without<'a>(cosines: &Vector, own: usize, place: usize, filled: &'a mut Vector) -> &'a Vector {
    *filled = *cosines;
    leave_out(filled, own, place);
    filled
}

/// The last cosines, fewer than a vector has, with -inf for those that are missing and for the anchor's own item.
#[inline(never)]
fn filled_up(rest: &[f32], own: usize, place: usize) -> Vector {
    let mut cosines = [f32::NEG_INFINITY; LANES];
    cosines[..rest.len()].copy_from_slice(rest);
    leave_out(&mut cosines, own, place);
    cosines
}

fn leave_out(cosines: &mut Vector, own: usize, place: usize) {
    if let Some(own) = cosines.get_mut(own.wrapping_sub(place)) {
        *own = f32::NEG_INFINITY;
    }
}

/// An anchor's probabilities over some items.
pub(super) struct Probabilities {
    nearest: f32,
    /// The probability of the nearest.
    top: f32,
    /// Σ -log(1 - p) - p of those that are not large.
    small: Vector,
    /// The same of those that are.
    large: f64,
}

impl Probabilities {
    /// Of the nearest item's cosine, and the sum of all items' e^x.
    pub fn new(nearest: f32, mass: f64) -> Probabilities {
        Probabilities { nearest, top: (1.0 / mass) as f32, small: [0.0; LANES], large: 0.0 }
    }

    /// Σ -log(1 - p) - p.
    pub fn rest(&self) -> f64 {
        self.large + total(&self.small)
    }

    #[inline(always)]
    fn of(&mut self, cosines: &Vector, inverse_temperature: f32) -> Vector {
        let mut p = [0f32; LANES];
        for l in 0..LANES {
            p[l] = self.top * exp(raised((cosines[l] - self.nearest) * inverse_temperature));
        }
        let mut small = p;
        if any_above(&p, LARGE) {
            self.set_apart(&mut small);
        }
        for l in 0..LANES {
            // p^2/2 + p^3/3 + p^4/4 + p^5/5: what follows is below p (1/64)^5 / 6.
            let tail = small[l].mul_add(small[l].mul_add(small[l].mul_add(0.2, 0.25), 1.0 / 3.0), 0.5);
            self.small[l] = (small[l] * small[l]).mul_add(tail, self.small[l]);
        }
        p
    }

    #[inline(never)]
    fn set_apart(&mut self, p: &mut Vector) {
        for p in p.iter_mut().filter(|p| **p > LARGE) {
            let exact = f64::from(*p).min(1.0 - 1e-9);
            self.large -= (-exact).ln_1p() + exact;
            *p = 0.0;
        }
    }
}

/// The reader of the second pass.
pub(super) struct Share<'a> {
    pub rows: &'a mut [Probabilities],
    /// The place of each anchor's own item, which is left out.
    pub own: &'a [usize],
    pub inverse_temperature: f32,
    /// What each item gathers.
    pub columns: &'a mut [f32],
}

impl Reader for Share<'_> {
    #[inline(always)]
    fn floor(&self, _: usize) -> f32 {
        f32::NEG_INFINITY
    }

    #[inline(always)]
    fn read(&mut self, row: usize, products: &[f32], first: usize) {
        let (anchor, own) = (&mut self.rows[row], self.own[row]);
        let (whole, rest) = products.as_chunks::<LANES>();
        let (columns, last) = self.columns[first..][..products.len()].as_chunks_mut::<LANES>();
        let masked = own.wrapping_sub(first) < products.len();
        let mut place = first;
        for (cosines, columns) in whole.iter().zip(columns) {
            let mut filled = [0.0; LANES];
            let cosines = if masked { without(cosines, own, place, &mut filled) } else { cosines };
            let p = anchor.of(cosines, self.inverse_temperature);
            for l in 0..LANES {
                columns[l] += p[l];
            }
            place += LANES;
        }
        if !rest.is_empty() {
            let cosines = filled_up(rest, own, place);
            let p = anchor.of(&cosines, self.inverse_temperature);
            last.iter_mut().zip(p).for_each(|(column, p)| *column += p);
        }
    }
}

fn total(lanes: &Vector) -> f64 {
    lanes.iter().map(|v| f64::from(*v)).sum()
}

#[inline(always)]
fn any_above(values: &Vector, bound: f32) -> bool {
    let mut any = false;
    for v in values {
        any |= *v > bound;
    }
    any
}

/// An exponent that e^x can have; also of -inf.
#[inline(always)]
fn raised(x: f32) -> f32 {
    if x > LEAST { x } else { LEAST }
}

/// e^x of x from -87 to 0, within two units of the last place: 2^n e^r with |r| at most log(2)/2, by the series of degree 7.
#[inline(always)]
fn exp(x: f32) -> f32 {
    // Added and taken away, it leaves the nearest whole number, and that number in the low bits.
    const SHIFT: f32 = 12_582_912.0;
    let shifted = x.mul_add(std::f32::consts::LOG2_E, SHIFT);
    let n = shifted - SHIFT;
    // log(2) in two parts, the first of which times n is exact.
    let r = n.mul_add(-1.428_606_8e-6, n.mul_add(-0.693_145_75, x));
    let mut e = r.mul_add(1.0 / 5040.0, 1.0 / 720.0);
    e = e.mul_add(r, 1.0 / 120.0);
    e = e.mul_add(r, 1.0 / 24.0);
    e = e.mul_add(r, 1.0 / 6.0);
    e = e.mul_add(r, 0.5);
    e = e.mul_add(r, 1.0);
    e = e.mul_add(r, 1.0);
    e * f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23))
}

#[cfg(test)]
mod tests {
    use super::{exp, raised};

    #[test]
    fn exponentials_are_those_of_float64() {
        for i in 0..870_000 {
            let x = -(i as f32) * 1e-4;
            let (got, expected) = (f64::from(exp(raised(x))), f64::from(x).exp());
            assert!((got / expected - 1.0).abs() < 2.0 * f64::from(f32::EPSILON), "{x}: {got} {expected}");
        }
        assert!(exp(raised(f32::NEG_INFINITY)) < 1.7e-38 && exp(0.0) == 1.0);
    }
}
