#!/usr/bin/env python3
"""Time and memory of the losses, forward and backward, ours beside the same losses as people have them in PyTorch, in turns.

    .venv/bin/python scripts/bench/loss.py [--sizes 128 256 512 1024 2048 4096] [--turns 9] [--peer-only] [--quick]

Two views of N random samples of 128 numbers, float32, temperature 0.5. Sides: ours with all similarities at once, and in tiles of 256
anchors; `broadcast`: CosineSimilarity over [2N, 1, d] x [1, 2N, d] and boolean masks, as in the authors' released code; `matmul`: unit rows, one
product, masks by index, autograd; lightly's and pytorch-metric-learning's NTXentLoss (InfoNCE only). Installs the last two where
they are missing, without their dependencies.
"""

import math
import resource
import sys

import paired

TAU, EPS, DIMENSIONS = 0.5, 1e-6, 128
LIGHTLY, METRIC = "lightly==1.6.0", "pytorch-metric-learning==2.9.0"
# The largest N of a side: its intermediate results grow with N^2 d (13 GB at 1024) and with N^3 (17 GB a tensor at 512).
MOST = {"broadcast": 512, "pytorch-metric-learning": 256}
SIDES = {
    "infonce": ("ours", "ours, tiled", "broadcast", "matmul", "lightly", "pytorch-metric-learning"),
    "weince": ("ours", "ours, tiled", "broadcast", "matmul"),
}


