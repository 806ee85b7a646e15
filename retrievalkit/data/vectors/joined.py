"""Several vectors/ folders, read as one folder without the deleted texts.

Rows and block boundaries are the same as in a folder encoded again from the remaining texts. Blocks within one folder
and without deletions are memory-mapped; other blocks are copied into memory when they are read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrievalkit import storage
from retrievalkit.data.vectors.arrays import groups
from retrievalkit.data.vectors.ids import Ids
from retrievalkit.data.vectors.store import VectorBlock, VectorStore
from retrievalkit.errors import ArtifactError

SHARD_TEXTS = 8_192
"""Texts per shard if the manifest of the first folder does not record the number."""


@dataclass(frozen=True)
class Part:
    """A folder and the selection of its texts.

    Attributes:
        store: The folder.
        rows: The selected rows, ascending; None = all.
        first: The row of the first selected text among the texts of all parts.
    """

    store: VectorStore
    rows: np.ndarray | None
    first: int

    def __len__(self) -> int:
        return len(self.store) if self.rows is None else len(self.rows)

    def folder_rows(self, texts: np.ndarray) -> np.ndarray:
        """Convert rows counted over all parts to rows of the folder."""
        texts = texts - self.first
        return texts if self.rows is None else self.rows[texts]


class JoinedIds(Ids):
    """The ids of the texts of all parts."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return self._parts[-1].first + len(self._parts[-1])

    def take(self, rows: np.ndarray) -> list[str]:
        """Return the ids at these rows."""
        rows = np.asarray(rows, dtype=np.int64)
        ids = np.empty(len(rows), dtype=object)
        for part, places in by_part(self._parts, rows):
            ids[places] = part.store.ids.take(part.folder_rows(rows[places]))
        return list(ids)

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """(ids,) int64: the row of each id, or -1 if it is unknown."""
        result = np.full(len(ids), -1, dtype=np.int64)
        for part in self._parts:
            rows = part.store.ids.rows(ids)
            if part.rows is None:
                known, places = rows >= 0, rows
            else:
                places = np.searchsorted(part.rows, rows)
                known = (rows >= 0) & (part.rows[np.minimum(places, len(part.rows) - 1)] == rows)
            result[known] = places[known] + part.first
        return result


