"""scripts/fetch_data.py against a small publisher on this machine: what it fetches, checks, keeps, refuses."""

import gzip
import hashlib
import http.server
import io
import os
import pathlib
import subprocess
import sys
import tarfile
import threading

import pytest

import script_module

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "fetch_data.py"


@pytest.fixture
def fetch():
    return script_module.load("fetch_data")


@pytest.fixture
def publisher(tmp_path, monkeypatch):
    """A folder that is served over HTTP, as the only place to ask; the list of paths asked for is its attribute."""
    folder = tmp_path / "published"
    folder.mkdir()
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *args):
            asked.append(self.path)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
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


def publish_cifar(fetch, monkeypatch, folder, extra=(), change=lambda data: data):
    """Publishes an archive of two records a file, and makes the script expect it."""
    files = {name: os.urandom(2 * 3074) for name in ("train.bin", "test.bin")}
    names = b"apple\n" * 100
    members = [(f"cifar-100-binary/{name}", data) for name, data in files.items()]
    data = archive([*members, ("cifar-100-binary/fine_label_names.txt", names), *extra])
    known = fetch.Cifar(
        "cifar-100-binary.tar.gz",
        hashlib.md5(data).hexdigest(),
        "cifar-100-binary",
        {name: len(content) for name, content in files.items()},
        ("fine_label_names.txt",),
    )
    monkeypatch.setitem(fetch.CIFAR, "cifar100", known)
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


def publish_fashion(fetch, monkeypatch, folder):
    known = {}
    for name in fetch.FASHION_FILES:
        content = os.urandom(1000)
        packed = gzip.compress(content)
        (folder / name).write_bytes(packed)
        known[name] = (hashlib.md5(packed).hexdigest(), hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(fetch, "FASHION_FILES", known)


def test_fashion_mnist_is_fetched_and_damage_is_mended(fetch, monkeypatch, publisher, tmp_path, capsys):
    folder, asked = publisher
    publish_fashion(fetch, monkeypatch, folder)
    target = tmp_path / "data/fashion-mnist"
    assert run(fetch, monkeypatch, "fashion-mnist", "--root", tmp_path / "data") == 0
    assert sorted(p.name for p in target.iterdir()) == sorted(fetch.FASHION_FILES) and len(asked) == 4
    # Another packing of the same content is as good.
    name = next(iter(fetch.FASHION_FILES))
    (target / name).write_bytes(gzip.compress(gzip.decompress((folder / name).read_bytes()), 1, mtime=7))
    assert run(fetch, monkeypatch, "fashion-mnist", "--root", tmp_path / "data") == 0
    assert len(asked) == 4 and capsys.readouterr().err.count("present, checked") == 4
    (target / name).write_bytes((folder / name).read_bytes()[:-20])
    assert run(fetch, monkeypatch, "fashion-mnist", "--root", tmp_path / "data") == 0
    assert len(asked) == 5 and (target / name).read_bytes() == (folder / name).read_bytes()


def test_without_publisher_and_packages_both_are_named(fetch, monkeypatch, publisher, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert run(fetch, monkeypatch, "fashion-mnist", "--root", tmp_path / "data") == 1
    error = capsys.readouterr().err
    assert os.environ["WEINCE_DATA_MIRROR"] in error and "apt-get is not installed" in error


def test_unknown_names_are_a_usage_error():
    result = subprocess.run([sys.executable, SCRIPT, "cifar11"], capture_output=True, text=True)
    assert result.returncode == 2 and "fashion-mnist" in result.stderr
