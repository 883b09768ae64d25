#!/usr/bin/env python3
"""Fetches a data set from its publisher, checks it, and unpacks what needs unpacking. Standard library only.

    scripts/fetch_data.py fashion-mnist|cifar10|cifar100 [--root data]

Files that are there already are checked and kept. Fashion-MNIST falls back to Debian's package dataset-fashion-mnist (apt-get and
dpkg-deb, no root needed) where its publisher can't be reached. Exit code 0: the set is complete and checked; 1: it is not; 130: interrupted.

WEINCE_DATA_MIRROR, if set, is the only place asked over the network: a URL of a folder with the publishers' files.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 8
BLOCK = 1 << 20
SUMS = "SHA256SUMS"

# MD5 of the packed files as torchvision has them, SHA-256 of what is in them: Debian packed the same content anew.
FASHION_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
FASHION_PACKAGE = "dataset-fashion-mnist"
FASHION_FILES = {
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
}
LARGEST_UNPACKED = 64 << 20


@dataclass(frozen=True)
class Cifar:
    """A binary CIFAR archive: MD5 as on the publisher's page, and the files that it must have with their lengths."""

    archive: str
    md5: str
    folder: str
    files: dict[str, int]
    extra: tuple[str, ...]


CIFAR_URL = "https://www.cs.toronto.edu/~kriz/"
CIFAR = {
    "cifar10": Cifar(
        "cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin",
        {name: 30_730_000 for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]},
        ("batches.meta.txt", "readme.html"),
    ),
    "cifar100": Cifar(
        "cifar-100-binary.tar.gz",
        "03b5dce01913d631647c71ecec9e9cb8",
        "cifar-100-binary",
        {"train.bin": 153_700_000, "test.bin": 30_740_000},
        ("coarse_label_names.txt", "fine_label_names.txt"),
    ),
}


class Failed(Exception):
    """A place that did not serve, with the reason."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def places(publisher: str) -> list[str]:
    mirror = os.environ.get("WEINCE_DATA_MIRROR")
    return [mirror.rstrip("/") + "/"] if mirror else [publisher]


def digest(path: Path, kind: str) -> str:
    value = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            value.update(block)
    return value.hexdigest()


def download(url: str, target: Path, md5: str) -> None:
    """Fetches a file beside its place, checks it, then puts it there."""
    part = target.with_name(target.name + ".part")
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer, open(part, "wb") as file:
            total, done, shown = int(answer.headers.get("Content-Length") or 0), 0, -1
            while block := answer.read(BLOCK):
                file.write(block)
                done += len(block)
                percent = 100 * done // total if total else 0
                if sys.stderr.isatty() and percent != shown:
                    shown = percent
                    print(f"\r  {target.name}: {done >> 20} MiB, {percent} %", end="", file=sys.stderr, flush=True)
        if sys.stderr.isatty():
            print(file=sys.stderr)
        if total and done != total:
            raise Failed(f"{url}: {done} bytes came of {total}")
        found = digest(part, "md5")
        if found != md5:
            raise Failed(f"{url}: MD5 {found}, expected {md5}")
        part.replace(target)
    except (urllib.error.URLError, http.client.HTTPException, ValueError, TimeoutError, ConnectionError) as error:
        reason = error.reason if type(error) is urllib.error.URLError else error
        raise Failed(f"{url}: {reason}") from error
    finally:
        part.unlink(missing_ok=True)


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


def fashion_from_debian(folder: Path, wanted: dict[str, str]) -> None:
    """Takes the files out of Debian's package, without root: `apt-get download` and `dpkg-deb -x` into a temporary folder."""
    where = f"Debian's package {FASHION_PACKAGE}"
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
            result = apt("download", FASHION_PACKAGE)
            if result.returncode:
                say("  the list of packages is missing or old: fetching one of our own")
                update = apt(*private, "update")
                result = apt(*private, "download", FASHION_PACKAGE)
                if result.returncode:
                    reasons = [result.stderr.strip().splitlines()[-1:], update.stderr.strip().splitlines()[:1]]
                    raise Failed(f"{where}: {'; '.join(line for lines in reasons for line in lines) or 'apt-get failed'}")
            package = next(room.glob("*.deb"), None)
            if package is None:
                raise Failed(f"{where}: apt-get download left no file")
            unpack = subprocess.run(["dpkg-deb", "-x", package, room / "x"], capture_output=True, text=True, timeout=600)
            if unpack.returncode:
                raise Failed(f"{where}: {unpack.stderr.strip()}")
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{where}: no end after {error.timeout:.0f} s") from error
        for name, sha256 in wanted.items():
            source = room / "x/usr/share/datasets/fashion-mnist" / name
            if not content_is(source, sha256):
                raise Failed(f"{where}: {name} is missing or has another content than published")
            part = folder / (name + ".part")
            shutil.copyfile(source, part)
            part.replace(folder / name)


