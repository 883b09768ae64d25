#!/usr/bin/env bash
# Every comparison, one after the other, on a machine that does nothing else; an hour on two cores. `--quick` is a smoke run of a few minutes.
# A comparison that fails does not keep the others from running; the exit code tells. Leaves docs/benchmarks/*.json and *.md and the README's table.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=.venv/bin/python
[ -x $python ] || { echo "error: $python is not there; run scripts/setup.sh first" >&2; exit 1; }
failed=()
for name in loss tiled share epoch text start augment encoder loader knn linear checkpoint; do
    printf '\n== %s\n' "$name"
    $python "scripts/bench/$name.py" "$@" || failed+=("$name")
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "error: failed: ${failed[*]}; each can be run again by itself: $python scripts/bench/NAME.py" >&2
    exit 1
fi
case " $* " in *" --quick "* | *" --out"*) ;; *) $python scripts/bench/table.py ;; esac
