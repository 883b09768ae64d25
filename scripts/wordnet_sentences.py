"""Sentences, and pairs of sentences graded by how near their meanings are, out of WordNet 3.0's data files. Standard library only.

A gloss is what WordNet says of a synset (a meaning and the words for it): wordings of its definition, then examples in quotes, with
semicolons between them:

    draw air into, and expel out of, the lungs; "I can breathe better when the air is clean"; "The patient is respiring"

These pieces are the sentences. A piece of fewer than 4 words is left out, and so is one with an odd number of quotes or with more
brackets of one side than of the other.

- sentences.txt: every sentence once.
- dev.tsv and test.tsv: pairs of nouns, each given by the first wording of its definition, equally many of each grade:

      3  a noun and one right above it in WordNet's tree (its hypernym, or what it is an instance of)
      2  two nouns that have the same one two levels above them, none the same right above, and of which none is above the other
      1  two nouns of one field (a lexicographer file: animals, food, feelings, ...) that share nothing on the two levels above them
      0  two nouns of different fields

  No noun is in two pairs, and no sentence is there twice.
- train.txt: sentences of meanings of all kinds that are in no pair, without those that are in a pair by another meaning as well.

Whatever is chosen or put in order is so by the SHA-256 of what it says, so that the same files come out everywhere. WordNet as
Princeton gave it out and as Debian builds it lead to the same files: they differ in offsets, in what is above two verbs, and in a
space before a quote.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KINDS = {"data.noun": "n", "data.verb": "v", "data.adj": "a", "data.adv": "r"}
GRADES = (3, 2, 1, 0)
DEV, TEST, TRAIN = 1_500, 3_000, 10_000


class Unusable(Exception):
    """Files that are none of WordNet's, or too little of it."""


@dataclass(eq=False)
class Synset:
    key: str  # of what it says, since offsets change from one build to another
    kind: str
    field: str
    wordings: list[str]
    examples: list[str]
    above: list[Synset]


def order(*parts: object) -> str:
    return hashlib.sha256("\t".join(map(str, parts)).encode()).hexdigest()


def pieces(gloss: str) -> tuple[list[str], list[str]]:
    """The wordings and the examples in a gloss."""
    wordings, examples = [], []
    for piece in re.findall(r'(?:"[^"]*"?|[^";]+)+', gloss.replace(':"', ': "')):
        text = " ".join(piece.split())
        example = re.match(r'"([^"]*)"', text)
        text = example[1].strip() if example else text
        if len(text.split()) >= 4 and text.count('"') % 2 == 0 and text.count("(") == text.count(")"):
            (examples if example else wordings).append(text)
    return wordings, examples


def read(folder: Path) -> list[Synset]:
    """The synsets in a folder's data files, in the order of their keys. The format is described in wndb(5WN)."""
    synsets, above = {}, {}
    for name, kind in KINDS.items():
        for number, line in enumerate((folder / name).read_text("utf-8", "replace").splitlines(), 1):
            if line.startswith("  "):  # the licence
                continue
            try:
                facts, gloss = line.split(" | ", 1)
                offset, field, _, words, *rest = facts.split()
                end = 2 * int(words, 16)
                links = [rest[i : i + 3] for i in range(end + 1, end + 1 + 4 * int(rest[end]), 4)]
                above[kind, offset] = [(where, to) for symbol, to, where in links if symbol in ("@", "@i")]
            except (ValueError, IndexError) as error:
                raise Unusable(f"{name}: line {number} is no synset of WordNet's: {line[:60]!r} ({error})") from error
            wordings, examples = pieces(gloss)
            key = order(kind, field, *rest[:end:2], *wordings, *examples)
            synsets[kind, offset] = Synset(key, kind, field, wordings, examples, [])
    for place, synset in synsets.items():
        synset.above = [synsets[upper] for upper in above[place] if upper in synsets]
    return sorted(synsets.values(), key=lambda synset: synset.key)


def near(noun: Synset) -> set[Synset]:
    """A noun with the two levels above it."""
    return {noun, *noun.above, *(top for upper in noun.above for top in upper.above)}


def candidates(nouns: list[Synset], grade: int) -> Iterator[tuple[Synset, Synset]]:
    """Pairs of a grade: all of grade 3; of the others those of neighbours in each group, in the order of the grade."""
    if grade == 3:
        yield from ((noun, upper) for noun in nouns for upper in noun.above)
        return
    groups = defaultdict(list)
    for noun in sorted(nouns, key=lambda noun: order(grade, noun.key)):
        tops = dict.fromkeys(top for upper in noun.above for top in upper.above)
        for group in tops if grade == 2 else [noun.field if grade == 1 else ""]:
            groups[group].append(noun)
    for group in groups.values():
        for a, b in zip(group[::2], group[1::2]):
            if grade == 2:
                good = not {a, *a.above} & {b, *b.above}
            else:
                good = not near(a) & near(b) if grade == 1 else a.field != b.field
            if good:
                yield a, b


def pairs(synsets: list[Synset], each: int) -> tuple[dict[int, list[tuple[str, str]]], set[Synset]]:
    """`each` pairs of sentences for every grade, and the synsets in them."""
    nouns = [synset for synset in synsets if synset.kind == "n" and synset.wordings]
    used, said, found = set(), set(), {}
    for grade in GRADES:
        found[grade] = []
        for a, b in sorted(candidates(nouns, grade), key=lambda pair: order(grade, pair[0].key, pair[1].key)):
            if len(found[grade]) == each:
                break
            if {a, b} & used or not b.wordings:
                continue
            texts = a.wordings[0], b.wordings[0]
            if set(texts) & said or texts[0] == texts[1]:
                continue
            used |= {a, b}
            said |= set(texts)
            found[grade].append(texts)
        if len(found[grade]) < each:
            raise Unusable(f"{len(found[grade])} pairs of grade {grade} are in these data files; expected at least {each}")
    return found, used


def write(dictionary: Path, folder: Path) -> None:
    """Makes sentences.txt, train.txt, dev.tsv and test.tsv in `folder` of the data files in `dictionary`."""
    synsets = read(dictionary)
    found, used = pairs(synsets, (DEV + TEST) // len(GRADES))
    dev = DEV // len(GRADES)
    for name, part in (("dev.tsv", slice(dev)), ("test.tsv", slice(dev, None))):
        rows = sorted((f"{a}\t{b}\t{grade}" for grade in GRADES for a, b in found[grade][part]), key=order)
        lines(folder / name, ["sentence1\tsentence2\tscore", *rows])
    every = {text for synset in synsets for text in synset.wordings + synset.examples}
    kept_out = {text for synset in used for text in synset.wordings + synset.examples}
    train = sorted(every - kept_out, key=order)[:TRAIN]
    if len(train) < TRAIN:
        raise Unusable(f"{len(train)} sentences are left to train with; expected {TRAIN}")
    lines(folder / "sentences.txt", sorted(every, key=order))
    lines(folder / "train.txt", train)


def lines(path: Path, texts: list[str]) -> None:
    path.write_text("".join(text + "\n" for text in texts), "utf-8", newline="\n")
