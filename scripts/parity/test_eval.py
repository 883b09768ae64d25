"""eval-linear and eval-knn against scikit-learn and PyTorch on the same features, and their behaviour as commands.

Runs the release binaries, which have to be built first.
"""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from safetensors.numpy import save_file
from sklearn.datasets import load_digits, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

ROOT = Path(__file__).resolve().parents[2]


def run(name, *args, env=None, code=0):
    binary = ROOT / "target" / "release" / name
    assert binary.exists(), f"{binary} is missing: cargo build --release --bins"
    # These problems are small: threads that spin while they wait make them many times slower on a busy machine.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", **(env or {})}
    done = subprocess.run([binary, *map(str, args)], capture_output=True, text=True, env=env, timeout=600)
    assert done.returncode == code, f"{name} gave {done.returncode}: {done.stderr}"
    return done


def save(path, x, y):
    save_file({"features": np.ascontiguousarray(x, np.float32), "labels": np.asarray(y, np.int64)}, path)
    return path


def digits():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order].astype(np.float32), y[order]
    return x[:1000], y[:1000], x[1000:], y[1000:]


def synthetic(seed, n, d, classes, test, weights=None, sep=1.0, informative=None, flip=0.01):
    informative = informative or min(d, 10)
    x, y = make_classification(
        n + test, d, n_informative=informative, n_redundant=min(d - informative, 10), n_classes=classes,
        n_clusters_per_class=1, weights=weights, class_sep=sep, flip_y=flip, random_state=seed,
    )  # fmt: skip
    x = x.astype(np.float32)
    return x[:n], y[:n], x[n:], y[n:]


def correlated():
    """As backbones give them: rectified, of very unequal scale, strongly correlated, two dimensions dead."""
    rng = np.random.default_rng(5)
    y = rng.integers(0, 10, 6000)
    z = rng.normal(size=(6000, 40)) + 1.2 * rng.normal(size=(10, 40))[y]
    x = np.maximum(z @ rng.normal(size=(40, 128)) * np.geomspace(0.01, 100, 128), 0)
    x[:, 7] = 0
    x[:, 9] = 0.3
    x = x.astype(np.float32)
    return x[:4000], y[:4000], x[4000:], y[4000:]


SETS = {
    "digits": digits,
    "two_classes": lambda: synthetic(1, 2000, 20, 2, 1000, sep=0.7),
    "unbalanced": lambda: synthetic(2, 3000, 30, 5, 2000, weights=[0.7, 0.2, 0.05, 0.03, 0.02]),
    "wide": lambda: synthetic(3, 150, 600, 3, 1000, sep=2.0, informative=20),
    "separable": lambda: synthetic(4, 800, 40, 4, 800, sep=6.0, flip=0.0),
    "correlated": correlated,
}


