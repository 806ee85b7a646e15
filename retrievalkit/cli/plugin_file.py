"""A plugin of a single file, taken apart: what goes into a package's module, what into its hooks, what it needs."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from dataclasses import replace

from retrievalkit.registry import Component


def moved(component: Component, stem: str, module: str) -> Component:
    """The component with its target in the module that the file becomes."""
    home, _, name = component.target.partition(":")
    return replace(component, target=f"{module}:{name}") if home == stem else component


def without_hooks(source: str) -> str:
    """The source without the functions that register, and without what they alone imported."""
    tree = ast.parse(source)
    hooks = [node for node in tree.body if isinstance(node, ast.FunctionDef) and _is_hook(node)]
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    lines = source.splitlines()
    for node in hooks:
        first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        lines[first - 1 : node.end_lineno] = [""] * (_end(node) - first + 1)
    rest = list(lines)
    for one in imports:
        rest[one.lineno - 1 : one.end_lineno] = [""] * (_end(one) - one.lineno + 1)
    text, in_hooks = "\n".join(rest), {one.id for node in hooks for one in ast.walk(node) if isinstance(one, ast.Name)}
    for one in imports:
        kept = [
            alias for alias in one.names if (name := _bound(alias)) not in in_hooks or re.search(rf"\b{name}\b", text)
        ]
        if len(kept) < len(one.names):
            one.names = kept
            put = [ast.unparse(one)] if kept else []
            lines[one.lineno - 1 : one.end_lineno] = put + [""] * (_end(one) - one.lineno + 1 - len(put))
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).strip() + "\n"


def distributions(source: str) -> list[str]:
    """The distributions that the source imports something of, besides Python and retrievalkit; sorted."""
    wanted = set(_imported(ast.parse(source))) - set(sys.stdlib_module_names) - {"retrievalkit"}
    known = importlib.metadata.packages_distributions()
    return sorted({known.get(one, [one])[0] for one in wanted})


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _is_hook(node: ast.FunctionDef) -> bool:
    return any(re.match(r"(\w+\.)?hookimpl\b", ast.unparse(one)) for one in node.decorator_list)


def _bound(alias: ast.alias) -> str:
    """The name that an import binds."""
    return alias.asname or alias.name.partition(".")[0]


def _end(node: ast.stmt) -> int:
    assert node.end_lineno is not None, "of a parsed source"
    return node.end_lineno
