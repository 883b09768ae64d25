//! Reading files of `torch.save`: what PyTorch wrote comes back, and what a stranger wrote does no harm.

use std::fs;
use std::path::{Path, PathBuf};
use tch::Tensor;
use weince::checkpoint::{self, Value, safetensors, torch_file};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/checkpoint").join(name)
}

fn items(value: Value) -> Vec<(Value, Value)> {
    match value {
        Value::Dict(items) | Value::OrderedDict(items) => items,
        other => panic!("a dict was expected, found {other:?}"),
    }
}

/// The value of a dict's key as Rust shows it.
fn shown(items: &[(Value, Value)], key: &str) -> String {
    let found = items.iter().find(|(k, _)| matches!(k, Value::Str(k) if k == key));
    format!("{:?}", found.unwrap_or_else(|| panic!("no `{key}`")).1)
}

fn assert_equal(file: &str, found: &[(String, Tensor)], expected: &str) {
    let mut expected = safetensors::load(&golden(expected)).unwrap().tensors;
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    let mut found: Vec<(String, Tensor)> = found.iter().map(|(n, t)| (n.clone(), t.shallow_clone())).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(found.len(), expected.len(), "{file}");
    for ((name, t), (expected_name, e)) in found.iter().zip(&expected) {
        assert_eq!(name, expected_name, "{file}");
        assert_eq!((t.kind(), t.size()), (e.kind(), e.size()), "{file}: {name}");
        assert!(t.equal(e), "{file}: {name}");
    }
}

#[test]
fn state_dicts_of_pytorch_come_back() {
    for file in ["state_dict.pt", "protocol_4.pt"] {
        assert_equal(file, &checkpoint::tensors(&golden(file)).unwrap(), "state_dict.safetensors");
    }
    // Parameters are their tensors; buffers are no parameters.
    let names: Vec<String> =
        checkpoint::tensors(&golden("parameters.pt")).unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["fc.weight", "fc.bias", "bn.weight", "bn.bias"]);
}

#[test]
fn views_types_and_shared_storages_come_back() {
    let found = checkpoint::tensors(&golden("views.pt")).unwrap();
    assert_equal("views.pt", &found, "views.safetensors");
    let pointer = |name: &str| found.iter().find(|(n, _)| n == name).unwrap().1.data_ptr() as usize;
    // Views of one storage are so again: a slice from [1, 1] on begins 16 floats later.
    assert_eq!(pointer("slice"), pointer("whole") + 16 * 4);
}

