//! The integration tests: one binary, one module an area.

mod checkpoint;
mod formula;
mod model;
mod optim;
