"""Exact search of a vectors folder in two stages: candidates by rough products, then rescoring by exact products.

Computing exact products block by block would read several times as many vectors, because a query's top k is known only
at the end. Each query is checked for missed texts: a vector that was left out has a rough product below that of the
last kept vector, which bounds its exact product. Queries whose k-th best score is not above that bound (many nearly
identical texts) are searched again, block by block.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from retrievalkit.contracts import Representation
from retrievalkit.scoring import bf16_filter
from retrievalkit.scoring.bf16_filter import Slack
from retrievalkit.scoring.ranking import check_k, top_k
from retrievalkit.scoring.rule import check_comparable
from retrievalkit.scoring.tiles import Documents, QueryPart, Scratch, Workers, is_filtered, query_parts
from retrievalkit.scoring.topk import Best

if TYPE_CHECKING:
    from retrievalkit.data.vectors import VectorStore
    from retrievalkit.data.vectors.postings import Postings
    from retrievalkit.data.vectors.rounded import Rounded

# Numbers in the vectors that are read at a time for exact products.
_READ = 1 << 22
# Vectors kept: this many times k, and this many more.
_TIMES, _MORE = 2, 64
# Vectors compared at a time.
_BLOCK = 8_192
# Texts of a mask are gathered if at most one text in this many is allowed.
_FEW = 8


def top_k_of_store(
    queries: Representation, store: VectorStore, k: int, *, block: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """Return the top-k texts of a folder for each query, as `top_k` over its blocks of `block` vectors would."""
    check_k(k)
    width = store.block_rows(block)
    if not is_filtered(queries, dtype) or not bf16_filter.pays(len(queries)) or store.vocabulary:
        return top_k(queries, store.blocks(block), k, width=width, dtype=dtype)

    def documents() -> Iterator[Documents]:
        for part in store.blocks(block):
            check_comparable(queries, part)
            yield Documents.ready(part, queries, torch.float32)

    refined = _refined(queries, queries, documents(), store, k)
    return _where_uncertain(refined, queries, lambda rest: top_k(rest, store.blocks(block), k, width=width))


def top_k_among(
    queries: Representation,
    store: VectorStore,
    mask: np.ndarray,
    k: int,
    *,
    block: int = _BLOCK,
    dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Like `top_k_of_store`, among the texts of a mask, (texts,) bool; k is at most their number."""
    from retrievalkit.data.vectors import JoinedStore

    check_k(k)
    rows = np.flatnonzero(mask)
    k = min(k, len(rows))
    if not k:
        return torch.empty((len(queries), 0)), torch.empty((len(queries), 0), dtype=torch.long)
    if len(rows) * _FEW > len(store):
        width = store.block_rows(block)
        return top_k(queries, store.blocks(block), k, width=width, dtype=dtype, mask=mask)
    # A few texts are read together, so that the other texts take no time.
    scores, places = top_k_of_store(queries, JoinedStore.among(store, rows), k, block=block, dtype=dtype)
    numbers = torch.from_numpy(rows).to(places.device)
    return scores, torch.where(places < 0, places, numbers[places.clamp(min=0)])


def top_k_of_rounded(
    queries: Representation,
    store: VectorStore,
    postings: Postings,
    rounded: Rounded,
    k: int,
    search: Callable[[Representation], tuple[Tensor, Tensor]],
) -> tuple[Tensor, Tensor]:
    """Return the top-k texts by vectors and weights together, for a folder with one vector per text.

    Vectors and the weights of frequent terms, both in `rounded`, are compared in one rough product, the other weights
    term by term in `postings`. `search` is the search without rounding, used where rounding does not pay off or the
    result is uncertain.
    """
    check_k(k)
    check_comparable(queries, store.take(np.zeros(1, dtype=np.int64)))
    if not is_filtered(queries, torch.float32) or not bf16_filter.pays(len(queries)):
        return search(queries)
    assert queries.vectors is not None
    assert queries.weights is not None
    terms = torch.from_numpy(rounded.terms)
    rare = queries.weights.float().clone()
    rare[:, terms] = 0
    joint = torch.cat([queries.vectors[:, 0].float(), queries.weights[:, terms].float()], dim=1)
    rounded_queries = Representation(joint[:, None], None, rare)
    longest = float(torch.linalg.vector_norm(queries.weights.float(), dim=1).max())
    most = int((queries.weights != 0).sum(dim=1).max())

    def documents() -> Iterator[Documents]:
        for (part, bits), block in zip(rounded.blocks(), postings.blocks(), strict=True):
            rows = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16)
            # Weights are added up in another order than in the exact score.
            adding = bf16_filter.of_adding(most, longest * part.weights_norm)
            side = bf16_filter.Side(np.empty((0, rows.shape[1]), np.float32), rows, part.norm, part.distance, adding)
            yield Documents(block, side, None, [], block.weights)

    return _where_uncertain(_refined(queries, rounded_queries, documents(), store, k), queries, search)


Refined = tuple[Tensor, Tensor, np.ndarray]
"""Scores, texts, and for each query True if they are certain to be the top k."""


