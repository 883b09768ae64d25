//! The integration tests: one binary, one module an area.

mod augment;
mod data;
mod loss;
mod report;
mod checkpoint;
mod formula;
mod model;
mod optim;

/// Held by tests that seed LibTorch's generator and then draw from it: it is one for the whole process.
static GENERATOR: std::sync::Mutex<()> = std::sync::Mutex::new(());
