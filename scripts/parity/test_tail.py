"""`diagnose-tail` against SciPy and NumPy: generalised Pareto fits, thresholds, links; and what wrong input gets.

Needs the binary, which `cargo build --release` makes.
"""

import csv
import json
import subprocess

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file
from scipy.optimize import minimize
from scipy.stats import genpareto

from test_pretrain_text import prepared, pretrain, sentences
from test_train import BIN


def tail(*args, code: int = 0) -> str:
    done = subprocess.run([BIN / "diagnose-tail", *map(str, args)], capture_output=True, text=True)
    assert done.returncode == code and "panicked" not in done.stderr, (done.returncode, done.stderr)
    return done.stdout if code == 0 else done.stderr


def figures(*args) -> dict:
    return json.loads(tail(*args, "--json"))


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = (x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True) for x in (a, b))
    return a @ b.T


def embeddings(n: int, d: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return (generator.normal(size=(n, d)) * generator.uniform(0.1, 9, size=(n, 1))).astype(np.float32)


@pytest.mark.parametrize("n", [200, 5000])
@pytest.mark.parametrize("xi", [-0.4, -0.2, 0.0, 0.2, 0.6])
def test_a_fit_is_at_least_as_likely_as_scipys(tmp_path, xi, n):
    y = genpareto.rvs(xi, scale=0.3, size=n, random_state=n)
    np.save(tmp_path / "y.npy", y)
    found = figures("--exceedances", tmp_path / "y.npy")
    likelihood = genpareto.logpdf(y, found["xi"], scale=found["sigma"]).sum()
    assert abs(likelihood - found["log_likelihood"]) < 1e-8 * n
    shape, _, scale = genpareto.fit(y, floc=0)
    assert found["log_likelihood"] >= genpareto.logpdf(y, shape, scale=scale).sum() - 1e-6
    # How far SciPy's simplex stops from the maximum.
    assert abs(found["xi"] - shape) < 1e-4 and abs(found["sigma"] / scale - 1) < 1e-4
    assert abs(found["xi"] - xi) < 4 * found["se_xi"]
    if found["xi"] < 0:
        assert abs(found["endpoint"] - genpareto.support(found["xi"], scale=found["sigma"])[1]) < 1e-12
    else:
        assert found["endpoint"] is None
    exponential = np.log(1 / y.mean()) * n - n
    assert abs(found["exponential_lr"] - 2 * (likelihood - exponential)) < 1e-6


def test_what_has_no_errors_says_why(tmp_path):
    y = genpareto.rvs(-1.5, scale=1, size=500, random_state=1)
    save_file({"y": y.astype(np.float32), "other": np.zeros((2, 2), np.float32)}, tmp_path / "y.safetensors")
    found = figures("--exceedances", tmp_path / "y.safetensors")
    assert found["xi"] == -1 and found["at_boundary"] and found["se_xi"] is None and found["shape"] == "boundary"
    assert any("boundary" in note for note in found["notes"])
    assert "at the boundary -1" in tail("--exceedances", f"{tmp_path / 'y.safetensors'}:y")


@pytest.mark.parametrize("file", ["e.npy", "e.safetensors"])
def test_peaks_are_numpys_and_their_law_is_scipys(tmp_path, file):
    e = embeddings(400, 12, 0)
    np.save(tmp_path / "e.npy", e)
    save_file({"embeddings": e}, tmp_path / "e.safetensors")
    found = figures("--embeddings", tmp_path / file, "--bootstrap", 50)
    s = cosines(e, e)[~np.eye(400, dtype=bool)]
    threshold = np.quantile(s, 0.99)
    y = s[s > threshold] - threshold
    assert abs(found["threshold"] - threshold) < 1e-12 and found["n"] == len(y) == 1596
    assert found["anchors"] == 400 and found["negatives"] == 399
    shape, _, scale = genpareto.fit(y, floc=0)
    assert found["log_likelihood"] >= genpareto.logpdf(y, shape, scale=scale).sum() - 1e-6
    assert abs(found["xi"] - shape) < 1e-4
    assert abs(found["endpoint"] - (threshold - found["sigma"] / found["xi"])) < 1e-12
    for point in found["grid"]:
        if "xi" in point:
            assert abs(point["threshold"] - np.quantile(s, point["quantile"])) < 1e-12
    # Uniform in 12 dimensions: h is 5.5.
    assert abs(found["tail_index"] - 5.5) < 1.5


def choices(s: np.ndarray, winners: np.ndarray, theta: np.ndarray) -> float:
    x = -np.log(np.maximum(1 - s, 1e-6))
    logits = theta[0] * s + theta[1] * x
    top = logits.max(axis=1, keepdims=True)
    return (logits[np.arange(len(s)), winners] - top[:, 0] - np.log(np.exp(logits - top).sum(axis=1))).sum()


def best(s: np.ndarray, winners: np.ndarray) -> tuple[np.ndarray, float]:
    found = minimize(lambda theta: -choices(s, winners, theta), [1.0, 1.0], method="BFGS", options={"gtol": 1e-9})
    found = minimize(lambda theta: -choices(s, winners, theta), found.x, method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12})
    return found.x, -found.fun


