"""loss-check against torch's own cross-entropy: value and gradient of InfoNCE in both layouts."""

import json
import pathlib
import subprocess

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = ROOT / "target" / "release" / "loss-check"


def infonce(layout: str, z_i: torch.Tensor, z_j: torch.Tensor, temperature: float) -> torch.Tensor:
    n = z_i.size(0)
    if layout == "one_way":
        s = F.cosine_similarity(z_i[:, None], z_j[None], dim=2)
        return F.cross_entropy(s / temperature, torch.arange(n))
    z = torch.cat([z_i, z_j])
    s = F.cosine_similarity(z[:, None], z[None], dim=2) / temperature
    s = s.masked_fill(torch.eye(2 * n, dtype=torch.bool), float("-inf"))
    return F.cross_entropy(s, torch.arange(2 * n).roll(n))


# float32: the peer's own sums err by about 1e-7 of the largest term, more at the lower temperature.
@pytest.mark.parametrize("dtype, loss_tolerance, grad_tolerance", [(torch.float64, 1e-13, 1e-11), (torch.float32, 1e-6, 1e-5)])
@pytest.mark.parametrize("layout", ["two_view", "one_way"])
@pytest.mark.parametrize("n, d, temperature", [(2, 3, 0.5), (17, 8, 0.05), (64, 128, 0.2)])
def test_infonce_is_torchs_cross_entropy(tmp_path, dtype, loss_tolerance, grad_tolerance, layout, n, d, temperature):
    torch.manual_seed(n)
    z_i, z_j = (torch.randn(n, d, dtype=dtype) * 3 for _ in range(2))
    save_file({"z_i": z_i, "z_j": z_j}, tmp_path / "z.safetensors")
    out = tmp_path / "g.safetensors"
    command = [BINARY, "--embeddings", tmp_path / "z.safetensors", "--layout", layout, "--out", out, "--json"]
    done = subprocess.run([*command, "--set", f"loss.temperature={temperature}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    leaves = [z.clone().requires_grad_() for z in (z_i, z_j)]
    loss = infonce(layout, *leaves, temperature)
    loss.backward()
    assert report["loss"] == pytest.approx(loss.item(), rel=loss_tolerance)
    written = load_file(out)
    assert set(written) == {"grad_z_i", "grad_z_j", "rho"}
    for name, leaf in zip(("grad_z_i", "grad_z_j"), leaves):
        assert written[name].dtype == dtype
        error = (written[name] - leaf.grad).abs().max() / leaf.grad.abs().max()
        assert error < grad_tolerance, name


def test_the_float64_loss_has_17_digits(tmp_path):
    torch.manual_seed(0)
    save_file({"z_i": torch.randn(9, 5).double(), "z_j": torch.randn(9, 5).double()}, tmp_path / "z.safetensors")
    command = [BINARY, "--embeddings", tmp_path / "z.safetensors", "--set", "loss.kind=weince"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    report = json.loads(subprocess.run([*command, "--json"], capture_output=True, text=True, check=True).stdout)
    line = next(line for line in text.splitlines() if line.startswith("loss "))
    digits = line.split()[1]
    assert float(digits) == report["loss"]
    assert len(digits.replace(".", "").lstrip("0")) == 17
