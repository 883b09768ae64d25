#!/usr/bin/env python3
"""Writing and reading a checkpoint of ResNet-50 with Adam's state: ours against torch.save and torch.load, in turns, on one disk.

    .venv/bin/python scripts/bench/checkpoint.py [--rounds 9] [--folder DIR]

Ours is on the disk when it returns (fsync) and its checksums are verified when it is read. PyTorch's is timed as it is and with
an fsync after it. Every file is new: a run's checkpoints have new names, and to replace a file costs more. Prints seconds (least and median of the rounds) and the ratios; --json for one object.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
import torchvision
from torch import nn

ROOT = Path(__file__).resolve().parents[2]


def bench_binary(name: str) -> str:
    command = ["cargo", "build", "--release", "--bench", name, "--message-format=json"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout.splitlines()
    found = [line.get("executable") for line in map(json.loads, lines) if line.get("target", {}).get("kind") == ["bench"]]
    return next(path for path in found if path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary folder unless given")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    ours = subprocess.Popen([bench_binary("checkpoint")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(what: str, file: Path) -> float:
        if what == "save":
            file.unlink(missing_ok=True)
        ours.stdin.write(f"{what} {file}\n")
        ours.stdin.flush()
        return float(ours.stdout.readline())

    encoder = torchvision.models.resnet50()
    encoder.fc = nn.Identity()
    projector = nn.Sequential(nn.Linear(2048, 2048, bias=False), nn.ReLU(), nn.Linear(2048, 64, bias=False))
    optimizer = torch.optim.Adam([*encoder.parameters(), *projector.parameters()])
    for p in [*encoder.parameters(), *projector.parameters()]:
        p.grad = torch.ones_like(p)
    optimizer.step()
    state = {"model": encoder.state_dict(), "projector": projector.state_dict(), "optimizer": optimizer.state_dict()}

    def save(file: Path, sync: bool) -> float:
        file.unlink(missing_ok=True)
        start = time.perf_counter()
        with open(file, "wb") as f:
            torch.save(state, f)
            if sync:
                f.flush()
                os.fsync(f.fileno())
        return time.perf_counter() - start

    def load(file: Path) -> float:
        start = time.perf_counter()
        torch.load(file, weights_only=True)
        return time.perf_counter() - start

    times = {name: [] for name in ("ours save", "torch.save", "torch.save and fsync", "ours load", "torch.load")}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        a, b = Path(folder) / "ours.pt", Path(folder) / "torch.pt"
        for i in range(args.rounds + 1):
            row = {
                "ours save": ask("save", a),
                "torch.save": save(b, False),
                "torch.save and fsync": save(b, True),
                "ours load": ask("load", a),
                "torch.load": load(b),
            }
            if i > 0:
                for name, seconds in row.items():
                    times[name].append(seconds)
        sizes = (a.stat().st_size, b.stat().st_size)
        # Each reads what the other wrote.
        ask("load", b)
        torch.load(a, weights_only=True)
    ours.stdin.close()
    ours.wait()
    least = {name: min(values) for name, values in times.items()}
    median = {name: statistics.median(values) for name, values in times.items()}
    ratios = {
        "save / (torch.save and fsync)": ("ours save", "torch.save and fsync"),
        "save / torch.save": ("ours save", "torch.save"),
        "load / torch.load": ("ours load", "torch.load"),
    }
    if args.json:
        print(json.dumps({"bytes": sizes, "seconds": times, "torch": torch.__version__}))
        return
    print(f"{sizes[0] / 1e6:.0f} MB (ours), {sizes[1] / 1e6:.0f} MB (torch)")
    for name in times:
        print(f"{name:32} least {least[name]:.3f} s  median {median[name]:.3f} s")
    for name, (x, y) in ratios.items():
        print(f"{name:32} least {least[x] / least[y]:.2f}     median {median[x] / median[y]:.2f}")


if __name__ == "__main__":
    main()
