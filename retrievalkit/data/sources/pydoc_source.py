"""Definitions, documentation and exports of Python source files, read from their syntax trees without importing.

The public name of a function is the shortest path by which it can be reached: `scipy.linalg.eigh` rather than
`scipy.linalg._decomp.eigh`. It is found by following imports, star imports, `__all__` and assignments.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

_DOC_CALLS = ("add_newdoc", "add_docstr", "_add_docstr", "add_docstr_all")


@dataclass
class Module:
    """The contents of a source file.

    Attributes:
        name: The dotted name.
        package: Whether it is an `__init__` file.
        docs: Qualified name within the module -> docstring.
        defined: Names of functions and classes at the top level.
        imports: Name -> (module, name there, or None for the module itself).
        stars: Modules from which all names are imported.
        exports: The names in `__all__`; None if it is not defined.
        computed: Whether `__all__` is computed, so that it may contain more names than can be read.
        exports_of: Names of modules whose `__all__` is added to this one's.
        aliases: Name -> the dotted name that is assigned to it.
        instances: Name -> the class whose instance is assigned to it.
        elsewhere: (module, qualified name, docstring) of objects of other modules that are documented here.
    """

    name: str
    package: bool = False
    docs: dict[str, str] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    exports: list[str] | None = None
    computed: bool = False
    exports_of: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    elsewhere: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, name: str, doc: str, *, export: bool) -> None:
        """Add documentation from another module, and export the name if this module lists its exports."""
        top = name.partition(".")[0]
        self.docs.setdefault(name, doc)
        self.defined.add(top)
        if export and self.exports is not None and not top.startswith("_"):
            self.exports.append(top)


def read_module(source: str, name: str, *, package: bool = False) -> Module:
    """Read a source file; invalid Python gives an empty module."""
    module = Module(name, package)
    try:
        with warnings.catch_warnings():
            # Warnings about invalid escapes in other people's code do not concern the user.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return module
    _Reader(module).statements(tree.body)
    return module


def public_names(modules: Mapping[str, Module]) -> dict[tuple[str, str], str]:
    """The shortest public path of each public function and class: (module, name) -> dotted path."""
    scope = _Scope(modules)
    best: dict[tuple[str, str], str] = {}
    for name in sorted(modules):
        if not is_public(name):
            continue
        for export in scope.public(name):
            target = scope.resolve(name, export)
            if target is None or export.startswith("_"):
                continue
            path = f"{name}.{export}"
            if target not in best or _rank(path, target[1]) < _rank(best[target], target[1]):
                best[target] = path
    return best


def documented(modules: Mapping[str, Module]) -> Iterator[tuple[str, str]]:
    """(public path, docstring) of every object that has both; members of classes are listed under the class's path."""
    paths = public_names(modules)
    for module in modules.values():
        for qualified, doc in module.docs.items():
            top, dot, rest = qualified.partition(".")
            path = paths.get((module.name, top))
            if path is not None and not any(part.startswith("_") for part in rest.split(".") if dot):
                path += dot + rest
                direct = paths.get((module.name, qualified), path)
                yield min(path, direct, key=lambda name: (name.count("."), len(name))), doc
            elif direct := paths.get((module.name, qualified), ""):
                yield direct, doc


def is_public(name: str) -> bool:
    """Whether a module's path is for users: no underscores, no tests."""
    return not any(
        part.startswith(("_", "test_")) or part in ("tests", "test", "conftest", "setup") for part in name.split(".")
    )


def _rank(path: str, definition: str) -> tuple[int, bool, int, str]:
    """Sort key: short paths first; among equals the defined name, unless it belongs to a generator class."""
    last = path.rpartition(".")[2]
    return path.count("."), last != definition or last.endswith("_gen"), len(path), path


