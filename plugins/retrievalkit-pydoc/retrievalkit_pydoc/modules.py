"""The modules of installed Python packages: their files, definitions, documentation and public names.

Source code is parsed, not imported, except for a few compiled modules whose import has no side effects.
The public name of a function is the shortest path by which it can be reached: `scipy.linalg.eigh` rather than
`scipy.linalg._decomp.eigh`. To find it, imports, star imports, `__all__` and assignments are followed.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.metadata
import importlib.util
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path

from retrievalkit.contracts.commands import fingerprint_value
from retrievalkit.data.files import uncollected
from retrievalkit.errors import UnknownNameError

STANDARD_LIBRARY = "stdlib"

# Compiled modules whose docstrings are not in any source file, and whose import has no side effects.
_COMPILED = {
    "numpy": (
        "numpy._core._multiarray_umath", "numpy.random.mtrand", "numpy.random._generator",
        "numpy.random.bit_generator", "numpy.random._mt19937", "numpy.random._pcg64", "numpy.random._philox",
        "numpy.random._sfc64",
    ),
    "scipy": (
        "scipy.interpolate._interpnd", "scipy.linalg._cythonized_array_utils", "scipy.linalg._decomp_update",
        "scipy.ndimage._ni_label", "scipy.optimize._lsap", "scipy.sparse.csgraph._flow",
        "scipy.sparse.csgraph._matching", "scipy.sparse.csgraph._min_spanning_tree",
        "scipy.sparse.csgraph._reordering", "scipy.sparse.csgraph._shortest_path", "scipy.sparse.csgraph._tools",
        "scipy.sparse.csgraph._traversal", "scipy.spatial._ckdtree", "scipy.spatial._qhull",
        "scipy.spatial.transform._rotation", "scipy.special._special_ufuncs", "scipy.special._ufuncs",
    ),
    STANDARD_LIBRARY: (
        "_bisect", "_bz2", "_codecs", "_collections", "_contextvars", "_csv", "_datetime", "_decimal", "_functools",
        "_hashlib", "_heapq", "_io", "_json", "_lzma", "_operator", "_pickle", "_random", "_socket", "_sqlite3",
        "_sre", "_ssl", "_stat", "_struct", "_thread", "_tracemalloc", "_weakref", "_zoneinfo", "array", "atexit",
        "binascii", "builtins", "cmath", "errno", "faulthandler", "fcntl", "gc", "grp", "itertools", "marshal",
        "math", "mmap", "posix", "pwd", "resource", "select", "sys", "syslog", "termios", "time", "unicodedata",
        "zlib",
    ),
}  # fmt: skip
# Modules of the standard library that are not for users, or have another name.
_EXCLUDED_MODULES = frozenset((
    "antigravity", "this", "idlelib", "lib2to3", "test", "turtledemo", "ensurepip", "distutils", "pydoc_data", "nt",
    "posix", "msilib", "__future__", "sre_compile", "sre_constants", "sre_parse", "nturl2path", "opcode", "pyexpat",
    "genericpath", "ntpath", "tkinter", "turtle",
))  # fmt: skip
# Folders inside packages with tests, copies of other packages, or modules that Python has removed.
_EXCLUDED_FOLDERS = frozenset((
    "tests", "test", "distutils", "_vendor", "vendor", "vendored", "_vendored", "externals", "site-packages",
    "__pycache__", "node_modules",
))  # fmt: skip
_DOC_CALLS = ("add_newdoc", "add_docstr", "_add_docstr", "add_docstr_all")


def import_name(name: str) -> str:
    """Return the import name of a package, also from the name of its distribution (scikit-learn)."""
    top = name.partition(".")[0]
    if all(part.isidentifier() for part in name.split(".")) and (top == STANDARD_LIBRARY or _spec(top)):
        return name
    by_import = importlib.metadata.packages_distributions()
    wanted = name.lower().replace("_", "-")
    for imported, distributions in sorted(by_import.items(), key=lambda item: (item[0].startswith("_"), item[0])):
        if wanted in (other.lower().replace("_", "-") for other in distributions) and _spec(imported):
            return imported
    known = {imported for imported in by_import if not imported.startswith("_") and _spec(imported)}
    hint = f"Install it first; '{STANDARD_LIBRARY}' is the standard library."
    raise UnknownNameError("package", name, known, hint=hint)


def _spec(top: str) -> ModuleSpec | None:
    """Return the import spec of a package or module; None if it is not installed."""
    with suppress(ImportError, ValueError):  # ValueError: a module created at run time
        return importlib.util.find_spec(top) if top.isidentifier() else None
    return None


@functools.cache
def version(package: str) -> str:
    """Return the version of a package; for editable installs, whose files change, a fingerprint of the files."""
    if package == STANDARD_LIBRARY or package in sys.stdlib_module_names:
        return ".".join(map(str, sys.version_info[:3]))
    try:  # a distribution of the same name is looked up quickly
        distributions = [importlib.metadata.distribution(package)]
    except importlib.metadata.PackageNotFoundError:
        names = importlib.metadata.packages_distributions().get(package, ())
        distributions = [importlib.metadata.distribution(name) for name in names]
    for distribution in distributions:
        if '"editable": true' not in (distribution.read_text("direct_url.json") or ""):
            return str(distribution.version)
    return fingerprint_value([(name, path.read_text("utf-8", "replace")) for name, path in _files(package)])


@dataclass
class Module:
    """The contents of a module."""

    name: str
    package: bool = False  # an `__init__` file
    docs: dict[str, str] = field(default_factory=dict)  # qualified name within the module -> docstring
    defined: set[str] = field(default_factory=set)  # functions and classes at the top level
    imports: dict[str, tuple[str, str | None]] = field(default_factory=dict)  # name -> (module, name; None = itself)
    stars: list[str] = field(default_factory=list)  # modules from which all names are imported
    exports: list[str] | None = None  # names in `__all__`
    computed: bool = False  # `__all__` is computed: it may contain more names than can be read
    exports_of: list[str] = field(default_factory=list)  # modules whose `__all__` is added
    aliases: dict[str, str] = field(default_factory=dict)  # name -> the dotted name that is assigned to it
    instances: dict[str, str] = field(default_factory=dict)  # name -> the class whose instance is assigned to it
    elsewhere: list[tuple[str, str, str]] = field(default_factory=list)  # (module, name, docstring) of others' objects

    def target(self, name: str) -> str:
        """Return the dotted path that a name in this module stands for."""
        source, attribute = self.imports.get(name, (self.name, name))
        return source if attribute is None else f"{source}.{attribute}"

    def read(self, body: Iterable[ast.stmt]) -> None:
        """Add what statements define, import, export and document."""
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    self.defined.add(node.name)
                    self._document(node, "")
                case ast.Import():
                    for alias in node.names:
                        target = alias.name if alias.asname else alias.name.partition(".")[0]
                        self.imports[alias.asname or target] = (target, None)
                case ast.ImportFrom():
                    source = node.module or ""
                    if node.level:
                        parts = self.name.split(".")
                        above = parts[: len(parts) - node.level + self.package]
                        source = ".".join([*above, source] if source else above)
                    for alias in node.names:
                        if alias.name == "*":
                            self.stars.append(source)
                        else:
                            self.imports[alias.asname or alias.name] = (source, alias.name)
                case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                    for part in ("body", "orelse", "finalbody"):
                        self.read(getattr(node, part, []))
                    for handler in getattr(node, "handlers", []):
                        self.read(handler.body)
                case (
                    ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value)
                ):
                    self._assign(target, value)
                case ast.AugAssign(target=ast.Name(id="__all__"), value=value):
                    self._export(value)
                case ast.Expr(value=ast.Call(func=function, args=arguments)):
                    self._call(_dotted(function), arguments)

    def _document(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, prefix: str) -> None:
        """Add the docstrings of a definition and of a class's members."""
        name = prefix + node.name
        doc = ast.get_docstring(node, clean=False)
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if member.name == "__init__" and not doc:
                    doc = ast.get_docstring(member, clean=False)
                elif not member.name.startswith("_"):
                    self._document(member, f"{name}.")
        if doc:
            self.docs.setdefault(name, doc)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case ast.Name(id="__all__"), _:
                self.exports = None
                self._export(value)
            case ast.Name(id=name), ast.Name() | ast.Attribute() if path := _dotted(value):
                if path != name:
                    self.aliases[name] = path
            case ast.Name(id=name), ast.Call(func=call, args=arguments) if function := _dotted(call):
                if function.rpartition(".")[2] in _DOC_CALLS and len(arguments) > 1:
                    if doc := _string(arguments[1]):
                        self.defined.add(name)
                        self.docs.setdefault(name, doc)
                elif "." not in function:
                    self.instances[name] = function
            case ast.Attribute(value=owner, attr="__doc__"), _ if (doc := _string(value)) and (path := _dotted(owner)):
                self.docs.setdefault(path, doc)

    def _export(self, value: ast.expr) -> None:
        """Add the names that an expression adds to `__all__`, as far as they can be read."""
        self.exports = self.exports or []
        match value:
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                self.exports += [name for item in items if (name := getattr(item, "value", None)) and type(name) is str]
                self.computed |= not all(isinstance(item, ast.Constant) for item in items)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                self._export(left)
                self._export(right)
            case (
                ast.Call(func=ast.Attribute(value=inner, attr="copy"))
                | ast.Call(func=ast.Name(id="list" | "sorted"), args=[inner])
            ):
                self._export(inner)
            case ast.Attribute(value=owner, attr="__all__") if path := _dotted(owner):
                self.exports_of.append(path)
            case _:
                self.computed = True

    def _call(self, path: str, arguments: list[ast.expr]) -> None:
        """Read a call used as a statement: it may extend `__all__`, or document compiled code.

        Known calls: add_newdoc("module", "name", doc | ("attribute", doc) | [("attribute", doc), ...]),
        add_newdoc("name", doc), add_docstr(module.name, doc), add_docstr_all("method", doc).
        """
        parent = self.name.rpartition(".")[0]
        documented: list[tuple[str, str, str]] = []
        match path.rpartition(".")[2], [_string(argument) for argument in arguments]:
            case "extend" | "append", [_] if path in ("__all__.extend", "__all__.append"):
                (value,) = arguments
                self._export(ast.List(elts=[value]) if isinstance(value, ast.Constant) else value)
            case "extend_all", [_] if owner := _dotted(arguments[0]):
                self.exports_of.append(owner)  # numpy's idiom for adding a module's names to `__all__`
            case "add_newdoc", [owner, name, doc] if owner and name:
                documented.append((owner, name, doc))
                for pair in arguments[2].elts if isinstance(arguments[2], ast.List) else [arguments[2]]:
                    if isinstance(pair, ast.Tuple) and len(pair.elts) == 2:
                        attribute, doc = map(_string, pair.elts)
                        documented.append((owner, f"{name}.{attribute}", doc))
            case "add_newdoc", [name, doc] if name:
                documented.append((parent, name, doc))
            case "add_docstr_all", [name, doc, *_] if name:
                documented.append((parent, f"Tensor.{name}", doc))
            case "add_docstr" | "_add_docstr", [_, doc, *_]:
                owner, _, name = _dotted(arguments[0]).partition(".")
                documented.append((owner, name, doc))
        self.elsewhere += [(owner, name, doc) for owner, name, doc in documented if doc]


