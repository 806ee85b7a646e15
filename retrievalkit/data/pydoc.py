"""The documentation of installed Python packages as a collection: `pydoc:numpy,scipy`.

Passage: a function or class; its qualified name is id and title, its docstring without the summary line is the text.
Question: the summary line; the passage it was taken from is the answer. Every machine has thousands of them, written
by people, and the task is one that people have: find the function from a description.

Source is read, not imported, but for a few compiled modules whose import does nothing else. What was read is kept in
the user's cache folder, by package and version.
"""

from __future__ import annotations

import functools
import gc
import gzip
import importlib
import importlib.metadata
import importlib.util
import json
import os
import sys
import sysconfig
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from retrievalkit.artifacts import fingerprint_file, fingerprint_value, write_file
from retrievalkit.data import docstrings, pysource
from retrievalkit.data.corpus import Passage
from retrievalkit.data.docstrings import plain, read_docstring
from retrievalkit.data.pysource import Module, documented, read_module
from retrievalkit.errors import InputError, UnknownNameError

STANDARD_LIBRARY = "stdlib"

# Compiled modules whose docstrings are in no source file, and whose import has no side effects.
_COMPILED = {
    "numpy": (
        "numpy._core._multiarray_umath",
        "numpy.random.mtrand",
        "numpy.random._generator",
        "numpy.random.bit_generator",
        "numpy.random._mt19937",
        "numpy.random._pcg64",
        "numpy.random._philox",
        "numpy.random._sfc64",
    ),
    "scipy": (
        "scipy.interpolate._interpnd",
        "scipy.linalg._cythonized_array_utils",
        "scipy.linalg._decomp_update",
        "scipy.ndimage._ni_label",
        "scipy.optimize._lsap",
        "scipy.sparse.csgraph._flow",
        "scipy.sparse.csgraph._matching",
        "scipy.sparse.csgraph._min_spanning_tree",
        "scipy.sparse.csgraph._reordering",
        "scipy.sparse.csgraph._shortest_path",
        "scipy.sparse.csgraph._tools",
        "scipy.sparse.csgraph._traversal",
        "scipy.spatial._ckdtree",
        "scipy.spatial._qhull",
        "scipy.spatial.transform._rotation",
        "scipy.special._special_ufuncs",
        "scipy.special._ufuncs",
    ),
    STANDARD_LIBRARY: (
        "_bisect _bz2 _codecs _collections _contextvars _csv _datetime _decimal _functools _hashlib _heapq _io _json _lzma "
        "_operator _pickle _random _socket _sqlite3 _sre _ssl _stat _struct _thread _tracemalloc _weakref _zoneinfo array "
        "atexit binascii builtins cmath errno faulthandler fcntl gc grp itertools marshal math mmap posix pwd resource "
        "select sys syslog termios time unicodedata zlib"
    ).split(),
}
# Parts of the standard library that are not for use, or under a name that nobody uses.
_LEFT_OUT = frozenset(
    "antigravity this idlelib lib2to3 test turtledemo ensurepip distutils pydoc_data posix nt msilib __future__ "
    "sre_compile sre_constants sre_parse nturl2path opcode pyexpat genericpath ntpath tkinter turtle".split()
)
_RENAMED = {"posixpath.": "os.path.", "builtins.": "", "pandas.core.strings.accessor.StringMethods.": "pandas.Series.str."}
# What a package's own documentation says is not for its users, though no underscore says so.
_PRIVATE = ("pandas.core.", "pandas.compat.", "pandas.util.", "transformers.testing_utils.", "transformers.cli.")
_NOT_READ = frozenset({"tests", "test", "distutils", "_vendor", "vendor", "vendored", "_vendored", "externals", "site-packages", "__pycache__", "node_modules"})


class Question(NamedTuple):
    """A summary line and the passage it was taken from."""

    id: str
    text: str
    passage_id: str


class _Entry(NamedTuple):
    name: str
    summary: str
    body: str


