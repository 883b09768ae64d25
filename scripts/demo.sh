#!/usr/bin/env bash
# The whole way once, on real images: set-up, Fashion-MNIST, a small ResNet-18 pretrained with InfoNCE and with WEINCE
# under the same seeds, linear probe and kNN on all 10,000 test images, a table and a page with pictures.
#   scripts/demo.sh          about a quarter of an hour on 2 cores after the downloads and the build
# SEEDS="0 1 2" runs other seeds. What is finished is kept: run it again to go on after an interruption.
set -euo pipefail
cd "$(dirname "$0")/.."
# OpenMP threads that spin while they wait take the processor from the loader's threads and from other processes.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
SEEDS=${SEEDS:-0 1}
OUT=runs/demo
banner() { printf '\n== %s\n' "$*"; }

banner "set-up"
scripts/setup.sh
banner "data"
.venv/bin/python scripts/fetch_data.py fashion-mnist --root data
banner "build"
cargo build --release --bins
bin=target/release

runs=()
for seed in $SEEDS; do
  for loss in infonce weince; do
    run=$OUT/$loss-seed$seed
    runs+=("$run")
    banner "pretraining: $loss, seed $seed"
    if [ -e "$run/checkpoints/encoder.safetensors" ]; then
      echo "done before: $run"
    else
      resume=()
      [ -e "$run/checkpoints/last.safetensors" ] && resume=(--resume)
      $bin/pretrain-vision --config configs/vision/fashion_mnist_small.yaml --run-dir "$run" \
        --set loss.kind="$loss" --set seed="$seed" "${resume[@]}"
    fi
    banner "evaluation: $loss, seed $seed"
    [ -e "$run/results/linear.json" ] || $bin/eval-linear --run "$run"
    [ -e "$run/results/knn.json" ] || $bin/eval-knn --run "$run"
  done
done

banner "comparison"
$bin/report "${runs[@]}" --out "$OUT/report.html"
