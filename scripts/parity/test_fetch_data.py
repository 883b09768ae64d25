"""scripts/fetch_data.py against a small publisher on this machine: what it fetches, checks, keeps, refuses."""

import dataclasses
import gzip
import hashlib
import http.server
import io
import os
import pathlib
import re
import stat
import subprocess
import sys
import tarfile
import threading
import types
import zipfile

import pytest

import script_module

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "fetch_data.py"


@pytest.fixture
def fetch():
    return script_module.load("fetch_data")


@pytest.fixture
def manner():
    """How the publisher serves: codes for paths that it refuses, bytes after which it hangs up, whether it can begin in the middle."""
    return types.SimpleNamespace(refused={}, hangs_up_after=None, ranges=False, web_page=False)


@pytest.fixture
def publisher(tmp_path, monkeypatch, manner):
    """A folder that is served over HTTP, as the only place to ask, and the list of what was asked for: path, status, first byte."""
    folder = tmp_path / "published"
    folder.mkdir()
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            path = folder / self.path.lstrip("/")
            begin = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) if manner.ranges else None
            begin = int(begin[1]) if begin else 0
            data = path.read_bytes() if path.is_file() else b""
            status = manner.refused.get(path.name) or (404 if not path.is_file() else 206 if begin else 200)
            if status == 206 and begin >= len(data):
                status = 416
            asked.append((self.path, status, begin))
            if status >= 400:
                return self.send_error(status)
            self.send_response(status)
            self.send_header("Content-Length", len(data) - begin)
            self.send_header("Content-Type", "text/html; charset=utf-8" if manner.web_page else "application/octet-stream")
            if status == 206:
                self.send_header("Content-Range", f"bytes {begin}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            self.wfile.write(data[begin : manner.hangs_up_after])

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("WEINCE_DATA_MIRROR", f"http://127.0.0.1:{server.server_port}")
    yield folder, asked
    server.shutdown()
    server.server_close()


def run(fetch, monkeypatch, *args):
    monkeypatch.setattr(sys, "argv", ["fetch_data.py", *map(str, args)])
    return fetch.main()


def archive(members):
    """A tar.gz of (name, content) pairs."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(members, links=()):
    """A zip of (name, content) pairs, and of links as Unix zips have them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members:
            packed.writestr(name, content)
        for name, target in links:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            packed.writestr(info, target)
    return buffer.getvalue()


def publish(fetch, monkeypatch, folder, name, archives, **changes):
    """Publishes archives for a set, and makes the script expect their sums where it expects any, and what else is given."""
    real = fetch.PACKED[name]
    assert list(archives) == list(real.archives)
    for file, data in archives.items():
        (folder / file).write_bytes(data)
    sums = {file: md5 and hashlib.md5(archives[file]).hexdigest() for file, md5 in real.archives.items()}
    monkeypatch.setitem(fetch.PACKED, name, dataclasses.replace(real, archives=sums, room=1 << 20, **changes))


def publish_cifar(fetch, monkeypatch, folder, extra=(), change=lambda data: data):
    """Publishes an archive of two records a file, and makes the script expect it."""
    files = {name: os.urandom(2 * 3074) for name in ("train.bin", "test.bin")}
    names = b"apple\n" * 100
    members = [(f"cifar-100-binary/{name}", data) for name, data in files.items()]
    data = archive([*members, ("cifar-100-binary/fine_label_names.txt", names), *extra])
    known = (*(fetch.member(name, len(content)) for name, content in files.items()), fetch.note("fine_label_names.txt"))
    publish(fetch, monkeypatch, folder, "cifar100", {"cifar-100-binary.tar.gz": data}, members=known)
    (folder / "cifar-100-binary.tar.gz").write_bytes(change(data))
    return files


def test_cifar_is_fetched_checked_and_kept(fetch, monkeypatch, publisher, tmp_path, capsys):
    folder, asked = publisher
    files = publish_cifar(fetch, monkeypatch, folder)
    assert run(fetch, monkeypatch, "cifar100", "--root", tmp_path / "data") == 0
    target = tmp_path / "data/cifar-100-binary"
    assert capsys.readouterr().out.strip() == str(target)
    assert {name: (target / name).read_bytes() for name in files} == files
    assert (target / "fine_label_names.txt").read_bytes() == b"apple\n" * 100
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["cifar-100-binary"]

    assert run(fetch, monkeypatch, "cifar100", "--root", tmp_path / "data") == 0
    assert len(asked) == 1 and "present, checked" in capsys.readouterr().err

    (target / "train.bin").write_bytes(bytes(2 * 3074))
    assert run(fetch, monkeypatch, "cifar100", "--root", tmp_path / "data") == 0
    assert len(asked) == 2 and (target / "train.bin").read_bytes() == files["train.bin"]


def test_members_can_not_choose_where_they_are_written(fetch, monkeypatch, publisher, tmp_path):
    hostile = [("../escaped", b"x"), ("/tmp/weince-escaped", b"x"), ("cifar-100-binary/../../escaped", b"x")]
    publish_cifar(fetch, monkeypatch, publisher[0], extra=hostile)
    assert run(fetch, monkeypatch, "cifar100", "--root", tmp_path / "data") == 0
    kept = sorted(p.name for p in (tmp_path / "data").rglob("*") if p.is_file())
    assert kept == ["SHA256SUMS", "fine_label_names.txt", "test.bin", "train.bin"]
    assert not (tmp_path / "escaped").exists() and not pathlib.Path("/tmp/weince-escaped").exists()


@pytest.mark.parametrize("change", [lambda d: d[:-100], lambda d: d[:50] + b"\0" + d[51:], lambda d: b""])
def test_a_damaged_archive_is_refused(fetch, monkeypatch, publisher, tmp_path, capsys, change):
    publish_cifar(fetch, monkeypatch, publisher[0], change=change)
    assert run(fetch, monkeypatch, "cifar100", "--root", tmp_path / "data") == 1
    assert "MD5" in capsys.readouterr().err
    assert list((tmp_path / "data").iterdir()) == []


def test_where_it_looked_is_said(fetch, monkeypatch, publisher, tmp_path, capsys):
    assert run(fetch, monkeypatch, "cifar10", "--root", tmp_path / "data") == 1
    error = capsys.readouterr().err
    assert os.environ["WEINCE_DATA_MIRROR"] in error and "404" in error
    assert "c32a1d4ab5d03f1284b67883e8d87530" in error


def publish_idx(fetch, monkeypatch, folder, which):
    known = {}
    for name in fetch.IDX[which].files:
        content = os.urandom(1000)
        packed = gzip.compress(content)
        (folder / name).write_bytes(packed)
        known[name] = (hashlib.md5(packed).hexdigest(), hashlib.sha256(content).hexdigest())
    monkeypatch.setitem(fetch.IDX, which, dataclasses.replace(fetch.IDX[which], files=known))


@pytest.mark.parametrize("which", ["fashion-mnist", "mnist"])
def test_idx_files_are_fetched_and_damage_is_mended(fetch, monkeypatch, publisher, tmp_path, capsys, which):
    folder, asked = publisher
    publish_idx(fetch, monkeypatch, folder, which)
    files = fetch.IDX[which].files
    target = tmp_path / "data" / which
    assert run(fetch, monkeypatch, which, "--root", tmp_path / "data") == 0
    assert sorted(p.name for p in target.iterdir()) == sorted(files) and len(asked) == 4
    # Another packing of the same content is as good.
    name = next(iter(files))
    (target / name).write_bytes(gzip.compress(gzip.decompress((folder / name).read_bytes()), 1, mtime=7))
    assert run(fetch, monkeypatch, which, "--root", tmp_path / "data") == 0
    assert len(asked) == 4 and capsys.readouterr().err.count("present, checked") == 4
    (target / name).write_bytes((folder / name).read_bytes()[:-20])
    assert run(fetch, monkeypatch, which, "--root", tmp_path / "data") == 0
    assert len(asked) == 5 and (target / name).read_bytes() == (folder / name).read_bytes()


def test_without_publisher_and_packages_both_are_named(fetch, monkeypatch, publisher, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(fetch, monkeypatch, "fashion-mnist", "--root", tmp_path / "data") == 1
    error = capsys.readouterr().err
    assert os.environ["WEINCE_DATA_MIRROR"] in error and "apt-get is not installed" in error


def test_mnist_has_a_second_place(fetch, monkeypatch, publisher, tmp_path, capsys):
    folder, _ = publisher
    publish_idx(fetch, monkeypatch, folder, "mnist")
    served = os.environ["WEINCE_DATA_MIRROR"] + "/"
    monkeypatch.delenv("WEINCE_DATA_MIRROR")
    two = dataclasses.replace(fetch.IDX["mnist"], places=(served + "nowhere/", served))
    monkeypatch.setitem(fetch.IDX, "mnist", two)
    assert run(fetch, monkeypatch, "mnist", "--root", tmp_path / "data") == 0
    assert "404" in capsys.readouterr().err


def test_stl10_is_fetched_with_its_texts(fetch, monkeypatch, publisher, tmp_path, capsys):
    counts = {"train_X.bin": 2 * 27648, "train_y.bin": 2, "unlabeled_X.bin": 3 * 27648, "test_X.bin": 27648, "test_y.bin": 1}
    files = {name: os.urandom(length) for name, length in counts.items()}
    texts = {"class_names.txt": b"airplane\n", "fold_indices.txt": b"0 1\n"}
    data = archive([(f"stl10_binary/{name}", content) for name, content in (files | texts).items()])
    real = fetch.PACKED["stl10"].members
    assert {m.name.replace("\\", ""): m.least for m in real if m.count} == {
        "train_X.bin": 138_240_000, "train_y.bin": 5000, "unlabeled_X.bin": 2_764_800_000, "test_X.bin": 221_184_000, "test_y.bin": 8000,
    }  # fmt: skip
    known = [fetch.member(name, len(content), hashlib.md5(content).hexdigest()) for name, content in files.items()]
    publish(fetch, monkeypatch, publisher[0], "stl10", {"stl10_binary.tar.gz": data}, members=(*known, *real[-2:]))
    assert run(fetch, monkeypatch, "stl10", "--root", tmp_path / "data") == 0
    target = tmp_path / "data/stl10_binary"
    assert {p.name: p.read_bytes() for p in target.iterdir() if p.name != "SHA256SUMS"} == files | texts
    # What was unpacked by hand is checked by the sums of its files, and noted.
    (target / "SHA256SUMS").unlink()
    assert run(fetch, monkeypatch, "stl10", "--root", tmp_path / "data") == 0
    assert "present, checked" in capsys.readouterr().err and (target / "SHA256SUMS").is_file()


def imagenet32(fetch, change=lambda name, content: content):
    """The two archives with a few bytes for each batch, what the script is to expect, and the files."""
    names = [f"train_data_batch_{i}" for i in range(1, 11)] + ["val_data"]
    files = {name: os.urandom(100 + i) for i, name in enumerate(names)}
    known = tuple(fetch.member(name, len(content), hashlib.md5(content).hexdigest()) for name, content in files.items())
    packed = {name: change(name, content) for name, content in files.items()}
    train = zipped([(name, packed[name]) for name in names[:10]])
    # With a folder around it or without: both are known.
    val = zipped([("Imagenet32_val/val_data", packed["val_data"])])
    return {"Imagenet32_train.zip": train, "Imagenet32_val.zip": val}, known, files


def test_imagenet32_names_its_ten_batches_and_val_data(fetch):
    images = {m.name: m.least // 3072 for m in fetch.PACKED["imagenet32"].members}
    assert len(images) == 11 and sum(images.values()) == 1_281_167 + 50_000
    assert all(re.fullmatch("[0-9a-f]{32}", m.md5) for m in fetch.PACKED["imagenet32"].members)


def test_imagenet32_is_fetched_and_its_files_are_checked(fetch, monkeypatch, publisher, tmp_path):
    archives, known, files = imagenet32(fetch)
    publish(fetch, monkeypatch, publisher[0], "imagenet32", archives, members=known)
    assert run(fetch, monkeypatch, "imagenet32", "--root", tmp_path / "data") == 0
    target = tmp_path / "data/imagenet32"
    assert {p.name: p.read_bytes() for p in target.iterdir() if p.name != "SHA256SUMS"} == files
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["imagenet32"]


def test_where_imagenet32_is_refused_it_says_what_to_do_and_takes_what_was_put_there(fetch, monkeypatch, publisher, manner, tmp_path, capsys):
    archives, known, files = imagenet32(fetch)
    publish(fetch, monkeypatch, publisher[0], "imagenet32", archives, members=known)
    manner.refused = dict.fromkeys(archives, 403)
    root = tmp_path / "data"
    assert run(fetch, monkeypatch, "imagenet32", "--root", root) == 1
    error = capsys.readouterr().err
    for part in ("403", "Imagenet32_train.zip and Imagenet32_val.zip", str(root), "https://image-net.org/download-images"):
        assert part in error
    assert list(root.iterdir()) == []
    # One of them is there: only the other is asked for.
    (root / "Imagenet32_train.zip").write_bytes(archives["Imagenet32_train.zip"])
    assert run(fetch, monkeypatch, "imagenet32", "--root", root) == 1
    error = capsys.readouterr().err
    assert "put Imagenet32_val.zip into" in error and "Imagenet32_train.zip: present" in error
    (root / "Imagenet32_val.zip").write_bytes(archives["Imagenet32_val.zip"])
    assert run(fetch, monkeypatch, "imagenet32", "--root", root) == 0
    assert {p.name: p.read_bytes() for p in (root / "imagenet32").iterdir() if p.name != "SHA256SUMS"} == files
    # What someone put there is theirs.
    assert sorted(p.name for p in root.iterdir()) == ["Imagenet32_train.zip", "Imagenet32_val.zip", "imagenet32"]


def test_a_page_to_log_in_is_no_archive(fetch, monkeypatch, publisher, manner, tmp_path, capsys):
    archives, known, _ = imagenet32(fetch)
    publish(fetch, monkeypatch, publisher[0], "imagenet32", archives, members=known)
    manner.web_page = True
    assert run(fetch, monkeypatch, "imagenet32", "--root", tmp_path / "data") == 1
    assert "a web page came" in capsys.readouterr().err and list((tmp_path / "data").iterdir()) == []


def test_a_batch_with_another_sum_is_refused(fetch, monkeypatch, publisher, tmp_path, capsys):
    other = lambda name, content: bytes(len(content)) if name == "train_data_batch_7" else content
    archives, known, _ = imagenet32(fetch, other)
    publish(fetch, monkeypatch, publisher[0], "imagenet32", archives, members=known)
    assert run(fetch, monkeypatch, "imagenet32", "--root", tmp_path / "data") == 1
    assert "train_data_batch_7 has the MD5" in capsys.readouterr().err
    assert not (tmp_path / "data/imagenet32/train_data_batch_7").exists()


def tiny(classes=("n01443537", "n02124075"), each=3):
    """What a tiny Tiny ImageNet has."""
    files = {"wnids.txt": "\n".join(classes).encode(), "words.txt": b"n01443537\tgoldfish\n", "val/val_annotations.txt": b"val_0.JPEG\tn01443537\n"}
    for wnid in classes:
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"0 0 1 1\n"
        files |= {f"train/{wnid}/images/{wnid}_{i}.JPEG": os.urandom(50) for i in range(each)}
    files |= {f"{part}/images/{part}_{i}.JPEG": os.urandom(50) for part in ("val", "test") for i in range(2)}
    return files


def publish_tiny(fetch, monkeypatch, folder, files, extra=(), links=(), counts=(6, 2, 2, 2)):
    real = fetch.PACKED["tiny-imagenet"].members
    assert [m.count for m in real] == [100_000, 200, 10_000, 10_000, 1, 1, 1]
    known = tuple(dataclasses.replace(m, count=count) for m, count in zip(real, counts)) + real[4:]
    data = zipped([("tiny-imagenet-200/" + name, content) for name, content in files.items()] + list(extra), links)
    publish(fetch, monkeypatch, folder, "tiny-imagenet", {"tiny-imagenet-200.zip": data}, members=known)


def test_tiny_imagenet_is_fetched_and_counted(fetch, monkeypatch, publisher, tmp_path, capsys):
    files = tiny()
    publish_tiny(fetch, monkeypatch, publisher[0], files, extra=[("tiny-imagenet-200/train/", b"")])
    assert run(fetch, monkeypatch, "tiny-imagenet", "--root", tmp_path / "data") == 0
    target = tmp_path / "data/tiny-imagenet-200"
    found = {p.relative_to(target).as_posix(): p.read_bytes() for p in target.rglob("*") if p.is_file()}
    assert len(found.pop("SHA256SUMS").splitlines()) == len(files) and found == files
    assert run(fetch, monkeypatch, "tiny-imagenet", "--root", tmp_path / "data") == 0
    assert "present, checked" in capsys.readouterr().err and len(publisher[1]) == 1
    (target / "val/images/val_1.JPEG").unlink()
    assert run(fetch, monkeypatch, "tiny-imagenet", "--root", tmp_path / "data") == 0
    assert (target / "val/images/val_1.JPEG").read_bytes() == files["val/images/val_1.JPEG"]


def test_a_hostile_zip_writes_nothing_but_the_set(fetch, monkeypatch, publisher, tmp_path):
    files = tiny()
    inside = "tiny-imagenet-200/"
    hostile = ["../escaped", "/tmp/weince-escaped", inside + "../escaped", inside + "train/n01443537/images/../../../../../escaped"]
    hostile += [inside + "train/n01443537/images/n02124075_0.JPEG", inside + "train/n01443537/images/n01443537_500.JPEG", inside + "setup.py"]
    publish_tiny(fetch, monkeypatch, publisher[0], files, extra=[(name, b"x") for name in hostile])
    assert run(fetch, monkeypatch, "tiny-imagenet", "--root", tmp_path / "data") == 0
    target = tmp_path / "data/tiny-imagenet-200"
    assert {p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()} == {"SHA256SUMS", *files}
    assert not (tmp_path / "escaped").exists() and not pathlib.Path("/tmp/weince-escaped").exists()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_links_are_not_followed(fetch, monkeypatch, publisher, tmp_path, capsys, kind):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(2 * 3074))
    if kind == "zip":
        files = tiny()
        del files["val/val_annotations.txt"]
        publish_tiny(fetch, monkeypatch, publisher[0], files, links=[("tiny-imagenet-200/val/val_annotations.txt", str(secret))])
        assert run(fetch, monkeypatch, "tiny-imagenet", "--root", tmp_path / "data") == 1
        assert "0 of 1 files val/val_annotations" in capsys.readouterr().err
    else:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, link in (("train.bin", tarfile.SYMTYPE), ("test.bin", tarfile.LNKTYPE)):
                info = tarfile.TarInfo(f"cifar-100-binary/{name}")
                info.type, info.linkname, info.size = link, str(secret), 0
                tar.addfile(info)
        known = (fetch.member("train.bin", 2 * 3074), fetch.member("test.bin", 2 * 3074))
        publish(fetch, monkeypatch, publisher[0], "cifar100", {"cifar-100-binary.tar.gz": buffer.getvalue()}, members=known)
        assert run(fetch, monkeypatch, "cifar100", "--root", tmp_path / "data") == 1
        assert "0 of 1 files train" in capsys.readouterr().err
    assert not [p for p in (tmp_path / "data").rglob("*") if p.is_symlink()]


def test_a_bomb_is_not_unpacked(fetch, monkeypatch, publisher, tmp_path, capsys):
    files = tiny() | {"train/n01443537/images/n01443537_0.JPEG": bytes(50 << 20)}
    publish_tiny(fetch, monkeypatch, publisher[0], files)
    assert run(fetch, monkeypatch, "tiny-imagenet", "--root", tmp_path / "data") == 1
    assert "has 52428800 bytes; expected 1 to 65536" in capsys.readouterr().err


def test_a_bomb_that_lies_about_its_length_is_cut_off(fetch, monkeypatch, publisher, tmp_path, capsys):
    name = b"tiny-imagenet-200/wnids.txt"
    packed = zipped([(name.decode(), bytes(50 << 20))])
    # The two headers of the member say 100 bytes.
    assert packed.count((50 << 20).to_bytes(4, "little")) == 2
    lying = packed.replace((50 << 20).to_bytes(4, "little"), (100).to_bytes(4, "little"))
    publish(fetch, monkeypatch, publisher[0], "tiny-imagenet", {"tiny-imagenet-200.zip": lying})
    assert run(fetch, monkeypatch, "tiny-imagenet", "--root", tmp_path / "data") == 1
    assert "CRC" in capsys.readouterr().err
    assert [p.name for p in (tmp_path / "data/tiny-imagenet-200").iterdir()] == []


@pytest.mark.parametrize(
    "lost",
    ["train/n02124075/images/n02124075_2.JPEG", "train/n01443537/n01443537_boxes.txt", "test/images/test_0.JPEG", "wnids.txt"],
)
def test_a_set_with_a_wrong_count_is_refused(fetch, monkeypatch, publisher, tmp_path, capsys, lost):
    files = tiny()
    del files[lost]
    publish_tiny(fetch, monkeypatch, publisher[0], files)
    assert run(fetch, monkeypatch, "tiny-imagenet", "--root", tmp_path / "data") == 1
    assert "not all of the set is in" in capsys.readouterr().err
    assert not (tmp_path / "data/tiny-imagenet-200/SHA256SUMS").exists()


@pytest.mark.parametrize("data", [b"no zip", zipped([("train_data_batch_1", b"x" * 100)])[:-30]])
def test_what_is_no_zip_is_refused(fetch, monkeypatch, publisher, tmp_path, capsys, data):
    archives, known, _ = imagenet32(fetch)
    publish(fetch, monkeypatch, publisher[0], "imagenet32", archives | {"Imagenet32_train.zip": data}, members=known)
    assert run(fetch, monkeypatch, "imagenet32", "--root", tmp_path / "data") == 1
    assert "remove the archive" in capsys.readouterr().err


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_goes_on_where_the_server_can(fetch, monkeypatch, publisher, manner, tmp_path, capsys, ranges):
    folder, asked = publisher
    files = publish_cifar(fetch, monkeypatch, folder)
    manner.ranges, manner.hangs_up_after = ranges, 5000
    assert run(fetch, monkeypatch, "cifar100", "--root", tmp_path / "data") == 1
    assert "5000 bytes came of" in capsys.readouterr().err
    part = tmp_path / "data/cifar-100-binary.tar.gz.part"
    assert part.stat().st_size == 5000
    manner.hangs_up_after = None
    assert run(fetch, monkeypatch, "cifar100", "--root", tmp_path / "data") == 0
    assert [(status, begin) for _, status, begin in asked] == [(200, 0), (206, 5000) if ranges else (200, 0)]
    assert {name: (tmp_path / "data/cifar-100-binary" / name).read_bytes() for name in files} == files
    assert not part.exists()


def test_a_part_that_is_complete_is_only_checked(fetch, monkeypatch, publisher, manner, tmp_path):
    folder, asked = publisher
    publish_cifar(fetch, monkeypatch, folder)
    manner.ranges = True
    (tmp_path / "data").mkdir()
    (tmp_path / "data/cifar-100-binary.tar.gz.part").write_bytes((folder / "cifar-100-binary.tar.gz").read_bytes())
    assert run(fetch, monkeypatch, "cifar100", "--root", tmp_path / "data") == 0
    assert [status for _, status, _ in asked] == [416]


@pytest.mark.parametrize("part", [b"of another file" * 10, b"longer than the file" * 1000])
def test_a_part_of_another_file_is_given_up(fetch, monkeypatch, publisher, manner, tmp_path, part):
    folder, asked = publisher
    publish_cifar(fetch, monkeypatch, folder)
    manner.ranges = True
    (tmp_path / "data").mkdir()
    (tmp_path / "data/cifar-100-binary.tar.gz.part").write_bytes(part)
    assert run(fetch, monkeypatch, "cifar100", "--root", tmp_path / "data") == 0
    assert [begin for _, _, begin in asked] == [len(part), 0]


def test_a_full_disk_is_seen_before_the_download(fetch, monkeypatch, publisher, tmp_path, capsys):
    publish_cifar(fetch, monkeypatch, publisher[0])
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=1 << 20))
    assert run(fetch, monkeypatch, "cifar100", "--root", tmp_path / "data") == 1
    assert "1 MiB are free" in capsys.readouterr().err
    assert list((tmp_path / "data").iterdir()) == []


def test_unknown_names_are_a_usage_error():
    result = subprocess.run([sys.executable, SCRIPT, "cifar11"], capture_output=True, text=True)
    assert result.returncode == 2 and "fashion-mnist" in result.stderr
