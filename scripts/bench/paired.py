"""What the comparisons share: our benches and their Python peers as programs that take turns on the same processors."""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def arguments(about: str, peer: str, words: int, turns: int, **own) -> argparse.Namespace:
    """The command line of a comparison: `--turns`, `--peer-only`, its own options with their defaults, and `--peer` with so many words, by which a
    script starts itself as the peer."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"turns": turns, **own}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--peer-only", action="store_true", help=f"measure {peer} alone")
    parser.add_argument("--peer", nargs=words, help=argparse.SUPPRESS)
    return parser.parse_args()


def programs(args: argparse.Namespace, ours: str, peer: str, script: str) -> dict[str, list[str]]:
    """What takes turns, by name: our bench of this name, unless the peer is measured alone, and the script itself as the peer."""
    peers = {peer: [sys.executable, script, "--peer"]}
    return peers if args.peer_only else {"ours": [bench_binary(ours)], **peers}


def cores() -> list[int]:
    """The processors that this process may use."""
    return sorted(os.sched_getaffinity(0))


def need(module: str, requirement: str) -> None:
    """Installs a Python package where it is missing, and says so."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        print(f"installing {requirement} into {sys.prefix}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement], check=True)
        importlib.invalidate_caches()
        importlib.import_module(module)


def bench_binary(name: str) -> str:
    """Builds one of our benches; its path."""
    command = ["cargo", "build", "--release", "--bench", name, "--message-format=json"]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout.splitlines()
    artifacts = (line for line in map(json.loads, lines) if line.get("target", {}).get("kind") == ["bench"])
    return next(a["executable"] for a in artifacts if a["target"]["name"] == name and a.get("executable"))


def measure(command: list, threads: int) -> dict:
    """Runs a program on the first `threads` processors with as many threads; the JSON object that it prints last."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
    allowed = cores()[:threads]
    result = subprocess.run(
        list(map(str, command)),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | dict.fromkeys(names, str(threads)) | {"OMP_WAIT_POLICY": "passive"},
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
    )
    return json.loads(result.stdout.splitlines()[-1])


def thread_counts() -> list[int]:
    """One, and all there are."""
    return sorted({1, len(cores())})


def versions(*packages: str) -> str:
    return ", ".join(f"{p} {version(p)}" for p in packages)


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown processor")


def ratio(ours: list[float], peer: list[float]) -> str:
    """Of the least and of the median."""
    return f"least {min(ours) / min(peer):.3f}  median {statistics.median(ours) / statistics.median(peer):.3f}"


def spread(seconds: list[float]) -> str:
    return f"least {min(seconds):8.3f} s  median {statistics.median(seconds):8.3f} s"
