//! Text corpora: files of sentences that stay on the disk and are read where they are asked for.

mod corpus;
mod example;
mod index;
mod objects;
mod record;
mod report;
mod source;
mod table;
#[cfg(test)]
mod tests;

pub use corpus::Corpus;
pub use example::{Example, Sides};
pub use record::MOST_BYTES;
pub use report::{CorpusReport, LeftOut};
