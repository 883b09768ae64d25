//! ImageNet downsampled to 32 x 32 pixels: ten training batches and a validation batch, pickled or as npz, labels from 1 to 1000.
//!
//! # Source
//! Chrabaszcz, Loshchilov, Hutter 2017, A downsampled variant of ImageNet as an alternative to the CIFAR datasets (arXiv
//! 1707.08819), and the page <https://image-net.org/download-images.php>.

use super::{ImageSet, Split, batch, find, note_selection};
use crate::error::Result;
use std::path::Path;

const EDGE: usize = 32;
const CLASSES: usize = 1000;
const TRAIN_FILES: usize = 10;
/// Images of the published parts.
const TRAIN_IMAGES: usize = 1_281_167;
const TEST_IMAGES: usize = 50_000;

/// Reads a split; the validation images are the test part.
pub(super) fn load(root: &Path, split: Split) -> Result<ImageSet> {
    let (stems, published, part): (Vec<String>, usize, &str) = match split {
        Split::Pretrain | Split::Train => {
            ((1..=TRAIN_FILES).map(|i| format!("train_data_batch_{i}")).collect(), TRAIN_IMAGES, "training")
        }
        Split::Test => (vec!["val_data".to_string()], TEST_IMAGES, "validation"),
    };
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for stem in &stems {
        // The archives unpack to different folders, the training batches in one of their own.
        let places = ["", "Imagenet32_train/", "Imagenet32_val/", "Imagenet32_train_npz/", "Imagenet32_val_npz/"];
        let names: Vec<String> =
            places.iter().flat_map(|place| [format!("{place}{stem}"), format!("{place}{stem}.npz")]).collect();
        let path = find(root, &names, &format!("batch {stem} of ImageNet-32"))?;
        let batch = batch::read(&path, EDGE, "labels", 1, CLASSES)?;
        if pixels.is_empty() {
            // The batches are of about one size; growing by doubling would take the memory twice.
            pixels.reserve_exact(batch.pixels.len() * stems.len());
        }
        pixels.extend_from_slice(&batch.pixels);
        labels.extend(batch.labels.iter().map(|label| label - 1));
    }
    note_selection(root, part, labels.len(), published);
    Ok(ImageSet::memory(pixels, [3, EDGE, EDGE], labels, CLASSES))
}
