//! Data files of good and bad kinds, the loader's determinism, and evaluation batches.

use flate2::{Compression, write::GzEncoder};
use safetensors::SafeTensors;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use tch::Tensor;
use weince::Error;
use weince::augment::Planes;
use weince::config::augment::{AugmentConfig, BlurConfig, NormalizeConfig};
use weince::config::data::{CifarConfig, DataConfig, IdxConfig, SyntheticConfig};
use weince::data::{Batch, Decoder, ImageSet, Loader, Position, Sampler, Split, eval_batches, load};

fn idx(root: &Path) -> DataConfig {
    DataConfig::Idx(IdxConfig { root: root.into(), classes: 10, threads: 2 })
}

/// An IDX file: magic number, dimensions, values.
fn idx_file(magic: u32, dims: &[u32], values: &[u8]) -> Vec<u8> {
    let mut file = magic.to_be_bytes().to_vec();
    dims.iter().for_each(|d| file.extend(d.to_be_bytes()));
    file.extend_from_slice(values);
    file
}

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn images() -> Vec<u8> {
    idx_file(0x803, &[3, 4, 5], &(0..60).collect::<Vec<u8>>())
}

fn labels() -> Vec<u8> {
    idx_file(0x801, &[3], &[7, 0, 9])
}

/// Loads a training split from these two files.
fn load_idx(images: &[u8], labels: &[u8]) -> Result<ImageSet, Error> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("train-images-idx3-ubyte"), images).unwrap();
    std::fs::write(folder.path().join("train-labels-idx1-ubyte"), labels).unwrap();
    load(&idx(folder.path()), Split::Train)
}

#[test]
fn idx_files_load_packed_or_not_under_their_usual_names() {
    let mut hashes = Vec::new();
    for (image_name, label_name, packed) in [
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", false),
        ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", true),
        ("train-images.idx3-ubyte", "train-labels.idx1-ubyte", false),
        // Some mirrors unpack without renaming.
        ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let pack = |bytes: Vec<u8>| if packed { gz(&bytes) } else { bytes };
        std::fs::write(folder.path().join(image_name), pack(images())).unwrap();
        std::fs::write(folder.path().join(label_name), pack(labels())).unwrap();
        let set = load(&idx(folder.path()), Split::Train).unwrap();
        assert_eq!((set.len(), set.shape(), set.classes), (3, Some([4, 5]), 10));
        assert_eq!(image(&set, 0).channels, 1);
        assert_eq!(set.labels, [7, 0, 9]);
        assert!(image(&set, 1).bytes.iter().copied().eq(20..40));
        hashes.push(set.sha256().unwrap().to_string());
    }
    assert!(hashes.iter().all(|hash| *hash == hashes[0] && hash.len() == 64), "{hashes:?}");
}

#[test]
fn the_test_split_has_names_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t10k-images-idx3-ubyte"), images()).unwrap();
    std::fs::write(folder.path().join("t10k-labels-idx1-ubyte"), labels()).unwrap();
    assert_eq!(load(&idx(folder.path()), Split::Test).unwrap().len(), 3);
    let e = load(&idx(folder.path()), Split::Train).unwrap_err().to_string();
    assert!(e.contains("train-images-idx3-ubyte.gz") && e.contains("fetch_data.py"), "{e}");
}

