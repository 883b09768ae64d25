//! The theory's statements, each checked by numbers: what `verify-theory` prints (docs/theory.md 8.2).
//!
//! The groups T01 to T09 and T18 are exact up to quadrature; T10 to T17 sample; N01 does both. Some hand out what they computed as
//! [`Plot`]s. Every piece of work has a stream of random numbers
//! of its own, and results are put together in a fixed order: a seed gives the same numbers on any number of threads.

mod exact;
mod golden;
mod kernel;
mod noise;
mod plot;
mod risks;
mod sampled;
mod temperature;

use super::complexity::{Ball, Moves};
use super::estimators::{AnchorEstimate, Variances};
use super::models::Moments;
use super::random::Random;
use super::weince::Kernel;
use super::{bounds, complexity, estimators, weince};
use crate::Result;
use crate::evt::noise_floor::Population;
use std::fmt;

pub use plot::{Curve, Draw, Plot};

/// How much is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// Some seconds: fewer models and repetitions.
    Quick,
    /// About a minute.
    Full,
}

/// What to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Of the random numbers.
    pub seed: u64,
    /// How much of it.
    pub size: Size,
}

impl Plan {
    /// One number for quick checks and another one for full ones.
    fn pick<T>(&self, quick: T, full: T) -> T {
        if self.size == Size::Quick { quick } else { full }
    }
}

/// What a measured number should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Expected {
    /// This number, within the tolerance.
    Equal(f64),
    /// At most this number and the tolerance.
    AtMost(f64),
    /// At least this number less the tolerance.
    AtLeast(f64),
    /// Between these numbers, both widened by the tolerance.
    Between(f64, f64),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Expected::Equal(x) => write!(f, "= {}", Short(*x)),
            Expected::AtMost(x) => write!(f, "<= {}", Short(*x)),
            Expected::AtLeast(x) => write!(f, ">= {}", Short(*x)),
            Expected::Between(low, high) => write!(f, "in [{}, {}]", Short(*low), Short(*high)),
        }
    }
}

/// A number with about five digits.
struct Short(f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let x = self.0;
        if x == 0.0 {
            f.write_str("0")
        } else if x.abs() < 1e-3 || x.abs() >= 1e5 {
            write!(f, "{x:.2e}")
        } else {
            let text = format!("{x:.5}");
            f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
        }
    }
}

/// One checked statement.
#[derive(Debug, Clone, PartialEq)]
pub struct Claim {
    /// Its group, such as `T05`.
    pub id: &'static str,
    /// What is measured.
    pub what: String,
    /// What came out. NaN never passes.
    pub measured: f64,
    /// What should come out.
    pub expected: Expected,
    /// How far off it may be.
    pub tolerance: f64,
    /// Whether it is as expected.
    pub pass: bool,
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let verdict = if self.pass { "PASS" } else { "FAIL" };
        let Claim { id, what, .. } = self;
        let measured = Short(self.measured);
        write!(f, "{verdict} {id} {what}: {measured}, expected {}, tolerance {}", self.expected, Short(self.tolerance))
    }
}

/// What a group found.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// Its claims, in the order in which they are printed.
    pub claims: Vec<Claim>,
    /// Numbers that are best seen.
    pub plots: Vec<Plot>,
}

/// What one group finds, as it is made.
struct Ledger {
    id: &'static str,
    claims: Vec<Claim>,
    plots: Vec<Plot>,
}

impl Ledger {
    fn new(id: &'static str) -> Ledger {
        Ledger { id, claims: Vec::new(), plots: Vec::new() }
    }

    fn add(&mut self, what: impl Into<String>, measured: f64, expected: Expected, tolerance: f64) {
        let pass = match expected {
            Expected::Equal(x) => (measured - x).abs() <= tolerance,
            Expected::AtMost(x) => measured <= x + tolerance,
            Expected::AtLeast(x) => measured >= x - tolerance,
            Expected::Between(low, high) => measured >= low - tolerance && measured <= high + tolerance,
        };
        self.claims.push(Claim { id: self.id, what: what.into(), measured, expected, tolerance, pass });
    }
}

/// The largest of some numbers; NaN where one of them is, so that it cannot hide.
fn worst(values: impl IntoIterator<Item = f64>) -> f64 {
    let keep = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
    values.into_iter().fold(f64::NEG_INFINITY, keep)
}

