"""Exact brute-force search of vectors/ folders with torch, on a CPU or a GPU; a single query also without torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import PositiveInt

from retrievalkit.contracts import Allowed, Indexer
from retrievalkit.data.vectors import Ids, VectorStore
from retrievalkit.errors import UnsupportedError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from retrievalkit.contracts import Representation
    from retrievalkit.scoring.device_blocks import DeviceBlocks

Hits = tuple[list[list[str]], list[np.ndarray]]
"""Ids and scores of each query's hits."""

_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


class VectorIndexer(Indexer):
    """Base class of indexers that keep the original vectors, and score listed texts by them."""

    indexes = "vectors"
    _store: VectorStore

    def rank(self, queries: Representation | Any, k: int, allowed: Allowed) -> Hits:
        """Return the top-k of a few allowed texts, by the original vectors."""
        from retrievalkit.scoring import top_k_among

        ids = self._store.ids
        return named(ids, *top_k_among(self._compared(queries).to("cpu"), self._store, allowed.mask(ids), k))

    def scores(self, queries: Representation | Any, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Return the scores of texts by the scoring rule, in fp32, from the original vectors."""
        from retrievalkit.scoring import scores_of

        return scores_of(self._compared(queries), self._store, [self._store.ids.rows(names) for names in ids])

    def _compared(self, queries: Representation) -> Representation:
        """Return the part of the queries that the index compares."""
        from retrievalkit.scoring import vectors_alone, viewed

        queries = viewed(queries, self.view)
        if not self.compares_keys:
            vectors_alone(queries, self._store.dim)
        return queries


class Flat(VectorIndexer):
    """Exact inner product search by brute force: scores every text for every query.

    Supports one or many vectors per text and per query (late interaction, MaxSim, as in ColBERT), vectors with keys
    (COIL, by inverted lists), weights over a vocabulary (SPLADE), and both together. Example:
    `rkit index VECTORS --indexer flat --output INDEX`.

    The folder holds the vectors, hard-linked where possible: 4 bytes per dimension, or 2 with `--stored fp16`. Memory
    does not grow with the index, because blocks are memory-mapped; a GPU keeps blocks in its memory between searches,
    as far as they fit. Search time grows linearly with the number of vectors. Use it up to a few million vectors, and
    as the reference for approximate indexers.

    Args:
        block: Vectors scored at a time on a CPU.
        device: "auto" uses a GPU if there is one.
        precision: Number format of the inner products; bf16 and fp16 make the search approximate.
        view: Part to compare if texts have vectors and weights: "all", "vectors" or "weights".
    """

    compares_keys = True

    def __init__(
        self,
        *,
        block: PositiveInt = 8192,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        precision: Literal["fp32", "bf16", "fp16"] = "fp32",
        view: Literal["all", "vectors", "weights"] = "all",
    ) -> None:
        self.block, self.view, self._device, self._precision = block, view, device, precision
        if device == "cuda" and self._torch[0].type == "cpu":
            msg = "option 'device' of indexer 'flat' is cuda, but torch detects no GPU. Use auto or cpu."
            raise UnsupportedError(msg)
        self._blocks: DeviceBlocks | None = None

    @cached_property
    def _torch(self) -> tuple[torch.device, torch.dtype]:
        import torch

        on_gpu = self._device != "cpu" and torch.cuda.is_available()
        return torch.device("cuda" if on_gpu else "cpu"), getattr(torch, _DTYPES[self._precision])

    @property
    def array_size(self) -> int:  # type: ignore[override]
        """The size of the vectors if each text has one in fp32, without a key or weights."""
        exact = self._precision == "fp32" and self._device != "cuda"
        alone = self._store.vectors_per_text == 1 and not self._store.vocabulary and not self._store.keyed
        return self._store.dim if exact and alone else 0

    def build(self, source: VectorStore | Any, index_dir: Path) -> Mapping[str, int]:
        """Link the vectors into the folder."""
        VectorStore(source.folder, view=self.view)  # refuses a folder that lacks the view
        source.link(index_dir / "vectors")
        return {"texts": len(source), "vectors": source.rows}

    def open(self, index_dir: Path) -> None:
        """Memory-map the vectors."""
        self._store = VectorStore(index_dir / "vectors", view=self.view)

    def open_joined(self, read: Callable[[], VectorStore | Any]) -> bool:
        """Search the vectors of all segments as one folder."""
        self._store = read()
        return True

    def search(self, queries: Representation | Any, k: int) -> Hits:
        """Return the exact top-k texts by the scoring rule; ties in the order of the index."""
        if isinstance(queries, np.ndarray):
            return self._nearest(queries[0], k)
        return self._best(queries, min(k, len(self._store)), None)

    def _nearest(self, query: np.ndarray, k: int) -> Hits:
        """Search with the vector of a query, (dim,), in numpy: the same texts and scores."""
        scores, rows = np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64)
        for block in self._store.blocks(self.block):
            # As in `scoring.bf16_filter.of_query`: the rounding of a product does not depend on the other texts.
            vectors = np.asarray(block.vectors).astype(np.float32, copy=False)
            scores = np.concatenate([scores, np.einsum("ij,j->i", vectors, query)])
            rows = np.concatenate([rows, np.arange(block.first, block.first + block.texts)])
            best = np.argsort(-scores, kind="stable")[:k]
            scores, rows = scores[best], rows[best]
        return named(self._store.ids, scores[None], rows[None])

    def search_among(self, queries: Representation | Any, k: int, allowed: Allowed) -> Hits:
        """Return the exact top-k allowed texts: a few are read together, many are selected by a mask."""
        return self._best(queries, min(k, len(self._store)), allowed.mask(self._store.ids))

    def _best(self, queries: Representation, k: int, mask: np.ndarray | None) -> Hits:
        from retrievalkit.scoring import top_k, top_k_among, top_k_of_store
        from retrievalkit.scoring.device_blocks import DeviceBlocks

        queries, store, (device, dtype) = self._compared(queries), self._store, self._torch
        if device.type != "cpu":
            if self._blocks is None or self._blocks.store is not store:
                self._blocks = DeviceBlocks(store, dtype)
            width = self._blocks.width
            best = top_k(queries.to(device), self._blocks, k, width=width, dtype=dtype, mask=mask)
        elif mask is None:
            best = top_k_of_store(queries, store, k, block=self.block, dtype=dtype)
        else:
            best = top_k_among(queries, store, mask, k, block=self.block, dtype=dtype)
        return named(store.ids, *(part.cpu() for part in best))


def named(ids: Ids, scores: np.ndarray | Tensor, rows: np.ndarray | Tensor) -> Hits:
    """Convert (queries, k) scores and rows, best first and -1 past the last, to the result of `Indexer.search`."""
    scores, rows = np.asarray(scores), np.asarray(rows)
    counts = (rows >= 0).sum(axis=1)
    texts = ids.take(rows[rows >= 0])
    ends = np.cumsum(counts).tolist()
    lists = [texts[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]
    return lists, [row[:count] for row, count in zip(scores, counts.tolist(), strict=True)]
