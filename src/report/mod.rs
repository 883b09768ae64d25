//! What a run leaves behind for people: metrics, TensorBoard events, figures, tables, one page.
//!
//! The writers ([`metrics`], [`tensorboard`], [`contact_sheet`]) know nothing of training; the readers ([`run`], [`page`])
//! know nothing of it either and use only the files of run folders.

pub mod contact_sheet;
pub mod figure;
pub mod metrics;
pub mod page;
pub mod run;
pub mod table;
pub mod tensorboard;