/// The smallest of some numbers; NaN where one of them is.
fn least(values: impl IntoIterator<Item = f64>) -> f64 {
    -worst(values.into_iter().map(|v| -v))
}

/// The random numbers of a piece of work: of a group, a part of it, and a number within that part.
fn stream(plan: &Plan, group: u64, part: u64, piece: usize) -> Random {
    Random::new(plan.seed, (group << 56) + (part << 32) + piece as u64)
}

/// The statements under test, as functions: a test of the claims puts wrong ones in their place and sees them fail.
#[derive(Debug, Clone, Copy)]
pub struct Formulas {
    /// [`bounds::paper_upper`].
    pub paper_upper: fn(f64, f64) -> f64,
    /// [`bounds::paper_lower`].
    pub paper_lower: fn(f64, f64) -> f64,
    /// [`bounds::upper`].
    pub upper: fn(f64, f64) -> f64,
    /// [`bounds::lower_rate`].
    pub lower_rate: fn(f64, f64) -> f64,
    /// [`bounds::lower_v`].
    pub lower_v: fn(f64, f64, f64) -> f64,
    /// [`bounds::ceiling`].
    pub ceiling: fn(f64) -> f64,
    /// [`bounds::total_variation`].
    pub total_variation: fn(f64) -> f64,
    /// [`bounds::largest_variance`].
    pub largest_variance: fn(f64) -> f64,
    /// The 1/τ ceiling of averages over anchors.
    pub average_ceiling: fn(f64) -> f64,
    /// [`bounds::paper_search`].
    pub paper_search: fn(f64, f64, f64) -> f64,
    /// [`bounds::search`].
    pub search: fn(f64, f64, f64) -> f64,
    /// [`Moments::c1`].
    pub c1: fn(&Moments) -> f64,
    /// [`Moments::c2`].
    pub c2: fn(&Moments) -> f64,
    /// [`complexity::paper_continuity`].
    pub paper_continuity: fn(&Moves, f64, f64) -> f64,
    /// [`complexity::continuity`].
    pub continuity: fn(&Moves, f64, f64) -> f64,
    /// [`complexity::max_continuity`].
    pub max_continuity: fn(&Moves, f64) -> f64,
    /// [`complexity::power_mean`].
    pub power_mean: fn(&[f64], f64) -> f64,
    /// [`complexity::lipschitz`].
    pub lipschitz: fn(&complexity::Sizes, f64, f64) -> f64,
    /// [`complexity::dudley`].
    pub dudley: fn(Ball, f64, f64, f64, f64) -> f64,
    /// [`complexity::massart`].
    pub massart: fn(f64, f64, f64) -> f64,
    /// [`AnchorEstimate::of`].
    pub anchor: fn(&[f64], f64) -> Result<AnchorEstimate>,
    /// [`Variances::standard_error`].
    pub standard_error: fn(&Variances) -> f64,
    /// [`estimators::ranked`].
    pub ranked: fn(&[f64], f64) -> estimators::Ranked,
    /// [`estimators::recall_at_size`].
    pub recall_at_size: fn(&[usize], usize, usize, usize) -> Result<f64>,
    /// [`estimators::held_out_bound`].
    pub held_out_bound: fn(&[f64], f64, f64, f64) -> Result<f64>,
    /// [`Kernel::ln_z_sphere`].
    pub kernel_mean: fn(&Kernel, usize) -> Result<f64>,
    /// [`weince::decay`].
    pub decay: fn(f64) -> f64,
    /// [`weince::decay_constant`].
    pub decay_constant: fn(f64, f64) -> f64,
    /// [`weince::divergent_mean_log`].
    pub divergent_mean_log: fn(f64, f64, f64) -> f64,
    /// [`weince::least_shortfall`].
    pub least_shortfall: fn(f64, f64) -> f64,
    /// [`weince::hill`].
    pub hill: fn(&[f64], usize) -> Result<f64>,
    /// [`Population::weibit_mse`].
    pub weibit_mse: fn(&Population, f64) -> f64,
    /// [`Population::softmax_mse`].
    pub softmax_mse: fn(&Population, f64) -> f64,
}

