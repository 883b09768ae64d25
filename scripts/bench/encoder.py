#!/usr/bin/env python3
"""Forward and backward pass of an encoder on the CPU: ours against torchvision's ResNet and timm's Vision Transformer, in turns.

    .venv/bin/python scripts/bench/encoder.py [--turns 7] [--peer-only] [--quick]
"""

import sys

import paired

# Name: ours, images and pixels; of a smoke run.
CASES = {
    "ResNet-18, 32x32, batch 64": ("{kind: resnet18, stem: small}", 64, 32, "torchvision"),
    "ResNet-50, 32x32, batch 16": ("{kind: resnet50, stem: small}", 16, 32, "torchvision"),
    "ViT-Small/16, 224x224, batch 8": ("{kind: vit_small, patch_size: 16}", 8, 224, "timm"),
}
QUICK = {"ViT-Small/16, 32x32, batch 2": ("{kind: vit_small, patch_size: 16}", 2, 32, "timm")}


def peer(yaml: str, batch: str, size: str) -> None:
    import torch

    torch.set_num_threads(int(paired.os.environ["OMP_NUM_THREADS"]))
    if "vit_small" in yaml:
        import timm

        net = timm.create_model("vit_small_patch16_224", num_classes=0, img_size=int(size))
    else:
        import torchvision

        net = torchvision.models.resnet18() if "resnet18" in yaml else torchvision.models.resnet50()
        net.conv1 = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        net.maxpool = net.fc = torch.nn.Identity()
    images = torch.randn(int(batch), 3, int(size), int(size))

    def round_() -> None:
        net.zero_grad()
        net(images).square().sum().backward()

    paired.serve(round_)


def main() -> None:
    args = paired.arguments(__doc__, "the Python encoders", 3, quick={"turns": 1}, turns=7)
    if args.peer:
        return peer(*args.peer)

    bench = None if args.peer_only else paired.bench_binary("encoder")
    record = paired.Comparison(
        "encoder",
        "Encoders: forward and backward pass",
        "Float32, training mode, no optimizer, random images; ours against torchvision's ResNets (with the small stem) and timm's `vit_small_patch16_224`.",
        args,
        ("torchvision", "timm"),
    )
    for case, (yaml, batch, size, library) in (QUICK if args.quick else CASES).items():
        for threads in paired.thread_counts():
            commands = {"ours": [bench, yaml, batch, size]} if bench else {}
            commands[library] = [sys.executable, __file__, "--peer", yaml, batch, size]
            top = threads == len(paired.cores())
            took = paired.in_turns(commands, threads, args.turns if top else max(1, args.turns // 2))
            record.add(f"{case}, {threads} threads", took, headline={library: library} if top else None)
    if not args.peer_only:
        record.finish()


if __name__ == "__main__":
    main()
