"""Several vectors/ folders without some of their texts, read as one folder that holds the rest.

What is read is what a folder would give that was encoded anew: the same rows, blocks cut at the same texts. Blocks that
lie in one folder and lack no text are mapped; others are copied into memory as they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrievalkit import artifacts
from retrievalkit.data.vectors.ids import Ids, RowIds
from retrievalkit.data.vectors.store import VectorBlock, VectorStore
from retrievalkit.errors import ArtifactError

SHARD_TEXTS = 8_192
"""Texts of a shard where the first folder does not say how many it was encoded with."""

_READ = 4_096


@dataclass(frozen=True)
class Part:
    """A folder and which of its texts are read.

    Attributes:
        store: The folder.
        rows: Its texts that are read, ascending; None = all.
        first: The row of the first of them among the texts of all parts.
    """

    store: VectorStore
    rows: np.ndarray | None
    first: int

    def __len__(self) -> int:
        return len(self.store) if self.rows is None else len(self.rows)

    def own(self, texts: np.ndarray) -> np.ndarray:
        """The rows in the folder of texts that are counted over all parts."""
        texts = texts - self.first
        return texts if self.rows is None else self.rows[texts]

    def counts(self) -> np.ndarray:
        """(texts,) how many vectors each text has."""
        if self.store.offsets is None:
            return np.full(len(self), self.store.vectors_per_text or 0)
        counts = np.diff(self.store.offsets)
        return counts if self.rows is None else counts[self.rows]


class JoinedIds(RowIds):
    """The ids of the texts of all parts."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return self._parts[-1].first + len(self._parts[-1])

    def take(self, rows: np.ndarray) -> list[str]:
        """The ids of the texts at these rows."""
        rows = np.asarray(rows, dtype=np.int64)
        found = np.empty(len(rows), dtype=object)
        for part, places in by_part(self._parts, rows):
            found[places] = part.store.ids.take(part.own(rows[places]))
        return list(found)

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """(ids,) int64: the row of each id, or -1 if it is unknown."""
        found = np.full(len(ids), -1, dtype=np.int64)
        for part in self._parts:
            rows = part.store.ids.rows(ids)
            if part.rows is None:
                there, places = rows >= 0, rows
            else:
                places = np.searchsorted(part.rows, rows)
                there = (rows >= 0) & (part.rows[np.minimum(places, len(part.rows) - 1)] == rows)
            found[there] = places[there] + part.first
        return found