@pytest.fixture(scope="module", params=SETS)
def data(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    train_x, train_y, test_x, test_y = SETS[request.param]()
    files = ["--train-features", save(folder / "train.safetensors", train_x, train_y)]
    files += ["--test-features", save(folder / "test.safetensors", test_x, test_y)]
    return train_x, train_y, test_x, test_y, files


def objective(model, x, y, c):
    """scikit-learn's objective divided by C n, in float64."""
    log_p = model.predict_log_proba(x)
    loss = -log_p[np.arange(len(y)), np.searchsorted(model.classes_, y)].mean()
    return loss + 0.5 * (model.coef_**2).sum() / (c * len(y))


def compare_with_sklearn(got, train_x, train_y, test_x, test_y):
    outcome = got["outcomes"][0]
    scaler = StandardScaler().fit(train_x.astype(np.float64))
    x, c = scaler.transform(train_x.astype(np.float64)), outcome["c"]
    # newton-cholesky reaches the minimum to rounding, whatever the conditioning.
    peer = LogisticRegression(C=c, tol=1e-10, max_iter=1000, solver="newton-cholesky").fit(x, train_y)
    accuracy = peer.score(scaler.transform(test_x.astype(np.float64)), test_y)
    assert outcome["converged"]
    assert abs(accuracy - got["test_accuracy"]) <= 0.003
    assert objective(peer, x, train_y, c) == pytest.approx(outcome["objective"], rel=1e-4)
    return accuracy


def test_the_probe_agrees_with_sklearn_at_the_chosen_penalty(data):
    *arrays, files = data
    got = json.loads(run("eval-linear", *files, "--json").stdout)
    compare_with_sklearn(got, *arrays)
    assert 0 < got["val_accuracy"] <= 1 and 3 <= len(got["outcomes"][0]["sweep"]) <= 7


@pytest.mark.parametrize("l2", ["1", "1e-3", "1e-6"])
def test_the_probe_agrees_with_sklearn_at_any_penalty(data, l2):
    *arrays, files = data
    got = json.loads(run("eval-linear", *files, "--json", "--l2", l2, "--val-fraction", 0).stdout)
    assert got["val_accuracy"] is None and got["outcomes"][0]["l2"] == float(l2)
    compare_with_sklearn(got, *arrays)


def test_a_strong_penalty_is_fitted_to_the_end(tmp_path):
    """Few samples, many test samples: biases have no penalty and converge last, and a fit that stops before them shows."""
    rng = np.random.default_rng(3)
    means = rng.normal(size=(5, 8))
    y = rng.integers(0, 5, 20097)
    x = (means[y] + 1.5 * rng.normal(size=(20097, 8))).astype(np.float32)
    arrays = x[:97], y[:97], x[97:], y[97:]
    files = ["--train-features", save(tmp_path / "a.safetensors", *arrays[:2])]
    files += ["--test-features", save(tmp_path / "b.safetensors", *arrays[2:])]
    for l2 in ("10", "1", "0.1"):
        got = json.loads(run("eval-linear", *files, "--json", "--l2", l2, "--val-fraction", 0).stdout)
        assert got["outcomes"][0]["c"] == pytest.approx(1 / (float(l2) * 97))
        # 1 of 20,000 test samples is 5e-5.
        assert abs(got["test_accuracy"] - compare_with_sklearn(got, *arrays)) < 5e-4


def test_knn_equals_sklearn_and_numpy(data):
    train_x, train_y, test_x, test_y, files = data
    ks, temperature = [1, 5, 20, 200], 0.1
    got = json.loads(run("eval-knn", *files, "--json").stdout)
    most = min(max(ks), len(train_y))
    search = NearestNeighbors(n_neighbors=most, algorithm="brute", metric="cosine").fit(train_x.astype(np.float64))
    distance, index = search.kneighbors(test_x.astype(np.float64))
    for k in ks:
        votes = np.zeros((len(test_y), train_y.max() + 1))
        for j in range(min(k, most)):
            np.add.at(votes, (np.arange(len(test_y)), train_y[index[:, j]]), np.exp((1 - distance[:, j]) / temperature))
        assert got["accuracy_at_k"][str(k)] == (votes.argmax(1) == test_y).mean()
    assert got["test_accuracy"] == got["accuracy_at_k"]["200"]
    for r in (1, 2, 5, 10, 20, 50):
        assert got[f"recall_at_{r}"] == (train_y[index[:, :r]] == test_y[:, None]).any(1).mean()


def held_out_figures(x, y, k, temperature, share, rng):
    """Accuracy and recall@5 of a random stratified part of the samples that asks the rest, in NumPy."""
    held = np.concatenate([rng.permutation(np.flatnonzero(y == c))[: max(1, round(share * (y == c).sum()))] for c in np.unique(y)])
    rest = np.setdiff1d(np.arange(len(y)), held)
    unit = x.astype(np.float64) / np.maximum(np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True), 1e-300)
    similarity = unit[held] @ unit[rest].T
    nearest = np.argsort(-similarity, axis=1, kind="stable")
    votes = np.zeros((len(held), y.max() + 1))
    for j in range(min(k, len(rest))):
        at = nearest[:, j]
        np.add.at(votes, (np.arange(len(held)), y[rest[at]]), np.exp(similarity[np.arange(len(held)), at] / temperature))
    recall = (y[rest[nearest[:, :5]]] == y[held][:, None]).any(1).mean()
    return (votes.argmax(1) == y[held]).mean(), recall, len(held)


