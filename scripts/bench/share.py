#!/usr/bin/env python3
"""What WEINCE adds to a whole training step over InfoNCE, by batch size: ResNet-18 with the small stem on 32x32 pixels.

    .venv/bin/python scripts/bench/share.py [--batches 64 128 256 512 1024] [--turns 5] [--quick]

A step's time wanders by more than the losses differ: both losses are timed alone, in turns, forward and backward on embeddings of the same
shape, and their difference is given as a share of the whole step with InfoNCE. Batch 1024 takes some 15 GB.
"""

import statistics

import paired

LIMIT = 0.67


def main() -> None:
    args = paired.arguments(__doc__, None, 0, quick={"batches": (4,), "turns": 1}, batches=(64, 128, 256, 512, 1024), turns=5)
    bench, threads = paired.bench_binary("step"), len(paired.cores())
    record = paired.Comparison(
        "share",
        "WEINCE's share of a training step",
        f"""ResNet-18 with the small stem, two views of 32x32 pixels, projection to 64, Adam, float32, {threads} threads: a whole step (forward and backward pass,
        loss, optimizer, no loader), and the two losses alone, forward and backward on embeddings of the same shape, 30 times in turns. The share is the difference of the
        losses' medians over the median step with InfoNCE. The paper's code adds 0.67 % at batch 256 on an L40S.""",
        args,
        (),
    )
    rows, shares = [], {}
    for batch in args.batches:
        rounds = args.turns if batch <= 256 else max(1, args.turns // 2)
        got = paired.measure([bench, batch, 32, rounds, "cpu", "fp32"], threads)
        alone, steps = got["loss_alone_s"], got["steps_s"]
        record.add(f"batch {batch}, loss alone", {"WEINCE": alone["weince"], "InfoNCE": alone["infonce"]})
        record.add(f"batch {batch}, whole step", {"WEINCE": steps["weince fp32"], "InfoNCE": steps["infonce fp32"]})
        medians = [statistics.median(values) for values in (alone["infonce"], alone["weince"], steps["infonce fp32"])]
        shares[batch] = 100 * (medians[1] - medians[0]) / medians[2]
        rows.append([batch, *(paired.figure(m, "s") for m in medians), f"{shares[batch]:.3f} %"])
    record.table("By batch size", ["batch", "InfoNCE alone", "WEINCE alone", "step with InfoNCE", "WEINCE adds"], rows)
    record.result["share_percent"] = shares
    if 256 in shares:
        record.target("WEINCE's share of the step at batch 256", shares[256], LIMIT, at_least=False, unit="%")
        record.result["headlines"].append({"text": "WEINCE's share of a step, ResNet-18, batch 256", "value": f"{shares[256]:.2f} %", "peer": "authors' code on an L40S, as published", "peer_value": f"{LIMIT} %"})
    record.finish()


if __name__ == "__main__":
    main()
