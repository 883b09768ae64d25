"""transformers against the Rust text encoder: the same tokens, the same vectors by every pooler of SimCSE, the same gradients, from folders of
every make.

Needs the example `parity_text`, which `cargo test --release` builds, and `data/minilm`, which is fetched where it is missing.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertConfig, BertForPreTraining, BertModel, BertTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
DRIVER = ROOT / "target/release/examples/parity_text"
POOLERS = ["cls", "cls_before_pooler", "avg", "avg_first_last", "avg_top2"]

WORDS = "the a cat dog sat on mat and it is ran red blue ##s ##ed ##ing un ##happy é . , ! ' 1 2 ##3".split()
SENTENCES = ["the cat sat on the mat.", "a dog", "it is red, and blue, and running unhappy cats", "THE CAT sat", "1233!", "dogs"]
# What tokenizers disagree on: case, accents in two forms, control and zero-width characters, ideographs, emoji, odd spaces,
# special tokens in the text, very long words, right-to-left text, nothing at all.
HARD = [
    "Hello, World!",
    "Ünïcödé Ｆｕｌｌｗｉｄｔｈ naïve café cafe\u0301",
    "a\u200bb\u200dc \ufeffd\u00ade",
    "tab\there\nnew\r\nline\u2028separator\u00a0nbsp\u3000ideographic",
    "漢字とかな 한국어 中文字符",
    "👍🏽 👩‍👩‍👧‍👦 🇩🇪 :-)",
    "[CLS] in the [MASK] text [SEP] [PAD] [UNK]",
    "x" * 99 + " " + "y" * 101,
    "مرحبا بالعالم שלום",
    "don't can't I'm 3.14 1,000,000 $5 50% #tag @user http://a.b/c?d=e&f",
    "\x00null\x07bell\x7fdel \ufffd",
    "ΑΣ ς İ ı ß ﬁ ﬀ Ⅷ ½ ™",
    "-- — – … “quotes” ‘single’ «guillemets»",
    " leading and trailing  ",
    ".",
    "\u200b",
    "",
    "Tokenization of looooong sentences " * 40,
]


def drive(*args) -> str:
    assert DRIVER.exists(), f"{DRIVER} is missing: run `cargo test --release` (or `cargo build --release --examples`)"
    done = subprocess.run([DRIVER, *map(str, args)], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*args) -> str:
    done = subprocess.run([DRIVER, *map(str, args)], capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode != 0 and "panicked" not in done.stderr, (done.stdout, done.stderr)
    return done.stderr


@pytest.fixture(scope="module")
def minilm() -> Path:
    folder = ROOT / "data/minilm"
    if not folder.exists():
        subprocess.run([sys.executable, ROOT / "scripts/fetch_data.py", "minilm"], check=True, cwd=ROOT)
    return folder


def small(folder: Path, seed: int = 0, **keys) -> BertModel:
    """A small BERT with random weights and its tokenizer, saved to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64}
    nothing = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    net = BertModel(BertConfig(vocab_size=len(vocabulary), initializer_range=0.2, **sizes | nothing | keys)).eval()
    with torch.no_grad():
        for name, p in net.named_parameters():
            if p.dim() == 1:
                p.add_(torch.randn_like(p), alpha=0.1)
    net.save_pretrained(folder)
    return net


def pooled(net: BertModel, batch, pooler: str) -> torch.Tensor:
    """SimCSE's poolers, as its paper's appendix and its code's `Pooler` define them."""
    out = net(**batch, output_hidden_states=True)
    mask = batch["attention_mask"].unsqueeze(-1)
    states = out.hidden_states
    if pooler == "cls":
        return out.pooler_output
    if pooler == "cls_before_pooler":
        return states[-1][:, 0]
    mixed = {"avg": states[-1], "avg_first_last": (states[0] + states[-1]) / 2, "avg_top2": (states[-1] + states[-2]) / 2}[pooler]
    return (mixed * mask).sum(1) / mask.sum(1)


