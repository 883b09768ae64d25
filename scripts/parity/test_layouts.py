"""Files as other projects write them: an encoder is found in each, whatever stands around it, and gives torchvision's features."""

import subprocess
from collections import OrderedDict

import pytest
import safetensors.torch
import timm
import torch
import torchvision
from torch import nn

from test_model import DRIVER, drive

KIND = "{kind: resnet18, stem: small}"


def small_stem(net: nn.Module) -> nn.Module:
    net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    net.maxpool = nn.Identity()
    return net


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(2)
    net = small_stem(torchvision.models.resnet18())
    net.fc = nn.Identity()
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name.endswith("running_mean"):
                tensor.normal_(0, 0.1)
            elif name.endswith("running_var"):
                tensor.uniform_(0.5, 1.5)
    return net.eval()


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "images.safetensors"
    safetensors.torch.save_file({"images": torch.rand(3, 3, 16, 16)}, path)
    return path


def under(prefix: str, state: dict) -> OrderedDict:
    return OrderedDict((prefix + name, tensor) for name, tensor in state.items())


def projector(prefix: str, bias: bool) -> OrderedDict:
    return under(prefix, nn.Sequential(nn.Linear(512, 512, bias), nn.ReLU(), nn.Linear(512, 64, bias)).state_dict())


class Simclr(nn.Module):
    """The authors' module, as its names have it."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.projector = nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU(), nn.Linear(512, 64, bias=False))


class LightlyExample(nn.Module):
    """lightly's SimCLR example: the children of a ResNet as nn.Sequential, and its projection head with BatchNorm."""

    def __init__(self, net):
        super().__init__()
        self.backbone = nn.Sequential(*list(net.children())[:-1])
        self.projection_head = nn.Module()
        self.projection_head.layers = nn.Sequential(
            nn.Linear(512, 512, bias=False), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 128, bias=False)
        )


def cifar_names(state: dict) -> OrderedDict:
    """The names of the ResNets of many CIFAR repositories (SupContrast's among them)."""
    return OrderedDict((name.replace("downsample", "shortcut"), tensor) for name, tensor in state.items())


def lightly_resnet(state: dict) -> OrderedDict:
    """lightly's own ResNet as nn.Sequential: without the modules of ReLU and pooling."""
    place = {"conv1": "0", "bn1": "1", "layer1": "2", "layer2": "3", "layer3": "4", "layer4": "5"}
    return OrderedDict(
        (place[name.split(".")[0]] + name[name.index("."):], tensor) for name, tensor in cifar_names(state).items()
    )


def solo_learn(state: dict) -> dict:
    """A Lightning checkpoint of solo-learn's SimCLR, without the hyperparameters that are no plain data."""
    model = under("backbone.", state) | under("classifier.", nn.Linear(512, 10).state_dict()) | projector("projector.", True)
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1, momentum=0.9)
    return {
        "epoch": 3, "global_step": 120, "pytorch-lightning_version": "2.1.2", "state_dict": model, "loops": {},
        "callbacks": {"Checkpointer": {"best": 0.5}}, "optimizer_states": [optimizer.state_dict()], "lr_schedulers": [],
    }


def moco(state: dict) -> dict:
    head = projector("fc.", True)
    both = under("module.encoder_q.", state | head) | under("module.encoder_k.", state | head)
    return {"epoch": 200, "arch": "resnet18", "state_dict": both | {"module.queue": torch.rand(4, 8)}}


