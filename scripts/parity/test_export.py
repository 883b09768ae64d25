"""scripts/export_backbone.py: what it writes is the model of its library, trains as it does, and what would not is refused."""

import hashlib
import json
import pathlib
import subprocess
import sys
import textwrap

import pytest
import timm
import torch
import torchvision
import transformers
from safetensors.torch import save_file
from torch import nn

import script_module

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "export_backbone.py"
BERT = {"vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY = {
    "bert": {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 24, **BERT},
    "electra": {"hidden_size": 16, "embedding_size": 8, "intermediate_size": 32, "max_position_embeddings": 24, **BERT},
    "roberta": {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 26, **BERT},
    "distilbert": {"dim": 16, "hidden_dim": 32, "n_layers": 2, "n_heads": 2, "vocab_size": 50, "max_position_embeddings": 24},
}
# Modules of a user, each with one property.
OWN = """
    import torch
    from torch import Tensor, nn

    class Net(nn.Module):
        def __init__(self, *layers):
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), *layers)
            self.plain = torch.ones(8)
            self.register_buffer("lost", torch.ones(8), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    class Sized(Net):
        def forward(self, x):
            return self.layers(x)[: int(x.shape[0] * 1.0)]

    class Moved(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x.to("cpu"))

    class Default(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x) + torch.zeros(8)

    class Attribute(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x) + self.plain

    class Functional(Net):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(self.layers(x), 0.5)

    class Fused(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = self.layers(x).view(-1, 1, 1, 8)
            p = 0.5 if self.training else 0.0
            return nn.functional.scaled_dot_product_attention(y, y, y, dropout_p=p).view(-1, 8)

    class Branch(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x) + 1 if self.training else self.layers(x)

    class Silent(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = self.layers(x)
            if torch.jit.is_scripting():
                return y
            return nn.functional.dropout(y, 0.5, self.training)

    class Still(Net):
        def forward(self, x: Tensor) -> Tensor:
            if self.training and not torch.jit.is_scripting():
                self.lost += 1
            return self.layers(x)

    class Tuple(Net):
        def forward(self, x: Tensor):
            return self.layers(x), x

    class Free(Net):
        def forward(self, *x):
            return self.layers(x[0])

    def without_lost(kind, *layers):
        net = kind(*layers)
        del net.lost
        return net

    def plain(): return without_lost(Net)
    def dropout(): return without_lost(Net, nn.Dropout(0.5))
    def norm(): return without_lost(Net, nn.BatchNorm1d(8))
    def lost(): return Net()
    def sized(): return without_lost(Sized)
    def moved(): return without_lost(Moved)
    def default(): return without_lost(Default)
    def attribute(): return without_lost(Attribute)
    def functional(): return without_lost(Functional)
    def fused(): return without_lost(Fused)
    def branch(): return without_lost(Branch)
    def silent(): return without_lost(Silent)
    def still():
        net = without_lost(Still)
        net.register_buffer("lost", torch.zeros(1))
        return net
    def pair(): return without_lost(Tuple)
    def free(): return without_lost(Free)
    def number(): return 1
    def broken(): raise RuntimeError("no such data")
    def vit():
        import timm
        rates = dict(proj_drop_rate=0.1, attn_drop_rate=0.1, drop_path_rate=0.3)
        return timm.create_model("test_vit", num_classes=0, img_size=32, scriptable=True, **rates)
"""


@pytest.fixture(scope="session")
def script():
    return script_module.load("export_backbone")


@pytest.fixture
def export(script, tmp_path, monkeypatch, capsys):
    """Runs the script in this process, in an empty folder with OWN as own.py: its exit code, the last line of stderr, F.pt, F.json."""
    (tmp_path / "own.py").write_text(textwrap.dedent(OWN))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.delitem(sys.modules, "own", raising=False)

    def run(*args):
        monkeypatch.setattr(sys, "argv", ["export_backbone.py", "--out", "f.pt", *map(str, args)])
        try:
            code = script.main()
        except SystemExit as stopped:
            code = stopped.code
        printed = capsys.readouterr()
        assert printed.out == ("f.pt\n" if code == 0 else "")
        said = printed.err.strip().splitlines()
        if code == 0:
            assert not any(tmp_path.glob("*.part"))
            return torch.jit.load("f.pt"), json.loads(pathlib.Path("f.json").read_text())
        assert not any(line.startswith(("Traceback", "error:")) for line in said[:-1])
        return code, said[-1]

    return run


