//! Data sets, the order in which training sees them, and the batches that reach the model.

mod eval;
mod loader;
mod sampler;
pub mod text;
pub mod vision;

pub use eval::{EvalBatch, EvalBatches, Look, eval_batches, fit_of, pictures};
pub use loader::{Loader, Source};
pub use sampler::{Position, Sampler};
pub use vision::{AugmentedImages, Batch, Decoder, ImageSet, Split, load};
