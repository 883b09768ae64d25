"""The comparisons of scripts/bench: smoke runs of two, and the README's table made of their records."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "scripts/bench"


def run(*command) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize(("name", "sides"), [("augment", ["ours", "torchvision"]), ("checkpoint", ["ours", "torch, fsync", "torch, plain"])])
def test_a_smoke_run_leaves_a_record_with_all_values(name, sides, tmp_path):
    done = run(sys.executable, BENCH / f"{name}.py", "--quick", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / f"{name}.json").read_text())
    assert result["quick"] and result["machine"]["cores_used"] > 0 and result["versions"]["torch"].startswith("2.11.")
    first = result["measurements"][0]
    assert list(first["values"]) == sides and all(value > 0 for values in first["values"].values() for value in values)
    for side, values in first["values"].items():
        assert first["summary"][side]["n"] == len(values) and first["summary"][side]["least"] == min(values)
    page = (tmp_path / f"{name}.md").read_text()
    assert page.startswith(f"# {result['title']}") and "no figures" in page and result["command"] in page


def test_every_comparison_takes_part_and_explains_itself():
    names = {path.stem for path in BENCH.glob("*.py")} - {"paired", "table"}
    listed = (BENCH / "all.sh").read_text().split("for name in ")[1].split(";")[0].split()
    assert sorted(listed) == sorted(names)
    for name in names:
        done = run(sys.executable, BENCH / f"{name}.py", "--help")
        assert done.returncode == 0 and "--quick" in done.stdout, done.stderr
    records = {path.stem for path in (ROOT / "docs/benchmarks").glob("*.json")}
    assert records == names, "docs/benchmarks has a record of each comparison"


def test_the_readmes_figures_are_those_of_the_records():
    done = run(sys.executable, BENCH / "table.py", "--check")
    assert done.returncode == 0, done.stderr


def test_the_pages_are_those_of_the_records():
    sys.path.insert(0, str(BENCH))
    import paired

    for record in (ROOT / "docs/benchmarks").glob("*.json"):
        result = json.loads(record.read_text())
        assert not result["quick"] and "with changes" not in result["commit"], record.name
        assert record.with_suffix(".md").read_text() == paired.markdown(result), record.name
