"""The blocks of a vectors/ folder on a GPU, kept there between searches as far as its memory allows."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from retrievalkit.contracts.models import to_device
from retrievalkit.data.vectors import VectorBlock, VectorStore
from retrievalkit.data.vectors.ranges import read_ahead
from retrievalkit.scoring.tiles import DeviceWeights

# Bytes of the vectors of a block; of the weights of a text, as an estimate.
_BYTES, _WEIGHTS = 1 << 28, 1_024


class DeviceBlocks:
    """The blocks of a folder on the current GPU.

    The first search copies them from pinned memory, and reads the next block meanwhile. They stay while more than a
    quarter of the GPU's memory is free, and later searches copy only the others. A block has at most `width` vectors.
    """

    def __init__(self, store: VectorStore, dtype: torch.dtype) -> None:
        self.store, self._dtype = store, dtype
        self._rows = max(1, _BYTES // (store.dim * store.dtype.itemsize or _WEIGHTS))
        self.width = store.block_rows(self._rows)
        self._kept: dict[int, VectorBlock] = {}

    def __iter__(self) -> Iterator[VectorBlock]:
        yield from (kept := list(self._kept.values()))
        done = sum(block.texts for block in kept)
        for block in read_ahead(self._pinned(len(kept))) if done < len(self.store) else ():
            vectors: Any = block.vectors
            if vectors is not None:
                vectors = to_device(torch.as_tensor(vectors), "cuda")
                vectors = vectors.to(self._dtype) if self._dtype.itemsize < vectors.itemsize else vectors
            weights = None if block.weights is None else DeviceWeights.of(block.weights, "cuda")
            copied = replace(block, vectors=vectors, weights=weights)
            free, total = torch.cuda.mem_get_info()
            # In order and once, also if several threads search.
            if free > total // 4 and block.first == sum(earlier.texts for earlier in list(self._kept.values())):
                self._kept.setdefault(block.first, copied)
            yield copied

    def _pinned(self, first: int) -> Iterator[VectorBlock]:
        """Read the blocks from `first` on to memory from which a GPU can copy."""
        for block in itertools.islice(self.store.blocks(self._rows), first, None):
            vectors: Any = block.vectors
            if vectors is not None and torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
                vectors = torch.from_numpy(vectors).pin_memory()
            yield replace(block, vectors=vectors)
