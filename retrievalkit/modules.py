"""Where installed modules and packages are, found without importing anything."""

from __future__ import annotations

import importlib.util
import sys
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


def package_folder(package: str) -> Path | None:
    """The folder of an installed package; None if it is not installed or has no folder."""
    spec = module_spec(package)
    locations = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(locations))) if locations else None
