//! What `checkpoint` does with files of weights: looks into them, checks, converts and compares them.

mod convert;
mod diff;
mod inspect;

pub use convert::{Rules, convert};
pub use diff::{Difference, diff};
pub use inspect::{Format, Inspection, TensorInfo, inspect};
