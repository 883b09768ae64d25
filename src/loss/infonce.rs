//! InfoNCE, also known as NT-Xent: one softmax term, no tail statistics.

use super::pairs::Pairs;
use super::softmax::{Candidates, Cap, Plan, Term};
use super::{Diagnostics, constant};
use crate::config::loss::{Floor, InfonceConfig};

/// Below this shortfall a negative counts as a duplicate of its anchor.
const EPS: f64 = 1e-6;

/// l[a, c] = s[a, c] / temperature.
pub(super) fn plan(config: &InfonceConfig, pairs: &Pairs) -> Plan {
    let term = Term {
        slope: Some(constant(1.0 / config.temperature, pairs.device())),
        power: None,
        weight: None,
        candidates: Candidates::All,
    };
    let cap = Cap { floor: Floor::Clamp, eps: EPS };
    Plan { terms: vec![term], hardest: None, cap, diagnostics: Diagnostics::new(pairs) }
}
