"""run-sweep against NumPy and SciPy on the same figures, and sweeps that are killed at random moments.

Runs the release binaries, which have to be built first.
"""

import csv
import math
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

ROOT = Path(__file__).resolve().parents[2]
BINARY = ROOT / "target/release/run-sweep"

BASE = """
data: {kind: synthetic, train: 100, test: 40, size: 8, threads: 1}
augment: {size: 8}
model:
  encoder: {kind: resnet18, stem: small, width: 4}
  projector: {dim: 16}
loss: {kind: infonce}
optim: {kind: adam, lr: 1.0e-3}
train: {epochs: 12, batch_size: 16, log_every: 1}
checkpoint: {every_steps: 4}
"""
RECALLS = [f"recall_at_{r}" for r in (1, 2, 5, 10, 20, 50)]


def run(*arguments, code=0):
    assert BINARY.exists(), f"{BINARY} is missing: cargo build --release --bins"
    done = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return done


MARGINS, KAPPAS, SEEDS, PROBES = ["0", "2", "6"], ["5", "10.0"], [3, 0, 11, 4, 5], [7, 8, 9]
NAMES = [f"margin{m}-kappa_rho{k}" for m in MARGINS for k in KAPPAS]


@pytest.fixture
def figures(tmp_path):
    """A sweep of three arms with figures as of 500 held-out and 1000 test samples: some seeds and probes are missing, two
    settings are equal on validation."""
    (tmp_path / "sweep.resolved.yaml").write_text(
        f"base: {{{', '.join(line for line in BASE.split(chr(10)) if line[:1].isalpha() and line[-1] == '}')}, "
        f"model: {{encoder: {{kind: resnet18}}}}}}\n"
        f"seeds: {SEEDS}\nbaseline: infonce\n"
        f"arms:\n- {{name: infonce}}\n- name: weince\n  set: {{loss.kind: weince}}\n"
        f"  grid: {{loss.gate.margin: [{', '.join(MARGINS)}], loss.gate.kappa_rho: [{', '.join(KAPPAS)}]}}\n"
        f"- {{name: reference, set: {{loss.kind: reference}}}}\n"
        f"evaluate: {{linear: {{seeds: {PROBES}}}, knn: {{}}}}\n"
    )
    rng = np.random.default_rng(0)
    rows = []
    for arm, setting in [("infonce", "-"), *(("weince", name) for name in NAMES), ("reference", "-")]:
        for seed in SEEDS:
            for metric in ["linear_accuracy", "knn_accuracy", *RECALLS]:
                for probe in PROBES if metric == "linear_accuracy" else [""]:
                    val, test = rng.integers(300, 340) / 500, rng.integers(600, 680) / 1000
                    rows.append([arm, setting, seed, metric, probe, val, test])
    best = NAMES[4]
    for row in rows:
        # The best of all on validation, if its last seed were there; recall@2: two settings with the same counts shuffled.
        if row[1] == best:
            row[5] += 0.2
        if row[3] == "recall_at_2" and row[1] in (NAMES[1], NAMES[3]):
            order = SEEDS if row[1] == NAMES[1] else SEEDS[::-1]
            row[5] = (400 + 7 * order.index(row[2])) / 500
    missing = [row for row in rows if row[1] == best and row[2] == 5 and row[3] != "knn_accuracy"]
    missing += [row for row in rows if row[1] == NAMES[0] and row[2] == 0 and row[4] == 8]
    missing += [row for row in rows if row[0] == "reference" and row[3] == "recall_at_50" and row[2] != 3]
    rows = [row for row in rows if row not in missing]
    with open(tmp_path / "runs.csv", "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow("arm,setting,seed,metric,probe_seed,val,test".split(","))
        writer.writerows(rows)
    return tmp_path


def expected(rows, metric, arm, settings):
    """Per-seed figures of the complete settings, by setting: validation and test, probes averaged."""
    found = {}
    for setting in settings:
        of = [r for r in rows if (r["arm"], r["setting"], r["metric"]) == (arm, setting, metric)]
        per_seed = [[(float(r["val"]), float(r["test"])) for r in of if int(r["seed"]) == seed] for seed in SEEDS]
        if all(len(seed) == (len(PROBES) if metric == "linear_accuracy" else 1) for seed in per_seed):
            found[setting] = np.array([np.mean(seed, axis=0) for seed in per_seed])
    return found


def test_the_whole_table_equals_numpy_and_scipy(figures):
    out = run("report", figures)
    rows = list(csv.DictReader((figures / "runs.csv").open()))
    table = list(csv.DictReader((figures / "table.csv").open()))
    metrics = ["linear_accuracy", "knn_accuracy", *RECALLS]
    lines = [("infonce", ["-"], False), ("weince", NAMES, False), ("weince", NAMES[3:4], True), ("reference", ["-"], False)]
    assert len(table) == len(metrics) * len(lines)
    got = iter(table)
    chosen = {}
    for metric in metrics:
        baseline = expected(rows, metric, "infonce", ["-"])["-"][:, 1]
        for arm, settings, default in lines:
            line = next(got)
            assert (line["metric"], line["arm"], line["tuned"]) == (metric, arm, str(int(len(settings) > 1)))
            assert int(line["settings"]) == len(settings)
            complete = expected(rows, metric, arm, settings)
            assert int(line["complete_settings"]) == len(complete)
            if not complete:
                assert line["setting"] == line["test_mean"] == line["difference_mean"] == ""
                continue
            # The first of the best; counts of 1500 can't make means that differ by 1e-9.
            best = max(np.mean(figure[:, 0]) for figure in complete.values())
            setting = next(name for name in complete if np.mean(complete[name][:, 0]) > best - 1e-9)
            assert line["setting"] == setting
            chosen[metric, arm, default] = setting
            test = complete[setting][:, 1]
            interval = scipy.stats.t.interval(0.95, len(SEEDS) - 1, np.mean(test), scipy.stats.sem(test))
            want = [complete[setting][:, 0].mean(), test.mean(), test.std(ddof=1), *interval]
            keys = ["val_mean", "test_mean", "test_std", "test_ci95_low", "test_ci95_high"]
            if arm != "infonce":
                difference = test - baseline
                paired = scipy.stats.ttest_rel(test, baseline).confidence_interval(0.95)
                want += [difference.mean(), difference.std(ddof=1), paired.low, paired.high]
                keys += ["difference_mean", "difference_std", "difference_ci95_low", "difference_ci95_high"]
            else:
                assert line["difference_mean"] == ""
            # Sums in another order, and a quantile found by iteration.
            np.testing.assert_allclose([float(line[key]) for key in keys], want, rtol=1e-9, atol=1e-12)
            half = 100 * (interval[1] - interval[0]) / 2
            assert f"{100 * test.mean():.2f} ± {half:.2f}" in out.stdout
    # What the figures were made for: the best on validation counts only where it is complete, and ties give the first.
    assert chosen["knn_accuracy", "weince", False] == NAMES[4] != chosen["linear_accuracy", "weince", False]
    assert chosen["recall_at_2", "weince", False] == NAMES[1]
    assert len({chosen[metric, "weince", False] for metric in metrics}) > 2, "every metric chooses by itself"
    assert f"Left out: weince {NAMES[0]}, with 4 of 5 seeds (linear_accuracy)." in out.stdout
    assert "Left out: reference, with 1 of 5 seeds (recall_at_50)." in out.stdout
    assert f"Left out: weince {NAMES[4]}, with 4 of 5 seeds (linear_accuracy, recall_at_1" in out.stdout
    assert "infonce from 1, weince from 6, reference from 1" in out.stdout


def test_one_seed_has_no_interval(figures):
    for name in ("sweep.resolved.yaml", "runs.csv"):
        path = figures / name
        lines = path.read_text().splitlines()
        if name == "runs.csv":
            lines = [line for i, line in enumerate(lines) if i == 0 or line.split(",")[2] == "3"]
        path.write_text("\n".join(lines).replace(f"seeds: {SEEDS}", "seeds: [3]") + "\n")
    out = run("report", figures).stdout
    table = list(csv.DictReader((figures / "table.csv").open()))
    assert all(line["test_std"] == line["test_ci95_low"] == line["difference_ci95_high"] == "" for line in table)
    assert all(math.isfinite(float(line["test_mean"])) for line in table)
    assert "±" not in out and "of one encoder seed" in out


def children(pid):
    """Processes that a process has started and that are still there."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text().split()]
        except OSError:
            pass
    return found


def test_a_sweep_killed_at_random_ends_with_the_same_tables(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)
    sweep = tmp_path / "s.yaml"
    sweep.write_text(
        "base: base.yaml\nseeds: [0, 1]\nbaseline: infonce\n"
        "arms:\n- {name: infonce}\n- name: weince\n  set: {loss: {kind: weince, tail: {min_points: 10}}}\n"
        "evaluate: {knn: {k: [1, 5]}}\n"
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}

    def start(out):
        command = [BINARY, "--sweep", sweep, "--out", tmp_path / out, "--jobs", "2", "--device", "cpu"]
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    began = time.monotonic()
    whole = start("whole")
    _, said = whole.communicate()
    assert whole.returncode == 0, said
    seconds = time.monotonic() - began

    moments = random.Random(1)
    kills, waits = 0, 0
    while True:
        process = start("killed")
        # The sweep alone, whose processes then go on without it, or all of them; after the last kill it runs to its end.
        try:
            _, said = process.communicate(timeout=moments.uniform(0, seconds / 3) if kills < 4 else 600)
        except subprocess.TimeoutExpired:
            orphans = children(process.pid)
            process.kill()
            kills += 1
            if kills % 2:
                for orphan in orphans:
                    os.kill(orphan, signal.SIGKILL)
            _, said = process.communicate()
            waits += "a process of an earlier start is still at work" in said
            continue
        waits += "a process of an earlier start is still at work" in said
        assert process.returncode == 0, said
        break
    assert kills >= 2, "the sweep was too fast to be killed"
    for name in ("runs.csv", "table.csv", "table.md", "table.svg", "sweep.resolved.yaml"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    for path in sorted((tmp_path / "whole/runs").iterdir()):
        encoder = path / "checkpoints/encoder.safetensors"
        assert encoder.read_bytes() == (tmp_path / "killed/runs" / path.name / "checkpoints/encoder.safetensors").read_bytes()
    print(f"{kills} kills; {waits} starts waited for processes of an earlier one")
