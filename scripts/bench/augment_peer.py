"""SimCLR views a second of one thread, made by torchvision on PIL images; the peer of benches/augment.rs, with the same image.

Usage: augment_peer.py SIZE VIEWS
"""

import json
import sys
import time

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as T


def main():
    size, count = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    views = T.Compose([
        T.RandomResizedCrop(size),
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        T.RandomGrayscale(0.2),
        T.ToTensor(),
    ])  # fmt: skip
    y, x, channel = np.mgrid[0:size, 0:size, 0:3]
    image = Image.fromarray(((x * 7 + y * 3 + channel * 50) % 256).astype(np.uint8))
    for _ in range(count // 10):
        views(image)
    start = time.perf_counter()
    for _ in range(count):
        views(image)
    rate = count / (time.perf_counter() - start)
    print(json.dumps({"size": size, "views": count, "views_per_second": rate}))


if __name__ == "__main__":
    main()
