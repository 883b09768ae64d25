"""Scripts of the folder above as modules, so that tests can call their functions."""

import importlib.util
import pathlib
import sys
import types

SCRIPTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(SCRIPTS))  # what a script imports from its own folder


def load(name: str) -> types.ModuleType:
    """The script scripts/NAME.py, executed anew."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
