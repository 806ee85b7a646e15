"""Search by the scoring rule: exact top-k over blocks of texts, and scores of candidates."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from retrievalkit.contracts import Representation
from retrievalkit.contracts.models import to_device
from retrievalkit.data.vectors import VectorBlock
from retrievalkit.errors import OptionError
from retrievalkit.scoring.rule import check_comparable
from retrievalkit.scoring.tiles import LEAST_ROWS, Documents, QueryPart, Scratch, Workers, is_single, query_parts
from retrievalkit.scoring.topk import Best

# Vectors read at a time to score candidates.
VECTORS_READ = 1 << 16


def top_k(
    queries: Representation,
    documents: Representation | Iterable[VectorBlock],
    k: int,
    *,
    width: int = 0,
    dtype: torch.dtype = torch.float32,
    mask: np.ndarray | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the exact top-k documents of each query, as sorting all `scores` would.

    Ties are in document order. With weights only, documents that share no term with a query are not returned.

    Args:
        queries: Q texts; the computation runs on their device.
        documents: Texts, or blocks of texts in ascending order.
        k: Number of documents per query.
        width: Number of vectors that blocks are padded to. Matrix products of equal shape round alike, so equal
            documents get equal scores at any position.
        dtype: Number format of the inner products; any but float32 makes the search approximate.
        mask: (documents,) bool, True for allowed documents; None = all.

    Returns:
        (Q, k) float32 scores, descending, and (Q, k) long, the rows of the documents; -inf and -1 past the last.
    """
    check_k(k)
    if not len(queries):
        return torch.empty((0, k), device=queries.device), torch.empty((0, k), dtype=torch.long, device=queries.device)
    queries, width = _without_empty_mask(queries), max(width, LEAST_ROWS)
    blocks = [_as_block(documents)] if isinstance(documents, Representation) else documents
    least = 0.0 if queries.vectors is None else float("-inf")
    parts: list[tuple[QueryPart, Best]] = []
    scratch = Scratch()

    def score_block(documents: Documents, dropped: Tensor | None, searched: tuple[QueryPart, Best]) -> None:
        part, best = searched
        block = documents.block
        if part.side is not None and documents.side is not None:
            rows, lexical, slack = part.rough_scores(documents, scratch)
            _drop(rows, dropped)

            def exact(rows: Tensor, columns: Tensor) -> Tensor:
                return part.scores_of_pairs(documents, rows, columns, lexical)

            best.offer(rows, block.first, documents.texts_of_rows, block.most_vectors, slack=slack, exact=exact)
        elif part.single and documents.weights is None:
            # A document has the score of its best vector, so vectors can be filtered before they are grouped.
            rows = part.row_scores(documents, scratch)
            _drop(rows, dropped)
            best.offer(rows, block.first, documents.texts_of_rows, block.most_vectors)
        else:
            scores = part.document_scores(documents, scratch)
            _drop(scores, dropped)
            best.offer(scores, block.first)

    with torch.no_grad(), Workers(len(queries), queries.device) as working:
        for block in blocks:
            check_comparable(queries, block)
            if not parts:
                split = query_parts(queries, max(width, block.rows), dtype)
                parts = [(part, Best(part.count, k, queries.device, least)) for part in split]
            grouped = block.weights is not None or not is_single(queries)
            ready = Documents.ready(block, queries, dtype, width=width, grouped=grouped)
            dropped = None
            if mask is not None:
                texts = ~mask[block.first : block.first + block.texts]
                columns = torch.from_numpy(texts if grouped else np.repeat(texts, block.counts))
                dropped = to_device(columns, queries.device)
            working.start(partial(score_block, ready, dropped), parts)
        results = working.finish(lambda searched: searched[1].result(), parts)
    return torch.cat([scores for scores, _ in results]), torch.cat([rows for _, rows in results])


def _drop(scores: Tensor, dropped: Tensor | None) -> None:
    """Set the scores of dropped columns to -inf."""
    if dropped is not None:
        scores.masked_fill_(dropped, float("-inf"))


def _without_empty_mask(queries: Representation) -> Representation:
    """Drop the mask of the queries if it masks nothing."""
    if queries.vector_mask is None or not bool(queries.vector_mask.all()):
        return queries
    return replace(queries, vector_mask=None)


class TextReader(Protocol):
    """A reader of texts by row, like `VectorStore`, for plugins that keep their texts elsewhere."""

    @property
    def most_vectors(self) -> int:
        """The largest number of vectors of a text."""

    def take(self, texts: np.ndarray) -> VectorBlock:
        """Return the texts of these rows, in their order."""


