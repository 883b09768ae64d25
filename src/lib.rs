//! Contrastive pretraining of encoders with InfoNCE and WEINCE, and measurement of what they learnt.
//!
//! `ARCHITECTURE.md` at the repository's root is the map. The binaries in `bin/` are thin: everything is reachable here.
#![warn(missing_docs)]
#![deny(unsafe_code)]

pub mod augment;
pub mod checkpoint;
pub mod cli;
pub mod config;
pub mod data;
pub mod device;
pub mod dist;
pub mod doctor;
pub mod error;
pub mod eval;
pub mod evt;
pub mod files;
mod json;
pub mod lock;
pub mod loss;
pub mod machine;
pub mod model;
pub mod optim;
pub mod progress;
pub mod report;
pub mod run;
pub mod search;
pub mod stats;
pub mod sweep;
pub mod tail;
pub mod theory;
#[allow(unsafe_code)]
pub mod torch;
pub mod train;

pub use error::{Error, Result};
