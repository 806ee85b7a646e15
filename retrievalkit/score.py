"""The one rule by which two representations are compared.

    score(q, d) = sum over query vectors j of  max over document vectors i of  <q_j, d_i>   +   <weights_q, weights_d>

DPR has one vector on each side; MLR, ME-BERT and MVR one query vector and m document vectors; ColBERT many of both (its
MaxSim, Khattab and Zaharia 2020); SPLADE weights alone; CoT-MAE v2 a vector and weights.

`scores` compares all with all; `top_k` finds the best documents of a collection that is given block by block, exactly,
in memory that does not grow with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorBlock, VectorStore
from retrievalkit.errors import OptionError, UnsupportedError

# Scores of a tile (queries x vectors): small enough for the processor's cache, large enough to keep it busy.
CPU_TILE = 1 << 23
GPU_TILE = 1 << 28
# Vectors that are read together where texts are given.
TAKEN = 1 << 16


def scores(queries: Representation, documents: Representation) -> Tensor:
    """The score of every query with every document.

    Args:
        queries: Q texts.
        documents: D texts.

    Returns:
        (Q, D) scores.

    Raises:
        UnsupportedError: One side has vectors or weights that the other has not, or their sizes differ.
    """
    _check_comparable(queries, documents)
    total = None
    if queries.vectors is not None:
        best = vector_scores(queries, documents).amax(dim=3)
        if queries.vector_mask is not None:
            best = best.masked_fill(~queries.vector_mask[:, :, None], 0.0)
        total = best.sum(dim=1)
    if queries.weights is not None and documents.weights is not None:
        lexical = queries.weights @ documents.weights.T
        total = lexical if total is None else total + lexical
    assert total is not None
    return total


def vector_scores(queries: Representation, documents: Representation) -> Tensor:
    """The inner product of every query vector with every document vector.

    Returns:
        (Q, m_q, D, m_d) inner products, -inf where the document has no such vector.
    """
    assert queries.vectors is not None
    assert documents.vectors is not None
    n_queries, m_q, dim = queries.vectors.shape
    n_documents, m_d, _ = documents.vectors.shape
    # One matrix product, which is far faster than an einsum over four axes.
    flat = queries.vectors.reshape(-1, dim) @ documents.vectors.reshape(-1, dim).T
    products = flat.view(n_queries, m_q, n_documents, m_d)
    if documents.vector_mask is not None:
        products = products.masked_fill(~documents.vector_mask, float("-inf"))
    return products


def top_k(
    queries: Representation,
    documents: Representation | Iterable[VectorBlock],
    k: int,
    *,
    width: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """The k best documents of each query, exactly: what sorting all of `scores` would give.

    Documents of equal score come in their order. Where there are only weights, a document that shares no term with a
    query is not found by it.

    Args:
        queries: Q texts; the computation is done where they are.
        documents: Texts, or blocks of texts in ascending order.
        k: How many documents to find.
        width: Vectors that blocks are padded to. Matrix products of one shape round alike, so that equal documents get
            equal scores wherever they stand.
        dtype: What the inner products are computed in; all but float32 make the search approximate.

    Returns:
        (Q, k) float32 scores, descending, and (Q, k) long, the rows of the documents; -inf and -1 where fewer were
        found.

    Raises:
        OptionError: k is less than 1.
        UnsupportedError: One side has vectors or weights that the other has not, or their sizes differ.
    """
    check_k(k)
    best = _Best(len(queries), k, queries.device, 0.0 if queries.vectors is None else float("-inf"))
    blocks = [_as_block(documents)] if isinstance(documents, Representation) else documents
    with torch.no_grad():
        parts, scratch = None, _Scratch()
        for block in blocks:
            parts = parts or list(_query_parts(queries, max(width, _rows(block)), dtype))
            _check_block(queries, block)
            documents_of = _texts_of_rows(block, queries.device)
            vectors = _padded_vectors(block, width, queries.device, dtype)
            for part in parts:
                if part.single and block.weights is None:
                    assert vectors is not None
                    # The best vector of a document decides, so that vectors can be sieved before documents are made.
                    tile = part.row_scores(vectors, _rows(block), scratch)
                    best.offer(part.first, tile, block.first, documents_of, _most(block))
                else:
                    best.offer(part.first, part.document_scores(block, vectors), block.first, None, 1)
        return best.result()


def scores_of(queries: Representation, store: VectorStore, texts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The scores of given texts of a folder, each query with its own: the numbers that `scores` would give.

    Args:
        queries: Q texts, on the CPU.
        store: The folder.
        texts: For each query the rows of texts in the folder; -1 for a text that is not there.

    Returns:
        For each query (texts,) float32 scores, NaN for -1.

    Raises:
        UnsupportedError: One side has vectors or weights that the other has not, or their sizes differ.
    """
    found = []
    with torch.no_grad():
        for group in _groups([len(rows) for rows in texts], TAKEN // max(1, store.most_vectors)):
            wanted = np.unique(np.concatenate([texts[query] for query in group]))
            taken = store.take(wanted[wanted >= 0])
            _check_block(queries, taken)
            for query in group:
                part = _QueryPart(queries.rows(slice(query, query + 1)), query, torch.float32)
                found.append(_given_scores(part, taken, wanted[wanted >= 0], np.asarray(texts[query])))
    return found


def _groups(sizes: Sequence[int], most: int) -> Iterator[list[int]]:
    """Numbers in a row whose sizes add up to no more than `most`, or single ones."""
    group: list[int] = []
    total = 0
    for number, size in enumerate(sizes):
        if group and total + size > most:
            yield group
            group, total = [], 0
        group.append(number)
        total += size
    if group:
        yield group


def _given_scores(part: _QueryPart, taken: VectorBlock, rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The scores of one query with the texts `wanted`; those that exist are in `taken`, where they have `rows`."""
    scores = np.full(len(wanted), np.nan, dtype=np.float32)
    there = wanted >= 0
    if there.any():
        block = taken.take(np.searchsorted(rows, wanted[there]))
        vectors = _padded_vectors(block, 0, part.device, torch.float32)
        scores[there] = part.document_scores(block, vectors)[0].numpy()
    return scores


def check_k(k: int) -> None:
    """Refuse to look for less than one document.

    Raises:
        OptionError: k is less than 1.
    """
    if k < 1:
        msg = f"k is {k}, and at least one document must be asked for. Give --k 1 or more."
        raise OptionError(msg)


def documents_of_vectors(
    vector_rows: np.ndarray, vector_scores: np.ndarray, k: int, *, m: int = 1, offsets: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """From the best vectors of one query to its best documents: the first vector of a document counts.

    The k*m best vectors always hold k documents, where none has more than m vectors; so the result is exact.

    Args:
        vector_rows: (n,) rows of vectors, best first; -1 where there was none.
        vector_scores: (n,) their scores, descending.
        k: How many documents to keep.
        m: Vectors a document, where all have the same number.
        offsets: (documents + 1,) the first row of each document, where the number varies.

    Returns:
        Rows and scores of the documents, best first, at most k; equal scores in the order of the documents.
    """
    found = vector_rows >= 0
    rows, scores = vector_rows[found], vector_scores[found]
    documents = rows // m if offsets is None else np.searchsorted(offsets, rows, side="right") - 1
    _, first = np.unique(documents, return_index=True)
    # `first` is in the order of the documents, which the stable sort keeps among equals.
    order = first[np.argsort(-scores[first], kind="stable")][:k]
    return documents[order], scores[order]


class _Scratch:
    """Memory for one tile of scores, taken again for each: fresh memory costs a good part of a product's time."""

    def __init__(self) -> None:
        self._memory = torch.empty(0)

    def take(self, rows: int, columns: int, like: Tensor) -> Tensor:
        """(rows, columns) of the same type and device as `like`; what was taken before is overwritten."""
        if self._memory.numel() < rows * columns or self._memory.dtype != like.dtype:
            self._memory = torch.empty(rows * columns, dtype=like.dtype, device=like.device)
        return self._memory[: rows * columns].view(rows, columns)


class _QueryPart:
    """Some of the queries: as many as make a tile of scores with a block."""

    def __init__(self, queries: Representation, first: int, dtype: torch.dtype) -> None:
        self.first = first
        self.count = len(queries)
        self.mask = queries.vector_mask
        self.m = 0 if queries.vectors is None else queries.vectors.shape[1]
        self.single = self.m == 1 and (self.mask is None or bool(self.mask.all()))
        self.device = queries.device
        if queries.vectors is not None:
            self.vectors = queries.vectors.reshape(-1, queries.vectors.shape[2]).to(dtype)
            if len(self.vectors) == 1:
                # A product with one row is a matrix-vector product, which rounds differently from place to place.
                self.vectors = self.vectors.expand(2, -1).contiguous()
        self.terms = None if queries.weights is None else _terms(queries.weights)

    def row_scores(self, vectors: Tensor, rows: int, scratch: _Scratch) -> Tensor:
        """(count, rows): the scores of a block's vectors with queries of one vector; valid until the next call."""
        tile = scratch.take(len(self.vectors), len(vectors), vectors)
        torch.mm(self.vectors, vectors.T, out=tile)
        return tile[: self.count, :rows].float()

    def document_scores(self, block: VectorBlock, vectors: Tensor | None) -> Tensor:
        """(count, texts): the scores of a block's documents."""
        total = None
        if vectors is not None:
            products = (vectors @ self.vectors.T)[: _rows(block), : self.count * self.m].float()  # (rows, count * m)
            total = _sum_over_queries(_best_of_documents(products, block), self.count, self.mask)
        if self.terms is not None:
            lexical = torch.from_numpy((block.weights @ self.terms).toarray()).to(self.device)  # (texts, count)
            total = lexical if total is None else total + lexical
        assert total is not None
        return total.T.contiguous()


def _query_parts(queries: Representation, width: int, dtype: torch.dtype) -> Iterator[_QueryPart]:
    tile = CPU_TILE if queries.device.type == "cpu" else GPU_TILE
    m = 1 if queries.vectors is None else queries.vectors.shape[1]
    size = max(1, tile // max(1, width * m))
    for start in range(0, len(queries), size):
        yield _QueryPart(queries.rows(slice(start, start + size)), start, dtype)


def _terms(weights: Tensor) -> Any:
    """The transposed weights as scipy CSR (vocabulary, queries): only terms that a query has cost time."""
    import scipy.sparse

    return scipy.sparse.csr_matrix(weights.float().cpu().numpy()).T.tocsr()


def _best_of_documents(products: Tensor, block: VectorBlock) -> Tensor:
    """(texts, columns): the greatest of each document's rows."""
    if block.starts is None:
        return products.view(block.texts, -1, products.shape[1]).amax(dim=1)
    lengths = torch.from_numpy(np.diff(block.starts)).to(products.device)
    return torch.segment_reduce(products, "max", lengths=lengths, axis=0)


def _sum_over_queries(best: Tensor, count: int, mask: Tensor | None) -> Tensor:
    """(texts, count): the sum over the vectors of each query, of (texts, count * m)."""
    best = best.view(len(best), count, -1)
    if mask is not None:
        best = best.masked_fill(~mask, 0.0)
    return best.sum(dim=2)


class _Best:
    """The k best documents of each query so far.

    Only what beats a query's k-th document is looked at, which soon is little; and it is sorted in only when enough has
    come together.
    """

    def __init__(self, queries: int, k: int, device: torch.device, least: float) -> None:
        self.k = k
        self.least = least
        self.scores = torch.full((queries, k), float("-inf"), device=device)
        self.documents = torch.full((queries, k), -1, dtype=torch.long, device=device)
        self._hits = torch.empty(0, dtype=torch.bool, device=device)
        self._waiting: list[tuple[Tensor, Tensor, Tensor]] = []
        self._count = 0

    def offer(self, first_query: int, tile: Tensor, first: int, documents: Tensor | None, most: int) -> None:
        """Take note of the scores of queries (rows) with documents, or vectors (columns).

        Args:
            first_query: Which query the first row is.
            tile: (queries, columns) scores.
            first: Which document the first column is.
            documents: (columns,) the document of each column, counted from `first`; None = its own number.
            most: Columns that a document can have.
        """
        floor = self.scores[first_query : first_query + len(tile), -1:].clamp(min=self.least)
        enough = self.k * most
        if tile.shape[1] > enough and bool((floor == self.least).any()):
            # No k-th document is known yet for some query, so that everything would be looked at.
            floor = _sharper(floor, tile, enough)
        words = self._sieve(tile, floor)
        if tile.shape[1] > enough and len(words) > 4 * enough * len(tile):
            words = self._sieve(tile, _sharper(floor, tile, enough))
        word, byte = self._hits.view(-1, 8)[words].nonzero(as_tuple=True)
        flat = words[word] * 8 + byte
        rows, columns = flat // tile.shape[1], flat % tile.shape[1]
        scores = tile[rows, columns]
        if documents is not None:
            rows, columns, scores = _greatest_of_each(rows, documents[columns], scores)
        self._waiting.append((rows + first_query, columns + first, scores))
        self._count += len(rows)
        if 2 * self._count > self.scores.numel():
            self._settle()

    def _sieve(self, tile: Tensor, floor: Tensor) -> Tensor:
        """Mark in `_hits` what is above its row's floor; returns the numbers of the groups of eight with a mark."""
        size = -(-tile.numel() // 8) * 8
        if self._hits.numel() != size:
            self._hits = torch.empty(size, dtype=torch.bool, device=tile.device)
        self._hits[tile.numel() :] = False
        hits = self._hits[: tile.numel()].view(tile.shape)
        if tile.device.type == "cpu":
            # Several times faster than torch's, which does not use the processor's vector instructions here.
            np.greater(tile.numpy(), floor.numpy(), out=hits.numpy())
        else:
            torch.gt(tile, floor, out=hits)
        return self._hits.view(torch.int64).nonzero().squeeze(1)

    def result(self) -> tuple[Tensor, Tensor]:
        """The best scores and documents of each query."""
        self._settle()
        return self.scores, self.documents

    def _settle(self) -> None:
        """Sort in what is waiting. Sorting is stable, and earlier documents stand first: so ties are in order."""
        if not self._count:
            return
        rows, documents, scores = (torch.cat(tensors) for tensors in zip(*self._waiting, strict=True))
        order = torch.sort(rows, stable=True).indices
        rows, documents, scores = rows[order], documents[order], scores[order]
        counts = torch.bincount(rows, minlength=len(self.scores))
        places = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows] + self.k
        shape = (0, int(counts.max()))
        all_scores = torch.nn.functional.pad(self.scores, shape, value=float("-inf"))
        all_documents = torch.nn.functional.pad(self.documents, shape, value=-1)
        all_scores[rows, places] = scores
        all_documents[rows, places] = documents
        sorted_scores, order = torch.sort(all_scores, dim=1, descending=True, stable=True)
        self.scores = sorted_scores[:, : self.k].contiguous()
        self.documents = all_documents.gather(1, order[:, : self.k])
        self._waiting.clear()
        self._count = 0


def _sharper(floor: Tensor, tile: Tensor, enough: int) -> Tensor:
    """A floor that each row's best columns, at least `enough`, are above."""
    least = tile.topk(enough, dim=1).values[:, -1:]
    return torch.maximum(floor, torch.nextafter(least, torch.full_like(least, float("-inf"))))


def _greatest_of_each(rows: Tensor, documents: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One entry for each row and document; the entries of a document are next to each other."""
    if not len(rows):
        return rows, documents, scores
    new = torch.ones_like(rows, dtype=torch.bool)
    new[1:] = (rows[1:] != rows[:-1]) | (documents[1:] != documents[:-1])
    group = new.cumsum(0) - 1
    greatest = torch.full((int(group[-1]) + 1,), float("-inf"), device=scores.device)
    greatest.scatter_reduce_(0, group, scores, "amax")
    return rows[new], documents[new], greatest


def _as_block(documents: Representation) -> VectorBlock:
    vectors, starts, weights = None, None, None
    if documents.vectors is not None:
        rows = documents.vectors.reshape(-1, documents.vectors.shape[2])
        if documents.vector_mask is not None:
            rows = rows[documents.vector_mask.reshape(-1)]
            counts = documents.vector_mask.sum(dim=1).cpu().numpy()
            starts = np.concatenate([[0], np.cumsum(counts)])
        vectors = rows.detach().cpu().numpy()
    if documents.weights is not None:
        import scipy.sparse

        weights = scipy.sparse.csr_matrix(documents.weights.detach().cpu().numpy())
    return VectorBlock(0, len(documents), vectors, starts, weights)


def _rows(block: VectorBlock) -> int:
    return block.texts if block.vectors is None else len(block.vectors)


def _most(block: VectorBlock) -> int:
    return _rows(block) // block.texts if block.starts is None else int(np.diff(block.starts).max())


def _texts_of_rows(block: VectorBlock, device: torch.device) -> Tensor | None:
    """(rows,) which of the block's texts each vector belongs to; None where each has one."""
    if block.vectors is None or (block.starts is None and len(block.vectors) == block.texts):
        return None
    counts = np.full(block.texts, _most(block)) if block.starts is None else np.diff(block.starts)
    return torch.from_numpy(np.repeat(np.arange(block.texts), counts)).to(device)


def _padded_vectors(block: VectorBlock, width: int, device: torch.device, dtype: torch.dtype) -> Tensor | None:
    if block.vectors is None:
        return None
    vectors = torch.from_numpy(block.vectors)
    if len(vectors) < width:
        padded = torch.zeros(width, vectors.shape[1], dtype=vectors.dtype)
        padded[: len(vectors)] = vectors
        vectors = padded
    return vectors.to(device).to(dtype)


def _check_block(queries: Representation, block: VectorBlock) -> None:
    sizes = {
        "vectors": (
            0 if queries.vectors is None else queries.vectors.shape[2],
            0 if block.vectors is None else block.vectors.shape[1],
        ),
        "weights": (
            0 if queries.weights is None else queries.weights.shape[1],
            0 if block.weights is None else block.weights.shape[1],
        ),
    }
    for what, (query, document) in sizes.items():
        _check_sizes(what, query, document)


def _check_comparable(queries: Representation, documents: Representation) -> None:
    for what in ("vectors", "weights"):
        query, document = getattr(queries, what), getattr(documents, what)
        _check_sizes(what, 0 if query is None else query.shape[-1], 0 if document is None else document.shape[-1])


def _check_sizes(what: str, query: int, document: int) -> None:
    """Complain where one side has something of another size than the other side; 0 stands for nothing."""
    if bool(query) != bool(document):
        has, lacks = ("documents", "queries") if not query else ("queries", "documents")
        msg = f"{has} have {what} and {lacks} have none, so they cannot be compared. Encode both with one model."
        raise UnsupportedError(msg)
    if query != document:
        msg = f"queries have {what} of size {query} and documents of size {document}. Encode both with one model."
        raise UnsupportedError(msg)
