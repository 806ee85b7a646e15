"""Writes a changed copy of a Lucene index: texts are deleted and other indexes merged in. The old index is unchanged.

Lucene never modifies a file after writing it, so the copy shares the files by hard links.
Segments with deleted texts are rewritten without them, as they would still count in BM25's statistics.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from retrievalkit_pyserini.bulk import do, lines, lucene_errors
from retrievalkit_pyserini.documents import IndexWriting, directory, write_buffer
from retrievalkit_pyserini.handles import bind, constructor, method, returning, then
from retrievalkit_pyserini.java import java_class, java_type

_LOCK = "write.lock"
_DIRECTORY = "org.apache.lucene.store.Directory"


def write_changed(
    folder: Path, target: Path, *, deleted: Iterable[str] = (), added: Sequence[Path] = (), compact: bool = False
) -> None:
    """Write a changed index.

    Args:
        folder: The index.
        target: Folder of the changed index; must not exist.
        deleted: The ids of texts to delete.
        added: Indexes whose texts to add.
        compact: Merge all segments into one.
    """
    target.mkdir()
    for file in sorted(folder.iterdir()):
        if file.name != _LOCK:
            _link(file, target / file.name)
    with lucene_errors(f"open the index '{target}'"):
        config = java_class("org.apache.lucene.index.IndexWriterConfig")()
        config.setRAMBufferSizeMB(write_buffer())
        policy = java_class("org.apache.lucene.index.TieredMergePolicy")()
        policy.setForceMergeDeletesPctAllowed(0.0)
        config.setMergePolicy(policy)
        writer = java_class("org.apache.lucene.index.IndexWriter")(directory(target), config)
    with IndexWriting(target, writer, one_segment=compact), lucene_errors(f"change the index '{target}'"):
        _delete(writer, sorted(deleted))
        for index in added:
            _join(writer, index)
        writer.forceMergeDeletes()


def _delete(writer: Any, ids: Sequence[str]) -> None:
    if ids:
        name = lines("".join(f"{identifier}\n" for identifier in ids))
        types = ("java.lang.String", "java.lang.String")
        term = then(name, bind(constructor("org.apache.lucene.index.Term", *types), 0, "id"))
        delete = bind(_varargs("deleteDocuments", "org.apache.lucene.index.Term"), 0, writer)
        do(then(term, delete), len(ids), 1)


def _join(writer: Any, folder: Path) -> None:
    folders = java_class("java.util.ArrayList")()
    folders.add(directory(folder))
    index = returning(_DIRECTORY, bind(method("java.util.ArrayList", "get", object, int), 0, folders))
    do(then(index, bind(_varargs("addIndexes", _DIRECTORY), 0, writer)), 1, 1)


def _varargs(name: str, kind: str) -> Any:
    """Return the handle of a writer's varargs method for one object; pyjnius confuses its overloads."""
    array = f"[L{kind};"
    return method("org.apache.lucene.index.IndexWriter", name, "long", array).asCollector(java_type(array), 1)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
