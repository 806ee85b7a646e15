"""The installed Python packages: their names, versions, source files and compiled modules.

Packages are not imported for this, except for a few compiled modules whose import has no side effects.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from retrievalkit.artifacts import fingerprint_value
from retrievalkit.data.sources.pydoc_source import Module
from retrievalkit.errors import UnknownNameError
from retrievalkit.modules import module_spec

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
# Modules of the standard library that are not for users, or are known by another name.
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


class SourceFile(NamedTuple):
    """A source file: the module's name, the path, and whether it is a package's `__init__`."""

    module: str
    path: Path
    package: bool

    def text(self) -> str:
        """The file's text; bytes that are not UTF-8 are replaced."""
        return self.path.read_text("utf-8", "replace")


def import_name(name: str) -> str:
    """The import name of a package, also from the name of its distribution (scikit-learn).

    Raises:
        UnknownNameError: The package is not installed.
    """
    top = name.partition(".")[0]
    plain = all(part.isidentifier() for part in name.split("."))
    if plain and (top == STANDARD_LIBRARY or _is_importable(top)):
        return name
    by_import = importlib.metadata.packages_distributions()
    for imported, distributions in sorted(by_import.items(), key=lambda item: (item[0].startswith("_"), item[0])):
        if _normal(name) in map(_normal, distributions) and _is_importable(imported):
            return imported
    known = {imported for imported in by_import if not imported.startswith("_") and _is_importable(imported)}
    hint = f"Install it first; '{STANDARD_LIBRARY}' is the standard library."
    raise UnknownNameError("package", name, known, hint=hint)


@functools.cache
def version(package: str) -> str:
    """The version of a package; for editable installs, whose files change, a fingerprint of the files instead."""
    if package == STANDARD_LIBRARY or package in sys.stdlib_module_names:
        return ".".join(map(str, sys.version_info[:3]))
    for name in _distributions(package):
        distribution = importlib.metadata.distribution(name)
        if '"editable": true' not in (distribution.read_text("direct_url.json") or ""):
            return str(distribution.version)
    return fingerprint_value([(file.module, file.text()) for file in source_files(package)])


def source_files(package: str) -> Iterator[SourceFile]:
    """The source files of a package, or of the standard library, ordered by name."""
    if package == STANDARD_LIBRARY:
        folder = Path(sysconfig.get_paths()["stdlib"])
        for name in sorted(sys.stdlib_module_names - _EXCLUDED_MODULES):
            if (path := folder / f"{name}.py").is_file():
                yield SourceFile(name, path, package=False)
            elif (folder / name / "__init__.py").is_file():
                yield from _tree(folder / name, name)
        return
    spec = module_spec(package)
    if spec is not None and spec.submodule_search_locations:
        for location in spec.submodule_search_locations:
            yield from _tree(Path(location), package)
    elif spec is not None and spec.origin and spec.origin.endswith(".py"):
        yield SourceFile(package, Path(spec.origin), package=False)


def compiled_modules(package: str) -> Iterator[Module]:
    """The documentation in the compiled modules of a package that are safe to import."""
    for name in _COMPILED.get(package, ()):
        try:
            compiled = importlib.import_module(name)
        except ImportError:
            continue  # modules differ between versions and platforms
        yield _documented(name, compiled)


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


def _is_importable(name: str) -> bool:
    return module_spec(name) is not None


def _distributions(package: str) -> tuple[str, ...]:
    """The installed distributions that contain a package; one of the same name is found quickly."""
    try:
        return (importlib.metadata.distribution(package).metadata["Name"],)
    except importlib.metadata.PackageNotFoundError:
        return tuple(importlib.metadata.packages_distributions().get(package, ()))


def _tree(folder: Path, name: str) -> Iterator[SourceFile]:
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder).with_suffix("").parts
        if _EXCLUDED_FOLDERS.isdisjoint(inner):
            package = inner[-1] == "__init__"
            yield SourceFile(".".join([name, *(inner[:-1] if package else inner)]), path, package)


def _documented(name: str, compiled: types.ModuleType) -> Module:
    module = Module(name)
    for attribute, value in vars(compiled).items():
        if attribute.startswith("_") or isinstance(value, types.ModuleType) or not callable(value):
            continue
        if isinstance(value, type) or value.__doc__ != type(value).__doc__:
            module.defined.add(attribute)
            _keep(module, attribute, value)
    return module


def _keep(module: Module, name: str, value: object) -> None:
    """Add an object's docstring, and those of a class's members."""
    if isinstance(value.__doc__, str):
        module.docs[name] = value.__doc__
    if isinstance(value, type):
        for member, inner in vars(value).items():
            doc = getattr(inner, "__doc__", None)
            if not member.startswith("_") and isinstance(doc, str) and doc != type(inner).__doc__:
                module.docs[f"{name}.{member}"] = doc
