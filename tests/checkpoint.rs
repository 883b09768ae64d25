//! Weight files: what is written is read back, foreign and damaged files are refused by name.
//!
//! That PyTorch and the safetensors library read them is tested in scripts/parity/test_model.py.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tch::{Device, Kind, Tensor};
use weince::checkpoint::{Value, safetensors, torch_file};

fn all_kinds() -> Vec<(String, Tensor)> {
    let kinds = [
        Kind::Uint8,
        Kind::Float,
        Kind::Half,
        Kind::BFloat16,
        Kind::Bool,
        Kind::Double,
        Kind::Int64,
        Kind::Int,
        Kind::Int16,
        Kind::Int8,
    ];
    let base = Tensor::from_slice(&[0i64, 1, 1, 0, 1, 1]).reshape([2, 3]);
    let mut list: Vec<(String, Tensor)> = kinds.iter().map(|&k| (format!("t.{k:?}"), base.to_kind(k))).collect();
    list.push(("transposed".into(), (base.to_kind(Kind::Float) * 1.5).tr()));
    list.push(("scalar".into(), Tensor::from(2.5f32)));
    list.push(("empty".into(), Tensor::zeros([0, 3], (Kind::Float, Device::Cpu))));
    list.push(("trained".into(), Tensor::ones([2], (Kind::Float, Device::Cpu)).set_requires_grad(true)));
    list
}

#[test]
fn safetensors_come_back_with_type_shape_and_text() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a.safetensors"), folder.path().join("b.safetensors"));
    let metadata: BTreeMap<String, String> =
        [("format", "pt"), ("note", "\u{e9}\"\n")].map(|(k, v)| (k.to_string(), v.to_string())).into();
    safetensors::save(&a, &all_kinds(), &metadata).unwrap();
    safetensors::save(&b, &all_kinds(), &metadata).unwrap();
    assert_eq!(fs::read(&a).unwrap(), fs::read(&b).unwrap());
    let read = safetensors::load(&a).unwrap();
    assert_eq!(read.metadata, metadata);
    let found: BTreeMap<&str, &Tensor> = read.tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    assert_eq!(found.len(), all_kinds().len());
    for (name, t) in all_kinds() {
        let f = found[name.as_str()];
        assert_eq!((f.kind(), f.size(), f.requires_grad()), (t.kind(), t.size(), false), "{name}");
        assert!(f.equal(&t.detach()), "{name}");
    }
}

#[test]
fn safetensors_that_cannot_be_written_leave_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let one = Tensor::from(1.0f32);
    let complex = Tensor::zeros([2], (Kind::ComplexFloat, Device::Cpu));
    for (list, part) in [
        (vec![("a".to_string(), one.copy()), ("a".to_string(), one.copy())], "`a` is given twice"),
        (vec![("__metadata__".to_string(), one.copy())], "reserved"),
        (vec![("c".to_string(), complex)], "ComplexFloat"),
    ] {
        let e = safetensors::save(&path, &list, &BTreeMap::new()).unwrap_err().to_string();
        assert!(e.contains(part), "{e}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A file with this header and this many zero bytes after it.
fn file(path: &Path, header: &str, data: usize) {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    fs::write(path, bytes).unwrap();
}

#[test]
fn damaged_and_foreign_files_are_refused_with_their_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("bad.safetensors");
    let refuse = |part: &str| {
        let e = safetensors::load(&path).unwrap_err().to_string();
        assert!(e.contains("bad.safetensors") && e.contains(part), "{part}: {e}");
    };
    refuse("cannot open");
    fs::write(&path, b"PK\x03").unwrap();
    refuse("3 bytes");
    fs::write(&path, b"PK\x03\x04 a zip archive, say").unwrap();
    refuse("no safetensors file");
    fs::write(&path, [u64::MAX.to_le_bytes(), [0; 8]].concat()).unwrap();
    refuse("a header of 18446744073709551615 bytes in a file of 16");
    file(&path, "[1, 2]", 0);
    refuse("not that of a safetensors file");
    let one = |dtype: &str, shape: &str, end: u64| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}"#)
    };
    file(&path, &one("F32", "[2]", 8), 7);
    refuse("cut off");
    file(&path, &one("F32", "[2]", 8), 9);
    refuse("foreign bytes");
    file(&path, &one("F32", "[3]", 8), 8);
    refuse("not that of a safetensors file");
    file(&path, &one("F32", "[4611686018427387904, 4611686018427387904]", 8), 8);
    refuse("not that of a safetensors file");
    file(&path, &one("F32", "[0, 18446744073709551615]", 0), 0);
    refuse("`w`");
    file(&path, &one("F8_E4M3", "[2]", 2), 2);
    refuse("F8_E4M3");
    let header = one("BOOL", "[2]", 2);
    file(&path, &header, 2);
    assert!(safetensors::load(&path).is_ok());
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() = 2;
    fs::write(&path, bytes).unwrap();
    refuse("neither 0 nor 1");
}

#[test]
fn every_cut_of_a_good_file_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    safetensors::save(&path, &all_kinds(), &BTreeMap::new()).unwrap();
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        assert!(safetensors::load(&path).is_err(), "{length}");
    }
}

#[test]
fn torch_files_are_the_same_bytes_each_time_and_leave_nothing_beside() {
    let folder = tempfile::tempdir().unwrap();
    let (a, b) = (folder.path().join("a.pt"), folder.path().join("b.pt"));
    for path in [&a, &b] {
        torch_file::save(path, &Value::dict([("model", Value::state_dict(all_kinds())), ("step", 3.into())])).unwrap();
    }
    assert_eq!(fs::read(&a).unwrap(), fs::read(&b).unwrap());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    let e = torch_file::save(&folder.path().join("no/a.pt"), &Value::None).unwrap_err().to_string();
    assert!(e.contains("cannot create"), "{e}");
}
