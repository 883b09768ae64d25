#!/usr/bin/env python3
"""Writes a model as a TorchScript module that weince trains in place, and a JSON beside it that says what it is.

    scripts/export_backbone.py torchvision:resnet50 --out resnet50.pt [--stem imagenet|small] [--image-size N]
    scripts/export_backbone.py timm:vit_small_patch16_224 --out vit.pt [--image-size N]
    scripts/export_backbone.py transformers:FOLDER --out bert.pt [--pool cls|avg] [--random-init]
    scripts/export_backbone.py --entry package.module:function --input-shape 3,32,32 --out own.pt [--path DIR] [--trace]

Images give features (B, F): classifiers are left out. Text (input_ids and attention_mask, int64 (B, L)) gives the last hidden state
(B, L, H), or (B, H) with --pool. The parameters and buffers keep the names that they have in their library, so what weince trained
loads there strictly. Weights are random with --seed, or come from --weights FILE (a state_dict of torch.save, or safetensors), from
--pretrained (fetched by the library) or from transformers' FOLDER.

Models are scripted, so that dropout and BatchNorm follow train() and eval(). BERT and its kin cannot be: they are traced with
dropouts that are scripted. What was written is loaded again and compared with its source before it takes its place: names, values,
eval() outputs, what train() changes, other batch sizes and lengths, and no mode and no device fixed in the graph.

F.json beside F.pt: input, output_shape (null: any size), features, preprocessing, source, stem, weights, weights_sha256 (over each
name in order and its raw bytes), parameters, versions. Exit code 0: both are written; 1: failed; 2: usage; 130: interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import difflib
import hashlib
import importlib
import inspect
import itertools
import json
import pickle
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

# The largest difference between an output of the source and of what was written: kernels may sum in another order, no more.
TOLERANCE = 1e-5
# What others put before the names of a backbone.
PREFIXES = ("module.", "encoder.", "backbone.", "model.")
# The texts that transformers can be asked for, and whether they count positions from the left, whatever is padding.
TEXT_MODELS = {"bert": True, "electra": True, "distilbert": True, "roberta": False, "xlm-roberta": False, "camembert": False}
# Names whose configuration is that of their type's defaults.
DEFAULT_CONFIGS = {"bert-base-uncased": "bert"}
# Options that only some sources have.
OPTIONS_OF = {
    "stem": ["torchvision"],
    "image_size": ["torchvision", "timm"],
    "pretrained": ["torchvision", "timm", "transformers"],
    "random_init": ["transformers"],
    "pool": ["transformers"],
    "input_shape": ["--entry"],
    "path": ["--entry"],
    "trace": ["--entry"],
}


class Failed(Exception):
    """An export that cannot be made, with the reason and what to try."""


@dataclass
class Backbone:
    """A model with the behaviour to be kept, how to make a module for TorchScript of it, and what is to be said of it."""

    model: nn.Module
    compile: Callable[[], torch.jit.ScriptModule]
    example: Callable[[int, int], tuple[Tensor, ...]]  # inputs of a batch size and, for text, of a length
    input: dict
    weights: str | dict
    preprocessing: dict | None = None
    head: tuple[str, ...] = ()  # starts of names of what was left out of the model: weights may have them
    library: ModuleType | None = None


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def short(items: list[str], most: int = 5) -> str:
    rest = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + rest


def lines_of(error: BaseException, most: int = 1) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:most]) or type(error).__name__


def library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Failed(f"{name} cannot be imported ({lines_of(error)}); pip install {name.partition('.')[0]}") from error


def unknown(source: str, name: str, known: list[str]) -> Failed:
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return Failed(f"{source}: this script knows no such model of {source.partition(':')[0]}; others by --entry" + (f"; did you mean {' or '.join(close)}?" if close else ""))


def unmade(source: str, error: Exception, pretrained: bool) -> Failed:
    if not pretrained:
        return Failed(f"{source}: {lines_of(error)}")
    return Failed(
        f"{source}: the pretrained weights could not be fetched ({lines_of(error)}); "
        "without a network, give them as a file with --weights, or as a folder to transformers"
    )


def sha256(path: Path) -> str:
    value = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            value.update(block)
    return value.hexdigest()


def sha256_of_state(state: dict[str, Tensor]) -> str:
    value = hashlib.sha256()
    for name in sorted(state):
        value.update(name.encode())
        value.update(state[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return value.hexdigest()


# Sources


def script(model: nn.Module, advice: str) -> torch.jit.ScriptModule:
    try:
        return torch.jit.script(model)
    except Exception as error:  # The compiler raises errors of a dozen kinds, and runs code of the module's author.
        say("  " + "\n  ".join(str(error).strip().splitlines()[:12]))
        raise Failed(f"{type(model).__name__} cannot be scripted: {lines_of(error)}; {advice}") from error


def trace(model: nn.Module, example: tuple[Tensor, ...]) -> torch.jit.ScriptModule:
    """Traces in train(), as a dropout that is off would leave nothing in the graph that could be found."""
    try:
        return torch.jit.trace(model.train(), example, check_trace=False)
    except Exception as error:  # It runs code of the module's author.
        raise Failed(f"{type(model).__name__} cannot be traced: {lines_of(error, 3)}") from error


def images(*shape: int) -> tuple[Callable[[int, int], tuple[Tensor, ...]], dict]:
    return lambda batch, _length: (torch.randn(batch, *shape),), {"shape": list(shape), "dtype": "float32"}


def from_torchvision(name: str, args: argparse.Namespace) -> Backbone:
    torchvision = library("torchvision")
    source, models = f"torchvision:{name}", torchvision.models
    small = args.stem == "small"
    resnets = [known for known in models.list_models(models) if "resne" in known]
    if name not in resnets:
        raise unknown(source, name, resnets)
    published = models.get_model_weights(name).DEFAULT
    try:
        model = models.get_model(name, weights=published if args.pretrained else None)
    except Exception as error:  # Of torch.hub or of the network.
        raise unmade(source, error, args.pretrained) from error
    model.fc = nn.Identity()
    if small:
        model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        model.maxpool = nn.Identity()
    size = args.image_size or (32 if small else 224)
    example, described = images(3, size, size)
    transforms = published.transforms()
    return Backbone(
        model=model,
        compile=lambda: script(model, "another version of torchvision may help"),
        example=example,
        input=described,
        weights=str(published) if args.pretrained else f"random, seed {args.seed}",
        preprocessing=None if small else preprocessing(transforms.mean, transforms.std, transforms.interpolation.value),
        head=("fc.",),
        library=torchvision,
    )


def preprocessing(mean: list[float], std: list[float], interpolation: str) -> dict:
    return {"mean": list(mean), "std": list(std), "interpolation": interpolation}


def from_timm(name: str, args: argparse.Namespace) -> Backbone:
    timm = library("timm")
    source = f"timm:{name}"
    if not timm.is_model(name):
        raise unknown(source, name, timm.list_models())
    published = timm.get_pretrained_cfg(name)
    # Models that are made for one size take another as an argument; the others take images of any size.
    sized = {"img_size": args.image_size} if args.image_size and published.fixed_input_size else {}
    try:
        model = timm.create_model(name, pretrained=args.pretrained, num_classes=0, scriptable=True, **sized)
    except Exception as error:  # Of timm, of its hub's client, or of the network.
        raise unmade(source, error, args.pretrained) from error
    data = timm.data.resolve_model_data_config(model)
    channels, height, width = data["input_size"]
    example, described = images(channels, args.image_size or height, args.image_size or width)
    classifier = published.classifier or ()
    return Backbone(
        model=model,
        compile=lambda: script(model, "take another model of timm, or change this one in a function of your own for --entry"),
        example=example,
        input=described,
        weights=f"{published.architecture}.{published.tag}" if args.pretrained else f"random, seed {args.seed}",
        preprocessing=preprocessing(data["mean"], data["std"], data["interpolation"]),
        head=tuple(f"{part}." for part in ([classifier] if isinstance(classifier, str) else classifier)),
        library=timm,
    )


class Dropout(nn.Module):
    """What nn.Dropout does, to be scripted inside a model that is traced: the trace calls it, and it reads its own mode."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(x, self.p, self.training)


