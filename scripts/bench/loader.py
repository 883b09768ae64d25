#!/usr/bin/env python3
"""Two SimCLR views of JPEG photographs, our loader against torchvision's ImageFolder and DataLoader, in turns.

    .venv/bin/python scripts/bench/loader.py [--turns 5] [--seconds 15] [--images 512] [--peer-only] [--quick]

Makes photographs of 500 x 375 pixels (smooth fields, shapes with edges, noise; quality 90) in a temporary folder of 8 classes. Both
give views of 224 pixels: RandomResizedCrop, flip, ColorJitter(0.8, 0.8, 0.8, 0.2) with p 0.8, grey with p 0.2, Gaussian blur with p 0.5,
kernel 23 and a standard deviation from 0.1 to 2, in batches of 32. torchvision works on PIL images with persistent workers, as many
as our loader has threads. Prints images (pairs of views) a second, with one thread and with all.

Our program is called as `loader FOLDER THREADS SECONDS`: it begins to count once the first batches came, and the last line printed is
{"images_per_second": ...}.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import paired

WIDTH, HEIGHT, VIEW, BATCH, CLASSES = 500, 375, 224, 32, 8


def peer(folder: str, threads: str, seconds: str) -> None:
    import torch
    from torchvision import transforms as T
    from torchvision.datasets import ImageFolder

    torch.set_num_threads(1)
    views = T.Compose([
        T.RandomResizedCrop(VIEW),
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        T.RandomGrayscale(0.2),
        T.RandomApply([T.GaussianBlur(23, (0.1, 2.0))], p=0.5),
        T.ToTensor(),
    ])  # fmt: skip
    pairs = ImageFolder(folder, lambda image: (views(image), views(image)))
    workers = int(threads)
    loader = torch.utils.data.DataLoader(
        pairs, batch_size=BATCH, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=True, prefetch_factor=2
    )

    def batches():
        while True:
            yield from loader

    stream = batches()
    # What was made before the clock starts is taken first: as many batches as are made ahead, and one.
    for _ in range(2 * workers + 1):
        next(stream)
    count, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < float(seconds):
        (view, _), _ = next(stream)
        count += len(view)
    print(json.dumps({"images_per_second": count / passed}))


def photograph(generator: np.random.Generator) -> Image.Image:
    """Something like a photograph: smooth light, objects with edges and shades of their own, grain."""

    def field(cells: int, low: float, high: float) -> np.ndarray:
        coarse = Image.fromarray(generator.uniform(0, 255, size=(cells, cells, 3)).astype(np.uint8))
        return low + (high - low) / 255 * np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), dtype=np.float32)

    picture, texture = field(3, 20, 235) + field(12, -35, 35) + field(60, -15, 15), field(20, -25, 25)
    for _ in range(generator.integers(6, 14)):
        mask = Image.new("L", (WIDTH, HEIGHT))
        corners = generator.normal(0, 70, size=(generator.integers(3, 8), 2)) + generator.uniform(0, (WIDTH, HEIGHT))
        ImageDraw.Draw(mask).polygon([tuple(corner) for corner in corners], fill=255)
        inside = np.asarray(mask) > 0
        picture[inside] = generator.uniform(0, 255, size=3) + texture[inside]
    picture += generator.normal(0, 5, size=picture.shape)
    return Image.fromarray(picture.clip(0, 255).astype(np.uint8))


def make(folder: Path, images: int) -> float:
    """Writes the photographs; the mean number of bytes of a file."""
    generator, sizes = np.random.default_rng(0), []
    for i in range(images):
        path = folder / f"class_{i % CLASSES}" / f"{i:05}.jpg"
        path.parent.mkdir(exist_ok=True)
        photograph(generator).save(path, quality=90)
        sizes.append(path.stat().st_size)
    return statistics.mean(sizes)


def main() -> None:
    quick = {"turns": 1, "seconds": 0.5, "images": 64}
    args = paired.arguments(__doc__, "torchvision", 3, quick=quick, turns=5, seconds=15.0, images=512)
    if args.peer:
        return peer(*args.peer)

    programs = paired.programs(args, "loader", "torchvision", __file__)
    with tempfile.TemporaryDirectory() as folder:
        size = make(Path(folder), args.images)
        record = paired.Comparison(
            "loader",
            "The loader: JPEG files to pairs of views",
            f"""{args.images} JPEGs of {WIDTH} x {HEIGHT}, {size / 1e3:.0f} kB each, to two views of {VIEW}: RandomResizedCrop, flip, ColorJitter, grey, Gaussian blur (kernel 23, p 0.5), in
            batches of {BATCH}; our loader's threads against torchvision's ImageFolder in a DataLoader with as many persistent workers, for {args.seconds:g} s a turn. An image counts once.""",
            args,
            ("torchvision", "pillow"),
        )
        for threads in paired.thread_counts():
            rates = {name: [] for name in programs}
            for _ in range(args.turns):
                for name, program in programs.items():
                    rates[name].append(paired.measure([*program, folder, threads, args.seconds], threads)["images_per_second"])
            top = threads == len(paired.cores())
            record.add(f"{threads} threads", rates, "images/s", more_is_better=True, headline={"torchvision": "torchvision"} if top else None)
    if not args.peer_only:
        record.finish()


if __name__ == "__main__":
    main()