#[test]
fn plain_data_come_back() {
    let all = items(torch_file::load(&golden("nested.pt")).unwrap());
    for (key, expected) in [
        ("epoch", "Int(3)"),
        ("lr", "Float(0.125)"),
        ("big", "Int(1099511627776)"),
        ("negative", "Int(-5)"),
        ("wide", "Int(-9223372036854775808)"),
        ("none", "None"),
        ("yes", "Bool(true)"),
        ("names", r#"List([Str("a"), Tuple([Str("b"), Str("λ")])])"#),
        ("size", "Tuple([Int(2), Int(3)])"),
        ("device", r#"Str("cuda:0")"#),
        ("dtype", r#"Str("torch.float16")"#),
        ("counter", r#"Dict([(Str("a"), Int(2)), (Str("b"), Int(1))])"#),
    ] {
        assert_eq!(shown(&all, key), expected, "{key}");
    }
    assert!(all.iter().any(|(k, v)| matches!((k, v), (Value::Int(7), Value::Str(s)) if s == "seven")));
    let optimizer = all.into_iter().find(|(k, _)| matches!(k, Value::Str(k) if k == "optimizer")).unwrap().1;
    let optimizer = items(optimizer);
    assert!(shown(&optimizer, "param_groups").contains(r#"(Str("lr"), Float(0.001))"#));
    assert!(shown(&optimizer, "state").contains("exp_avg_sq"));
}

#[test]
fn our_own_files_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    let t = Tensor::from_slice(&[1f32, 2.0, 3.0]);
    let value = Value::dict([
        ("t", Value::from(t)),
        ("list", Value::List(vec![1.into(), Value::None, (-70000).into(), i64::MIN.into()])),
        ("nested", Value::OrderedDict(vec![(Value::Int(1), true.into())])),
        ("text", "a\nb".into()),
    ]);
    torch_file::save(&path, &value).unwrap();
    assert_eq!(format!("{:?}", torch_file::load(&path).unwrap()), format!("{value:?}"));
}

#[test]
fn what_is_no_plain_checkpoint_is_refused_by_name() {
    for (file, part) in [
        ("refused_legacy.pt", "before PyTorch 1.6"),
        ("refused_pickle.pt", "before PyTorch 1.6"),
        ("refused_script.pt", "TorchScript"),
        ("refused_system.pt", "posix.system"),
        ("refused_numpy.pt", "numpy"),
        ("refused_expanded.pt", "an expanded tensor"),
        ("refused_cycle.pt", "contains itself"),
        ("refused_laughs.pt", "again and again"),
        ("refused_compressed.pt", "compressed"),
        ("state_dict.safetensors", "no file of torch.save"),
    ] {
        let e = torch_file::load(&golden(file)).unwrap_err().to_string();
        assert!(e.contains(file) && e.contains(part) && e.lines().count() == 1, "{file}: {e}");
    }
}

#[test]
fn old_formats_are_told_from_safetensors() {
    for file in ["refused_legacy.pt", "refused_pickle.pt"] {
        let e = checkpoint::tensors(&golden(file)).unwrap_err().to_string();
        assert!(e.contains("before PyTorch 1.6") && e.contains("torch.save(torch.load(old), new)"), "{file}: {e}");
    }
    // A header of 0x0280 bytes begins as a pickle of protocol 2 does.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let mut metadata = std::collections::BTreeMap::from([("note".to_string(), String::new())]);
    let tensors = [("w".to_string(), Tensor::from_slice(&[1f32, 2.0]))];
    safetensors::save(&path, &tensors, &metadata).unwrap();
    let short = fs::read(&path).unwrap()[0] as usize;
    metadata.insert("note".into(), "x".repeat(0x280 - short));
    safetensors::save(&path, &tensors, &metadata).unwrap();
    assert_eq!(fs::read(&path).unwrap()[..2], [0x80, 2]);
    assert_eq!(checkpoint::tensors(&path).unwrap().len(), 1);
}

#[test]
fn tensors_within_dicts_are_named_by_their_keys() {
    let found = checkpoint::tensors(&golden("nested.pt")).unwrap();
    let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"model.fc.weight") && names.contains(&"optimizer.state.0.exp_avg_sq"), "{names:?}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    let one = || Value::from(Tensor::from(1f32));
    for (value, part) in [
        (Value::dict([("epoch", Value::from(3))]), "no named tensors"),
        (one(), "no named tensors"),
        (Value::dict([("a.b", one()), ("a", Value::dict([("b", one())]))]), "`a.b`"),
    ] {
        torch_file::save(&path, &value).unwrap();
        let e = checkpoint::tensors(&path).unwrap_err().to_string();
        assert!(e.contains(part) && e.contains("a.pt"), "{e}");
    }
}

/// A small file must not become large by the names or the shapes that it says.
#[test]
fn names_and_shapes_take_no_memory_out_of_proportion() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    let shared = || Value::from(Tensor::from(1f32));
    let leaves = || Value::dict((0..20_000).map(|i| (i.to_string(), shared())));
    for value in [
        Value::dict([("p".repeat(5000), leaves())]),
        // Each name is short enough, and all of them are 80 MB.
        Value::dict([("p".repeat(4000), leaves())]),
    ] {
        torch_file::save(&path, &value).unwrap();
        for e in [checkpoint::tensors(&path).unwrap_err(), weince::files::inspect(&path).unwrap_err()] {
            assert!(e.to_string().contains("names of more than 4096 bytes each, or far too many"), "{e}");
        }
    }
    let deep = Tensor::ones([1i64; 70].as_slice(), (tch::Kind::Float, tch::Device::Cpu));
    torch_file::save(&path, &Value::dict([("deep", Value::from(deep))])).unwrap();
    let e = torch_file::load(&path).unwrap_err().to_string();
    assert!(e.contains("a shape that no tensor has"), "{e}");
    let e = safetensors::save(
        &folder.path().join("a.safetensors"),
        &[("n".repeat(5000), Tensor::from(1f32))],
        &Default::default(),
    )
    .and_then(|()| safetensors::load(&folder.path().join("a.safetensors")));
    assert!(e.unwrap_err().to_string().contains("a name of 5000 bytes"));
}

#[test]
fn every_cut_and_every_changed_byte_ends_well() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    let try_bytes = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        torch_file::load(&path)
    };
    for file in ["views.pt", "nested.pt"] {
        let whole = fs::read(golden(file)).unwrap();
        for length in (0..whole.len()).step_by(7) {
            assert!(try_bytes(&whole[..length]).is_err(), "{file} cut at {length}");
        }
        // A changed byte may pass where nothing is said by it; it never panics and never takes memory for what is not there.
        let mut refused = 0;
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << (at % 8);
            refused += usize::from(try_bytes(&bytes).is_err());
        }
        assert!(refused > whole.len() / 3, "{file}: {refused} of {}", whole.len());
    }
}

/// Changed pickles in a file whose checksums are right: what a stranger can write.
#[test]
fn changed_pickles_end_well() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.pt");
    let whole = fs::read(golden("views.pt")).unwrap();
    let name = b"data.pkl";
    let local = whole.windows(4).position(|w| w == b"PK\x03\x04").unwrap();
    let length = |at: usize| usize::from(u16::from_le_bytes([whole[at], whole[at + 1]]));
    let begin = local + 30 + length(local + 26) + length(local + 28);
    let directory = whole.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    assert!(whole[directory..][46..][..length(directory + 28)].ends_with(name));
    let size = u32::from_le_bytes(whole[directory + 24..][..4].try_into().unwrap()) as usize;
    let mut random: u64 = 1;
    for round in 0..20_000 {
        let mut bytes = whole.clone();
        for _ in 0..1 + round % 3 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = begin + (random >> 33) as usize % size;
            bytes[at] = (random >> 20) as u8;
        }
        let crc = crc32fast::hash(&bytes[begin..begin + size]);
        bytes[directory + 16..][..4].copy_from_slice(&crc.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        let _ = torch_file::load(&path);
    }
}
