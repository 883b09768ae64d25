"""Runs of the release binary as Python's tools see them: weights, TensorBoard events, results."""

import json
import subprocess
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / "target" / "release"
CONFIG = """
data: {kind: synthetic, train: 128, test: 60, size: 16}
model:
  encoder: {kind: resnet18, stem: small, width: 64}
loss: {kind: weince}
optim: {kind: adam}
train: {epochs: 2, batch_size: 32, log_every: 1}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    (folder / "c.yaml").write_text(CONFIG)
    command = [BIN / "pretrain-vision", "--config", folder / "c.yaml", "--run-dir", folder / "run", "--device", "cpu"]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "run"


def simclr_resnet18():
    model = torchvision.models.resnet18()
    model.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    model.maxpool = torch.nn.Identity()
    model.fc = torch.nn.Identity()
    return model


def test_torchvision_takes_the_trained_encoder_strictly(run):
    model = simclr_resnet18()
    weights = torch.load(run / "checkpoints" / "encoder.pt", weights_only=True)
    model.load_state_dict(weights, strict=True)
    assert list(weights) == list(model.state_dict())
    # Two views a step, 8 steps: each passes BatchNorm once.
    assert int(weights["bn1.num_batches_tracked"]) == 16
    same = load_file(run / "checkpoints" / "encoder.safetensors")
    assert set(same) == set(weights)
    assert all(torch.equal(same[name], weights[name]) for name in weights)


def test_timm_takes_it_strictly_too(run):
    model = timm.create_model("resnet18", num_classes=0)
    model.conv1, model.maxpool = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False), torch.nn.Identity()
    model.load_state_dict(torch.load(run / "checkpoints" / "encoder.pt", weights_only=True), strict=True)
    other = simclr_resnet18()
    other.load_state_dict(model.state_dict(), strict=True)
    images = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(images), other.eval()(images))


def test_the_projector_is_the_authors(run):
    projector = torch.nn.Sequential(
        torch.nn.Linear(512, 512, bias=False), torch.nn.ReLU(), torch.nn.Linear(512, 64, bias=False)
    )
    weights = torch.load(run / "checkpoints" / "projector.pt", weights_only=True)
    projector.load_state_dict(weights, strict=True)


def test_tensorboard_reads_the_events(run):
    events = EventAccumulator(str(run / "tb"))
    events.Reload()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for name in ["loss", "lr", "grad_norm", "lambda_mean"]:
        points = events.Scalars(f"train/{name}")
        assert [p.step for p in points] == list(range(1, 9))
        # Events hold float32.
        assert [p.value for p in points] == pytest.approx([line[name] for line in lines], rel=1e-6)


def test_evaluations_of_the_run_record_their_protocol(run):
    for name, key in [("linear", "test_accuracy"), ("knn", "accuracy_at_k")]:
        command = [BIN / f"eval-{name}", "--run", run, "--json", "--device", "cpu"]
        printed = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        stored = json.loads((run / "results" / f"{name}.json").read_text())
        assert printed == stored
        assert key in stored and 0.0 <= stored["test_accuracy"] <= 1.0
        assert stored["counts"]["test"] == 60 and stored["counts"]["train"] == 128
        assert len(stored["checkpoint_sha256"]) == 64 and len(stored["data"]["test"]["sha256"]) == 64
        assert stored["protocol"] and stored["versions"]["libtorch"] == torch.__version__.split("+")[0]


def test_kept_features_give_the_same_result_and_are_made_anew_when_damaged(run):
    command = [BIN / "eval-linear", "--run", run, "--device", "cpu"]
    result, kept = run / "results" / "linear.json", run / "results" / "features_train.safetensors"

    def evaluate():
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return result.read_bytes(), done.stderr

    kept.unlink(missing_ok=True)
    fresh, said = evaluate()
    features = kept.read_bytes()
    assert "computed again" not in said and evaluate() == (fresh, said)
    kept.write_bytes(features[: len(features) // 2])
    again, said = evaluate()
    assert again == fresh and "computed again" in said and str(kept) in said
    assert kept.read_bytes() == features


def test_a_checkpoint_can_be_evaluated(run):
    """The last checkpoint and the trained encoder hold the same weights, so they evaluate alike."""
    command = [BIN / "eval-knn", "--run", run, "--json", "--device", "cpu"]
    own = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    last = run / "checkpoints" / (run / "checkpoints" / "LAST").read_text().strip()
    out = run / "last.json"
    command += ["--checkpoint", last, "--out", out]
    other = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert own["accuracy_at_k"] == other["accuracy_at_k"]
