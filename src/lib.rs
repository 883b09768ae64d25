//! Contrastive pretraining of encoders with InfoNCE and WEINCE, and measurement of what they learnt.
//!
//! `ARCHITECTURE.md` at the repository's root is the map. The binaries in `bin/` are thin: everything is reachable here.
#![warn(missing_docs)]
#![deny(unsafe_code)]

pub mod cli;
pub mod config;
pub mod doctor;
pub mod error;
pub mod machine;
pub mod report;
#[allow(unsafe_code)]
pub mod torch;

pub use error::{Error, Result};
