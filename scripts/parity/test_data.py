"""Data sets as Python's libraries write and read them: pickles and npz of numpy, folders of images, STL-10's planes.

Needs the example `parity_model` and the binaries, which `cargo test --release` builds.
"""

import itertools
import json
import os
import pickle
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image, ImageDraw
from safetensors.torch import load_file
from safetensors import safe_open
from torchvision import transforms as T

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "target/release/examples/parity_model"
DOCTOR = ROOT / "target/release/doctor"
REST = """
model: {encoder: {kind: resnet18, stem: small, width: 8}}
optim: {kind: adam, lr: 1.0e-3}
train: {epochs: 1, batch_size: 2}
"""


def run(*command):
    env = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    return subprocess.run([*map(str, command)], capture_output=True, text=True, env=env)


def config(folder: Path, data: str, augment: str = "{}") -> Path:
    path = folder / "config.yaml"
    path.write_text(f"data: {data}\naugment: {augment}\n{REST}")
    return path


def images(folder: Path, data: str, part: str, augment: str = "{}"):
    """What evaluation sees of a part: images, labels, names of the classes."""
    out = folder / "images.safetensors"
    done = run(DRIVER, "images", config(folder, data, augment), part, out)
    assert done.returncode == 0, done.stderr
    tensors = load_file(out)
    with safe_open(out, "pt") as file:
        names = file.metadata()["class_names"].split("\n")
    return tensors["images"], tensors["labels"], names


def batch(rng, n):
    return rng.integers(0, 256, (n, 3072), dtype=np.uint8)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("keys", [str, lambda key: key.encode()])
def test_pickled_batches_of_any_protocol(tmp_path, protocol, keys):
    rng = np.random.default_rng(protocol)
    expected, labels = [], []
    for i in range(1, 6):
        data, label = batch(rng, 4), [int(v) for v in rng.integers(0, 10, 4)]
        # As an array of its own, a slice of another, and one in Fortran's order.
        stored = {1: data, 2: np.concatenate([data, data])[:4], 3: np.asfortranarray(data)}.get(i, data)
        with open(tmp_path / f"data_batch_{i}", "wb") as file:
            pickle.dump({keys("data"): stored, keys("labels"): label, keys("batch_label"): f"{i}"}, file, protocol=protocol)
        expected.append(data), labels.extend(label)
    with open(tmp_path / "batches.meta", "wb") as file:
        pickle.dump({keys("label_names"): list("abcdefghij")}, file, protocol=protocol)
    found, found_labels, names = images(tmp_path, f"{{kind: cifar10, root: {tmp_path}}}", "train")
    wanted = torch.from_numpy(np.concatenate(expected)).view(-1, 3, 32, 32).float() / 255
    assert torch.equal(found, wanted) and found_labels.tolist() == labels and names == list("abcdefghij")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("labels", [list, np.int64, np.int32, np.uint8])
def test_npz_batches(tmp_path, save, labels):
    rng = np.random.default_rng(0)
    data, classes = batch(rng, 6), rng.integers(1, 200, 6)
    stored = classes.tolist() if labels is list else classes.astype(labels)
    save(tmp_path / "val_data.npz", data=data, labels=stored, mean=data.mean(0))
    found, found_labels, _ = images(tmp_path, f"{{kind: imagenet32, root: {tmp_path}}}", "test")
    assert torch.equal(found, torch.from_numpy(data).view(-1, 3, 32, 32).float() / 255)
    assert found_labels.tolist() == (classes - 1).tolist()


def test_a_pickle_that_would_run_something_is_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, ("touch " + str(tmp_path / "ran"),)

    for i in range(1, 6):
        with open(tmp_path / f"data_batch_{i}", "wb") as file:
            pickle.dump({"data": Evil(), "labels": [1]}, file, protocol=2)
    done = run(DOCTOR, "data", "--config", config(tmp_path, f"{{kind: cifar10, root: {tmp_path}}}"))
    assert done.returncode == 1 and "posix.system" in done.stderr and not (tmp_path / "ran").exists()


