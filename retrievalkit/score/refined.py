"""Exact search of a folder of vectors in two steps: the best by rough products, then their exact products.

Computing the exact products of what looks good block by block would look at several times as many vectors, because a
query's best are known only at the end. That nothing is missed is checked query by query: a vector that was left out has
a rough product below the last one kept, so its exact product is below a bound. Queries for which the k-th best is not
above that bound (many texts almost alike) are searched again, block by block.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from retrievalkit.contracts import Representation
from retrievalkit.score import rough
from retrievalkit.score.best import Best
from retrievalkit.score.ranking import check_block, check_k, top_k
from retrievalkit.score.rough import Slack
from retrievalkit.score.tiles import Documents, QueryPart, Scratch, is_filtered, query_parts, workers

if TYPE_CHECKING:
    from retrievalkit.data.vectors import VectorStore

# Numbers of the vectors that are read at once for their exact products.
_READ = 1 << 22
# How many times k vectors are kept, and how many more.
_TIMES, _MORE = 2, 64


def top_k_of_store(
    queries: Representation, store: VectorStore, k: int, *, block: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """The k best texts of a folder for each query: what `top_k` finds among its blocks.

    Args:
        queries: Q texts.
        store: The folder.
        k: How many texts to find.
        block: Vectors compared at once.
        dtype: Number format of the inner products; any but float32 makes the search approximate.

    Returns:
        As `top_k`.
    """
    check_k(k)
    width = store.block_rows(block)
    if not is_filtered(queries, dtype) or not rough.pays(len(queries)) or store.vocabulary:
        return top_k(queries, store.blocks(block), k, width=width, dtype=dtype)
    scores, texts, certain = _refined(queries, store, k, block)
    if not certain.all():
        again = torch.from_numpy(np.flatnonzero(~certain))
        some = Representation(queries.vectors[again] if queries.vectors is not None else None)
        scores[again], texts[again] = top_k(some, store.blocks(block), k, width=width)
    return scores, texts


def _refined(queries: Representation, store: VectorStore, k: int, block: int) -> tuple[Tensor, Tensor, np.ndarray]:
    """Scores, texts, and whether they are certain to be the best."""
    kept = min(_TIMES * k * min(store.most_vectors, _TIMES) + _MORE, store.rows)
    parts: list[tuple[QueryPart, Best]] = []
    slacks: list[Slack] = []
    scratch = Scratch()

    def look(documents: Documents, first: int, searched: tuple[QueryPart, Best]) -> None:
        part, best = searched
        tile, _, slack = part.rough_scores(documents, scratch)
        slacks.append(slack)
        best.offer(tile, first)

    row = 0
    with torch.no_grad(), workers(len(queries), queries.device) as working:
        for some in store.blocks(block):
            check_block(queries, some)
            if not parts:
                found = query_parts(queries, some.rows, torch.float32)
                parts = [(part, Best(part.count, kept, queries.device, float("-inf"))) for part in found]
            ready = Documents.ready(some, queries, torch.float32)
            working.start(partial(look, ready, row), parts)
            row += some.rows
        working.finish(lambda _: None, parts)
        slack = Slack(max(one.fixed for one in slacks), max(one.relative for one in slacks))
        results = working.finish(lambda one: _exactly(one[0], one[1], store, k, slack), parts)
    scores, texts, certain = (np.concatenate(some) for some in zip(*results, strict=True))
    return torch.from_numpy(scores), torch.from_numpy(texts), certain


def _exactly(
    part: QueryPart, best: Best, store: VectorStore, k: int, slack: Slack
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The best texts by the exact products of the vectors that were kept."""
    assert part.side is not None
    roughly, rows = best.result()
    kept = rows.numpy()
    scores = np.full((part.count, k), -np.inf, dtype=np.float32)
    texts = np.full((part.count, k), -1, dtype=np.int64)
    size = max(1, _READ // (kept.shape[1] * store.dim))
    for start in range(0, part.count, size):
        wanted = kept[start : start + size]
        vectors = store.take_vectors(np.maximum(wanted, 0).reshape(-1)).reshape(*wanted.shape, -1)
        for query, (some, there) in enumerate(zip(vectors, wanted >= 0, strict=True), start):
            exact = rough.of_query(part.side.exact[query], some)[there]
            ids, values = _best(store.texts_of(kept[query][there]), exact, k)
            scores[query, : len(ids)], texts[query, : len(ids)] = values, ids
    # The last one kept, or minus infinity where all were.
    least = slack.above(roughly[:, -1]).numpy()
    certain: np.ndarray = (scores[:, -1] > least) | (kept[:, -1] < 0) | (kept.shape[1] == store.rows)
    return scores, texts, certain


def _best(texts: np.ndarray, scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k best texts, each by its best vector; equal ones in their order."""
    order = np.lexsort((texts, -scores))
    texts, scores = texts[order], scores[order]
    if len(texts) > 1:
        first = np.sort(np.unique(texts, return_index=True)[1])
        texts, scores = texts[first], scores[first]
    return texts[:k], scores[:k]
