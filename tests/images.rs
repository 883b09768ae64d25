//! Image files of many kinds against Pillow's pixels, damaged files, and the cache of decoded images.

use crate::data::image;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use weince::Error;
use weince::augment::Planes;
use weince::config::data::{BOMB_PIXELS, BadFiles, DataConfig, FolderConfig};
use weince::data::{ImageSet, Split, eval_batches, load};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/images")
}

fn index() -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(golden().join("index.json")).unwrap()).unwrap()
}

fn folder(root: &Path, train: &str) -> FolderConfig {
    FolderConfig {
        root: root.into(),
        train: train.into(),
        test: "val".into(),
        cache: None,
        bad_files: BadFiles::Error,
        exif_orientation: false,
        max_pixels: BOMB_PIXELS,
        threads: 2,
    }
}

fn names_of(set: &ImageSet, root: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(root).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| !name.ends_with(".json") && !name.ends_with(".safetensors") && !name.ends_with(".md"));
    names.sort();
    assert_eq!(names.len(), set.len());
    names
}

/// The greatest difference of two images, and its mean.
fn assert_same(ours: &Planes, theirs: TensorView, name: &str) {
    assert_eq!([ours.channels, ours.height, ours.width], theirs.shape(), "{name}");
    let differing = ours.bytes.iter().zip(theirs.data()).filter(|(a, b)| a != b).count();
    assert!(differing == 0, "{name}: {differing} of {} numbers differ", ours.bytes.len());
}