def attention_with_live_dropout(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **_):
    """transformers' eager attention, but with the module's own dropout: `dropout` is a number that the trace would keep."""
    scores = query @ key.transpose(2, 3) * (query.size(-1) ** -0.5 if scaling is None else scaling) + attention_mask
    weights = module.dropout(scores.softmax(-1))
    return (weights @ value).transpose(1, 2).contiguous(), weights


def pooled(hidden: Tensor, attention_mask: Tensor, pool: str | None) -> Tensor:
    if pool == "cls":
        return hidden[:, 0]
    if pool == "avg":
        return (hidden * attention_mask[:, :, None]).sum(1) / attention_mask.sum(1, keepdim=True).clamp(min=1)
    return hidden


def trace_text(model: nn.Module, stock: type, pool: str | None, example: tuple[Tensor, ...]) -> torch.jit.ScriptModule:
    """Traces a copy of a text model of class `stock`, which never learns mode, device, batch size or length as constants."""
    import transformers

    by_index = TEXT_MODELS[model.config.model_type]
    with_types = "token_type_ids" in inspect.signature(stock.forward).parameters

    class Traced(stock):
        def forward(self, input_ids, attention_mask):
            # Tensors made of the inputs are where the inputs are; arange, zeros or masks of the library would name a device.
            more = {"token_type_ids": input_ids * 0} if with_types else {}
            if by_index:
                more["position_ids"] = (input_ids[:1] * 0 + 1).cumsum(1) - 1
            mask = (attention_mask[:, None, None, :] == 0) * torch.finfo(torch.float32).min
            hidden = super().forward(input_ids=input_ids, attention_mask=mask, **more).last_hidden_state
            return pooled(hidden, attention_mask, pool)

    model = copy.deepcopy(model)
    model.__class__ = Traced
    transformers.AttentionInterface.register("live_dropout", attention_with_live_dropout)
    model.set_attn_implementation("live_dropout")
    for owner in list(model.modules()):
        for name, child in owner.named_children():
            if isinstance(child, nn.Dropout):
                setattr(owner, name, torch.jit.script(Dropout(child.p)))
        # The ids that are given now were these buffers, which are not in the state_dict; TorchScript would put them there.
        for name in owner._non_persistent_buffers_set.copy():
            delattr(owner, name)
    with warnings.catch_warnings():
        # Of comparisons of sizes, whose outcome is the same for every text.
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return trace(model, example)