class JoinedStore(VectorStore):
    """Vectors/ folders as one, without texts that were deleted.

    Args:
        stores: The folders, in order.
        deleted: For each, the ids of the texts that are left out.

    Raises:
        ArtifactError: Their sizes differ, or no text is left.
    """

    def __init__(self, stores: Sequence[VectorStore], deleted: Sequence[Collection[str]]) -> None:
        self._parts = _parts(stores, deleted)
        first = self._parts[0].store
        sizes = {(store.dim, store.vocabulary) for store in stores}
        if len(sizes) > 1:
            msg = f"'{first.folder}' and later segments hold vectors of different sizes, {sorted(sizes)}. Index again."
            raise ArtifactError(msg)
        self.folder, self.manifest = first.folder, first.manifest
        self.ids: Ids | JoinedIds = JoinedIds(self._parts)  # type: ignore[assignment]
        self.dim, self.vocabulary = first.dim, first.vocabulary
        self.dtype = np.result_type(*(store.dtype for store in stores))
        self._texts = len(self.ids)
        self.offsets = None
        self.vectors_per_text = None
        self.rows = 0
        if self.dim:
            self._count_vectors()
        self._shard_texts = int(first.manifest.get("options", {}).get("shard_texts") or SHARD_TEXTS)

    def _count_vectors(self) -> None:
        m = {part.store.vectors_per_text for part in self._parts}
        if len(m) == 1 and None not in m:
            self.vectors_per_text = m.pop()
            self.rows = self._texts * (self.vectors_per_text or 0)
            return
        counts = np.concatenate([part.counts() for part in self._parts])
        self.rows = int(counts.sum())
        if (counts == counts[0]).all():
            self.vectors_per_text = int(counts[0])
        else:
            self.offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])

    @property
    def fingerprint(self) -> str:
        """A fingerprint of the contents of all parts, and of what is read of them."""
        parts = [[part.store.fingerprint, None if part.rows is None else part.rows.tolist()] for part in self._parts]
        return artifacts.fingerprint_value(parts)

    def shards(self) -> Iterator[tuple[int, np.ndarray]]:
        """The vectors, shard by shard."""
        for start in range(0, self._texts if self.dim else 0, self._shard_texts):
            vectors = self.block(start, min(start + self._shard_texts, self._texts)).vectors
            assert vectors is not None
            yield start, vectors

    def lexical(self) -> Iterator[tuple[int, Any]]:
        """The weights, shard by shard."""
        for start in range(0, self._texts if self.vocabulary else 0, self._shard_texts):
            yield start, self.take_weights(np.arange(start, min(start + self._shard_texts, self._texts)))

    def blocks(self, rows: int) -> Iterator[VectorBlock]:
        """All texts in order, in the blocks that a folder encoded anew would give."""
        for first in range(0, self._texts, self._shard_texts):
            last, start = min(first + self._shard_texts, self._texts), first
            while start < last:
                end = min(self._end(start, rows), last)
                yield self._between(start, end)
                start = end

    def block_rows(self, rows: int) -> int:
        """The number of vectors in each of `blocks(rows)`, except the last one of each shard."""
        m = self.vectors_per_text or 1
        starts = np.arange(0, self._texts, self._shard_texts)
        ends = np.minimum(starts + self._shard_texts, self._texts)
        sizes = (
            (ends - starts) * (self.vectors_per_text or 0)
            if self.offsets is None
            else np.diff(self.offsets[np.append(starts, self._texts)])
        )
        return min(max(1, rows // m) * m, int(sizes.max()))

    def block(self, start: int, end: int) -> VectorBlock:
        """The texts from `start` to `end`, without weights."""
        return self._between(start, end, weights=False)

    def take(self, texts: np.ndarray) -> VectorBlock:
        """Any texts, in the order given, read into memory; the block's `first` has no meaning."""
        texts = np.asarray(texts, dtype=np.int64)
        found = [(places, part.store.take(part.own(texts[places]))) for part, places in by_part(self._parts, texts)]
        if not found:
            return self._parts[0].store.take(texts)
        order = np.concatenate([places for places, _ in found])
        block = self._joined_blocks(0, [one for _, one in found])
        return block if (order[1:] > order[:-1]).all() else block.take(np.argsort(order))

    def take_vectors(self, rows: np.ndarray) -> np.ndarray:
        """(rows, dim): any vectors by their row, in the order given, read into memory."""
        taken = np.empty((len(rows), self.dim), dtype=self.dtype)
        texts = self.texts_of(rows)
        starts = texts * (self.vectors_per_text or 0) if self.offsets is None else self.offsets[texts]
        for part, places in by_part(self._parts, texts):
            own = part.own(texts[places])
            offsets = part.store.offsets
            firsts = own * (part.store.vectors_per_text or 0) if offsets is None else offsets[own]
            taken[places] = part.store.take_vectors(firsts + (rows - starts)[places])
        return taken

    def take_weights(self, texts: np.ndarray) -> Any:
        """(texts, vocabulary) scipy CSR: the weights of any texts, in the order given, read into memory."""
        found = list(by_part(self._parts, texts))
        matrices = [part.store.take_weights(part.own(texts[places])) for part, places in found]
        if len(found) == 1:
            return matrices[0]
        return _stacked(matrices)[np.argsort(np.concatenate([places for _, places in found]))]

    def link(self, target: Any) -> None:
        """Refused: there is no folder to link."""
        msg = f"parts of '{self.folder}' cannot be linked to '{target}'"
        raise NotImplementedError(msg)

    def _end(self, start: int, rows: int) -> int:
        """Where a block ends that begins at a text."""
        if self.offsets is None:
            return start + max(1, rows // (self.vectors_per_text or 1))
        return max(start + 1, int(np.searchsorted(self.offsets, self.offsets[start] + rows, side="right")) - 1)

    def _between(self, start: int, end: int, *, weights: bool = True) -> VectorBlock:
        pieces = []
        for part in self._parts:
            first, last = max(start, part.first), min(end, part.first + len(part))
            if first < last:
                pieces.append(_piece(part, part.own(np.array([first, last - 1])), np.arange(first, last), weights))
        return self._joined_blocks(start, pieces)

    def _joined_blocks(self, first: int, pieces: Sequence[VectorBlock]) -> VectorBlock:
        """Blocks one after the other as one."""
        vectors, starts, weights = None, None, None
        if self.dim:
            vectors = pieces[0].vectors if len(pieces) == 1 else np.concatenate([_vectors(one) for one in pieces])
        if self.offsets is not None:
            starts = np.concatenate([[0], np.cumsum(np.concatenate([piece.counts for piece in pieces]))])
        if pieces[0].weights is not None:
            weights = pieces[0].weights if len(pieces) == 1 else _stacked([piece.weights for piece in pieces])
        return VectorBlock(first, sum(piece.texts for piece in pieces), vectors, starts, weights)


def by_part(parts: Sequence[Part], texts: np.ndarray) -> Iterator[tuple[Part, np.ndarray]]:
    """Each part that holds some of the texts, and their positions among them."""
    numbers = np.searchsorted([part.first for part in parts], texts, side="right") - 1
    for number in np.unique(numbers).tolist():
        yield parts[number], np.flatnonzero(numbers == number)


def _parts(stores: Sequence[VectorStore], deleted: Sequence[Collection[str]]) -> list[Part]:
    parts, first = [], 0
    for store, gone in zip(stores, deleted, strict=True):
        rows = None
        if gone:
            lacking = store.ids.rows(list(gone))
            rows = np.delete(np.arange(len(store)), lacking[lacking >= 0])
        part = Part(store, rows, first)
        if len(part):
            parts.append(part)
            first += len(part)
    if not parts:
        msg = f"no text is left in '{stores[0].folder}' and later segments. Index again."
        raise ArtifactError(msg)
    return parts


def _piece(part: Part, ends: np.ndarray, texts: np.ndarray, weights: bool) -> VectorBlock:
    """Some consecutive texts of a part, mapped if they are consecutive in its folder too."""
    start, last = int(ends[0]), int(ends[1])
    store = part.store
    if last - start + 1 != len(texts):
        return store.take(part.own(texts))
    block = store.block(start, last + 1) if store.dim else VectorBlock(0, len(texts), None, None, None)
    if not weights or not store.vocabulary:
        return block
    own = store.take_weights(np.arange(start, last + 1))
    return VectorBlock(0, len(texts), block.vectors, block.starts, own)


def _vectors(block: VectorBlock) -> np.ndarray:
    assert block.vectors is not None
    return block.vectors


def _stacked(matrices: Sequence[Any]) -> Any:
    import scipy.sparse

    return scipy.sparse.vstack(matrices, format="csr")
