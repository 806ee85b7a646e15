"""Ranking texts by the rows that Milvus retrieves; exact if Milvus's index is exact.

If each text has m rows, the best k*m rows contain the best k texts, and one more row shows whether a tie was cut off.
If that does not suffice, the limit is doubled; at Milvus's maximum number of hits, the search is repeated without the
texts already retrieved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from retrievalkit.scoring import documents_of_vectors
from retrievalkit_milvus import collection as milvus
from retrievalkit_milvus.collection import Collection, Hits
from retrievalkit_milvus.layout import VECTOR

Found = tuple[np.ndarray, np.ndarray]
"""Numbers of texts and their float32 scores, best first; ties in index order."""


def best_texts(collection: Collection, field: str, asked: Sequence[Any], k: int) -> list[Found]:
    """The best texts of each query by one field; a query without terms has no hits.

    Args:
        collection: Collection to search.
        field: Field to compare.
        asked: For each query, a vector, or its terms with their weights.
        k: Maximum number of texts per query.
    """
    layout = collection.layout
    most = min(milvus.MOST_HITS, layout.rows)
    limit = min(most, k * (-(-layout.rows // layout.texts) if field == VECTOR else 1) + 1)
    found: list[Found] = [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in asked]
    unsure = [query for query, one in enumerate(asked) if len(one)]
    while unsure:
        all_hits = collection.nearest(field, [asked[query] for query in unsure], limit)
        again = []
        for query, hits in zip(unsure, all_hits, strict=True):
            found[query] = _texts(collection, hits, k)
            if not _is_sure(collection, field, found[query], hits, k, limit):
                again.append(query)
        unsure = again
        if limit == most:
            break
        limit = min(most, 2 * limit)
    if most < layout.rows:
        for query in unsure:
            found[query] = _beyond(collection, field, asked[query], found[query], k)
    return found


def _beyond(collection: Collection, field: str, asked: Any, found: Found, k: int) -> Found:
    """Extend the hits of a query past Milvus's maximum number of hits per search."""
    limit, known = milvus.MOST_HITS, np.sort(found[0])
    while True:
        (hits,) = collection.nearest(field, [asked], limit, but=known.tolist())
        texts, scores = _texts(collection, hits, limit)
        known = np.union1d(known, texts)
        found = _merged(found, (texts, scores), k)
        if not len(texts) or _is_sure(collection, field, found, hits, k, limit):
            return found


def _texts(collection: Collection, hits: Hits, k: int) -> Found:
    layout = collection.layout
    return documents_of_vectors(*hits, k, m=layout.most_vectors, offsets=layout.offsets)


def _is_sure(collection: Collection, field: str, found: Found, hits: Hits, k: int, limit: int) -> bool:
    """Whether no row outside the hits can change the best k texts."""
    if len(hits[0]) < limit:
        return True
    if len(found[0]) < k:
        return False
    return not collection.index.is_exact(field) or bool(found[1][-1] > hits[1][-1])


def _merged(left: Found, right: Found, k: int) -> Found:
    """The best k of both; ties in index order."""
    texts, scores = np.concatenate([left[0], right[0]]), np.concatenate([left[1], right[1]])
    order = np.lexsort((texts, -scores))[:k]
    return texts[order], scores[order]
