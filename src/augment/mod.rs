//! Random views of images, computed as torchvision computes them on PIL images, byte for byte wherever that is possible.
//!
//! A view is made in two steps. [`Views::draw`] takes every random choice from a generator that is a pure function of
//! (seed, epoch, sample, view); [`Views::render`] applies the choices and draws nothing. So the choices can be compared with
//! torchvision's distributions, and the operations with torchvision's pixels, one at a time.

pub mod blur;
pub mod color;
pub mod crop;
pub mod flip;
mod hue;
mod pipeline;
mod planes;
pub mod random;
pub mod resize;
mod simd;

pub use pipeline::{Canvas, Fit, ViewChoices, Views};
pub use planes::{Planes, PlanesRef};
pub(crate) use simd::dispatch;
