#!/usr/bin/env python3
"""The README's table of figures, from the headlines of docs/benchmarks/*.json; --check only tells whether it is that table. Standard library only."""

import argparse
import json
import sys
from pathlib import Path

from paired import RESULTS, ROOT, cells, figure

README = ROOT / "README.md"
BEGIN, END = "<!-- figures: made by scripts/bench/table.py -->\n", "<!-- end of figures -->\n"
# In the order of the table; others follow by name.
ORDER = ("epoch", "share", "loss", "tiled", "text", "start", "augment", "loader", "encoder", "knn", "linear", "checkpoint")


def rows(result: dict) -> list[list[str]]:
    """What, ours, beside what, theirs, times."""
    found = []
    for line in result["headlines"]:
        if "text" in line:
            found.append([line["text"], line["value"], line["peer"], line["peer_value"], ""])
            continue
        row = next(m for m in result["measurements"] if m["case"] == line["case"])
        sides, ratios = row["summary"], next(v for k, v in row.items() if k.endswith("_is_times_as_good"))
        ours = figure(next(iter(sides.values()))["median"], row["unit"])
        found.append([line["case"], ours, line["called"], figure(sides[line["against"]]["median"], row["unit"]), f"{ratios[line['against']]:.2f}"])
    return found


def table() -> str:
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    if not results:
        sys.exit(f"error: {RESULTS.relative_to(ROOT)} has no results; scripts/bench/all.sh makes them")
    smoke = [name for name, result in results.items() if result["quick"]]
    if smoke:
        sys.exit(f"error: {', '.join(smoke)} in {RESULTS.relative_to(ROOT)} are smoke runs, no figures; run them without --quick")
    place = lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name)
    lines = [cells("comparison", "case", "weince", "beside", "", "times"), "|:---|:---|---:|:---|---:|---:|"]
    for name in sorted(results, key=place):
        title = f"[{results[name]['title']}]({RESULTS.relative_to(ROOT)}/{name}.md)"
        for row in rows(results[name]):
            lines.append(cells(title, *row))
            title = ""
    machines = {f"{m['processor']}, {m['cores_used']} cores ({', '.join(m['instructions'])})" for m in (r["machine"] for r in results.values())}
    return "\n".join(["", *lines, "", f"Measured on {'; '.join(sorted(machines))}. Medians; *times*: how many times as good, of the medians.", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if the README has another table")
    args = parser.parse_args()
    text = README.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"error: README.md: expected one line {BEGIN.strip()} and one {END.strip()}")
    before, rest = text.split(BEGIN)
    old, after = rest.split(END)
    new = table() + "\n"
    if args.check:
        sys.exit(0 if old == new else "error: README.md has another table of figures than docs/benchmarks; run scripts/bench/table.py")
    README.write_text(before + BEGIN + new + END + after)


if __name__ == "__main__":
    main()
