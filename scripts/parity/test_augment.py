"""The golden files of the augmentation are what the pinned torchvision gives: nothing was edited, nothing is out of date."""

import importlib.util
import json
import pathlib

import numpy as np
import pytest
from safetensors.numpy import load_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests/golden/augment"


@pytest.fixture(scope="module")
def fixtures():
    spec = importlib.util.spec_from_file_location("augment_fixtures", ROOT / "scripts/fixtures/augment.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_operations_are_reproduced(fixtures):
    tensors, cases = fixtures.operations(fixtures.images())
    assert cases == json.loads((GOLDEN / "index.json").read_text())["cases"]
    stored = load_file(GOLDEN / "operations.safetensors")
    assert stored.keys() == tensors.keys()
    blurs = {case["out"] for case in cases if case["op"] == "blur"}
    for name, tensor in tensors.items():
        # The blur is a float convolution of torch, whose order of summation depends on the CPU; all else is integer or scalar.
        allowed = 1 if name in blurs else 0
        assert np.abs(stored[name].astype(int) - tensor.astype(int)).max() <= allowed, name
