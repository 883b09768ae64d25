"""Checkpoints of the release binary in Python: opened as plain data, trained on with torch.optim, written again, resumed here."""

import shutil
import subprocess
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import load_file
from torch import nn

from test_model import drive

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "target" / "release"
CONFIG = """
data: {kind: synthetic, train: 50, test: 20, size: 16}
model:
  encoder: {kind: resnet18, stem: small}
loss: {kind: infonce, temperature: 0.2}
optim: OPTIM
schedule: {kind: cosine, warmup_steps: 4}
train: {epochs: 3, batch_size: 16, log_every: 1}
checkpoint: {every_steps: 1, keep: 100}
"""
OPTIMS = {
    "adamw": ("{kind: adamw, lr: 1.0e-3, exclude_bias_and_norm: true}", torch.optim.AdamW),
    "adam": ("{kind: adam, lr: 1.0e-3, weight_decay: 1.0e-4}", torch.optim.Adam),
    "sgd": ("{kind: sgd, lr: 0.05, momentum: 0.9, nesterov: true, weight_decay: 1.0e-4}", torch.optim.SGD),
}


def pretrain(folder: Path, *more) -> str:
    command = [BIN / "pretrain-vision", "--config", folder / "c.yaml", "--device", "cpu", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module", params=OPTIMS)
def run(request, tmp_path_factory):
    """A run's folder and the class of its optimizer; `indirect` parameters choose among the optimizers."""
    folder = tmp_path_factory.mktemp(request.param)
    text, torch_class = OPTIMS[request.param]
    (folder / "c.yaml").write_text(CONFIG.replace("OPTIM", text))
    pretrain(folder, "--run-dir", folder / "run")
    return folder, torch_class


only_adamw = pytest.mark.parametrize("run", ["adamw"], indirect=True)


def state(folder: Path, step: int, **how) -> dict:
    return torch.load(folder / f"run/checkpoints/step-{step:09}.pt", weights_only=True, **how)


def networks():
    encoder = torchvision.models.resnet18()
    encoder.conv1, encoder.maxpool, encoder.fc = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity(), nn.Identity()
    projector = nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU(), nn.Linear(512, 64, bias=False))
    return encoder, projector


def infonce(z_1, z_2, temperature):
    u = nn.functional.normalize(torch.cat([z_1, z_2]))
    n = len(z_1)
    logits = (u @ u.T / temperature).fill_diagonal_(float("-inf"))
    return nn.functional.cross_entropy(logits, torch.arange(2 * n).roll(n))


def groups(encoder, projector, saved: dict):
    """The parameters as the checkpoint has them: model, then projector; one-dimensional ones apart where it has two groups."""
    parameters = [*encoder.parameters(), *projector.parameters()]
    if len(saved["param_groups"]) == 1:
        return parameters
    return [{"params": [p for p in parameters if p.dim() > 1]}, {"params": [p for p in parameters if p.dim() <= 1]}]