def test_stl10_is_read_as_torchvision_reads_it(tmp_path):
    rng = np.random.default_rng(1)
    folder = tmp_path / "stl10_binary"
    folder.mkdir()
    for part, n in [("train", 3), ("test", 2), ("unlabeled", 4)]:
        (folder / f"{part}_X.bin").write_bytes(rng.integers(0, 256, (n, 3, 96, 96), dtype=np.uint8).tobytes())
        if part != "unlabeled":
            (folder / f"{part}_y.bin").write_bytes(rng.integers(1, 11, n, dtype=np.uint8).tobytes())
    (folder / "class_names.txt").write_text("\n".join("abcdefghij"))

    class Unchecked(torchvision.datasets.STL10):
        def _check_integrity(self):
            return True

    for ours, theirs in [("train", "train"), ("test", "test"), ("pretrain", "unlabeled")]:
        found, labels, _ = images(tmp_path, f"{{kind: stl10, root: {tmp_path}}}", ours)
        expected = Unchecked(tmp_path, split=theirs, transform=T.ToTensor())
        assert torch.equal(found, torch.stack([image for image, _ in expected]))
        assert labels.tolist() == [label for _, label in expected]


def icons(root: Path, classes: int, each: int):
    """A tree of icons: RGBA, palettes and greys of many sizes, in folders of any depth, beside other files."""
    rng = random.Random(0)
    for c in range(classes):
        for i in range(each):
            size = rng.choice([16, 22, 24, 32, 48, 64]), rng.choice([16, 24, 32, 48, 100])
            image = Image.new("RGBA", size, (0, 0, 0, 0))
            draw = ImageDraw.Draw(image)
            colour = tuple(rng.randrange(256) for _ in range(3)) + (rng.randrange(40, 256),)
            draw.ellipse((1, 1, size[0] - 2, size[1] - 2), fill=colour, outline=(c * 10, 0, 0, 255))
            draw.line((0, 0, *size), fill=(255, 255, 255, rng.randrange(256)), width=1 + i % 3)
            image = {0: image, 1: image.quantize(32), 2: image.convert("LA")}.get(i % 5, image)
            ending = ["png", "PNG", "webp", "tif"][i % 4] if image.mode == "RGBA" else "png"
            folder = root / f"class-{c}" / ["", "scalable", "a b", "32x32/apps"][i % 4]
            folder.mkdir(parents=True, exist_ok=True)
            how = {"lossless": True, "exact": True} if ending == "webp" else {}
            image.save(folder / f"icon{i}.{ending}", **how)
            (folder / "index.theme").write_text("[Icon Theme]")
            (folder / f"icon{i}.svg").write_text("<svg/>")


def test_a_tree_of_icons_is_read_as_torchvision_reads_it(tmp_path):
    for part, classes, each in [("train", 4, 40), ("val", 3, 13)]:
        icons(tmp_path / "tree" / part, classes, each)
    size = 32
    view = T.Compose([T.Resize(round(size * 256 / 224)), T.CenterCrop(size), T.ToTensor()])
    for ours, theirs in [("train", "train"), ("test", "val")]:
        expected = torchvision.datasets.ImageFolder(tmp_path / "tree" / theirs, transform=view)
        wanted = torch.stack([image for image, _ in expected])
        plain = f"{{kind: folder, root: {tmp_path / 'tree'}, threads: 3}}"
        cached = f"{{kind: folder, root: {tmp_path / 'tree'}, cache: {tmp_path / 'cache'}}}"
        for data in [plain, cached, cached]:
            found, labels, names = images(tmp_path, data, ours, f"{{size: {size}}}")
            # torchvision takes 1 from 1/255 in places: its resize is Pillow's, and so is ours.
            assert torch.equal(found, wanted)
            assert labels.tolist() == expected.targets
            assert names == [f"class-{c}" for c in range(4)]