def batch_of(folder: Path, sentences: list[str], length: int):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tokenizer(sentences, padding=True, truncation=True, max_length=length, return_tensors="pt")


def written(folder: Path, sentences: list[str]) -> Path:
    file = folder / "sentences.json"
    file.write_text(json.dumps(sentences))
    return file


def encode(folder: Path, pooler: str, sentences: list[str], out: Path, length="-") -> torch.Tensor:
    drive("encode", folder, pooler, length, written(out, sentences), out / "out.safetensors")
    return load_file(out / "out.safetensors")["embeddings"]


def gap(found: torch.Tensor, expected: torch.Tensor) -> float:
    return (found - expected).abs().max().item()


@pytest.mark.parametrize("pooler", POOLERS)
def test_every_pooler_gives_the_vectors_of_transformers(pooler, tmp_path):
    net = small(tmp_path / "model")
    for sentences in [SENTENCES, SENTENCES[:1], ["the cat", "a dog"]]:
        with torch.no_grad():
            expected = pooled(net, batch_of(tmp_path / "model", sentences, 64), pooler)
        assert gap(encode(tmp_path / "model", pooler, sentences, tmp_path), expected) < 1e-5


@pytest.mark.parametrize("pooler", POOLERS)
def test_gradients_are_those_of_transformers(pooler, tmp_path):
    net = small(tmp_path / "model", seed=1).train()
    target = torch.randn(len(SENTENCES), 32)
    save_file({"target": target}, tmp_path / "target.safetensors")
    embeddings = pooled(net, batch_of(tmp_path / "model", SENTENCES, 64), pooler)
    (embeddings - target).square().mean().backward()
    drive("learn", tmp_path / "model", pooler, tmp_path / "target.safetensors", written(tmp_path, SENTENCES), tmp_path / "out.safetensors")
    found = load_file(tmp_path / "out.safetensors")
    assert gap(found.pop("embeddings"), embeddings.detach()) < 1e-5
    expected = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    largest = max(g.norm().item() for g in expected.values())
    for name, gradient in expected.items():
        # The bias of the keys moves all logits of a query alike: its gradient is 0, and what is there is rounding. The pad row has none.
        assert (found[name] - gradient).norm() < 1e-5 * max(gradient.norm().item(), 1e-2 * largest), name
    assert not found["embeddings.word_embeddings.weight"][0].any()


def test_activations_and_absent_keys_are_those_of_the_configuration(tmp_path):
    for act in ["gelu", "gelu_new", "relu"]:
        net = small(tmp_path / act, hidden_act=act, layer_norm_eps=1e-5)
        with torch.no_grad():
            expected = pooled(net, batch_of(tmp_path / act, SENTENCES, 64), "avg")
        assert gap(encode(tmp_path / act, "avg", SENTENCES, tmp_path), expected) < 1e-5
    config = json.loads((tmp_path / "gelu/config.json").read_text())
    for key, value, says in [
        ("hidden_act", "swish", "gelu"),
        ("model_type", "roberta", "roberta"),
        ("num_attention_heads", 5, "num_attention_heads"),
        ("position_embedding_type", "relative_key", "absolute"),
        ("hidden_size", 48, "48"),
        ("vocab_size", 10**12, "vocab_size"),
    ]:
        (tmp_path / "gelu/config.json").write_text(json.dumps(config | {key: value}))
        text = refused("encode", tmp_path / "gelu", "avg", "-", written(tmp_path, SENTENCES), tmp_path / "out")
        assert says in text and "gelu" in text, text