def test_a_plain_loop_goes_on_where_ours_was(run, tmp_path):
    folder, torch_class = run
    before, after = state(folder, 6), state(folder, 7)
    encoder, projector = networks()
    encoder.load_state_dict(before["model"], strict=True)
    projector.load_state_dict(before["projector"], strict=True)
    optimizer = torch_class(groups(encoder, projector, before["optimizer"]), lr=123.0)
    optimizer.load_state_dict(before["optimizer"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    schedule.load_state_dict(before["scheduler"])
    assert schedule.last_epoch == 6 and schedule.get_last_lr()[0] == optimizer.param_groups[0]["lr"]
    torch.amp.GradScaler("cpu", enabled=False).load_state_dict(before["scaler"])

    drive("batch", folder / "c.yaml", 6, tmp_path / "views.safetensors")
    views = load_file(tmp_path / "views.safetensors")
    encoder.train()
    loss = infonce(projector(encoder(views["view_1"])), projector(encoder(views["view_2"])), 0.2)
    loss.backward()
    optimizer.step()
    # Ours lies channels last, and float32 kernels differ in the gradients: a part in 500 of a step has been seen.
    for part, theirs in (("model", encoder), ("projector", projector)):
        for name, tensor in theirs.state_dict().items():
            gap, step = ((tensor - at[part][name]).float().norm() for at in (after, before))
            assert gap < 1e-2 * step, (name, gap, step)
    own = optimizer.state_dict()
    for group, expected in zip(own["param_groups"], after["optimizer"]["param_groups"]):
        assert group.keys() - {"initial_lr"} == expected.keys() - {"initial_lr"}
        assert group["params"] == expected["params"]
    for number, slots in own["state"].items():
        expected = after["optimizer"]["state"][number]
        assert slots.keys() == expected.keys()
        for slot, tensor in slots.items():
            assert (tensor.dtype, tensor.shape) == (expected[slot].dtype, expected[slot].shape)


@only_adamw
def test_it_is_plain_data_with_everything_in_it(run):
    folder, _ = run
    for how in ({}, {"mmap": True}):
        got = state(folder, 8, **how)
        assert list(got) == [
            "model", "projector", "optimizer", "scheduler", "scaler", "loss_state", "step", "epoch", "sampler", "code_sha256", "seeds", "rng",
            "best", "config", "versions",
        ]
        assert (got["step"], got["epoch"]) == (8, 2)
        sampler = dict(got["sampler"])
        assert len(bytes.fromhex(sampler.pop("list_sha256"))) == 32
        assert sampler == {"epoch": 2, "position": 32, "batch_size": 16, "images": 50}
        assert got["config"]["model"]["encoder"] == {"kind": "resnet18", "stem": "small", "width": 64}
        assert got["versions"]["libtorch"] == "2.11.0" and got["loss_state"] == {"beta_ema": None}
        assert type(got["model"]) is OrderedDict and type(got["optimizer"]) is dict
    torch.manual_seed(got["seeds"]["step"])
    assert torch.equal(torch.get_rng_state(), got["rng"]["cpu"])
    torch.set_rng_state(got["rng"]["cpu"])


def test_a_file_that_python_wrote_again_is_resumed_here(run, tmp_path):
    folder, torch_class = run
    copy = tmp_path / "copy"
    shutil.copytree(folder / "run", copy)
    for path in copy.glob("checkpoints/step-*.pt"):
        if path.name != "step-000000006.pt":
            path.unlink()
    got = torch.load(copy / "checkpoints/step-000000006.pt", weights_only=True)
    # Through an optimizer of PyTorch's, so that the state is as Python writes it.
    optimizer = torch_class(groups(*networks(), got["optimizer"]), lr=1.0)
    optimizer.load_state_dict(got["optimizer"])
    got["optimizer"] = optimizer.state_dict()
    torch.save(got, copy / "checkpoints/step-000000006.pt")
    pretrain(folder, "--run-dir", copy, "--resume")
    for name in ("step-000000009.pt", "encoder.safetensors"):
        assert (copy / "checkpoints" / name).read_bytes() == (folder / "run/checkpoints" / name).read_bytes()


@only_adamw
def test_weights_start_a_run_wholly_or_as_it_says(run, tmp_path):
    folder, _ = run
    first = folder / "run/checkpoints/step-000000006.pt"
    weights = "model.weights={path: %s, allow_missing: [%s]}"
    said = pretrain(folder, "--run-dir", tmp_path / "a", "--set", weights % (first, ""), "--set", "train.epochs=1", "--set", "schedule.warmup_steps=0")
    assert "encoder from" in said and "120 tensors under `model.`" in said and "2 tensors under `projector.`" in said
    started = torch.load(tmp_path / "a/checkpoints/step-000000000.pt", weights_only=True)
    expected = torch.load(first, weights_only=True)
    for part in ("model", "projector"):
        assert all(torch.equal(t, expected[part][name]) for name, t in started[part].items())

    net = torchvision.models.resnet18()
    net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    torch.save(net.state_dict(), tmp_path / "torchvision.pt")

    def start(name: str, file: Path, allowed: str) -> subprocess.CompletedProcess:
        sets = ["train.epochs=1", "schedule.warmup_steps=0", weights % (file, allowed)]
        command = [BIN / "pretrain-vision", "--config", folder / "c.yaml", "--device", "cpu", "--run-dir", tmp_path / name]
        return subprocess.run([*command, *(a for s in sets for a in ("--set", s))], capture_output=True, text=True)

    done = start("b", tmp_path / "torchvision.pt", "")
    assert done.returncode == 1 and "no tensor of the projector" in done.stderr and "allow_missing" in done.stderr
    assert not (tmp_path / "b").exists()
    done = start("b", tmp_path / "torchvision.pt", r"projector\..*")
    assert done.returncode == 0 and "the classifier is left out: fc.weight, fc.bias" in done.stderr, done.stderr
    assert "projector starts random" in done.stderr
    started = torch.load(tmp_path / "b/checkpoints/step-000000000.pt", weights_only=True)["model"]
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in started.items())

    # What no permission to be missing mends is not offered one.
    torch.save(net.state_dict() | {"layer9.weight": torch.ones(2)}, tmp_path / "more.pt")
    done = start("c", tmp_path / "more.pt", r"projector\..*")
    assert done.returncode == 1 and "layer9.weight" in done.stderr and "allow_missing" not in done.stderr, done.stderr
    one_nan = net.layer1[0].conv1.weight.detach().clone()
    one_nan[3, 2, 1, 0] = float("nan")
    torch.save(net.state_dict() | {"layer1.0.conv1.weight": one_nan}, tmp_path / "nan.pt")
    done = start("c", tmp_path / "nan.pt", r"projector\..*")
    assert done.returncode != 0 and "layer1.0.conv1.weight has values that are not finite" in done.stderr, done.stderr
    assert not (tmp_path / "c").exists()

    # A predictor, another network's projector, or one that does not fit is not the projector.
    net.fc = nn.Identity()
    student = {f"student.backbone.{n}": t for n, t in net.state_dict().items()}
    first_layer, second_layer = torch.rand(512, 512), torch.rand(64, 512)
    for i, (place, second) in enumerate(
        (("student.predictor", second_layer), ("teacher.projector", second_layer), ("student.projector", torch.rand(32, 512)))
    ):
        torch.save(student | {f"{place}.0.weight": first_layer, f"{place}.2.weight": second}, tmp_path / "student.pt")
        done = start(f"c{i}", tmp_path / "student.pt", r"projector\..*")
        assert done.returncode == 0 and "projector starts random" in done.stderr, done.stderr


def test_a_trained_torchscript_backbone_is_one_again(tmp_path):
    module = ROOT / "tests/golden/script/calm.pt"
    (tmp_path / "c.yaml").write_text(CONFIG.replace("OPTIM", OPTIMS["adamw"][0]))
    model = f"model={{backbone: {{kind: torchscript, path: {module}}}}}"
    pretrain(tmp_path, "--run-dir", tmp_path / "run", "--set", model)
    last = tmp_path / "run/checkpoints/step-000000009.pt"
    out = tmp_path / "trained.pt"
    subprocess.run([BIN / "checkpoint", "convert", last, out, "--script", module], check=True, capture_output=True)
    weights = torch.load(last, weights_only=True)["model"]
    trained, before = torch.jit.load(out), torch.jit.load(module)
    assert list(weights) == list(trained.state_dict())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in trained.state_dict().items())
    images = torch.rand(2, 3, 9, 9)
    with torch.no_grad():
        got = trained.eval()(images)
        assert not torch.equal(got, before.eval()(images))
        before.load_state_dict(weights, strict=True)
        assert torch.equal(got, before(images))
    # And a plain state_dict out of the module.
    plain = tmp_path / "plain.safetensors"
    subprocess.run([BIN / "checkpoint", "convert", out, plain], check=True, capture_output=True)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in load_file(plain).items())


