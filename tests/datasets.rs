//! The official formats of the published data sets, built byte by byte, and what is wrong in files that are none.

use crate::data::image;
use flate2::{Compression, write::DeflateEncoder};
use std::io::Write;
use std::path::Path;
use weince::Error;
use weince::config::data::{
    BadFiles, CifarConfig, DataConfig, Imagenet32Config, Stl10Config, Stl10Part, TinyImagenetConfig,
};
use weince::data::{ImageSet, Split, load};

/// A pickle of protocol 2 as Python 2 wrote CIFAR's batches: texts as bytes, numpy's elements as one long text.
struct Pickle(Vec<u8>);

impl Pickle {
    fn new() -> Pickle {
        Pickle(b"\x80\x02}q\x01(".to_vec())
    }

    fn text(&mut self, text: &[u8]) {
        match u8::try_from(text.len()) {
            Ok(length) => self.0.extend([b'U', length]),
            Err(_) => {
                self.0.push(b'T');
                self.0.extend((text.len() as u32).to_le_bytes());
            }
        }
        self.0.extend(text);
    }

    fn int(&mut self, n: i64) {
        match n {
            0..=255 => self.0.extend([b'K', n as u8]),
            256..=65535 => {
                self.0.push(b'M');
                self.0.extend((n as u16).to_le_bytes());
            }
            _ => {
                self.0.push(b'J');
                self.0.extend((n as i32).to_le_bytes());
            }
        }
    }

    fn ints(mut self, key: &str, values: &[i64]) -> Pickle {
        self.text(key.as_bytes());
        self.0.extend(b"](");
        values.iter().for_each(|n| self.int(*n));
        self.0.push(b'e');
        self
    }

    fn texts(mut self, key: &str, values: &[&str]) -> Pickle {
        self.text(key.as_bytes());
        self.0.extend(b"](");
        values.iter().for_each(|text| self.text(text.as_bytes()));
        self.0.push(b'e');
        self
    }

    /// numpy's `_reconstruct(ndarray, (0,), 'b')`, then the state (1, shape, dtype('u1'), fortran, elements).
    fn array(mut self, key: &str, shape: [i64; 2], fortran: bool, dtype: &str, bytes: &[u8]) -> Pickle {
        self.text(key.as_bytes());
        self.0.extend(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01");
        shape.iter().for_each(|n| self.int(*n));
        self.0.extend(b"\x86cnumpy\ndtype\n");
        self.text(dtype.as_bytes());
        self.0.extend(b"K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb");
        self.0.push(if fortran { 0x88 } else { 0x89 });
        self.text(bytes);
        self.0.extend(b"tb");
        self
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend(b"u.");
        self.0
    }
}

/// Pixels that tell their image and place.
fn pixels(images: usize, image: usize) -> Vec<u8> {
    (0..images * image).map(|i| (i / image * 37 + i % image % 251) as u8).collect()
}

fn cifar_batch(labels: &str, values: &[i64]) -> Vec<u8> {
    Pickle::new()
        .array("data", [values.len() as i64, 3072], false, "u1", &pixels(values.len(), 3072))
        .ints(labels, values)
        .texts("batch_label", &["training batch 1 of 5"])
        .texts("filenames", &["a.png"])
        .end()
}

#[test]
fn cifars_python_version_gives_the_images_of_the_binary_one() {
    let root = tempfile::tempdir().unwrap();
    let (py, bin) = (root.path().join("cifar-10-batches-py"), root.path().join("other/cifar-10-batches-bin"));
    std::fs::create_dir_all(&py).unwrap();
    std::fs::create_dir_all(&bin).unwrap();
    let names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];
    for i in 1..=5 {
        let labels = [i, i + 4, 0];
        std::fs::write(py.join(format!("data_batch_{i}")), cifar_batch("labels", &labels)).unwrap();
        let records: Vec<u8> = labels
            .iter()
            .zip(pixels(3, 3072).chunks_exact(3072))
            .flat_map(|(label, image)| [&[*label as u8], image].concat())
            .collect();
        std::fs::write(bin.join(format!("data_batch_{i}.bin")), records).unwrap();
    }
    std::fs::write(py.join("batches.meta"), Pickle::new().texts("label_names", &names).end()).unwrap();
    let read =
        |root: &Path| load(&DataConfig::Cifar10(CifarConfig { root: root.into(), threads: 1 }), Split::Train).unwrap();
    let (ours, binary) = (read(root.path()), read(&root.path().join("other")));
    assert_eq!(ours.sha256().unwrap(), binary.sha256().unwrap());
    assert_eq!((ours.class_names[9].as_str(), ours.classes, ours.len()), ("truck", 10, 15));
    assert_eq!(read(&py).sha256().unwrap(), ours.sha256().unwrap());
}

