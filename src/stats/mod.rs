//! Statistics of plain numbers, in float64 and without LibTorch.

mod summary;

pub use summary::Spread;
