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
    lines: dict[int, str] = dict(enumerate(source.splitlines(), 1))
    for node in hooks:
        _drop(lines, min([node.lineno, *(one.lineno for one in node.decorator_list)]), _end(node))
    rest = dict(lines)
    for one in imports:
        _drop(rest, one.lineno, _end(one))
    text, in_hooks = "\n".join(rest.values()), {name for node in hooks for name in _names(node)}
    for one in imports:
        unused = {name for name in map(_bound, one.names) if name in in_hooks and not re.search(rf"\b{name}\b", text)}
        if unused:
            one.names = [alias for alias in one.names if _bound(alias) not in unused]
            _drop(lines, one.lineno + bool(one.names), _end(one))
            if one.names:
                lines[one.lineno] = ast.unparse(one)
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines.values())).strip() + "\n"


def _drop(lines: dict[int, str], first: int, last: int) -> None:
    for number in range(first, last + 1):
        lines.pop(number, None)


def _names(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


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
