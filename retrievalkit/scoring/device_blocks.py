"""The blocks of a vectors/ folder on a GPU, kept there between searches as far as its memory allows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from retrievalkit.data.vectors import VectorBlock, VectorStore
from retrievalkit.data.vectors.ranges import read_ahead
from retrievalkit.scoring.tiles import DeviceWeights

# Bytes of the vectors of a block; of the weights of a text, as an estimate.
_BYTES, _WEIGHTS = 1 << 28, 1_024


class DeviceBlocks:
    """The blocks of a folder on the current GPU.

    The first search copies them from pinned memory: while a block is searched, the next is copied and the one after it
    is read. They stay while more than a quarter of the GPU's memory is free, and later searches copy only the others.
    A block has at most `width` vectors.
    """

    def __init__(self, store: VectorStore, dtype: torch.dtype) -> None:
        self.store, self._dtype = store, dtype
        self._rows = max(1, _BYTES // (store.dim * store.dtype.itemsize or _WEIGHTS))
        self.width = store.block_rows(self._rows)
        self._kept: dict[int, VectorBlock] = {}

    def __iter__(self) -> Iterator[VectorBlock]:
        yield from (kept := list(self._kept.values()))
        if sum(block.texts for block in kept) == len(self.store):
            return
        copied = self._copied(len(kept))
        following = next(copied, None)
        while following is not None:
            # The next copy starts before the kernels of this block, so that both run together.
            (block, arrival), following = following, next(copied, None)
            torch.cuda.current_stream().wait_event(arrival)
            vectors: Any = block.vectors
            if vectors is not None and self._dtype.itemsize < vectors.itemsize:
                block = replace(block, vectors=vectors.to(self._dtype))
            free, total = torch.cuda.mem_get_info()
            # In order and once, also if several threads search.
            if free > total // 4 and block.first == sum(earlier.texts for earlier in list(self._kept.values())):
                self._kept.setdefault(block.first, block)
            yield block

    def _copied(self, first: int) -> Iterator[tuple[VectorBlock, torch.cuda.Event]]:
        """Start to copy the blocks from `first` on, on a stream of their own."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        blocks = itertools.islice(self.store.blocks(self._rows), first, None)
        for block in read_ahead(_mapped(block, _pinned) for block in blocks):
            # Pending kernels may read an earlier block, whose memory is used again.
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                copied = _mapped(block, lambda tensor: tensor.to("cuda", non_blocking=True))
            yield copied, stream.record_event()


def _mapped(block: VectorBlock, function: Callable[[Tensor], Tensor]) -> VectorBlock:
    """Replace the arrays of a block by tensors."""
    arrays: dict[str, Any] = {"vectors": block.vectors, "keys": block.keys}
    tensors: dict[str, Any] = {
        name: function(torch.as_tensor(array)) for name, array in arrays.items() if array is not None
    }
    if block.weights is not None:
        tensors["weights"] = DeviceWeights.of(block.weights).mapped(function)
    return replace(block, **tensors)


def _pinned(tensor: Tensor) -> Tensor:
    """Copy to memory from which a GPU copies while it computes."""
    return tensor.pin_memory() if torch.backends.cuda.is_built() else tensor  # type: ignore[no-untyped-call]
