"""The texts of an index: those that it holds, those of others that are new or changed, and those that it will hold."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrievalkit import storage
from retrievalkit.data import files
from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.passage_parts import PART
from retrievalkit.data.vectors import Ids
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.indexing.open_indexes import open_recorded_corpus
from retrievalkit.indexing.segments import Segment
from retrievalkit.reporting import notices


@dataclass
class Changes:
    """Texts that come.

    Attributes:
        added: Their ids, in order.
        superseded: The ids of those that leave because their document comes in fewer passages.
        unchanged: How many were given that the index holds already.
        texts: A corpus that holds them, if it is known.
    """

    added: list[str] = field(default_factory=list)
    superseded: set[str] = field(default_factory=set)
    unchanged: int = 0
    texts: Corpus | None = None

    def corpus(self) -> Corpus | None:
        """The corpus, if any text comes."""
        return self.texts if self.added else None


@dataclass
class Collected:
    """The texts of an index.

    Attributes:
        digests: The id of each -> a digest of its title and text; None if the texts are not known.
        ids: For each segment the ids of its texts, those that are gone included.
        corpus: The texts, if they are where the index says.
    """

    digests: dict[str, bytes | None]
    ids: list[Ids]
    corpus: Corpus | None

    def corpus_after(self, leaving: Collection[str], changes: Changes) -> Iterator[Passage] | None:
        """The texts without some, and then those that come; None if some are not known."""
        if self.corpus is None or (changes.added and changes.texts is None):
            return None
        coming = set(changes.added)
        left = (passage for passage in self.corpus if passage.id not in leaving)
        return itertools.chain(left, (passage for passage in changes.corpus() or () if passage.id in coming))


def texts_of(index: Path, manifest: Mapping[str, Any], segments: Sequence[tuple[Segment, frozenset[str]]]) -> Collected:
    """The texts that an index holds."""
    ids: list[Ids] = []
    for segment, _ in segments:
        folder = segment.folder(index)
        listed = next((one for one in (folder / "vectors" / "ids.txt", folder / "ids.txt") if one.is_file()), None)
        if listed is None:
            msg = f"'{folder}' does not list its texts, so it cannot be changed. Index the whole corpus again."
            raise UnsupportedError(msg)
        ids.append(Ids(listed))
    corpus = _corpus_of(index, manifest)
    if corpus is not None:
        return Collected({passage.id: _digest(passage) for passage in corpus}, ids, corpus)
    deleted = (gone for _, gone in segments)
    held = {name: None for own, gone in zip(ids, deleted, strict=True) for name in own if name not in gone}
    return Collected(dict(held), ids, None)


def write_changes(source: str | Path, held: Collected, gone: Collection[str], path: Path) -> Changes:
    """Write the passages of a corpus that are new or differ from those that an index holds."""
    if held.corpus is None and held.digests:
        notices.note("the texts of the index are not known, so each that is given counts as new or changed.")
    changes = Changes()
    given: list[str] = []
    new: dict[bytes, str] = {}

    def differing() -> Iterator[dict[str, Any]]:
        for passage in open_corpus(source):
            given.append(passage.id)
            before, digest = held.digests.get(passage.id), _digest(passage)
            if before == digest and passage.id not in gone:
                changes.unchanged += 1
                continue
            if passage.id not in held.digests:
                new[digest] = passage.id
            changes.added.append(passage.id)
            yield {"_id": passage.id, "title": passage.title, "text": passage.text}

    files.write_jsonl(path, differing())
    changes.superseded = superseded(given, held.digests) - set(gone)
    _note_moved(held, new, changes.superseded.union(gone))
    if changes.added:
        changes.texts = open_corpus(path)
        changes.texts.counts_empty = False  # told of already
    return changes


def superseded(given: Iterable[str], held: Iterable[str]) -> set[str]:
    """The passages of documents that come in fewer: ID#4, where ID#1 to ID#3 are given and no other of ID."""
    counts: dict[str, tuple[int, int]] = {}
    for part in filter(None, map(PART.fullmatch, given)):
        count, last = counts.get(part[1], (0, 0))
        counts[part[1]] = count + 1, max(last, int(part[2]))
    whole = {document: last for document, (count, last) in counts.items() if count == last}
    return {part[0] for part in filter(None, map(PART.fullmatch, held)) if int(part[2]) > whole.get(part[1], math.inf)}


def _note_moved(held: Collected, new: Mapping[bytes, str], leaving: Collection[str]) -> None:
    """Note new texts that the index holds under the same path with more or fewer folders before it."""
    moved = [
        (old, name)
        for old, digest in held.digests.items()
        if old not in leaving and digest is not None and (name := new.get(digest)) is not None
        if f"/{old}".endswith(f"/{name}") or f"/{name}".endswith(f"/{old}")
    ]
    if moved:
        old, name = moved[0]
        notices.note(
            f"the index holds {len(moved):,} of the passages to add under another path: '{name}' is '{old}'. Convert "
            "them with --root, the folder of the first conversion, or delete the others."
        )


def corpus_of_vectors(folder: Path, manifest: Mapping[str, Any]) -> Corpus | None:
    """The texts that a vectors folder was encoded from, if they are where it says."""
    entry = manifest.get("corpus")
    if entry is None:
        return None
    path = manifest.get("inputs", {}).get("texts", {}).get("path", entry["source"])
    return _corpus_of(folder, {"corpus": {**entry, "path": path}})


def _corpus_of(folder: Path, manifest: Mapping[str, Any]) -> Corpus | None:
    """The corpus that a manifest names, if it is there and is the same."""
    entry = manifest.get("corpus")
    if entry is None:
        return None
    try:
        return open_recorded_corpus(entry, folder)
    except InputError:
        return None


def _digest(passage: Passage) -> bytes:
    return hashlib.blake2b(json.dumps([passage.title, passage.text]).encode(), digest_size=16).digest()


def write_corpus(path: Path, passages: Iterator[Passage]) -> str:
    """Write the texts of an index, and return the file's fingerprint."""
    files.write_jsonl(path, ({"_id": one.id, "title": one.title, "text": one.text} for one in passages))
    return storage.fingerprint_file(path)