#[test]
fn damaged_idx_files_are_refused_with_the_place() {
    let long = |extra: &[u8]| [images(), extra.to_vec()].concat();
    let packed = gz(&images());
    let mut flipped = packed.clone();
    let checksum = flipped.len() - 8;
    flipped[checksum] ^= 1;
    /// Name, images, labels, parts of the message.
    type Case = (&'static str, Vec<u8>, Vec<u8>, &'static [&'static str]);
    let cases: Vec<Case> = vec![
        ("empty", vec![], labels(), &["byte 0", "00000803"]),
        ("no idx", b"\x89PNG\r\n\x1a\n".to_vec(), labels(), &["byte 0", "00000803", "found 89504e47"]),
        ("labels as images", labels(), labels(), &["byte 0", "three dimensions", "found 00000801"]),
        ("images as labels", images(), images(), &["train-labels", "byte 0", "found 00000803"]),
        ("floats", idx_file(0xd03, &[3, 4, 5], &[0; 240]), labels(), &["byte 0", "found 00000d03"]),
        ("colour", idx_file(0x804, &[3, 3, 4, 5], &[0; 180]), labels(), &["byte 0", "found 00000804"]),
        ("short header", images()[..9].to_vec(), labels(), &["byte 9", "header"]),
        ("cut short", images()[..70].to_vec(), labels(), &["byte 4", "3 x 4 x 5 = 60", "room for 54"]),
        ("too long", long(&[1]), labels(), &["byte 76", "expected the end"]),
        ("no image", idx_file(0x803, &[0, 4, 5], &[]), labels(), &["byte 4", "at least one image"]),
        ("no row", idx_file(0x803, &[3, 0, 5], &[]), labels(), &["byte 4", "3 x 0 x 5"]),
        ("huge claim", idx_file(0x803, &[u32::MAX; 3], &[0; 60]), labels(), &["byte 4", "4294967295 x", "room for 60"]),
        ("huge claim, packed", gz(&idx_file(0x803, &[1 << 20, 1000, 5], &[0; 60])), labels(), &["byte 4", "room for"]),
        ("wide", idx_file(0x803, &[1, 1, 5000], &[0; 5000]), labels(), &["1 x 5000 pixels", "4096"]),
        ("packed, cut short", packed[..packed.len() - 12].to_vec(), labels(), &["gzip", "fetch the file again"]),
        ("packed, bad checksum", flipped, labels(), &["byte 76", "gzip"]),
        ("packed, too long", gz(&long(&[1])), labels(), &["byte 76", "expected the end"]),
        ("packed, then rubbish", [packed.clone(), b"rubbish".to_vec()].concat(), labels(), &["byte 76", "gzip"]),
        ("claim beyond the content", gz(&idx_file(0x803, &[3, 4, 6], &[0; 60])), labels(), &["byte 76", "after 60 of"]),
        ("fewer labels", images(), idx_file(0x801, &[2], &[1, 2]), &["train-labels", "2 labels", "3 images"]),
        (
            "label of no class",
            images(),
            idx_file(0x801, &[3], &[1, 10, 2]),
            &["byte 9", "label 10 of image 1", "0 to 9"],
        ),
    ];
    for (name, images, labels, parts) in cases {
        let e = load_idx(&images, &labels).expect_err(name);
        assert!(e.exit_code() == 1 && parts.iter().all(|part| e.to_string().contains(part)), "{name}: {e}");
    }
}

#[test]
fn more_classes_can_be_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("train-images-idx3-ubyte"), images()).unwrap();
    std::fs::write(folder.path().join("train-labels-idx1-ubyte"), idx_file(0x801, &[3], &[46, 0, 1])).unwrap();
    let config = DataConfig::Idx(IdxConfig { root: folder.path().into(), classes: 47, threads: 2 });
    let set = load(&config, Split::Train).unwrap();
    assert_eq!((set.labels, set.classes), (vec![46, 0, 1], 47));
}

#[test]
fn a_missing_folder_is_named() {
    let e = load(&idx(Path::new("/nowhere/at/all")), Split::Train).unwrap_err().to_string();
    assert!(e.contains("/nowhere/at/all") && e.contains("no such folder") && e.contains("data.root"), "{e}");
}

/// CIFAR records: label bytes, then pixels that name the record.
fn records(labels: &[&[u8]]) -> Vec<u8> {
    labels.iter().enumerate().flat_map(|(i, head)| [head.to_vec(), vec![i as u8; 3072]].concat()).collect()
}

fn cifar_10(root: &Path) -> DataConfig {
    DataConfig::Cifar10(CifarConfig { root: root.into(), threads: 2 })
}

fn cifar_100(root: &Path) -> DataConfig {
    DataConfig::Cifar100(CifarConfig { root: root.into(), threads: 2 })
}

