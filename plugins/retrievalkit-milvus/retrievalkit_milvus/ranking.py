"""From the rows that Milvus finds to the best texts, exactly where Milvus's index is exact.

The best k*m rows hold the best k texts where a text has m, and one row more shows whether a tie was cut off. Where that
is not enough, more is asked for; and at Milvus's limit of hits, the same is asked again without the texts that are
known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from retrievalkit.score import documents_of_vectors
from retrievalkit_milvus import collection as milvus
from retrievalkit_milvus.collection import Collection, Hits
from retrievalkit_milvus.layout import VECTOR

Found = tuple[np.ndarray, np.ndarray]
"""The rows of texts and their float32 scores, best first; equal scores in the order of the index."""


def best_texts(collection: Collection, field: str, asked: Sequence[Any], k: int) -> list[Found]:
    """The best texts of each query by one field; a query without terms finds nothing.

    Args:
        collection: Where to search.
        field: What to compare.
        asked: For each query a vector, or its terms with their weights.
        k: Most texts of a query.
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
    """What was found, and what lies behind Milvus's limit of hits."""
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
    """Whether no row that was not retrieved can change the k best texts."""
    if len(hits[0]) < limit:
        return True
    if len(found[0]) < k:
        return False
    return not collection.index.is_exact(field) or bool(found[1][-1] > hits[1][-1])


def _merged(left: Found, right: Found, k: int) -> Found:
    """The k best of both, equal scores in the order of the index."""
    texts, scores = np.concatenate([left[0], right[0]]), np.concatenate([left[1], right[1]])
    order = np.lexsort((texts, -scores))[:k]
    return texts[order], scores[order]
