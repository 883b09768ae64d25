#!/usr/bin/env python3
"""Text training on the CPU against what people have: transformers with PyTorch, in turns, with as many threads.

    .venv/bin/python scripts/bench/text.py step [--precision fp32|bf16] [--batch 64] [--length 32] [--rounds 9] [--threads 2]
    .venv/bin/python scripts/bench/text.py tokenize [--lines 1000000] [--rounds 3] [--threads 2]
    .venv/bin/python scripts/bench/text.py start [--lines 1000000] [--rounds 3]

`step` is a whole step of unsupervised SimCSE with all-MiniLM-L6-v2: both passes in one batch with dropout, InfoNCE, backward pass, clipping, AdamW (PyTorch's
fused one). `tokenize` is sentences to token ids in chunks of 1,000. `start` is from the start of `pretrain-text` to its first step, the encoder's
loading, that step and the first checkpoint included. Needs scripts/fetch_data.py minilm and wordnet. Prints seconds and ratios; --json for one object.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from paired import ROOT, bench_binary, cores, processor, versions

MODEL = ROOT / "data/minilm"


def peer_step(args: argparse.Namespace):
    net = AutoModel.from_pretrained(MODEL, add_pooling_layer=False).train()
    spared = [p for p in net.parameters() if p.dim() <= 1]
    groups = [{"params": [p for p in net.parameters() if p.dim() > 1]}, {"params": spared}]
    optimizer = torch.optim.AdamW(groups, lr=3e-5, weight_decay=0.0, fused=True)
    torch.manual_seed(0)
    ids = torch.randint(1000, 20_000, (args.batch, args.length))
    ids = torch.cat([ids, ids])
    labels = torch.arange(args.batch)

    def round_() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            z = net(input_ids=ids).last_hidden_state.mean(1)
        z = F.normalize(z.float())
        F.cross_entropy(z[: args.batch] @ z[args.batch :].T / 0.05, labels).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return round_


def peer_tokenize(args: argparse.Namespace, file: Path):
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    lines = file.read_text().splitlines()

    def round_() -> None:
        for begin in range(0, len(lines), 1000):
            tokenizer(lines[begin : begin + 1000], truncation=True, max_length=args.length)

    return round_


def corpus(folder: Path, lines: int) -> Path:
    """So many different lines out of WordNet's."""
    texts = (ROOT / "data/wordnet/sentences.txt").read_text().splitlines()
    file = folder / "corpus.txt"
    with file.open("w") as out:
        out.writelines(f"{texts[i % len(texts)]} {i}\n" for i in range(lines))
    return file


def in_turns(command: list, args: argparse.Namespace, peer) -> dict[str, list[float]]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS"), str(args.threads))
    ours = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | threads)

    def ask() -> float:
        ours.stdin.write("\n")
        ours.stdin.flush()
        return float(ours.stdout.readline())

    def timed() -> float:
        start = time.perf_counter()
        peer()
        return time.perf_counter() - start

    # The first round of each warms up.
    rounds = [(ask(), timed()) for _ in range(args.rounds + 1)][1:]
    ours.stdin.close()
    ours.wait()
    return dict(zip(("ours", "transformers"), map(list, zip(*rounds))))


def start(args: argparse.Namespace, folder: Path, file: Path) -> dict[str, list[float]]:
    """Seconds from the start of a process to the line of its first step, and its peak memory then in MB."""
    subprocess.run(["cargo", "build", "--release", "--quiet", "--bin", "pretrain-text"], check=True, cwd=ROOT)
    found = {"seconds": [], "peak_mb": []}
    for number in range(args.rounds):
        run = folder / f"run-{number}"
        sets = [f"data={{path: {file}}}", f"model.path={MODEL}", "train.log_every=1", "eval=null", "checkpoint.best_by=null"]
        command = [ROOT / "target/release/pretrain-text", "--config", ROOT / "configs/text/minilm-cpu.yaml", "--run-dir", run, "--device", "cpu"]
        begin = time.perf_counter()
        process = subprocess.Popen([*map(str, command), *(word for s in sets for word in ("--set", s))], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        metrics = run / "metrics.jsonl"
        while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
            time.sleep(0.005)
        found["seconds"].append(time.perf_counter() - begin)
        status = Path(f"/proc/{process.pid}/status").read_text()
        found["peak_mb"].append(int(status.split("VmHWM:")[1].split()[0]) / 1000)
        process.kill()
        process.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("step", "tokenize", "start"))
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    for name, default in (("batch", 64), ("length", 32), ("rounds", 9), ("lines", 1_000_000), ("threads", len(cores()))):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    os.environ["RAYON_NUM_THREADS"] = str(args.threads)

    with tempfile.TemporaryDirectory() as folder:
        if args.what == "step":
            found = in_turns([bench_binary("text"), "step", MODEL, args.batch, args.length, args.precision], args, peer_step(args))
        elif args.what == "tokenize":
            file = corpus(Path(folder), args.lines)
            found = in_turns([bench_binary("text"), "tokenize", MODEL, args.length, file], args, peer_tokenize(args, file))
        else:
            found = start(args, Path(folder), corpus(Path(folder), args.lines))
    result = {"machine": processor(), "versions": versions("torch", "transformers", "tokenizers"), **vars(args), **found}
    if "ours" in found:
        ours, peer = found["ours"], found["transformers"]
        result["ratio"] = {"least": min(ours) / min(peer), "median": statistics.median(ours) / statistics.median(peer)}
    if args.json:
        print(json.dumps(result))
        return
    print(f"{args.what}, {args.threads} threads, {args.rounds} rounds, {result['machine']}; {result['versions']}")
    for name, values in found.items():
        print(f"{name:12} least {min(values):8.3f}  median {statistics.median(values):8.3f}")
    if "ratio" in result:
        print(f"{'ratio':12} least {result['ratio']['least']:8.3f}  median {result['ratio']['median']:8.3f}")


if __name__ == "__main__":
    main()
