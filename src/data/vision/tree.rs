//! The files of a folder tree with a folder for each class, in the order of torchvision's `ImageFolder`.

use super::files::{ImageFile, is_image_name};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Folders within folders; a link that leads back ends here, before the system stops to follow it (after 40).
const MAX_DEPTH: usize = 32;

/// What was found in a tree.
#[derive(Debug, PartialEq)]
pub(super) struct Tree {
    /// The files, class by class.
    pub files: Vec<ImageFile>,
    /// The names of the classes, sorted; none where the images lie in no class's folder.
    pub classes: Vec<String>,
}

/// Lists the images in `folder`: each folder in it is a class, sorted by name; the files of a class, in folders of any depth, are
/// sorted by the path of their folder, then by name. Files with other endings than those of images are passed over. A folder
/// that has images and no folder gives images without labels.
///
/// # Errors
/// No such folder, a class without an image, no image at all, and what the system refuses.
///
/// # Source
/// `torchvision.datasets.folder`: `find_classes`, `make_dataset`.
pub(super) fn list(folder: &Path) -> Result<Tree> {
    let classes = folders_in(folder)?;
    if classes.is_empty() {
        let mut files = Vec::new();
        walk(folder, Path::new(""), -1, 0, &mut files)?;
        if files.is_empty() {
            return Err(Error::data(
                folder,
                None,
                "has neither folders of classes nor images (.jpg, .jpeg, .png, .ppm, .bmp, .pgm, .tif, .tiff, .webp, .gif)",
            ));
        }
        return Ok(Tree { files: sorted(files), classes });
    }
    let mut all = Vec::new();
    let mut empty = Vec::new();
    for (label, class) in classes.iter().enumerate() {
        let mut files = Vec::new();
        walk(folder, Path::new(class), label as i64, 0, &mut files)?;
        if files.is_empty() {
            empty.push(class.as_str());
        }
        all.extend(sorted(files));
    }
    if !empty.is_empty() {
        return Err(Error::data(
            folder,
            None,
            format!(
                "every folder in it is a class, and {} of {} have no image (.jpg, .jpeg, .png, .ppm, .bmp, .pgm, .tif, .tiff, .webp, \
                 .gif): {}; remove such folders, or correct data.root, data.train and data.test",
                empty.len(),
                classes.len(),
                shown(&empty)
            ),
        ));
    }
    Ok(Tree { files: all, classes })
}

/// Gives the files of a tree the labels that its classes have in another list.
///
/// # Errors
/// A class that is not in the list.
pub(super) fn relabel(tree: &mut Tree, folder: &Path, classes: &[String]) -> Result<()> {
    let number: BTreeMap<&str, i64> = classes.iter().enumerate().map(|(i, c)| (c.as_str(), i as i64)).collect();
    let unknown: Vec<&str> = tree.classes.iter().map(String::as_str).filter(|c| !number.contains_key(c)).collect();
    if !unknown.is_empty() || (tree.classes.is_empty() != classes.is_empty()) {
        return Err(Error::data(
            folder,
            None,
            format!(
                "{} of its {} classes are not among the {} of the training images: {}; expected folders of the same names",
                unknown.len(),
                tree.classes.len(),
                classes.len(),
                shown(&unknown)
            ),
        ));
    }
    let new: Vec<i64> = tree.classes.iter().filter_map(|c| number.get(c.as_str()).copied()).collect();
    for file in tree.files.iter_mut().filter(|f| f.label >= 0) {
        file.label = new[file.label as usize];
    }
    Ok(())
}

/// The first few names of a list.
fn shown(names: &[&str]) -> String {
    let more = if names.len() > 5 { ", ..." } else { "" };
    format!("{}{more}", names[..names.len().min(5)].join(", "))
}

