"""timm against the Rust Vision Transformer: weights travel both ways, strictly, and give the same features, gradients and steps.

Needs the example `parity_model` and the binaries, which `cargo test --release` builds.
"""

import subprocess

import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import checkpoint_filter_fn
from timm.optim import param_groups_weight_decay
from torch import nn

from test_model import DRIVER, drive
from test_train import BIN

# Smaller ones where the size says nothing, so that the tests are fast.
NARROW = {"embed_dim": 48, "depth": 3, "num_heads": 3}
SHALLOW = {"depth": 2}


def network(size: int, patch: int, classes: int = 0, **sizes) -> nn.Module:
    return timm.create_model("vit_small_patch16_224", num_classes=classes, img_size=size, patch_size=patch, **sizes)


def keys(patch: int, embed_dim: int = 384, depth: int = 12, num_heads: int = 6) -> str:
    return f"{{kind: vit_small, patch_size: {patch}, width: {embed_dim}, depth: {depth}, heads: {num_heads}}}"


def stirred(net: nn.Module) -> nn.Module:
    """The network with every parameter away from what it was initialised with."""
    with torch.no_grad():
        for p in net.parameters():
            p.add_(torch.randn_like(p), alpha=0.05)
    return net


def gap(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found - expected).norm() / expected.norm()).item()


