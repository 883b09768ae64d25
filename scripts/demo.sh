#!/usr/bin/env bash
# The whole way once, on real images: set-up, Fashion-MNIST, a small ResNet-18 pretrained with InfoNCE and with WEINCE
# under the same seeds, linear probe and kNN on all 10,000 test images, a table and a page with pictures.
#   scripts/demo.sh          on 2 cores about 9 minutes after the downloads, half of them the first build
# SEEDS="0 1 2" runs other seeds. What is finished is kept: run it again to go on after an interruption.
set -euo pipefail
cd "$(dirname "$0")/.."
# OpenMP threads that spin while they wait take the processor from the loader's threads and from other processes.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
SEEDS=${SEEDS:-0 1}
OUT=runs/demo
CONFIG=configs/vision/fashion_mnist_small.yaml
bin=target/release
banner() { printf '\n== %s\n' "$*"; }

banner "set-up"
scripts/setup.sh
banner "data"
.venv/bin/python scripts/fetch_data.py fashion-mnist --root data
banner "build"
cargo build --release --bins

# Pretrains with a loss and a seed and evaluates; parts that are finished are left out.
one_run() {
  local run=$OUT/$1-seed$2 resume=()
  if [ -e "$run/checkpoints/encoder.safetensors" ]; then
    echo "pretrained before: $run"
  else
    [ -e "$run/.lock" ] && resume=(--resume)
    $bin/pretrain-vision --config $CONFIG --run-dir "$run" --set loss.kind="$1" --set seed="$2" "${resume[@]}"
  fi
  [ -e "$run/results/linear.json" ] || $bin/eval-linear --run "$run"
  [ -e "$run/results/knn.json" ] || $bin/eval-knn --run "$run"
}

# The two losses run side by side, each on half of the cores: a network this small uses them better than one run on all.
cores=$(nproc)
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > 1 ? cores / 2 : 1))}
mkdir -p "$OUT"
weince=
# The run in the background has a process group of its own (job control), so that it can be stopped whole. It saves first.
trap '[ -z "$weince" ] || kill -- "-$weince" 2>/dev/null || true; wait' EXIT
runs=()
for seed in $SEEDS; do
  log=$OUT/weince-seed$seed.log
  banner "seed $seed: infonce and weince side by side (weince writes to $log)"
  set -m
  one_run weince "$seed" >"$log" 2>&1 &
  weince=$!
  set +m
  one_run infonce "$seed"
  wait "$weince" || { cat "$log"; exit 1; }
  runs+=("$OUT/infonce-seed$seed" "$OUT/weince-seed$seed")
done

banner "comparison"
$bin/report "${runs[@]}" --out "$OUT/report.html"
