//! Statistics of plain numbers, in float64 and without LibTorch.

mod correlation;
mod summary;

pub use correlation::{Correlation, Side, Undefined, pearson, spearman};
pub use summary::Spread;