#[test]
fn cifar_100s_python_version_has_the_fine_labels() {
    let root = tempfile::tempdir().unwrap();
    let batch = |fine: &[i64]| {
        Pickle::new()
            .ints("coarse_labels", &[1, 2])
            .ints("fine_labels", fine)
            .array("data", [2, 3072], false, "u1", &pixels(2, 3072))
            .end()
    };
    std::fs::write(root.path().join("test"), batch(&[99, 3])).unwrap();
    let config = DataConfig::Cifar100(CifarConfig { root: root.path().into(), threads: 1 });
    let set = load(&config, Split::Test).unwrap();
    assert_eq!((set.labels.as_slice(), set.classes), ([99, 3].as_slice(), 100));
    assert_eq!(image(&set, 1).bytes, pixels(2, 3072)[3072..]);
    std::fs::write(root.path().join("test"), batch(&[99, 100])).unwrap();
    let e = load(&config, Split::Test).unwrap_err().to_string();
    assert!(e.contains("label 100 of image 1") && e.contains("0 to 99"), "{e}");
}

#[test]
fn damaged_and_foreign_batches_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let config = DataConfig::Cifar100(CifarConfig { root: root.path().into(), threads: 1 });
    let refuse = |bytes: Vec<u8>, part: &str| {
        std::fs::write(root.path().join("test"), &bytes).unwrap();
        let e = load(&config, Split::Test).unwrap_err();
        assert!(e.exit_code() == 1 && e.to_string().contains(part) && e.to_string().contains("test"), "{part}: {e}");
    };
    let data = |shape, dtype: &str, bytes: &[u8]| {
        Pickle::new().ints("fine_labels", &[1, 2]).array("data", shape, false, dtype, bytes).end()
    };
    let good = data([2, 3072], "u1", &pixels(2, 3072));
    refuse(good[..good.len() / 2].to_vec(), "cut off or damaged");
    refuse(data([2, 3071], "u1", &pixels(2, 3071)), "[images, 3072]");
    refuse(data([2, 3072], "u1", &pixels(1, 3072)), "it is damaged");
    refuse(data([2, 3072], "f4", &pixels(2, 3072 * 4)), "Float");
    refuse(data([-2, -3072], "u1", &pixels(2, 3072)), "it is damaged");
    refuse(data([2, 3072], "O", &pixels(2, 3072)), "\"O\", which are not understood");
    refuse(data([2, 3072], ">u1", &pixels(2, 3072)), "not understood");
    refuse(
        Pickle::new().ints("fine_labels", &[1]).array("data", [2, 3072], false, "u1", &pixels(2, 3072)).end(),
        "1 labels for 2",
    );
    refuse(
        Pickle::new().ints("labels", &[1, 2]).array("data", [2, 3072], false, "u1", &pixels(2, 3072)).end(),
        "has no `fine_labels`; it has labels, data",
    );
    refuse(b"\x80\x02cos\nsystem\nU\x02ls\x85R.".to_vec(), "os.system");
    refuse(b"\x80\x02K\x01.".to_vec(), "no dict");
    refuse(b"".to_vec(), "cut off");
    // The same megabyte as the elements of ten thousand arrays.
    let mut flood = Pickle::new();
    flood.text(b"data");
    flood.text(&vec![0; 1 << 20]);
    flood.0.extend(b"q\x02");
    for i in 0..10_000 {
        flood.int(i);
        flood.0.extend(
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01J\x00\x00\x10\x00\x85",
        );
        flood.0.extend(b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R\x89h\x02tb");
    }
    refuse(flood.end(), "again and again");
    // And a text of bytes as ten thousand values.
    let mut flood = Pickle::new();
    flood.text(b"data");
    flood.0.extend(b"c_codecs\nencode\nX");
    flood.0.extend((1u32 << 20).to_le_bytes());
    flood.0.extend(vec![b'a'; 1 << 20]);
    flood.0.extend(b"X\x06\x00\x00\x00latin1\x86Rq\x02");
    for i in 0..10_000 {
        flood.int(i);
        flood.0.extend(b"h\x02");
    }
    refuse(flood.end(), "again and again");
}

/// An array in numpy's own format.
fn npy(descr: &str, shape: &str, bytes: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    [b"\x93NUMPY\x01\x00", (header.len() as u16).to_le_bytes().as_slice(), header.as_bytes(), bytes].concat()
}