def test_knn_on_held_out_samples_lies_among_numpys_splits(data):
    """The split's generator is the program's own: its figures must lie where those of NumPy's random splits lie. That the
    figures of one split are exact is a test of the library, which asks the two parts as files of their own."""
    train_x, train_y, _, _, files = data
    whole = json.loads(run("eval-knn", *files, "--json").stdout)
    for share, k in ((0.1, 200), (0.3, 20)):
        got = json.loads(run("eval-knn", *files, "--json", "--val-fraction", share, "--k", f"1,{k}").stdout)
        rng = np.random.default_rng(9)
        peers = [held_out_figures(train_x, train_y, k, 0.1, share, rng) for _ in range(12)]
        assert got["val"] == peers[0][2] and got["val_accuracy"] == got["val_accuracy_at_k"][str(k)]
        for figure, of in ((got["val_accuracy"], 0), (got["val_recall_at_5"], 1)):
            mean, std = np.mean([p[of] for p in peers]), np.std([p[of] for p in peers], ddof=1)
            # A chance of 1e-4 by Student's t with 11 degrees is 5.5 deviations; one sample is the least step.
            assert abs(figure - mean) <= 5.5 * std + 1 / got["val"], (share, figure, mean, std)
        # The test figures have the whole bank, whatever is held out.
        assert all(got[f"recall_at_{r}"] == whole[f"recall_at_{r}"] for r in (1, 2, 5, 10, 20, 50))
        assert got["protocol"]["validation"] == share and got["protocol"]["split"].endswith("seed 0")
    none = json.loads(run("eval-knn", *files, "--json", "--val-fraction", 0).stdout)
    assert none["val_accuracy"] is None and "val_recall_at_1" not in none and none["test_accuracy"] == whole["test_accuracy"]


