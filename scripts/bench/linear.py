#!/usr/bin/env python3
"""The linear probe's L-BFGS, ours against scikit-learn's LogisticRegression: 50,000 x 512, 100 classes, the same objective, in turns.

    .venv/bin/python scripts/bench/linear.py [--turns 3] [--rows 50000] [--l2 1e-3] [--peer-only] [--quick]

The objective is `mean cross-entropy + l2/2 |W|^2` on features of mean 0 and standard deviation 1, biases free: scikit-learn's with
C = 1/(l2 n). Both get float32 features and standardise in float64;
scikit-learn fits in float64, ours takes steps in float32 and ends in float64. The time has all of it, with one thread and with all.

Compared is the time that each needs to come within a relative 1e-6 of the value at which the other ends. Ours stops once it can show
that it is within 1e-6 of the minimum, so its time is the time to that stop. scikit-learn is run until it converges as closely as it can,
and the objective and the time after each of its iterations are noted on the way: its time is that of the first iteration that is
close enough. What it reaches with its own default tolerance (1e-4) is printed beside.

The features are clusters in 512 dimensions, mixed by a random matrix with a falling spectrum and cut off below 0 as a ReLU does; some
two thirds of held-out rows are classified right. Our program is called as `linear TRAIN.safetensors L2 OUT.safetensors`: `features` [n, d]
float32 and `labels` [n] int64 in; `weight` [classes, d] and `bias` [classes] float64, of standardised features, out; the last line
printed is {"seconds": [...], "objective": ..., "iterations": ...}, with one number of seconds a round.
"""

import json
import tempfile
import time
from pathlib import Path
from unittest import mock

import numpy as np
from safetensors.numpy import load_file, save_file

import paired

CLASSES, DIMENSIONS, LATENT, SEPARATION = 100, 512, 64, 0.42
CLOSE = 1e-6
# Where scikit-learn ends a fit: no part of the gradient is larger. By default, and for the value to compare with.
DEFAULT, CONVERGED = 1e-4, 3e-6


def standardised(features: np.ndarray) -> np.ndarray:
    features = features.astype(np.float64)
    deviation = features.std(axis=0)
    return (features - features.mean(axis=0)) / np.where(deviation > 0, deviation, 1)


def peer(train: str, l2: str, out: str) -> None:
    import scipy.optimize
    from sklearn.linear_model import LogisticRegression

    data, l2 = load_file(train), float(l2)
    path = []
    minimise = scipy.optimize.minimize

    def noted(function, *args, **kwargs):
        """scikit-learn's own call, with time, objective and largest part of the gradient after each iteration noted."""
        largest = None

        def seen(*args):
            nonlocal largest
            value, gradient = function(*args)
            largest = float(np.abs(gradient).max())
            return value, gradient

        def note(intermediate_result):
            path.append((time.perf_counter() - start, float(intermediate_result.fun), largest))

        return minimise(seen, *args, callback=note, **kwargs)

    with mock.patch("scipy.optimize.minimize", noted):
        start = time.perf_counter()
        model = LogisticRegression(C=1 / (l2 * len(data["labels"])), tol=CONVERGED, max_iter=10_000)
        model.fit(standardised(data["features"]), data["labels"])
    save_file({name: np.ascontiguousarray(part) for name, part in (("weight", model.coef_), ("bias", model.intercept_))}, out)
    print(json.dumps({"path": path}))


def problem(rows: int, seed: int) -> dict[str, np.ndarray]:
    """Rows of a problem that is the same for every seed; the seed draws the rows."""
    fixed = np.random.default_rng(0)
    centres = fixed.normal(size=(CLASSES, LATENT)) * SEPARATION
    mixing = fixed.normal(size=(LATENT, DIMENSIONS)) / np.sqrt(LATENT)
    spectrum = (1 + np.arange(LATENT)) ** -0.25
    generator = np.random.default_rng(seed)
    labels = generator.integers(CLASSES, size=rows)
    latent = (centres[labels] + generator.normal(size=(rows, LATENT))) * spectrum
    features = np.maximum(latent @ mixing + 0.05 * generator.normal(size=(rows, DIMENSIONS)) + 0.3, 0)
    return {"features": features.astype(np.float32), "labels": labels}


