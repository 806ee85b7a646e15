"""The documentation of installed Python packages as a collection: `pydoc:numpy,scipy`.

Passage: a function or class; its qualified name is id and title, its docstring without the summary line is the text.
Question: the summary line; the passage it was taken from is the answer. Every machine has thousands of them, written
by people, and the task is one that people have: find the function from a description.

Source is read, not imported. What was read is kept in the user's cache folder, by package and version.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from retrievalkit.artifacts import fingerprint_file, fingerprint_value, write_file
from retrievalkit.data.corpus import Passage
from retrievalkit.data.files import uncollected
from retrievalkit.data.sources import pydoc_docstrings as docstrings
from retrievalkit.data.sources import pydoc_installed as installed
from retrievalkit.data.sources import pydoc_source as pysource
from retrievalkit.data.sources.pydoc_docstrings import plain, read_docstring
from retrievalkit.data.sources.pydoc_source import Module, documented, read_module
from retrievalkit.errors import InputError, RetrievalkitError

_RENAMED = {
    "posixpath.": "os.path.",
    "builtins.": "",
    "pandas.core.strings.accessor.StringMethods.": "pandas.Series.str.",
}
# What is not for a package's users, by its own documentation or by what it is, though no underscore says so.
_PRIVATE = (
    "pdb.Pdb.do_",
    "pandas.core.",
    "pandas.compat.",
    "pandas.util.",
    "transformers.testing_utils.",
    "transformers.cli.",
)


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
    """A fingerprint of the collection: the packages, their versions, and the code that reads them."""
    names = _names(packages)
    return fingerprint_value([_reader(), [[name, installed.version(name.partition(".")[0])] for name in names]])


def _entries(packages: str | Iterable[str]) -> list[_Entry]:
    found: dict[str, _Entry] = {}
    for name in _names(packages):
        package = name.partition(".")[0]
        for entry in _of_package(package):
            if name == package or entry.name.startswith(f"{name}."):
                found.setdefault(entry.name, entry)
    if not found:
        msg = f"no documentation was found in 'pydoc:{packages}'. Name packages that have some: pydoc:numpy,scipy"
        raise InputError(msg)
    return list(found.values())


def _names(packages: str | Iterable[str]) -> list[str]:
    """The packages' import names, in the order given, each once."""
    listed = packages.split(",") if isinstance(packages, str) else packages
    return list(dict.fromkeys(installed.import_name(one.strip()) for one in listed if one.strip()))


def _of_package(package: str) -> list[_Entry]:
    """The entries of one package, from the cache where it has them."""
    key = fingerprint_value([_reader(), package, installed.version(package)])
    cache = _cache_folder() / f"{package}-{key}.jsonl.gz"
    try:
        with gzip.open(cache, "rt", encoding="utf-8") as stream:
            return [_Entry(*json.loads(line)) for line in stream]
    except (OSError, EOFError, ValueError, TypeError):
        entries = _read_package(package)
    with suppress(OSError, RetrievalkitError):  # a cache is a convenience; the home folder may be read-only or full
        _keep(cache, entries)
    return entries


def _keep(cache: Path, entries: list[_Entry]) -> None:
    with write_file(cache) as staging, gzip.open(staging, "wt", encoding="utf-8", compresslevel=3) as stream:
        stream.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "retrievalkit" / "pydoc"


@functools.cache
def _reader() -> str:
    """A fingerprint of the code that reads documentation: what it read is valid as long as it is the same."""
    code = (__file__, docstrings.__file__, installed.__file__, pysource.__file__)
    return fingerprint_value([fingerprint_file(path) for path in code])


def _read_package(package: str) -> list[_Entry]:
    """Read a package's documentation: one entry a text, under its shortest name, in the order of names."""
    best: dict[tuple[str, str], _Entry] = {}
    for path, doc in documented(_modules(package)):
        name = _renamed(path)
        read = None if name.startswith(_PRIVATE) else read_docstring(doc, name)
        if read is None:
            continue
        entry = _Entry(name, read.summary, read.body)
        first = best.setdefault((read.summary, read.body), entry)
        if _rank(name) < _rank(first.name):
            best[read.summary, read.body] = entry
    unique: dict[str, _Entry] = {}
    for entry in best.values():
        unique.setdefault(entry.name, entry)
    return sorted(unique.values())


def _modules(package: str) -> dict[str, Module]:
    """What all modules of a package hold; what one documents of another stands there."""
    modules: dict[str, Module] = {}
    # Syntax trees are many objects and no cycles.
    with uncollected():
        for file in installed.source_files(package):
            modules[file.module] = read_module(file.text(), file.module, package=file.package)
    for compiled in installed.compiled_modules(package):
        modules.setdefault(compiled.name, compiled)
    for module in list(modules.values()):
        for owner, name, doc in module.elsewhere:
            if owner in modules:
                modules[owner].add(name, doc, export=module.name.startswith(owner))
    return modules


def _rank(name: str) -> tuple[int, int, str]:
    return name.count("."), len(name), name


def _renamed(path: str) -> str:
    for prefix, other in _RENAMED.items():
        if path.startswith(prefix):
            return other + path.removeprefix(prefix)
    return path