#[test]
fn cifar_10_joins_its_five_files() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("cifar-10-batches-bin");
    std::fs::create_dir(&folder).unwrap();
    for i in 1..=5 {
        std::fs::write(folder.join(format!("data_batch_{i}.bin")), records(&[&[i], &[i + 4]])).unwrap();
    }
    std::fs::write(folder.join("batches.meta.txt"), "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n\n").unwrap();
    let set = load(&cifar_10(root.path()), Split::Train).unwrap();
    assert_eq!(set.labels, [1, 5, 2, 6, 3, 7, 4, 8, 5, 9]);
    assert_eq!((set.shape(), set.classes), (Some([32, 32]), 10));
    assert_eq!((image(&set, 3).bytes[0], set.class_names.len(), set.class_names[9].as_str()), (1, 10, "j"));
    // The folder itself will do as root.
    assert_eq!(load(&cifar_10(&folder), Split::Train).unwrap().sha256().unwrap(), set.sha256().unwrap());
    std::fs::write(folder.join("data_batch_4.bin"), records(&[&[4]])).unwrap();
    let e = load(&cifar_10(root.path()), Split::Train).unwrap_err().to_string();
    assert!(e.contains("data_batch_4.bin, byte 3073") && e.contains("1 records; expected 2"), "{e}");
    std::fs::remove_file(folder.join("data_batch_4.bin")).unwrap();
    let e = load(&cifar_10(root.path()), Split::Train).unwrap_err().to_string();
    assert!(e.contains("data_batch_4.bin") && e.contains("cifar-10-batches-bin"), "{e}");
}

#[test]
fn cifar_100_takes_the_fine_label() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("cifar-100-binary");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("test.bin"), records(&[&[19, 99], &[0, 3]])).unwrap();
    let set = load(&cifar_100(root.path()), Split::Test).unwrap();
    assert_eq!((set.labels.as_slice(), set.classes, set.class_names.len()), ([99, 3].as_slice(), 100, 0));
    assert!(image(&set, 1).bytes == [1; 3072]);
}

#[test]
fn damaged_cifar_files_are_refused_with_the_place() {
    let root = tempfile::tempdir().unwrap();
    let refuse = |bytes: &[u8], parts: &[&str]| {
        std::fs::write(root.path().join("test.bin"), bytes).unwrap();
        let e = load(&cifar_100(root.path()), Split::Test).unwrap_err();
        assert!(e.exit_code() == 1 && parts.iter().all(|part| e.to_string().contains(part)), "{e}");
    };
    let good = records(&[&[0, 0], &[1, 1]]);
    refuse(&good[..good.len() - 5], &["test.bin", "byte 3074", "6143 bytes", "3074"]);
    refuse(&[], &["0 bytes"]);
    refuse(&records(&[&[0, 0], &[1, 100]]), &["byte 3075", "label 100 of image 1", "0 to 99"]);
    refuse(&records(&[&[20, 0]]), &["byte 0", "label 20 of image 0", "0 to 19"]);
    std::fs::write(root.path().join("test.bin"), &good).unwrap();
    std::fs::write(root.path().join("fine_label_names.txt"), "one\ntwo\n").unwrap();
    let e = load(&cifar_100(root.path()), Split::Test).unwrap_err().to_string();
    assert!(e.contains("2 names") && e.contains("100"), "{e}");
}

/// A copy of an image of a set.
pub fn image(set: &ImageSet, index: usize) -> Planes {
    let mut decoder = Decoder::default();
    let image = set.image(index, &mut decoder).unwrap();
    Planes { channels: image.channels, height: image.height, width: image.width, bytes: image.bytes.to_vec() }
}

fn synthetic(train: usize, size: usize) -> ImageSet {
    let config = DataConfig::Synthetic(SyntheticConfig { classes: 10, train, test: 200, size, seed: 4, threads: 2 });
    load(&config, Split::Train).unwrap()
}