def passages(packages: str | Iterable[str]) -> list[Passage]:
    """The passages of packages ("numpy,scipy"; "stdlib" is the standard library), by package and name.

    Raises:
        UnknownNameError: A package is not installed.
    """
    return [Passage(one.name, one.name, one.body) for one in _entries(packages)]


def questions(packages: str | Iterable[str]) -> list[Question]:
    """The questions: summary lines that say enough, and that no other passage of these packages has."""
    entries = _entries(packages)
    times = Counter(plain(one.summary) for one in entries)
    return [
        Question(f"q:{one.name}", one.summary, one.name)
        for one in entries
        if one.summary and times[plain(one.summary)] == 1
    ]


def fingerprint(packages: str | Iterable[str]) -> str:
    """A fingerprint of the collection: the packages and their versions."""
    return fingerprint_value([_reader(), [[name, _version(name.partition(".")[0])] for name in _names(packages)]])


def _entries(packages: str | Iterable[str]) -> list[_Entry]:
    found: dict[str, _Entry] = {}
    for name in _names(packages):
        package = name.partition(".")[0]
        for entry in _of_package(package):
            if name == package or entry.name.startswith(f"{name}."):
                found.setdefault(entry.name, entry)
    if not found:
        msg = f"no documentation was found in the packages {packages}. Name others: pydoc:numpy,scipy, for one."
        raise InputError(msg)
    return list(found.values())


def _names(packages: str | Iterable[str]) -> list[str]:
    """The packages' import names, in the order given, each once."""
    listed = packages.split(",") if isinstance(packages, str) else packages
    return list(dict.fromkeys(_import_name(one.strip()) for one in listed if one.strip()))


def _import_name(name: str) -> str:
    """The name a package is imported by; the name it is installed by (scikit-learn) is understood too."""
    top = name.partition(".")[0]
    if top == STANDARD_LIBRARY or _is_importable(top):
        return name
    by_import = importlib.metadata.packages_distributions()
    for imported, distributions in sorted(by_import.items()):
        if name.lower().replace("_", "-") in (one.lower().replace("_", "-") for one in distributions):
            return imported
    known = {one for one in by_import if not one.startswith("_") and _is_importable(one)} | {STANDARD_LIBRARY}
    raise UnknownNameError("package", name, known, hint="pydoc: reads packages that are installed here.")


def _is_importable(name: str) -> bool:
    try:
        return name.isidentifier() and importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _version(package: str) -> str:
    """The version of a package; what can change without its version has a fingerprint of its files instead."""
    if package == STANDARD_LIBRARY or package in sys.stdlib_module_names:
        return ".".join(map(str, sys.version_info[:3]))
    for name in _distributions(package):
        found = importlib.metadata.distribution(name)
        if '"editable": true' not in (found.read_text("direct_url.json") or ""):
            return str(found.version)
    return fingerprint_value(sorted((name, path.read_text("utf-8", "replace")) for name, path, _ in _files(package)))


@functools.cache
def _distributions(package: str) -> tuple[str, ...]:
    """The installed distributions that bring a package; those of the same name are found fast."""
    try:
        return (importlib.metadata.distribution(package).metadata["Name"],)
    except importlib.metadata.PackageNotFoundError:
        return tuple(importlib.metadata.packages_distributions().get(package, ()))


@functools.cache
def _reader() -> str:
    """A fingerprint of the code that reads documentation: what it read is valid as long as it is the same."""
    return fingerprint_value([fingerprint_file(path) for path in (__file__, docstrings.__file__, pysource.__file__)])


def _of_package(package: str) -> list[_Entry]:
    """The entries of one package, from the cache where it has them."""
    cache = _cache_folder() / f"{package}-{fingerprint_value([_reader(), package, _version(package)])}.jsonl.gz"
    try:
        with gzip.open(cache, "rt", encoding="utf-8") as stream:
            return [_Entry(*json.loads(line)) for line in stream]
    except (OSError, EOFError, ValueError, TypeError):
        entries = _read_package(package)
    try:
        with write_file(cache) as staging, gzip.open(staging, "wt", encoding="utf-8", compresslevel=3) as stream:
            stream.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    except OSError:
        pass  # a cache is a convenience; the home folder may be read-only or full
    return entries


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "retrievalkit" / "pydoc"


