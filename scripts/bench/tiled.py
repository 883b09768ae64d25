#!/usr/bin/env python3
"""Losses over more similarities than memory holds, beside the bare matrix products that they must do, in the same run.

    .venv/bin/python scripts/bench/tiled.py [--sizes 4096 8192 16384 32768] [--turns 2] [--quick]

Two views of N random samples of 128 numbers, float32, in tiles. The products are those that a loss without the [2N, 2N] matrix cannot do
without: the similarities (WEINCE: in float64 and twice, since lambda needs the tails of all anchors before the first logit) and the two that take
the gradient back to rows and columns. Each measurement is a process of its own. N = 32,768 takes minutes a turn.
"""

import statistics

import paired

RATIO, MEMORY = 1.5, 1.5 * 1e9 / 2**20


def main() -> None:
    args = paired.arguments(__doc__, None, 0, quick={"sizes": (64, 128), "turns": 1}, sizes=(4096, 8192, 16_384, 32_768), turns=2)
    bench, threads = paired.bench_binary("loss"), len(paired.cores())
    record = paired.Comparison(
        "tiled",
        "Losses in tiles beside the products that they must do",
        f"""Two views of N random samples of 128 numbers, float32, forward and backward, {threads} threads. `products` are the similarities (WEINCE: in float64, twice) and the
        two products of the gradient, alone, in the same process. Memory is the peak above that before the batch; the matrix of N = 32,768 alone would take 17 GB.""",
        args,
        (),
    )
    rows = []
    for kind in ("infonce", "weince"):
        for n in args.sizes:
            got = [paired.measure([bench, "tiled", kind, n], threads) for _ in range(args.turns)]
            seconds, products, memory = ([g[key] for g in got] for key in ("seconds", "products", "extra_mib"))
            ratio = statistics.median(s / p for s, p in zip(seconds, products))
            record.add(f"{kind}, N = {n}", {"loss": seconds, "products alone": products})
            record.add(f"{kind}, N = {n}, extra peak memory", {"loss": memory}, unit="MiB")
            rows.append([kind, n, paired.figure(statistics.median(seconds), "s"), f"{1e9 * statistics.median(seconds) / (2 * n) ** 2:.1f}", f"{ratio:.2f}", f"{max(memory):,.0f}"])
            if n == 32_768:
                record.target(f"{kind}, N = {n}: time over that of the products", ratio, RATIO, at_least=False)
                record.target(f"{kind}, N = {n}: peak memory", max(memory), MEMORY, at_least=False, unit="MiB")
                name, whole = {"infonce": "InfoNCE", "weince": "WEINCE"}[kind], f"{4 * (2 * n) ** 2 / 2**20:,.0f} MiB"
                headline = {"text": f"{name}, N = {n}, peak memory", "value": f"{max(memory):,.0f} MiB", "peer": "its similarities in float32", "peer_value": whole}
                record.result["headlines"].append(headline)
    record.table("By size", ["loss", "N", "time", "ns a similarity", "times the products", "peak MiB"], rows)
    record.finish()


if __name__ == "__main__":
    main()
