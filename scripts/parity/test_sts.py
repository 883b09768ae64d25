"""`eval-sts` against sentence-transformers and SciPy: folders of every make give the same embeddings, and pairs the same correlations.

Needs the binaries and the example `parity_text`, which `cargo test --release` builds, and `data/minilm`, which is fetched where it is missing.
"""

import json
import subprocess
import unicodedata
import warnings

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from scipy.stats import pearsonr, spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from test_text import HARD, SENTENCES, encode, minilm, refused, small, written  # noqa: F401 (minilm is a fixture)
from test_train import BIN

# Both are float32 sums of a few hundred products in other orders.
CLOSE = 1e-5


def sts(*args, code: int = 0) -> str:
    done = subprocess.run([BIN / "eval-sts", *map(str, args)], capture_output=True, text=True)
    assert done.returncode == code and "panicked" not in done.stderr, (done.returncode, done.stderr)
    return done.stdout if code == 0 else done.stderr


def figures(*args) -> dict:
    return json.loads(sts(*args, "--json"))


def test_correlations_of_embeddings_are_scipys(tmp_path):
    generator = np.random.default_rng(0)
    a, b = (generator.normal(size=(400, 24)).astype(np.float32) for _ in range(2))
    a[7] = 0
    score = np.round(generator.uniform(0, 5, size=400) * 2) / 2
    b[::3] += a[::3] * score[::3, None].astype(np.float32)
    save_file({"a": a, "b": b, "score": score}, tmp_path / "e.safetensors")
    found = figures("--embeddings", tmp_path / "e.safetensors")
    x, y = a.astype(np.float64), b.astype(np.float64)
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    cosine = np.divide((x * y).sum(1), norms, out=np.zeros(400), where=norms > 0)
    assert found["all"]["n"] == 400 and found["zero_rows"] == 1
    assert abs(found["all"]["spearman"] - spearmanr(cosine, score).statistic) < 1e-12
    assert abs(found["all"]["pearson"] - pearsonr(cosine, score).statistic) < 1e-12


def test_what_is_undefined_says_why(tmp_path):
    ones = np.ones((3, 4), np.float32)
    save_file({"a": ones, "b": ones, "score": np.array([1.0, 2, 3])}, tmp_path / "e.safetensors")
    found = figures("--embeddings", tmp_path / "e.safetensors")["all"]
    assert found["spearman"] is None and found["pearson"] is None and "the same" in found["reason"]
    assert "undefined" in sts("--embeddings", tmp_path / "e.safetensors")


@pytest.mark.parametrize("tensors, says", [
    ({"a": (3, 4), "b": (3, 4)}, "a, b and score"),
    ({"a": (3, 4), "b": (2, 4), "score": (3,)}, "as many rows"),
    ({"a": (3, 4), "b": (3, 5), "score": (3,)}, "as wide"),
    ({"a": (3, 4), "b": (3, 4), "score": (3, 1)}, "`score`"),
])
def test_embeddings_that_do_not_belong_together_are_refused(tensors, says, tmp_path):
    file = tmp_path / "e.safetensors"
    save_file({name: np.ones(shape, np.float32) for name, shape in tensors.items()}, file)
    text = sts("--embeddings", file, code=1)
    assert says in text and str(file) in text, text


def test_a_diverged_encoder_is_told(tmp_path):
    a = np.ones((3, 4), np.float32)
    a[1, 2] = np.nan
    save_file({"a": a, "b": a, "score": np.arange(3.0)}, tmp_path / "e.safetensors")
    assert "pair 1" in sts("--embeddings", tmp_path / "e.safetensors", code=3)


def test_a_real_encoder_is_that_of_sentence_transformers(minilm, tmp_path):
    visible = lambda text: any(unicodedata.category(c) not in ("Cc", "Cf", "Zs") for c in text)
    sentences = [text for text in HARD if visible(text)] * 2
    pairs = [(a, b, i % 6) for i, (a, b) in enumerate(zip(sentences[:17], sentences[5:]))]
    file = tmp_path / "pairs.jsonl"
    file.write_text("".join(json.dumps({"sentence1": a, "sentence2": b, "score": s}) + "\n" for a, b, s in pairs))
    kept, out = tmp_path / "e.safetensors", tmp_path / "result.json"
    found = figures("--model", minilm, "--data", file, "--save-embeddings", kept, "--out", out)
    assert found == json.loads(out.read_text())
    assert (found["protocol"]["pooler"], found["protocol"]["max_length"]) == ("avg", 256)
    model = SentenceTransformer(str(minilm), device="cpu")
    a, b = (model.encode([pair[i] for pair in pairs]) for i in range(2))
    embeddings = load_file(kept)
    assert np.abs(embeddings["a"] - a).max() < CLOSE and np.abs(embeddings["b"] - b).max() < CLOSE
    expected = pearsonr((a.astype(np.float64) * b).sum(1), [pair[2] for pair in pairs]).statistic
    assert abs(found["all"]["pearson"] - expected) < CLOSE
    # What was kept tells the same.
    assert figures("--embeddings", kept)["all"] == found["all"]


