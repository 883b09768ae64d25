//! What a run leaves behind for people: metrics, TensorBoard events, figures, tables, one page.
//!
//! A training loop writes through [`metrics`], [`tensorboard`] and [`contact_sheet`]; [`run`] and [`page`] read run folders
//! and need nothing but their files.

pub mod claims;
pub mod contact_sheet;
pub mod figure;
pub mod metrics;
pub mod page;
pub mod picture;
pub mod run;
pub mod table;
pub mod tensorboard;
