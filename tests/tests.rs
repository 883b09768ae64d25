//! The integration tests: one binary, one module an area.

mod augment;
mod data;
mod loss;
mod report;