impl Default for Formulas {
    fn default() -> Formulas {
        Formulas {
            paper_upper: bounds::paper_upper,
            paper_lower: bounds::paper_lower,
            upper: bounds::upper,
            lower_rate: bounds::lower_rate,
            lower_v: bounds::lower_v,
            ceiling: bounds::ceiling,
            total_variation: bounds::total_variation,
            largest_variance: bounds::largest_variance,
            average_ceiling: |tau| 1.0 / tau,
            paper_search: bounds::paper_search,
            search: bounds::search,
            c1: Moments::c1,
            c2: Moments::c2,
            paper_continuity: complexity::paper_continuity,
            continuity: complexity::continuity,
            max_continuity: complexity::max_continuity,
            power_mean: complexity::power_mean,
            lipschitz: complexity::lipschitz,
            dudley: complexity::dudley,
            massart: complexity::massart,
            anchor: AnchorEstimate::of,
            standard_error: Variances::standard_error,
            ranked: estimators::ranked,
            recall_at_size: estimators::recall_at_size,
            held_out_bound: estimators::held_out_bound,
            kernel_mean: Kernel::ln_z_sphere,
            decay: weince::decay,
            decay_constant: weince::decay_constant,
            divergent_mean_log: weince::divergent_mean_log,
            least_shortfall: weince::least_shortfall,
            hill: weince::hill,
            weibit_mse: Population::weibit_mse,
            softmax_mse: Population::softmax_mse,
        }
    }
}

impl Formulas {
    /// [`bounds::lower`] of these formulas.
    fn lower(&self, tau: f64, k: f64) -> f64 {
        (self.ceiling)(1.0 / tau).min((self.average_ceiling)(tau)).min((self.lower_rate)(tau, k))
    }
}

/// A group of claims that share their computations.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    /// Such as `T05`.
    pub id: &'static str,
    /// What it is about.
    pub title: &'static str,
    check: fn(&Plan, &Formulas) -> Result<Ledger>,
}

impl Group {
    /// Checks its claims, on rayon's threads.
    ///
    /// # Errors
    /// [`crate::Error::Input`] where a computation is refused, which is a mistake of this library.
    pub fn check(&self, plan: &Plan, formulas: &Formulas) -> Result<Checked> {
        (self.check)(plan, formulas).map(|ledger| Checked { claims: ledger.claims, plots: ledger.plots })
    }
}

/// All groups, in order.
pub const GROUPS: [Group; 19] = [
    Group { id: "T01", title: "the engine equals binomial sums", check: exact::t01 },
    Group { id: "T02", title: "closed forms equal golden values", check: exact::t02 },
    Group { id: "T03", title: "exact risks equal golden values", check: exact::t03 },
    Group { id: "T04", title: "coefficients of 1/k and 1/k²", check: exact::t04 },
    Group { id: "T05", title: "bounds of R_k - R_inf", check: risks::t05 },
    Group { id: "T06", title: "slopes in k", check: risks::t06 },
    Group { id: "T07", title: "bounds of the search's cross-entropy", check: risks::t07 },
    Group { id: "T08", title: "what a temperature allows", check: temperature::t08 },
    Group { id: "T09", title: "continuity in the embedding", check: temperature::t09 },
    Group { id: "T10", title: "largest inputs grow, power means do not", check: sampled::t10 },
    Group { id: "T11", title: "Rademacher complexity settles in k", check: sampled::t11 },
    Group { id: "T12", title: "Lipschitz constants in k", check: sampled::t12 },
    Group { id: "T13", title: "the uniform gap in n", check: sampled::t13 },
    Group { id: "T14", title: "estimates of R_inf and their intervals", check: sampled::t14 },
    Group { id: "T15", title: "the curve in k from data", check: sampled::t15 },
    Group { id: "T16", title: "retrieval", check: sampled::t16 },
    Group { id: "T17", title: "the held-out certificate", check: sampled::t17 },
    Group { id: "T18", title: "the WEINCE kernel", check: kernel::t18 },
    Group { id: "N01", title: "the noise floor of a wrong link", check: noise::n01 },
];

/// The claims of all groups, or of those whose ids are in `only`.
///
/// # Errors
/// As [`Group::check`].
pub fn check(plan: &Plan, formulas: &Formulas, only: &[&str]) -> Result<Vec<Claim>> {
    let chosen = GROUPS.iter().filter(|g| only.is_empty() || only.contains(&g.id));
    let claims = chosen.map(|g| Ok(g.check(plan, formulas)?.claims)).collect::<Result<Vec<_>>>()?;
    Ok(claims.concat())
}

#[cfg(test)]
mod tests;