def learn(net: nn.Module, images, target, steps: int, lr: float, precision=torch.float32):
    """What the driver's `learn` does, in PyTorch: losses, and features and gradients of the first step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    losses, first = [], None
    for _ in range(steps):
        with torch.autocast("cpu", precision, enabled=precision != torch.float32):
            features = net(images)
        loss = (features.float() - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        first = first or (features.detach(), {name: p.grad.clone() for name, p in net.named_parameters()})
        optimizer.step()
        losses.append(loss.item())
    return losses, *first


def learn_there(net, encoder, images, target, steps, lr, folder, precision="fp32"):
    save_file(net.state_dict(), folder / "weights.safetensors")
    save_file({"images": images, "target": target}, folder / "batch.safetensors")
    text = drive("learn", encoder, precision, folder / "weights.safetensors", folder / "batch.safetensors", steps, lr, folder)
    features = load_file(folder / "features.safetensors")["features"]
    return [float(line) for line in text.splitlines()], features, load_file(folder / "gradients.safetensors")


def compare(found, expected, features: float, gradients: float):
    (_, f, g), (_, expected_f, expected_g) = found, expected
    assert f.dtype == expected_f.dtype and gap(f, expected_f) < features, gap(f, expected_f)
    assert g.keys() == expected_g.keys()
    for name, gradient in expected_g.items():
        if name.endswith("attn.qkv.bias"):
            # A bias of the keys moves all logits of a query alike: its gradient is 0, and what is there is rounding.
            width = len(gradient) // 3
            keep = [*range(width), *range(2 * width, 3 * width)]
            rounding = g[name][width : 2 * width].norm() / gradient.norm()
            assert rounding < gradients, (name, rounding)
            gradient, g[name] = gradient[keep], g[name][keep]
        assert gap(g[name], gradient) < gradients, (name, gap(g[name], gradient))


@pytest.mark.parametrize("size, patch, sizes", [(224, 16, {}), (32, 4, SHALLOW), (64, 8, SHALLOW), (96, 16, SHALLOW)])
def test_features_and_gradients_are_timms(size, patch, sizes, tmp_path):
    torch.manual_seed(size)
    net = stirred(network(size, patch, **sizes))
    images, target = torch.randn(2, 3, size, size), torch.randn(2, 384)
    found = learn_there(net, keys(patch, **sizes), images, target, 1, 0.1, tmp_path)
    # The same kernels of LibTorch; products of the class token alone are summed in another order than those of all tokens, and
    # twelve blocks carry such roundings of 6e-8 along.
    compare(found, learn(net, images, target, 1, 0.1), 1e-5, 1e-4)


def test_twenty_steps_lose_as_much_in_both(tmp_path):
    torch.manual_seed(5)
    net = network(32, 4, **SHALLOW)
    images, target = torch.randn(4, 3, 32, 32), torch.randn(4, 384)
    found = learn_there(net, keys(4, **SHALLOW), images, target, 20, 0.05, tmp_path)[0]
    expected = learn(net, images, target, 20, 0.05)[0]
    assert expected[-1] < 0.8 * expected[0]
    # Each step starts from weights that differ by the roundings of all before it.
    assert max(abs(f / e - 1) for f, e in zip(found, expected, strict=True)) < 1e-4, (found, expected)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autocast_is_pytorchs(precision, tmp_path):
    torch.manual_seed(6)
    net = stirred(network(32, 8, **NARROW))
    images, target = torch.randn(4, 3, 32, 32), torch.randn(4, 48)
    found = learn_there(net, keys(8, **NARROW), images, target, 1, 0.1, tmp_path, precision)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    expected = learn(net, images, target, 1, 0.1, dtype)
    # Products may be summed in another order before they are rounded to 8 or 11 bits: a few such roundings a block.
    bits = {"bf16": 2**-8, "fp16": 2**-11}[precision]
    compare(found, expected, 4 * bits, 16 * bits)


def test_a_seed_draws_timms_initial_weights_whatever_the_thread_count(tmp_path):
    net = network(64, 8, **SHALLOW)
    torch.manual_seed(11)
    # timm's own initialisation once more, and then the projector by nn.Linear's.
    net.init_weights(needs_reset=True)
    projector = nn.Sequential(nn.Linear(384, 384, bias=False), nn.ReLU(), nn.Linear(384, 64, bias=False))
    expected = {f"encoder.{n}": t for n, t in net.state_dict().items()}
    expected |= {f"projector.{n}": t for n, t in projector.state_dict().items()}
    for threads in (1, 2):
        drive("initial", f"encoder: {keys(8, **SHALLOW)}", 11, tmp_path, 64, threads=threads)
        got = load_file(tmp_path / "initial.safetensors")
        assert got.keys() == expected.keys()
        for name, tensor in expected.items():
            assert torch.equal(got[name], tensor), name


def test_a_fresh_network_is_spread_as_timms_constructor_spreads_it(tmp_path):
    drive("initial", f"encoder: {keys(16, **SHALLOW)}", 3, tmp_path, 224)
    got = load_file(tmp_path / "initial.safetensors")
    for name, expected in network(224, 16, **SHALLOW).state_dict().items():
        found = got[f"encoder.{name}"]
        if expected.unique().numel() == 1:
            assert torch.equal(found, expected), name
            continue
        # Largest distance between the two distributions (Kolmogorov-Smirnov); 2.5 is passed by chance once in 10^5 tensors.
        a, b = found.flatten().sort()[0], expected.flatten().sort()[0]
        n = a.numel()
        distance = (torch.searchsorted(b, a, right=True) / n - torch.arange(1, n + 1) / n).abs().max().item()
        assert distance * (n / 2) ** 0.5 < 2.5, (name, distance)


def encode(weights, encoder: str, images, folder) -> tuple[str, torch.Tensor]:
    torch.save(weights, folder / "weights.pt")
    save_file({"images": images}, folder / "images.safetensors")
    said = drive("encode", encoder, folder / "weights.pt", folder / "images.safetensors", folder)
    return said, load_file(folder / "features.safetensors")["eval"]


def test_a_whole_timm_file_loads_with_its_classifier_left_out(tmp_path):
    torch.manual_seed(7)
    net = stirred(network(224, 16, classes=1000))
    images = torch.randn(1, 3, 224, 224)
    said, found = encode(net.state_dict(), "{kind: vit_small}", images, tmp_path)
    assert said == "150 tensors; the classifier is left out: head.weight, head.bias\n"
    with torch.no_grad():
        expected = net.forward_head(net.forward_features(images), pre_logits=True)
    assert gap(found, expected) < 1e-5
    # And back.
    net.reset_classifier(0)
    net.load_state_dict(torch.load(tmp_path / "encoder.pt", weights_only=True), strict=True)
    net.load_state_dict(load_file(tmp_path / "encoder.safetensors"), strict=True)


@pytest.fixture
def one_thread():
    """The driver's number: another one changes the rounding of a pseudoinverse, and with it a float16 number here and there."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("size, patch", [(32, 4), (64, 8), (96, 16), (384, 16), (32, 16)])