def test_jpegs_are_read_as_torchvision_reads_them(tmp_path):
    rng = np.random.default_rng(4)
    ways = [dict(subsampling=how) for how in (0, 1, 2, "4:1:1")] + [dict(progressive=True), dict(progressive=True, subsampling=0)]
    ways += [dict(restart_marker_blocks=3), dict(optimize=True), dict(keep_rgb=True), dict(icc_profile=bytes(70_000))]
    for i, (way, (h, w)) in enumerate(itertools.product(ways, [(40, 40), (41, 64), (64, 33), (1, 1), (17, 2), (200, 130)])):
        rough = rng.integers(0, 256, (h, w, 3), dtype=np.uint8)
        smooth = Image.fromarray(rough[: 2 + h // 8, : 2 + w // 8]).resize((w, h), Image.Resampling.BICUBIC)
        for name, image in [("rough", Image.fromarray(rough)), ("smooth", smooth), ("grey", smooth.convert("L")), ("cmyk", smooth.convert("CMYK"))]:
            folder = tmp_path / "train" / name
            folder.mkdir(parents=True, exist_ok=True)
            plain = {"RGB": [], "L": ["keep_rgb"], "CMYK": ["keep_rgb", "subsampling"]}[image.mode]
            more = {key: value for key, value in way.items() if key not in plain}
            image.save(folder / f"{i}.jpg", quality=int(rng.choice([25, 75, 92, 100])), **more)
    view = T.Compose([T.Resize(round(32 * 256 / 224)), T.CenterCrop(32), T.ToTensor()])
    expected = torchvision.datasets.ImageFolder(tmp_path / "train", transform=view)
    assert len(expected) == 240
    found, labels, _ = images(tmp_path, f"{{kind: folder, root: {tmp_path}}}", "train", "{size: 32}")
    assert torch.equal(found, torch.stack([image for image, _ in expected])) and labels.tolist() == expected.targets


def test_doctor_tells_what_numpy_finds(tmp_path):
    icons(tmp_path / "train", 2, 12), icons(tmp_path / "val", 2, 4)
    data = f"{{kind: folder, root: {tmp_path}}}"
    sheet = tmp_path / "views.png"
    done = run(DOCTOR, "data", "--config", config(tmp_path, data, "{size: 32}"), "--json", "--preview", sheet)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["parts"][0]
    tree = torchvision.datasets.ImageFolder(tmp_path / "train")
    pixels = np.concatenate([np.asarray(image).reshape(-1, 3) for image, _ in tree]) / 255.0
    assert np.allclose(found["mean"], pixels.mean(0), rtol=1e-12) and np.allclose(found["std"], pixels.std(0), rtol=1e-9)
    assert found["class_counts"] == [12, 12] and found["images"] == 24
    widths = [image.width for image, _ in tree]
    assert found["widths"] == [min(widths), max(widths)]
    # Eight images: each as it is, and three pairs of views.
    assert Image.open(sheet).size == (4 + 7 * (64 + 4), 4 + 8 * (64 + 4))

    for preview, expected in [("views.jpg", "ends in .png"), ("none/views.png", "there is no folder")]:
        done = run(DOCTOR, "data", "--config", config(tmp_path, data, "{size: 32}"), "--preview", tmp_path / preview)
        assert done.returncode == 1 and expected in done.stderr and done.stdout == "", done.stderr

    (tmp_path / "train/class-0/broken.png").write_bytes(b"\x89PNG\r\n\x1a\nxx")
    (tmp_path / "val/class-1/empty.jpg").write_bytes(b"")
    done = run(DOCTOR, "data", "--config", config(tmp_path, data, "{size: 32}"))
    assert done.returncode == 1 and "2 files can't be read as images" in done.stderr
    assert "broken.png" in done.stdout and "empty.jpg" in done.stdout
