"""Modules and packages: where they are, found without importing anything, and importing large ones."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def module_spec(module: str) -> ModuleSpec | None:
    """Where a module is; None if it is not installed, or if the name is not that of a module.

    Unlike `importlib.util.find_spec`, it does not import the packages that the module lies in.
    """
    if not all(part.isidentifier() for part in module.split(".")):
        return None
    if module in sys.modules:
        return sys.modules[module].__spec__
    package, _, _ = module.rpartition(".")
    try:
        if not package:
            return importlib.util.find_spec(module)
        parent = module_spec(package)
        path = parent.submodule_search_locations if parent else None
        return PathFinder.find_spec(module, path) if path else None
    except (ImportError, ValueError):
        return None


@contextmanager
def large_imports() -> Iterator[None]:
    """For a block that imports large packages: Python does not look for garbage in it.

    Modules stay, and to look through all that they define again and again takes a tenth of the time of importing torch.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def package_folder(package: str) -> Path | None:
    """The folder of an installed package; None if it is not installed or has no folder."""
    spec = module_spec(package)
    locations = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(locations))) if locations else None