def own(name, *more):
    return ["--entry", f"own:{name}", "--input-shape", "3,2,2", *more]


def same_state(module, model):
    """The library's model takes the module's weights strictly, in its own order."""
    state = module.state_dict()
    assert list(state) == list(model.state_dict())
    model.load_state_dict(state, strict=True)
    return model.eval()


def digest(state):
    value = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        value.update(name.encode() + tensor.numpy().tobytes())
    return value.hexdigest()


def runs_elsewhere(x):
    """On a device without numbers, as this machine may have no other."""
    assert torch.jit.load("f.pt", map_location="meta")(x.to("meta")).device.type == "meta"


def batch_norm_is_live(module, x):
    mean = module.state_dict()["bn1.running_mean"].clone()
    module.eval()(x)
    assert torch.equal(module.state_dict()["bn1.running_mean"], mean)
    module.train()(x)
    assert not torch.equal(module.state_dict()["bn1.running_mean"], mean)


@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_torchvision(export, stem):
    module, described = export("torchvision:resnet18", "--stem", stem, "--image-size", 32, "--seed", 3)
    model = torchvision.models.resnet18()
    model.fc = nn.Identity()
    if stem == "small":
        model.conv1, model.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    same_state(module, model)
    x = torch.randn(4, 3, 48, 48)
    with torch.no_grad():
        assert module.eval()(x).shape == (4, 512)
        torch.testing.assert_close(module(x), model(x), rtol=0, atol=1e-5)
    transforms = torchvision.models.ResNet18_Weights.DEFAULT.transforms()
    assert described == {
        "source": "torchvision:resnet18",
        "stem": stem,
        "input": {"shape": [3, 32, 32], "dtype": "float32"},
        "output_shape": [None, 512],
        "features": 512,
        # The library knows no transforms for the small stem.
        "preprocessing": {"mean": transforms.mean, "std": transforms.std, "interpolation": "bilinear"} if stem == "imagenet" else None,
        "weights": "random, seed 3",
        "weights_sha256": digest(model.state_dict()),
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {"torch": torch.__version__, "torchvision": torchvision.__version__},
    }
    batch_norm_is_live(module, x)
    runs_elsewhere(x)


def test_torchvision_resnet50_has_2048_features(export):
    module, described = export("torchvision:resnet50", "--stem", "small", "--image-size", 16)
    model = torchvision.models.resnet50()
    model.conv1, model.maxpool, model.fc = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity(), nn.Identity()
    same_state(module, model)
    assert described["features"] == 2048


def test_timm_vit_of_another_size(export):
    module, described = export("timm:vit_small_patch16_224", "--image-size", 32)
    model = same_state(module, timm.create_model("vit_small_patch16_224", num_classes=0, img_size=32))
    data = timm.data.resolve_model_data_config(model)
    with torch.no_grad():
        for batch in (1, 5):
            x = torch.randn(batch, 3, 32, 32)
            torch.testing.assert_close(module.eval()(x), model(x), rtol=0, atol=1e-5)
    runs_elsewhere(x)
    assert described["input"] == {"shape": [3, 32, 32], "dtype": "float32"} and described["output_shape"] == [None, 384]
    assert described["preprocessing"] == {"mean": list(data["mean"]), "std": list(data["std"]), "interpolation": "bicubic"}
    assert described["versions"] == {"torch": torch.__version__, "timm": timm.__version__} and described["stem"] is None


def test_timm_resnet_follows_its_mode(export):
    module, described = export("timm:resnet18", "--image-size", 32)
    model = same_state(module, timm.create_model("resnet18", num_classes=0))
    x = torch.randn(4, 3, 40, 40)
    with torch.no_grad():
        torch.testing.assert_close(module.eval()(x), model(x), rtol=0, atol=1e-5)
    assert described["features"] == 512
    batch_norm_is_live(module, x)


def test_attention_dropout_and_drop_path_of_timm_follow_the_mode(export):
    module, _ = export("--entry", "own:vit", "--input-shape", "3,32,32")
    model = same_state(module, timm.create_model("test_vit", num_classes=0, img_size=32))
    x = torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(module.eval()(x), model(x), rtol=0, atol=1e-5)
        assert not torch.equal(module.train()(x), module(x))


