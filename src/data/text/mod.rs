//! Sentences: what they are read from, and the token ids that models take.

mod batches;
mod corpus;
pub mod sts;
mod tokenizer;

pub use batches::{Sentences, TextBatch};
use corpus::has_visible;
pub use corpus::{Corpus, CorpusReport, Example, LeftOut, MOST_BYTES, Sides};
pub use tokenizer::{TextTokenizer, Tokens};
