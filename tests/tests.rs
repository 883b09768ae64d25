//! The integration tests: one binary, one module an area.
mod report;

mod augment;
mod loss;
mod data;
