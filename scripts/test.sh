#!/usr/bin/env bash
# Sets everything up and runs every test: format, lints, Rust, documentation, Python. One cargo profile: release.
set -euo pipefail
cd "$(dirname "$0")/.."
# OpenMP threads that spin while they wait take the processor from the loader's threads and from other processes.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}
scripts/setup.sh
banner() { printf '\n== %s\n' "$*"; }

banner "format"
cargo fmt --check
banner "lints"
cargo clippy --release --all-targets --quiet -- -D warnings
banner "build"
cargo build --release --bins --benches
banner "Rust tests"
cargo test --release
banner "documentation"
RUSTDOCFLAGS="-D warnings" cargo doc --release --no-deps --quiet
banner "Python tests"
.venv/bin/python -m pytest -q -rs scripts/parity
