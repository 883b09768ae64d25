#!/usr/bin/env python3
"""Whole SimCLR training, ours (`pretrain-vision`) against the authors' recipe in PyTorch and torchvision, in turns.

    .venv/bin/python scripts/bench/epoch.py [--turns 5] [--steps 4] [--batch 256] [--images data/cifar-10-batches-bin] [--quick]

ResNet-18 with the small stem, 32x32 colour images, two views, InfoNCE, Adam 3e-4: images from the loader to the updated weights. A turn is a
process of its own; its first two steps (start of the workers, first allocations) don't count. With --images, CIFAR-10's binary files; without,
Fashion-MNIST (scripts/fetch_data.py fashion-mnist): 50,000 of its images, made 32x32 and coloured, in files of CIFAR-10's layout.
"""

import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

import paired

WARM = 2
EPOCH = 50_000
# Name, precision and recipe of the PyTorch sides: the authors', and the same with what is known to be faster.
PEERS = {
    "PyTorch fp32": ("fp32", "authors"),
    "PyTorch bf16": ("bf16", "authors"),
    "PyTorch fp32, tuned": ("fp32", "tuned"),
    "PyTorch bf16, tuned": ("bf16", "tuned"),
}
OURS = {"ours fp32": "fp32", "ours bf16": "bf16"}
CONFIG = """
data: {{kind: cifar10, root: {root}, threads: {threads}}}
augment: {{size: 32}}
model: {{encoder: {{kind: resnet18, stem: small}}}}
loss: {{kind: infonce, temperature: 0.5}}
optim: {{kind: adam, lr: 3.0e-4}}
train: {{epochs: 1, batch_size: {batch}, log_every: 1}}
"""


class Peer:
    """The authors' training step, as their code has it, or tuned: NT_Xent by one matrix product and channels last. `profile` takes the same
    step apart."""

    def __init__(self, folder: str, batch: str, precision: str, recipe: str, workers: str):
        import torch
        import torchvision
        from torch import nn
        from torchvision import transforms as T

        self.torch, self.batch, self.bf16 = torch, int(batch), precision == "bf16"
        tuned = recipe == "tuned"
        self.loss = self.matmul if tuned else self.broadcast
        self.layout = torch.channels_last if tuned else torch.contiguous_format
        torch.set_num_threads(int(paired.os.environ["OMP_NUM_THREADS"]))
        torch.manual_seed(0)
        views = T.Compose([
            T.RandomResizedCrop(32),
            T.RandomHorizontalFlip(),
            T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
            T.RandomGrayscale(0.2),
            T.ToTensor(),
        ])  # fmt: skip
        records = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in sorted(Path(folder).glob("data_batch_*.bin"))])
        images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).copy()

        class Pairs(torch.utils.data.Dataset):
            """As torchvision's CIFAR10 with SimCLR's two views."""

            def __len__(self):
                return len(images)

            def __getitem__(self, i):
                image = Image.fromarray(images[i])
                return (views(image), views(image)), int(records[i, 0])

        self.loader = torch.utils.data.DataLoader(Pairs(), self.batch, shuffle=True, drop_last=True, num_workers=int(workers))
        encoder = torchvision.models.resnet18(weights=None)
        encoder.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        encoder.maxpool = nn.Identity()
        encoder.fc = nn.Identity()
        self.model = nn.Sequential(encoder, nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU(), nn.Linear(512, 64, bias=False)))
        self.model.to(memory_format=self.layout)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-4)
        rows = 2 * self.batch
        self.mask = torch.ones(rows, rows, dtype=torch.bool).fill_diagonal_(False)
        for i in range(self.batch):
            self.mask[i, self.batch + i] = self.mask[self.batch + i, i] = False

    def embed(self, x_i, x_j):
        x_i, x_j = (x.contiguous(memory_format=self.layout) for x in (x_i, x_j))
        with self.torch.autocast("cpu", self.torch.bfloat16, enabled=self.bf16):
            z_i, z_j = self.model(x_i), self.model(x_j)
        return z_i.float(), z_j.float()

    def broadcast(self, z_i, z_j):
        torch, n = self.torch, self.batch
        z = torch.cat((z_i, z_j), dim=0)
        sim = torch.nn.CosineSimilarity(dim=2)(z.unsqueeze(1), z.unsqueeze(0)) / 0.5
        positives = torch.cat((torch.diag(sim, n), torch.diag(sim, -n)), dim=0).reshape(2 * n, 1)
        logits = torch.cat((positives, sim[self.mask].reshape(2 * n, -1)), dim=1)
        return torch.nn.functional.cross_entropy(logits, torch.zeros(2 * n, dtype=torch.long), reduction="sum") / (2 * n)

    def matmul(self, z_i, z_j):
        torch, n = self.torch, self.batch
        u = torch.nn.functional.normalize(torch.cat((z_i, z_j)), dim=1)
        logits = (u @ u.T / 0.5).fill_diagonal_(-torch.inf)
        return torch.nn.functional.cross_entropy(logits, torch.arange(2 * n).roll(n))

    def train(self) -> None:
        """A line for each step: when it ended, how long it waited for data, its loss."""
        images = iter(self.loader)
        while True:
            asked = time.perf_counter()
            (x_i, x_j), _ = next(images)
            waited = time.perf_counter() - asked
            self.optimizer.zero_grad()
            loss = self.loss(*self.embed(x_i, x_j))
            loss.backward()
            self.optimizer.step()
            print(json.dumps({"loss": loss.item(), "waited": waited, "seconds": time.perf_counter()}), flush=True)

    def profile(self, steps: int) -> None:
        """Median seconds of the parts of a step on one batch, no loader beside it."""
        (x_i, x_j), _ = next(iter(self.loader))
        parts = {"forward": [], "loss": [], "backward": [], "optimizer": []}
        for step in range(steps + 1):
            self.optimizer.zero_grad()
            marks = [time.perf_counter()]
            z = self.embed(x_i, x_j)
            marks.append(time.perf_counter())
            leaves = [part.detach().requires_grad_() for part in z]
            self.loss(*leaves).backward()
            marks.append(time.perf_counter())
            self.torch.autograd.backward(z, [leaf.grad for leaf in leaves])
            marks.append(time.perf_counter())
            self.optimizer.step()
            marks.append(time.perf_counter())
            if step:
                for name, a, b in zip(parts, marks, marks[1:]):
                    parts[name].append(b - a)
        print(json.dumps({name: statistics.median(times) for name, times in parts.items()}))


