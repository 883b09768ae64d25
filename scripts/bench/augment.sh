#!/usr/bin/env bash
# Compares the speed of SimCLR views with torchvision's on PIL images: one thread each, taking turns, the median of five rounds.
set -euo pipefail
cd "$(dirname "$0")/../.."
export OMP_NUM_THREADS=1
cargo build --release --quiet --bench augment
ours=$(find target/release/deps -maxdepth 1 -name 'augment-*' -type f -executable -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)
exec .venv/bin/python - "$ours" <<'PY'
import json, statistics, subprocess, sys

def rate(*command):
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["views_per_second"]

print("size  weince/s  torchvision/s  ratio")
for size, views in ((32, 4000), (96, 2000)):
    rounds = [
        (rate(sys.argv[1], str(size), str(4 * views)), rate(sys.executable, "scripts/bench/augment_peer.py", str(size), str(views)))
        for _ in range(5)
    ]
    ours, peer = (statistics.median(column) for column in zip(*rounds))
    print(f"{size:4}  {ours:8.0f}  {peer:13.0f}  {statistics.median(a / b for a, b in rounds):5.1f}")
PY