def _where_uncertain(
    refined: Refined, queries: Representation, search: Callable[[Representation], tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Search again with the queries whose top k is uncertain."""
    scores, texts, certain = refined
    if not certain.all():
        again = torch.from_numpy(np.flatnonzero(~certain))
        scores[again], texts[again] = search(queries.rows(again))
    return scores, texts


def _refined(
    queries: Representation, rough: Representation, blocks: Iterable[Documents], store: VectorStore, k: int
) -> Refined:
    """Find candidates by products of rough queries with the blocks, and rescore them with the exact queries."""
    kept = min(_TIMES * k * min(store.most_vectors, _TIMES) + _MORE, store.rows)
    parts: list[tuple[int, QueryPart, Best]] = []
    slacks: list[Slack] = []
    scratch = Scratch()

    def compare(documents: Documents, first: int, searched: tuple[int, QueryPart, Best]) -> None:
        _, part, best = searched
        tile, _, slack = part.rough_scores(documents, scratch)
        slacks.append(slack)
        best.offer(tile, first)

    row = 0
    with torch.no_grad(), Workers(len(queries), queries.device) as working:
        for ready in blocks:
            if not parts:
                number = 0
                for part in query_parts(rough, ready.block.rows, torch.float32):
                    parts.append((number, part, Best(part.count, kept, queries.device, float("-inf"))))
                    number += part.count
            working.start(partial(compare, ready, row), parts)
            row += ready.block.rows
        working.finish(lambda _: None, parts)
        slack = Slack(max(slack.fixed for slack in slacks), max(slack.relative for slack in slacks))

        def exactly(searched: tuple[int, QueryPart, Best]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            first, part, best = searched
            return _exactly(queries.rows(slice(first, first + part.count)), best, store, k, slack)

        results = working.finish(exactly, parts)
    scores, texts, certain = (np.concatenate(arrays) for arrays in zip(*results, strict=True))
    return torch.from_numpy(scores), torch.from_numpy(texts), certain


def _exactly(
    queries: Representation, best: Best, store: VectorStore, k: int, slack: Slack
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the top-k texts by the exact scores of the kept vectors."""
    roughly, rows = best.result()
    kept, most = rows.numpy(), slack.above(roughly).numpy()
    scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    texts = np.full((len(queries), k), -1, dtype=np.int64)
    size = max(1, _READ // (kept.shape[1] * store.dim))
    for start in range(0, len(queries), size):
        part = slice(start, start + size)
        rescored = _rescored(queries.rows(part), store, kept[part], most[part], k)
        for query, (vectors, exact) in enumerate(rescored, start):
            ids = store.texts_of(vectors)
            # Each text by its best vector; ties in text order.
            order = np.lexsort((ids, -exact))
            ids, values = ids[order], exact[order]
            if len(ids) > 1:
                unique = np.sort(np.unique(ids, return_index=True)[1])
                ids, values = ids[unique], values[unique]
            count = min(k, len(ids))
            scores[query, :count], texts[query, :count] = values[:k], ids[:k]
    # Above the bound of the last kept vector, or all were kept.
    certain: np.ndarray = (scores[:, -1] > most[:, -1]) | (kept[:, -1] < 0) | (kept.shape[1] == store.rows)
    return scores, texts, certain


def _rescored(
    queries: Representation, store: VectorStore, kept: np.ndarray, most: np.ndarray, k: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows of vectors and exact scores for each query: of the top rough products, then of other possible hits.

    `kept` are (Q, kept) rows of vectors, the top rough products first and -1 past the last; `most` their bounds.
    """
    few = k + _MORE // 4 if store.most_vectors == 1 else kept.shape[1]
    first = list(_exact_scores(queries, store, kept[:, :few]))
    least = np.array([np.partition(exact, -k)[-k] if len(exact) >= k else -np.inf for _, exact in first])
    others = np.sort(np.where(most[:, few:] >= least[:, None], kept[:, few:], -1), axis=1)
    others = others[:, (others >= 0).any(axis=0)]
    if not others.size:
        yield from first
        return
    for (rows, exact), (more_rows, more_exact) in zip(first, _exact_scores(queries, store, others), strict=True):
        yield np.concatenate([rows, more_rows]), np.concatenate([exact, more_exact])


def _exact_scores(
    queries: Representation, store: VectorStore, kept: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each query's rows of kept vectors, without -1, and their exact scores."""
    assert queries.vectors is not None
    exact_queries = queries.vectors[:, 0].float().numpy()
    all_vectors = store.take_vectors(np.maximum(kept, 0).reshape(-1)).reshape(*kept.shape, -1)
    real = kept >= 0
    lexical = None if queries.weights is None else _lexical_scores(queries.weights, store, kept, real)
    for query, (rows, vectors) in enumerate(zip(kept, all_vectors, strict=True)):
        exact = bf16_filter.of_query(exact_queries[query], vectors)
        yield rows[real[query]], (exact if lexical is None else exact + lexical[query])[real[query]]


def _lexical_scores(weights: Tensor, store: VectorStore, kept: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Return the inner products of query and text weights, (queries, kept); 0 past the last text."""
    # scipy's internal routine, on some of the rows: the public API would copy them.
    from scipy.sparse._sparsetools import csr_matvec

    texts = store.take_weights(kept[real])
    # Products are added up in the order of the terms, as in `tiles`.
    texts.sort_indices()
    ends = np.concatenate([[0], np.cumsum(real.sum(axis=1))]).tolist()
    total = np.zeros(kept.shape, dtype=np.float32)
    for query, (first, last) in enumerate(itertools.pairwise(ends)):
        products = np.zeros(last - first, dtype=np.float32)
        starts, own = texts.indptr[first : last + 1], weights[query].float().numpy()
        csr_matvec(last - first, texts.shape[1], starts, texts.indices, texts.data, own, products)
        total[query, real[query]] = products
    return total