class JoinedStore(VectorStore):
    """Several vectors/ folders as one, without the deleted texts.

    Args:
        stores: The folders, in order.
        deleted: For each folder, the ids of its deleted texts.

    Raises:
        ArtifactError: The vector sizes differ, or no text is left.
    """

    def __init__(self, stores: Sequence[VectorStore], deleted: Sequence[Collection[str]]) -> None:
        self._join(_parts(stores, deleted))

    @classmethod
    def among(cls, store: VectorStore, rows: np.ndarray) -> JoinedStore:
        """At least one text of a folder; `rows` are ascending."""
        joined = cls.__new__(cls)
        joined._join([Part(store, rows, 0)])
        return joined

    def _join(self, parts: Sequence[Part]) -> None:
        self._parts, stores = parts, [part.store for part in parts]
        first = stores[0]
        sizes = {(store.dim, store.vocabulary, store.keyed) for store in stores}
        if len(sizes) > 1:
            msg = f"'{first.folder}' and later segments hold vectors of different sizes or keys, {sorted(sizes)}. "
            msg += "Index again."
            raise ArtifactError(msg)
        self.folder, self.manifest = first.folder, first.manifest
        self.ids = JoinedIds(self._parts)
        self.dim, self.vocabulary, self.keyed = first.dim, first.vocabulary, first.keyed
        self.dtype = np.result_type(*(store.dtype for store in stores))
        self.offsets, self.vectors_per_text, self.rows = None, None, 0
        if self.dim:
            firsts = [part.store._rows_of(np.arange(len(part.store) + 1)) for part in self._parts]
            selections = [slice(None) if part.rows is None else part.rows for part in self._parts]
            counts = np.concatenate([np.diff(starts)[rows] for starts, rows in zip(firsts, selections, strict=True)])
            self.rows = int(counts.sum())
            if (counts == counts[0]).all():
                self.vectors_per_text = int(counts[0])
            else:
                self.offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        shard_texts = int(first.manifest.get("options", {}).get("shard_texts") or SHARD_TEXTS)
        self._starts = [*range(0, len(self), shard_texts), len(self)]
        self._store = None

    @property
    def fingerprint(self) -> str:
        """A fingerprint of the contents of all parts and of the selected rows."""
        parts = [[part.store.fingerprint, None if part.rows is None else part.rows.tolist()] for part in self._parts]
        return storage.fingerprint_value(parts)

    def take_vectors(self, rows: np.ndarray) -> np.ndarray:
        """(rows, dim): any vectors by row, in the order of `rows`, read into memory."""
        vectors = np.empty((len(rows), self.dim), dtype=self.dtype)
        for store, places, inside in self._located(rows):
            vectors[places] = store.take_vectors(inside)
        return vectors

    def take_keys(self, rows: np.ndarray) -> np.ndarray:
        """(rows,) int32: the keys of any vectors by row, in the order of `rows`, read into memory."""
        keys = np.empty(len(rows), dtype=np.int32)
        for store, places, inside in self._located(rows):
            keys[places] = store.take_keys(inside)
        return keys

    def _located(self, rows: np.ndarray) -> Iterator[tuple[VectorStore, np.ndarray, np.ndarray]]:
        """Yield each folder that holds some vectors, their positions in `rows`, and their rows in the folder."""
        texts = self.texts_of(rows)
        inside = rows - self._rows_of(texts)
        for part, places in by_part(self._parts, texts):
            firsts = part.store._rows_of(part.folder_rows(texts[places]))
            yield part.store, places, firsts + inside[places]

    def take_weights(self, texts: np.ndarray) -> Any:
        """(texts, vocabulary) scipy CSR: the weights of any texts, in the order of `texts`, read into memory."""
        import scipy.sparse

        pieces = list(by_part(self._parts, texts)) or [(self._parts[0], texts)]
        matrices = [part.store.take_weights(part.folder_rows(texts[places])) for part, places in pieces]
        if len(pieces) == 1:
            return matrices[0]
        order = np.argsort(np.concatenate([places for _, places in pieces]))
        return scipy.sparse.vstack(matrices, format="csr")[order]

    def link(self, target: Any) -> None:
        """Unsupported: there is no single folder."""
        msg = f"parts of '{self.folder}' cannot be linked to '{target}'"
        raise NotImplementedError(msg)

    def _between(self, start: int, end: int, *, vectors: bool = True, weights: bool = True) -> VectorBlock:
        wanted, blocks = {"vectors": vectors, "weights": weights}, []
        for part, places in by_part(self._parts, np.arange(start, end)):
            selected = part.folder_rows(start + places)
            first, last = int(selected[0]), int(selected[-1]) + 1
            # Memory-map the block if its texts are consecutive in their folder too.
            mapped = last - first == len(selected)
            blocks.append(part.store._between(first, last, **wanted) if mapped else part.store.take(selected))
        rows = [block.vectors for block in blocks if vectors and block.vectors is not None]
        matrices = [block.weights for block in blocks if weights and block.weights is not None]
        return self._as_block(start, end, rows, matrices)


def by_part(parts: Sequence[Part], texts: np.ndarray) -> Iterator[tuple[Part, np.ndarray]]:
    """Yield each part that holds some of `texts`, and the positions of these in `texts`."""
    numbers = np.searchsorted([part.first for part in parts], texts, side="right") - 1
    return ((parts[number], places) for number, places in groups(numbers))


def _parts(stores: Sequence[VectorStore], deleted: Sequence[Collection[str]]) -> list[Part]:
    parts, first = [], 0
    for store, removed in zip(stores, deleted, strict=True):
        rows = None
        if removed:
            unselected = store.ids.rows(list(removed))
            rows = np.delete(np.arange(len(store)), unselected[unselected >= 0])
        part = Part(store, rows, first)
        if len(part):
            parts.append(part)
            first += len(part)
    if not parts:
        msg = f"no text is left in '{stores[0].folder}' and later segments. Index again."
        raise ArtifactError(msg)
    return parts