def test_adam_agrees_with_torch(tmp_path):
    """Initialisation and order come from other generators, so that only figures near convergence can agree: hence the
    larger rate, and tolerances of 1 point and of 2% of the loss."""
    train_x, train_y, test_x, test_y = digits()
    train_x, test_x = train_x / 16, test_x / 16
    files = ["--train-features", save(tmp_path / "a.safetensors", train_x, train_y)]
    files += ["--test-features", save(tmp_path / "b.safetensors", test_x, test_y)]
    got = json.loads(run("eval-linear", *files, "--json", "--protocol", "adam", "--lr", 0.01, "--val-fraction", 0, "--seeds", "0,1,2").stdout)
    peers, losses = [], []
    for outcome in got["outcomes"]:
        torch.manual_seed(outcome["seed"])
        layer = torch.nn.Linear(64, 10)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
        x, y = torch.from_numpy(train_x[: outcome["train"]]), torch.from_numpy(train_y[: outcome["train"]])
        for _ in range(100):
            total = 0.0
            for rows in torch.randperm(len(y)).split(256):
                loss = torch.nn.functional.cross_entropy(layer(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(rows)
        losses.append(total / len(y))
        peers.append((layer(torch.from_numpy(test_x)).argmax(1).numpy() == test_y).mean())
        assert outcome["steps"] == 100 * -(-outcome["train"] // 256) and outcome["train"] == 1000
    assert abs(np.mean(peers) - got["test_accuracy"]) <= 0.01
    assert np.mean(losses) == pytest.approx(np.mean([o["train_loss"] for o in got["outcomes"]]), rel=0.02)
    figures = [o["test_accuracy"] for o in got["outcomes"]]
    assert got["test_accuracy"] == pytest.approx(np.mean(figures), abs=1e-12)
    assert got["test_accuracy_std"] == pytest.approx(np.std(figures, ddof=1), abs=1e-12)
    interval = scipy.stats.t.interval(0.95, 2, np.mean(figures), scipy.stats.sem(figures))
    assert got["test_accuracy_ci95"] == pytest.approx(interval, abs=1e-10) and got["val_accuracy_ci95"] is None


@pytest.mark.parametrize(
    "command",
    [
        ["eval-linear", "--seeds", "0,1", "--l2", "1e-1,1e-3"],
        ["eval-linear", "--protocol", "adam", "--epochs", "3"],
        ["eval-knn", "--k", "1,50,100000"],
    ],
    ids=lambda c: " ".join(c[:3]),
)
def test_results_do_not_depend_on_threads_and_record_everything(command, tmp_path):
    train_x, train_y, test_x, test_y = (part[:1000] for part in correlated())
    a = save(tmp_path / "a.safetensors", train_x, train_y)
    b = save(tmp_path / "b.safetensors", test_x, test_y)
    texts = []
    for i, threads in enumerate(("1", "2", "3")):
        out = tmp_path / f"{i}.json"
        env = {"OMP_NUM_THREADS": threads, "RAYON_NUM_THREADS": threads}
        batch = ["--batch", 97 * int(threads)] if command[0] == "eval-knn" else []
        done = run(*command, *batch, "--train-features", a, "--test-features", b, "--out", out, "--json", env=env)
        texts.append(out.read_text())
        assert done.stdout == texts[0]
    assert texts[0] == texts[1] == texts[2]
    got = json.loads(texts[0])
    assert got["data"]["train"]["sha256"] == hashlib.sha256(a.read_bytes()).hexdigest()
    assert got["data"]["test"]["sha256"] == hashlib.sha256(b.read_bytes()).hexdigest()
    assert got["counts"] == {"train": 1000, "test": 1000, "classes": 10, "dim": 128, "classes_only_in_test": []}
    assert got["checkpoint_sha256"] is None and got["versions"]["libtorch"] == "2.11.0" and got["protocol"]


def test_wrong_input_gives_one_error_and_writes_nothing(tmp_path):
    good = save(tmp_path / "good.safetensors", np.ones((4, 3)), [0, 1, 0, 1])
    narrow = save(tmp_path / "narrow.safetensors", np.ones((4, 2)), [0, 1, 0, 1])
    nan = save(tmp_path / "nan.safetensors", np.full((4, 3), np.nan), [0, 1, 0, 1])
    single = save(tmp_path / "single.safetensors", np.ones((4, 3)), [2, 2, 2, 2])
    empty = tmp_path / "empty.safetensors"
    empty.touch()
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(good.read_bytes()[:-5])
    out = tmp_path / "out.json"
    cases = [
        ("eval-knn", cut, good, [], 1, "cut.safetensors"),
        ("eval-knn", tmp_path / "none.safetensors", good, [], 1, "none.safetensors"),
        ("eval-linear", good, narrow, [], 1, "dimensions"),
        ("eval-linear", good, nan, [], 3, "nan.safetensors"),
        ("eval-linear", single, single, [], 1, "two classes"),
        ("eval-linear", good, good, ["--l2", "0"], 2, "l2"),
        ("eval-linear", good, good, ["--protocol", "adam", "--l2", "1"], 2, "--l2"),
        ("eval-linear", good, good, ["--protocol", "adam", "--lr", "1e38", "--val-fraction", "0"], 3, "take a lower one"),
        ("eval-linear", empty, good, [], 1, "0 bytes"),
        ("eval-knn", good, good, ["--k", "0"], 2, "k"),
        ("eval-knn", good, good, ["--device", "tpu"], 2, "tpu"),
        ("eval-knn", good, good, ["--device", "cuda:4096"], 1, "cuda:4096"),
    ]
    for name, train, test, more, code, expected in cases:
        done = run(name, "--train-features", train, "--test-features", test, "--out", out, *more, code=code)
        assert done.stderr.startswith("error: ") and expected in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert done.stdout == "" and not out.exists()
    before = good.read_bytes()
    for name in ("eval-knn", "eval-linear"):
        link = tmp_path / ".." / tmp_path.name / "good.safetensors"
        done = run(name, "--train-features", good, "--test-features", good, "--out", link, code=2)
        assert "replace the file that is read" in done.stderr and good.read_bytes() == before
        for some in ([], ["--train-features", good], ["--test-features", good]):
            done = run(name, *some, code=2)
            assert "--run" in done.stderr and "--train-features" in done.stderr and "--test-features" in done.stderr
    done = run("eval-knn", "--train-features", good, "--test-features", good, "--out", tmp_path / "no" / "o.json", code=1)
    assert "no folder" in done.stderr
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".safetensors"] * 6


def test_a_class_that_training_lacks_is_said_and_never_right(tmp_path):
    rng = np.random.default_rng(0)
    a = save(tmp_path / "a.safetensors", rng.normal(size=(50, 4)), [10, 30] * 25)
    b = save(tmp_path / "b.safetensors", rng.normal(size=(10, 4)), [20] * 10)
    for name in ("eval-knn", "eval-linear"):
        done = run(name, "--train-features", a, "--test-features", b, "--json")
        got = json.loads(done.stdout)
        assert got["test_accuracy"] == 0 and got["counts"]["classes_only_in_test"] == [20] and "20" in done.stderr
