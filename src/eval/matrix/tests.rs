//! Files that NumPy and safetensors wrote, files made of bytes, and damaged ones.

use super::*;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn golden(file: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/matrix").join(file).display().to_string()
}

fn expected() -> serde_json::Value {
    serde_json::from_slice(&fs::read(golden("expected.json")).unwrap()).unwrap()
}

fn expected_rows(kind: &str) -> Vec<f64> {
    serde_json::from_value::<Vec<Vec<f64>>>(expected()[kind].clone()).unwrap().concat()
}

/// Equal to the sign of 0.
fn same(found: &[f64], expected: &[f64]) -> bool {
    let bits = |v: &[f64]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    bits(found) == bits(expected)
}

/// A file with a header as NumPy writes it.
fn npy(descr: &str, fortran: &str, shape: &str, elements: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}");
    while (header.len() + 11) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), elements].concat()
}

fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn f64s(values: &[f64]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A folder and a file in it.
fn written(name: &str, bytes: &[u8]) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

fn open_bytes(name: &str, bytes: &[u8]) -> Result<Matrix> {
    let (_folder, path) = written(name, bytes);
    Matrix::open(path.to_str().unwrap())
}

/// The refusal of a file, which must have all of `parts`.
fn refused(name: &str, bytes: &[u8], parts: &[&str]) {
    let e = open_bytes(name, bytes).expect_err("must be refused").to_string();
    assert!(parts.iter().all(|part| e.contains(part)) && e.contains(name), "{e}");
}

#[test]
fn rows_of_all_kinds_are_the_numbers_that_numpy_and_safetensors_wrote() {
    let files = ["f2", "f4", "f8"].iter().flat_map(|k| [(*k, format!("{k}.npy")), (*k, format!("{k}_fortran.npy"))]);
    let keys = ["F16", "BF16", "F32", "F64"].iter().map(|k| (*k, format!("all.safetensors:{k}")));
    for (kind, file) in files.chain(keys) {
        let text = golden(&file);
        let m = Matrix::open(&text).unwrap();
        assert_eq!((m.rows(), m.columns(), m.name()), (3, 4, text.as_str()));
        let want = expected_rows(kind);
        assert!(same(&m.read_f64(0..3).unwrap(), &want), "{file}");
        let rounded: Vec<f64> = want.iter().map(|v| f64::from(*v as f32)).collect();
        let single: Vec<f64> = m.read(0..3).unwrap().into_iter().map(f64::from).collect();
        assert!(same(&single, &rounded), "{file}");
        // Block by block they are the same.
        let blocks: Vec<f64> = [0..1, 1..1, 1..3].into_iter().flat_map(|r| m.read_f64(r).unwrap()).collect();
        assert!(same(&blocks, &want), "{file}");
    }
}

#[test]
fn labels_of_all_kinds_are_the_integers_that_were_written() {
    for kind in ["u1", "i1", "i2", "i4", "i8"] {
        let want: Vec<i64> = serde_json::from_value(expected()[kind].clone()).unwrap();
        assert_eq!(read_labels(&golden(&format!("{kind}.npy"))).unwrap(), want);
    }
    for kind in ["U8", "I8", "I16", "I32"] {
        // 25 times 4 is within int8.
        assert_eq!(read_labels(&golden(&format!("all.safetensors:{kind}"))).unwrap(), [0, 25, 50, 75, 100]);
    }
    let e = read_labels(&golden("f4.npy")).unwrap_err().to_string();
    assert!(e.contains("integers") && e.contains("Float"), "{e}");
    let e = read_labels(&golden("all.safetensors")).unwrap_err().to_string();
    assert!(e.contains("found 5") && e.contains("FILE:KEY") && e.contains("I64 (I64 [5])"), "{e}");
}

#[test]
fn numbers_are_one_dimensional_and_keep_float64() {
    let values = [0.1, -1e300, 5e-324];
    for shape in ["(3,)", "(3, 1)", "(1, 3)"] {
        for fortran in ["False", "True"] {
            let (_folder, path) = written("y.npy", &npy("'<f8'", fortran, shape, &f64s(&values)));
            assert_eq!(read_numbers(path.to_str().unwrap()).unwrap(), values);
        }
    }
    let e = read_numbers(&golden("f8.npy")).unwrap_err().to_string();
    assert!(e.contains("one dimension") && e.contains("[3, 4]"), "{e}");
    let (_folder, path) = written("y.npy", &npy("'<f8'", "False", "(2,)", &f64s(&[1.0, f64::NAN])));
    let e = read_numbers(path.to_str().unwrap()).unwrap_err();
    assert!(matches!(&e, Error::NonFinite(m) if m.contains("number 1") && m.contains("NaN")), "{e}");
}

#[test]
fn the_only_matrix_of_a_file_needs_no_key_and_a_name_decides_among_several() {
    let data = f32s(&[1.0, 2.0, 3.0, 4.0]);
    let info = |name: &str, begin: usize| {
        format!("\"{name}\":{{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[{begin},{}]}}", begin + 8)
    };
    let file = |a: &str, b: &str| safetensors(&format!("{{{},{}}}", info(a, 0), info(b, 8)), &data);
    let flat = "\"labels\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,16]}";
    let one = safetensors(&format!("{{{},{flat}}}", info("anything", 0)), &data);
    let (_folder, path) = written("one.safetensors", &one);
    assert_eq!(Matrix::open(path.to_str().unwrap()).unwrap().read(0..2).unwrap(), [1.0, 2.0]);
    for name in ["features", "embeddings"] {
        let (_folder, path) = written("two.safetensors", &file("a", name));
        let text = path.to_str().unwrap();
        assert_eq!(Matrix::open(text).unwrap().read(0..2).unwrap(), [3.0, 4.0]);
        assert_eq!(Matrix::open(&format!("{text}:a")).unwrap().read(0..2).unwrap(), [1.0, 2.0]);
        let e = Matrix::open(&format!("{text}:c")).unwrap_err().to_string();
        assert!(e.contains("no tensor `c`") && e.contains("a (F32 [2, 1])"), "{e}");
        let e = Matrix::open(&format!("{text}:")).unwrap_err().to_string();
        assert!(e.contains("behind the colon"), "{e}");
    }
    refused("f.safetensors", &file("embeddings", "features"), &["found 2", "FILE:KEY", "features (F32 [2, 1])"]);
    refused("f.safetensors", &file("a", "b"), &["found 2", "a (F32 [2, 1]), b (F32 [2, 1])"]);
    refused("f.safetensors", &safetensors("{}", &[]), &["found none", "no tensors"]);
}

#[test]
fn a_path_may_have_colons() {
    let data = npy("'<f4'", "False", "(1, 1)", &f32s(&[5.0]));
    let (folder, path) = written("at 10:30.npy", &data);
    assert_eq!(Matrix::open(path.to_str().unwrap()).unwrap().read(0..1).unwrap(), [5.0]);
    let header = "{\"a:b\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]}}";
    let file = folder.path().join("x:y.safetensors");
    fs::write(&file, safetensors(header, &f32s(&[6.0]))).unwrap();
    let m = Matrix::open(&format!("{}:a:b", file.display())).unwrap();
    assert_eq!(m.read(0..1).unwrap(), [6.0]);
    let e = Matrix::open(&format!("{}:z", path.display())).unwrap_err().to_string();
    assert!(e.contains("one array") && e.contains("\"z\""), "{e}");
    for text in ["none.npy", "none.npy:a", ":", ""] {
        let e = Matrix::open(text).unwrap_err().to_string();
        assert!(e.contains("found no file"), "{text}: {e}");
    }
    let e = Matrix::open(folder.path().to_str().unwrap()).unwrap_err().to_string();
    assert!(e.contains("found a folder"), "{e}");
}

#[test]
fn files_that_are_no_matrix_say_what_they_are() {
    let four = f32s(&[1.0, 2.0, 3.0, 4.0]);
    refused("m.npy", &npy("'<f4'", "False", "(4,)", &four), &["two-dimensional", "[4]"]);
    refused("m.npy", &npy("'<f4'", "False", "(2, 2, 1)", &four), &["two-dimensional", "[2, 2, 1]"]);
    refused("m.npy", &npy("'<f4'", "False", "()", &four[..4]), &["two-dimensional", "[]"]);
    refused("m.npy", &npy("'<f4'", "False", "(0, 4)", &[]), &["found none", "[0, 4]"]);
    refused("m.npy", &npy("'<f4'", "False", "(4, 0)", &[]), &["found none", "[4, 0]"]);
    refused("m.npy", &npy("'<i4'", "False", "(2, 2)", &four), &["floating-point", "found Int"]);
    refused("m.npy", &npy("'>f4'", "False", "(2, 2)", &four), &["\">f4\"", "not understood"]);
    refused("m.npy", &npy("[('a', '<f4')]", "False", "(2, 2)", &four), &["no plain numbers", "('a', '<f4')"]);
    for shape in ["(2, 3)", "(1, 2)", "(4294967296, 4294967296)", "(9223372036854775807, 2)"] {
        refused("m.npy", &npy("'<f4'", "False", shape, &four), &["found 16"]);
    }
    refused("m.npy", &npy("'<f4'", "False", "(-2, -2)", &four), &["negative"]);
    refused("m.npy", b"", &["empty"]);
    refused("m.npy", b"1.0 2.0\n", &["does not begin"]);
    refused("m.npz", b"PK\x03\x04....", &["zip archive", "numpy.save"]);
    refused("m.txt", b"1.0 2.0\n", &["safetensors"]);
    let wrong = |dtype: &str, shape: &str| {
        let header = format!("{{\"m\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[0,16]}}}}");
        let (_folder, path) = written("m.safetensors", &safetensors(&header, &four));
        Matrix::open(&format!("{}:m", path.display())).unwrap_err().to_string()
    };
    for (dtype, shape, part) in
        [("I32", "[2,2]", "Int"), ("U32", "[2,2]", "U32"), ("F32", "[4]", "[4]"), ("F32", "[2,3]", "shape")]
    {
        let e = wrong(dtype, shape);
        assert!(e.to_lowercase().contains(&part.to_lowercase()), "{e}");
    }
}

#[test]
fn every_truncation_is_an_error() {
    for file in ["f4.npy", "f2_fortran.npy", "all.safetensors"] {
        let whole = fs::read(golden(file)).unwrap();
        let (_folder, path) = written(file, &whole);
        let text = if file.starts_with("all") { format!("{}:F32", path.display()) } else { path.display().to_string() };
        Matrix::open(&text).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            Matrix::open(&text).expect_err("must be refused");
        }
        fs::write(&path, [&whole[..], b"\0"].concat()).unwrap();
        Matrix::open(&text).expect_err("must be refused");
    }
}

