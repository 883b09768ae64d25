"""PyTorch against the Rust encoders and weight files: weights travel both ways, strictly, and give the same features.

Needs the example `parity_model`, which `cargo test --release` builds.
"""

import math
import os
import subprocess
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torchvision
from torch import nn

DRIVER = Path(__file__).resolve().parents[2] / "target/release/examples/parity_model"


def drive(*args, threads: int = 1) -> str:
    assert DRIVER.exists(), f"{DRIVER} is missing: run `cargo test --release` (or `cargo build --release --examples`)"
    env = os.environ | {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run([DRIVER, *map(str, args)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def network(kind: str, stem: str) -> nn.Module:
    net = getattr(torchvision.models, kind)()
    if stem == "small":
        net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        net.maxpool = nn.Identity()
    net.fc = nn.Identity()
    return net


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_weights_travel_both_ways(kind, stem, tmp_path):
    torch.manual_seed(0)
    net = network(kind, stem)
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name.endswith(("running_mean", "bias")):
                tensor.normal_(0, 0.1)
            elif "bn" in name and name.endswith(("running_var", "weight")):
                tensor.uniform_(0.5, 1.5)
    images = torch.randn(4, 3, 48, 40)
    safetensors.torch.save_file(net.state_dict(), tmp_path / "weights.safetensors")
    safetensors.torch.save_file({"images": images}, tmp_path / "images.safetensors")
    drive("encode", f"{{kind: {kind}, stem: {stem}}}", tmp_path / "weights.safetensors",
          tmp_path / "images.safetensors", tmp_path)

    features = safetensors.torch.load_file(tmp_path / "features.safetensors")
    with torch.no_grad():
        for mode in ("eval", "train"):
            net.train(mode == "train")
            expected = net(images)
            gap = (features[mode] - expected).norm() / expected.norm()
            # Batch statistics of a deep net amplify float32 rounding: the order of sums differs with the threads of each side.
            assert gap < (1e-5 if mode == "eval" else 1e-4), (mode, gap)

    # The Rust side has taken one training pass too: the files hold the same running statistics.
    for load in (
        lambda: torch.load(tmp_path / "encoder.pt", weights_only=True),
        lambda: torch.load(tmp_path / "encoder.pt", weights_only=True, mmap=True),
        lambda: safetensors.torch.load_file(tmp_path / "encoder.safetensors"),
    ):
        other = network(kind, stem)
        other.load_state_dict(load(), strict=True)
        for (name, ours), theirs in zip(other.state_dict().items(), net.state_dict().values()):
            assert ours.dtype == theirs.dtype, name
            # As above: running statistics of the deepest layers carry the amplified rounding.
            torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4, msg=name)
    state = torch.load(tmp_path / "encoder.pt", weights_only=True)
    assert type(state) is OrderedDict and list(state) == list(net.state_dict())


@pytest.mark.parametrize("kind", ["resnet18", "resnet50"])
def test_a_seed_draws_torchvisions_initial_weights_whatever_the_thread_count(kind, tmp_path):
    net = network(kind, "small")
    torch.manual_seed(11)
    # torchvision's own loop over its modules, and then the projector by nn.Linear's own initialisation.
    for m in net.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    features = 512 if kind == "resnet18" else 2048
    projector = nn.Sequential(nn.Linear(features, features, bias=False), nn.ReLU(), nn.Linear(features, 64, bias=False))
    expected = {f"encoder.{n}": t for n, t in net.state_dict().items()}
    expected |= {f"projector.{n}": t for n, t in projector.state_dict().items()}

    files = []
    for threads in (1, 2):
        drive("initial", f"encoder: {{kind: {kind}, stem: small}}", 11, tmp_path, threads=threads)
        files.append((tmp_path / "initial.safetensors").read_bytes())
    assert files[0] == files[1]
    got = safetensors.torch.load(files[0])
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(got[name], tensor), name


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    folder = tmp_path_factory.mktemp("values")
    drive("values", folder)
    return folder


@pytest.mark.parametrize("mmap", [False, True])
def test_plain_values_keep_their_types(values, mmap):
    got = torch.load(values / "values.pt", weights_only=True, mmap=mmap)
    base = torch.tensor([[0, 1, 1], [0, 1, 1]])
    for name, tensor in got["kinds"].items():
        assert tensor.dtype == getattr(torch, name)
        assert torch.equal(tensor, base.to(tensor.dtype)), name
    assert torch.equal(got["transposed"], base.float().T) and got["transposed"].is_contiguous()
    assert got["scalar"].shape == () and got["scalar"].item() == 2.5 and got["empty"].shape == (0, 3)
    assert not got["trained"].requires_grad
    first, second = got["shared"]
    assert first.data_ptr() == second.data_ptr() and first.tolist() == [1.0, 2.0]
    assert got["ints"] == [0, 255, 256, -1, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**64 - 1, -(2**100)]
    assert got["floats"] == (0.1, -0.0, math.inf, 5e-324) and math.copysign(1, got["floats"][1]) == -1
    assert got["flags"][0] is True and got["flags"][1] is False and got["flags"][2] is None
    assert got["text"] == "\u00e9\U0001f600\n'\"" and got["long text"] == "x" * 300
    assert got["empty things"] == [[], (), {}, OrderedDict(), ""]
    assert [type(x) for x in got["empty things"]] == [list, tuple, dict, OrderedDict, str]
    assert got["by number"] == {0: {"step": 1.0}, 1: None}


def test_the_container_is_a_sound_zip_with_aligned_tensors(values):
    with zipfile.ZipFile(values / "values.pt") as archive:
        assert archive.testzip() is None
        for entry in archive.infolist():
            with open(values / "values.pt", "rb") as f:
                f.seek(entry.header_offset + 26)
                name, extra = (int.from_bytes(f.read(2), "little") for _ in range(2))
            assert (entry.header_offset + 30 + name + extra) % 64 == 0, entry.filename


def test_safetensors_keep_their_types(values):
    got = safetensors.torch.load_file(values / "values.safetensors")
    assert len(got) == 10
    for name, tensor in got.items():
        assert tensor.dtype == getattr(torch, name), name
        assert torch.equal(tensor.long(), torch.tensor([[0, 1, 1], [0, 1, 1]])), name
