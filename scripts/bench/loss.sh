#!/bin/sh
# Time and memory of the losses beside their PyTorch peers, in turns, one thread; prints ratios of the least and the median.
# The broadcasting peer takes 13 GB at N = 1024: sizes for it are the second argument.
# usage: scripts/bench/loss.sh ["256 512 1024"] ["256 512"] [rounds]
set -eu
cd "$(dirname "$0")/../.."
sizes=${1:-256 512 1024}
broadcast_sizes=${2-256 512}
rounds=${3:-3}
export OMP_NUM_THREADS=1
cargo build --release --bench loss
bench=$(cargo build --release --bench loss --message-format=json 2>/dev/null |
    sed -n 's/.*"executable":"\([^"]*\/deps\/loss-[^"]*\)".*/\1/p' | tail -1)
results=$(mktemp)
trap 'rm -f "$results"' EXIT
for round in $(seq "$rounds"); do
    for n in $sizes; do
        for kind in infonce weince; do
            "$bench" time $kind "$n" 9 >>"$results"
            .venv/bin/python scripts/bench/loss_peers.py matmul $kind "$n" 9 >>"$results"
        done
        "$bench" time reference_full "$n" 3 >>"$results"
    done
    echo "round $round of $rounds" >&2
done
for n in $broadcast_sizes; do
    .venv/bin/python scripts/bench/loss_peers.py broadcast weince "$n" 1 >>"$results"
done
.venv/bin/python scripts/bench/loss_ratios.py "$results"
