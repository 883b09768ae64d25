//! InfoNCE, also known as NT-Xent: one softmax term, no tail statistics.

use super::pairs::Pairs;
use super::softmax::{Candidates, Cap, Plan, Term};
use super::{Diagnostics, constant};
use crate::config::loss::{Floor, InfonceConfig};
use crate::error::Result;

/// Below this shortfall a negative counts as a duplicate of its anchor.
const EPS: f64 = 1e-6;

/// l[a, c] = s[a, c] / temperature.
pub(super) fn plan(config: &InfonceConfig, pairs: &Pairs) -> Result<Plan> {
    let hardest = pairs.hardest()?;
    let term = Term {
        slope: Some(constant(1.0 / config.temperature, &hardest)),
        power: None,
        weight: None,
        candidates: Candidates::All,
    };
    let diagnostics = Diagnostics::new(pairs, &hardest, EPS);
    Ok(Plan { terms: vec![term], hardest, cap: Cap { floor: Floor::Clamp, eps: EPS }, diagnostics })
}
