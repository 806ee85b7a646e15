"""Vectors of a vectors/ folder beside the weights of its frequent terms, rounded to bf16: for rough products.

    rounded.json       for each part the greatest lengths of its rows, and what rounding changed at most
    terms.npy          int32 (terms,): the terms, ascending
    rounded-00000.npy  uint16 (texts, dim + terms): the bits of bf16 numbers, a text a row

A term that most texts have costs more as postings, looked through number by number, than as a column of a matrix.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retrievalkit import storage
from retrievalkit.data.vectors.arrays import check_range, open_array
from retrievalkit.data.vectors.postings import Postings
from retrievalkit.data.vectors.store import VectorBlock, VectorStore
from retrievalkit.errors import ArtifactError

# A column of a matrix pays for a term that this share of the texts has.
FREQUENT, MOST_TERMS = 1 / 8, 512
_ROWS = 2_048
_CONTENTS, _TERMS = "rounded.json", "terms.npy"
_LARGEST = 1e18  # products of longer vectors might overflow


@dataclass(frozen=True)
class RoundedPart:
    """What is known of consecutive texts.

    Attributes:
        norm: The greatest length of a row before it was rounded, at least.
        distance: From a row to the rounded one, at most.
        weights_norm: The greatest length of a text's weights of all terms, at least.
    """

    norm: float
    distance: float
    weights_norm: float


@dataclass(frozen=True)
class _Contents:
    """The form of rounded.json."""

    parts: list[RoundedPart]


def write_rounded(source: VectorStore, postings: Postings, folder: Path) -> bool:
    """Write the rounded rows of a folder in which every text has one vector, in the parts of its postings.

    Returns:
        Whether they were written: not where a vector is too long for products in bf16.
    """
    folder.mkdir()
    terms = frequent_terms(postings)
    np.save(folder / _TERMS, terms.astype("<i4"), allow_pickle=False)
    parts, first = [], 0
    for number, texts in enumerate(postings.parts):
        with (folder / _file(number)).open("wb") as stream:
            shape = (texts, source.dim + len(terms))
            header = {"descr": "<u2", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)
            norm = distance = weights_norm = 0.0
            for start in range(first, first + texts, _ROWS):
                some = np.arange(start, min(start + _ROWS, first + texts))
                rows, longest = _rows(source.take(some), terms)
                bits = _rounded(rows)
                stream.write(bits.tobytes())
                norm, weights_norm = max(norm, _greatest(rows)), max(weights_norm, longest)
                distance = max(distance, _greatest(rows - from_bits(bits)))
        parts.append(RoundedPart(norm * 1.001, distance * 1.001, weights_norm * 1.001))
        first += texts
    if not all(part.norm < _LARGEST for part in parts):
        shutil.rmtree(folder)
        return False
    storage.write_json(folder / _CONTENTS, {"parts": [vars(part) for part in parts]})
    return True


def frequent_terms(postings: Postings) -> np.ndarray:
    """The terms that many texts have, at most `MOST_TERMS`, ascending."""
    texts = np.zeros(postings.terms, dtype=np.int64)
    for block in postings.blocks():
        texts += np.diff(block.weights.indptr)
    order = np.argsort(-texts, kind="stable")[:MOST_TERMS]
    terms: np.ndarray = np.sort(order[texts[order] >= FREQUENT * len(postings)])
    return terms


def _rows(block: VectorBlock, terms: np.ndarray) -> tuple[np.ndarray, float]:
    """(texts, dim + terms) float32: vectors and the weights of these terms; the longest text's weights of all."""
    assert block.vectors is not None
    longest = np.sqrt(np.asarray(block.weights.multiply(block.weights).sum(axis=1)).max(initial=0.0))
    parts = [block.vectors.astype(np.float32), block.weights[:, terms].toarray()]
    return np.concatenate(parts, axis=1), float(longest)


def _rounded(rows: np.ndarray) -> np.ndarray:
    """The bits of the nearest bf16 numbers, of two equally near the even."""
    bits = rows.view(np.uint32)
    nearest: np.ndarray = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    return nearest


def from_bits(bits: np.ndarray) -> np.ndarray:
    """The float32 numbers that bf16 bits stand for."""
    numbers: np.ndarray = (bits.astype(np.uint32) << 16).view(np.float32)
    return numbers


def _greatest(rows: np.ndarray) -> float:
    return float(np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64)).max(initial=0.0))


def _file(number: int) -> str:
    return f"rounded-{number:05d}.npy"


class Rounded:
    """What `write_rounded` wrote.

    Attributes:
        folder: The folder.
        terms: (terms,) int64, ascending.
        parts: What is known of each part.
    """

    def __init__(self, folder: Path, store: VectorStore, postings: Postings) -> None:
        self.folder = folder
        try:
            contents = storage.read_document(folder / _CONTENTS, _Contents, do="Index the vectors again.")
            self.parts = contents.parts
            self.terms = np.array(open_array(folder / _TERMS, ("<i4",), 1), dtype=np.int64)
            check_range(self.terms, postings.terms)
            found = [self._array(number).shape for number in range(len(postings.parts))]
        except (OSError, ValueError) as error:
            msg = f"'{folder}' cannot be read ({error}): it is damaged. Index the vectors again."
            raise ArtifactError(msg) from error
        wanted = [(texts, store.dim + len(self.terms)) for texts in postings.parts]
        if found != wanted or len(self.parts) < len(found):
            msg = f"'{folder}' is damaged: it holds an array of another shape, {found}, not {wanted}. Index again."
            raise ArtifactError(msg)

    def blocks(self) -> Iterator[tuple[RoundedPart, np.ndarray]]:
        """Part by part, what is known of it and the bits of its rows, mapped into memory."""
        for number, part in enumerate(self.parts):
            array = self._array(number)
            if isinstance(array, np.memmap):
                # Copy-on-write, because torch warns about read-only arrays.
                array = np.memmap(self.folder / _file(number), array.dtype, "c", array.offset, array.shape)
            yield part, np.asarray(array)

    def _array(self, number: int) -> np.ndarray:
        return open_array(self.folder / _file(number), ("<u2",), 2)
