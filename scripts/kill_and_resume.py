#!/usr/bin/env python3
"""Kills a training run with SIGKILL at random moments, resumes it each time, and checks that it ends as one that was never killed.

    scripts/kill_and_resume.py [--kills 50] [--seed 0] [--folder DIR] [--binary target/release/pretrain-vision] [--config FILE]

After each kill the folder may hold one unfinished file at most, and after the next start none from before. At the end the
weights, the last checkpoint and the logged losses must equal those of the uninterrupted run to the bit. Standard library
only; takes about a second a kill. Exit code 0: all of that holds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = """
data: {kind: synthetic, train: 100, test: 40, size: 8}
augment: {size: 8}
model:
  encoder: {kind: resnet18, stem: small, width: 4}
  projector: {dim: 16}
loss: {kind: reference, policy: weibit, auto_weib_beta: true, min_tail_points: 20, r2_min: 0.0}
optim: {kind: adamw, lr: 1.0e-3}
schedule: {kind: cosine, warmup_epochs: 1}
train: {epochs: EPOCHS, batch_size: 16, log_every: 1}
checkpoint: {every_steps: 4, keep: 2, best_by: knn_accuracy}
eval: {knn_every: 2}
"""


def start(binary: Path, config: Path, run: Path) -> subprocess.Popen:
    command = [binary, "--config", config, "--run-dir", run, "--device", "cpu"]
    if run.exists():
        command.append("--resume")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen, what: str) -> None:
    _, text = process.communicate()
    if process.returncode != 0:
        sys.exit(f"error: {what} ended with {process.returncode}: {text}")


def unfinished(run: Path) -> list[Path]:
    return [path for path in run.rglob(".*.unfinished")]


def losses(run: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines if line["split"] == "train"]


def weights(run: Path) -> list[str]:
    """The files of checkpoints and of what was trained."""
    return sorted(str(path.relative_to(run)) for part in ("checkpoints", "model") for path in (run / part).rglob("*") if path.is_file())


def must_equal(killed: Path, whole: Path) -> str:
    """What was compared; ends the script where it differs."""
    if left := unfinished(killed):
        sys.exit(f"error: unfinished files are left: {left}")
    files = weights(whole)
    if files != (found := weights(killed)):
        sys.exit(f"error: the weights are {found}, expected {files}")
    for name in files:
        if (whole / name).read_bytes() != (killed / name).read_bytes():
            sys.exit(f"error: {name} differs from the uninterrupted run's")
    if losses(whole) != losses(killed):
        sys.exit("error: the logged losses differ from the uninterrupted run's")
    steps = [step for step, _ in losses(killed)]
    if steps != list(range(1, len(steps) + 1)):
        sys.exit(f"error: the logged steps have gaps or repeats: {steps}")
    return f"{', '.join(files)} and {len(steps)} losses"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--folder", type=Path, help="where the runs go and stay; a temporary folder unless given")
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/pretrain-vision")
    parser.add_argument("--config", type=Path, help="a run that logs every step, in place of one of a small ResNet")
    args = parser.parse_args()
    if not args.binary.exists():
        sys.exit(f"error: {args.binary} is missing: cargo build --release --bins")
    folder = args.folder or Path(tempfile.mkdtemp(prefix="kill_and_resume_"))
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.yaml"
    config.write_text(args.config.read_text() if args.config else CONFIG.replace("EPOCHS", str(args.epochs)))
    whole = folder / "whole"

    began = time.monotonic()
    finish(start(args.binary, config, whole), "the uninterrupted run")
    seconds = time.monotonic() - began
    print(f"the uninterrupted run took {seconds:.1f} s")

    moments = random.Random(args.seed)
    kills, runs = 0, 1
    killed = folder / "killed-1"
    while kills < args.kills:
        process = start(args.binary, config, killed)
        # Early moments too: the folder is then in the making.
        try:
            process.communicate(timeout=moments.uniform(0, seconds * moments.choice([0.05, 0.3])))
        except subprocess.TimeoutExpired:
            process.kill()
        _, text = process.communicate()
        if process.returncode == 0:
            print(f"ended after {kills} kills, equal to the bit: {must_equal(killed, whole)}")
            runs += 1
            killed = folder / f"killed-{runs}"
        elif process.returncode == -signal.SIGKILL:
            kills += 1
            left = unfinished(killed)
            if len(left) > 1:
                sys.exit(f"error: unfinished files pile up after kill {kills}: {left}")
        else:
            sys.exit(f"error: the start after kill {kills} ended with {process.returncode}: {text}")
    finish(start(args.binary, config, killed), "the last start")
    print(f"ended after {kills} kills, equal to the bit: {must_equal(killed, whole)}")
    if args.folder is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
