"""Scores of queries with documents, in tiles that stay in the processor's cache.

The engine of the scoring rule: documents arrive block by block and are prepared once for all queries; queries are split
into parts so that the scores of a part with a block form one tile, and each thread owns some of the parts.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from retrievalkit.contracts import Representation
from retrievalkit.contracts.models import to_device
from retrievalkit.data.vectors import VectorBlock
from retrievalkit.scoring import bf16_filter

# Scores of a tile (queries x vectors): small enough for the processor's cache, large enough to keep it busy.
CPU_TILE = 1 << 22
GPU_TILE = 1 << 28
# Maximum over the vectors of a text: document vectors x query vectors of a tile that fits the fastest cache; on a GPU,
# few enough document vectors that texts of similar length are compared together.
CPU_ROWS, CPU_COLUMNS = 256, 1024
GPU_ROWS, GPU_COLUMNS = 1 << 15, 1 << 13
# Matrix products with fewer rows than this round differently from those with more.
LEAST_ROWS = 16
# Numbers in the pairs of vectors of equal keys that are multiplied at a time.
KEYED_NUMBERS = 1 << 21
# Minimum number of queries per thread.
LEAST_PART = 16
# Blocks that may be unfinished while the next block is prepared.
AHEAD = 2


class Scratch(threading.local):
    """A thread's reusable buffer for a tile of scores; allocating every tile is slow."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def take(self, rows: int, columns: int, like: Tensor) -> Tensor:
        """Return a tile (rows, columns) of the type and device of `like`; it overwrites the previous tile."""
        if self._memory.numel() < rows * columns or self._memory.dtype != like.dtype:
            self._memory = torch.empty(rows * columns, dtype=like.dtype, device=like.device)
        return self._memory[: rows * columns].view(rows, columns)


class DeviceWeights(NamedTuple):
    """Weights of texts over the vocabulary on a GPU, as CSR: (texts + 1,), (n,), (n,), and (texts, vocabulary)."""

    starts: Tensor
    terms: Tensor
    values: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, weights: Any) -> DeviceWeights:
        """Convert a scipy CSR or CSC matrix; `DeviceWeights` stay as they are."""
        if isinstance(weights, cls):
            return weights
        rows = weights.tocsr()
        starts, terms = (torch.from_numpy(array.astype(np.int32)) for array in (rows.indptr, rows.indices))
        return cls(starts, terms, torch.from_numpy(rows.data.astype(np.float32)), rows.shape)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> DeviceWeights:
        """Apply a function to the tensors, such as a copy to a device."""
        return DeviceWeights(function(self.starts), function(self.terms), function(self.values), self.shape)


@dataclass
class Documents:
    """A block of documents, prepared once for all queries.

    Attributes:
        block: The block.
        side: Its vectors for rough products, if used; else None.
        vectors: (rows, dim) its vectors on the device of the queries, padded with zeros if needed; or None.
        groups: Texts with all of their vectors, the last vector repeated up to the longest text of the group: (texts,)
            numbers and (texts or more, vectors, dim). Empty if no maximum over the vectors of a text is needed.
        weights: scipy CSC (texts, vocabulary), for access by term; on a GPU `DeviceWeights`; or None.
        by_key: The inverted lists of vectors with keys: (rows,) keys, ascending, and their vectors and texts; or None.
    """

    block: VectorBlock
    side: bf16_filter.Side | None
    vectors: Tensor | None
    groups: list[tuple[Tensor, Tensor]]
    weights: Any
    by_key: tuple[Tensor, Tensor, Tensor] | None = None

    @classmethod
    def ready(
        cls, block: VectorBlock, queries: Representation, dtype: torch.dtype, *, width: int = 0, grouped: bool = True
    ) -> Documents:
        """Prepare a block for these queries, padded to `width` vectors; `grouped` to score texts, not vectors."""
        move = partial(to_device, device=queries.device)
        side = None
        if (
            block.vectors is not None
            and is_filtered(queries, dtype)
            and (block.weights is None or (block.starts is None and block.most_vectors == 1))
        ):
            side = bf16_filter.Side.of(block.vectors, in_bf16=bf16_filter.pays(len(queries)))
        vectors = None
        if side is None and block.vectors is not None:
            vectors = move(torch.as_tensor(block.vectors)).to(dtype)
            if len(vectors) < width:
                vectors = torch.nn.functional.pad(vectors, (0, 0, 0, width - len(vectors)))
        groups: list[tuple[Tensor, Tensor]] = []
        by_key = None
        if block.keys is not None:
            keys, rows = move(torch.as_tensor(block.keys)).long().sort(stable=True)
            by_key = keys, rows, move(torch.from_numpy(np.repeat(np.arange(block.texts), block.counts)))[rows]
        elif vectors is not None and grouped and not (is_single(queries) and block.most_vectors == 1):
            groups = list(_groups_of_texts(block, vectors, CPU_ROWS if queries.device.type == "cpu" else GPU_ROWS))
        weights = block.weights
        if weights is not None:
            weights = weights.tocsc() if queries.device.type == "cpu" else DeviceWeights.of(weights).mapped(move)
        return cls(block, side, vectors, groups, weights, by_key)

    @cached_property
    def texts_of_rows(self) -> Tensor | None:
        """(rows,) each vector's text, as a position in the block; None if each text has one vector."""
        if self.block.vectors is None or self.block.most_vectors == 1:
            return None
        texts = torch.from_numpy(np.repeat(np.arange(self.block.texts), self.block.counts))
        return texts if self.vectors is None else to_device(texts, self.vectors.device)


