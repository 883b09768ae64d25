"""PyTorch peers of the losses, for scripts/bench/loss.sh: the same losses as people write them.

broadcast    CosineSimilarity over [2N, 1, d] x [1, 2N, d], boolean masks, tail statistics with autograd around them.
matmul       normalised rows, one matrix product, masks by index, autograd.

Prints one JSON object: peer, kind, n, median and least milliseconds of forward and backward, extra peak memory in MiB,
measured after a tiny warm-up batch.
"""

import json
import math
import resource
import sys
import time

import torch
import torch.nn.functional as F

TAU, EPS, DIMENSIONS = 0.5, 1e-6, 128


def gate(shortfalls: torch.Tensor, kappa_rho=10.0, kappa_aic=1.0, margin=2.0, q=0.2):
    """lambda and the slope of each row of sorted, floored shortfalls [A, k]."""
    k = shortfalls.size(1)
    burn = max(1, k // 20)
    n = k - burn
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
    delta_aic = n * (gumbel / weibull).log()
    rho = shortfalls[:, 0]
    pivot = rho.sort().values[round(q * (rho.numel() - 1))]
    lam = torch.sigmoid(kappa_rho * (pivot.log() - rho.log())) * torch.sigmoid(kappa_aic * (delta_aic - margin))
    beta = torch.where(slopes[0] > 0, slopes[0].clamp(0.5, 16.0), 4.0)
    return lam[:, None], beta[:, None]


def tail_size(negatives: int) -> int:
    return min(max(10, min(max(32, round(0.1 * negatives)), negatives)), negatives)


def broadcast(kind: str, z_i: torch.Tensor, z_j: torch.Tensor) -> torch.Tensor:
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


def matmul(kind: str, z_i: torch.Tensor, z_j: torch.Tensor) -> torch.Tensor:
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


def step(peer, kind: str, n: int) -> float:
    """Processor milliseconds of a batch, forward and backward."""
    z_i, z_j = (torch.randn(n, DIMENSIONS, requires_grad=True) for _ in range(2))
    start = time.process_time()
    peer(kind, z_i, z_j).backward()
    return 1e3 * (time.process_time() - start)


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    name, kind, n, repeats = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    peer = {"broadcast": broadcast, "matmul": matmul}[name]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    step(peer, kind, 8)
    before = peak()
    times = [step(peer, kind, n) for _ in range(2)]
    extra = peak() - before
    # In groups as in benches/loss.rs, so that the least and the median are of the same kind on both sides.
    group = max(2048 // n, 1) if name == "matmul" else 1
    times = sorted([sum(step(peer, kind, n) for _ in range(group)) / group for _ in range(repeats)] or times)
    print(json.dumps({
        "peer": name, "kind": kind, "n": n, "median_ms": round(times[len(times) // 2], 3), "least_ms": round(times[0], 3),
        "extra_mib": round(extra, 1),
    }))


if __name__ == "__main__":
    main()
