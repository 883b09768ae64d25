#!/usr/bin/env bash
# Checks on a GPU what the tests cannot check without one, in under 5 minutes, and prints one table.
#
#   scripts/gpu_check.sh [--pack DIR]
#
# Trains 200 steps in each precision and compares the loss curves; trains a TorchScript backbone; resumes a run; times steps with
# the device's own clock, WEINCE's share of them among it; looks whether memory stays flat over 300 steps; and ends with a table of
# whole runs by precision and batch: images a second, the share of time that waits for data, CUDA memory. It needs the built binaries
# and a Python with PyTorch 2.11, no Rust: --pack makes a folder with everything that such a machine needs. PYTHON chooses the
# interpreter (.venv/bin/python or python3 unless given). DEVICE=cpu is a small rehearsal without a GPU.
# Exit code 0: every check passed.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = --pack ]; then
  [ -n "${2:-}" ] || { echo "error: --pack needs the name of a new folder" >&2; exit 2; }
  cargo build --release --bins --benches --quiet
  mkdir -p "$2/target/release" "$2/scripts"
  cp target/release/pretrain-vision target/release/doctor target/release/checkpoint "$2/target/release/"
  cp "$(find target/release/deps -maxdepth 1 -name 'step-*' -type f -executable -printf '%T@ %p\n' | sort -n | tail -1 | cut -d' ' -f2)" \
    "$2/target/release/step"
  cp scripts/gpu_check.sh scripts/gpu_check.py scripts/export_backbone.py "$2/scripts/"
  echo "packed into $2: run scripts/gpu_check.sh there"
  exit 0
fi

python=${PYTHON:-}
[ -n "$python" ] || { [ -x .venv/bin/python ] && python=.venv/bin/python || python=python3; }
exec "$python" scripts/gpu_check.py