def is_single(queries: Representation) -> bool:
    """True if each query has exactly one vector, to compare with all vectors of a document."""
    if queries.vectors is None or queries.vectors.shape[1] != 1 or queries.keys is not None:
        return False
    return queries.vector_mask is None or bool(queries.vector_mask.all())


def is_filtered(queries: Representation, dtype: torch.dtype) -> bool:
    """True if rough products filter the documents: exact search on a CPU, single-vector queries."""
    return queries.device.type == "cpu" and dtype == torch.float32 and is_single(queries)


def _groups_of_texts(block: VectorBlock, vectors: Tensor, rows: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Split texts into groups of about `rows` vectors; a group's texts have similar numbers of vectors."""
    if block.starts is None:
        m = block.most_vectors
        numbers = torch.arange(block.texts, device=vectors.device)
        shaped = vectors[: block.texts * m].view(block.texts, m, -1)
        size = max(1, rows // m)
        for first in range(0, block.texts, size):
            yield numbers[first : first + size], _enough(shaped[first : first + size])
        return
    counts = block.counts
    order = np.argsort(counts, kind="stable")
    while len(order):
        # A group occupies its number of texts times the vectors of its last, longest text.
        fits = int((counts[order] * np.arange(1, len(order) + 1) <= rows).sum())
        texts, order = order[: max(1, fits)], order[max(1, fits) :]
        places = np.minimum(np.arange(counts[texts[-1]]), counts[texts][:, None] - 1) + block.starts[texts][:, None]
        grouped = vectors[to_device(torch.from_numpy(places), vectors.device)]
        yield to_device(torch.from_numpy(texts), vectors.device), _enough(grouped)


def _enough(vectors: Tensor) -> Tensor:
    """Pad with zero texts, so that the product has enough rows to round like other products."""
    texts, m, _ = vectors.shape
    lacking = -(-LEAST_ROWS // m) - texts
    return vectors if lacking <= 0 else torch.nn.functional.pad(vectors, (0, 0, 0, 0, 0, lacking))


class QueryPart:
    """A part of the queries, small enough that its scores with a block form one tile."""

    def __init__(self, queries: Representation, dtype: torch.dtype, *, in_bf16: bool = False) -> None:
        self.count = len(queries)
        self.single = is_single(queries)
        self.mask = queries.vector_mask
        self.keys = queries.keys
        self.m = 0 if queries.vectors is None else queries.vectors.shape[1]
        self.device = queries.device
        self.side: bf16_filter.Side | None = None
        if is_filtered(queries, dtype):
            assert queries.vectors is not None
            self.side = bf16_filter.Side.of(queries.vectors[:, 0].float().numpy(), in_bf16=in_bf16)
        if queries.vectors is not None:
            self.vectors = queries.vectors.reshape(-1, queries.vectors.shape[2]).to(dtype)
            if len(self.vectors) == 1:
                # A product with one row becomes a matrix-vector product, whose rounding depends on the position.
                self.vectors = self.vectors.expand(2, -1).contiguous()
        self.terms: Any = queries.weights
        if queries.weights is not None:
            on_cpu = queries.device.type == "cpu"
            self.terms = _terms(queries.weights) if on_cpu else queries.weights.float().T.contiguous()

    def rough_scores(self, documents: Documents, scratch: Scratch) -> tuple[Tensor, Tensor | None, bf16_filter.Slack]:
        """Return the rough scores (count, rows) of a block's vectors, valid until the next call, and their error bound.

        Between the two are the exact scores of the weights, (count, texts); None without weights.
        """
        assert self.side is not None
        assert documents.side is not None
        tile = scratch.take(self.count, len(documents.side.rough), documents.side.rough)
        torch.mm(self.side.rough.to(tile.dtype), documents.side.rough.T, out=tile)
        if self.terms is None:
            return tile, None, bf16_filter.slack(self.side, documents.side)
        slack = bf16_filter.slack(self.side, documents.side, added_to=tile)
        lexical = _lexical(self.terms, documents.weights)
        return tile.float().add_(lexical), lexical, slack

    def scores_of_pairs(self, documents: Documents, rows: Tensor, columns: Tensor, lexical: Tensor | None) -> Tensor:
        """Return the exact scores of pairs of a query and a vector of a block; `lexical` is from `rough_scores`."""
        assert self.side is not None
        assert documents.side is not None
        pairs = bf16_filter.of_pairs(self.side.exact, documents.side.exact, rows.numpy(), columns.numpy())
        products = torch.from_numpy(pairs)
        return products if lexical is None else products + lexical[rows, columns]

    def row_scores(self, documents: Documents, scratch: Scratch) -> Tensor:
        """Return the scores (count, rows) of a block's vectors for single-vector queries; valid until the next call."""
        assert documents.vectors is not None
        tile = scratch.take(len(self.vectors), len(documents.vectors), documents.vectors)
        torch.mm(self.vectors, documents.vectors.T, out=tile)
        return tile[: self.count, : documents.block.rows].float()

    def document_scores(self, documents: Documents, scratch: Scratch) -> Tensor:
        """Return the scores (count, texts) of a block's documents; valid until the next call."""
        if self.terms is not None and documents.block.vectors is None:
            return self._lexical_scores(documents)
        if documents.side is not None:
            total = self._exact_scores(documents)
        elif documents.by_key is not None:
            total = self._keyed_scores(documents, *documents.by_key)
        elif documents.vectors is not None and not documents.groups:
            total = self.row_scores(documents, scratch)
        else:
            total = torch.zeros(self.count, documents.block.texts, device=self.device)
            for numbers, vectors in documents.groups:
                total[:, numbers] = self._best_of_texts(vectors, scratch)[: len(numbers)].T
        if self.terms is not None:
            total += self._lexical_scores(documents)
        return total

    def _lexical_scores(self, documents: Documents) -> Tensor:
        """Return the inner products of the weights, (count, texts)."""
        weights = documents.weights
        if not isinstance(weights, DeviceWeights):
            return _lexical(self.terms, weights)
        bags: dict[str, Any] = {"per_sample_weights": weights.values, "include_last_offset": True, "mode": "sum"}
        return torch.nn.functional.embedding_bag(weights.terms, self.terms, weights.starts, **bags).T

    def _exact_scores(self, documents: Documents) -> Tensor:
        """Return the scores (count, texts) of single-vector queries, computed pair by pair."""
        assert documents.side is not None
        rows = len(documents.side.exact)
        queries, vectors = torch.arange(self.count).repeat_interleave(rows), torch.arange(rows).repeat(self.count)
        products = self.scores_of_pairs(documents, queries, vectors, None).view(self.count, rows).numpy()
        block = documents.block
        starts = np.arange(0, rows, block.most_vectors) if block.starts is None else block.starts[:-1]
        return torch.from_numpy(np.maximum.reduceat(products, starts, axis=1))

    def _keyed_scores(self, documents: Documents, keys: Tensor, rows: Tensor, texts: Tensor) -> Tensor:
        """Return the scores (count, texts) by keys: sums of the best products of vectors with equal keys."""
        assert self.keys is not None
        assert documents.vectors is not None
        own = self.keys.flatten().long()
        first = torch.searchsorted(keys, own)
        counts = torch.searchsorted(keys, own, right=True) - first  # (count * m,)
        if self.mask is not None:
            counts = counts * self.mask.flatten()
        ends = counts.cumsum(0)
        totals = ends.tolist()
        best = torch.full((documents.block.texts * len(counts),), float("-inf"), device=self.device)
        size = (KEYED_NUMBERS if self.device.type == "cpu" else GPU_TILE // 4) // documents.vectors.shape[1]
        start = 0
        while start < len(counts):
            before = totals[start - 1] if start else 0
            end = max(start + 1, bisect.bisect_right(totals, before + size))
            sizes, pairs = counts[start:end], totals[end - 1] - before
            # Pairs of a query's vector and a document's vector, as positions in the inverted lists.
            offset = (first - ends + counts)[start:end].repeat_interleave(sizes, output_size=pairs)
            places = torch.arange(before, before + pairs, device=self.device) + offset
            numbers = torch.arange(start, end, device=self.device).repeat_interleave(sizes, output_size=pairs)
            products = (self.vectors[numbers] * documents.vectors[rows[places]]).sum(dim=1, dtype=torch.float32)
            best.scatter_reduce_(0, texts[places] * len(counts) + numbers, products, "amax")
            start = end
        best.masked_fill_(best == float("-inf"), 0.0)
        return best.view(-1, self.count, self.m).sum(dim=2).T

    def _best_of_texts(self, vectors: Tensor, scratch: Scratch) -> Tensor:
        """Return MaxSim of each text's vectors, (texts, m, dim), with each query: (texts, count)."""
        texts, m, dim = vectors.shape
        tile = scratch.take(texts * m, len(self.vectors), vectors)
        torch.mm(vectors.reshape(-1, dim), self.vectors.T, out=tile)
        best = tile.view(texts, m, -1).amax(dim=1)[:, : self.count * self.m].float()
        best = best.view(texts, self.count, self.m)
        return (best if self.mask is None else best.masked_fill(~self.mask, 0.0)).sum(dim=2)


def query_parts(queries: Representation, width: int, dtype: torch.dtype) -> Iterator[QueryPart]:
    """Split the queries: each part fits a tile with blocks of `width` rows, and every thread gets a part."""
    on_cpu = queries.device.type == "cpu"
    m = 1 if queries.vectors is None else queries.vectors.shape[1]
    size = (CPU_TILE if on_cpu else GPU_TILE) // max(1, width)
    if m > 1:
        size = (CPU_COLUMNS if on_cpu else GPU_COLUMNS) // m
    if on_cpu:
        size = min(size, -(-len(queries) // torch.get_num_threads()))
    size = max(size, 1 if m > 1 else LEAST_PART)
    for start in range(0, len(queries), size):
        yield QueryPart(queries.rows(slice(start, start + size)), dtype, in_bf16=bf16_filter.pays(len(queries)))


def _terms(weights: Tensor) -> Any:
    """Convert weights to scipy CSR (queries, vocabulary), where only the terms of a query take time."""
    import scipy.sparse

    values = weights.float().numpy()
    # Several times faster than scipy's constructor, which searches for non-zeros among floats instead of booleans.
    rows, terms = np.divmod(np.flatnonzero(values != 0), values.shape[1])
    starts = np.searchsorted(rows, np.arange(len(values) + 1))
    return scipy.sparse.csr_matrix((values[rows, terms], terms, starts), shape=values.shape)


def _lexical(terms: Any, weights: Any) -> Tensor:
    """Return the inner products of query weights, CSR, with text weights, CSC: (queries, texts)."""
    # scipy's internal matrix-vector product, called with one column at a time: the public API would first copy the
    # columns of a query's terms into a matrix, which takes several times longer than the product.
    from scipy.sparse._sparsetools import csc_matvec

    texts = weights.shape[0]
    total = np.zeros((terms.shape[0], texts), dtype=np.float32)
    starts, postings, values = weights.indptr, np.asarray(weights.indices), np.asarray(weights.data)
    for row, (first, last) in enumerate(itertools.pairwise(terms.indptr.tolist())):
        scores = total[row]
        for place, term in enumerate(terms.indices[first:last].tolist(), first):
            weight = terms.data[place : place + 1]
            csc_matvec(texts, 1, starts[term : term + 2], postings, values, weight, scores)
    return torch.from_numpy(total)


class Workers:
    """Threads that score parts of the queries block by block; a part always stays with the same thread.

    There are as many threads as torch uses, each with single-threaded products; few queries are scored in the caller's
    thread. A thread that has finished a block starts the next block without waiting for the others.
    """

    def __init__(self, queries: int, device: torch.device) -> None:
        self._allowed = torch.get_num_threads()
        useful = min(self._allowed, queries // LEAST_PART)
        count = useful if device.type == "cpu" and useful > 1 else 0
        self._pools = [ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) for _ in range(count)]
        self._running: deque[list[Future[Any]]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)
        # Threads that start later would inherit the setting of the last worker.
        torch.set_num_threads(self._allowed)

    def start(self, function: Callable[[Any], Any], values: Sequence[Any]) -> None:
        """Start to score a block, and wait until at most `AHEAD` blocks are unfinished, to bound memory."""
        if not self._pools:
            for value in values:
                function(value)
            return
        self._running.append(self._submit(function, values))
        if len(self._running) > AHEAD:
            _wait(self._running.popleft())

    def finish(self, function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        """Wait for all blocks, and return the function's value for each part."""
        if not self._pools:
            return [function(value) for value in values]
        while self._running:
            _wait(self._running.popleft())
        return _wait(self._submit(function, values))

    def _submit(self, function: Callable[[Any], Any], values: Sequence[Any]) -> list[Future[Any]]:
        return [self._pools[part % len(self._pools)].submit(function, value) for part, value in enumerate(values)]


def _wait(started: list[Future[Any]]) -> list[Any]:
    return [future.result() for future in started]
