//! Text: what is read from files of sentences.

pub mod sts;
