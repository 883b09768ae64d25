"""`pretrain-text` against a plain PyTorch loop with transformers: the same steps, and folders that both Python libraries open.

Needs the binaries and the example `parity_text`, which `cargo test --release` builds.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer, BertModel, get_linear_schedule_with_warmup

from test_text import POOLERS, WORDS, drive, pooled, small
from test_train import BIN

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
seed: 3
data: DATA
model: {path: MODEL, pooler: POOLER, max_length: 16}
loss: {kind: infonce, temperature: 0.05}
optim: {kind: adamw, lr: 1.0e-3, weight_decay: 0.01, exclude_bias_and_norm: true}
schedule: {kind: linear, warmup_steps: 2}
train: {epochs: 2, batch_size: 8, clip_norm: 1.0, log_every: 1}
checkpoint: {every_steps: 1, keep: 100}
"""


def sentences(count: int) -> list[str]:
    generator = np.random.default_rng(1)
    words = [w for w in WORDS if not w.startswith("##") and len(w) > 1]
    return [" ".join(generator.choice(words, size=generator.integers(2, 9))) + f" {i % 3}" for i in range(count)]


def pretrain(config: Path, *more, code: int = 0) -> subprocess.CompletedProcess:
    done = subprocess.run([BIN / "pretrain-text", "--config", config, "--device", "cpu", *map(str, more)], capture_output=True, text=True)
    assert done.returncode == code and "panicked" not in done.stderr, (done.returncode, done.stderr)
    return done


