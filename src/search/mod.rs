//! How well a similarity search with some embeddings works, and how that depends on the corpus, the number of negatives, the temperature
//! and the training: what `eval-search` measures (docs/theory.md 2, 3 and 7).

pub mod analysis;
pub mod finite_k;
pub mod input;
mod kernel;
pub mod passes;
pub mod source;
pub mod temperature;
pub mod weince;

pub use analysis::{Analysis, Settings, analyse};
pub use input::{Input, Items, Labels, Negatives};

#[cfg(test)]
mod tests;
