#!/usr/bin/env python3
"""Seconds from the start of a process to the end of its first training step, ours against the same in Python, in turns.

    .venv/bin/python scripts/bench/start.py [--turns 5] [--batch 32] [--lines 200000] [--peer-only] [--quick]

Vision: `pretrain-vision` with 50,000 images of 32x32, against the authors' recipe in PyTorch (scripts/bench/epoch.py). Text: `pretrain-text` with all-MiniLM-L6-v2
and a corpus of so many lines, against transformers. Needs scripts/fetch_data.py fashion-mnist, minilm and wordnet.
"""

import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import epoch
import paired
import text


def peer(file: str, batch: str) -> None:
    """The first step of SimCSE in Python, as short as it can be written."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    import torch
    from torch.nn import functional as F
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tokenizer = AutoTokenizer.from_pretrained(text.MODEL)
    net = AutoModel.from_pretrained(text.MODEL, add_pooling_layer=False).train()
    optimizer = text.optimizer_of(net)
    lines = Path(file).read_text().splitlines()
    chosen = torch.randperm(len(lines))[: int(batch)].tolist()
    tokens = tokenizer([lines[i] for i in chosen] * 2, truncation=True, max_length=32, padding=True, return_tensors="pt")
    hidden, mask = net(**tokens).last_hidden_state, tokens["attention_mask"].unsqueeze(2)
    z = F.normalize((hidden * mask).sum(1) / mask.sum(1))
    F.cross_entropy(z[: int(batch)] @ z[int(batch) :].T / 0.05, torch.arange(int(batch))).backward()
    optimizer.step()
    print("done", flush=True)
    time.sleep(600)


def first(process: subprocess.Popen, begin: float, done) -> tuple[float, float]:
    """Seconds from `begin` until `done` says so, and the peak memory then in MiB; the process is ended."""
    try:
        while not done():
            if process.poll() is not None:
                paired.fail(f"{' '.join(map(str, process.args))} ended before its first step; run it by hand to see why")
            time.sleep(0.002)
        seconds = time.perf_counter() - begin
        status = Path(f"/proc/{process.pid}/status").read_text()
        return seconds, int(status.split("VmHWM:")[1].split()[0]) / 1024
    finally:
        paired.ended(process)


def ours_start(command: list, run: Path) -> tuple[float, float]:
    metrics = run / "metrics.jsonl"
    begin = time.perf_counter()
    with run.with_suffix(".log").open("w") as log:
        process = paired.started([*command, "--run-dir", run, "--device", "cpu"], len(paired.cores()), stdout=log, stderr=log)
    return first(process, begin, lambda: metrics.exists() and metrics.stat().st_size > 0)


def peer_start(command: list) -> tuple[float, float]:
    begin = time.perf_counter()
    process = paired.started(command, len(paired.cores()), stdout=subprocess.PIPE)
    return first(process, begin, lambda: select.select([process.stdout], [], [], 0)[0] and process.poll() is None)


def main() -> None:
    args = paired.arguments(__doc__, "Python", 2, quick={"turns": 1, "batch": 4, "lines": 5000}, turns=5, batch=32, lines=200_000)
    if args.peer:
        return peer(*args.peer)

    paired.data("minilm", "model.safetensors")
    binaries = {} if args.peer_only else {name: paired.cargo("bin", name) for name in ("pretrain-vision", "pretrain-text")}
    record = paired.Comparison(
        "start",
        "From the start of a process to the end of its first step",
        f"""A batch of {args.batch}, so that most of the time is not the step's. Vision: `pretrain-vision` (reading the images, ResNet-18, the first checkpoint, the first pairs as a picture, the first
        step) against `import torch, torchvision` with the authors' recipe (images, ResNet-18, DataLoader with workers, the first step; nothing is saved). Text: `pretrain-text`
        with all-MiniLM-L6-v2 and {args.lines:,} lines (the encoder's loading, a pass over the corpus, the first checkpoint, the first step) against `import torch,
        transformers` (encoder, lines, the first step; nothing is saved). Files are in the system's memory, as after a first run.""",
        args,
        ("torchvision", "transformers"),
    )
    threads = len(paired.cores())
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        images = scratch / "cifar-10-batches-bin"
        epoch.random_images(images, 40 * args.batch) if args.quick else epoch.coloured_fashion(images)
        corpus = text.corpus(scratch, args.lines)
        (scratch / "vision.yaml").write_text(epoch.CONFIG.format(root=images, threads=threads, batch=args.batch))
        sets = [f"data={{path: {corpus}}}", f"model.path={text.MODEL}", "train.log_every=1", f"train.batch_size={args.batch}", "eval=null", "checkpoint.best_by=null"]
        sets = [word for s in sets for word in ("--set", s)]
        ours = {
            "vision": ["--config", scratch / "vision.yaml"],
            "text": ["--config", paired.ROOT / "configs/text/minilm-cpu.yaml", *sets],
        }
        peers = {
            "vision": [sys.executable, Path(epoch.__file__), "--peer", "train", images, args.batch, "fp32", "authors", threads],
            "text": [sys.executable, __file__, "--peer", corpus, args.batch],
        }
        memory = []
        for kind in ours:
            found = {"ours": [], "Python": []}
            # The first turn brings the files into the system's memory.
            for turn in range(args.turns + 1):
                if binaries:
                    found["ours"].append(ours_start([binaries[f"pretrain-{kind}"], *ours[kind]], scratch / f"{kind}-{turn}"))
                found["Python"].append(peer_start(peers[kind]))
            found = {side: pairs[1:] for side, pairs in found.items() if pairs}
            record.add(f"start to first step, {kind}", {side: [s for s, _ in pairs] for side, pairs in found.items()}, headline={"Python": "Python and PyTorch"})
            memory.append([kind, *(f"{max(m for _, m in pairs):,.0f}" for pairs in found.values())])
    if not args.peer_only:
        record.table("Peak memory of the main process until then, MiB", ["", "ours", "Python"], memory)
        record.finish()


if __name__ == "__main__":
    main()