@only_adamw
def test_the_command_converts_by_rules_and_tells_differences(run, tmp_path):
    folder, _ = run
    last, before = (folder / f"run/checkpoints/step-{step:09}.pt" for step in (9, 8))
    out = tmp_path / "stages.pth"
    rules = ["--only", r"model\..*", "--strip-prefix", "model.", "--rename", r"^layer(\d)\.=stages.$1."]
    subprocess.run([BIN / "checkpoint", "convert", last, out, *rules], check=True, capture_output=True)
    got, expected = torch.load(out, weights_only=True), torch.load(last, weights_only=True)["model"]
    renamed = [name.replace("layer", "stages.", 1) if name.startswith("layer") else name for name in expected]
    assert list(got) == renamed and all(torch.equal(a, b) for a, b in zip(got.values(), expected.values()))

    def diff(*args):
        return subprocess.run([BIN / "checkpoint", "diff", *args], capture_output=True, text=True)

    same = diff(last, last)
    assert same.returncode == 0 and same.stdout == "no difference\n"
    other = diff(last, before)
    assert other.returncode == 1 and "step: 9, 8" in other.stdout and "model.conv1.weight: differs by up to" in other.stdout
    encoder = folder / "run/checkpoints/encoder.pt"
    assert diff(last, encoder, "--only", r"model\..*", "--strip-prefix", "model.").returncode == 2
    weights = diff(last, encoder, "--only", r"(model\.)?(conv1|bn1|layer).*", "--strip-prefix", "model.")
    assert weights.returncode == 0, weights.stdout
    text = subprocess.run([BIN / "checkpoint", "inspect", last], capture_output=True, text=True, check=True).stdout
    assert "model.bn1.num_batches_tracked" in text and "int64" in text and "step = 9" in text
    damaged = tmp_path / "damaged.pt"
    data = bytearray(last.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    check = subprocess.run([BIN / "checkpoint", "verify", damaged, folder / "run"], capture_output=True, text=True)
    assert check.returncode == 1 and check.stdout.count("damaged  ") == 1 and check.stdout.count("ok  ") >= 12
    assert "damaged.pt" in check.stdout
