#!/usr/bin/env bash
# Makes .venv with PyTorch (which is the LibTorch that the crate links with) and the link .venv/libtorch. Idempotent.
#   scripts/setup.sh
# PYTHON=python3.12 chooses the interpreter. LIBTORCH=/path/to/libtorch keeps your own LibTorch for the Rust build.
set -euo pipefail
cd "$(dirname "$0")/.."

TORCH_VERSION=2.11.0
RUST_MINIMUM=1.89
NEEDED_GB=6
say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: error: %s\n' "$*" >&2; exit 1; }
at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

PYTHON=${PYTHON:-python3}
command -v cargo >/dev/null || fail "no cargo found; install Rust $RUST_MINIMUM or newer (https://rustup.rs)"
rust=$(rustc --version | awk '{print $2}')
at_least "${rust%%-*}" "$RUST_MINIMUM" || fail "rustc $rust is too old; $RUST_MINIMUM or newer is needed (rustup update)"
command -v c++ >/dev/null || command -v g++ >/dev/null || fail "no C++ compiler found; on Debian: apt-get install g++"
command -v "$PYTHON" >/dev/null || fail "no $PYTHON found; on Debian: apt-get install python3 python3-venv"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  fail "$("$PYTHON" --version) is too old; 3.10 or newer is needed (PYTHON=python3.12 scripts/setup.sh)"
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null ||
  fail "$PYTHON has no venv module; on Debian: apt-get install python3-venv"

# What is installed is noted only once all of it is there: an interrupted set-up starts this part again.
stamp=.venv/requirements.installed
if ! cmp -s scripts/requirements.txt "$stamp"; then
  free_kb=$(df -Pk . | awk 'NR == 2 {print $4}')
  [ "$free_kb" -ge $((NEEDED_GB * 1024 * 1024)) ] ||
    fail "$((free_kb / 1024 / 1024)) GB free here; $NEEDED_GB GB are needed for PyTorch with its CUDA libraries"
  if [ ! -x .venv/bin/python ]; then
    say "making .venv with $("$PYTHON" --version)"
    "$PYTHON" -m venv .venv
  fi
  say "installing PyTorch $TORCH_VERSION and the test tools into .venv (about 5 GB, some minutes)"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -r scripts/requirements.txt
  cp scripts/requirements.txt "$stamp"
fi

torch_folder=$(.venv/bin/python -c 'import importlib.util as u; print(u.find_spec("torch").submodule_search_locations[0])')
found=$(sed -n "s/^__version__ = '\([0-9.]*\).*/\1/p" "$torch_folder/version.py")
[ "$found" = "$TORCH_VERSION" ] || fail ".venv has torch $found, expected $TORCH_VERSION; remove .venv and run again"
ln -sfn "$torch_folder" .venv/libtorch

if [ -n "${LIBTORCH:-}" ]; then
  [ -d "$LIBTORCH/lib" ] && [ -d "$LIBTORCH/include" ] ||
    fail "LIBTORCH=$LIBTORCH has no lib/ and include/; unset it to use the one in .venv"
  own=$(cat "$LIBTORCH/build-version" 2>/dev/null || sed -n "s/^__version__ = '\(.*\)'/\1/p" "$LIBTORCH/version.py" 2>/dev/null || true)
  case "$own" in
    "$TORCH_VERSION"*) say "ready: your LibTorch $own at $LIBTORCH" ;;
    *) fail "LIBTORCH=$LIBTORCH is version ${own:-unknown}, expected $TORCH_VERSION; unset it to use the one in .venv" ;;
  esac
else
  say "ready: LibTorch $found, $(.venv/bin/python --version), rustc $rust"
fi
