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
from types import ModuleType
from typing import Any


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


def make_callable(module: str, function: str) -> None:
    """Let a module be called as a function of the same name in `retrievalkit` is.

    Python makes a submodule an attribute of its package once it is imported: `rk.rerank` is the function that users
    call, and from then on the module `retrievalkit.rerank`.
    """
    home, _, name = function.partition(":")

    def called() -> Any:
        return getattr(importlib.import_module(home), name)

    class Callable(ModuleType):
        def __call__(self, *args: Any, **options: Any) -> Any:
            return called()(*args, **options)

        __doc__ = property(lambda _: called().__doc__)  # type: ignore[assignment]
        __signature__ = property(lambda _: called().__signature__)

    sys.modules[module].__class__ = Callable
