//! TorchScript modules as encoders: the numbers are PyTorch's, names stay to the letter, and what cannot be trained is refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use tch::{Device, Kind, Tensor};
use weince::checkpoint::safetensors;
use weince::model::{Encoder, Torchscript};
use weince::torch::Script;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/script").join(name)
}

#[test]
fn names_are_kept_to_the_letter_and_what_is_frozen_is_not_trained() {
    let net = Torchscript::load(&golden("net.pt"), 8).unwrap();
    assert_eq!(net.features(), 4);
    let all: Vec<String> = net.store().state_dict().into_iter().map(|(name, _)| name).collect();
    // In the order of Python's state_dict().
    let bn = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"].map(|n| format!("bn.{n}"));
    let expected = ["shift", "scale", "conv.weight"].map(str::to_string);
    let expected = [&expected[..], &bn, &["a.b_c.weight".to_string(), "a_b.c.weight".to_string()]].concat();
    assert_eq!(all, expected);
    let trained: Vec<String> = net.store().parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(trained, ["conv.weight", "bn.weight", "bn.bias", "a.b_c.weight", "a_b.c.weight"]);
}

#[test]
fn trying_a_module_leaves_no_trace_in_it() {
    let (before, net) = (Script::load(&golden("net.pt")).unwrap(), Torchscript::load(&golden("net.pt"), 8).unwrap());
    for (m, (name, t)) in before.members().unwrap().iter().zip(net.store().state_dict()) {
        assert!(m.name == name && m.tensor.equal(&t), "{name}");
    }
    assert!(net.store().parameters().iter().all(|(_, p)| !p.grad().defined()));
}

#[test]
fn features_and_training_steps_are_pytorchs() {
    let numbers: BTreeMap<String, Tensor> =
        safetensors::load(&golden("calm.safetensors")).unwrap().tensors.into_iter().collect();
    let net = Torchscript::load(&golden("calm.pt"), 8).unwrap();
    let x = &numbers["x"];
    let gap = |a: &Tensor, b: &Tensor| (a - b).abs().max().double_value(&[]);
    assert!(gap(&net.forward(x, false).unwrap(), &numbers["features"]) < 1e-6);
    for step in 0..3 {
        let loss = net.forward(x, true).unwrap().square().sum(Kind::Float);
        let expected = numbers["losses"].double_value(&[step]);
        // A few float32 roundings of sums over 192 pixels.
        assert!((loss.double_value(&[]) - expected).abs() < 1e-5 * expected.abs(), "step {step}");
        loss.backward();
        let _guard = tch::no_grad_guard();
        for (_, mut p) in net.store().parameters() {
            let gradient = p.grad();
            let _ = p.f_sub_(&(0.1 * gradient)).unwrap();
            p.zero_grad();
        }
    }
    for (name, t) in net.store().state_dict() {
        let expected = &numbers[&format!("after.{name}")];
        assert_eq!(t.kind(), expected.kind(), "{name}");
        assert!(gap(&t.to_kind(Kind::Float), &expected.to_kind(Kind::Float)) < 1e-5, "{name}");
    }
}

#[test]
fn dropout_follows_the_mode() {
    let net = Torchscript::load(&golden("net.pt"), 8).unwrap();
    let x = Tensor::rand([4, 3, 8, 8], (Kind::Float, Device::Cpu));
    tch::manual_seed(1);
    assert!(net.forward(&x, true).unwrap() != net.forward(&x, true).unwrap());
    assert!(net.forward(&x, false).unwrap() == net.forward(&x, false).unwrap());
}

#[test]
fn what_is_the_same_in_both_modes_is_no_fixed_mode() {
    for name in ["no_state.pt", "no_state_traced.pt"] {
        assert_eq!(Torchscript::load(&golden(name), 8).unwrap().features(), 4, "{name}");
    }
}

#[test]
fn what_cannot_be_trained_is_refused_with_the_remedy() {
    for (file, parts) in [
        ("refused_traced_eval.pt", &["aten::batch_norm", "always as in evaluation", "torch.jit.script"][..]),
        ("refused_traced_train.pt", &["always as in training", "export_backbone.py"]),
        ("refused_recurrent.pt", &["aten::lstm", "always as in evaluation"]),
        ("refused_attention.pt", &["aten::scaled_dot_product_attention"]),
        ("refused_forked.pt", &["aten::dropout", "always as in training"]),
        ("refused_own_dropout.pt", &["other features of the same images in evaluation mode"]),
        ("refused_instance_norm.pt", &["aten::instance_norm"]),
        ("refused_no_gradient.pt", &["no gradient reaches"]),
        ("refused_half.pt", &["gives Half", ".float()"]),
        ("refused_fast_path.pt", &["no backward pass"]),
        ("refused_frozen.pt", &["no parameters", "freeze"]),
        ("refused_maps.pt", &["[2, 4, 8, 8]", "[2, F]"]),
        ("refused_fixed_batch.pt", &["[2, 4]", "[3, 3, 8, 8]"]),
        ("refused_two_outputs.pt", &["Tuple", "one Tensor"]),
        ("refused_channels.pt", &["fails on images [2, 3, 8, 8]", "channels"]),
        ("calm.safetensors", &["no TorchScript module"]),
        ("nowhere.pt", &["cannot open"]),
    ] {
        let e = Torchscript::load(&golden(file), 8).unwrap_err().to_string();
        assert!(e.contains(file) && e.lines().count() == 1, "{file}: {e}");
        parts.iter().for_each(|part| assert!(e.contains(part), "{file}: {part} is not in: {e}"));
    }
    // A changed byte among the weights, which LibTorch would take.
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(golden("calm.pt")).unwrap();
    let scale: Vec<u8> = [1f32, 2.0, 0.5, 1.5].iter().flat_map(|x| x.to_le_bytes()).collect();
    let at = bytes.windows(16).position(|w| w == scale).unwrap();
    bytes[at + 2] ^= 0x40;
    let damaged = folder.path().join("damaged.pt");
    std::fs::write(&damaged, bytes).unwrap();
    let e = Torchscript::load(&damaged, 8).unwrap_err().to_string();
    assert!(e.contains("checksum") && e.contains("damaged.pt"), "{e}");
    let state_dict = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/checkpoint/state_dict.pt");
    let e = Torchscript::load(&state_dict, 8).unwrap_err().to_string();
    assert!(e.contains("no TorchScript module") && e.lines().count() == 1, "{e}");
    let net = Torchscript::load(&golden("refused_device.pt"), 8).unwrap();
    let e = net.to_device(Device::Cpu).unwrap_err().to_string();
    assert!(e.contains("names the device cuda:0") && e.contains("cpu"), "{e}");
}

#[test]
fn a_module_is_saved_with_the_tensors_that_it_has_now() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("again.pt");
    let net = Script::load(&golden("net.pt")).unwrap();
    tch::no_grad(|| net.members().unwrap().into_iter().for_each(|m| drop(m.tensor.shallow_clone().fill_(3))));
    net.save(&path).unwrap();
    let again = Script::load(&path).unwrap();
    assert_eq!(again.baked().unwrap(), net.baked().unwrap());
    let members = again.members().unwrap();
    assert_eq!(members.len(), 10);
    for m in members {
        assert!(m.tensor.eq(3).all().int64_value(&[]) != 0, "{}", m.name);
    }
}
