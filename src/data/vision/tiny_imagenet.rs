//! Tiny-ImageNet: `train/WNID/images/*.JPEG`, and `val/images/*.JPEG` with their classes in `val/val_annotations.txt`. Its own
//! test images have no labels, so that the validation images are what is tested on.
//!
//! # Source
//! Stanford CS231n, <http://cs231n.stanford.edu/tiny-imagenet-200.zip>.

use super::decode::Decoding;
use super::files::{Files, ImageFile};
use super::{ImageSet, Split, of_files, tree};
use crate::config::data::{BOMB_PIXELS, TinyImagenetConfig};
use crate::error::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const EDGE: usize = 64;

/// Reads a split. Classes are numbered in the order of their WordNet numbers, as torchvision's `ImageFolder` does for `train`.
pub(super) fn load(config: &TinyImagenetConfig, split: Split) -> Result<ImageSet> {
    let root = config.root.join("tiny-imagenet-200");
    let root = if root.is_dir() { root } else { config.root.clone() };
    let train = root.join("train");
    if !train.is_dir() {
        return Err(Error::data(
            root,
            None,
            "has no folder train; expected tiny-imagenet-200: set data.root, or fetch it with scripts/fetch_data.py",
        ));
    }
    let tree = tree::list(&train)?;
    let (folder, files) = match split {
        Split::Pretrain | Split::Train => (train, tree.files),
        Split::Test => {
            let val = root.join("val");
            let files = validation(&val, &tree.classes)?;
            (val, files)
        }
    };
    let names = class_names(&root.join("words.txt"), tree.classes)?;
    let how = Decoding { exif_orientation: false, max_pixels: BOMB_PIXELS };
    let files = Files { root: folder, files, how, shape: Some([EDGE, EDGE]) };
    of_files(files, names, config.cache.as_deref(), config.bad_files, config.threads)
}

/// The validation images, in the order of their names.
fn validation(val: &Path, classes: &[String]) -> Result<Vec<ImageFile>> {
    let number: BTreeMap<&str, i64> = classes.iter().enumerate().map(|(i, c)| (c.as_str(), i as i64)).collect();
    let path = val.join("val_annotations.txt");
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path, "cannot read"))?;
    let mut files = Vec::new();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |what: String| Error::data(&path, None, format!("line {}: {what}", index + 1));
        let mut fields = line.split('\t');
        let (Some(name), Some(wnid)) = (fields.next(), fields.next()) else {
            return Err(wrong("expected the file's name, a tab and its class".into()));
        };
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(wrong(format!("`{name}` is no name of an image")));
        }
        let label = *number.get(wnid).ok_or_else(|| wrong(format!("`{wnid}` is no folder of train")))?;
        files.push(ImageFile { path: Path::new("images").join(name), label });
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let distinct: BTreeSet<_> = files.iter().map(|f| &f.path).collect();
    if files.is_empty() || distinct.len() != files.len() {
        return Err(Error::data(&path, None, "expected a line for each image, found none, or two for one"));
    }
    let folder = val.join("images");
    for entry in std::fs::read_dir(&folder).map_err(Error::io(&folder, "cannot list"))? {
        let name = entry.map_err(Error::io(&folder, "cannot list"))?.file_name();
        let image = Path::new(&name).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("jpeg"));
        if image && !distinct.contains(&Path::new("images").join(&name)) {
            return Err(Error::data(
                &path,
                None,
                format!("no line for {}; expected one for each image", name.display()),
            ));
        }
    }
    Ok(files)
}

/// The words of the classes, where there is a file of them; else their WordNet numbers.
fn class_names(path: &Path, classes: Vec<String>) -> Result<Vec<String>> {
    if !path.is_file() {
        return Ok(classes);
    }
    let text = std::fs::read_to_string(path).map_err(Error::io(path, "cannot read"))?;
    let words: BTreeMap<&str, &str> = text.lines().filter_map(|line| line.split_once('\t')).collect();
    let name =
        |class: String| words.get(class.as_str()).map_or_else(|| class.clone(), |words| words.trim().to_string());
    Ok(classes.into_iter().map(name).collect())
}
