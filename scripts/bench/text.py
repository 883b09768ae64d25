#!/usr/bin/env python3
"""Text training on the CPU against what people have: transformers and sentence-transformers with PyTorch, in turns, with as many threads.

    .venv/bin/python scripts/bench/text.py [--batch 64] [--length 32] [--lines 200000] [--turns 9] [--peer-only] [--quick]

A whole step of unsupervised SimCSE with all-MiniLM-L6-v2, in fp32 and bf16: dropout makes the two views, InfoNCE, backward pass, clipping, AdamW (PyTorch's fused
one). And sentences to token ids in chunks of 1,000. Needs scripts/fetch_data.py minilm and wordnet.
"""

import itertools
import os
import sys
import tempfile
from pathlib import Path

import paired

MODEL = paired.ROOT / "data/minilm"


def optimizer_of(net):
    import torch

    groups = [{"params": [p for p in net.parameters() if p.dim() > 1]}, {"params": [p for p in net.parameters() if p.dim() <= 1]}]
    return torch.optim.AdamW(groups, lr=3e-5, weight_decay=0.0, fused=True)


def plain_step(batch: int, length: int, bf16: bool):
    """As SimCSE's own code: both passes in one batch."""
    import torch
    from torch.nn import functional as F
    from transformers import AutoModel

    net = AutoModel.from_pretrained(MODEL, add_pooling_layer=False).train()
    optimizer = optimizer_of(net)
    ids = torch.randint(1000, 20_000, (batch, length))
    ids = torch.cat([ids, ids])
    labels = torch.arange(batch)

    def round_() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            z = net(input_ids=ids).last_hidden_state.mean(1)
        z = F.normalize(z.float())
        F.cross_entropy(z[:batch] @ z[batch:].T / 0.05, labels).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()

    return round_


def sentence_step(batch: int, length: int, bf16: bool):
    """A SentenceTransformer with MultipleNegativesRankingLoss, which passes each column by itself; no trainer around it."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(str(MODEL), device="cpu").train()
    loss, optimizer = MultipleNegativesRankingLoss(model, scale=20.0), optimizer_of(model)
    ids = torch.randint(1000, 20_000, (batch, length))

    def column() -> dict:
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}

    def round_() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            value = loss([column(), column()], None)
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return round_


def tokenize(file: str, length: str):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    lines = Path(file).read_text().splitlines()

    def round_() -> None:
        for begin in range(0, len(lines), 1000):
            tokenizer(lines[begin : begin + 1000], truncation=True, max_length=int(length))

    return round_


def peer(what: str, *words: str) -> None:
    os.environ |= {"TOKENIZERS_PARALLELISM": "true", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    if what == "tokenize":
        return paired.serve(tokenize(*words))
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.manual_seed(0)
    batch, length, precision = words
    step = {"transformers": plain_step, "sentence-transformers": sentence_step}[what]
    paired.serve(step(int(batch), int(length), precision == "bf16"))


def corpus(folder: Path, lines: int) -> Path:
    """So many different lines out of WordNet's."""
    texts = (paired.data("wordnet", "sentences.txt") / "sentences.txt").read_text().splitlines()
    file = folder / "corpus.txt"
    with file.open("w") as out:
        out.writelines(f"{text} {i}\n" for i, text in enumerate(itertools.islice(itertools.cycle(texts), lines)))
    return file


def main() -> None:
    args = paired.arguments(
        __doc__, "transformers", "+", quick={"batch": 2, "length": 8, "lines": 2000, "turns": 1}, batch=64, length=32, lines=200_000, turns=9
    )
    if args.peer:
        return peer(*args.peer)

    paired.data("minilm", "model.safetensors")
    bench = [] if args.peer_only else [paired.bench_binary("text")]
    record = paired.Comparison(
        "text",
        "Text: a SimCSE step, and tokens",
        f"""A whole step of unsupervised SimCSE with all-MiniLM-L6-v2 (6 layers, 384 wide), {args.batch} sentences of {args.length} tokens, twice each: dropout, InfoNCE at temperature
        0.05 one way, backward pass, clipping to norm 1, AdamW. `transformers` is its BertModel with SimCSE's loss and PyTorch's fused AdamW, both passes in one batch as ours;
        `sentence-transformers` is a SentenceTransformer with MultipleNegativesRankingLoss, which passes each column by itself, without its trainer, which would
        add to it. bf16 is autocast on all sides. And {args.lines:,} lines of WordNet to token ids of at most {args.length}, in chunks of 1,000, against transformers' fast tokenizer.""",
        args,
        ("transformers", "sentence-transformers", "tokenizers"),
    )
    peers = ("transformers", "sentence-transformers")
    for threads in paired.thread_counts():
        top = threads == len(paired.cores())
        for precision in ("fp32", "bf16"):
            words = [args.batch, args.length, precision]
            commands = {"ours": [*bench, "step", MODEL, *words]} if bench else {}
            commands |= {name: [sys.executable, __file__, "--peer", name, *words] for name in peers}
            took = paired.in_turns(commands, threads, args.turns if top else max(1, args.turns // 2))
            record.add(f"SimCSE step, {precision}, {threads} threads", took, headline={n: n for n in peers} if top else None)
        with tempfile.TemporaryDirectory() as folder:
            file = corpus(Path(folder), args.lines)
            commands = {"ours": [*bench, "tokenize", MODEL, args.length, file]} if bench else {}
            commands["transformers"] = [sys.executable, __file__, "--peer", "tokenize", file, args.length]
            took = paired.in_turns(commands, threads, max(1, args.turns // 3))
            record.add(f"{args.lines:,} lines to tokens, {threads} threads", took, headline={"transformers": "transformers"} if top else None)
    if not args.peer_only:
        record.finish()


if __name__ == "__main__":
    main()
