"""The documentation of installed Python packages as a collection: `pydoc:numpy,scipy`.

Passage: a function or class; its qualified name is id and title, its docstring without the summary line is the text.
Question: the summary line; the passage from which it was taken is the answer. Every machine has thousands of them,
written by people, and the task is realistic: find the function from a description.

Source code is parsed, not imported. The documentation is cached in the user's cache folder, by package and version.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from retrievalkit.artifacts import fingerprint_file, fingerprint_value, loads_json, write_file
from retrievalkit.data.files import uncollected
from retrievalkit.data.sources import pydoc_docstrings as docstrings
from retrievalkit.data.sources import pydoc_installed as installed
from retrievalkit.data.sources import pydoc_source as pysource
from retrievalkit.data.sources.pydoc_docstrings import plain, read_docstring
from retrievalkit.data.sources.pydoc_source import Module, documented, read_module
from retrievalkit.data.sources.source import Source
from retrievalkit.errors import InputError, RetrievalkitError

_RENAMED = {
    "posixpath.": "os.path.",
    "builtins.": "",
    "pandas.core.strings.accessor.StringMethods.": "pandas.Series.str.",
}
# Prefixes of names that are not for users, according to the documentation or their purpose, despite their spelling.
_PRIVATE = (
    "pdb.Pdb.do_",
    "pandas.core.",
    "pandas.compat.",
    "pandas.util.",
    "transformers.testing_utils.",
    "transformers.cli.",
)


class _Entry(NamedTuple):
    name: str
    summary: str
    body: str


class PythonDocumentation(Source):
    """The documentation of installed Python packages: `pydoc:numpy,scipy`; `pydoc:stdlib` is the standard library."""

    content_hashed = True

    def passages(self) -> Iterator[dict[str, Any]]:
        """The documented functions and classes, by package and name."""
        return ({"id": entry.name, "title": entry.name, "text": entry.body} for entry in _entries(self.name))

    def queries(self) -> Iterator[dict[str, Any]]:
        """The summary lines with enough words that belong to a single passage."""
        return ({"query_id": f"q:{entry.name}", "text": entry.summary} for entry in self._asking())

    def judgements(self, split: str) -> Iterator[dict[str, Any]]:  # noqa: ARG002 - there is one split
        """Each summary line with the passage from which it was taken."""
        return ({"query_id": f"q:{entry.name}", "doc_id": entry.name, "score": 1} for entry in self._asking())

    def fingerprint(self) -> str:
        """A hash of the passages and questions."""
        return fingerprint_value(_entries(self.name))

    def size(self) -> int:
        """The number of passages."""
        return len(_entries(self.name))

    def _asking(self) -> Iterator[_Entry]:
        entries = _entries(self.name)
        counts = Counter(plain(entry.summary) for entry in entries)
        return (entry for entry in entries if entry.summary and counts[plain(entry.summary)] == 1)


def _entries(packages: str) -> list[_Entry]:
    entries: dict[str, _Entry] = {}
    for name in _names(packages):
        package = name.partition(".")[0]
        for entry in _of_package(package):
            if name == package or entry.name.startswith(f"{name}."):
                entries.setdefault(entry.name, entry)
    if not entries:
        msg = f"no documentation was found in 'pydoc:{packages}'. Name documented packages: pydoc:numpy,scipy"
        raise InputError(msg)
    return list(entries.values())


def _names(packages: str) -> list[str]:
    """The packages' import names in the order given, without repetitions."""
    listed = (name.strip() for name in packages.split(","))
    return list(dict.fromkeys(installed.import_name(name) for name in listed if name))


def _of_package(package: str) -> list[_Entry]:
    """The entries of one package, from the cache if possible."""
    key = fingerprint_value([_reader(), package, installed.version(package)])
    cache = _cache_folder() / f"{package}-{key}.jsonl.gz"
    try:
        with gzip.open(cache, "rt", encoding="utf-8") as stream:
            return [_Entry(*_texts(line)) for line in stream]
    except (OSError, EOFError, ValueError, TypeError):
        entries = _read_package(package)
    with suppress(OSError, RetrievalkitError):  # the cache is optional; the home folder may be read-only or full
        _store(cache, entries)
    return entries


def _texts(line: str) -> list[str]:
    values = loads_json(line)
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        msg = "the line is not a list of texts"
        raise TypeError(msg)
    return values


def _store(cache: Path, entries: list[_Entry]) -> None:
    with write_file(cache) as staging, gzip.open(staging, "wt", encoding="utf-8", compresslevel=3) as stream:
        stream.writelines(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "retrievalkit" / "pydoc"


@functools.cache
def _reader() -> str:
    """A fingerprint of the code that reads documentation: cached entries are valid until that code changes."""
    code = (__file__, docstrings.__file__, installed.__file__, pysource.__file__)
    return fingerprint_value([fingerprint_file(path) for path in code])


def _read_package(package: str) -> list[_Entry]:
    """Read a package's documentation: one entry per text, under its shortest name, ordered by name."""
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
    """The contents of all modules of a package; documentation for another module is moved there."""
    modules: dict[str, Module] = {}
    # Syntax trees are many objects without cycles, so that garbage collection only costs time.
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
