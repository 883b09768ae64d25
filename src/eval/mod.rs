//! What frozen features are worth: linear probes and nearest neighbours, with results that record how they were made.
//!
//! An evaluation takes [`Features`] (read from files, or extracted from an encoder), gives plain numbers, and its command
//! wraps them in a record (see [`record::record`]). To add one: a module here, a binary in `bin/` that calls it.

pub mod adam;
mod array;
pub mod command;
pub mod embed;
pub mod features;
pub mod knn;
mod lbfgs;
pub mod linear;
pub mod logistic;
pub mod matrix;
pub(crate) mod panels;
mod precondition;
pub mod record;
pub mod rows;
pub mod run;
mod run_encoder;
mod search;
mod softmax;
pub mod source;
pub mod split;
pub mod sts;
mod text_encoder;

pub use features::{Features, extract};
pub use matrix::Matrix;
pub use run_encoder::{RunEncoder, Space};
pub use text_encoder::TextRunEncoder;
