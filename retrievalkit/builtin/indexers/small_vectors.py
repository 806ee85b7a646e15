"""Vectors of one byte, or one bit, a number, in files that are mapped into memory.

    vectors-00000.npy  int8 (rows, dim), or uint8 (rows, dim / 8, rounded up): the signs, a bit each, 1 = positive
    scales-00000.npy   only for int8: float32 (rows,), what the bytes of a vector are multiplied with

There is a file for each shard of the vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from retrievalkit.data.vectors import VectorStore, open_array
from retrievalkit.data.vectors.arrays import check_finite
from retrievalkit.errors import ArtifactError
from retrievalkit.score.bf16_filter import multiplies_bf16

Kind = Literal["int8", "binary"]
_LARGEST = 127
_ROWS = 8_192


def write_small(store: VectorStore, folder: Path, kind: Kind) -> int:
    """Write the small vectors of a folder; returns the bytes of each."""
    folder.mkdir()
    size = 0
    for number, (_, shard) in enumerate(store.shards()):
        parts = [_made(np.asarray(shard[start : start + _ROWS]), kind) for start in range(0, len(shard), _ROWS)]
        arrays = {"vectors": np.concatenate([part[0] for part in parts])}
        if kind == "int8":
            arrays["scales"] = np.concatenate([part[1] for part in parts])
        for name, array in arrays.items():
            np.save(_file(folder, name, number), array, allow_pickle=False)
        size = sum(array.nbytes for array in arrays.values()) // max(1, len(shard))
    return size


def _made(vectors: np.ndarray, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """Small vectors and their scales."""
    vectors = vectors.astype(np.float32)
    if kind == "binary":
        return np.packbits(vectors > 0, axis=1), np.empty(0)
    scales = np.abs(vectors).max(axis=1) / np.float32(_LARGEST)
    whole = np.rint(vectors / np.where(scales > 0, scales, 1)[:, None]).clip(-_LARGEST, _LARGEST)
    return whole.astype(np.int8), scales.astype(np.float32)


class SmallVectors:
    """What `write_small` wrote.

    Raises:
        ArtifactError: A file is missing or damaged, or fits other vectors.
    """

    def __init__(self, folder: Path, kind: Kind, store: VectorStore) -> None:
        self.kind, self.dim = kind, store.dim
        self._shards: list[tuple[np.ndarray, np.ndarray | None]] = []
        try:
            for number, (_, shard) in enumerate(store.shards()):
                self._shards.append(self._shard(folder, number, len(shard)))
        except (OSError, ValueError) as error:
            msg = f"'{folder}' cannot be read ({error}): it is damaged. Index the vectors again."
            raise ArtifactError(msg) from error

    def products(self, queries: Tensor, block: int) -> Iterator[tuple[int, Tensor]]:
        """The inner products of queries (n, dim) with all small vectors: (n, rows) float32 of consecutive rows.

        Yields:
            The first of the rows, counted over all shards, and their products.
        """
        # Bytes are exact in bf16, and only the queries are rounded.
        dtype = torch.bfloat16 if multiplies_bf16() else torch.float32
        asked, first = queries.to(dtype), 0
        for vectors, scales in self._shards:
            for start in range(0, len(vectors), block):
                rows = torch.from_numpy(self._numbers(vectors[start : start + block])).to(dtype)
                products = (asked @ rows.T).float()
                if scales is not None:
                    products *= torch.from_numpy(np.array(scales[start : start + block]))
                yield first + start, products
            first += len(vectors)

    def _shard(self, folder: Path, number: int, rows: int) -> tuple[np.ndarray, np.ndarray | None]:
        width, dtype = (self.dim, "|i1") if self.kind == "int8" else (-(-self.dim // 8), "|u1")
        vectors = open_array(_file(folder, "vectors", number), (dtype,), 2)
        scales = open_array(_file(folder, "scales", number), ("<f4",), 1) if self.kind == "int8" else None
        if vectors.shape != (rows, width) or (scales is not None and len(scales) != rows):
            msg = f"shard {number} does not fit its vectors"
            raise ValueError(msg)
        if scales is not None:
            check_finite(scales)
        return vectors, scales

    def _numbers(self, vectors: np.ndarray) -> np.ndarray:
        """(rows, dim) int8: the bytes, or 1 and -1 for the bits."""
        if self.kind == "int8":
            return np.array(vectors)
        return np.unpackbits(vectors, axis=1, count=self.dim).astype(np.int8) * 2 - 1


def _file(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number:05d}.npy"
