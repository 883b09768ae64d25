//! How well a similarity search with some embeddings works, and how that depends on the corpus, the number of negatives, the temperature
//! and the training: what `eval-search` measures (docs/theory.md 2, 3 and 7).

pub mod analysis;
mod compare;
pub mod finite_k;
pub mod input;
mod kernel;
mod page;
pub mod passes;
mod pictures;
pub mod source;
pub mod temperature;
pub mod weince;
mod words;

pub use analysis::{Analysis, Settings, analyse};
pub use compare::compare;
pub use input::{Input, Items, Labels, Negatives};
pub use page::{to_markdown, to_text};
pub use pictures::pictures;

#[cfg(test)]
mod page_tests;
#[cfg(test)]
mod tests;