@pytest.mark.parametrize("winner", ["fresh", "positive"])
def test_a_link_is_that_of_plain_maximum_likelihood(tmp_path, winner):
    n = 300
    a = embeddings(n, 6, 1)
    # Wide enough noise, so that winners are not separated.
    b = a / np.linalg.norm(a, axis=1, keepdims=True) + 0.6 * embeddings(n, 6, 2) / 5
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", b.astype(np.float32))
    # All others are candidates: however they are drawn, they are the same.
    link = figures(
        "--embeddings", tmp_path / "a.npy", "--second", tmp_path / "b.npy", "--winner", winner, "--link-candidates", n, "--bootstrap", 0
    )["link"]
    b = np.load(tmp_path / "b.npy")
    off = ~np.eye(n, dtype=bool)
    others = cosines(a, a)[off].reshape(n, n - 1)
    if winner == "fresh":
        s, winners = others, cosines(b, a)[off].reshape(n, n - 1).argmax(axis=1)
    else:
        s, winners = np.hstack([np.diag(cosines(a, b))[:, None], others]), np.zeros(n, int)
    theta, likelihood = best(s, winners)
    assert abs(link["log_likelihood"] - likelihood) < 1e-6
    assert np.abs(np.array(link["theta"]) - theta).max() < 1e-3
    assert abs(link["lambda"] - theta[1] / theta.sum()) < 1e-4
    softmax = minimize(lambda t: -choices(s, winners, np.array([t[0], 0])), [1.0], method="BFGS")
    assert abs(link["softmax"]["log_likelihood"] + softmax.fun) < 1e-6
    assert abs(link["softmax_test"]["lr"] - 2 * (likelihood + softmax.fun)) < 1e-5
    assert abs(link["weibit"]["aic"] - (2 + 2 * minimize(lambda t: -choices(s, winners, np.array([0, t[0]])), [1.0]).fun)) < 1e-5
    assert link["choices"] == n and link["candidates"] == s.shape[1]


@pytest.mark.parametrize("kappa, weight", [(4.0, 0.0), (3.0, 0.4), (1.5, 1.0)])
def test_a_known_lambda_is_recovered(tmp_path, kappa, weight):
    """A positive drawn from the whole corpus by the link is chosen by the same link from any random part of it (McFadden 1978)."""
    n = 1500
    a = embeddings(n, 6, 3)
    s = cosines(a, a)
    logits = kappa * ((1 - weight) * s - weight * np.log(np.maximum(1 - s, 1e-6)))
    np.fill_diagonal(logits, -np.inf)
    gumbel = np.random.default_rng(4).gumbel(size=(n, n))
    np.save(tmp_path / "a.npy", a)
    np.save(tmp_path / "b.npy", a[(logits + gumbel).argmax(axis=1)])
    link = figures(
        "--embeddings", tmp_path / "a.npy", "--second", tmp_path / "b.npy", "--winner", "positive", "--anchors", n, "--bootstrap", 0
    )["link"]
    low, high = link["lambda_interval_robust"]
    assert low <= weight <= high, link