def test_other_grids_and_patches_are_fitted_as_timm_does(size, patch, dtype, tmp_path):
    torch.manual_seed(8)
    sizes = NARROW
    state = {n: t.to(dtype) for n, t in stirred(network(224, 16, classes=5, **sizes)).state_dict().items()}
    net = network(size, patch, classes=5, **sizes)
    net.load_state_dict(checkpoint_filter_fn(state, net), strict=True)
    images = torch.randn(2, 3, size, size)
    said, found = encode({"state_dict": state}, keys(patch, **sizes), images, tmp_path)
    tokens = 1 + (size // patch) ** 2
    assert f"pos_embed is resampled from [1, 197, 48] to [1, {tokens}, 48]" in said, said
    assert (f"to [48, 3, {patch}, {patch}]" in said) == (patch != 16), said
    ours = torch.load(tmp_path / "encoder.pt", weights_only=True)
    for name in ("pos_embed", "patch_embed.proj.weight"):
        # The same kernels; the pseudoinverse's rounding is larger than those of a sum by its condition number, about 10.
        assert gap(ours[name], net.state_dict()[name]) < (1e-6 if name == "pos_embed" else 1e-5), name
    net.reset_classifier(0)
    with torch.no_grad():
        assert gap(found, net(images)) < 1e-5


class Dino(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.backbone, self.head = net, nn.Sequential(nn.Linear(48, 8), nn.GELU(), nn.Linear(8, 4))


def moco_v3(net) -> dict:
    both = {}
    for branch in ("base_encoder", "momentum_encoder"):
        both |= {f"module.{branch}.{n}": t for n, t in net.state_dict().items()}
        both |= {f"module.{branch}.head.{i}.weight": torch.rand(3, 3) for i in (0, 3, 6)}
    return {"epoch": 300, "arch": "vit_small", "state_dict": both}


@pytest.mark.parametrize(
    "layout, said",
    [
        (lambda net: {"teacher": Dino(net).state_dict()}, "under `teacher.backbone.`"),
        (lambda net: {"model": net.state_dict()}, "under `model.`"),
        (moco_v3, "under `state_dict.module.base_encoder.`"),
    ],
    ids=["DINO", "DeiT and MAE", "MoCo v3"],
)
def test_other_projects_files_with_timms_names(layout, said, tmp_path):
    net = stirred(network(32, 8, **NARROW))
    images = torch.randn(2, 3, 32, 32)
    text, found = encode(layout(net), keys(8, **NARROW), images, tmp_path)
    assert said in text, text
    with torch.no_grad():
        assert gap(found, net(images)) < 1e-5


def test_torchvisions_transformer_differs_in_its_names_alone(tmp_path):
    net = stirred(torchvision.models.VisionTransformer(32, 8, 3, 3, 48, 192, num_classes=5)).eval()
    images = torch.randn(2, 3, 32, 32)
    said, found = encode(net.state_dict(), keys(8, **NARROW), images, tmp_path)
    assert "heads.head.weight" in said
    net.heads = nn.Identity()
    with torch.no_grad():
        assert gap(found, net(images)) < 1e-5


def test_a_file_with_another_pooling_or_a_second_token_is_refused_by_name(tmp_path):
    save_file({"images": torch.randn(2, 3, 32, 32)}, tmp_path / "images.safetensors")
    averaged = network(32, 8, global_pool="avg", **NARROW).state_dict()
    distilled = timm.create_model("deit_small_distilled_patch16_224", img_size=32, patch_size=8, num_classes=0, **NARROW)
    for state, named in [(averaged, "missing: norm.weight"), (distilled.state_dict(), "unexpected: dist_token")]:
        torch.save(state, tmp_path / "other.pt")
        command = [DRIVER, "encode", keys(8, **NARROW), tmp_path / "other.pt", tmp_path / "images.safetensors", tmp_path]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode != 0 and named in done.stderr, done.stderr


CONFIG = """
data: {kind: synthetic, train: 64, test: 40, size: 32}
augment: {size: 32}
model:
  encoder: {kind: vit_small, patch_size: 8, depth: 2}
loss: {kind: weince}
optim: {kind: adamw, weight_decay: 0.05, exclude_bias_and_norm: true}
train: {epochs: 1, batch_size: 32, log_every: 1}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("train")
    (folder / "c.yaml").write_text(CONFIG)
    pretrain(folder / "c.yaml", folder / "run")
    return folder / "run"


def pretrain(config, folder, *more) -> str:
    command = [BIN / "pretrain-vision", "--config", config, "--run-dir", folder, "--device", "cpu", *more]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_timm_takes_the_trained_encoder_strictly(run):
    net = network(32, 8, **SHALLOW)
    weights = torch.load(run / "checkpoints" / "encoder.pt", weights_only=True)
    net.load_state_dict(weights, strict=True)
    assert list(weights) == list(net.state_dict())
    # And with a classifier, at its own size, as timm loads a file.
    larger = network(64, 8, classes=10, **SHALLOW)
    missing, unexpected = larger.load_state_dict(checkpoint_filter_fn(weights, larger), strict=False)
    assert (sorted(missing), unexpected) == (["head.bias", "head.weight"], [])


def test_the_optimizers_groups_are_timms(run):
    state = torch.load(run / "checkpoints" / "step-000000002.pt", weights_only=True)
    net = network(32, 8, **SHALLOW)
    projector = nn.Sequential(nn.Linear(384, 384, bias=False), nn.ReLU(), nn.Linear(384, 64, bias=False))
    net.load_state_dict(state["model"])
    spared, decayed = param_groups_weight_decay(net, 0.05, no_weight_decay_list=net.no_weight_decay())
    assert (spared["weight_decay"], decayed["weight_decay"]) == (0.0, 0.05)
    decayed["params"] += projector.parameters()
    optimizer = torch.optim.AdamW([decayed, spared])
    optimizer.load_state_dict(state["optimizer"])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.05, 0.0]
    for group in optimizer.param_groups:
        for p in group["params"]:
            assert optimizer.state[p]["exp_avg"].shape == p.shape


def test_a_run_starts_from_timms_file_and_its_own_weights_are_never_resampled(run, tmp_path):
    torch.save(network(224, 16, classes=3, **SHALLOW).state_dict(), tmp_path / "timm.pt")
    (tmp_path / "c.yaml").write_text(CONFIG)
    weights = f"model.weights={{path: {tmp_path / 'timm.pt'}, allow_missing: ['projector\\..*']}}"
    said = pretrain(tmp_path / "c.yaml", tmp_path / "run", "--set", weights)
    assert "pos_embed is resampled from [1, 197, 384] to [1, 17, 384]" in said, said

    def knn(*more) -> subprocess.CompletedProcess:
        command = [BIN / "eval-knn", "--run", tmp_path / "run", "--device", "cpu", *more]
        return subprocess.run(command, capture_output=True, text=True)

    assert "resampled" not in knn().stderr
    # Another file may be of other images, and that is said; the run's own may not.
    other = knn("--checkpoint", tmp_path / "timm.pt")
    assert other.returncode == 0 and "pos_embed is resampled" in other.stderr, other.stderr
    checkpoints = tmp_path / "run" / "checkpoints"
    state = torch.load(checkpoints / "encoder.pt", weights_only=True)
    save_file(state | {"pos_embed": torch.zeros(1, 26, 384)}, checkpoints / "encoder.safetensors")
    own = knn()
    assert own.returncode != 0 and "pos_embed (expected [1, 17, 384], found [1, 26, 384])" in own.stderr, own.stderr