def read_module(source: str, name: str, *, package: bool = False) -> Module:
    """Read a source file; invalid Python yields an empty module."""
    module = Module(name, package)
    with warnings.catch_warnings(), suppress(SyntaxError, ValueError, RecursionError):
        # Warnings about invalid escapes in third-party code do not concern the user.
        warnings.simplefilter("ignore")
        module.read(ast.parse(source).body)
    return module


def read_package(package: str) -> dict[str, Module]:
    """Return the contents of all modules of a package; documentation written for another module is moved there."""
    modules: dict[str, Module] = {}
    # Syntax trees are many objects without cycles, so garbage collection only costs time.
    with uncollected():
        for name, path in _files(package):
            modules[name] = read_module(path.read_text("utf-8", "replace"), name, package=path.stem == "__init__")
    for name in _COMPILED.get(package, ()):
        with suppress(ImportError):  # modules differ between versions and platforms
            modules.setdefault(name, _read_compiled(importlib.import_module(name), name))
    for module in list(modules.values()):
        for home, name, doc in module.elsewhere:
            if owner := modules.get(home):
                top = name.partition(".")[0]
                owner.docs.setdefault(name, doc)
                owner.defined.add(top)
                if module.name.startswith(home) and owner.exports is not None and not top.startswith("_"):
                    owner.exports.append(top)
    return modules


