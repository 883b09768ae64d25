//! The integration tests: one binary, one module an area.

mod augment;
mod checkpoint;
mod chunk;
mod data;
mod datasets;
mod eval;
mod formula;
mod images;
mod loss;
mod model;
mod optim;
mod processes;
mod ranks;
mod report;
mod rows;
mod search;
mod step;
mod sweep;
mod tail;
mod theory;
mod torch_file;
mod torchscript;
mod train;
