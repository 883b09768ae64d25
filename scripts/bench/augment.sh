#!/usr/bin/env bash
# Compares the speed of SimCLR views with torchvision's on PIL images: one thread each, taking turns. CPU time
# counts, so that other work on the machine disturbs little.
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1
cargo build --release --quiet --bench augment
ours=$(find target/release/deps -maxdepth 1 -name 'augment-*' -type f -executable -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)
exec .venv/bin/python - "$ours" <<'PY'
import resource, statistics, subprocess, sys

def cpu_seconds(command, size, views):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*command, str(size), str(views)], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

def rate(command, size, views):
    """Views per CPU-second: the start of the program drops out of the difference of a long and a short run."""
    short = views // 10
    # Each run makes a tenth more to warm up.
    return 1.1 * (views - short) / (cpu_seconds(command, size, views) - cpu_seconds(command, size, short))

ours, peer = [sys.argv[1]], [sys.executable, "scripts/bench/augment_peer.py"]
print("size  weince  torchvision  ratio   (views per CPU-second, medians of 5 rounds)")
for size, views in ((32, 2000), (96, 1000)):
    rounds = [(rate(ours, size, 20 * views), rate(peer, size, views)) for _ in range(5)]
    columns = [statistics.median(column) for column in zip(*rounds)]
    ratio = statistics.median(a / b for a, b in rounds)
    print(f"{size:4}  {columns[0]:6.0f}  {columns[1]:11.0f}  {ratio:5.1f}", flush=True)
PY
