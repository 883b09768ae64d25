#!/usr/bin/env python3
"""Writing and reading a checkpoint of ResNet-50 with Adam's state: ours against torch.save and torch.load, in turns, on one disk.

    .venv/bin/python scripts/bench/checkpoint.py [--turns 9] [--folder DIR] [--peer-only] [--quick]

Ours is on the disk when it returns (fsync) and its checksums are verified when it is read. PyTorch's is timed as it is and with an fsync after it.
Every file is new: a run's checkpoints have new names, and to replace a file costs more. --folder is on the disk to measure.
"""

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

import paired


def peer(sync: str) -> None:
    """Answers lines as benches/checkpoint.rs does."""
    import torch
    import torchvision
    from torch import nn

    encoder = torchvision.models.resnet50()
    encoder.fc = nn.Identity()
    projector = nn.Sequential(nn.Linear(2048, 2048, bias=False), nn.ReLU(), nn.Linear(2048, 64, bias=False))
    optimizer = torch.optim.Adam([*encoder.parameters(), *projector.parameters()])
    for p in [*encoder.parameters(), *projector.parameters()]:
        p.grad = torch.ones_like(p)
    optimizer.step()
    for line in sys.stdin:
        what, file = line.rstrip("\n").split(" ", 1)
        start = time.perf_counter()
        if what == "save":
            state = {"model": encoder.state_dict(), "projector": projector.state_dict(), "optimizer": optimizer.state_dict()}
            with open(file, "wb") as f:
                torch.save(state, f)
                if sync == "fsync":
                    f.flush()
                    os.fsync(f.fileno())
        else:
            torch.load(file, weights_only=True)
        print(time.perf_counter() - start, flush=True)


def main() -> None:
    args = paired.arguments(__doc__, "PyTorch", 1, quick={"turns": 1}, turns=9, folder="")
    if args.peer:
        return peer(*args.peer)

    commands = {} if args.peer_only else {"ours": [paired.bench_binary("checkpoint")]}
    commands |= {name: [sys.executable, __file__, "--peer", name.split()[-1]] for name in ("torch, fsync", "torch, plain")}
    record = paired.Comparison(
        "checkpoint",
        "A checkpoint of ResNet-50 with Adam's state",
        """Written as a new file and read again. Ours is on the disk when it returns, and its checksums are verified when it is read; PyTorch's `torch.save` as it is, and with an fsync after
        it, and `torch.load(weights_only=True)`. Files are in the system's memory when they are read.""",
        args,
        ("torchvision",),
    )
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.folder or None)))
        served = {name: stack.enter_context(paired.Served(command, len(paired.cores()))) for name, command in commands.items()}
        times = {what: {name: [] for name in served} for what in ("save", "load")}
        for turn in range(args.turns + 1):
            for name, program in served.items():
                file = folder / f"{name.replace(', ', '-')}.pt"
                file.unlink(missing_ok=True)
                for what in times:
                    seconds = program.ask(f"{what} {file}")
                    if turn:
                        times[what][name].append(seconds)
        sizes = {file.stem: file.stat().st_size for file in folder.glob("*.pt")}
        # Each reads what the other wrote.
        if not args.peer_only:
            served["ours"].ask(f"load {folder / 'torch-plain.pt'}")
            served["torch, plain"].ask(f"load {folder / 'ours.pt'}")
    record.add("write", times["save"], headline={"torch, fsync": "torch.save and fsync"})
    record.add("read", {name: times["load"][name] for name in times["load"] if name != "torch, fsync"}, headline={"torch, plain": "torch.load"})
    record.note("Bytes of the files: " + ", ".join(f"{name} {size:,}" for name, size in sorted(sizes.items())) + ".")
    if not args.peer_only:
        record.finish()


if __name__ == "__main__":
    main()
