#!/usr/bin/env python3
"""Forward and backward pass of the Vision Transformer on the CPU: ours against timm's, in turns, with as many threads.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/bench/vit.py [--size 224] [--patch 16] [--batch 8] [--rounds 7]

Prints seconds (least and median of the rounds) and the ratio of each; --json for one object.
"""

import argparse
import json
import statistics
import subprocess
import time

import timm
import torch

from paired import bench_binary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("size", 224), ("patch", 16), ("batch", 8), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    command = [bench_binary("encoder"), f"{{kind: vit_small, patch_size: {args.patch}}}", str(args.batch), str(args.size)]
    ours = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    net = timm.create_model("vit_small_patch16_224", num_classes=0, img_size=args.size, patch_size=args.patch)
    images = torch.randn(args.batch, 3, args.size, args.size)

    def ask() -> float:
        ours.stdin.write("\n")
        ours.stdin.flush()
        return float(ours.stdout.readline())

    def peer() -> float:
        net.zero_grad()
        start = time.perf_counter()
        net(images).square().sum().backward()
        return time.perf_counter() - start

    rounds = [(ask(), peer()) for _ in range(args.rounds + 1)][1:]
    columns = list(zip(*rounds))
    ours.stdin.close()
    ours.wait()
    result = {
        "size": args.size, "patch": args.patch, "batch": args.batch, "threads": torch.get_num_threads(), "rounds": args.rounds,
        "ours": {"least": min(columns[0]), "median": statistics.median(columns[0])},
        "timm": {"least": min(columns[1]), "median": statistics.median(columns[1])},
    }  # fmt: skip
    result["ratio"] = {key: result["ours"][key] / result["timm"][key] for key in ("least", "median")}
    if args.json:
        print(json.dumps(result))
        return
    print(f"vit_small {args.size}/{args.patch}, batch {args.batch}, {result['threads']} threads, {args.rounds} rounds")
    for name in ("ours", "timm", "ratio"):
        print(f"{name:6} least {result[name]['least']:.4f}  median {result[name]['median']:.4f}")


if __name__ == "__main__":
    main()