def objective(data: dict, solution: dict, l2: float) -> float:
    """Computed here, from the weights that a program wrote."""
    logits = standardised(data["features"]) @ solution["weight"].T + solution["bias"]
    logits -= logits.max(axis=1, keepdims=True)
    loss = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(logits)), data["labels"]]
    return float(loss.mean() + l2 / 2 * np.square(solution["weight"]).sum())


def accuracy(train: dict, test: dict, solution: dict) -> float:
    mean, deviation = train["features"].mean(axis=0, dtype=np.float64), train["features"].std(axis=0, dtype=np.float64)
    logits = (test["features"] - mean) / np.where(deviation > 0, deviation, 1) @ solution["weight"].T + solution["bias"]
    return float((logits.argmax(axis=1) == test["labels"]).mean())


def main() -> None:
    args = paired.arguments(__doc__, "scikit-learn", 3, quick={"turns": 1, "rows": 2000, "l2": 1e-1}, turns=3, rows=50_000, l2=1e-3)
    if args.peer:
        return peer(*args.peer)

    train, test = problem(args.rows, 1), problem(10_000, 2)
    programs = paired.programs(args, "linear", "scikit-learn", __file__)
    record = paired.Comparison(
        "linear",
        "The linear probe",
        f"""{args.rows:,} x {DIMENSIONS} features in {CLASSES} classes, L2 {args.l2:g}: multinomial logistic regression, ours (preconditioned L-BFGS) against scikit-learn's
        LogisticRegression on the same objective. The time is that to come within a relative {CLOSE:g} of the minimum, standardisation included: ours stops there by itself;
        scikit-learn is run until it converges as closely as it can, and its time is that of the first of its iterations that is close enough.""",
        args,
        ("scikit-learn", "scipy", "numpy"),
    )
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "train.safetensors")
        save_file(train, file)
        for threads in paired.thread_counts():
            runs = {name: [] for name in programs}
            for _ in range(args.turns):
                for name, program in programs.items():
                    out = Path(folder) / f"{name}.safetensors"
                    runs[name].append(paired.measure([*program, file, args.l2, out], threads))
            solutions = {name: load_file(Path(folder) / f"{name}.safetensors") for name in programs}
            values = {name: objective(train, solution, args.l2) for name, solution in solutions.items()}
            goal = min(values.values())
            for name, value in values.items():
                if value > goal * (1 + CLOSE):
                    paired.fail(f"{name} ends at {value:.9f}, more than {CLOSE:g} above {goal:.9f}")
            # The path is the same in every turn; the times are not.
            paths = [run["path"] for run in runs["scikit-learn"]]
            close = next(i for i, (_, value, _) in enumerate(paths[0]) if value <= goal * (1 + CLOSE))
            default = next(i for i, (_, _, gradient) in enumerate(paths[0]) if gradient <= DEFAULT)
            seconds = {} if args.peer_only else {"ours": [s for run in runs["ours"] for s in run["seconds"]]}
            seconds["scikit-learn"] = [path[close][0] for path in paths]
            seconds["scikit-learn, default tolerance"] = [path[default][0] for path in paths]
            top = threads == len(paired.cores())
            record.add(f"{threads} threads", seconds, headline={"scikit-learn": "scikit-learn, to the same objective"} if top else None)
            ends = "; ".join(f"{name} {values[name]:.9f}, test accuracy {accuracy(train, test, solutions[name]):.4f}" for name in programs)
            record.note(
                f"{threads} threads: objectives and accuracies at the end: {ends}. scikit-learn needs {close + 1} iterations; with its default tolerance {default + 1}, and is then above "
                f"the least value by a relative {paths[0][default][1] / goal - 1:.1e}."
            )
    if not args.peer_only:
        record.finish()


if __name__ == "__main__":
    main()