def peer(name: str, what: str, kind: str, n: str) -> None:
    import torch
    import torch.nn.functional as F

    def gate(shortfalls, kappa_rho=10.0, kappa_aic=1.0, margin=2.0, q=0.2):
        """lambda and the slope of each row of sorted, floored shortfalls [A, k]."""
        k = shortfalls.size(1)
        burn = max(1, k // 20)
        count = k - burn
        plotting = torch.arange(burn + 1, k + 1, dtype=shortfalls.dtype) / (k + 1)
        x = shortfalls[:, burn:].log()
        x = x - x.mean(1, keepdim=True)
        xx = x.square().sum(1).clamp_min(1e-12)
        squares, slopes = [], []
        for y in (plotting.log(), (-plotting.log()).log()):
            y = y - y.mean()
            slope = (x * y).sum(1) / xx
            squares.append((y - slope[:, None] * x).square().sum(1).clamp_min(1e-12))
            slopes.append(slope)
        weibull = squares[0] + 1e6 * (slopes[0] <= 0)
        gumbel = squares[1] + 1e6 * (slopes[1] >= 0)
        delta_aic = count * (gumbel / weibull).log()
        rho = shortfalls[:, 0]
        pivot = rho.sort().values[round(q * (rho.numel() - 1))]
        lam = torch.sigmoid(kappa_rho * (pivot.log() - rho.log())) * torch.sigmoid(kappa_aic * (delta_aic - margin))
        beta = torch.where(slopes[0] > 0, slopes[0].clamp(0.5, 16.0), 4.0)
        return lam[:, None], beta[:, None]

    def tail_size(negatives: int) -> int:
        return min(max(10, min(max(32, round(0.1 * negatives)), negatives)), negatives)

    def broadcast(z_i, z_j):
        z = torch.cat([z_i, z_j])
        rows, n = z.size(0), z_i.size(0)
        s = F.cosine_similarity(z.unsqueeze(1), z.unsqueeze(0), dim=2)
        index = torch.arange(rows)
        mask = torch.ones(rows, rows, dtype=torch.bool)
        mask[index, index] = False
        mask[index, (index + n) % rows] = False
        negatives = s[mask].view(rows, -1)
        positives = s[index, (index + n) % rows].unsqueeze(1)
        candidates = torch.cat([positives, negatives], 1)
        if kind == "infonce":
            logits = candidates / TAU
        else:
            with torch.no_grad():
                top = negatives.topk(tail_size(rows - 2), 1).values
                lam, beta = gate((1 - top).clamp_min(EPS))
            logits = (1 - lam) * candidates / TAU - lam * beta * (1 - candidates.clamp(max=1 - EPS)).log()
        return F.cross_entropy(logits, torch.zeros(rows, dtype=torch.long))

    def matmul(z_i, z_j):
        u = F.normalize(torch.cat([z_i, z_j]), dim=1)
        rows, n = u.size(0), z_i.size(0)
        s = u @ u.T
        targets = (torch.arange(rows) + n) % rows
        if kind == "infonce":
            logits = s / TAU
        else:
            with torch.no_grad():
                masked = s.clone()
                masked.fill_diagonal_(-math.inf)
                masked.scatter_(1, targets[:, None], -math.inf)
                top = masked.topk(tail_size(rows - 2), 1).values
                lam, beta = gate((1 - top).clamp_min(EPS))
            logits = (1 - lam) * s / TAU - lam * beta * (1 - s.clamp(max=1 - EPS)).log()
        logits = logits.masked_fill(torch.eye(rows, dtype=torch.bool), -math.inf)
        return F.cross_entropy(logits, targets)

    def lightly():
        from lightly.loss import NTXentLoss

        return NTXentLoss(temperature=TAU)

    def metric_learning():
        from pytorch_metric_learning.losses import NTXentLoss

        ntxent = NTXentLoss(temperature=TAU)
        return lambda z_i, z_j: ntxent(torch.cat([z_i, z_j]), torch.arange(z_i.size(0)).repeat(2))

    loss = {"broadcast": lambda: broadcast, "matmul": lambda: matmul, "lightly": lightly, "pytorch-metric-learning": metric_learning}[name]()
    torch.set_num_threads(int(paired.os.environ["OMP_NUM_THREADS"]))

    def leaves(n: int):
        return [torch.randn(n, DIMENSIONS, requires_grad=True) for _ in range(2)]

    def step(pair):
        value = loss(*pair)
        value.backward()
        return value.item()

    def peak() -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

    n = int(n)
    torch.manual_seed(1)
    if what == "value":
        print(step(leaves(n)))
    elif what == "memory":
        step(leaves(8))
        before = peak()
        step(leaves(n))
        step(leaves(n))
        print(peak() - before)
    else:
        # In groups as in benches/loss.rs; what is drawn is not timed on either side.
        group = max(2048 // n, 1)
        for _ in sys.stdin:
            seconds = 0.0
            for _ in range(group):
                pair = leaves(n)
                start = paired.time.perf_counter()
                step(pair)
                seconds += paired.time.perf_counter() - start
            print(seconds / group, flush=True)


def main() -> None:
    args = paired.arguments(
        __doc__, "the PyTorch losses", 4, quick={"sizes": (16, 64), "turns": 2}, sizes=(128, 256, 512, 1024, 2048, 4096), turns=9
    )
    if args.peer:
        return peer(*args.peer)

    paired.need("lightly", LIGHTLY, dependencies=False)
    paired.need("pytorch_metric_learning", METRIC, dependencies=False)
    ours = None if args.peer_only else paired.bench_binary("loss")

    def command(side: str, what: str, kind: str, n: int) -> list:
        if side.startswith("ours"):
            return [ours, what, kind + side.removeprefix("ours").replace(", ", "_"), n]
        return [sys.executable, __file__, "--peer", side, what, kind, n]

    record = paired.Comparison(
        "loss",
        "The loss: time and memory, forward and backward",
        """InfoNCE and WEINCE (the paper's formula) over two views of N random samples of 128 numbers, float32, temperature 0.5. Ours, with all
        similarities at once and in tiles of 256 anchors, beside what people have in PyTorch: `broadcast` is CosineSimilarity over [2N, 1, d] x [1, 2N, d] with
        boolean masks, as in the authors' released code; `matmul` is unit rows, one product and autograd; lightly's and pytorch-metric-learning's
        NTXentLoss as they come. Time is that of a forward and a backward pass, by the wall clock; memory is what the peak of a fresh process grows by from a tiny
        batch to two real ones.""",
        args,
        ("lightly", "pytorch-metric-learning"),
    )
    memory = {}
    for kind, all_sides in SIDES.items():
        for n in args.sizes:
            sides = [s for s in all_sides if n <= MOST.get(s, n) and not (args.peer_only and s.startswith("ours"))]
            values = {side: paired.measure(command(side, "value", kind, n), 1) for side in sides}
            spread = max(values.values()) - min(values.values())
            # Float32 sums of thousands of terms in some order, and logarithms of shortfalls near 0 in WEINCE.
            if spread > 1e-3 * max(values.values()):
                paired.fail(f"the sides do not compute the same loss for {kind}, N = {n}: {values}")
            for threads in paired.thread_counts() if n <= 1024 else paired.thread_counts()[:1]:
                took = paired.in_turns({side: command(side, "time", kind, n) for side in sides}, threads, args.turns if n <= 1024 else max(2, args.turns // 2 + 1))
                top = threads == len(paired.cores()) and n == 512
                headline = {"broadcast": "PyTorch, broadcast", "matmul": "PyTorch, one product", "lightly": "lightly"} if top else None
                record.add(f"{kind}, N = {n}, {threads} threads", took, headline=headline)
            memory[kind, n] = {side: paired.measure(command(side, "memory", kind, n), 1) for side in sides}
    if args.peer_only:
        return
    sides = SIDES["infonce"]
    rows = [[f"{kind}, N = {n}", *(f"{found[s]:,.1f}" if s in found else "" for s in sides)] for (kind, n), found in memory.items()]
    record.table("Extra peak memory, MiB", ["loss", *sides], rows)
    record.result["memory_mib"] = [{"kind": k, "n": n, "extra_peak": found} for (k, n), found in memory.items()]
    record.note("`broadcast` is measured up to N = 512 (it takes 13 GB at 1024), pytorch-metric-learning up to N = 256: it compares each positive pair with each negative pair, N^3 numbers.")
    record.note("All sides' losses of one batch agree to a relative 1e-3, which is checked before anything is timed.")
    record.finish()


if __name__ == "__main__":
    main()
