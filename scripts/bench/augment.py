#!/usr/bin/env python3
"""SimCLR views a second of one thread, ours against torchvision's on PIL images, in turns.

    .venv/bin/python scripts/bench/augment.py [--turns 7] [--peer-only] [--quick]

Both are asked for the same number of views again and again; the first time does not count.
"""

import json
import sys
import time

import paired


def peer(size: str, views: str) -> None:
    import numpy as np
    import torch
    from PIL import Image
    from torchvision import transforms as T

    size, count = int(size), int(views)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    transform = T.Compose([
        T.RandomResizedCrop(size),
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        T.RandomGrayscale(0.2),
        T.ToTensor(),
    ])  # fmt: skip
    y, x, channel = np.mgrid[0:size, 0:size, 0:3]
    image = Image.fromarray(((x * 7 + y * 3 + channel * 50) % 256).astype(np.uint8))
    for _ in range(count // 10):
        transform(image)
    start = time.perf_counter()
    for _ in range(count):
        transform(image)
    print(json.dumps({"views_per_second": count / (time.perf_counter() - start)}))


def main() -> None:
    args = paired.arguments(__doc__, "torchvision", 2, quick={"sizes": (8,), "turns": 1, "views": 50}, sizes=(32, 96), turns=7, views=2000)
    if args.peer:
        return peer(*args.peer)

    programs = paired.programs(args, "augment", "torchvision", __file__)
    record = paired.Comparison(
        "augment",
        "Views: one thread",
        """RandomResizedCrop, flip, ColorJitter(0.8, 0.8, 0.8, 0.2) with p 0.8, grey with p 0.2, to float planes, of one image of the views' size; against torchvision's transforms
        on PIL images. One thread each.""",
        args,
        ("torchvision", "pillow"),
    )
    for size in args.sizes:
        rates = {name: [] for name in programs}
        for _ in range(args.turns):
            for name, program in programs.items():
                # Turns of about the same length: ours makes a view in a small part of the time.
                views = args.views * (20 if name == "ours" else 1)
                rates[name].append(paired.measure([*program, size, views], 1)["views_per_second"])
        headline = {"torchvision": "torchvision"} if size == 32 else None
        record.add(f"views of {size} pixels, 1 thread", rates, "views/s", more_is_better=True, headline=headline)
    if not args.peer_only:
        record.finish()


if __name__ == "__main__":
    main()