def test_older_files_are_read_as_transformers_reads_them(tmp_path):
    """`bert-base-uncased`: pytorch_model.bin with `bert.`, LayerNorm's gamma and beta, heads for pretraining and a buffer of positions."""
    folder = tmp_path / "model"
    net = small(folder)
    heads = BertForPreTraining(net.config)
    heads.bert.load_state_dict(net.state_dict())
    state = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t for name, t in heads.state_dict().items()}
    assert any(name.startswith("bert.") for name in state) and any(name.startswith("cls.") for name in state)
    state["bert.embeddings.position_ids"] = torch.arange(64)[None]
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    with torch.no_grad():
        expected = pooled(net, batch_of(folder, SENTENCES, 64), "cls")
    assert gap(encode(folder, "cls", SENTENCES, tmp_path), expected) < 1e-5
    # And a module of sentence-transformers saved whole.
    torch.save({f"0.auto_model.{name}": t for name, t in net.state_dict().items()}, folder / "pytorch_model.bin")
    assert gap(encode(folder, "cls", SENTENCES, tmp_path), expected) < 1e-5


def test_weights_that_do_not_fit_are_refused(tmp_path):
    folder = tmp_path / "model"
    net = small(folder)
    state = {name: t.clone() for name, t in net.state_dict().items()}
    sentences = written(tmp_path, SENTENCES)
    name = "encoder.layer.1.output.dense.weight"

    def save(**changed):
        save_file({key: t for key, t in (state | changed).items() if t is not None}, folder / "model.safetensors")
        return refused("encode", folder, "avg", "-", sentences, tmp_path / "out")

    assert name in save(**{name: None})
    assert name in save(**{name: torch.zeros(32, 63)})
    assert name in save(**{name: state[name] * float("nan")})
    assert "encoder.layer.3." in save(**{f"encoder.layer.3.{k}": torch.zeros(1) for k in ["a", "b"]})
    without = {key: t for key, t in state.items() if "pooler" not in key}
    save_file(without, folder / "model.safetensors")
    assert "cls_before_pooler" in refused("encode", folder, "cls", "-", sentences, tmp_path / "out")
    encode(folder, "avg", SENTENCES, tmp_path)
    (folder / "model.safetensors").unlink()
    assert "model.safetensors or pytorch_model.bin" in refused("encode", folder, "avg", "-", sentences, tmp_path / "out")


def test_no_pooler_is_invented(tmp_path):
    small(tmp_path / "model")
    text = refused("encode", tmp_path / "model", "-", "-", written(tmp_path, SENTENCES), tmp_path / "out")
    assert "avg_first_last" in text and "modules.json" in text


@pytest.mark.parametrize("length", ["-", 8, 3])
def test_token_ids_are_those_of_transformers(length, minilm, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    # The folder's own length is that which sentence-transformers takes, at most what transformers allows.
    limit = json.loads((minilm / "sentence_bert_config.json").read_text())["max_seq_length"] if length == "-" else length
    expected = tokenizer(HARD, truncation=True, max_length=limit)["input_ids"]
    drive("tokens", minilm, length, written(tmp_path, HARD), tmp_path / "ids.json")
    assert json.loads((tmp_path / "ids.json").read_text()) == expected


@pytest.mark.parametrize("keys", [{}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}])
def test_a_vocabulary_alone_serves_as_transformers_makes_it(keys, minilm, tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_bytes((minilm / "vocab.txt").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "model_max_length": 512, **keys}))
    expected = AutoTokenizer.from_pretrained(tmp_path)(HARD, truncation=True, max_length=512)["input_ids"]
    assert not (tmp_path / "tokenizer.json").exists()
    drive("tokens", tmp_path, 512, written(tmp_path, HARD), tmp_path / "ids.json")
    assert json.loads((tmp_path / "ids.json").read_text()) == expected


def test_a_real_encoder_gives_the_vectors_of_transformers(minilm, tmp_path):
    net = BertModel.from_pretrained(minilm).eval()
    sentences = [text for text in HARD if text.strip()]
    for pooler in POOLERS:
        with torch.no_grad():
            expected = torch.nn.functional.normalize(pooled(net, batch_of(minilm, sentences, 256), pooler))
        # Its folder says that vectors are normalised.
        assert gap(encode(minilm, pooler, sentences, tmp_path), expected) < 1e-5