def _files(package: str) -> Iterator[tuple[str, Path]]:
    """Yield the names and source files of the modules of a package, or of the standard library, ordered by name."""
    if package == STANDARD_LIBRARY:
        folder = Path(sysconfig.get_paths()["stdlib"])
        names = sorted(sys.stdlib_module_names - _EXCLUDED_MODULES)
        roots = [(name, path) for name in names for path in (folder / f"{name}.py", folder / name)]
    else:
        spec = _spec(package)
        places = (spec.submodule_search_locations or [spec.origin or ""]) if spec else []
        roots = [(package, Path(place)) for place in places if place]
    for name, root in roots:
        if root.suffix == ".py" and root.is_file():
            yield name, root
        for path in sorted(root.rglob("*.py")) if root.is_dir() else ():
            inner = path.relative_to(root).with_suffix("").parts
            if _EXCLUDED_FOLDERS.isdisjoint(inner):
                yield ".".join([name, *(inner[:-1] if inner[-1] == "__init__" else inner)]), path


def _read_compiled(compiled: types.ModuleType, name: str) -> Module:
    module = Module(name)
    for attribute, value in vars(compiled).items():
        if attribute.startswith("_") or isinstance(value, types.ModuleType) or not callable(value):
            continue
        if not isinstance(value, type) and value.__doc__ == type(value).__doc__:
            continue
        module.defined.add(attribute)
        if isinstance(value.__doc__, str):
            module.docs[attribute] = value.__doc__
        for member, inner in vars(value).items() if isinstance(value, type) else ():
            doc = getattr(inner, "__doc__", None)
            if not member.startswith("_") and isinstance(doc, str) and doc != type(inner).__doc__:
                module.docs[f"{attribute}.{member}"] = doc
    return module