class _Reader:
    """Walks over the statements of a module."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def statements(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.module.defined.add(node.name)
                self.document(node, "")
            case ast.ClassDef():
                self.module.defined.add(node.name)
                self.document(node, "")
            case ast.Import():
                for alias in node.names:
                    target = alias.name if alias.asname else alias.name.partition(".")[0]
                    self.module.imports[alias.asname or target] = (target, None)
            case ast.ImportFrom():
                self.import_from(node)
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                for part in ("body", "orelse", "finalbody"):
                    self.statements(getattr(node, part, []))
                for handler in getattr(node, "handlers", []):
                    self.statements(handler.body)
            case ast.Assign(targets=[target], value=value):
                self.assign(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.assign(target, value)
            case ast.AugAssign(target=ast.Name(id="__all__"), value=value):
                self.export(value)
            case ast.Expr(value=ast.Call() as call):
                self.call(call)

    def document(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, prefix: str) -> None:
        """Add a definition's docstring, and those of a class's members."""
        name = prefix + node.name
        doc = ast.get_docstring(node, clean=False)
        if not isinstance(node, ast.ClassDef):
            if doc:
                self.module.docs.setdefault(name, doc)
            return
        for member in node.body:
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if member.name == "__init__" and not doc:
                    doc = ast.get_docstring(member, clean=False)
                elif not member.name.startswith("_"):
                    self.document(member, f"{name}.")
        if doc:
            self.module.docs.setdefault(name, doc)

    def import_from(self, node: ast.ImportFrom) -> None:
        source = self.absolute(node.module, node.level)
        for alias in node.names:
            if alias.name == "*":
                self.module.stars.append(source)
            else:
                self.module.imports[alias.asname or alias.name] = (source, alias.name)

    def absolute(self, name: str | None, level: int) -> str:
        if not level:
            return name or ""
        parts = self.module.name.split(".")
        up = level - 1 if self.module.package else level
        return ".".join([*parts[: len(parts) - up], *([name] if name else [])])

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        match target:
            case ast.Name(id="__all__"):
                self.module.exports = None
                self.export(value)
            case ast.Name(id=name):
                self.name(name, value)
            case ast.Attribute(value=owner, attr="__doc__"):
                if (doc := _string(value)) and (path := _dotted(owner)):
                    self.module.docs.setdefault(path, doc)

    def name(self, name: str, value: ast.expr) -> None:
        if path := _dotted(value):
            if path != name:
                self.module.aliases[name] = path
        elif isinstance(value, ast.Call) and (function := _dotted(value.func)):
            if function.rpartition(".")[2] in _DOC_CALLS and len(value.args) > 1:
                if doc := _string(value.args[1]):
                    self.module.defined.add(name)
                    self.module.docs.setdefault(name, doc)
            elif "." not in function:
                self.module.instances[name] = function

    def export(self, value: ast.expr) -> None:
        """Add the names that an expression adds to `__all__`, as far as they can be read."""
        match value:
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                names = [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
                self.module.exports = [*(self.module.exports or []), *names]
                for item in items:
                    if not isinstance(item, ast.Constant):
                        self.module.computed = True
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                self.export(left)
                self.export(right)
            case (
                ast.Call(func=ast.Attribute(value=inner, attr="copy"))
                | ast.Call(func=ast.Name(id="list" | "sorted"), args=[inner])
            ):
                self.export(inner)
            case ast.Attribute(value=owner, attr="__all__") if path := _dotted(owner):
                self.module.exports = self.module.exports or []
                self.module.exports_of.append(path)
            case _:
                self.module.exports = self.module.exports or []
                self.module.computed = True

    def call(self, call: ast.Call) -> None:
        """Read a call used as a statement: it may add to `__all__`, or document compiled code."""
        match call:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="__all__"), attr="extend" | "append"), args=[value]):
                self.export(ast.List(elts=[value]) if isinstance(value, ast.Constant) else value)
            case ast.Call(func=ast.Name(id="extend_all"), args=[value]) if path := _dotted(value):
                self.module.exports_of.append(path)  # numpy's way to add a module's names to `__all__`
            case ast.Call(func=function, args=arguments) if (path := _dotted(function)) and path.rpartition(".")[
                2
            ] in _DOC_CALLS:
                self.module.elsewhere.extend(_documented_elsewhere(self.module, path.rpartition(".")[2], arguments))


def _documented_elsewhere(module: Module, function: str, arguments: list[ast.expr]) -> Iterator[tuple[str, str, str]]:
    """(module, qualified name, docstring) from a call that documents compiled code.

    Known calls: add_newdoc("module", "name", doc | ("attribute", doc) | [("attribute", doc), ...]),
    add_newdoc("name", doc), add_docstr(module.name, doc), add_docstr_all("method", doc).
    """
    texts = [_string(argument) for argument in arguments]
    parent = module.name.rpartition(".")[0]
    if function == "add_newdoc" and len(arguments) == 3 and texts[0] and texts[1]:
        if texts[2]:
            yield texts[0], texts[1], texts[2]
        pairs = arguments[2].elts if isinstance(arguments[2], ast.List) else [arguments[2]]
        for pair in pairs:
            if isinstance(pair, ast.Tuple) and len(pair.elts) == 2:
                attribute, doc = (_string(element) for element in pair.elts)
                if attribute and doc:
                    yield texts[0], f"{texts[1]}.{attribute}", doc
    elif function == "add_newdoc" and len(arguments) == 2 and texts[0] and texts[1]:
        yield parent, texts[0], texts[1]
    elif function == "add_docstr_all" and len(arguments) > 1 and texts[0] and texts[1]:
        yield parent, f"Tensor.{texts[0]}", texts[1]
    elif (
        function in ("add_docstr", "_add_docstr")
        and len(arguments) > 1
        and texts[1]
        and (path := _dotted(arguments[0]))
    ):
        owner, _, name = path.partition(".")
        yield owner, name, texts[1]


def _dotted(node: ast.expr) -> str:
    """The text of a dotted name (a.b.c); "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def _string(node: ast.expr) -> str:
    """A literal string, even if it is formatted, stripped or concatenated; "" for any other expression."""
    match node:
        case ast.Constant(value=str() as text):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _string(left) + _string(right)
        case ast.BinOp(left=left, op=ast.Mod()):
            return _string(left)
        case ast.Call(func=ast.Attribute(value=inner, attr="format")):
            return _string(inner).replace("{{", "{").replace("}}", "}")
        case ast.Call(func=ast.Attribute(value=inner, attr="replace" | "strip")):
            return _string(inner)
        case ast.Call(func=ast.Attribute(attr="dedent" | "cleandoc"), args=[inner]):
            return _string(inner)
    return ""


