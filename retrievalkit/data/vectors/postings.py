"""The inverted index of a vectors/ folder: for each term, its texts and their weights.

    postings.json      the number of texts in each part, and the number of terms
    terms-00000.npy    int32 (terms + 1,): the start of each term's postings
    texts-00000.npy    int32: the texts of the postings, ascending, counted from the part's first text
    weights-00000.npy  float32: their weights

A part holds consecutive texts, few enough that their scores fit in the CPU cache. Files are mapped into memory, so a
search reads only the postings of its terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from retrievalkit import storage
from retrievalkit.data.vectors.arrays import array_in, check_range, check_starts, in_pieces, reading
from retrievalkit.data.vectors.store import VectorBlock, VectorStore
from retrievalkit.storage.schemas import Count

PART_TEXTS = 1 << 17
PART_POSTINGS = 1 << 24
REMEDY = "Index the vectors again."
_CONTENTS = "postings.json"
_MOST = 1 << 31
_NAMES, _TYPES = ("terms", "texts", "weights"), ("<i4", "<i4", "<f4")


def write_postings(source: VectorStore, folder: Path, *, part_texts: int = PART_TEXTS) -> dict[str, int]:
    """Write the postings of a vectors/ folder to another folder, in parts of at most `part_texts` texts.

    Returns:
        Counts: "postings" and "parts".
    """
    folder.mkdir(exist_ok=True)
    texts: list[int] = []
    postings = 0
    for by_term in _parts(source, part_texts):
        arrays = (by_term.indptr, by_term.indices, by_term.data)
        for file, array, dtype in zip(_files(folder, len(texts)), arrays, _TYPES, strict=True):
            with file.open("wb") as stream:
                np.save(stream, array.astype(dtype, copy=False), allow_pickle=False)
        texts.append(by_term.shape[0])
        postings += by_term.nnz
        del by_term, arrays, array  # before the next part is collected
    contents = {"parts": texts, "terms": source.vocabulary, "postings": postings}
    storage.write_json(folder / _CONTENTS, contents, indent=None)
    return {"postings": postings, "parts": len(texts)}


def _parts(source: VectorStore, part_texts: int) -> Iterator[Any]:
    """Yield the weights as CSC matrices of at most `part_texts` texts and about `PART_POSTINGS` postings."""
    waiting: list[Any] = []
    shards = (shard for _, shard in source.lexical())
    pieces = (shard[start : start + part_texts] for shard in shards for start in range(0, shard.shape[0], part_texts))
    for piece in pieces:
        texts, postings = sum(matrix.shape[0] for matrix in waiting), sum(matrix.nnz for matrix in waiting)
        if waiting and (texts + piece.shape[0] > part_texts or postings + piece.nnz > PART_POSTINGS):
            yield _joined(waiting)
        waiting.append(piece)
    yield _joined(waiting)


def _joined(waiting: list[Any]) -> Any:
    """Join the pieces into a CSC matrix, freeing them early: the weights are in memory twice, not four times."""
    by_text = scipy.sparse.vstack(waiting, format="csr")
    waiting.clear()
    return by_text.tocsc()


def _files(folder: Path, number: int) -> list[Path]:
    return [folder / f"{name}-{number:05d}.npy" for name in _NAMES]


@dataclass(frozen=True)
class _Contents:
    """The schema of postings.json."""

    parts: list[Count]
    terms: Count
    postings: Count


class Postings:
    """Reader for postings of `write_postings`.

    Attributes:
        folder: The folder.
        parts: The number of texts in each part.
        terms: The number of terms.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        contents = storage.read_document(folder / _CONTENTS, _Contents, do=REMEDY)
        self.parts, self.terms = contents.parts, contents.terms
        with reading(folder, REMEDY):
            if not self.parts or not all(0 < count < _MOST for count in (*self.parts, self.terms)):
                msg = f"{_CONTENTS} does not hold the counts of its parts"
                raise ValueError(msg)
            numbers = range(len(self.parts))
            self._mapped = [list(map(storage.MappedFile.of, _files(folder, number))) for number in numbers]
            if (count := sum(map(self._check, numbers))) != contents.postings:
                msg = f"it has {count} postings instead of {contents.postings}"
                raise ValueError(msg)

    def __len__(self) -> int:
        return sum(self.parts)

    def blocks(self) -> Iterator[VectorBlock]:
        """One block per part, with weights only, as scipy CSC."""
        first = 0
        for number, texts in enumerate(self.parts):
            starts, postings, weights = self._arrays(number)
            shape = texts, self.terms
            matrix = scipy.sparse.csc_matrix((weights, postings, starts), shape=shape, copy=False)
            yield VectorBlock(first, texts, None, None, matrix)
            first += texts

    def _check(self, number: int) -> int:
        """Check the arrays of a part, as scipy does not check bounds; returns the number of postings."""
        starts, texts, weights = self._arrays(number)
        if len(starts) != self.terms + 1 or len(texts) != len(weights):
            msg = f"the files of part {number} do not fit together"
            raise ValueError(msg)
        check_starts(starts, len(texts))
        end = self.parts[number]
        in_pieces(lambda part: check_range(part, end), texts)
        return len(texts)

    def _arrays(self, number: int) -> list[np.ndarray]:
        files = zip(self._mapped[number], _TYPES, strict=True)
        return [file.lent(array_in(file, (dtype,), 1)) for file, dtype in files]
