"""The table of scripts/bench/loss.sh: ours against each peer, from a file of JSON lines."""

import json
import statistics
import sys

runs = {}
with open(sys.argv[1], encoding="utf-8") as lines:
    for line in lines:
        run = json.loads(line)
        runs.setdefault((run.get("peer", "ours"), run["kind"], run["n"]), []).append(run)

best = {
    key: (
        min(r["least_ms"] for r in group),
        statistics.median(r["median_ms"] for r in group),
        max(r["extra_mib"] for r in group),
    )
    for key, group in runs.items()
}
print(f"{'kind':16}{'n':>6}{'who':>11}{'least ms':>10}{'median ms':>11}{'extra MiB':>11}{'ours/peer':>22}")
for (who, kind, n), (least, median, extra) in sorted(best.items(), key=lambda item: (item[0][1], item[0][2], item[0][0])):
    ratio = ""
    if who != "ours":
        ours = best[("ours", kind, n)]
        ratio = f"{ours[0] / least:.3f} {ours[1] / median:.3f} {ours[2] / max(extra, 0.1):.3f}"
    print(f"{kind:16}{n:>6}{who:>11}{least:>10.2f}{median:>11.2f}{extra:>11.1f}{ratio:>22}")
print("ours/peer: least time, median time, extra memory; processor milliseconds of forward and backward, one thread")