class _Scope:
    """Resolves names across the modules of a package."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules = modules
        self._exports: dict[str, list[str]] = {}
        self._names: dict[str, frozenset[str]] = {}

    def exports(self, name: str) -> list[str]:
        """The names that a module exports."""
        if name not in self._exports:
            self._exports[name] = []  # breaks cycles of star imports
            self._exports[name] = list(dict.fromkeys(self._exported(self.modules[name])))
        return self._exports[name]

    def public(self, name: str) -> list[str]:
        """The names that a module offers to users; imports of a plain module without `__all__` are not public."""
        module = self.modules[name]
        if module.package or module.exports is not None:
            return self.exports(name)
        return sorted(module.defined | module.aliases.keys() | module.instances.keys())

    def resolve(self, module: str, name: str) -> tuple[str, str] | None:
        """Where a module's name is defined; None if that is unknown or outside the package."""
        return self._resolve(module, name, set())

    def _resolve(self, module_name: str, name: str, seen: set[tuple[str, str]]) -> tuple[str, str] | None:
        module = self.modules.get(module_name)
        if module is None or (module_name, name) in seen:
            return None
        seen.add((module_name, name))
        if name in module.defined or name in module.docs:
            return module_name, name
        if name in module.aliases:
            owner, attribute = self._owner(module, module.aliases[name])
            return self._resolve(owner, attribute, seen) if owner else None
        if name in module.instances and list(module.instances.values()).count(module.instances[name]) == 1:
            # A class documents its instance if there is only one.
            return self._resolve(module_name, module.instances[name], seen)
        if name in module.imports:
            source, imported = module.imports[name]
            if imported is not None and (definition := self._resolve(source, imported, seen)):
                return definition
        for star in module.stars:
            if self._has(star, name) and (definition := self._resolve(star, name, seen)):
                return definition
        return None

    def _has(self, module: str, name: str) -> bool:
        """Whether a star import from a module may include a name."""
        if module not in self._names:
            self._names[module] = frozenset(self.exports(module)) if module in self.modules else frozenset()
        return name in self._names[module]

    def _owner(self, module: Module, path: str) -> tuple[str, str]:
        """The module and name to which a dotted name in a module refers."""
        first, *rest = path.split(".")
        if not rest:
            return module.name, first
        *middle, last = rest
        if not middle and first in module.instances:
            return module.name, f"{module.instances[first]}.{last}"
        owner = ".".join([self._module_of(module, first), *middle])
        return (owner, last) if owner in self.modules else ("", "")

    def _module_of(self, module: Module, name: str) -> str:
        if name in module.imports:
            source, attribute = module.imports[name]
            return source if attribute is None else f"{source}.{attribute}"
        return f"{module.name}.{name}"

    def _exported(self, module: Module) -> Iterator[str]:
        if module.exports is not None:
            yield from module.exports
            for path in module.exports_of:
                owner = self._module_of(module, path)
                if owner in self.modules:
                    yield from self.exports(owner)
            if not module.computed:
                return
        yield from (name for name in self._namespace(module) if not name.startswith("_"))

    def _namespace(self, module: Module) -> Iterator[str]:
        """The names that belong to a module: defined there, or in modules beside and below it."""
        yield from sorted(module.defined)
        yield from sorted(module.aliases.keys() | module.instances.keys())
        home = module.name if module.package else module.name.rpartition(".")[0]
        yield from (name for name, (source, _) in module.imports.items() if _within(source, home or module.name))
        for star in module.stars:
            if star in self.modules and _within(star, home or star):
                yield from self.exports(star)


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")