#[test]
fn numbers_that_are_not_finite_are_named_by_file_and_row() {
    for (bad, word) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let m = npy("'<f4'", "False", "(3, 2)", &f32s(&[0.0, 0.0, 1.0, 2.0, 3.0, bad]));
        let (_folder, path) = written("m.npy", &m);
        let m = Matrix::open(path.to_str().unwrap()).unwrap();
        // A row of zeros is a row.
        assert_eq!(m.read(0..2).unwrap(), [0.0, 0.0, 1.0, 2.0]);
        for e in [m.read(0..3).unwrap_err(), m.read(2..3).unwrap_err(), m.read_f64(1..3).unwrap_err()] {
            assert!(matches!(e, Error::NonFinite(_)), "{e}");
            let e = e.to_string();
            assert!(e.contains("m.npy: row 2, column 1") && e.contains(word), "{e}");
        }
        let e = Matrix::of("made", vec![1.0, 2.0, 3.0, bad], 2).unwrap_err().to_string();
        assert!(e.contains("made: row 1, column 1"), "{e}");
    }
}

#[test]
fn float64_beyond_float32_is_refused_where_it_would_be_rounded() {
    let values = [1.0, 2.0, 1e-60, 0.0, 3.0, -1e39];
    let (_folder, path) = written("m.npy", &npy("'<f8'", "False", "(3, 2)", &f64s(&values)));
    let m = Matrix::open(path.to_str().unwrap()).unwrap();
    assert_eq!(m.read_f64(0..3).unwrap(), values);
    let e = m.read(1..2).unwrap_err();
    assert!(matches!(&e, Error::Input(m) if m.contains("row 1") && m.contains("too small")), "{e}");
    let e = m.read(2..3).unwrap_err();
    assert!(matches!(&e, Error::NonFinite(m) if m.contains("row 2, column 1") && m.contains("-1e39")), "{e}");
}

