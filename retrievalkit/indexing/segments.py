"""Segments of a changed index, searched as one index.

    manifest.json            lists the segments; unlisted files are not part of the index
    ...                      the files of the original index: the first segment, until compaction
    segments/0003/           a segment: a complete index folder, built by the same indexer
    segments/deleted-0004-0003.txt   the deleted texts of segment 0003 after change 4
    segments/corpus-0004.jsonl       the texts of the index after change 4, if they are known

A change writes new files and then replaces the manifest atomically: a change killed before that leaves the old index,
a change killed afterwards leaves the new index. Index files are never modified. A reader keeps the files that it opened
if they are removed. The readers of a cluster, whose workers open them later, lock the segments until then.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrievalkit import storage
from retrievalkit.contracts import Allowed, Indexer
from retrievalkit.contracts.indexers import kept_hits
from retrievalkit.data.files import read_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from retrievalkit.data.vectors import VectorStore, View

FOLDER = "segments"
_SPARE = 16
"""Extra hits requested from a segment with deleted texts; the request doubles until enough are left."""


@dataclass(frozen=True)
class Segment:
    """A segment of an index, as the manifest lists it.

    Attributes:
        name: Its folder in segments/; "" for the original index.
        deleted: The name of the file with the ids of its deleted texts; "" if there are none.
    """

    name: str
    deleted: str = ""

    def folder(self, index: Path) -> Path:
        """Return the folder of the segment."""
        return storage.inside(index, f"{FOLDER}/{self.name}") if self.name else index

    def deleted_ids(self, index: Path) -> frozenset[str]:
        """Return the ids of the deleted texts."""
        if not self.deleted:
            return frozenset()
        return frozenset(line.text for line in read_lines(storage.inside(index, f"{FOLDER}/{self.deleted}")))


def segments_of(manifest: Mapping[str, Any]) -> list[Segment]:
    """Return the segments in an index's manifest; for an unchanged index, the index itself."""
    return [Segment(entry["name"], entry.get("deleted", "")) for entry in manifest.get("segments", [{"name": ""}])]


def joined_vectors(index: Path, manifest: Mapping[str, Any], *, view: View = "all") -> VectorStore | None:
    """Return the vectors of all segments of an index, read as one folder; None if a segment has none."""
    from retrievalkit.data.vectors import JoinedStore, VectorStore

    segments = segments_of(manifest)
    folders = [segment.folder(index) / "vectors" for segment in segments]
    if any(storage.kind_of(folder) != "vectors" for folder in folders):
        return None
    stores = [VectorStore(folder, view=view) for folder in folders]
    deleted = [segment.deleted_ids(index) for segment in segments]
    return JoinedStore(stores, deleted) if len(stores) > 1 or any(deleted) else stores[0]


class Lease:
    """A shared lock on the folders of an index during the object's life, for workers that open their files later.

    On a file system without locks, it does nothing.
    """

    def __init__(self, index: Path, manifest: Mapping[str, Any]) -> None:
        folders = [segment.folder(index) for segment in segments_of(manifest)]
        if "segments" in manifest:
            folders.append(index / FOLDER)
        descriptors = [opened for folder in folders if (opened := _locked(folder, exclusively=False)) is not None]
        weakref.finalize(self, _close, descriptors)


@contextmanager
def unused(folder: Path) -> Iterator[bool]:
    """Yield True if no reader holds a folder; readers are then locked out until the block ends."""
    descriptor = _locked(folder, exclusively=True)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            _close([descriptor])


def _locked(folder: Path, *, exclusively: bool) -> int | None:
    try:
        import fcntl
    except ImportError:  # no such locks on Windows
        return None
    descriptor = None
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB if exclusively else fcntl.LOCK_SH)
    except OSError:
        if descriptor is not None:
            _close([descriptor])
        return None
    return descriptor


def _close(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


class Segmented(Indexer):
    """The segments of an index, each with its own indexer, searched as one index without deleted texts."""

    def __init__(self, parts: Sequence[Indexer], deleted: Sequence[frozenset[str]]) -> None:
        self._parts = list(zip(parts, deleted, strict=True))
        self.view = parts[0].view
        self.indexes = parts[0].indexes  # type: ignore[misc]
        self.from_files = parts[0].from_files
        self.segmented = parts[0].segmented

    def build(self, source: Any, index_dir: Path) -> Mapping[str, float]:
        """Unsupported: each segment is built separately."""
        raise NotImplementedError

    def open(self, index_dir: Path) -> None:
        """Unsupported: each segment is opened separately."""
        raise NotImplementedError

    def search(self, queries: Any, k: int) -> Hits:
        """Return the top-k texts of all segments; ties in segment order, then in the order of each segment."""
        return merged([self._hits(part, deleted, queries, k) for part, deleted in self._parts], k)

    def search_among(self, queries: Any, k: int, allowed: Allowed) -> Hits:
        """Return the top-k allowed texts of all segments; a changed text counts only where it is not deleted."""
        hits: list[Hits] = [([[] for _ in range(len(queries))], [[] for _ in range(len(queries))])]
        for part, deleted in self._parts:
            if remaining := allowed.without(deleted):
                hits.append(part.search_among(queries, k, remaining))
        return merged(hits, k)

    def scores(self, queries: Any, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Return the scores of texts, each from the segment that holds it."""
        import numpy as np

        parts = [part.scores(queries, ids) for part, _ in self._parts]
        for scores, (_, deleted) in zip(parts, self._parts, strict=True):
            for row, names in enumerate(ids):
                outdated = np.fromiter((name in deleted for name in names), dtype=bool, count=len(names))
                scores[row] = np.where(outdated, np.float32(np.nan), scores[row])
        return filled(parts, ids)

    def _hits(self, part: Indexer, deleted: frozenset[str], queries: Any, k: int) -> Hits:
        """Return the top-k texts of a segment, without deleted texts."""
        wanted = k + min(len(deleted), _SPARE)
        while True:
            ids, scores = part.search(queries, wanted)
            hits, enough = kept_hits(ids, scores, lambda name: name not in deleted, k, wanted)
            if enough or wanted >= k + len(deleted):
                return hits
            wanted = min(2 * wanted, k + len(deleted))


Hits = tuple[list[list[str]], list[Any]]


def merged(parts: Sequence[Hits], k: int) -> Hits:
    """Merge the hits of segments to the top k; ties in segment order, then in the order of each segment."""
    import numpy as np

    ids, scores = [], []
    for row in range(len(parts[0][0])):
        names = [name for part_ids, _ in parts for name in part_ids[row]]
        values = np.concatenate([np.asarray(part_scores[row], dtype=np.float32) for _, part_scores in parts])
        order = np.argsort(-values, kind="stable")[:k]
        ids.append([names[place] for place in order.tolist()])
        scores.append(values[order])
    return ids, scores


def filled(parts: Sequence[Sequence[np.ndarray]], ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Combine the scores of texts by segments, which are NaN where a segment lacks the text."""
    import numpy as np

    total: list[np.ndarray] = [np.full(len(names), np.nan, dtype=np.float32) for names in ids]
    for part in parts:
        for row, scores in zip(total, part, strict=True):
            known = ~np.isnan(scores)
            row[known] = scores[known]
    return total
