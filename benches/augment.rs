//! Views a second of one thread, to be compared with torchvision's by `scripts/bench/augment.py`.
//!
//! Arguments: the edge of the images (views have the same) and the number of views; prints one JSON object a size.

use std::time::Instant;
use weince::augment::{Canvas, PlanesRef, Views};
use weince::config::augment::AugmentConfig;

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let (sizes, count) = match numbers[..] {
        [size, count] => (vec![size], count),
        _ => (vec![32, 96], 10_000),
    };
    for size in sizes {
        let rate = views_per_second(size, count);
        println!("{}", serde_json::json!({"size": size, "views": count, "views_per_second": rate}));
    }
}

fn views_per_second(size: usize, count: usize) -> f64 {
    let views = Views::new(&AugmentConfig::default(), size).expect("default settings suit any square image");
    // The same image as the peer's.
    let image: Vec<u8> = (0..3 * size * size)
        .map(|i| {
            let (channel, y, x) = (i / (size * size), i / size % size, i % size);
            ((x * 7 + y * 3 + channel * 50) % 256) as u8
        })
        .collect();
    let source = PlanesRef { channels: 3, height: size, width: size, bytes: &image };
    let (mut canvas, mut out) = (Canvas::default(), vec![0.0; 3 * size * size]);
    let mut make = |sample: usize| {
        views.make(std::hint::black_box(source), [0, 0, sample as u64], 0, &mut canvas, &mut out);
        std::hint::black_box(&out);
    };
    (0..count / 10).for_each(&mut make);
    let start = Instant::now();
    (0..count).for_each(&mut make);
    count as f64 / start.elapsed().as_secs_f64()
}
