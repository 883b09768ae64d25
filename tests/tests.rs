//! The integration tests: one binary, one module an area.

mod augment;
mod checkpoint;
mod data;
mod formula;
mod loss;
mod model;
mod optim;
mod report;

/// Held by tests that seed LibTorch's generator and then draw from it: it is one for the whole process.
static GENERATOR: std::sync::Mutex<()> = std::sync::Mutex::new(());