def prepared(folder: Path, pooler: str, pairs: bool = False, more: str = "", **keys) -> tuple[Path, list]:
    """A configuration, and the examples of its corpus: tuples of one or two sentences."""
    small(folder / "bert", **keys)
    texts = sentences(48 if pairs else 24)
    if pairs:
        rows = [{"a": texts[2 * i], "b": texts[2 * i + 1]} for i in range(24)]
        (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data, examples = f"{{path: {folder}/corpus.jsonl, text: a, positive: b}}", [(row["a"], row["b"]) for row in rows]
    else:
        (folder / "corpus.txt").write_text("\n".join(texts) + "\n")
        data, examples = f"{{path: {folder}/corpus.txt}}", [(text,) for text in texts]
    config = folder / "c.yaml"
    config.write_text(CONFIG.replace("DATA", data).replace("MODEL", str(folder / "bert")).replace("POOLER", pooler) + more)
    return config, examples


def state(run: Path, step: int) -> dict:
    return torch.load(run / f"checkpoints/step-{step:09}.pt", weights_only=True)


@pytest.mark.parametrize("pooler, pairs", [*((pooler, False) for pooler in POOLERS), ("avg", True), ("cls", True)])
def test_steps_are_those_of_a_plain_loop(pooler, pairs, tmp_path):
    config, examples = prepared(tmp_path, pooler, pairs)
    run = tmp_path / "run"
    pretrain(config, "--run-dir", run)
    start, end = state(run, 0)["model"], state(run, 6)["model"]
    net = BertModel.from_pretrained(tmp_path / "bert", add_pooling_layer="pooler.dense.weight" in start).train()
    net.load_state_dict(start, strict=True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "bert")
    named = list(net.named_parameters())
    groups = [{"params": [p for _, p in named if p.dim() > 1]}, {"params": [p for _, p in named if p.dim() <= 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, 2, 6)
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for step in range(6):
        batch = [examples[i] for i in json.loads(drive("batch", config, step))]
        sides = [list(side) for side in zip(*batch)]
        embed = lambda texts: pooled(net, tokenizer(texts, padding=True, truncation=True, max_length=16, return_tensors="pt"), pooler)
        z_1, z_2 = embed(sides[0]), embed(sides[-1])
        logits = F.normalize(z_1) @ F.normalize(z_2).T / 0.05
        loss = F.cross_entropy(logits, torch.arange(len(batch)))
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0).item()
        line = logged[step]
        assert abs(line["lr"] - schedule.get_last_lr()[0]) < 1e-12
        # Six steps of float32, each after the one before.
        assert abs(line["loss"] - loss.item()) < 1e-4 * max(1, loss.item()), (step, line["loss"], loss.item())
        assert abs(line["grad_norm"] - norm) < 1e-3 * norm, (step, line["grad_norm"], norm)
        optimizer.step()
        schedule.step()
    for name, expected in net.state_dict().items():
        if name.endswith("attention.self.key.bias"):
            continue  # Its gradient is 0, and Adam makes whole steps of its rounding.
        moved = (expected - start[name]).norm()
        assert (end[name] - expected).norm() <= 1e-2 * moved + 1e-7, (name, (end[name] - expected).norm() / moved)


@pytest.mark.parametrize("pooler", [*POOLERS, "cls, mlp_only_train: false"])
def test_what_is_left_opens_in_both_libraries(pooler, tmp_path):
    config, examples = prepared(tmp_path, pooler)
    run = tmp_path / "run"
    pretrain(config, "--run-dir", run)
    texts = [text for (text,) in examples]
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{i % 5}\n" for i, (a, b) in enumerate(zip(texts, texts[3:]))))
    kept = tmp_path / "e.safetensors"
    command = [BIN / "eval-sts", "--model", run / "model", "--data", pairs, "--save-embeddings", kept, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    evaluated = {"cls": "cls_before_pooler"}.get(pooler, pooler.split(",")[0])
    assert json.loads(done.stdout)["protocol"]["pooler"] == evaluated
    found = load_file(kept)["a"]
    net = AutoModel.from_pretrained(run / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    with torch.no_grad():
        expected = pooled(net, tokenizer(texts[: len(found)], padding=True, truncation=True, max_length=16, return_tensors="pt"), evaluated)
    assert np.abs(found - expected.numpy()).max() < 1e-5
    if evaluated in ("avg_first_last", "avg_top2"):
        assert not (run / "model/modules.json").exists()
        return
    model = SentenceTransformer(str(run / "model"), device="cpu")
    assert model.max_seq_length == 16
    assert np.abs(found - model.encode(texts[: len(found)])).max() < 1e-5


def test_dropout_makes_the_two_views(tmp_path):
    config, _ = prepared(tmp_path, "avg", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    config.write_text(config.read_text().replace("temperature: 0.05", "temperature: 1.0"))
    pretrain(config, "--run-dir", tmp_path / "a")
    line = json.loads((tmp_path / "a/metrics.jsonl").read_text().splitlines()[0])
    assert line["positive_mean"] < 0.9999 if "positive_mean" in line else True
    pretrain(config, "--run-dir", tmp_path / "b")
    for name in ["step-000000006.pt", "step-000000003.pt"]:
        assert (tmp_path / "a/checkpoints" / name).read_bytes() == (tmp_path / "b/checkpoints" / name).read_bytes()
    assert (tmp_path / "a/model/model.safetensors").read_bytes() == (tmp_path / "b/model/model.safetensors").read_bytes()


def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path):
    config, _ = prepared(tmp_path, "cls", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    pretrain(config, "--run-dir", tmp_path / "whole")
    pretrain(config, "--run-dir", tmp_path / "short", "--set", "train.epochs=2")
    # As if it had been killed after its third step.
    for file in (tmp_path / "short/checkpoints").glob("step-*.pt"):
        if int(file.stem.split("-")[1]) > 3:
            file.unlink()
    (tmp_path / "short/checkpoints/LAST").unlink(missing_ok=True)
    pretrain(config, "--run-dir", tmp_path / "short", "--resume")
    for name in ["checkpoints/step-000000006.pt", "model/model.safetensors"]:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "short" / name).read_bytes(), name


def test_the_best_is_kept_by_spearman(tmp_path):
    texts = sentences(40)
    pairs = tmp_path / "dev.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{b}\t{i % 5}\n" for i, (a, b) in enumerate(zip(texts, texts[3:]))))
    more = f"eval: {{path: {pairs}, every_steps: 2}}\n"
    config, _ = prepared(tmp_path, "avg", more=more)
    config.write_text(config.read_text().replace("keep: 100}", "keep: 100, best_by: spearman}"))
    run = tmp_path / "run"
    pretrain(config, "--run-dir", run)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    measured = {line["step"]: line["spearman"] for line in lines if line["split"] == "eval"}
    assert list(measured) == [2, 4, 6]
    best = torch.load(run / "checkpoints/best.pt", weights_only=True)
    assert best["best"]["value"] == max(measured.values()) and measured[best["step"]] == best["best"]["value"]
    done = subprocess.run([BIN / "eval-sts", "--model", run / "model", "--data", pairs, "--json"], capture_output=True, text=True)
    assert abs(json.loads(done.stdout)["all"]["spearman"] - measured[6]) < 1e-6


@pytest.mark.parametrize("change, says", [
    (("avg", "mean"), "`avg`"),
    (("max_length: 16", "max_length: 65"), "64"),
    (("batch_size: 8", "batch_size: 1"), "2 sentences"),
    (("clip_norm: 1.0", "clip_norm: 0"), "train.clip_norm"),
    (("pooler: avg", "pooler: avg, mlp_only_train: true"), "mlp_only_train"),
    (("keep: 100", "keep: 100, best_by: spearman"), "eval"),
    (("keep: 100", "keep: 100, best_by: knn_accuracy"), "spearman"),
    (("corpus.txt", "nothing.txt"), "nothing.txt"),
    (("bert,", "nobert,"), "nobert"),
])
def test_what_cannot_be_run_is_refused(change, says, tmp_path):
    config, _ = prepared(tmp_path, "avg")
    assert change[0] in config.read_text()
    config.write_text(config.read_text().replace(*change))
    done = subprocess.run([BIN / "pretrain-text", "--config", config, "--run-dir", tmp_path / "run"], capture_output=True, text=True)
    assert done.returncode in (1, 2) and "panicked" not in done.stderr and says in done.stderr, done.stderr
    assert not (tmp_path / "run").exists()


def test_killed_runs_resume_to_the_bit(tmp_path):
    config, _ = prepared(tmp_path, "cls", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    config.write_text(config.read_text().replace("epochs: 2", "epochs: 8").replace("keep: 100", "keep: 2"))
    command = [sys.executable, ROOT / "scripts/kill_and_resume.py", "--kills", "5", "--folder", tmp_path / "runs", "--config", config]
    done = subprocess.run([*command, "--binary", BIN / "pretrain-text"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended after 5 kills, equal to the bit" in done.stdout