def assembled(folder, *modules) -> SentenceTransformer:
    small(folder / "bert")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SentenceTransformer(modules=[Transformer(str(folder / "bert")), *modules], device="cpu")
        model.save(str(folder / "assembled"))
    return model


@pytest.mark.parametrize("make", [
    lambda: [Pooling(32, "mean")],
    lambda: [Pooling(32, "cls")],
    lambda: [Pooling(32, "mean"), Normalize()],
    lambda: [Pooling(32, "cls"), Dense(32, 32, activation_function=torch.nn.Tanh())],
    lambda: [Pooling(32, "cls"), Dense(32, 32, activation_function=torch.nn.Tanh()), Normalize()],
])  # fmt: skip
def test_folders_of_sentence_transformers_say_their_pooler(make, tmp_path):
    model = assembled(tmp_path, *make())
    found = encode(tmp_path / "assembled", "-", SENTENCES, tmp_path)
    assert np.abs(found.numpy() - model.encode(SENTENCES)).max() < CLOSE


@pytest.mark.parametrize("make, says", [
    (lambda: [Pooling(32, "max")], "max"),
    (lambda: [Pooling(32, "cls"), Dense(32, 32, activation_function=torch.nn.ReLU())], "Tanh"),
    (lambda: [Pooling(32, "mean"), Dense(32, 32, activation_function=torch.nn.Tanh())], "Dense"),
    (lambda: [Pooling(32, "cls"), Normalize(), Dense(32, 32, activation_function=torch.nn.Tanh())], "Dense"),
])
def test_modules_that_cannot_be_served_are_named(make, says, tmp_path):
    assembled(tmp_path, *make())
    text = refused("encode", tmp_path / "assembled", "-", "-", written(tmp_path, SENTENCES), tmp_path / "out")
    assert says in text and "assembled" in text, text


def test_a_folder_of_another_width_of_dense_is_refused(tmp_path):
    assembled(tmp_path, Pooling(32, "cls"), Dense(32, 16, activation_function=torch.nn.Tanh()))
    text = refused("encode", tmp_path / "assembled", "-", "-", written(tmp_path, SENTENCES), tmp_path / "out")
    assert "pooler.dense" in text and "16" in text, text


def test_an_older_folder_whose_sentences_are_made_small(tmp_path):
    """sentence-transformers once kept transformers' files in `0_Transformer/`; `do_lower_case` is its own key, before the tokenizer."""
    model = tmp_path / "old"
    place = model / "0_Transformer"
    small(place)
    file = place / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"do_lower_case": False}))
    (place / "tokenizer.json").unlink(missing_ok=True)
    (place / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 12, "do_lower_case": True}))
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}))
    kinds = [("0_Transformer", "Transformer"), ("1_Pooling", "Pooling")]
    modules = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"} for i, (path, kind) in enumerate(kinds)]
    (model / "modules.json").write_text(json.dumps(modules))
    sentences = [text.upper() for text in SENTENCES] + list(SENTENCES)
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"sentence1": a, "sentence2": b, "score": i} for i, (a, b) in enumerate(zip(sentences, sentences[1:]))]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept = tmp_path / "e.safetensors"
    figures("--model", model, "--data", pairs, "--save-embeddings", kept)
    expected = SentenceTransformer(str(model), device="cpu").encode([row["sentence1"] for row in rows])
    assert np.abs(load_file(kept)["a"] - expected).max() < CLOSE
    assert np.abs(load_file(kept)["a"][0] - load_file(kept)["a"][len(SENTENCES)]).max() < CLOSE


def test_a_prompt_that_belongs_before_every_sentence_is_named(tmp_path):
    small(tmp_path / "m")
    (tmp_path / "m/config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": "query: "}, "default_prompt_name": "query"}))
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\na\tb\t1\nc\td\t2\n")
    assert "`query: ` before every sentence" in sts("--model", tmp_path / "m", "--pooler", "avg", "--data", pairs, code=1)