def test_a_report_has_pictures_and_their_numbers(tmp_path):
    np.save(tmp_path / "e.npy", embeddings(400, 8, 5))
    tail("--embeddings", tmp_path / "e.npy", "--out", tmp_path / "out", "--bootstrap", 40)
    found = json.loads((tmp_path / "out" / "tail.json").read_text())
    pictures = sorted(p.stem for p in (tmp_path / "out").glob("*.png"))
    assert {"exceedances", "exceedances_log", "quantiles", "stability_xi", "anchors_xi", "anchors_lambda"} <= set(pictures)
    page = (tmp_path / "out" / "report.md").read_text()
    for name in pictures:
        with Image.open(tmp_path / "out" / f"{name}.png") as picture:
            assert picture.size == (1280, 760)
        assert f"({name}.png)" in page
        with open(tmp_path / "out" / f"{name}.csv") as file:
            assert len(list(csv.reader(file))) > 2
    with open(tmp_path / "out" / "anchors.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 400
    for name in ["lambda", "beta", "rho", "delta_aic", "criticality"]:
        mean = np.mean([float(row[name]) for row in rows])
        assert abs(mean - found["per_anchor"][name]["mean"]) < 1e-9 * max(1, abs(mean))


def refused(folder, array: np.ndarray, flag: str, *more, code: int = 1) -> str:
    np.save(folder / "x.npy", array)
    return tail(flag, folder / "x.npy", *more, code=code)


def test_wrong_input_is_told(tmp_path):
    rows = embeddings(50, 4, 6)
    bad = rows.copy()
    bad[7, 2] = np.nan
    assert "row 7" in refused(tmp_path, bad, "--embeddings", code=3)
    bad[7] = 0
    assert "row 7" in refused(tmp_path, bad, "--embeddings")
    assert "2 items" in refused(tmp_path, rows[:1], "--embeddings")
    assert "quantile below" in refused(tmp_path, rows[:20], "--embeddings")
    assert "not by a temperature" in refused(tmp_path, cosines(rows, rows) / 0.1, "--similarities")
    assert "diagonal" in refused(tmp_path, cosines(rows, rows), "--similarities")
    y = np.abs(embeddings(50, 1, 7)[:, 0])
    assert "exceedance 3" in refused(tmp_path, np.where(np.arange(50) == 3, -y, y), "--exceedances")
    assert "number 3" in refused(tmp_path, np.where(np.arange(50) == 3, np.inf, y), "--exceedances", code=3)
    assert "at least 20" in refused(tmp_path, y[:19], "--exceedances")
    np.save(tmp_path / "labels.npy", np.zeros(50, np.int64))
    assert "of its class" in refused(tmp_path, rows, "--embeddings", "--labels", tmp_path / "labels.npy")
    np.save(tmp_path / "second.npy", rows[:49])
    assert "expected a row of one width" in refused(tmp_path, rows, "--embeddings", "--second", tmp_path / "second.npy")
    assert "--second" in refused(tmp_path, rows, "--embeddings", "--negatives", "across-views", code=2)
    tail(code=2)
    tail("--embeddings", "a", "--similarities", "b", code=2)


def test_what_embeddings_can_have_is_told(tmp_path):
    rows = embeddings(300, 8, 8)
    rows[:30] = rows[0]
    np.save(tmp_path / "x.npy", rows)
    text = tail("--embeddings", tmp_path / "x.npy", "--bootstrap", 40)
    assert "duplicates" in text and "300 with up to 299 negatives" in text
    found = figures("--embeddings", tmp_path / "x.npy", "--bootstrap", 40)
    assert found["duplicate_pairs"] == 30 * 29 and found["anchors_with_duplicates"] == 30
    # A length is no part of a cosine.
    np.save(tmp_path / "y.npy", rows * 4)
    again = figures("--embeddings", tmp_path / "y.npy", "--bootstrap", 40)
    for key in ["xi", "sigma", "threshold", "xi_interval"]:
        assert np.allclose(again[key], found[key], rtol=1e-6), key
    # A corpus smaller than a tail.
    np.save(tmp_path / "z.npy", embeddings(25, 8, 9))
    text = tail("--embeddings", tmp_path / "z.npy", "--quantile", 0.9, "--bootstrap", 40)
    assert "tail is 24 of its 24 negatives" in text and "Only 25 anchors" in text
    # One anchor.
    np.save(tmp_path / "s.npy", cosines(rows[100:101], embeddings(4000, 8, 10)))
    text = tail("--similarities", tmp_path / "s.npy")
    assert "no intervals over anchors" in text


def test_a_text_run_is_looked_at(tmp_path):
    config, examples = prepared(tmp_path, "cls", more="")
    pretrain(config, "--run-dir", tmp_path / "run")
    common = ["--run", tmp_path / "run", "--device", "cpu", "--quantile", 0.9, "--bootstrap", 40]
    assert "no sentences that are held out" in tail(*common, code=2)
    found = figures(*common, "--split", "train")
    assert found["anchors"] == len(examples) and found["data"]["negatives"] == "across_views"
    # One way, a batch of 8; WEINCE's defaults stand in for InfoNCE's missing gate.
    assert found["per_anchor"]["negatives"] == 7 and "InfoNCE" in found["per_anchor"]["gate_of"]
    assert found["link"]["choices"] == 5 * len(examples)
    held_out = tmp_path / "held-out.txt"
    held_out.write_text("\n".join(sentences(60)[30:]) + "\n")
    other = figures(*common, "--data", held_out, "--space", "encoder", "--negatives", "plain", "--draws", 0)
    assert other["anchors"] == 30 and other["data"]["data"]["path"] == str(held_out) and other["link"] is None
    # Pairs with scores, as eval-sts takes them: each sentence once.
    lines = sentences(60)[30:]
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{lines[0]}\t1\n" for a in lines))
    pairs = figures(*common, "--data", tmp_path / "pairs.tsv", "--space", "encoder", "--negatives", "plain", "--draws", 0)
    assert pairs["anchors"] == 30 and pairs["data"]["data"]["repeated_sentences_left_out"] == 30
    assert pairs["threshold"] == pytest.approx(other["threshold"], abs=1e-6)
