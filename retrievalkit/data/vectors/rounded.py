"""Dense vectors joined with the weights of frequent terms, rounded to bf16, for approximate scores.

    rounded.json       for each part, bounds of the row norms and of the rounding error
    terms.npy          int32 (terms,): the terms, ascending
    rounded-00000.npy  uint16 (texts, dim + terms): the bits of bf16 numbers, one row per text

A term that occurs in most texts is cheaper as a column of a matrix than as a posting list.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from retrievalkit import storage
from retrievalkit.data.vectors.arrays import array_in, check_range, open_array, reading
from retrievalkit.data.vectors.postings import REMEDY, Postings
from retrievalkit.data.vectors.store import VectorBlock, VectorStore

# Share of texts from which a term is cheaper as a matrix column, and the maximum number of columns.
FREQUENT, MOST_TERMS = 1 / 8, 512
_ROWS = 2_048
_CONTENTS, _TERMS = "rounded.json", "terms.npy"
_LARGEST = 1e18  # dot products of vectors with larger norms might overflow


@dataclass(frozen=True)
class RoundedPart:
    """Bounds for a part of consecutive texts.

    Attributes:
        norm: Upper bound of a row's norm before rounding.
        distance: Upper bound of the distance between a row and its rounded row.
        weights_norm: Upper bound of the norm of a text's weights of all terms.
    """

    norm: float
    distance: float
    weights_norm: float


@dataclass(frozen=True)
class _Contents:
    """The schema of rounded.json."""

    parts: list[RoundedPart]


def write_rounded(source: VectorStore, postings: Postings, folder: Path) -> bool:
    """Write the rounded rows of a folder with one vector per text, in the same parts as its postings.

    Returns:
        False if a vector is too long for dot products in bf16: then nothing is written.
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
                block_texts = np.arange(start, min(start + _ROWS, first + texts))
                rows, longest = _rows(source.take(block_texts), terms)
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
    """Return the frequent terms, at most `MOST_TERMS`, ascending."""
    texts = np.zeros(postings.terms, dtype=np.int64)
    for block in postings.blocks():
        texts += np.diff(block.weights.indptr)
    order = np.argsort(-texts, kind="stable")[:MOST_TERMS]
    terms: np.ndarray = np.sort(order[texts[order] >= FREQUENT * len(postings)])
    return terms


def _rows(block: VectorBlock, terms: np.ndarray) -> tuple[np.ndarray, float]:
    """(texts, dim + terms) float32: vectors and weights of these terms; and the largest norm of all weights."""
    assert block.vectors is not None
    longest = np.sqrt(np.asarray(block.weights.multiply(block.weights).sum(axis=1)).max(initial=0.0))
    parts = [block.vectors.astype(np.float32), block.weights[:, terms].toarray()]
    return np.concatenate(parts, axis=1), float(longest)


def _rounded(rows: np.ndarray) -> np.ndarray:
    """Return the bits of the nearest bf16 numbers; ties round to even."""
    bits = rows.view(np.uint32)
    nearest: np.ndarray = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype("<u2")
    return nearest


def from_bits(bits: np.ndarray) -> np.ndarray:
    """Convert bf16 bits to float32 numbers."""
    numbers: np.ndarray = (bits.astype(np.uint32) << 16).view(np.float32)
    return numbers


def _greatest(rows: np.ndarray) -> float:
    return float(np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64)).max(initial=0.0))


def _file(number: int) -> str:
    return f"rounded-{number:05d}.npy"


class Rounded:
    """Reader for the output of `write_rounded`.

    Attributes:
        folder: The folder.
        terms: (terms,) int64, ascending.
        parts: The bounds of each part.
    """

    def __init__(self, folder: Path, store: VectorStore, postings: Postings) -> None:
        self.folder = folder
        self.parts = storage.read_document(folder / _CONTENTS, _Contents, do=REMEDY).parts
        with reading(folder, REMEDY):
            self.terms = np.array(open_array(folder / _TERMS, ("<i4",), 1), dtype=np.int64)
            check_range(self.terms, postings.terms)
            self._files = [storage.MappedFile.of(folder / _file(number)) for number in range(len(postings.parts))]
            shapes = [self._array(file).shape for file in self._files]
            expected = [(texts, store.dim + len(self.terms)) for texts in postings.parts]
            if shapes != expected or len(self.parts) < len(shapes):
                msg = f"its arrays have the shapes {shapes}, not {expected}"
                raise ValueError(msg)

    def blocks(self) -> Iterator[tuple[RoundedPart, np.ndarray]]:
        """Yield the bounds and the row bits of each part."""
        for file, part in zip(self._files, self.parts, strict=False):
            yield part, file.lent(self._array(file))

    def _array(self, file: storage.MappedFile) -> np.ndarray:
        return array_in(file, ("<u2",), 2)
