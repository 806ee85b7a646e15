"""A tiny model, a tiny collection and the conformance kit, for the tests of plugin authors and our own.

    from retrievalkit_testing import conformance

    test_conforms = conformance("max_pooling")

This line creates a named test for each property of the component: requirements for every component of a kind, whatever
its method. Padding, batch order and batch size change nothing; saving and loading give equal vectors; gradients reach
the encoder; an index finds the same as brute force. A failure names the property, the numbers, and the file and line to
look at. `rkit plugins check NAME` prints the same as a table.

Modules that need torch are imported lazily.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the public names; `__getattr__` reads their modules from here
    from retrievalkit_testing.conforming import check as check
    from retrievalkit_testing.conforming import conformance as conformance
    from retrievalkit_testing.properties import PropertyError as PropertyError
    from retrievalkit_testing.samples import ARCHITECTURES as ARCHITECTURES
    from retrievalkit_testing.samples import Collection as Collection
    from retrievalkit_testing.samples import tiny_collection as tiny_collection
    from retrievalkit_testing.samples import tiny_model as tiny_model

__version__ = "0.1.0"

_MODULES = {
    node.names[0].name: str(node.module)
    for block in ast.parse(Path(__file__).read_bytes()).body
    if isinstance(block, ast.If)
    for node in block.body
    if isinstance(node, ast.ImportFrom)
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    msg = f"module '{__name__}' has no attribute '{name}'"
    raise AttributeError(msg)