/// A zip archive of entries, deflated or stored.
fn zip(entries: &[(&str, Vec<u8>)], deflate: bool) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in entries {
        let packed = if deflate {
            let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        } else {
            bytes.clone()
        };
        let at = file.len() as u32;
        let mut common = vec![20, 0, 0, 0, if deflate { 8 } else { 0 }, 0, 0, 0, 0, 0];
        common.extend(crc32fast::hash(bytes).to_le_bytes());
        common.extend((packed.len() as u32).to_le_bytes());
        common.extend((bytes.len() as u32).to_le_bytes());
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0, 0]);
        file.extend(b"PK\x03\x04");
        file.extend(&common);
        file.extend(name.as_bytes());
        file.extend(packed);
        directory.extend(b"PK\x01\x02\x14\x00");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend(at.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let (begin, size) = (file.len() as u32, directory.len() as u32);
    file.extend(directory);
    file.extend(b"PK\x05\x06\x00\x00\x00\x00");
    let count = entries.len() as u16;
    file.extend([count, count].iter().flat_map(|n| n.to_le_bytes()));
    file.extend([size, begin].iter().flat_map(|n| n.to_le_bytes()));
    file.extend([0, 0]);
    file
}

fn imagenet32(root: &Path, split: Split) -> Result<ImageSet, Error> {
    load(&DataConfig::Imagenet32(Imagenet32Config { root: root.into(), threads: 1 }), split)
}

#[test]
fn imagenet_32_is_read_pickled_and_as_npz() {
    let labels = [1, 1000, 17];
    let batch = || {
        Pickle::new()
            .array("data", [3, 3072], false, "u1", &pixels(3, 3072))
            .ints("labels", &labels)
            .array("mean", [1, 3072], false, "f8", &[0; 8 * 3072])
            .end()
    };
    let arrays = || {
        let labels: Vec<u8> = labels.iter().flat_map(|n| i64::to_le_bytes(*n)).collect();
        vec![
            ("data.npy", npy("|u1", "(3, 3072)", &pixels(3, 3072))),
            ("labels.npy", npy("<i8", "(3,)", &labels)),
            ("mean.npy", npy("<f8", "(3072,)", &[0; 8 * 3072])),
        ]
    };
    let root = tempfile::tempdir().unwrap();
    let [pickled, stored, deflated] = ["pickled", "stored", "deflated"].map(|name| root.path().join(name));
    for (folder, train) in [(&pickled, "Imagenet32_train"), (&stored, ""), (&deflated, "Imagenet32_train_npz")] {
        std::fs::create_dir_all(folder.join(train)).unwrap();
    }
    for i in 1..=10 {
        std::fs::write(pickled.join(format!("Imagenet32_train/train_data_batch_{i}")), batch()).unwrap();
        std::fs::write(stored.join(format!("train_data_batch_{i}.npz")), zip(&arrays(), false)).unwrap();
        let path = deflated.join(format!("Imagenet32_train_npz/train_data_batch_{i}.npz"));
        std::fs::write(path, zip(&arrays(), true)).unwrap();
    }
    let set = imagenet32(&pickled, Split::Train).unwrap();
    assert_eq!((set.len(), set.classes, &set.labels[..3]), (30, 1000, [0, 999, 16].as_slice()));
    assert_eq!(image(&set, 29).bytes, pixels(3, 3072)[2 * 3072..]);
    for folder in [&stored, &deflated] {
        assert_eq!(imagenet32(folder, Split::Train).unwrap().sha256().unwrap(), set.sha256().unwrap());
    }
    std::fs::write(pickled.join("val_data"), batch()).unwrap();
    assert_eq!(imagenet32(&pickled, Split::Test).unwrap().len(), 3);

    let e = imagenet32(&stored, Split::Test).unwrap_err().to_string();
    assert!(e.contains("val_data") && e.contains("fetch_data.py"), "{e}");
    let refuse = |bytes: Vec<u8>, part: &str| {
        std::fs::write(stored.join("val_data.npz"), bytes).unwrap();
        let e = imagenet32(&stored, Split::Test).unwrap_err().to_string();
        assert!(e.contains("val_data.npz") && e.contains(part), "{part}: {e}");
    };
    let mut zero = arrays();
    zero[1].1 = npy("<i8", "(3,)", &[0; 24]);
    refuse(zip(&zero, true), "label 0 of image 0 is no class; expected 1 to 1000");
    let good = zip(&arrays(), true);
    refuse(good[..good.len() - 30].to_vec(), "zip directory");
    let mut flipped = good.clone();
    flipped[60] ^= 0xff;
    refuse(flipped, "it is damaged");
    refuse(zip(&arrays()[1..], false), "has no `data`; it has labels, mean");
    refuse(zip(&[("data.npy", npy("|O", "(3, 3072)", &[0; 9]))], false), "not understood");
    refuse(zip(&[("data.npy", npy("|u1", "(3, 9999999999999999999)", &[0; 9]))], false), "damaged");
    refuse(zip(&[("data.npy", b"\x93NUMPY\x01\x00\xff\xff{".to_vec())], false), "damaged");
    // A directory that claims less than the stream has, and one that claims far more.
    let zeros = vec![("data.npy", vec![0; 1 << 20])];
    let mut bomb = zip(&zeros, true);
    let at = bomb.windows(4).position(|w| w == b"PK\x01\x02").unwrap() + 24;
    bomb[at..at + 4].copy_from_slice(&100u32.to_le_bytes());
    refuse(bomb.clone(), "100 bytes");
    bomb[at..at + 4].copy_from_slice(&u32::to_le_bytes(u32::MAX - 1));
    refuse(bomb, "it is damaged");
}