#[test]
fn rows_in_memory_are_read_as_those_of_a_file() {
    let values = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let m = Matrix::of("six", values.clone(), 3).unwrap();
    assert_eq!((m.rows(), m.columns(), m.name()), (2, 3, "six"));
    assert_eq!((m.read(1..2).unwrap(), m.read_f64(0..1).unwrap()), (vec![4.0, 5.0, 6.0], vec![1.0, 2.0, 3.0]));
    assert_eq!(m.sha256().unwrap(), format!("{:x}", Sha256::digest(f32s(&values))));
    #[allow(clippy::reversed_empty_ranges)]
    for range in [0..3, 3..3, 2..1, 0..usize::MAX] {
        let e = m.read(range).unwrap_err().to_string();
        assert!(e.contains("six: rows") && e.contains("of 2"), "{e}");
    }
    for (values, columns) in [(vec![], 3), (vec![1.0], 0), (vec![1.0, 2.0], 3)] {
        assert!(matches!(Matrix::of("no", values, columns), Err(Error::Input(_))));
    }
}

#[test]
fn a_file_that_is_written_to_is_refused_and_one_that_is_replaced_is_not() {
    let bytes = npy("'<f4'", "False", "(2, 1)", &f32s(&[1.0, 2.0]));
    let (folder, path) = written("m.npy", &bytes);
    let m = Matrix::open(path.to_str().unwrap()).unwrap();
    assert_eq!(m.sha256().unwrap(), format!("{:x}", Sha256::digest(&bytes)));
    let other = folder.path().join("other.npy");
    fs::write(&other, npy("'<f4'", "False", "(2, 1)", &f32s(&[3.0, 4.0]))).unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(m.read(0..2).unwrap(), [1.0, 2.0]);
    let m = Matrix::open(path.to_str().unwrap()).unwrap();
    assert_eq!(m.read(0..2).unwrap(), [3.0, 4.0]);
    fs::write(&path, &bytes[..100]).unwrap();
    for e in [m.read(0..2).unwrap_err(), m.sha256().unwrap_err()] {
        assert!(e.to_string().contains("written to since"), "{e}");
    }
}