def fetch_fashion(root: Path) -> Path:
    folder = root / "fashion-mnist"
    folder.mkdir(parents=True, exist_ok=True)
    missing = {}
    for name, (md5, sha256) in FASHION_FILES.items():
        path = folder / name
        if path.is_file() and content_is(path, sha256):
            say(f"{path}: present, checked")
        else:
            missing[name] = (md5, sha256)
    if not missing:
        return folder
    tried = []
    for place in places(FASHION_URL):
        say(f"fetching {len(missing)} files from {place}")
        try:
            for name, (md5, sha256) in missing.items():
                download(place + name, folder / name, md5)
                if not content_is(folder / name, sha256):
                    raise Failed(f"{place}{name}: the content is not the published one")
            return folder
        except Failed as error:
            say(f"  {error}")
            tried.append(str(error))
    say(f"fetching Debian's package {FASHION_PACKAGE}")
    try:
        fashion_from_debian(folder, {name: sha256 for name, (_, sha256) in missing.items()})
        return folder
    except Failed as error:
        say(f"  {error}")
        tried.append(str(error))
    raise Failed("; ".join(tried))


def complete(folder: Path, files: dict[str, int]) -> bool:
    return all((folder / name).is_file() and (folder / name).stat().st_size == size for name, size in files.items())


def write_sums(folder: Path, files: dict[str, int]) -> None:
    """Notes what was in a checked archive, in the format of sha256sum, as the publisher gives a sum of the archive alone."""
    (folder / SUMS).write_text("".join(f"{digest(folder / name, 'sha256')}  {name}\n" for name in files))


def sums_hold(folder: Path) -> bool:
    lines = [line.split(maxsplit=1) for line in (folder / SUMS).read_text().splitlines()]
    return all(len(line) == 2 and digest(folder / line[1], "sha256") == line[0] for line in lines)


def unpack(archive: Path, cifar: Cifar, folder: Path) -> None:
    """Takes the known files out of the archive, by name and nothing else, so that no member can choose where it is written."""
    wanted = {f"{cifar.folder}/{name}": name for name in (*cifar.files, *cifar.extra)}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = wanted.get(member.name.removeprefix("./"))
                if name is None or not member.isreg():
                    continue
                if member.size > cifar.files.get(name, BLOCK):
                    raise Failed(f"{archive}: {member.name} has {member.size} bytes; expected {cifar.files.get(name, BLOCK)} at most")
                part = folder / (name + ".part")
                with tar.extractfile(member) as source, open(part, "wb") as target:
                    shutil.copyfileobj(source, target, BLOCK)
                part.replace(folder / name)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise Failed(f"{archive}: {error}") from error
    if not complete(folder, cifar.files):
        raise Failed(f"{archive}: a file of the set is missing or has another length than published; found {sorted(os.listdir(folder))}")


def fetch_cifar(root: Path, cifar: Cifar) -> Path:
    folder = root / cifar.folder
    if complete(folder, cifar.files):
        if not (folder / SUMS).is_file():
            say(f"{folder}: present, all lengths right; there is no {SUMS} to check the content with")
            return folder
        if sums_hold(folder):
            say(f"{folder}: present, checked")
            return folder
        say(f"{folder}: present, but damaged")
    root.mkdir(parents=True, exist_ok=True)
    archive = root / cifar.archive
    tried = []
    if archive.is_file() and digest(archive, "md5") == cifar.md5:
        say(f"{archive}: present, checked")
    else:
        for place in places(CIFAR_URL):
            say(f"fetching {place}{cifar.archive}")
            try:
                download(place + cifar.archive, archive, cifar.md5)
                break
            except Failed as error:
                say(f"  {error}")
                tried.append(str(error))
        else:
            raise Failed("; ".join(tried) + f"; or put {cifar.archive} (MD5 {cifar.md5}) into {root} yourself and run this again")
    unpack(archive, cifar, folder)
    write_sums(folder, cifar.files)
    archive.unlink()
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetches a data set and checks it.")
    parser.add_argument("name", choices=["fashion-mnist", *CIFAR], help="the data set")
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder for data sets (default: data)")
    args = parser.parse_args()
    try:
        folder = fetch_fashion(args.root) if args.name == "fashion-mnist" else fetch_cifar(args.root, CIFAR[args.name])
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