fn stl10(root: &Path, pretrain: Stl10Part, split: Split) -> Result<ImageSet, Error> {
    load(&DataConfig::Stl10(Stl10Config { root: root.into(), pretrain, threads: 1 }), split)
}

#[test]
fn stl_10s_columns_become_rows() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("stl10_binary");
    std::fs::create_dir(&folder).unwrap();
    // Byte c * 96 * 96 + x * 96 + y of an image is channel c at column x and row y.
    let value = |image: usize, c: usize, y: usize, x: usize| (image * 50 + c * 80 + y * 2 + x % 7) as u8;
    let file = |images: std::ops::Range<usize>| -> Vec<u8> {
        let places = move |i| (0..3).flat_map(move |c| (0..96).flat_map(move |x| (0..96).map(move |y| (i, c, y, x))));
        images.flat_map(places).map(|(i, c, y, x)| value(i, c, y, x)).collect()
    };
    std::fs::write(folder.join("train_X.bin"), file(0..2)).unwrap();
    std::fs::write(folder.join("train_y.bin"), [10, 1]).unwrap();
    std::fs::write(folder.join("unlabeled_X.bin"), file(2..5)).unwrap();
    std::fs::write(folder.join("class_names.txt"), "airplane\nbird\ncar\ncat\ndeer\ndog\nhorse\nmonkey\nship\ntruck\n")
        .unwrap();
    let train = stl10(root.path(), Stl10Part::Unlabeled, Split::Train).unwrap();
    assert_eq!(
        (train.labels.as_slice(), train.classes, train.class_names[9].as_str()),
        ([9, 0].as_slice(), 10, "truck")
    );
    let second = image(&train, 1);
    assert_eq!((second.channels, second.height, second.width), (3, 96, 96));
    for (c, y, x) in [(0, 0, 0), (1, 5, 90), (2, 95, 3), (0, 31, 64)] {
        assert_eq!(second.bytes[(c * 96 + y) * 96 + x], value(1, c, y, x), "{c} {y} {x}");
    }
    let unlabeled = stl10(&folder, Stl10Part::Unlabeled, Split::Pretrain).unwrap();
    assert_eq!((unlabeled.labels.as_slice(), unlabeled.classes), ([-1; 3].as_slice(), 0));
    let both = stl10(&folder, Stl10Part::TrainAndUnlabeled, Split::Pretrain).unwrap();
    assert_eq!((both.labels.as_slice(), image(&both, 3)), ([9, 0, -1, -1, -1].as_slice(), image(&unlabeled, 1)));
    let same = stl10(&folder, Stl10Part::Train, Split::Pretrain).unwrap();
    assert_eq!(same.sha256().unwrap(), train.sha256().unwrap());

    let e = stl10(&folder, Stl10Part::Train, Split::Test).unwrap_err().to_string();
    assert!(e.contains("test_X.bin"), "{e}");
    let refuse = |images: &[u8], labels: &[u8], part: &str| {
        std::fs::write(folder.join("test_X.bin"), images).unwrap();
        std::fs::write(folder.join("test_y.bin"), labels).unwrap();
        let e = stl10(&folder, Stl10Part::Train, Split::Test).unwrap_err().to_string();
        assert!(e.contains(part), "{part}: {e}");
    };
    refuse(&file(0..1)[..1000], &[1], "1000 bytes");
    refuse(&[], &[], "0 bytes");
    refuse(&file(0..2), &[1], "1 labels for 2 images");
    refuse(&file(0..2), &[1, 0], "byte 1: label 0 of image 1");
    refuse(&file(0..2), &[1, 11], "label 11");
}

