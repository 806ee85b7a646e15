"""The first sentence about a component, read from the source of its module: nothing is imported.

Importing every component to ask for its docstring would start torch, faiss and Java. Only the source of the class or
function is parsed; one that is defined elsewhere, or comes without source, has no summary.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from retrievalkit.modules import module_spec
from retrievalkit.registry import Component

_SENTENCE = re.compile(r"(.+?(?<!e\.g)(?<!i\.e)(?<!vs)(?<!et al)[.!?])(?=\s|$)", re.DOTALL)


def summary(component: Component) -> str:
    """The help text of a component, or the first sentence of its docstring; "" if there is neither."""
    if component.help:
        return component.help
    module, _, attribute = component.target.partition(":")
    return _first_sentence(_docstrings(module).get(attribute, ""))


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.strip().partition("\n\n")[0].split())
    match = _SENTENCE.match(paragraph)
    return match[1] if match else paragraph


@cache
def _docstrings(module: str) -> dict[str, str]:
    """The docstrings of a module's classes and functions by name."""
    spec = module_spec(module)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        return {}
    try:
        tree = ast.parse(Path(spec.origin).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    defined = (node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return {node.name: ast.get_docstring(node) or "" for node in defined}
