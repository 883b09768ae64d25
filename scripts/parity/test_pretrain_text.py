"""`pretrain-text` against a plain PyTorch loop with transformers: the same steps, and folders that both Python libraries open.

Needs the binaries and the example `parity_text`, which `cargo test --release` builds.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
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


def prepared(folder: Path, pooler: str, sides: int = 1, more: str = "", **keys) -> tuple[Path, list]:
    """A configuration, and the examples of its corpus: tuples of one, two (positive) or three (hard negative) sentences."""
    small(folder / "bert", **keys)
    texts = sentences(24 * sides)
    examples = [tuple(texts[sides * i : sides * (i + 1)]) for i in range(24)]
    if sides > 1:
        rows = [dict(zip("abc", example)) for example in examples]
        (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        data = f"{{path: {folder}/corpus.jsonl, text: a, positive: b{', hard_negative: c' if sides == 3 else ''}}}"
    else:
        (folder / "corpus.txt").write_text("\n".join(texts) + "\n")
        data = f"{{path: {folder}/corpus.txt}}"
    config = folder / "c.yaml"
    config.write_text(CONFIG.replace("DATA", data).replace("MODEL", str(folder / "bert")).replace("POOLER", pooler) + more)
    return config, examples


def state(run: Path, step: int) -> dict:
    return torch.load(run / f"checkpoints/step-{step:09}.pt", weights_only=True)


ONE_WAY = ("query_to_doc",)
BOTH_WAYS = ("query_to_doc", "doc_to_query")


@pytest.mark.parametrize("pooler, sides, directions, chunk", [
    *((pooler, 1, ONE_WAY, None) for pooler in POOLERS), ("cls", 2, ONE_WAY, None), ("avg", 2, BOTH_WAYS, None), ("avg", 3, ONE_WAY, None),
    ("avg", 3, BOTH_WAYS, None), ("cls", 1, BOTH_WAYS, None), ("cls", 1, ONE_WAY, 3), ("avg", 3, ONE_WAY, 3), ("avg", 3, BOTH_WAYS, 1),
])
def test_steps_are_those_of_a_plain_loop(pooler, sides, directions, chunk, tmp_path):
    config, examples = prepared(tmp_path, pooler, sides)
    run = tmp_path / "run"
    both = str(directions == BOTH_WAYS).lower()
    pretrain(config, "--run-dir", run, "--set", f"train.both_directions={both}", "--set", f"train.chunk={chunk or 'null'}")
    loss_of = MultipleNegativesRankingLoss(None, scale=20.0, directions=directions, partition_mode="per_direction")
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
        columns = [list(side) for side in zip(*batch)]
        columns = columns * 2 if sides == 1 else columns
        embed = lambda texts: pooled(net, tokenizer(texts, padding=True, truncation=True, max_length=16, return_tensors="pt"), pooler)
        loss = loss_of.compute_loss_from_embeddings([embed(column) for column in columns], None)
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
    model = SentenceTransformer(str(run / "model"), device="cpu")
    assert model.max_seq_length == 16
    assert np.abs(found - model.encode(texts[: len(found)])).max() < 1e-5
    # What sentence-transformers writes over it holds.
    model.max_seq_length = 5
    model.save(str(run / "model"))
    evaluated_by("--model", run / "model", "--data", pairs, "--save-embeddings", kept)
    assert np.abs(load_file(kept)["a"] - model.encode(texts[: len(found)])).max() < 1e-5
    if evaluated in ("avg_first_last", "avg_top2"):
        model[1].layer_weights.data[0] = 0.5
        model.save(str(run / "model"))
        refused = subprocess.run([BIN / "eval-sts", "--model", run / "model", "--data", pairs], capture_output=True, text=True)
        assert refused.returncode == 1 and "weighs the layers by [" in refused.stderr, refused.stderr


def test_a_module_trains_as_the_bert_that_it_was(tmp_path):
    config, examples = prepared(tmp_path, "avg", sides=2)
    script = tmp_path / "net.pt"
    export = [sys.executable, ROOT / "scripts/export_backbone.py", f"transformers:{tmp_path}/bert", "--out", script, "--pool", "avg"]
    subprocess.run(export, check=True, capture_output=True)
    pretrain(config, "--run-dir", tmp_path / "bert-run")
    config.write_text(config.read_text().replace("pooler: avg", f"torchscript: {script}"))
    run = tmp_path / "run"
    pretrain(config, "--run-dir", run)
    read = lambda run: [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for ours, theirs in zip(read(run), read(tmp_path / "bert-run"), strict=True):
        for key in ("loss", "grad_norm"):
            # The exported code has an attention of its own.
            assert abs(ours[key] - theirs[key]) < 1e-3 * theirs[key], (ours, theirs)
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("a\tb\tscore\n" + "".join(f"{a}\t{b}\t{i % 5}\n" for i, (a, b) in enumerate(examples)))
    kept = tmp_path / "e.safetensors"
    record = evaluated_by("--model", run / "model", "--data", pairs, "--save-embeddings", kept, "--json").stdout
    protocol = json.loads(record)["protocol"]
    assert (protocol["pooler"], protocol["max_length"]) == (None, 16)
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    net = torch.jit.load(run / "model/encoder.pt").eval()
    tokens = tokenizer([a for a, _ in examples], padding=True, truncation=True, max_length=16, return_tensors="pt")
    with torch.no_grad():
        expected = net(tokens["input_ids"], tokens["attention_mask"]).numpy()
    assert np.abs(load_file(kept)["a"] - expected).max() < 1e-5
    refused = subprocess.run([BIN / "eval-sts", "--model", run / "model", "--pooler", "avg", "--data", pairs], capture_output=True, text=True)
    assert refused.returncode == 2 and "leave the pooler out" in refused.stderr
    # Half way: from a state of the run, as from its end.
    state_of = evaluated_by("--run", run, "--checkpoint", run / "checkpoints/step-000000006.pt", "--data", pairs, "--json").stdout
    assert json.loads(state_of)["all"] == json.loads(record)["all"]
    # A module that does not pool.
    states = tmp_path / "states.pt"
    subprocess.run([*export[:3], "--out", states], check=True, capture_output=True)
    refused = pretrain(config, "--run-dir", tmp_path / "other", "--set", f"model.torchscript={states}", code=1)
    assert "expected one vector a sentence, [2, F]: pool in its forward" in refused.stderr, refused.stderr


def test_dropout_makes_the_two_views(tmp_path):
    config, _ = prepared(tmp_path, "avg", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    config.write_text(config.read_text().replace("temperature: 0.05", "temperature: 1.0"))
    pretrain(config, "--run-dir", tmp_path / "a")
    line = json.loads((tmp_path / "a/metrics.jsonl").read_text().splitlines()[0])
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
    spearman = lambda *source: json.loads(evaluated_by(*source, "--data", pairs, "--json").stdout)["all"]["spearman"]
    assert abs(spearman("--model", run / "model") - measured[6]) < 1e-6
    assert abs(spearman("--model", run / "model-best") - measured[best["step"]]) < 1e-6
    assert abs(spearman("--run", run) - measured[6]) < 1e-6
    assert json.loads(next((run / "results").glob("sts_*_dev.json")).read_text())["protocol"]["pooler"] == "avg"
    for step, value in measured.items():
        assert abs(spearman("--run", run, "--checkpoint", run / f"checkpoints/step-{step:09}.pt") - value) < 1e-6
    # A run that has not ended.
    shutil.rmtree(run / "model")
    (run / "checkpoints/step-000000006.pt").unlink()
    (run / "checkpoints/step-000000005.pt").unlink()
    assert abs(spearman("--run", run) - measured[4]) < 1e-6


def evaluated_by(*args) -> subprocess.CompletedProcess:
    done = subprocess.run([BIN / "eval-sts", *map(str, args)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done


def test_what_is_undefined_is_no_best(tmp_path):
    pairs = tmp_path / "dev.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\n" + "".join(f"{a}\t{a}\t{i}\n" for i, a in enumerate(sentences(5))))
    config, _ = prepared(tmp_path, "avg", more=f"eval: {{path: {pairs}, every_steps: 3}}\n")
    config.write_text(config.read_text().replace("keep: 100}", "keep: 100, best_by: spearman}"))
    done = pretrain(config, "--run-dir", tmp_path / "run")
    assert done.stderr.count("no Spearman after step") == 2 and "all predictions are the same" in done.stderr, done.stderr
    assert not (tmp_path / "run/checkpoints/best.pt").exists() and not (tmp_path / "run/model-best").exists()


def test_what_was_left_out_is_in_the_run(tmp_path):
    config, _ = prepared(tmp_path, "avg")
    with open(tmp_path / "corpus.txt", "ab") as file:
        file.write(b"\n \xe2\x80\x8b \r\ncaf\xe9\n")
    pretrain(config, "--run-dir", tmp_path / "run")
    report = json.loads((tmp_path / "run/corpus.json").read_text())
    assert (report["lines"], report["sentences"]) == (27, 24)
    assert report["empty"] == {"count": 2, "first_lines": [25, 26]} and report["invalid_utf8"] == {"count": 1, "first_lines": [27]}


def test_like_lengths_share_a_batch(tmp_path):
    """Of each 50 batches of the plain order; the examples of an epoch stay."""
    small(tmp_path / "bert")
    texts = sentences(60 * 8 + 5)
    (tmp_path / "corpus.txt").write_text("\n".join(texts) + "\n")
    config = tmp_path / "c.yaml"
    data = f"{{path: {tmp_path}/corpus.txt}}"
    plain = CONFIG.replace("DATA", data).replace("MODEL", str(tmp_path / "bert")).replace("POOLER", "avg")
    config.write_text(plain)
    before = [json.loads(batch) for batch in drive("batch", config, "0-59", "60-119").splitlines()]
    config.write_text(plain.replace("log_every: 1", "log_every: 1, group_by_length: true"))
    after = [json.loads(batch) for batch in drive("batch", config, "0-59", "60-119").splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "bert")
    length = lambda i: len(tokenizer(texts[i], truncation=True, max_length=16)["input_ids"])
    for begin, end in [(0, 50), (50, 60), (60, 110), (110, 120)]:
        assert sorted(sum(before[begin:end], [])) == sorted(sum(after[begin:end], []))
        ranges = sorted((min(map(length, batch)), max(map(length, batch))) for batch in after[begin:end])
        assert all(high <= low for (_, high), (low, _) in zip(ranges, ranges[1:])), ranges
        first = [min(map(length, batch)) for batch in after[begin:end]]
        assert first != sorted(first) and first != sorted(first, reverse=True)
    # Any step can be gone to directly, and a run that resumes sees what one that did not sees.
    for step in [3, 49, 50, 59, 60, 115]:
        assert json.loads(drive("batch", config, step)) == after[step]


def test_a_source_in_half_precision_leaves_single_precision(tmp_path):
    config, examples = prepared(tmp_path, "avg")
    BertModel.from_pretrained(tmp_path / "bert", dtype=torch.float16).save_pretrained(tmp_path / "bert")
    assert json.loads((tmp_path / "bert/config.json").read_text())["dtype"] == "float16"
    pretrain(config, "--run-dir", tmp_path / "run")
    net = AutoModel.from_pretrained(tmp_path / "run/model")
    assert net.dtype == torch.float32 == SentenceTransformer(str(tmp_path / "run/model"), device="cpu")[0].auto_model.dtype


def test_modules_of_the_source_are_kept_or_refused(tmp_path):
    """Normalize stays; a Dense is trained on by the pooler `cls`, and refused by the others; a layer that starts random is said."""
    config, examples = prepared(tmp_path, "cls, mlp_only_train: false")
    first = pretrain(config, "--run-dir", tmp_path / "first")
    assert "pooler.dense starts random" in first.stderr
    modules = json.loads((tmp_path / "first/model/modules.json").read_text())
    modules.append({"idx": 3, "name": "3", "path": "3_Normalize", "type": "sentence_transformers.models.Normalize"})
    (tmp_path / "first/model/modules.json").write_text(json.dumps(modules))
    config.write_text(config.read_text().replace(str(tmp_path / "bert"), str(tmp_path / "first/model")))
    second = pretrain(config, "--run-dir", tmp_path / "second")
    assert "starts random" not in second.stderr
    before, after = state(tmp_path / "first", 6)["model"], state(tmp_path / "second", 0)["model"]
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    model = SentenceTransformer(str(tmp_path / "second/model"), device="cpu")
    assert np.abs(np.linalg.norm(model.encode(["one", "two three"]), axis=1) - 1).max() < 1e-6
    config.write_text(config.read_text().replace("cls, mlp_only_train: false", "avg"))
    assert "only the pooler `cls` has such a layer" in pretrain(config, "--run-dir", tmp_path / "third", code=2).stderr


def test_what_a_state_does_not_hold_may_not_change(tmp_path):
    config, _ = prepared(tmp_path, "avg")
    pretrain(config, "--run-dir", tmp_path / "run")
    file = tmp_path / "bert/config.json"
    file.write_text(file.read_text().replace('"hidden_dropout_prob": 0.0', '"hidden_dropout_prob": 0.5'))
    for more in ([], ["--dry-run"]):
        again = pretrain(config, "--run-dir", tmp_path / "run", "--resume", "--set", "train.epochs=4", *more, code=2)
        assert "no longer those that this run began with" in again.stderr


def test_another_evaluation_begins_anew(tmp_path):
    texts = sentences(40)
    for name, step in [("a", 3), ("b", 5)]:
        rows = "".join(f"{a}\t{b}\t{i % step}\n" for i, (a, b) in enumerate(zip(texts, texts[step:])))
        (tmp_path / f"{name}.tsv").write_text("sentence1\tsentence2\tscore\n" + rows)
    config, _ = prepared(tmp_path, "avg", more=f"eval: {{path: {tmp_path}/a.tsv, every_steps: 3}}\n")
    config.write_text(config.read_text().replace("keep: 100}", "keep: 100, best_by: spearman}"))
    pretrain(config, "--run-dir", tmp_path / "run")
    (tmp_path / "a.tsv").write_text((tmp_path / "b.tsv").read_text())
    again = pretrain(config, "--run-dir", tmp_path / "run", "--resume", "--set", "train.epochs=4")
    assert "the best state so far does not count any more" in again.stderr
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    late = {line["step"]: line["spearman"] for line in lines if line["split"] == "eval" and line["step"] > 6}
    best = torch.load(tmp_path / "run/checkpoints/best.pt", weights_only=True)
    assert best["step"] in late and best["best"]["value"] == max(late.values())


@pytest.mark.parametrize("change, says", [
    (("avg", "mean"), "`avg`"),
    (("max_length: 16", "max_length: 65"), "64"),
    (("batch_size: 8", "batch_size: 1"), "2 sentences"),
    (("clip_norm: 1.0", "clip_norm: 0"), "train.clip_norm"),
    (("pooler: avg", "pooler: avg, mlp_only_train: false"), "mlp_only_train"),
    (("keep: 100", "keep: 100, best_by: spearman"), "eval"),
    (("keep: 100", "keep: 100, best_by: knn_accuracy"), "spearman"),
    (("corpus.txt", "nothing.txt"), "nothing.txt"),
    (("bert,", "nobert,"), "nobert"),
    (("pooler: avg, ", ""), "model.torchscript"),
    (("pooler: avg", "pooler: avg, torchscript: net.pt"), "leave one of them out"),
    (("pooler: avg", "torchscript: net.pt"), "net.pt"),
    (("data: {path:", "data: {text: a, positive: b, hard_negative: c, path:"), "a .txt has none"),
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
    changes = {"epochs: 2": "epochs: 8", "keep: 100": "keep: 2", "log_every: 1": "log_every: 1, group_by_length: true"}
    text = config.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    config.write_text(text)
    command = [sys.executable, ROOT / "scripts/kill_and_resume.py", "--kills", "5", "--folder", tmp_path / "runs", "--config", config]
    done = subprocess.run([*command, "--binary", BIN / "pretrain-text"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended after 5 kills, equal to the bit" in done.stdout
