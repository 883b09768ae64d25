//! Sentences: what they are read from, and the token ids that models take.

pub mod sts;
mod tokenizer;

pub use tokenizer::{TextTokenizer, Tokens};