def peer(what: str, *words: str) -> None:
    if what == "train":
        Peer(*words).train()
    else:
        *words, steps = words
        Peer(*words).profile(int(steps))


def write_records(folder: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Five files of CIFAR-10's binary layout."""
    folder.mkdir()
    records = np.concatenate([labels[:, None], images.transpose(0, 3, 1, 2).reshape(len(images), -1)], axis=1).astype(np.uint8)
    for i, part in enumerate(np.array_split(records, 5), 1):
        part.tofile(folder / f"data_batch_{i}.bin")


def coloured_fashion(folder: Path) -> None:
    """Fashion-MNIST's first 50,000 training images, made 32x32, each in a colour of its own."""
    root = paired.data("fashion-mnist", "train-images-idx3-ubyte.gz")
    grey = np.frombuffer(gzip.decompress((root / "train-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16).reshape(-1, 28, 28)[:EPOCH]
    labels = np.frombuffer(gzip.decompress((root / "train-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)[:EPOCH]
    larger = np.stack([np.asarray(Image.fromarray(image).resize((32, 32), Image.Resampling.BILINEAR)) for image in grey])
    light = np.random.default_rng(0).uniform(0.4, 1, size=(len(grey), 1, 1, 3))
    write_records(folder, (larger[..., None] * light).astype(np.uint8), labels)


def random_images(folder: Path, count: int) -> None:
    generator = np.random.default_rng(0)
    write_records(folder, generator.integers(256, size=(count, 32, 32, 3)), generator.integers(10, size=count))


def turn_of(process: subprocess.Popen, lines, steps: int) -> list[dict]:
    """What the first steps of a run said, and its peak memory in the last of them; the run is ended then."""
    try:
        found = []
        for line in lines:
            found.append(line)
            if len(found) == steps:
                status = Path(f"/proc/{process.pid}/status").read_text()
                found[-1]["peak_mib"] = int(status.split("VmHWM:")[1].split()[0]) / 1024
                return found
        paired.fail(f"{Path(process.args[0]).name} ended after {len(found)} of {steps} steps, see above")
    finally:
        paired.ended(process)


def ours_turn(binary: str, config: Path, precision: str, run: Path, steps: int) -> list[dict]:
    command = [binary, "--config", config, "--run-dir", run, "--device", "cpu", "--set", f"precision={precision}"]
    log = run.with_suffix(".log").open("w")
    process = paired.started(command, len(paired.cores()), stdout=log, stderr=log)

    def lines():
        metrics, seen = run / "metrics.jsonl", 0
        while True:
            alive = process.poll() is None
            text = metrics.read_text() if metrics.exists() else ""
            whole = text[: text.rfind("\n") + 1].splitlines()
            yield from map(json.loads, whole[seen:])
            seen = len(whole)
            if not alive:
                sys.stderr.write(run.with_suffix(".log").read_text())
                return
            time.sleep(0.02)

    return turn_of(process, lines(), steps)


def peer_turn(words: list, steps: int) -> list[dict]:
    command = [sys.executable, __file__, "--peer", "train", *words]
    process = paired.started(command, len(paired.cores()), stdout=subprocess.PIPE)
    return turn_of(process, map(json.loads, process.stdout), steps)


def main() -> None:
    args = paired.arguments(
        __doc__, "PyTorch", "+", quick={"turns": 1, "steps": 1, "batch": 8}, turns=5, steps=4, batch=256, profile=4, images=""
    )
    if args.peer:
        return peer(*args.peer)

    threads = len(paired.cores())
    binary = None if args.peer_only else paired.cargo("bin", "pretrain-vision")
    step_bench = None if args.peer_only else paired.bench_binary("step")
    source = "CIFAR-10" if args.images else "Fashion-MNIST's first 50,000 training images, made 32x32 and coloured, in files of CIFAR-10's layout"
    record = paired.Comparison(
        "epoch",
        "SimCLR pretraining: images a second, all of it",
        f"""ResNet-18 with the small stem, two views of 32x32 colour images ({'random pixels' if args.quick else source}), batch {args.batch}, InfoNCE at temperature 0.5, projection
        to 64, Adam 3e-4, {threads} threads and {threads} loader threads or workers. Ours is `pretrain-vision`, from the loader to the updated weights, logging every step. The PyTorch
        side is the authors' recipe (hsme98/weince): torchvision's views of PIL images in a DataLoader, torchvision's ResNet, two passes, NT_Xent by CosineSimilarity over [2N, 1,
        d] x [1, 2N, d]; in fp32 as they run it, and with encoder and projector under bf16 autocast; and both tuned, with NT_Xent by one matrix product and tensors channels
        last, as ours has them. A turn is a fresh process: {WARM} steps that do not count, then {args.steps}.""",
        args,
        ("torchvision", "pillow", "numpy"),
    )
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder = Path(args.images).resolve() if args.images else scratch / "cifar-10-batches-bin"
        if args.quick:
            random_images(folder, 20 * args.batch)
        elif not args.images:
            coloured_fashion(folder)
        elif not list(folder.glob("data_batch_*.bin")):
            paired.fail(f"{args.images} has no data_batch_*.bin; fetch CIFAR-10 with: scripts/fetch_data.py cifar10")
        config = scratch / "run.yaml"
        config.write_text(CONFIG.format(root=folder, threads=threads, batch=args.batch))
        turns = {} if args.peer_only else {
            side: lambda turn, p=p, i=i: ours_turn(binary, config, p, scratch / f"run-{i}-{turn}", WARM + args.steps) for i, (side, p) in enumerate(OURS.items())
        }  # fmt: skip
        for side, (precision, recipe) in PEERS.items():
            turns[side] = lambda _, p=precision, x=recipe: peer_turn([folder, args.batch, p, x, threads], WARM + args.steps)
        rates, waits, memory = ({side: [] for side in turns} for _ in range(3))
        for turn in range(args.turns):
            for side, take in turns.items():
                said = take(turn)
                took = said[-1]["seconds"] - said[WARM - 1]["seconds"]
                rates[side].append(args.batch * args.steps / took)
                mine = side in OURS
                waits[side].append(statistics.mean(x["data_wait"] if mine else x["waited"] * args.steps / took for x in said[WARM:]))
                memory[side].append(said[-1]["peak_mib"])
                print(f"turn {turn + 1} of {args.turns}: {side} {rates[side][-1]:.1f} images/s", flush=True)
        profiles = {}
        for side, precision in ({} if args.peer_only else OURS).items():
            profiles[side] = paired.measure([step_bench, "profile", args.batch, args.profile, precision], threads)
        for side, (precision, recipe) in PEERS.items():
            profiles[side] = paired.measure([sys.executable, __file__, "--peer", "profile", folder, args.batch, precision, recipe, threads, args.profile], threads)

    if args.peer_only:
        return
    called = {side: f"{side}, authors' recipe" if recipe == "authors" else side for side, (_, recipe) in PEERS.items()}
    ratios = {}
    for side in OURS:
        values = {side: rates[side]} | {peer: rates[peer] for peer in PEERS}
        mine = "fp32" if side == "ours fp32" else "bf16"
        chosen = {k: v for k, v in called.items() if mine in k or k == "PyTorch fp32"}
        ratios[side] = record.add(f"pretraining, {side.removeprefix('ours ')}", values, "images/s", True, chosen)
    record.target("ours in fp32 against the authors' recipe in fp32", ratios["ours fp32"]["PyTorch fp32"], 1.25)
    record.target("ours in bf16 against the authors' recipe in fp32", ratios["ours bf16"]["PyTorch fp32"], 2.2)
    record.target("ours in bf16 against the authors' recipe with bf16 autocast", ratios["ours bf16"]["PyTorch bf16"], 1.2)
    whole = EPOCH // args.batch * args.batch
    rows = [
        [side, f"{whole / statistics.median(rates[side]) / 60:.1f} min", f"{100 * statistics.median(waits[side]):.1f} %", f"{max(memory[side]):,.0f} MiB"]
        for side in rates
    ]
    record.table("An epoch of 50,000 images, from these rates", ["side", "an epoch", "waiting for data", "peak memory of the main process"], rows)
    parts = ("forward", "loss", "backward", "optimizer")
    rows = [[side, *(f"{1e3 * found[part]:,.1f}" for part in parts)] for side, found in profiles.items()]
    record.table("Where a step's time goes, ms, no loader beside it", ["side", "forward of encoder and projector", "loss, both passes", "backward", "optimizer"], rows)
    record.result["waiting_for_data"], record.result["peak_mib"], record.result["profile_seconds"] = waits, memory, profiles
    record.finish()


if __name__ == "__main__":
    main()