def documented(modules: Mapping[str, Module]) -> Iterator[tuple[str, str]]:
    """(public path, docstring) of every object that has both; members of classes are listed under the class's path."""
    names = _Names(modules)
    paths: dict[tuple[str, str], str] = {}
    for name in filter(is_public, sorted(modules)):
        for export in names.public(name):
            target, path = names.resolve(name, export), f"{name}.{export}"
            if target is None or export.startswith("_"):
                continue
            if target not in paths or _rank(path, target[1]) < _rank(paths[target], target[1]):
                paths[target] = path
    for module in modules.values():
        for qualified, doc in module.docs.items():
            top, *members = qualified.split(".")
            owner, direct = paths.get((module.name, top)), paths.get((module.name, qualified))
            if any(member.startswith("_") for member in members):
                owner = None
            through = [".".join([owner, *members])] if owner else []
            if candidates := through + ([direct] if direct else []):
                yield min(candidates, key=lambda path: (path.count("."), len(path))), doc


def _rank(path: str, definition: str) -> tuple[int, bool, int, str]:
    """Sort key: short paths first; among equals the defined name, unless it belongs to a generator class."""
    last = path.rpartition(".")[2]
    return path.count("."), last != definition or last.endswith("_gen"), len(path), path


def is_public(name: str) -> bool:
    """True if a module's path is for users: no underscores, no tests."""
    return not any(
        part.startswith(("_", "test_")) or part in ("tests", "test", "conftest", "setup") for part in name.split(".")
    )


def _dotted(node: ast.expr) -> str:
    """Return the text of a dotted name (a.b.c); "" for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (owner := _dotted(node.value)):
        return f"{owner}.{node.attr}"
    return ""


def _string(node: ast.expr) -> str:
    """Return a literal string, also if it is formatted, stripped or concatenated; "" for any other expression."""
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


class _Names:
    """Resolves names across the modules of a package."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules = modules
        self._exports: dict[str, set[str]] = {}

    def public(self, name: str) -> set[str]:
        """Return the public names of a module; imports of a plain module without `__all__` are not public."""
        module = self.modules[name]
        if module.package or module.exports is not None:
            return self.exports(name)
        return module.defined | module.aliases.keys() | module.instances.keys()

    def exports(self, name: str) -> set[str]:
        """Return the names that a star import from a module adds; empty for modules outside the package."""
        if name not in self._exports:
            self._exports[name] = set()  # breaks cycles of star imports
            if module := self.modules.get(name):
                self._exports[name] = set(self._exported(module))
        return self._exports[name]

    def resolve(self, home: str, name: str, seen: set[tuple[str, str]] | None = None) -> tuple[str, str] | None:
        """Resolve a module's name to the module and name of its definition; None if it is outside the package."""
        seen = set() if seen is None else seen
        module = self.modules.get(home)
        if module is None or (home, name) in seen:
            return None
        seen.add((home, name))
        if name in module.defined or name in module.docs:
            return home, name
        if name in module.aliases:
            first, *rest = module.aliases[name].split(".")
            if not rest:
                return self.resolve(home, first, seen)
            if len(rest) == 1 and first in module.instances:
                return self.resolve(home, f"{module.instances[first]}.{rest[0]}", seen)
            return self.resolve(".".join([module.target(first), *rest[:-1]]), rest[-1], seen)
        if name in module.instances and list(module.instances.values()).count(module.instances[name]) == 1:
            # A class documents its instance if there is only one.
            return self.resolve(home, module.instances[name], seen)
        if name in module.imports:
            source, imported = module.imports[name]
            if imported is not None and (definition := self.resolve(source, imported, seen)):
                return definition
        for star in module.stars:
            if name in self.exports(star) and (definition := self.resolve(star, name, seen)):
                return definition
        return None

    def _exported(self, module: Module) -> Iterator[str]:
        if module.exports is not None:
            yield from module.exports
            for path in module.exports_of:
                yield from self.exports(module.target(path))
            if not module.computed:
                return
        # Otherwise, the public names defined here, or imported from sibling modules and submodules.
        home = module.name if module.package else module.name.rpartition(".")[0]
        names = [*module.defined, *module.aliases, *module.instances]
        names += [
            name for name, (source, _) in module.imports.items() if f"{source}.".startswith(f"{home or module.name}.")
        ]
        for star in module.stars:
            if not home or f"{star}.".startswith(f"{home}."):
                names += self.exports(star)
        yield from (name for name in names if not name.startswith("_"))