def _read_package(package: str) -> list[_Entry]:
    """Read a package's documentation: one entry a text, under its shortest name, in the order of names."""
    modules = {}
    with _no_collection():
        for name, path, is_package in _files(package):
            modules[name] = read_module(path.read_text("utf-8", "replace"), name, package=is_package)
    for name in _COMPILED.get(package, ()):
        if compiled := _compiled(name):
            modules.setdefault(name, compiled)
    for module in list(modules.values()):
        for owner, name, doc in module.elsewhere:
            if owner in modules:
                modules[owner].docs.setdefault(name, doc)
                top = name.partition(".")[0]
                modules[owner].defined.add(top)
                if module.name.startswith(owner) and modules[owner].exports is not None and not top.startswith("_"):
                    modules[owner].exports.append(top)
    best: dict[tuple[str, str], _Entry] = {}
    for path, doc in documented(modules):
        name = _renamed(path)
        read = read_docstring(doc, name)
        if read is None or name.partition(".")[0] in _LEFT_OUT or name.startswith(_PRIVATE):
            continue
        entry = _Entry(name, read.summary, read.body)
        first = best.setdefault((read.summary, read.body), entry)
        if _rank(name) < _rank(first.name):
            best[read.summary, read.body] = entry
    unique: dict[str, _Entry] = {}
    for entry in best.values():
        unique.setdefault(entry.name, entry)
    return sorted(unique.values())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without the cyclic garbage collector: syntax trees are many objects and no cycles, and scanning them is slow."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _rank(name: str) -> tuple[int, int, str]:
    return name.count("."), len(name), name


def _renamed(path: str) -> str:
    for prefix, other in _RENAMED.items():
        if path.startswith(prefix):
            return other + path.removeprefix(prefix)
    return path


def _files(package: str) -> Iterator[tuple[str, Path, bool]]:
    """Module name, path, and whether it is a package, of each source file."""
    if package == STANDARD_LIBRARY:
        folder = Path(sysconfig.get_paths()["stdlib"])
        for name in sorted(sys.stdlib_module_names - _LEFT_OUT):
            if (path := folder / f"{name}.py").is_file():
                yield name, path, False
            elif (folder / name / "__init__.py").is_file():
                yield from _tree(folder / name, name)
        return
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.submodule_search_locations:
        for location in spec.submodule_search_locations:
            yield from _tree(Path(location), package)
    elif spec is not None and spec.origin and spec.origin.endswith(".py"):
        yield package, Path(spec.origin), False


def _tree(folder: Path, name: str) -> Iterator[tuple[str, Path, bool]]:
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder).with_suffix("").parts
        if _NOT_READ.isdisjoint(inner):
            is_package = inner[-1] == "__init__"
            yield ".".join([name, *(inner[:-1] if is_package else inner)]), path, is_package


def _compiled(name: str) -> Module | None:
    """What a compiled module documents."""
    try:
        found = importlib.import_module(name)
    except ImportError:
        return None
    module = Module(name)
    for attribute, value in vars(found).items():
        if attribute.startswith("_") or isinstance(value, types.ModuleType) or not callable(value):
            continue
        doc = getattr(value, "__doc__", None)
        if isinstance(value, type) or doc != type(value).__doc__:
            module.defined.add(attribute)
            _keep_docs(module, attribute, value)
    return module


def _keep_docs(module: Module, name: str, value: object) -> None:
    doc = getattr(value, "__doc__", None)
    if isinstance(doc, str):
        module.docs[name] = doc
    if isinstance(value, type):
        for member, inner in vars(value).items():
            text = getattr(inner, "__doc__", None)
            if not member.startswith("_") and isinstance(text, str) and text != type(inner).__doc__:
                module.docs[f"{name}.{member}"] = text