#[test]
fn the_synthetic_set_is_fixed_and_its_classes_can_be_told_apart() {
    let config =
        DataConfig::Synthetic(SyntheticConfig { classes: 10, train: 400, test: 200, size: 16, seed: 4, threads: 2 });
    let (train, test) = (load(&config, Split::Train).unwrap(), load(&config, Split::Test).unwrap());
    assert_eq!(train.sha256().unwrap(), synthetic(400, 16).sha256().unwrap());
    assert_ne!(image(&train, 0), image(&test, 0));
    assert_eq!((train.len(), test.len()), (400, 200));
    let pixels: Vec<Vec<u8>> = (0..train.len()).map(|i| image(&train, i).bytes).collect();
    let image_of = |i: usize| &pixels[i];
    let nearest = |wanted: &[u8]| {
        let distance =
            |i: &usize| -> u64 { image_of(*i).iter().zip(wanted).map(|(a, b)| u64::from(a.abs_diff(*b)).pow(2)).sum() };
        train.labels[(0..train.len()).min_by_key(distance).unwrap()]
    };
    let right = (0..test.len()).filter(|i| nearest(&image(&test, *i).bytes) == test.labels[*i]).count();
    // The stripes' phase is random, so that raw pixels do better than chance (20 of 200) without giving everything away.
    assert!(right > 100, "{right} of 200");
}

fn collect(set: &Arc<ImageSet>, start: Position, epochs: u64, threads: usize) -> Vec<Batch> {
    let augment = AugmentConfig { blur: Some(BlurConfig::default()), ..AugmentConfig::default() };
    let sampler = Sampler::new(set.len(), 8, 42).unwrap();
    Loader::new(Arc::clone(set), &augment, sampler, start, epochs, threads).unwrap().map(Result::unwrap).collect()
}

fn same(a: &Batch, b: &Batch) -> bool {
    (a.epoch, a.step_in_epoch, &a.indices) == (b.epoch, b.step_in_epoch, &b.indices)
        && a.view_1 == b.view_1
        && a.view_2 == b.view_2
        && a.labels == b.labels
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let set = Arc::new(synthetic(37, 16));
    let one = collect(&set, Position::default(), 3, 1);
    // Four full batches of an epoch; 5 of 37 samples are left out.
    assert_eq!(one.iter().map(|b| (b.epoch, b.step_in_epoch)).collect::<Vec<_>>().len(), 12);
    for (i, batch) in one.iter().enumerate() {
        assert_eq!((batch.epoch, batch.step_in_epoch), (i as u64 / 4, i as u64 % 4));
        assert_eq!(batch.view_1.size(), [8, 3, 16, 16]);
        assert_eq!(batch.view_2.size(), [8, 3, 16, 16]);
        let labels: Vec<i64> = batch.indices.iter().map(|index| index % 10).collect();
        assert_eq!(batch.labels, Tensor::from_slice(&labels));
        assert!(batch.view_1 != batch.view_2);
        assert!(batch.view_1.min().double_value(&[]) >= 0.0 && batch.view_1.max().double_value(&[]) <= 1.0);
    }
    for threads in [2, 3, 7, 40] {
        let many = collect(&set, Position::default(), 3, threads);
        assert!(many.len() == one.len() && many.iter().zip(&one).all(|(a, b)| same(a, b)), "{threads} threads");
    }
}

#[test]
fn a_run_can_be_taken_up_at_any_step() {
    let set = Arc::new(synthetic(37, 16));
    let all = collect(&set, Position::default(), 3, 2);
    for from in [1, 3, 4, 7, 11] {
        let start = Sampler::new(37, 8, 42).unwrap().position(from);
        let rest = collect(&set, start, 3, 2);
        assert!(rest.len() as u64 == 12 - from && rest.iter().zip(&all[from as usize..]).all(|(a, b)| same(a, b)));
    }
    assert!(collect(&set, Position { epoch: 3, step: 0 }, 3, 2).is_empty());
    // Each epoch sees other samples in another order, with other views.
    assert_ne!(all[0].indices, all[4].indices);
}

#[test]
fn a_view_depends_on_its_sample_and_not_on_its_batch() {
    let set = Arc::new(synthetic(24, 16));
    let views = |batch: usize| {
        let sampler = Sampler::new(24, batch, 42).unwrap();
        let loader =
            Loader::new(Arc::clone(&set), &AugmentConfig::default(), sampler, Position::default(), 1, 2).unwrap();
        let batches: Vec<Batch> = loader.map(Result::unwrap).collect();
        Tensor::cat(&batches.iter().map(|b| &b.view_2).collect::<Vec<_>>(), 0)
    };
    assert_eq!(views(4), views(12));
}

