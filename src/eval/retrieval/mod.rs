//! How well a similarity search with some embeddings works, and how that depends on corpus, temperature and number of negatives.

mod kernel;
pub mod passes;
