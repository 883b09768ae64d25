//! Sweeps: many runs from one file, each in a process of its own, and the table that compares them.
//!
//! A sweep starts the project's commands and reads the files that they leave; it knows nothing of training itself.

mod aggregate;
mod folder;
mod grid;
mod records;
mod run;
mod table;

pub use aggregate::{Cell, Incomplete, Row, Summary};
pub use folder::{SweepFolder, Task};
pub use grid::{Arm, Job, Setting, Sweep};
pub use run::{Options, Outcome, run};
pub use table::{to_json, to_text, write};
