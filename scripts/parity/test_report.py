"""TensorBoard, a browser's HTML parser and numpy on what the release binaries and the Rust tests write.

    .venv/bin/python -m pytest scripts/parity/test_report.py
"""

import json
import os
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

ROOT = Path(__file__).parents[2]
BINARIES = ROOT / "target/release"


def rust_test(name, **variables):
    """Runs one Rust integration test, which leaves its files in the folder that a variable names."""
    command = ["cargo", "test", "--release", "--quiet", "--test", "tests", f"report::{name}", "--", "--exact"]
    environment = os.environ | {key: str(value) for key, value in variables.items()}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout, done.stdout


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    folder = tmp_path_factory.mktemp("events") / "tb"
    rust_test("event_files_of_a_resumed_run", WEINCE_EVENTS_FOLDER=folder)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    rust_test("the_page_is_self_contained_escaped_and_reproducible", WEINCE_RUNS_FOLDER=folder)
    return sorted(path for path in folder.iterdir() if path.is_dir())


def test_tensorboard_reads_a_resumed_run_without_overlap(events):
    accumulator = EventAccumulator(str(events), size_guidance={"scalars": 0}).Reload()
    loss = [(e.step, e.value) for e in accumulator.Scalars("train/loss")]
    # Stopped after step 9, resumed at step 6: the points 6 to 9 of the first file are superseded.
    assert loss == [(s, float(s)) for s in range(6)] + [(s, 100.0 + s) for s in range(6, 12)]
    assert [e.step for e in accumulator.Scalars("train/lr")] == list(range(6))
    assert all(1.6e9 < e.wall_time < 1e11 for e in accumulator.Scalars("train/loss"))


def test_every_record_passes_tensorboards_checksums(events):
    # Its loaders stop at a damaged record without an error: the number of events shows that none is.
    loaded = [event for path in sorted(events.iterdir()) for event in EventFileLoader(str(path)).Load()]
    assert len(loaded) == (1 + 10) + (1 + 1 + 6)
    assert [e.file_version for e in loaded if e.file_version] == ["brain.Event:2"] * 2


def report(*arguments):
    done = subprocess.run([BINARIES / "report", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def test_figures_equal_numpy(runs):
    groups = {g["loss_kind"]: g for g in json.loads(report(*runs, "--json").stdout)["groups"]}
    assert {kind: len(g["runs"]) for kind, g in groups.items()} == {"infonce": 2, "reference": 1, "weince": 2}
    for kind, group in groups.items():
        values = {key: [] for key in group["figures"]}
        for run in group["runs"]:
            folder = Path(run["folder"])
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
            train = [line for line in lines if line["split"] == "train"]
            last = [line for line in train if line["step"] >= train[-1]["step"] - train[-1]["step"] // 10]
            values["final_loss"].append(np.mean([line["loss"] for line in last]))
            values["images_per_second"].append(np.median([line["images_per_second"] for line in train]))
            values["seconds"].append(train[-1]["seconds"])
            if "lambda_mean" in last[0]:
                values["lambda_mean"].append(np.mean([line["lambda_mean"] for line in last]))
            if (folder / "results/knn.json").exists():
                knn = json.loads((folder / "results/knn.json").read_text())
                values["linear_accuracy"].append(json.loads((folder / "results/linear.json").read_text())["test_accuracy"])
                values["knn_accuracy"].append(knn["accuracy_at_k"]["200"])
                values["recall_at_1"].append(knn["recall_at_1"])
        for key, expected in values.items():
            figure = group["figures"][key]
            if not expected:
                assert figure is None, (kind, key)
                continue
            assert figure["n"] == len(expected)
            assert figure["mean"] == pytest.approx(np.mean(expected), rel=1e-12)  # a different order of summation
            if len(expected) == 1:
                assert figure["std"] is None
            else:
                assert figure["std"] == pytest.approx(np.std(expected, ddof=1), rel=1e-9, abs=1e-15)


class Strict(HTMLParser):
    """Fails on tags that do not nest."""

    VOID = {"meta", "img", "br"}

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attributes):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())


def test_page_is_well_formed(runs, tmp_path):
    page = tmp_path / "report.html"
    done = report(*runs, "--out", page)
    assert str(page) in done.stderr and "infonce" in done.stdout
    html = page.read_text()
    parser = Strict()
    parser.feed(html)
    assert parser.open == []
    charts = html.split("<svg")[1:]
    assert len(charts) == 11
    for chart in charts:
        ElementTree.fromstring("<svg" + chart.split("</svg>")[0] + "</svg>")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_markdown_has_a_row_a_group(runs):
    lines = report(*runs, "--markdown").stdout.splitlines()
    assert len(lines) == 2 + 3 and all(line.startswith("|") for line in lines)


def test_wrong_folders_are_refused(runs, tmp_path):
    page = tmp_path / "report.html"
    done = subprocess.run([BINARIES / "report", tmp_path / "none", "--out", page], capture_output=True, text=True)
    assert done.returncode == 1 and "no such run folder" in done.stderr and not page.exists()
    done = subprocess.run([BINARIES / "report", runs[0], "--out", tmp_path / "no/report.html"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and "cannot create" in done.stderr
    assert subprocess.run([BINARIES / "report"], capture_output=True).returncode == 2


def test_doctor_agrees_with_torch():
    import torch

    done = subprocess.run([BINARIES / "doctor", "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["libtorch"]["loaded"] == torch.__version__
    assert found["libtorch"]["compiled"] == found["libtorch"]["supported"] == torch.__version__.split("+")[0]
    assert found["cpu"]["capability"] == torch.backends.cpu.get_cpu_capability()
    assert found["cuda"]["devices"] == torch.cuda.device_count()
    steps = found["training_steps"]
    assert [s["device"] for s in steps] == ["cpu"] + ["cuda:0"] * torch.cuda.is_available()
    assert all(s["error"] is None and s["losses"][1] < s["losses"][0] for s in steps)
