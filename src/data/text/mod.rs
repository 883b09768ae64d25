//! Sentences: what they are read from, and the token ids that models take.

mod tokenizer;

pub use tokenizer::{TextTokenizer, Tokens};
