//! Images computed from a seed: each class is a stripe pattern of its own direction, width and pair of colours, under noise.
//!
//! What tells classes apart survives crops, flips and jitter in part only, as with real images, so that a few steps of contrastive
//! training have something to learn.

use super::{ImageSet, Split};
use crate::augment::random::{Keyed, Purpose};
use std::f64::consts::{PI, TAU};

/// Makes a split: image `i` has class `i % classes`.
pub(super) fn make(classes: usize, count: usize, size: usize, seed: u64, split: Split) -> ImageSet {
    let split = match split {
        Split::Pretrain | Split::Train => 0,
        Split::Test => 1,
    };
    let mut pixels = Vec::with_capacity(count * 3 * size * size);
    for sample in 0..count {
        let rng = Keyed::new(seed, 0, Purpose::Synthetic { sample: sample as u64, split });
        draw(sample % classes, classes, size, rng, &mut pixels);
    }
    let labels = (0..count).map(|sample| (sample % classes) as i64).collect();
    ImageSet::memory(pixels, [3, size, size], labels, classes)
}

/// Appends the planes of an image of a class.
fn draw(class: usize, classes: usize, size: usize, mut rng: Keyed, pixels: &mut Vec<u8>) {
    let share = class as f64 / classes as f64;
    // Directions over a quarter turn: a flip takes none to that of another class.
    let angle = share * PI / 2.0 + rng.uniform([-0.04, 0.04]);
    let stripes = 2.0 + (class % 3) as f64 * 1.5 + rng.uniform([-0.2, 0.2]);
    let phase = rng.uniform([0.0, TAU]);
    let (sin, cos) = angle.sin_cos();
    let tint = rng.uniform([-0.15, 0.15]);
    for channel in 0..3 {
        let hue = TAU * (share + tint + f64::from(channel) / 3.0);
        let (light, dark) = (150.0 + 90.0 * hue.cos(), 90.0 + 60.0 * hue.sin());
        for y in 0..size {
            for x in 0..size {
                let along = (x as f64 * cos + y as f64 * sin) / size as f64;
                let wave = 0.5 + 0.5 * (TAU * stripes * along + phase).sin();
                let value = dark + (light - dark) * wave + 12.0 * rng.normal();
                pixels.push(value.round().clamp(0.0, 255.0) as u8);
            }
        }
    }
}