#[test]
fn a_loader_can_be_dropped_at_any_time() {
    let set = Arc::new(synthetic(64, 16));
    for taken in [0, 1, 5] {
        let sampler = Sampler::new(64, 8, 1).unwrap();
        let mut loader =
            Loader::new(Arc::clone(&set), &AugmentConfig::default(), sampler, Position::default(), u64::MAX >> 8, 3)
                .unwrap();
        assert_eq!(loader.by_ref().take(taken).filter(Result::is_ok).count(), taken);
    }
    // The threads are gone: this is the only owner of the set.
    assert_eq!(Arc::strong_count(&set), 1);
}

#[test]
fn impossible_loaders_are_refused() {
    let set = Arc::new(synthetic(64, 16));
    let new = |samples, threads| {
        let sampler = Sampler::new(samples, 8, 1).unwrap();
        Loader::new(Arc::clone(&set), &AugmentConfig::default(), sampler, Position::default(), 1, threads)
            .err()
            .unwrap()
    };
    assert!(new(64, 0).exit_code() == 2 && new(64, 0).to_string().contains("data.threads: 0"));
    assert!(new(63, 1).to_string().contains("63 samples"));
}

#[test]
fn evaluation_sees_every_image_once_as_it_is() {
    let set = synthetic(21, 16);
    let batches: Vec<_> = eval_batches(&set, 16, None, 8).unwrap().map(Result::unwrap).collect();
    assert_eq!(batches.iter().map(|b| (b.first, b.images.size()[0])).collect::<Vec<_>>(), [(0, 8), (8, 8), (16, 5)]);
    let images = Tensor::cat(&batches.iter().map(|b| &b.images).collect::<Vec<_>>(), 0);
    let pixels: Vec<u8> = (0..21).flat_map(|i| image(&set, i).bytes).collect();
    let bytes = Tensor::from_slice(&pixels).view([21, 3, 16, 16]);
    assert_eq!(images, bytes.to_kind(tch::Kind::Float) / 255.0);
    let labels = Tensor::cat(&batches.iter().map(|b| &b.labels).collect::<Vec<_>>(), 0);
    assert_eq!(labels, Tensor::from_slice(&set.labels));

    let normalize = NormalizeConfig { mean: [0.5, 0.4, 0.3], std: [0.2, 0.25, 0.3] };
    let normal = eval_batches(&set, 16, Some(&normalize), 21).unwrap().next().unwrap().unwrap().images;
    let column = |values: [f32; 3]| Tensor::from_slice(&values).view([1, 3, 1, 1]);
    assert_eq!(normal, (images - column(normalize.mean)) / column(normalize.std));
    assert_eq!(eval_batches(&set, 16, None, 0).unwrap_err().exit_code(), 2);
}

#[test]
fn evaluation_resizes_grey_images_as_torchvision_does() {
    // The golden file's resize of a grey image of 28 x 28 to 32 x 32.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/augment");
    let index: serde_json::Value = serde_json::from_slice(&std::fs::read(folder.join("index.json")).unwrap()).unwrap();
    let is_it = |case: &&serde_json::Value| case["op"] == "crop" && case["in"] == "in.grey_28x28" && case["size"] == 32;
    let case = index["cases"].as_array().unwrap().iter().find(is_it).unwrap();
    let file = std::fs::read(folder.join("operations.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let bytes = |key: &str| tensors.tensor(case[key].as_str().unwrap()).unwrap().data().to_vec();

    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join("t10k-images-idx3-ubyte"), idx_file(0x803, &[1, 28, 28], &bytes("in"))).unwrap();
    std::fs::write(root.path().join("t10k-labels-idx1-ubyte"), idx_file(0x801, &[1], &[0])).unwrap();
    let set = load(&idx(root.path()), Split::Test).unwrap();
    let images = eval_batches(&set, 32, None, 8).unwrap().next().unwrap().unwrap().images;
    let expected = Tensor::from_slice(&bytes("out")).view([1, 3, 32, 32]).to_kind(tch::Kind::Float) / 255.0;
    assert_eq!(images, expected);
}
