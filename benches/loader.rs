//! Pairs of views a second from a folder of images, to be compared with torchvision's by `scripts/bench/loader.py`.
//!
//! Arguments: the folder, of a folder for each class; the number of loader threads; seconds to measure. Prints one JSON object.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use weince::config::augment::{AugmentConfig, BlurConfig};
use weince::config::data::{BOMB_PIXELS, BadFiles, DataConfig, FolderConfig};
use weince::data::{Loader, Position, Sampler, Split, load};

const BATCH: usize = 32;

fn main() -> weince::Result<()> {
    let mut arguments = std::env::args().skip(1).filter(|a| !a.starts_with("--"));
    let root: PathBuf = arguments.next().expect("a folder").into();
    let mut number = || arguments.next().and_then(|a| a.parse::<f64>().ok()).expect("threads and seconds");
    let (threads, seconds) = (number() as usize, number());
    let config = FolderConfig {
        root,
        train: ".".into(),
        test: ".".into(),
        cache: None,
        bad_files: BadFiles::Error,
        exif_orientation: false,
        max_pixels: BOMB_PIXELS,
        threads,
    };
    let set = Arc::new(load(&DataConfig::Folder(config), Split::Pretrain)?);
    let augment = AugmentConfig { size: Some(224), blur: Some(BlurConfig::default()), ..AugmentConfig::default() };
    let sampler = Sampler::new(set.len(), BATCH, 0)?;
    let mut loader = Loader::new(set, &augment, sampler, Position::default(), u64::MAX >> 8, threads)?;
    // What is made before the clock starts: as many batches as are ahead, and one.
    for _ in 0..threads + 2 {
        loader.next().expect("an endless loader")?;
    }
    let (mut images, start) = (0, Instant::now());
    while start.elapsed().as_secs_f64() < seconds {
        images += loader.next().expect("an endless loader")?.indices.len();
    }
    let rate = images as f64 / start.elapsed().as_secs_f64();
    println!("{}", serde_json::json!({"images_per_second": rate}));
    Ok(())
}
