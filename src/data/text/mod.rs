//! Sentences: what they are read from, and the token ids that models take.

mod batches;
mod corpus;
pub mod sts;
mod tokenizer;

pub use batches::{Sentences, TextBatch};
use corpus::has_visible;
pub use corpus::{Corpus, CorpusReport, Example, LeftOut, MOST_BYTES, Sides};
pub(crate) use tokenizer::lower_case;
pub use tokenizer::{TextTokenizer, Tokens};

/// How a gzip file begins, and no text does.
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];