#[test]
fn every_kind_of_file_becomes_what_pillow_makes_of_it() {
    let file = std::fs::read(golden().join("expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&file).unwrap();
    let set = load(&DataConfig::Folder(folder(golden().parent().unwrap(), "images")), Split::Pretrain).unwrap();
    for (number, name) in names_of(&set, &golden()).iter().enumerate() {
        let theirs = expected.tensor(name).unwrap();
        assert_same(&image(&set, number), theirs, name);
    }
}

#[test]
fn exif_orientation_turns_images_where_it_is_asked_for() {
    let file = std::fs::read(golden().join("expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&file).unwrap();
    let config = FolderConfig { exif_orientation: true, ..folder(golden().parent().unwrap(), "images") };
    let set = load(&DataConfig::Folder(config), Split::Pretrain).unwrap();
    let names = names_of(&set, &golden());
    let turned = index()["exif"].as_array().unwrap().clone();
    assert_eq!(turned.len(), 11);
    for name in turned.iter().map(|name| name.as_str().unwrap()) {
        let theirs = expected.tensor(&format!("upright.{name}")).unwrap();
        let number = names.iter().position(|n| n == name).unwrap();
        assert_same(&image(&set, number), theirs, name);
    }
}

#[test]
fn evaluation_shows_the_central_part_as_torchvision_does() {
    let file = std::fs::read(golden().join("expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&file).unwrap();
    for name in index()["fits"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()) {
        let source = expected.tensor(&format!("fit.{name}.in")).unwrap();
        let theirs = expected.tensor(&format!("fit.{name}.out")).unwrap();
        let (height, width, size) = (source.shape()[1], source.shape()[2], theirs.shape()[1]);
        let root = tempfile::tempdir().unwrap();
        write_ppm(&root.path().join("1.ppm"), height, width, source.data());
        let set = load(&DataConfig::Folder(folder(root.path(), ".")), Split::Pretrain).unwrap();
        let batch = eval_batches(&set, size, None, 1).unwrap().next().unwrap().unwrap();
        let ours: Vec<f32> = batch.images.flatten(0, -1).try_into().unwrap();
        let most = ours.iter().zip(theirs.data()).map(|(a, b)| (a * 255.0 - f32::from(*b)).abs()).fold(0.0, f32::max);
        assert!(most < 1e-3, "{name}: {most}");
    }
}

/// A PPM of planes.
fn write_ppm(path: &Path, height: usize, width: usize, planes: &[u8]) {
    let area = height * width;
    let mut file = format!("P6\n{width} {height}\n255\n").into_bytes();
    file.extend((0..area).flat_map(|i| [planes[i], planes[area + i], planes[2 * area + i]]));
    std::fs::write(path, file).unwrap();
}

/// A tree of two classes for training and test, four images of changing size each.
fn tree() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (split, shade) in [("train", 10), ("val", 100)] {
        for (class, more) in [("cat", 0), ("dog", 50)] {
            let folder = root.path().join(split).join(class);
            std::fs::create_dir_all(&folder).unwrap();
            for i in 0..4 {
                let (h, w) = (12 + i, 17 - i);
                let planes: Vec<u8> = (0..3 * h * w).map(|p| (shade + more + 7 * i + p % 11) as u8).collect();
                write_ppm(&folder.join(format!("{i}.ppm")), h, w, &planes);
            }
        }
    }
    root
}

fn load_tree(config: &FolderConfig, split: Split) -> Result<ImageSet, Error> {
    load(&DataConfig::Folder(config.clone()), split)
}

fn all_images(set: &ImageSet) -> Vec<Planes> {
    (0..set.len()).map(|i| image(set, i)).collect()
}

#[test]
fn a_tree_is_read_with_its_classes() {
    let root = tree();
    let config = folder(root.path(), "train");
    let (train, test) = (load_tree(&config, Split::Train).unwrap(), load_tree(&config, Split::Test).unwrap());
    assert_eq!((train.labels.as_slice(), train.classes), ([0, 0, 0, 0, 1, 1, 1, 1].as_slice(), 2));
    assert_eq!((train.class_names.as_slice(), train.shape()), (["cat".to_string(), "dog".into()].as_slice(), None));
    assert_eq!((image(&train, 5).height, image(&train, 5).width), (13, 16));
    assert_ne!(image(&train, 0), image(&test, 0));
    assert_ne!(train.sha256().unwrap(), test.sha256().unwrap());
    std::fs::create_dir(root.path().join("val/bird")).unwrap();
    std::fs::copy(root.path().join("val/cat/0.ppm"), root.path().join("val/bird/0.ppm")).unwrap();
    let e = load_tree(&config, Split::Test).unwrap_err().to_string();
    assert!(e.contains("bird") && e.contains("1 of its 3"), "{e}");
    let e = load_tree(&folder(root.path(), "trian"), Split::Train).unwrap_err().to_string();
    assert!(e.contains("trian") && e.contains("data.train"), "{e}");
}

/// Files that are no whole images, with a part of the reason.
fn damage(folder: &Path) -> Vec<(PathBuf, &'static str)> {
    let whole = |name: &str| std::fs::read(golden().join(name)).unwrap();
    let half = |name: &str| whole(name)[..whole(name).len() / 2].to_vec();
    let mut cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty.jpg", vec![], "empty"),
        ("page.jpg", b"<html><body>404</body></html>".to_vec(), "begins with 3c 68 74 6d"),
        ("text.png", b"x".to_vec(), "begins with 78"),
        ("vector.png", b"<svg xmlns=\"http://www.w3.org/2000/svg\"/>".to_vec(), "begins with 3c"),
        ("head.png", whole("rgb.png")[..20].to_vec(), "no whole PNG"),
        ("colour.png", [&whole("rgb.png")[..25], &[9], &whole("rgb.png")[26..]].concat(), "no whole PNG"),
    ];
    for name in [
        "rgb_420.jpg",
        "progressive.jpg",
        "l.jpg",
        "rgb.png",
        "p.png",
        "rgb.webp",
        "lossy.webp",
        "rgb.bmp",
        "rgb.gif",
        "rgb_raw.tif",
        "rgb_tiff_lzw.tif",
        "p4.tif",
        "rgb.ppm",
    ] {
        cases.push((name, half(name), "no whole"));
    }
    // All pixels, but not the end; colours as CIELAB.
    let endless = whole("rgb_444.jpg");
    cases.push(("endless.jpg", endless[..endless.len() - 1].to_vec(), "end marker is missing"));
    let mut lab = whole("rgb_raw.tif");
    let photometric = lab.windows(10).position(|bytes| bytes == [6, 1, 3, 0, 1, 0, 0, 0, 2, 0]).unwrap();
    lab[photometric + 8] = 8;
    cases.push(("lab.tif", lab, "a kind of TIFF image"));
    // Black at half the resolution of cyan: the first component's sampling factors in the frame's header.
    let mut half_black = whole("cmyk.jpg");
    let frame = half_black.windows(2).position(|bytes| bytes == [0xff, 0xc0]).unwrap();
    half_black[frame + 11] = 0x22;
    cases.push(("half_black.jpg", half_black, "a kind of JPEG image: planes of resolutions 2x2, 1x1, 1x1, 1x1"));
    // A header that says 60,000 x 60,000 pixels, with a right checksum.
    let mut bomb = whole("rgb.png");
    bomb[16..24].copy_from_slice(&[0, 0, 0xea, 0x60, 0, 0, 0xea, 0x60]);
    let crc = crc32fast::hash(&bomb[12..29]).to_be_bytes();
    bomb[29..33].copy_from_slice(&crc);
    cases.push(("bomb.png", bomb, "60000 x 60000"));
    cases
        .into_iter()
        .map(|(name, bytes, reason)| {
            std::fs::write(folder.join(format!("bad_{name}")), bytes).unwrap();
            (folder.join(format!("bad_{name}")), reason)
        })
        .collect()
}

#[test]
fn damaged_files_are_named_or_left_out() {
    let root = tree();
    let clean = load_tree(&folder(root.path(), "train"), Split::Train).unwrap();
    let cases = damage(&root.path().join("train/cat"));
    std::os::unix::fs::symlink("nowhere", root.path().join("train/cat/link.png")).unwrap();

    // Each alone is named by the error.
    let set = load_tree(&folder(root.path(), "train"), Split::Train).unwrap();
    for index in 0..set.len() {
        let e = match set.image(index, &mut Default::default()) {
            Ok(_) => continue,
            Err(e) => e.to_string(),
        };
        let known = cases.iter().find(|(path, _)| e.contains(path.to_str().unwrap()));
        match known {
            Some((_, reason)) => assert!(e.contains(reason) && e.contains("data.bad_files: skip"), "{e}"),
            None => assert!(e.contains("link.png") && e.contains("cannot open"), "{e}"),
        }
    }

    let config = FolderConfig { bad_files: BadFiles::Skip, ..folder(root.path(), "train") };
    let set = load_tree(&config, Split::Train).unwrap();
    assert_eq!(set.bad_files.len(), cases.len() + 1);
    for bad in &set.bad_files {
        let known = cases.iter().find(|(path, _)| *path == bad.path);
        assert!(known.is_none_or(|(_, reason)| bad.reason.contains(reason)), "{bad:?}");
    }
    assert_eq!((set.labels.clone(), all_images(&set)), (clean.labels.clone(), all_images(&clean)));
    assert_eq!(set.sha256().unwrap(), clean.sha256().unwrap());

    let cache = tempfile::tempdir().unwrap();
    let cached = FolderConfig { cache: Some(cache.path().into()), ..config.clone() };
    for _ in 0..2 {
        let again = load_tree(&cached, Split::Train).unwrap();
        assert_eq!(again.bad_files, set.bad_files);
        assert_eq!((again.labels.clone(), all_images(&again)), (clean.labels.clone(), all_images(&clean)));
    }
    // The same cache without the permission to leave files out.
    let strict = FolderConfig { bad_files: BadFiles::Error, ..cached };
    let e = load_tree(&strict, Split::Train).unwrap_err().to_string();
    assert!(e.contains("train/cat/bad_") && e.contains("data.bad_files: skip"), "{e}");

    let none = tempfile::tempdir().unwrap();
    damage(none.path());
    let e =
        load_tree(&FolderConfig { root: none.path().into(), train: ".".into(), ..config }, Split::Train).unwrap_err();
    assert!(e.to_string().contains("none of 23 files is a whole image"), "{e}");
}

#[test]
fn a_limit_of_pixels_is_kept() {
    let config = FolderConfig { max_pixels: 13 * 16, ..folder(tree().path(), "train") };
    let root = tree();
    let config = FolderConfig { root: root.path().into(), ..config };
    let set = load_tree(&config, Split::Train).unwrap();
    assert!(set.image(0, &mut Default::default()).is_ok() && set.image(1, &mut Default::default()).is_ok());
    let e = set.image(2, &mut Default::default()).unwrap_err().to_string();
    assert!(e.contains("15 x 14 pixels") && e.contains("data.max_pixels"), "{e}");
}

#[test]
fn the_cache_gives_the_same_images_until_the_files_change() {
    let root = tree();
    let plain = load_tree(&folder(root.path(), "train"), Split::Train).unwrap();
    let original = all_images(&plain);
    plain.sha256().unwrap();
    let place = tempfile::tempdir().unwrap();
    let config = FolderConfig { cache: Some(place.path().join("new/folder")), ..folder(root.path(), "train") };
    let files = || -> Vec<(PathBuf, std::time::SystemTime)> {
        let entries = std::fs::read_dir(place.path().join("new/folder")).unwrap().map(|e| e.unwrap().path());
        let mut files: Vec<_> = entries
            .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
            .map(|p| (p.clone(), p.metadata().unwrap().modified().unwrap()))
            .collect();
        files.sort();
        files
    };
    let first = load_tree(&config, Split::Train).unwrap();
    let made = files();
    assert!(made.len() == 1 && all_images(&first) == original);
    assert_eq!((first.labels.as_slice(), first.sha256().unwrap()), (plain.labels.as_slice(), plain.sha256().unwrap()));

    // Used again as it is, also when a file's time changes and its content does not.
    let touched = root.path().join("train/cat/1.ppm");
    std::fs::write(&touched, std::fs::read(&touched).unwrap()).unwrap();
    let second = load_tree(&config, Split::Train).unwrap();
    assert!(files() == made && all_images(&second) == original);

    // Another content of the same length.
    let mut bytes = std::fs::read(&touched).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&touched, &bytes).unwrap();
    let third = load_tree(&config, Split::Train).unwrap();
    assert!(files() != made && image(&third, 1) != original[1]);
    assert_ne!(third.sha256().unwrap(), plain.sha256().unwrap());
    // The mapped older one is still whole.
    assert!(all_images(&second) == original);

    // Damage, other settings, other files.
    let path = files()[0].0.clone();
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 10]).unwrap();
    assert!(all_images(&load_tree(&config, Split::Train).unwrap()) == all_images(&third));
    load_tree(&FolderConfig { exif_orientation: true, ..config.clone() }, Split::Train).unwrap();
    load_tree(&config, Split::Test).unwrap();
    assert_eq!(files().len(), 3);
    std::fs::remove_file(root.path().join("train/dog/3.ppm")).unwrap();
    assert_eq!(load_tree(&config, Split::Train).unwrap().len(), 7);
}