/// The names of the folders in a folder, sorted.
fn folders_in(folder: &Path) -> Result<Vec<String>> {
    if !folder.is_dir() {
        return Err(Error::data(
            folder,
            None,
            "no such folder; expected images here, in a folder for each class: set data.root, data.train and data.test",
        ));
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder, "cannot list"))? {
        let entry = entry.map_err(Error::io(folder, "cannot list"))?;
        if entry.path().is_dir() {
            let name = entry.file_name().into_string().map_err(|name| {
                Error::data(folder, None, format!("the folder {name:?} has a name that is no UTF-8; rename it"))
            })?;
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Collects the images in `top/within`, at any depth.
fn walk(top: &Path, within: &Path, label: i64, depth: usize, out: &mut Vec<ImageFile>) -> Result<()> {
    let folder = top.join(within);
    if depth > MAX_DEPTH {
        return Err(Error::data(
            folder,
            None,
            format!("is more than {MAX_DEPTH} folders deep; a link may lead back to a folder that it is in"),
        ));
    }
    for entry in std::fs::read_dir(&folder).map_err(Error::io(&folder, "cannot list"))? {
        let entry = entry.map_err(Error::io(&folder, "cannot list"))?;
        let kind = entry.file_type().map_err(Error::io(entry.path(), "cannot tell what it is"))?;
        let path = within.join(entry.file_name());
        // A link is what it leads to; one that leads nowhere is a file that cannot be opened.
        let is_dir = if kind.is_symlink() { entry.path().is_dir() } else { kind.is_dir() };
        if is_dir {
            walk(top, &path, label, depth + 1, out)?;
        } else if is_image_name(&path) && (kind.is_file() || kind.is_symlink()) {
            out.push(ImageFile { path, label });
        }
    }
    Ok(())
}

/// By the path of the folder, as text, then by name.
fn sorted(mut files: Vec<ImageFile>) -> Vec<ImageFile> {
    let key = |path: &PathBuf| {
        let folder = path.parent().unwrap_or(Path::new("")).as_os_str().as_bytes().to_vec();
        (folder, path.file_name().unwrap_or_default().as_bytes().to_vec())
    };
    files.sort_by_cached_key(|file| key(&file.path));
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(root: &Path, files: &[&str]) {
        for file in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "x").unwrap();
        }
    }

    #[test]
    fn files_come_in_torchvisions_order() {
        let root = tempfile::tempdir().unwrap();
        touch(
            root.path(),
            &[
                "b/2.jpg",
                "b/10.png",
                "b/Z.JPEG",
                "b/a/1.webp",
                "b/a-b/1.gif",
                "b/a/b/0.tif",
                "b/readme.txt",
                "B/x.bmp",
                "é/1.pgm",
                "stray.jpg",
            ],
        );
        let tree = list(root.path()).unwrap();
        // What torchvision 0.26's ImageFolder gives for this tree (its samples; it has no GIF).
        let expected = [
            ("B/x.bmp", 0),
            ("b/10.png", 1),
            ("b/2.jpg", 1),
            ("b/Z.JPEG", 1),
            ("b/a/1.webp", 1),
            ("b/a-b/1.gif", 1),
            ("b/a/b/0.tif", 1),
            ("é/1.pgm", 2),
        ];
        let mut expected: Vec<ImageFile> =
            expected.iter().map(|(p, label)| ImageFile { path: p.into(), label: *label }).collect();
        // "b/a" < "b/a-b" < "b/a/b", as '-' comes before '/'.
        expected.sort_by_key(|f| f.label);
        assert_eq!(tree.classes, ["B", "b", "é"]);
        assert_eq!(tree.files, expected);
    }

    #[test]
    fn folders_that_are_no_classes_are_named() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["a/1.jpg", ".ipynb_checkpoints/x.txt"]);
        let e = list(root.path()).unwrap_err().to_string();
        assert!(e.contains("1 of 2") && e.contains(".ipynb_checkpoints"), "{e}");
        let e = list(&root.path().join("none")).unwrap_err().to_string();
        assert!(e.contains("no such folder"), "{e}");
        let e = list(&root.path().join(".ipynb_checkpoints")).unwrap_err().to_string();
        assert!(e.contains("neither"), "{e}");
    }

    #[test]
    fn images_without_folders_have_no_label() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["2.jpg", "1.jpg"]);
        let tree = list(root.path()).unwrap();
        assert!(tree.classes.is_empty() && tree.files.iter().all(|f| f.label == -1));
        assert_eq!(tree.files[0].path, Path::new("1.jpg"));
    }

    #[test]
    fn links_are_followed_and_loops_refused() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["a/1.jpg"]);
        std::os::unix::fs::symlink(root.path().join("a"), root.path().join("b")).unwrap();
        assert_eq!(list(root.path()).unwrap().files.len(), 2);
        std::os::unix::fs::symlink(root.path().join("a"), root.path().join("a/again")).unwrap();
        let e = list(root.path()).unwrap_err().to_string();
        assert!(e.contains("folders deep"), "{e}");
    }

    #[test]
    fn test_classes_take_the_numbers_of_the_training_classes() {
        let root = tempfile::tempdir().unwrap();
        touch(root.path(), &["train/a/1.jpg", "train/b/1.jpg", "train/c/1.jpg", "val/c/1.jpg", "val/b/1.jpg"]);
        let train = list(&root.path().join("train")).unwrap();
        let mut val = list(&root.path().join("val")).unwrap();
        relabel(&mut val, root.path(), &train.classes).unwrap();
        assert_eq!(val.files.iter().map(|f| f.label).collect::<Vec<_>>(), [1, 2]);
        let e =
            relabel(&mut list(&root.path().join("val")).unwrap(), root.path(), &["a".into(), "b".into()]).unwrap_err();
        assert!(e.to_string().contains(": c;"), "{e}");
    }
}