@pytest.mark.parametrize("kind", TINY)
def test_texts_of_transformers(export, kind):
    config = transformers.AutoConfig.for_model(kind, **TINY[kind])
    transformers.AutoModel.from_config(config).save_pretrained("text")
    module, described = export("transformers:text")
    model = transformers.AutoModel.from_pretrained("text").eval()
    model.pooler = None
    before = {name: value.clone() for name, value in model.state_dict().items()}
    same_state(module, model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        for batch, length in [(2, 8), (1, 1), (5, 24), (3, 13)]:
            ids, mask = torch.randint(50, (batch, length)), torch.ones(batch, length, dtype=torch.int64)
            mask[0, length // 2 + 1 :] = 0
            expected = model(input_ids=ids, attention_mask=mask).last_hidden_state
            torch.testing.assert_close(module.eval()(ids, mask), expected, rtol=0, atol=1e-5)
            # What is padding changes nothing elsewhere.
            other = torch.where(mask == 0, (ids + 7) % 50, ids)
            if kind != "roberta":  # It counts positions by the ids, so that other ids move them.
                torch.testing.assert_close(module(other, mask)[mask == 1], expected[mask == 1], rtol=0, atol=1e-5)
    file = pathlib.Path("text/model.safetensors")
    assert described["weights"] == {"file": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    assert described["input"] == {
        "names": ["input_ids", "attention_mask"],
        "shape": [None],
        "dtype": "int64",
        "vocab_size": 50,
        "max_length": 24,
    }
    assert described["output_shape"] == [None, None, 16] and described["features"] == 16 and described["preprocessing"] is None


def test_names_of_bert_are_those_without_pooler(export):
    config = transformers.BertConfig(**TINY["bert"])
    config.save_pretrained("text")
    module, described = export("transformers:text", "--random-init", "--seed", 5)
    same_state(module, transformers.BertModel(config, add_pooling_layer=False))
    assert described["weights"] == "random, seed 5"


@pytest.mark.parametrize("place", ["hidden", "attention"])
def test_each_dropout_of_bert_follows_the_mode_and_lets_gradients_pass(export, place):
    rates = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    rates["hidden_dropout_prob" if place == "hidden" else "attention_probs_dropout_prob"] = 0.3
    transformers.BertConfig(**TINY["bert"], **rates).save_pretrained("text")
    module, _ = export("transformers:text", "--random-init", "--pool", "avg")
    ids, mask = torch.randint(50, (4, 9)), torch.ones(4, 9, dtype=torch.int64)
    for _ in range(3):
        assert torch.equal(module.eval()(ids, mask), module(ids, mask))
        assert not torch.equal(module.train()(ids, mask), module(ids, mask))
    module(ids, mask).square().sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.parametrize("pool", ["cls", "avg"])
def test_pooled_texts(export, pool):
    transformers.BertConfig(**TINY["bert"]).save_pretrained("text")
    module, described = export("transformers:text", "--random-init", "--pool", pool)
    model = same_state(module, transformers.BertModel(transformers.BertConfig(**TINY["bert"]), add_pooling_layer=False))
    ids, mask = torch.randint(50, (3, 7)), torch.ones(3, 7, dtype=torch.int64)
    mask[1, 4:] = 0
    with torch.no_grad():
        hidden = model(input_ids=ids, attention_mask=mask).last_hidden_state
        rows = [h[0] if pool == "cls" else h[m == 1].mean(0) for h, m in zip(hidden, mask)]
        torch.testing.assert_close(module.eval()(ids, mask), torch.stack(rows), rtol=0, atol=1e-5)
    assert described["output_shape"] == [None, 16]


def test_bert_base_needs_no_file_for_its_configuration(export, monkeypatch):
    # Twelve layers of 768 would only take time here.
    for_model = transformers.AutoConfig.for_model
    monkeypatch.setattr(transformers.AutoConfig, "for_model", lambda kind: for_model(kind, num_hidden_layers=1, hidden_size=12))
    _, described = export("transformers:bert-base-uncased", "--random-init")
    assert described["input"]["vocab_size"] == 30522 and described["input"]["max_length"] == 512


@pytest.mark.parametrize("file", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("prefix", ["", "module.", "module.encoder.", "model.backbone."])
def test_weights_with_known_prefixes(export, file, prefix):
    export(*own("norm"), "--seed", 1)
    state = torch.jit.load("f.pt").state_dict()
    named = {prefix + name: value.clone() for name, value in state.items()}
    if file == "w.pt":
        torch.save({"epoch": 3, "state_dict": named}, file)
    else:
        save_file(named, file)
    module, described = export(*own("norm"), "--weights", file, "--seed", 2, "--force")
    assert all(torch.equal(value, state[name]) for name, value in module.state_dict().items())
    assert described["weights"] == {"file": file, "sha256": hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()}
    assert described["weights_sha256"] == digest(state)


def test_weights_of_whole_models_lose_heads_and_projectors(export):
    model = torchvision.models.resnet18()
    torch.save({f"encoder.{name}": value for name, value in model.state_dict().items()} | {"projector.weight": torch.ones(1)}, "w.pt")
    module, _ = export("torchvision:resnet18", "--image-size", 32, "--weights", "w.pt")
    state = module.state_dict()
    assert torch.equal(state["conv1.weight"], model.conv1.weight) and not any(name.startswith("fc.") for name in state)


def test_names_of_bert_that_look_like_a_prefix_stay(export):
    config = transformers.BertConfig(**TINY["bert"])
    config.save_pretrained("text")
    model = transformers.BertModel(config)
    torch.save({f"encoder.{name}": value for name, value in model.state_dict().items()}, "w.pt")
    module, _ = export("transformers:text", "--weights", "w.pt")
    name = "encoder.layer.1.output.dense.weight"
    assert torch.equal(module.state_dict()[name], model.state_dict()[name])


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda s: s.pop("layers.1.bias"), ["missing: layers.1.bias"]),
        (lambda s: s.update(other=torch.ones(1)), ["unexpected: other"]),
        (lambda s: s.update({"layers.1.bias": torch.ones(3)}), ["of another shape: layers.1.bias [3] expected [8]"]),
        (lambda s: s.update(what="text"), ["expected names with tensors"]),
        (lambda s: s.update(what=pathlib.Path()), ["no file of torch.save that holds only tensors"]),
    ],
)
def test_wrong_weights_are_named(export, change, expected):
    export(*own("plain"))
    state = torch.jit.load("f.pt").state_dict()
    change(state)
    torch.save(dict(state), "w.pt")
    code, said = export(*own("plain"), "--weights", "w.pt", "--force")
    assert code == 1 and said.startswith("error: w.pt: ") and all(part in said for part in expected), said


def test_a_file_that_is_no_weights_is_refused(export):
    pathlib.Path("w.safetensors").write_text("nothing")
    assert export(*own("plain"), "--weights", "w.safetensors")[0] == 1
    code, said = export(*own("plain"), "--weights", "w.pt")
    assert code == 1 and "w.pt" in said


def test_an_own_module_is_scripted(export):
    module, described = export(*own("dropout"))
    x = torch.randn(4, 3, 2, 2)
    assert torch.equal(module.eval()(x), module(x)) and not torch.equal(module.train()(x), module(x))
    assert list(module.state_dict()) == ["layers.1.weight", "layers.1.bias"]
    assert described["source"] == "entry:own:dropout" and described["output_shape"] == [None, 8] and described["parameters"] == 104
    assert described["versions"] == {"torch": torch.__version__} and described["weights"] == "as own:dropout made them, seed 0"


def test_an_own_module_without_modes_can_be_traced(export):
    module, _ = export(*own("plain", "--trace"))
    assert module(torch.randn(7, 3, 2, 2)).shape == (7, 8)


@pytest.mark.parametrize(
    "args, expected",
    [
        (("dropout", "--trace"), ["entry:own:dropout: the mode is fixed", "aten::dropout", "always as in train()", "script the module"]),
        (("norm", "--trace"), ["mode is fixed", "aten::batch_norm", "script the module"]),
        (("fused", "--trace"), ["mode is fixed", "aten::scaled_dot_product_attention", "own.py:"]),
        (("functional",), ["mode is fixed", "aten::dropout"]),
        (("branch", "--trace"), ["eval(): the output differs from the source's by up to 1"]),
        (("silent",), ["train(): the output does not change as in the source"]),
        (("still",), ["train(): statistics do not move as in the source: lost"]),
        (("moved",), ["device is fixed", '"cpu" in aten::to of', "own.py:", "x.new_zeros"]),
        (("moved", "--trace"), ["device is fixed", '"cpu" in aten::to of', "own.py:"]),
        (("default",), ["torch's default device in aten::zeros of", "own.py:"]),
        (("default", "--trace"), ['"cpu" in aten::zeros of']),
        (("attribute",), ["the tensor plain, neither parameter nor buffer"]),
        (("attribute", "--trace"), ["a tensor [8] of the trace in aten::add of"]),
        (("sized", "--trace"), ["gives [2, 8] for inputs of [3, 3, 2, 2]", "a trace keeps sizes"]),
        (("lost",), ["has lost, which the source's state_dict has not"]),
        (("pair",), ["the source gives tuple", "expected one tensor"]),
        (("free",), ["Free cannot be scripted: ", "--trace"]),
        (("number",), ["it gave int, expected torch.nn.Module"]),
        (("broken",), ["RuntimeError: no such data"]),
        (("absent",), ["has no attribute 'absent'"]),
    ],
)
def test_what_would_not_train_is_refused(export, args, expected):
    code, said = export(*own(*args))
    assert code == 1 and said.startswith("error: ") and all(part in said for part in expected), said
    assert sorted(path.name for path in pathlib.Path().iterdir() if path.is_file()) == ["own.py"]


def test_unknown_names_say_what_is_near(export):
    code, said = export("torchvision:resnet19")
    assert code == 1 and "did you mean resnet18" in said
    code, said = export("timm:vit_smal_patch16_224")
    assert code == 1 and "did you mean vit_small_patch16_224" in said
    code, said = export("transformers:nowhere")
    assert code == 1 and "no such folder" in said
    code, said = export("--entry", "nowhere.at:all", "--input-shape", "1")
    assert code == 1 and "No module named 'nowhere'" in said
    transformers.GPT2Config(n_layer=1).save_pretrained("gpt")
    code, said = export("transformers:gpt", "--random-init")
    assert code == 1 and "its type is 'gpt2', expected one of bert" in said


def test_weights_that_a_folder_lacks_are_named(export):
    model = transformers.BertModel(transformers.BertConfig(**TINY["bert"]))
    state = model.state_dict()
    name = "encoder.layer.0.output.dense.bias"
    del state[name]
    model.save_pretrained("text", state_dict=state)
    code, said = export("transformers:text")
    assert code == 1 and f"its weights lack {name}" in said


def test_without_network_or_library_the_way_out_is_said(export, monkeypatch):
    def offline(*_, **__):
        raise OSError("no route")

    monkeypatch.setattr(torch.hub, "urlopen", offline)
    monkeypatch.setenv("TORCH_HOME", "nothing-kept")
    code, said = export("torchvision:resnet18", "--pretrained")
    assert code == 1 and "could not be fetched (no route)" in said and "--weights" in said
    monkeypatch.setitem(sys.modules, "timm", None)
    code, said = export("timm:resnet18")
    assert code == 1 and "pip install timm" in said


def test_what_is_there_stays_unless_forced(export):
    pathlib.Path("f.json").write_text("mine")
    code, said = export(*own("plain"))
    assert code == 1 and said == "error: f.json: it is there; --force replaces it" and not pathlib.Path("f.pt").exists()
    code, _ = export(*own("dropout", "--trace", "--force"))
    assert code == 1 and pathlib.Path("f.json").read_text() == "mine"
    _, described = export(*own("plain"), "--force")
    assert described["features"] == 8


@pytest.mark.parametrize(
    "args, expected",
    [
        ([], "expected either MODEL or --entry"),
        (["resnet18"], "expected torchvision:NAME"),
        (["timm:resnet18", "--stem", "small"], "--stem is for torchvision, not for timm"),
        (["torchvision:resnet18", "--random-init"], "--random-init is for transformers"),
        (["torchvision:resnet18", "--pretrained", "--stem", "small"], "--pretrained weights are for --stem imagenet"),
        (["torchvision:resnet18", "--pretrained", "--weights", "w"], "not allowed with argument"),
        (["torchvision:resnet18", "--image-size", "0"], "invalid size value: '0'"),
        (["--entry", "own:plain"], "--entry needs --input-shape"),
        (["--entry", "own", "--input-shape", "1"], "expected MODULE:FUNCTION"),
        (["torchvision:resnet18", "--out", "f.json"], "where the JSON goes"),
    ],
)
def test_usage(export, args, expected):
    code, said = export(*args)
    assert code == 2 and said.startswith("error: ") and expected in said


def test_as_a_command(tmp_path):
    """In another folder, with --path; the result on stdout, the rest on stderr."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/own.py").write_text(textwrap.dedent(OWN))
    command = [sys.executable, SCRIPT, *own("dropout"), "--path", "lib", "--out", "new/f.pt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "new/f.pt\n")
    assert done.stderr == "eval(): largest difference from the source 0\ntrain(): random, 0 buffers move, as in the source\n"