def from_transformers(name: str, args: argparse.Namespace) -> Backbone:
    transformers = library("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    source, folder = f"transformers:{name}", Path(name)
    random_init = args.random_init or args.weights is not None
    if not folder.is_dir() and not random_init and not args.pretrained:
        raise Failed(
            f"{source}: there is no such folder; --pretrained fetches a model of that name, --random-init needs its configuration only"
        )
    try:
        if random_init and name in DEFAULT_CONFIGS and not folder.is_dir():
            config = transformers.AutoConfig.for_model(DEFAULT_CONFIGS[name])
        else:
            config = transformers.AutoConfig.from_pretrained(name, local_files_only=not args.pretrained)
    except (OSError, ValueError) as error:
        raise Failed(f"{source}: no configuration: {lines_of(error)}; known without files: {short(list(DEFAULT_CONFIGS))}") from error
    if config.model_type not in TEXT_MODELS:
        raise Failed(f"{source}: its type is {config.model_type!r}, expected one of {', '.join(TEXT_MODELS)}; --entry takes others")
    if random_init:
        model, weights = transformers.AutoModel.from_config(config, dtype=torch.float32), f"random, seed {args.seed}"
    else:
        try:
            model, found = transformers.AutoModel.from_pretrained(
                name, local_files_only=not args.pretrained, dtype=torch.float32, output_loading_info=True
            )
        except Exception as error:  # Of transformers, of its hub's client, of the network, or of a file's reader.
            raise unmade(source, error, args.pretrained) from error
        missing = sorted(key for key in found["missing_keys"] if not key.startswith("pooler."))
        if missing:
            raise Failed(f"{source}: its weights lack {short(missing)}; --random-init takes the configuration only")
        files = [*folder.glob("model*.safetensors")] or [*folder.glob("pytorch_model*.bin")]
        weights = {"file": str(files[0]), "sha256": sha256(files[0])} if len(files) == 1 else name
    model.pooler = None

    stock = type(model)

    class Source(stock):
        """The model as it is, with the inputs and the output of a backbone."""

        def forward(self, input_ids, attention_mask):
            hidden = super().forward(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return pooled(hidden, attention_mask, args.pool)

    model.__class__ = Source
    longest = config.max_position_embeddings - (0 if TEXT_MODELS[config.model_type] else config.pad_token_id + 1)

    def example(batch: int, length: int) -> tuple[Tensor, ...]:
        length = min(length, longest)
        mask = torch.ones(batch, length, dtype=torch.int64)
        mask[0, length // 2 + 1 :] = 0
        return torch.randint(config.vocab_size, (batch, length)), mask

    return Backbone(
        model=model,
        compile=lambda: trace_text(model, stock, args.pool, example(2, 8)),
        example=example,
        input={
            "names": ["input_ids", "attention_mask"],
            "shape": [None],
            "dtype": "int64",
            "vocab_size": config.vocab_size,
            "max_length": longest,
        },
        weights=weights,
        head=("pooler.", "cls."),
        library=transformers,
    )


def from_entry(entry: str, args: argparse.Namespace) -> Backbone:
    module_name, _, function_name = entry.partition(":")
    folders = [str(path) for path in (args.path, Path.cwd()) if path]
    sys.path[:0] = folders
    try:
        model = getattr(importlib.import_module(module_name), function_name)()
    except Exception as error:  # It is the user's code.
        looked = f"; imported from {', '.join(folders)} and from what is installed"
        raise Failed(f"--entry {entry}: {type(error).__name__}: {lines_of(error)}{looked}") from error
    if not isinstance(model, nn.Module):
        raise Failed(f"--entry {entry}: it gave {type(model).__name__}, expected torch.nn.Module")
    example, described = images(*args.input_shape)
    advice = "annotate what is not a Tensor, keep to torch in forward and drop *args, **kwargs; or try --trace"
    return Backbone(
        model=model,
        compile=lambda: trace(copy.deepcopy(model), example(2, 0)) if args.trace else script(model, advice),
        example=example,
        input=described,
        weights=f"as {entry} made them, seed {args.seed}",
    )


SOURCES = {"torchvision": from_torchvision, "timm": from_timm, "transformers": from_transformers, "--entry": from_entry}


# Weights


def read_weights(path: Path) -> dict[str, Tensor]:
    safe = library("safetensors.torch") if path.suffix == ".safetensors" else None
    try:
        state = safe.load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise Failed(f"{path}: it is no file of torch.save that holds only tensors; save model.state_dict()") from error
    except Exception as error:  # Of two readers: damaged files end in errors of many kinds.
        raise Failed(f"{path}: {lines_of(error)}") from error
    while isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise Failed(f"{path}: expected names with tensors, alone or under 'state_dict'; save model.state_dict()")
    return state


def load_weights(model: nn.Module, path: Path, head: tuple[str, ...]) -> dict:
    """Loads a file strictly: all that the model has, nothing that it lacks but its head and what is beside the backbone."""
    state, expected = read_weights(path), model.state_dict()
    prefixes = ["".join(parts) for count in range(4) for parts in itertools.product(PREFIXES, repeat=count)]
    prefix = max(prefixes, key=lambda prefix: sum(prefix + name in state for name in expected))
    inside = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    beside = [name for name in state if not name.startswith(prefix)]
    left_out = [name for name in inside if name not in expected and name.startswith(head)]
    missing = [name for name in expected if name not in inside]
    unexpected = [name for name in inside if name not in expected and name not in left_out]
    shapes = [
        f"{name} {list(inside[name].shape)} expected {list(value.shape)}"
        for name, value in expected.items()
        if name in inside and inside[name].shape != value.shape
    ]
    problems = {"missing": missing, "unexpected": unexpected, "of another shape": shapes}
    found = [f"{kind}: {short(names)}" for kind, names in problems.items() if names]
    if found:
        raise Failed(f"{path}: the weights are not those of this model; {'; '.join(found)}")
    if beside or left_out:
        say(f"{path}: left out {short(beside + left_out)}")
    model.load_state_dict({name: inside[name] for name in expected}, strict=True)
    return {"file": str(path), "sha256": sha256(path)}


# Checks of what was written


def nodes_of(block) -> Iterator:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from nodes_of(inner)


def place(node) -> str:
    """The node and the line that it comes from: the innermost one outside torch itself, if the file has it."""
    found = re.findall(r'([^\s"]+\.py)(?:\((\d+)\)|", line (\d+))', node.sourceRange())
    inner = [line for line in found if "/torch/" not in line[0]] or found
    return f"{node.kind()} of {inner[0][0]}:{inner[0][1] or inner[0][2]}" if inner else node.kind()


def constant(value) -> object:
    """The value if it is a constant, else None."""
    return value.toIValue() if value is not None and value.node().kind() == "prim::Constant" else None


def is_none(value) -> bool:
    return value.type().kind() == "NoneType" or value.node().mustBeNone()


def attribute_path(node) -> str:
    owner = node.input().node()
    return (attribute_path(owner) + "." if owner.kind() == "prim::GetAttr" else "") + node.s("name")


def inputs_of(node) -> dict:
    """A node's inputs by their names in the operator's schema."""
    if node.schema() == "(no schema)":
        return {}
    return dict(zip((argument.name for argument in torch._C.parse_schema(node.schema()).arguments), node.inputs()))


def modes_in(node) -> list[str]:
    """Where an operator that has a mode gets it as a constant."""
    inputs = inputs_of(node)
    training, mean = constant(inputs.get("training", inputs.get("train"))), inputs.get("running_mean")
    # A dropout of nothing, and batch statistics where none are kept, are the same in both modes.
    harmless = constant(inputs.get("p", inputs.get("dropout"))) == 0 or (mean is not None and is_none(mean))
    if training is not None and not harmless:
        return [f"{place(node)} (always as in {'train' if training else 'eval'}())"]
    return [f"{place(node)} (its dropout always as in train())"] if constant(inputs.get("dropout_p")) else []


def devices_in(node, state: dict[str, Tensor]) -> list[str]:
    """Where a device, or a tensor that does not move with the module, is in the graph."""
    kind = node.kind()
    if kind == "prim::Constant" and node.outputsSize() == 1:
        value, users = node.output().toIValue(), [place(use.user) for use in node.output().uses()]
        if isinstance(value, torch.device):
            return [f'"{value}" in {user}' for user in users]
        if isinstance(value, Tensor) and value.dim() > 0:
            return [f"a tensor {list(value.shape)} of the trace in {user}" for user in users]
    if kind == "prim::GetAttr" and node.output().type().kind() == "TensorType" and attribute_path(node) not in state:
        return [f"the tensor {attribute_path(node)}, neither parameter nor buffer, in {place(node)}"]
    # A factory without a device makes its tensor where torch's default is; beside a tensor it follows that tensor.
    inputs = inputs_of(node)
    if "device" in inputs and is_none(inputs["device"]) and all(value.type().kind() != "TensorType" for value in inputs.values()):
        return [f"torch's default device in {place(node)}"]
    return [place(node)] if kind in ("aten::cpu", "aten::cuda") else []


def check_graph(module: torch.jit.ScriptModule) -> None:
    """Refuses a graph in which a mode or a device is a constant."""
    graph, state = module.inlined_graph, module.state_dict()
    modes = {text for node in nodes_of(graph) for text in modes_in(node)}
    if modes:
        raise Failed(
            f"the mode is fixed in the graph, train() and eval() would not reach it: {short(sorted(modes))}; "
            "script the module instead of tracing it, or have its dropout in a scripted module that passes self.training"
        )
    devices = {text for node in nodes_of(graph) for text in devices_in(node, state)}
    if devices:
        raise Failed(
            f"a device is fixed in the graph, so the module would not run on another: {short(sorted(devices))}; "
            "make tensors of the inputs (device=x.device in a scripted module, x.new_zeros, x * 0), or register them as buffers"
        )


def check_state(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    extra = [name for name in found if name not in expected]
    if extra:
        raise Failed(
            f"the module has {short(extra)}, which the source's state_dict has not: TorchScript takes buffers of persistent=False for "
            "persistent, so that its weights would not load strictly in the source; make them persistent, or compute them in forward"
        )
    wrong = [name for name, value in expected.items() if name not in found or not torch.equal(found[name], value)]
    if wrong:
        raise Failed(f"the module lacks or changed {short(wrong)} of the source's state_dict")


def output_of(who: str, model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
    shapes = " and ".join(str(list(x.shape)) for x in inputs)
    try:
        output = model(*inputs)
    except Exception as error:  # The model's own code. TorchScript puts the reason last.
        reason = str(error).strip().splitlines()[-1] if isinstance(model, torch.jit.ScriptModule) else lines_of(error)
        raise Failed(f"{who} fails on inputs of {shapes}: {reason}") from error
    if not isinstance(output, Tensor) or output.dim() < 2 or len(output) != len(inputs[0]):
        found = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise Failed(f"{who} gives {found} for inputs of {shapes}, expected one tensor (batch, ..., features)")
    return output


def changes(who: str, model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[bool, set[str]]:
    """What train() changes in a model: whether its output, and which of its buffers one pass moves. Leaves it in train()."""
    plain = output_of(who, model.eval(), inputs)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    output = output_of(f"{who} in train()", model.train(), inputs)
    return not torch.equal(output, plain), {name for name, buffer in model.named_buffers() if not torch.equal(buffer, before[name])}


def is_random(model: nn.Module, inputs: tuple[Tensor, ...], passes: int) -> bool:
    first = model(*inputs)
    return any(not torch.equal(model(*inputs), first) for _ in range(passes))


def check_train(module: torch.jit.ScriptModule, source: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Refuses a module in which train() does not change what it changes in the source."""
    wanted_changed, wanted_moved = changes("the source", source, inputs)
    changed, moved = changes("the exported module", module, inputs)
    if moved != wanted_moved:
        raise Failed(f"train(): statistics do not move as in the source: {short(sorted(moved ^ wanted_moved))}; script the module")
    random = is_random(source, inputs, 3)
    # A path that is seldom dropped takes some passes to show, and the module must not fail by chance.
    same = is_random(module, inputs, 16) if random else changed == wanted_changed
    if not same:
        raise Failed("train(): the output does not change as in the source; script the module, or have its dropout in a scripted module")
    say(f"train(): {'random' if random else 'not random'}, {len(moved)} buffers move, as in the source")


def verify(path: Path, backbone: Backbone) -> list[int | None]:
    """Loads what was written and holds it against its source; gives the shape of the output, with None for what varies."""
    module, source = torch.jit.load(path, map_location="cpu"), backbone.model
    check_graph(module)
    check_state(module.state_dict(), source.state_dict())
    module.eval()
    source.eval()
    # No size is that of a trace. Twice, as the executor runs another program after it has seen its inputs.
    examples = [backbone.example(3, 12), backbone.example(1, 5)]
    differences, shapes = [], []
    for inputs in 2 * examples:
        wanted = output_of("the source", source, inputs)
        found = output_of("the exported module (a trace keeps sizes that forward reads)", module, inputs)
        if found.shape != wanted.shape:
            raise Failed(f"eval(): the output is {list(found.shape)}, the source's {list(wanted.shape)}")
        differences.append((found - wanted).abs().max())
        shapes.append(found.shape)
    difference = torch.stack(differences).max().item()
    say(f"eval(): largest difference from the source {difference:.3g}")
    if not difference <= TOLERANCE:
        raise Failed(f"eval(): the output differs from the source's by up to {difference:.3g}, expected {TOLERANCE} at most")
    check_train(module, source, examples[0])
    return [one if one == other else None for one, other in zip(*shapes[:2])]


def export(backbone: Backbone, source: str, stem: str | None, out: Path) -> None:
    """Writes the module and its JSON beside their places, verifies the module, then puts both there."""
    described = out.with_suffix(".json")
    part, described_part = (path.with_name(path.name + ".part") for path in (out, described))
    weights_sha256 = sha256_of_state(backbone.model.state_dict())  # Before checks that train it.
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            torch.jit.save(backbone.compile(), file)
        with torch.no_grad():
            output_shape = verify(part, backbone)
        versions = {module.__name__: module.__version__ for module in (torch, backbone.library) if module}
        description = {
            "source": source,
            "stem": stem,
            "input": backbone.input,
            "output_shape": output_shape,
            "features": output_shape[-1],
            "preprocessing": backbone.preprocessing,
            "weights": backbone.weights,
            "weights_sha256": weights_sha256,
            "parameters": sum(parameter.numel() for parameter in backbone.model.parameters()),
            "versions": versions,
        }
        described_part.write_text(json.dumps(description, indent=2) + "\n")
        part.replace(out)
        described_part.replace(described)
    except Failed as error:
        raise Failed(f"{source}: {error}") from error
    finally:
        part.unlink(missing_ok=True)
        described_part.unlink(missing_ok=True)


# Command line


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        say(f"error: {message}")
        sys.exit(2)


def size(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def shape(text: str) -> list[int]:
    return [size(part) for part in text.split(",")]


def arguments() -> tuple[argparse.Namespace, str, str]:
    """The options, the kind of source and the name in it."""
    parser = Parser(description="Writes a model as a TorchScript module that weince trains in place, and a JSON beside it.")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="torchvision:NAME, timm:NAME or transformers:FOLDER_OR_NAME")
    parser.add_argument("--entry", metavar="MODULE:FUNCTION", help="instead of MODEL, a function of yours that gives a torch.nn.Module")
    parser.add_argument("--out", type=Path, required=True, metavar="F.pt", help="the file to write; F.json is written beside it")
    parser.add_argument("--force", action="store_true", help="replace files that are there")
    weights = parser.add_mutually_exclusive_group()
    weights.add_argument("--weights", type=Path, metavar="FILE", help="a state_dict of torch.save, or safetensors")
    weights.add_argument("--pretrained", action="store_true", help="the weights that the library fetches")
    weights.add_argument("--random-init", action="store_true", help="transformers: the configuration only, weights random")
    parser.add_argument("--seed", type=int, default=0, help="of random weights (default: 0)")
    parser.add_argument("--stem", choices=["imagenet", "small"], help="torchvision: small is 3x3 without pooling (default: imagenet)")
    parser.add_argument("--image-size", type=size, metavar="N", help="torchvision, timm: height and width")
    parser.add_argument("--pool", choices=["cls", "avg"], help="transformers: one vector a text instead of one a token")
    parser.add_argument("--input-shape", type=shape, metavar="C,H,W", help="--entry: shape of an input without the batch")
    parser.add_argument("--path", type=Path, metavar="DIR", help="--entry: where to import from, beside the current folder")
    parser.add_argument("--trace", action="store_true", help="--entry: trace instead of scripting")
    args = parser.parse_args()

    if (args.model is None) == (args.entry is None):
        parser.error("expected either MODEL or --entry MODULE:FUNCTION")
    kind, _, name = ("--entry", ":", args.entry) if args.entry else args.model.partition(":")
    if kind not in SOURCES or not name:
        parser.error(f"MODEL is {args.model!r}, expected torchvision:NAME, timm:NAME or transformers:FOLDER_OR_NAME")
    for option, kinds in OPTIONS_OF.items():
        if getattr(args, option) and kind not in kinds:
            parser.error(f"--{option.replace('_', '-')} is for {', '.join(kinds)}, not for {kind}")
    if kind == "--entry" and not all(args.entry.partition(":")):
        parser.error(f"--entry is {args.entry!r}, expected MODULE:FUNCTION")
    if kind == "--entry" and not args.input_shape:
        parser.error("--entry needs --input-shape, such as 3,32,32")
    if args.pretrained and args.stem == "small":
        parser.error("--pretrained weights are for --stem imagenet")
    if args.out.suffix == ".json":
        parser.error(f"--out is {args.out}, which is where the JSON goes; expected such as F.pt")
    if kind == "torchvision":
        args.stem = args.stem or "imagenet"
    return args, kind, name


def main() -> int:
    args, kind, name = arguments()
    # torch.jit is deprecated in Python, but it is what C++ loads; the libraries warn of their own plans.
    warnings.simplefilter("ignore", DeprecationWarning)
    warnings.simplefilter("ignore", FutureWarning)
    try:
        for path in (args.out, args.out.with_suffix(".json")):
            if path.exists() and not args.force:
                raise Failed(f"{path}: it is there; --force replaces it")
        torch.manual_seed(args.seed)
        # What libraries and the user's code print is no result.
        with contextlib.redirect_stdout(sys.stderr):
            backbone = SOURCES[kind](name, args)
            if args.weights:
                backbone.weights = load_weights(backbone.model, args.weights, backbone.head)
            export(backbone, args.model or f"entry:{name}", args.stem, args.out)
    except (Failed, OSError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; nothing is written")
        return 130
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
