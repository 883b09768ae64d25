"""The work of scripts/gpu_check.sh: runs the built binaries on the GPU and prints one table. Standard library and PyTorch."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
BIN = ROOT / "target" / "release"
DEVICE = os.environ.get("DEVICE", "cuda")
GPU = DEVICE != "cpu"
STEPS, BATCH, SIZE = (200, 256, 32) if GPU else (24, 16, 8)
CONFIG = f"""
data: {{kind: synthetic, train: {BATCH * 8}, test: 100, size: {SIZE}}}
augment: {{size: {SIZE}}}
model: {{encoder: {{kind: resnet18, stem: small, width: {64 if GPU else 8}}}}}
loss: {{kind: weince}}
optim: {{kind: adam, lr: 1.0e-3}}
train: {{epochs: {STEPS // 8}, batch_size: {BATCH}, log_every: 1}}
"""
PRECISIONS = {
    "fp32": [],
    "fp32 with tf32": ["tf32=true"],
    "bf16": ["precision=bf16"],
    "fp16": ["precision=fp16"],
    "bf16 channels last": ["precision=bf16", "channels_last=true"],
}
# Batches of the throughput table.
BATCHES = (256, 512, 1024) if GPU else (8, 16)
rows = []


def row(name: str, ok: bool | None, what: str) -> None:
    rows.append((name, {True: "ok", False: "FAILED", None: "skipped"}[ok], what))
    print(f"{rows[-1][1]:8}{name:30}{what}", flush=True)


def environment() -> dict:
    # The binaries' own path to LibTorch is that of the machine that built them.
    libraries = Path(torch.__file__).parent / "lib"
    path = f"{libraries}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    return os.environ | {"LD_LIBRARY_PATH": path, "OMP_WAIT_POLICY": "passive"}


def execute(*command, check: bool = True) -> subprocess.CompletedProcess:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=environment())
    if check and done.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-600:]}")
    return done


def pretrain(folder: Path, run: str, sets: list, *more) -> list[float]:
    """The losses of a run, step by step."""
    sets = [argument for setting in sets for argument in ("--set", setting)]
    execute(BIN / "pretrain-vision", "--config", folder / "c.yaml", "--run-dir", folder / run, "--device", DEVICE, *sets, *more)
    lines = map(json.loads, (folder / run / "metrics.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["split"] == "train"]


def precisions(folder: Path) -> None:
    full = None
    for name, sets in PRECISIONS.items():
        if not GPU and name != "fp32" and name != "bf16":
            row(name, None, "needs CUDA")
            continue
        began = time.monotonic()
        losses = pretrain(folder, name.replace(" ", "_"), sets)
        seconds = time.monotonic() - began
        full = full or losses
        # The first steps agree to the format's rounding; later the curves are those of two runs.
        first = abs(losses[0] - full[0]) / full[0]
        tail = STEPS // 5
        ends = [statistics.mean(curve[-tail:]) for curve in (full, losses)]
        ok = len(losses) == STEPS and first < 0.02 and abs(ends[1] - ends[0]) < 0.05 * ends[0]
        row(name, ok, f"first loss {losses[0]:.4f}, mean of the last {tail} {ends[1]:.4f} (fp32 {ends[0]:.4f}), {seconds:.0f} s")


def resuming(folder: Path) -> None:
    """An epoch, then the rest: the same curve as at one go, to what CUDA's summation order leaves."""
    pretrain(folder, "parts", [f"train.epochs={STEPS // 16}"])
    parts = pretrain(folder, "parts", [], "--resume")
    whole = pretrain(folder, "whole", [])
    half = STEPS // 16 * 8
    gap = max(abs(a - b) for a, b in zip(parts[half : half + 5], whole[half : half + 5]))
    row("resumed run", len(parts) == STEPS and gap < 0.02, f"{len(parts)} steps, largest gap after resuming {gap:.5f}")
    state = torch.load(folder / f"parts/checkpoints/step-{STEPS:09}.pt", weights_only=True)
    same = torch.load(folder / f"whole/checkpoints/step-{STEPS:09}.pt", weights_only=True)
    row("checkpoint in PyTorch", state["step"] == STEPS == same["step"], f"{len(state['model'])} tensors of the model")


def torchscript(folder: Path) -> None:
    try:
        import torchvision  # noqa: F401
    except ImportError:
        row("TorchScript backbone", None, "needs torchvision")
        return
    module = folder / "backbone.pt"
    execute(sys.executable, ROOT / "scripts/export_backbone.py", "torchvision:resnet18", "--stem", "small", "--out", module)
    model = f"model={{backbone: {{kind: torchscript, path: {module}}}}}"
    precision = "bf16" if GPU else "fp32"
    losses = pretrain(folder, "script", [model, "train.epochs=3", f"precision={precision}"])
    learnt = not GPU or statistics.mean(losses[-5:]) < losses[0]
    row("TorchScript backbone", len(losses) == 24 and learnt, f"loss {losses[0]:.4f} to {losses[-1]:.4f} in {precision}")


def steps() -> None:
    bench = BIN / "step"
    if not bench.exists():
        found = sorted((BIN / "deps").glob("step-*"), key=lambda path: path.stat().st_mtime)
        bench = [path for path in found if os.access(path, os.X_OK) and path.suffix == ""][-1]
    batch, rounds = (BATCH, 300) if GPU else (2, 1)
    got = json.loads(execute(bench, batch, SIZE, rounds, DEVICE).stdout)
    for name, seconds in got["median_step_s"].items():
        row(f"step, {name}", True, f"{1e3 * seconds:.2f} ms")
    share = got["weince_over_infonce_percent"]
    row("WEINCE over InfoNCE", True, f"{share['whole_steps']:.2f} % of the step; losses alone {share['losses_alone_over_the_step']:.2f} %")
    memory = got["memory_bytes"]
    if memory["peak"] is None:
        row("memory", None, "LibTorch does not count it on the CPU")
    else:
        first, last = memory["after_the_second_round"], memory["after_the_last_round"]
        row("memory over 300 steps", last <= first, f"{first / 2**20:.0f} to {last / 2**20:.0f} MiB, peak {memory['peak'] / 2**20:.0f}")


def throughput(folder: Path) -> None:
    """Images a second of whole runs, loader included, by precision and batch; the steps of the first half don't count."""
    steps, table = (40 if GPU else 6), []
    for name, sets in PRECISIONS.items():
        if not GPU and name != "fp32":
            continue
        for batch in BATCHES:
            run = f"rate-{name.replace(' ', '_')}-{batch}"
            sizes = [f"data.train={batch * 4}", f"train.batch_size={batch}", f"train.epochs={steps // 4 + 1}"]
            pretrain(folder, run, [*sets, *sizes])
            lines = map(json.loads, (folder / run / "metrics.jsonl").read_text().splitlines())
            lines = [line for line in lines if line["split"] == "train"]
            half = lines[len(lines) // 2 :]
            rate = batch * (len(half) - 1) / (half[-1]["seconds"] - half[0]["seconds"])
            waiting = statistics.mean(line["data_wait"] for line in half)
            memory = f"{half[-1]['gpu_peak_mib']:,.0f}" if GPU else "not counted"
            table.append((name, batch, f"{rate:,.0f}", f"{100 * waiting:.1f} %", memory))
    head = ("precision", "batch", "images/s", "waiting for data", "peak CUDA memory, MiB")
    widths = [max(len(str(line[i])) for line in [head, *table]) for i in range(len(head))]
    print()
    for line in [head, *table]:
        print("  ".join(str(word).rjust(width) if i else str(word).ljust(width) for i, (word, width) in enumerate(zip(line, widths))))
    print(flush=True)
    row("throughput", True, f"{len(table)} runs, the table above")


def main() -> None:
    began = time.monotonic()
    if not torch.__version__.startswith("2.11."):
        sys.exit(f"error: PyTorch is {torch.__version__}, expected 2.11, which the binaries were linked with")
    if GPU and not torch.cuda.is_available():
        sys.exit("error: PyTorch sees no CUDA device here; DEVICE=cpu is a rehearsal without one")
    print(f"device  {torch.cuda.get_device_name() if GPU else 'cpu (a rehearsal)'}, PyTorch {torch.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "c.yaml").write_text(CONFIG)
        for part in (lambda: precisions(folder), lambda: resuming(folder), lambda: torchscript(folder), steps, lambda: throughput(folder)):
            try:
                part()
            except (RuntimeError, KeyError, ValueError, IndexError, OSError) as error:
                row("a part", False, str(error))
    failed = sum(state == "FAILED" for _, state, _ in rows)
    print(f"{len(rows)} rows, {failed} failed, {time.monotonic() - began:.0f} s")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