def scores_of(queries: Representation, store: TextReader, texts: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return the scores of each query's own candidate texts, the same numbers as from `scores`.

    Args:
        queries: Q texts, on the CPU.
        store: The folder, or another reader of its texts.
        texts: For each query, rows of texts in the folder; -1 for a missing text.

    Returns:
        For each query, (texts,) float32 scores, NaN for -1.
    """
    queries = _without_empty_mask(queries)
    all_scores = []
    with torch.no_grad():
        ends, size = np.cumsum([len(rows) for rows in texts]), max(1, VECTORS_READ // max(1, store.most_vectors))
        for _, rows in itertools.groupby(range(len(texts)), lambda row: ends[row] // size):
            group = list(rows)
            candidates = np.unique(np.concatenate([texts[row] for row in group]))
            candidates = candidates[candidates >= 0]
            read = store.take(candidates)
            check_comparable(queries, read)
            for row in group:
                known = texts[row] >= 0
                scores = np.full(len(known), np.nan, dtype=np.float32)
                if known.any():
                    block = read.take(np.searchsorted(candidates, texts[row][known]))
                    query = queries.rows(slice(row, row + 1))
                    ready = Documents.ready(block, query, torch.float32)
                    scores[known] = QueryPart(query, torch.float32).document_scores(ready, Scratch())[0].numpy()
                all_scores.append(scores)
    return all_scores


def lexical_scores_of(
    queries: Representation, blocks: Iterable[VectorBlock], texts: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Like `scores_of`, for weights only, block by block; reads every text that shares a term with a query."""
    all_scores = [np.full(len(rows), np.nan, dtype=np.float32) for rows in texts]
    scratch = Scratch()
    for block in blocks:
        check_comparable(queries, block)
        ready = Documents.ready(block, queries, torch.float32)
        first = 0
        for part in query_parts(queries, block.rows, torch.float32):
            scores = part.document_scores(ready, scratch).numpy()
            for row, query in enumerate(range(first, first + part.count)):
                inside = (texts[query] >= block.first) & (texts[query] < block.first + block.texts)
                all_scores[query][inside] = scores[row, texts[query][inside] - block.first]
            first += part.count
    return all_scores


def best_of_candidates(
    queries: Representation, store: TextReader, candidates: Sequence[np.ndarray], k: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rescore the candidates of an approximate search, and return the exact top k.

    Args:
        queries: Q texts, on the CPU.
        store: The folder, or another reader of its texts.
        candidates: For each query, rows of texts in the folder, ascending.
        k: Number to keep for each query, best first; ties in the order of the folder.
    """
    best = []
    for texts, scores in zip(candidates, scores_of(queries, store, candidates), strict=True):
        # Candidates ascend; the stable sort keeps that order among ties.
        order = np.argsort(-scores, kind="stable")[:k]
        best.append((texts[order], scores[order]))
    return best


def check_k(k: int) -> None:
    """Refuse a k below 1."""
    if k < 1:
        msg = f"k is {k}: a search returns at least one document. Set --k to 1 or more."
        raise OptionError(msg)


def documents_of_vectors(
    vector_rows: np.ndarray, vector_scores: np.ndarray, k: int, *, m: int = 1, offsets: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Convert a query's top vectors to its top documents; a document has the score of its best vector.

    If no document has more than m vectors, the top k*m vectors cover k documents, so the result is exact.

    Args:
        vector_rows: (n,) rows of vectors, best first; -1 past the last.
        vector_scores: (n,) their scores, descending.
        k: Number of documents to keep.
        m: Vectors of each document, if all have the same number.
        offsets: (documents + 1,) the first row of each document, if the number varies.

    Returns:
        Rows and scores of the documents, best first, at most k; ties in the order of the documents.
    """
    known = vector_rows >= 0
    rows, scores = vector_rows[known], vector_scores[known]
    documents = rows // m if offsets is None else np.searchsorted(offsets, rows, side="right") - 1
    _, first = np.unique(documents, return_index=True)
    # `first` is in the order of the documents; the stable sort keeps that order among ties.
    order = first[np.argsort(-scores[first], kind="stable")][:k]
    return documents[order], scores[order]


def _as_block(documents: Representation) -> VectorBlock:
    vectors, starts, weights = None, None, None
    keys = None if documents.keys is None else documents.keys.flatten()
    if documents.vectors is not None:
        rows = documents.vectors.reshape(-1, documents.vectors.shape[2])
        if documents.vector_mask is not None:
            rows = rows[documents.vector_mask.reshape(-1)]
            keys = keys if keys is None else keys[documents.vector_mask.reshape(-1)]
            counts = documents.vector_mask.sum(dim=1).cpu().numpy()
            starts = np.concatenate([[0], np.cumsum(counts)])
        vectors = rows.detach().cpu().numpy()
    if documents.weights is not None:
        import scipy.sparse

        weights = scipy.sparse.csr_matrix(documents.weights.detach().cpu().numpy())
    return VectorBlock(0, len(documents), vectors, starts, weights, keys if keys is None else keys.cpu().numpy())