def layouts(net) -> dict:
    state = net.state_dict()
    classifier = small_stem(torchvision.models.resnet18())
    classifier.load_state_dict(state, strict=False)
    timm_net = timm.create_model("resnet18", num_classes=7)
    timm_net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
    timm_net.load_state_dict(state, strict=False)
    uncounted = OrderedDict((n, t) for n, t in state.items() if not n.endswith("num_batches_tracked"))
    return {
        "plain": (state, ""),
        "plain dict": (dict(state), ""),
        "authors": (Simclr(net).state_dict(), "`encoder.`"),
        "authors in parallel": (nn.DataParallel(Simclr(net)).state_dict(), "`module.encoder.`"),
        "nested": ({"state_dict": under("module.", state), "epoch": 3, "best": 0.5}, "`state_dict.module.`"),
        "compiled": ({"model": under("_orig_mod.", state)}, "`model._orig_mod.`"),
        "solo-learn": (solo_learn(state), "`state_dict.backbone.`"),
        "lightly's example": ({"state_dict": LightlyExample(net).state_dict()}, "`state_dict.backbone.`"),
        "lightly's ResNet": ({"state_dict": under("backbone.", lightly_resnet(state))}, "`state_dict.backbone.`"),
        "CIFAR repositories": ({"net": under("module.encoder.", cifar_names(state)) | under("module.linear.", {"weight": torch.rand(10, 512)})}, "`net.module.encoder.`"),
        "classifier": (classifier.state_dict(), "fc.weight, fc.bias"),
        "timm": (timm_net.state_dict(), "fc.weight, fc.bias"),
        "head in place of the classifier": ({"state_dict": under("backbone.", state | projector("fc.", True))}, "fc.0.weight"),
        "momentum encoder beside it": (moco(state), "`state_dict.module.encoder_q.`"),
        "before counters": (uncounted, "20 counters of batches"),
        "half precision": (OrderedDict((n, t.half() if t.is_floating_point() else t) for n, t in state.items()), ""),
        "parameters": (OrderedDict((n, nn.Parameter(t) if t.is_floating_point() else t) for n, t in state.items()), ""),
        "the optimizer beside it": (
            {"model": state, "optimizer": torch.optim.Adam(net.parameters()).state_dict(), "rng": torch.get_rng_state(),
             "mask": torch.zeros(1).expand(50)},
            "`model.`",
        ),
    }


NAMES = [
    "plain", "plain dict", "authors", "authors in parallel", "nested", "compiled", "solo-learn", "lightly's example",
    "lightly's ResNet", "CIFAR repositories", "classifier", "timm", "head in place of the classifier",
    "momentum encoder beside it", "before counters", "half precision", "parameters", "the optimizer beside it",
]


def test_every_layout_is_tested(net):
    assert list(layouts(net)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_the_encoder_is_found_and_gives_the_same_features(net, images, name, tmp_path):
    content, said = layouts(net)[name]
    torch.save(content, tmp_path / "file.tar")
    text = drive("encode", KIND, tmp_path / "file.tar", images, tmp_path)
    assert said in text, text
    found = safetensors.torch.load_file(tmp_path / "features.safetensors")["eval"]
    with torch.no_grad():
        expected = net(safetensors.torch.load_file(images)["images"])
    gap = (found - expected).norm() / expected.norm()
    # float16 keeps 11 bits of each weight.
    assert gap < (2e-3 if name == "half precision" else 1e-5), gap


def refused(content, images, folder) -> str:
    torch.save(content, folder / "file.pt")
    done = subprocess.run(
        [DRIVER, "encode", KIND, folder / "file.pt", images, folder], capture_output=True, text=True
    )
    assert done.returncode != 0 and not (folder / "features.safetensors").exists()
    return done.stderr


def test_what_does_not_fit_is_refused_by_its_names(net, images, tmp_path):
    state = net.state_dict()
    missing = OrderedDict((n, t) for n, t in state.items() if n != "layer2.0.conv1.weight")
    assert "1 missing: layer2.0.conv1.weight" in refused(missing, images, tmp_path)
    text = refused(state | {"layer9.weight": torch.rand(2)}, images, tmp_path)
    assert "1 unexpected: layer9.weight" in text
    text = refused(state | {"conv1.weight": torch.rand(64, 3, 7, 7)}, images, tmp_path)
    assert "conv1.weight (expected [64, 3, 3, 3], found [64, 3, 7, 7])" in text
    assert "no tensor of the encoder" in refused({"a": {"b": torch.rand(2)}}, images, tmp_path)
    whole = OrderedDict((n, t.to(torch.int8)) for n, t in state.items())
    assert "Int8, expected floating-point numbers" in refused(whole, images, tmp_path)
    twice = under("one.", state) | under("two.", state)
    text = refused(twice, images, tmp_path)
    assert "2 times" in text and "`one.`" in text and "`two.`" in text
