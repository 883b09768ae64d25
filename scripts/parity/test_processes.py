"""Runs of several processes under torchrun, with its restarts, and on two hosts, which are network namespaces where the machine allows them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

ROOT = Path(__file__).resolve().parents[2]
BINARY = ROOT / "target/release/pretrain-vision"
TORCHRUN = Path(sys.executable).with_name("torchrun")
# Short steps: small nets are chaotic at their beginning, and a rounding of a long one is a hundred of them in the next.
CONFIG = """
data: {kind: synthetic, train: 128, test: 12, size: 16}
augment: {size: 16}
model:
  encoder: {kind: resnet18, stem: small, width: 8}
  projector: {dim: 32}
loss: {kind: infonce}
optim: {kind: sgd, lr: 0.0001, momentum: 0.9}
train: {epochs: 5, batch_size: 32, log_every: 1}
checkpoint: {every_steps: 4}
"""
PATIENCE = 180


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def environment(**more) -> dict:
    return os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"} | more


def train(folder: Path, run: str, *more) -> list:
    (folder / "run.yaml").write_text(CONFIG)
    return [BINARY, "--config", folder / "run.yaml", "--run-dir", folder / run, "--device", "cpu", *more]


def text(*command) -> list[str]:
    return list(map(str, command))


def weights(folder: Path, run: str) -> dict:
    return load_file(folder / run / "checkpoints/encoder.safetensors") | load_file(folder / run / "checkpoints/projector.safetensors")


def train_lines(folder: Path, run: str) -> list[dict]:
    lines = map(json.loads, (folder / run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line.get("split") == "train"]


def difference(a: dict, b: dict) -> float:
    """Of all weights, as a share of their length."""
    assert a.keys() == b.keys()
    flat = lambda weights: torch.cat([weights[name].double().flatten() for name in b])
    return ((flat(a) - flat(b)).norm() / flat(b).norm()).item()


def alone(folder: Path) -> dict:
    subprocess.run(text(*train(folder, "alone")), check=True, capture_output=True, env=environment())
    return weights(folder, "alone")


@pytest.mark.parametrize("size", [2, 4])
def test_torchrun_trains_the_run_of_one_process(tmp_path, size):
    expected = alone(tmp_path)
    command = [TORCHRUN, "--no-python", "--nproc-per-node", size, "--master-port", free_port(), *train(tmp_path, "run")]
    done = subprocess.run(text(*command), capture_output=True, text=True, env=environment(), timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("steps     20") == 1
    # 20 steps in float32, sums in another order.
    assert difference(weights(tmp_path, "run"), expected) < 1e-5
    # PyTorch reads the state that rank 0 wrote.
    state = torch.load(tmp_path / "run/checkpoints/step-000000020.pt", weights_only=True)
    assert state["step"] == 20 and state["model"].keys() == torch.load(tmp_path / "alone/checkpoints/step-000000020.pt", weights_only=True)["model"].keys()


def children_with(run: Path) -> dict[int, int]:
    """Process numbers of a run's ranks."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            if command[0].endswith(b"pretrain-vision") and str(run).encode() in command:
                variables = dict(v.split(b"=", 1) for v in (entry / "environ").read_bytes().split(b"\0") if b"=" in v)
                found[int(variables[b"RANK"])] = int(entry.name)
        except (OSError, KeyError):
            continue
    return found


def test_torchrun_restarts_what_was_killed_and_it_goes_on(tmp_path):
    run = tmp_path / "run"
    command = [TORCHRUN, "--no-python", "--nproc-per-node", 2, "--max-restarts", 2, "--monitor-interval", "0.2", "--master-port", free_port()]
    command += train(tmp_path, "run", "--set", "train.epochs=30")
    process = subprocess.Popen(text(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    begun = time.monotonic()
    while not (run / "metrics.jsonl").exists() or len(train_lines(tmp_path, "run")) < 10:
        assert process.poll() is None and time.monotonic() - begun < PATIENCE
        time.sleep(0.05)
    os.kill(children_with(run)[1], signal.SIGKILL)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert "rank 1" in err
    # Every step once, although some were made twice.
    assert [line["step"] for line in train_lines(tmp_path, "run")] == list(range(1, 121))
    assert len(json.loads((run / "environment.json").read_text())["earlier"]) >= 1


@pytest.fixture
def two_hosts():
    """Two network namespaces with a cable between them."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    names = [f"weince{os.getpid()}{side}" for side in "ab"]
    ip = lambda *words: subprocess.run(["ip", *words], capture_output=True, text=True)
    try:
        if (made := ip("netns", "add", names[0])).returncode or (made := ip("netns", "add", names[1])).returncode:
            pytest.skip(f"no network namespaces here: {made.stderr.strip()}")
        cable = ip("link", "add", "va", "netns", names[0], "type", "veth", "peer", "name", "vb", "netns", names[1])
        if cable.returncode:
            pytest.skip(f"no virtual cable here: {cable.stderr.strip()}")
        for name, device, address in [(names[0], "va", "10.77.0.1/24"), (names[1], "vb", "10.77.0.2/24")]:
            for words in (["addr", "add", address, "dev", device], ["link", "set", device, "up"], ["link", "set", "lo", "up"]):
                assert ip("-n", name, *words).returncode == 0
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


def on_hosts(two_hosts, folder: Path, run: str, more: list, port: int) -> list[subprocess.Popen]:
    def start(rank: int) -> subprocess.Popen:
        launch = [ROOT / "scripts/launch.sh", "--procs", 2, "--nodes", 2, "--node-rank", rank, "--host", "10.77.0.1", "--port", port, "--"]
        command = ["ip", "netns", "exec", two_hosts[rank], *launch, *train(folder, run, *more)]
        return subprocess.Popen(text(*command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())

    return [start(0), start(1)]


def test_two_hosts_train_one_run(tmp_path, two_hosts):
    expected = alone(tmp_path)
    hosts = on_hosts(two_hosts, tmp_path, "run", [], 29500)
    said = [host.communicate(timeout=PATIENCE) for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], said
    assert "steps     20" in said[0][0] and said[1][0] == ""
    # c10d remarks that these hosts have no names.
    assert all("[c10d]" in line for line in said[1][1].splitlines()), said[1]
    assert difference(weights(tmp_path, "run"), expected) < 1e-5


def test_a_host_that_is_cut_off_ends_the_run_within_the_timeout(tmp_path, two_hosts):
    hosts = on_hosts(two_hosts, tmp_path, "run", ["--set", "train.epochs=100000", "--dist-timeout", "8s"], 29501)
    begun = time.monotonic()
    while not (tmp_path / "run/metrics.jsonl").exists() or len(train_lines(tmp_path, "run")) < 5:
        assert all(host.poll() is None for host in hosts) and time.monotonic() - begun < PATIENCE
        time.sleep(0.05)
    subprocess.run(["ip", "-n", two_hosts[1], "link", "set", "vb", "down"], check=True)
    said = [host.communicate(timeout=PATIENCE) for host in hosts]
    assert all(host.returncode == 1 for host in hosts), said
    # No packet says that the other host is gone: only time does.
    assert "rank 2" in said[0][1] and "rank 3" in said[0][1], said[0][1]
