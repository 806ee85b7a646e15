"""Modules and packages: locate them without importing, and import large packages faster."""

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
    """Return the spec of a module; None if it is not installed, or if the name is not valid.

    Unlike `importlib.util.find_spec`, does not import the module's parent packages.
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
    """Disable garbage collection in a block that imports large packages.

    Modules stay in memory, and scanning their objects repeatedly takes a tenth of the time of importing torch.
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
    """Return the folder of an installed package; None if it is not installed or has no folder."""
    spec = module_spec(package)
    locations = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(locations))) if locations else None