fn tiny(root: &Path, split: Split) -> Result<ImageSet, Error> {
    let config = TinyImagenetConfig { root: root.into(), cache: None, bad_files: BadFiles::Error, threads: 1 };
    load(&DataConfig::TinyImagenet(config), split)
}

/// A PNG (its name may end otherwise) of one colour.
fn square(path: &Path, edge: u32, colour: [u8; 3]) {
    ::image::RgbImage::from_pixel(edge, edge, ::image::Rgb(colour))
        .save_with_format(path, ::image::ImageFormat::Png)
        .unwrap();
}

#[test]
fn tiny_imagenet_is_read_from_its_folders() {
    let root = tempfile::tempdir().unwrap();
    let top = root.path().join("tiny-imagenet-200");
    for (class, wnid) in [(0, "n01443537"), (1, "n01629819")] {
        let folder = top.join("train").join(wnid).join("images");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(top.join("train").join(wnid).join(format!("{wnid}_boxes.txt")), "x\t0\t0\t1\t1\n").unwrap();
        for i in [0, 1, 10, 2] {
            square(&folder.join(format!("{wnid}_{i}.JPEG")), 64, [class * 100 + i, 7, 9]);
        }
    }
    let val = top.join("val/images");
    std::fs::create_dir_all(&val).unwrap();
    for i in 0..3 {
        square(&val.join(format!("val_{i}.JPEG")), 64, [200 + i, 0, 0]);
    }
    let annotations =
        "val_2.JPEG\tn01629819\t0\t32\t44\t62\nval_0.JPEG\tn01443537\t1\t1\t1\t1\nval_1.JPEG\tn01629819\t0\t0\t1\t1\n";
    std::fs::write(top.join("val/val_annotations.txt"), annotations).unwrap();
    std::fs::write(top.join("words.txt"), "n01443537\tgoldfish, Carassius auratus\nn00000001\tthing\n").unwrap();

    let train = tiny(root.path(), Split::Train).unwrap();
    assert_eq!((train.shape(), train.labels.as_slice()), (Some([64, 64]), [0, 0, 0, 0, 1, 1, 1, 1].as_slice()));
    assert_eq!(train.class_names, ["goldfish, Carassius auratus", "n01629819"]);
    // Sorted as text: 0, 1, 10, 2.
    assert_eq!([0, 1, 2, 3, 4].map(|i| image(&train, i).bytes[0]), [0, 1, 10, 2, 100]);
    let test = tiny(&top, Split::Test).unwrap();
    assert_eq!((test.labels.as_slice(), test.classes), ([0, 1, 1].as_slice(), 2));
    assert_eq!([0, 1, 2].map(|i| image(&test, i).bytes[0]), [200, 201, 202]);

    let refuse = |text: &str, part: &str| {
        std::fs::write(top.join("val/val_annotations.txt"), text).unwrap();
        let e = tiny(&top, Split::Test).unwrap_err().to_string();
        assert!(e.contains("val_annotations.txt") && e.contains(part), "{part}: {e}");
    };
    refuse("", "a line for each image");
    refuse("val_0.JPEG n01443537\n", "line 1: expected the file's name");
    refuse("val_0.JPEG\tn01443537\nval_1.JPEG\tn99999999\n", "line 2: `n99999999` is no folder of train");
    refuse("../../x.JPEG\tn01443537\n", "no name of an image");
    refuse("val_0.JPEG\tn01443537\nval_0.JPEG\tn01443537\n", "two for one");
    refuse("val_0.JPEG\tn01443537\nval_2.JPEG\tn01443537\n", "no line for val_1.JPEG");
    square(&val.join("val_0.JPEG"), 65, [0; 3]);
    std::fs::write(top.join("val/val_annotations.txt"), annotations).unwrap();
    let test = tiny(&top, Split::Test).unwrap();
    let e = test.image(0, &mut Default::default()).unwrap_err().to_string();
    assert!(e.contains("65 x 65") && e.contains("expected 64 x 64"), "{e}");
    let e = tiny(&root.path().join("none"), Split::Train).unwrap_err().to_string();
    assert!(e.contains("no folder train") && e.contains("fetch"), "{e}");
}
