"""`eval-search` against plain NumPy: ranks, cross-entropy with its error, finite k, temperature; runs; and what wrong input gets.

Needs the binary, which `cargo build --release` makes.
"""

import csv
import json
import subprocess

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp
from scipy.stats import hypergeom

from test_pretrain_text import prepared, pretrain, sentences
from test_train import BIN


def search(*args, code: int = 0) -> str:
    done = subprocess.run([BIN / "eval-search", *map(str, args)], capture_output=True, text=True)
    assert done.returncode == code and "panicked" not in done.stderr, (done.returncode, done.stderr)
    return done.stdout if code == 0 else done.stderr


def figures(*args) -> dict:
    return json.loads(search(*args, "--json"))


def unit(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def data(seed: int, n: int, m: int, d: int, noise: float = 0.6) -> list[np.ndarray]:
    """Clusters, hubs, rows of any norm, and duplicates."""
    g = np.random.default_rng(seed)
    centres = g.normal(size=(9, d)) + 0.8 * g.normal(size=d)
    rows = lambda k: centres[g.integers(0, 9, k)] + g.normal(size=(k, d))
    anchors = rows(n)
    positives = anchors + noise * g.normal(size=(n, d))
    corpus = rows(m)
    corpus[m // 3] = corpus[m // 2]
    scaled = [x * g.uniform(0.1, 5, size=(len(x), 1)) for x in (anchors, positives, corpus)]
    return [x.astype(np.float32) for x in scaled]


def reference(cosines: np.ndarray, positives: np.ndarray, tau: float) -> dict:
    n, m = cosines.shape
    x, own = cosines / tau, positives / tau
    lse = logsumexp(x, axis=1)
    p = np.exp(x - lse[:, None])
    plug = lse - np.log(m) - own
    # The jackknife by its definition, where each item is left out once.
    left = np.log(np.exp(lse)[:, None] - np.exp(x)) - np.log(m - 1) - own[:, None]
    jackknife = m * plug - (m - 1) * left.mean(axis=1)
    psi = m / n * p.sum(axis=0) - 1
    interaction = ((m * p - 1 - psi) ** 2).mean()
    v = m / (m - 1) * (m * (p**2).sum(axis=1) - 1)
    rank = 1 + (cosines >= positives[:, None]).sum(axis=1)
    loss = np.log1p(np.exp(x - own[:, None]).sum(axis=1))
    return {
        "plug_in": plug.mean(),
        "jackknife": jackknife.mean(),
        "delta": (plug + v / (2 * m)).mean(),
        "se": np.sqrt(jackknife.var(ddof=1) / n + psi.var(ddof=1) / m - interaction / (n * m)),
        "se_anchors_only": np.sqrt(jackknife.var(ddof=1) / n),
        "c1": np.exp(own - lse + np.log(m)).mean() - v.mean() / 2,
        "rank": rank,
        "loss": loss.mean(),
        "dominated": (p.max(axis=1) > 0.5).mean(),
        "probability": np.exp(-loss).mean(),
        "n2": np.median(1 / (p**2).sum(axis=1)),
        "divergence": (p * x).sum(axis=1).mean() - (lse - np.log(m)).mean(),
    }


@pytest.mark.parametrize("tau, d", [(0.3, 16), (0.1, 64), (0.05, 7)])
def test_figures_are_those_of_numpy(tmp_path, tau, d):
    n, m = 120, 2600
    anchors, positives, corpus = data(d, n, m, d)
    np.save(tmp_path / "a.npy", anchors)
    np.save(tmp_path / "p.npy", positives.astype(np.float64))
    save_file({"items": corpus, "others": np.zeros((3, 2, 2), np.float32)}, tmp_path / "c.safetensors")
    args = ["--anchors", tmp_path / "a.npy", "--positives", tmp_path / "p.npy", "--corpus", f"{tmp_path}/c.safetensors:items"]
    found = figures(*args, "--tau", tau, "--out", tmp_path / "out")
    a, p, c = map(unit, (anchors, positives, corpus))
    cosines, own = a @ c.T, (a * p).sum(axis=1)
    expected = reference(cosines, own, tau)
    # float32 cosines are off by some 1e-7, their logits by that over tau.
    slack = 2e-6 + 1e-6 / tau
    entropy = found["cross_entropy"]
    for key in ["plug_in", "jackknife", "delta", "loss", "probability"]:
        assert abs(entropy[key] - expected[key]) < slack, key
    for key in ["se", "se_anchors_only"]:
        assert abs(entropy[key] / expected[key] - 1) < 1e-3, key
    assert abs(entropy["median_n2"] / expected["n2"] - 1) < 0.02
    assert abs(found["finite_k"]["c1"] / expected["c1"] - 1) < 10 * slack
    rank = expected["rank"]
    assert {r["rank"]: r["value"] for r in found["retrieval"]["recall"]} == pytest.approx(
        {r: (rank <= r).mean() for r in (1, 5, 10, 100)}
    )
    assert found["retrieval"]["mrr"]["value"] == pytest.approx((1 / rank).mean())
    assert found["retrieval"]["median_rank"]["value"] == np.median(rank)
    for point in found["retrieval"]["by_size"]:
        for r in (1, 10):
            exact = hypergeom(m, rank - 1, point["items"]).cdf(r - 1).mean()
            assert point[f"recall_at_{r}"] == pytest.approx(exact, abs=1e-9)
    # Every anchor and item is in the sample: the curve at k = 1 and by resampling, and the temperatures.
    points = {q["k"]: q for q in found["finite_k"]["points"]}
    assert points[1]["risk"] == pytest.approx(np.log1p(np.exp((cosines - own[:, None]) / tau)).mean(), abs=1e-9)
    assert points[1]["dcl"] == pytest.approx((cosines - own[:, None]).mean() / tau, abs=1e-9)
    g = np.random.default_rng(0)
    draws = np.stack([g.permutation(m)[: m // 64 * 64].reshape(-1, 64) for _ in range(3)]).reshape(-1, 64)
    risk = np.mean([np.log1p(np.exp((cosines[:, b] - own[:, None]) / tau).sum(axis=1)) - np.log(64) for b in draws])
    assert abs(points[64]["risk"] - risk) < 0.02
    for q in found["temperature"]["points"][::4]:
        other = reference(cosines, own, q["tau"])
        assert abs(q["divergence"] - other["divergence"]) < 1e-5 + 4e-6 / q["tau"]
        # Where single items have most of the softmax, the jackknife is given up for the delta method.
        estimate = other["jackknife" if other["dominated"] <= 0.01 else "delta"]
        assert abs(q["r_inf"]["value"] - estimate) < 1e-5 + 4e-6 / q["tau"]
    calibrated = found["temperature"]["calibrated"]
    # The positive is among the items of this softmax.
    loss = lambda t: np.log1p(np.exp((cosines - own[:, None]) / t).sum(axis=1)).mean()
    best = minimize_scalar(lambda x: loss(np.exp(x)), bounds=np.log([0.005, 10]), method="bounded", options={"xatol": 1e-9})
    # Where it falls to the end of the range, nearly every positive is the nearest, and none fits.
    assert calibrated == (pytest.approx(np.exp(best.x), rel=1e-4) if best.x > np.log(0.0051) else None)
    table = list(csv.DictReader(open(tmp_path / "out" / "k_curve.csv")))
    assert [int(float(row["k"])) for row in table] == sorted(points)
    assert json.load(open(tmp_path / "out" / "search.json")) == found
    for name in ["k_curve", "tau_curve", "recall_vs_m"]:
        assert (tmp_path / "out" / f"{name}.png").stat().st_size > 5000
    assert "![" in (tmp_path / "out" / "report.md").read_text()


def test_positives_by_their_numbers_classes_and_the_other_positives(tmp_path):
    n, m, tau = 90, 400, 0.2
    g = np.random.default_rng(1)
    anchors, _, corpus = data(3, n, m, 12)
    numbers = g.permutation(m)[:n]
    corpus[numbers] = anchors + 0.5 * g.normal(size=anchors.shape).astype(np.float32)
    classes, own_classes = g.integers(0, 5, m), g.integers(0, 6, n)
    files = {"a": anchors, "p": numbers, "c": corpus, "lc": classes, "la": own_classes}
    for name, values in files.items():
        np.save(tmp_path / f"{name}.npy", values)
    args = ["--anchors", tmp_path / "a.npy", "--corpus", tmp_path / "c.npy", "--tau", tau]
    labels = ["--labels", tmp_path / "la.npy", "--corpus-labels", tmp_path / "lc.npy"]
    found = figures(*args, "--positives", tmp_path / "p.npy", *labels)
    a, c = unit(anchors), unit(corpus)
    cosines, own = a @ c.T, (a * c[numbers]).sum(axis=1)
    kept = np.ones((n, m), bool)
    kept[np.arange(n), numbers] = False
    others = cosines[kept].reshape(n, m - 1)
    expected = reference(others, own, tau)
    assert found["checks"]["items"] == m - 1
    assert abs(found["cross_entropy"]["jackknife"] - expected["jackknife"]) < 1e-5
    assert found["retrieval"]["mrr"]["value"] == pytest.approx((1 / expected["rank"]).mean())
    ece, kl = [], []
    for i in range(n):
        same = (classes == own_classes[i]) & kept[i]
        same = same if same.any() else kept[i]
        ece.append(logsumexp(cosines[i, kept[i]] / tau) - np.log(m - 1) - cosines[i, same].mean() / tau)
        kl.append(ece[-1] + np.log((m - 1) / same.sum()))
    labelled = found["cross_entropy"]["labelled"]
    assert abs(labelled["ece"] - np.mean(ece)) < 1e-5 and abs(labelled["kl"] - np.mean(kl)) < 1e-5
    # The other positives, with the influence of each item at its own anchor.
    positives = corpus[numbers]
    np.save(tmp_path / "q.npy", positives)
    found = figures("--anchors", tmp_path / "a.npy", "--positives", tmp_path / "q.npy", "--tau", tau)
    cosines = a @ unit(positives).T
    off = ~np.eye(n, dtype=bool)
    expected = reference(cosines[off].reshape(n, n - 1), own, tau)
    assert abs(found["cross_entropy"]["jackknife"] - expected["jackknife"]) < 1e-5
    x = np.where(off, cosines / tau, -np.inf)
    p = np.exp(x - logsumexp(x, axis=1)[:, None])
    lse = logsumexp(x, axis=1)
    left = np.log(np.exp(lse)[:, None] - np.exp(x)) - np.log(n - 2) - own[:, None] / tau
    plug = lse - np.log(n - 1) - own / tau
    each = (n - 1) * plug - (n - 2) * np.where(off, left, 0).sum(axis=1) / (n - 1)
    assert found["cross_entropy"]["se"] == pytest.approx(np.sqrt((each + p.sum(axis=0) - 1).var(ddof=1) / n), rel=1e-3)


def test_intervals_cover(tmp_path):
    """Fresh anchors and a fresh corpus each time: R_inf of many is inside of 95 % of the intervals."""
    tau, d, inside = 0.25, 3, 0
    c, kappa = 1 / tau, 8.0
    exact = np.log(np.sinh(c) / c) - c * (1 / np.tanh(kappa) - 1 / kappa)
    g = np.random.default_rng(5)
    for _ in range(60):
        a = unit(g.normal(size=(300, d)))
        t = 1 + np.log(g.uniform(size=300) * (1 - np.exp(-2 * kappa)) + np.exp(-2 * kappa)) / kappa
        across = g.normal(size=(300, d))
        across = unit(across - (across * a).sum(axis=1, keepdims=True) * a)
        np.save(tmp_path / "a.npy", a)
        np.save(tmp_path / "p.npy", t[:, None] * a + np.sqrt(1 - t**2)[:, None] * across)
        np.save(tmp_path / "c.npy", g.normal(size=(80, d)))
        args = ["--anchors", tmp_path / "a.npy", "--positives", tmp_path / "p.npy", "--corpus", tmp_path / "c.npy"]
        low, high = figures(*args, "--tau", tau, "--sample", "50,80")["cross_entropy"]["r_inf"]["interval"]
        inside += low <= exact <= high
    # Binomial of 60 and 0.95: fewer than 50 happen once in 1,000.
    assert inside >= 50, inside


def test_wrong_input_is_refused_with_its_place(tmp_path):
    good = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    save = lambda name, values: np.save(tmp_path / f"{name}.npy", values) or tmp_path / f"{name}.npy"
    a, p = save("a", good), save("p", good + 0.1)
    bad = good.copy()
    bad[7, 2] = np.nan
    pair = lambda anchors, positives, *more: search("--anchors", anchors, "--positives", positives, *more, code=2)
    assert "row 7" in pair(save("nan", bad), p)
    bad[7] = 0
    assert "row 7" in pair(a, save("zero", bad)) and "no direction" in pair(a, tmp_path / "zero.npy")
    assert "20" in pair(a, save("short", good[:19])) and "19" in pair(a, tmp_path / "short.npy")
    assert "same encoder" in pair(a, p, "--corpus", save("wide", np.ones((5, 3), np.float32)))
    assert "1 anchor" in pair(save("one", good[:1]), tmp_path / "one.npy")
    assert "at least 2" in pair(a, p, "--corpus", save("item", good[:1]))
    assert "--corpus" in pair(a, save("ids", np.arange(20)))
    assert "20 to" not in pair(a, save("ids", np.arange(20) + 5), "--corpus", p)
    assert "temperature" in pair(a, p, "--tau", "0")
    assert "ranks" in pair(a, p, "--r", "0,1")
    assert "labels" in pair(a, p, "--labels", save("labels", np.zeros(19, np.int64)))
    for more in (["--pairs", 7], ["--items", 3], ["--space", "encoder"], ["--data", "x"], ["--checkpoint", "x"], ["--device", "cpu"]):
        assert "cannot be used with" in pair(a, p, *more), more
    assert "--weince" in pair(a, p, "--weince", "0.5")
    assert "lambda" in pair(a, p, "--weince", "1.5,2")
    assert "found no file" in pair(a, tmp_path / "none.npy")
    # Anchors that are items of their own search.
    both = np.concatenate([good + 0.1, good])
    np.save(tmp_path / "both.npy", both)
    found = search("--anchors", a, "--positives", save("numbers", np.arange(20)), "--corpus", tmp_path / "both.npy")
    assert "the anchors themselves are among the items" in found
    # Small, and all right: three items, one class, duplicates of everything.
    three = figures("--anchors", a, "--positives", p, "--corpus", save("three", good[:3]), "--k", 256)
    assert three["finite_k"]["training"]["bias"] is None
    twice = np.concatenate([good, good])
    doubled = figures("--anchors", save("aa", twice), "--positives", save("pp", twice), "--tau", 0.1)
    assert doubled["retrieval"]["anchors_with_ties"] == 40 and doubled["checks"]["positive_is_anchor"] == 40


def test_sentences_that_people_found_alike_are_the_pairs_of_a_text_run(tmp_path):
    config, _ = prepared(tmp_path, "cls")
    pretrain(config, "--run-dir", tmp_path / "run")
    lines = sentences(60)
    # Scores from 0 to 5: of ten pairs with 4 or more, one repeats its anchor, and one's second sentence is an anchor itself.
    rows = [(lines[i], lines[i + 30], 4 + i % 2) for i in range(8)] + [(lines[0], lines[50], 5), (lines[20], lines[1], 4)]
    rows += [(lines[i], lines[i + 30], i % 4) for i in range(10, 20)] + [(lines[21], lines[39], 0)]
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{s}\n" for a, b, s in rows))
    common = ["--run", tmp_path / "run", "--device", "cpu"]
    assert "--data" in search(*common, code=2)
    found = figures(*common, "--data", tmp_path / "pairs.tsv")
    corpus = {b for _, b, _ in rows} - {a for a, _, s in rows if s >= 4}
    assert found["checks"]["anchors"] == 8 and found["checks"]["items"] == len(corpus) - 1
    assert found["data"]["pairs"]["least_score"] == 4 and found["protocol"]["k"] == 7
    assert found["generalisation"]["gap"] is None and found["tau"] == 0.05
    assert found["retrieval"]["anchors_with_ties"] == 0
