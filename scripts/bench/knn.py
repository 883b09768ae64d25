#!/usr/bin/env python3
"""Exact nearest neighbours, ours against faiss-cpu's IndexFlatIP and scikit-learn's NearestNeighbors: 10,000 queries in a bank of 50,000 x 512, k = 200.

    .venv/bin/python scripts/bench/knn.py [--turns 3] [--bank 50000] [--queries 10000] [--k 200] [--peer-only] [--quick]

Features are random classes with duplicates, of norm 1, float32. The time is that of the search alone, once with one thread and once
with all, in turns. Compares the neighbours with faiss's: the share of queries with the same list, and where lists differ, how much
the similarities of equal rank do, computed again in float64. Installs faiss-cpu into the environment where it is missing.

Programs are called as `knn BANK.safetensors QUERIES.safetensors K OUT.safetensors`: `features` [n, d] float32 of norm 1 in; `indices`
[queries, k] int64 and `similarities` [queries, k] float32 out, nearest first; the last line printed is {"seconds": [...]}, one
number a round.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

import paired

FAISS = "faiss-cpu==1.15.1"
ROUNDS = 2
CLASSES = 100
# Both similarities are sums of 512 float32 products in some order: they err by some 1e-7.
TOLERANCE = 1e-6


def peer(name: str, bank: str, queries: str, k: str, out: str) -> None:
    bank, queries, k = load_file(bank)["features"], load_file(queries)["features"], int(k)
    if name == "faiss":
        import faiss

        faiss.omp_set_num_threads(int(paired.os.environ["OMP_NUM_THREADS"]))
        index = faiss.IndexFlatIP(bank.shape[1])
        index.add(bank)
        search = lambda: index.search(queries, k)
    else:
        from sklearn.neighbors import NearestNeighbors

        # On rows of norm 1, the nearest by distance are those of the largest products; this is its fast path.
        index = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(bank)

        def search():
            distances, indices = index.kneighbors(queries)
            return (1 - distances**2 / 2).astype(np.float32), indices

    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        similarities, indices = search()
        seconds.append(time.perf_counter() - start)
    save_file({"indices": np.ascontiguousarray(indices), "similarities": np.ascontiguousarray(similarities)}, out)
    print(json.dumps({"seconds": seconds}))


def features(count: int, dimensions: int, centres: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Rows of norm 1 around centres of classes; one in a thousand is a copy of another, as in real sets."""
    rows = centres[generator.integers(len(centres), size=count)] + generator.normal(size=(count, dimensions)) * 0.8
    copies = generator.choice(count, size=count // 1000, replace=False)
    rows[copies] = rows[generator.integers(count, size=len(copies))]
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def compare(bank: np.ndarray, queries: np.ndarray, ours: dict, theirs: dict) -> str:
    """The share of equal lists, and the largest difference of similarities of equal rank and from what was reported."""
    same = (ours["indices"] == theirs["indices"]).all(axis=1)
    between, reported = 0.0, 0.0
    bank = bank.astype(np.float64)
    for row in np.flatnonzero(~same):
        exact = [bank[result["indices"][row]] @ queries[row].astype(np.float64) for result in (ours, theirs)]
        between = max(between, np.abs(np.sort(exact[0]) - np.sort(exact[1])).max())
        reported = max(reported, np.abs(exact[0] - ours["similarities"][row]).max())
    reported = max(reported, np.abs(ours["similarities"] - theirs["similarities"]).max())
    good = between <= TOLERANCE and reported <= TOLERANCE
    sets = (np.sort(ours["indices"], axis=1) == np.sort(theirs["indices"], axis=1)).all(axis=1)
    text = (
        f"neighbours: {same.mean():.2%} of the lists are the same, {sets.mean():.2%} but for their order; where they differ, similarities of "
        f"equal rank differ by {between:.1e} at most (float64), reported ones by {reported:.1e}; allowed {TOLERANCE:.0e}"
    )
    if not good:
        sys.exit(f"error: {text}")
    return text


def main() -> None:
    quick = {"turns": 1, "bank": 2000, "queries": 200, "k": 20}
    args = paired.arguments(__doc__, "the Python libraries", 5, quick=quick, turns=3, bank=50_000, queries=10_000, k=200)
    if args.peer:
        return peer(*args.peer)

    paired.need("faiss", FAISS)
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(CLASSES, 512))
    bank, queries = (features(count, 512, centres, generator) for count in (args.bank, args.queries))
    programs = {} if args.peer_only else {"ours": [paired.bench_binary("knn")]}
    programs |= {name: [sys.executable, __file__, "--peer", name] for name in ("faiss", "scikit-learn")}
    record = paired.Comparison(
        "knn",
        "Exact nearest neighbours",
        f"""{args.queries:,} queries in {args.bank:,} x 512, k = {args.k}, cosine: random classes with duplicates, float32 of norm 1. Ours against faiss-cpu's IndexFlatIP and
        scikit-learn's NearestNeighbors (brute force); the time is that of the search alone, {ROUNDS} rounds a turn.""",
        args,
        ("faiss-cpu", "scikit-learn", "numpy"),
    )
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("bank.safetensors", "queries.safetensors")]
        for file, rows in zip(files, (bank, queries)):
            save_file({"features": rows}, file)
        for threads in paired.thread_counts():
            seconds = {name: [] for name in programs}
            for _ in range(args.turns):
                for name, program in programs.items():
                    out = Path(folder) / f"{name}.safetensors"
                    seconds[name] += paired.measure([*program, *files, args.k, out], threads)["seconds"]
            top = threads == len(paired.cores())
            record.add(f"{threads} threads", seconds, headline={"faiss": "faiss", "scikit-learn": "scikit-learn"} if top else None)
            if not args.peer_only:
                ours, faiss = (load_file(Path(folder) / f"{name}.safetensors") for name in ("ours", "faiss"))
                record.note(f"{threads} threads, ours and faiss: {compare(bank, queries, ours, faiss)}.")
    if not args.peer_only:
        record.finish()


if __name__ == "__main__":
    main()
