"""Rankings of texts by the rows that Milvus retrieves; exact if Milvus's index is exact.

If each text has m rows, the best k*m rows contain the best k texts, and another row shows whether a tie was cut off.
If that does not suffice, the limit is doubled; at Milvus's maximum number of hits, the search is repeated without the
texts already retrieved. `Fusion` leaves the ranking by several fields (vectors, weights, words) to Milvus.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrievalkit.errors import OptionError
from retrievalkit.scoring import documents_of_vectors
from retrievalkit_milvus import collection as milvus
from retrievalkit_milvus.collection import Collection, Hits
from retrievalkit_milvus.layout import VECTOR
from retrievalkit_milvus.server import import_pymilvus

Ranking = tuple[np.ndarray, np.ndarray]
"""Numbers of texts and their float32 scores, best first; ties in index order."""


def best_texts(
    collection: Collection, field: str, inputs: Sequence[Any], k: int, only: Sequence[int] = ()
) -> list[Ranking]:
    """Rank the best texts for each query by a single field; a query without terms has no hits.

    Args:
        collection: Collection to search.
        field: Field to compare.
        inputs: For each query, a vector, or its terms with their weights.
        k: Maximum number of texts per query.
        only: Texts to search; () = all.
    """
    layout = collection.layout
    most = min(milvus.MOST_HITS, layout.rows)
    limit = min(most, k * (-(-layout.rows // layout.texts) if field == VECTOR else 1) + 1)
    rankings: list[Ranking] = [(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in inputs]
    unsure = [query for query, terms in enumerate(inputs) if len(terms)]
    while unsure:
        all_hits = collection.nearest(field, [inputs[query] for query in unsure], limit, only=only)
        again = []
        for query, hits in zip(unsure, all_hits, strict=True):
            rankings[query] = _texts(collection, hits, k)
            if not _is_sure(collection, field, rankings[query], hits, k, limit):
                again.append(query)
        unsure = again
        if limit == most:
            break
        limit = min(most, 2 * limit)
    for query in unsure if most < layout.rows else ():
        # Beyond Milvus's maximum number of hits.
        known = np.sort(rankings[query][0])
        while True:
            (hits,) = collection.nearest(field, [inputs[query]], most, without=known.tolist(), only=only)
            more = _texts(collection, hits, most)
            known = np.union1d(known, more[0])
            texts, scores = (np.concatenate(pair) for pair in zip(rankings[query], more, strict=True))
            order = np.lexsort((texts, -scores))[:k]  # ties in index order
            rankings[query] = texts[order], scores[order]
            if not len(more[0]) or _is_sure(collection, field, rankings[query], hits, k, most):
                break
    return rankings


def _texts(collection: Collection, hits: Hits, k: int) -> Ranking:
    layout = collection.layout
    return documents_of_vectors(*hits, k, m=layout.most_vectors, offsets=layout.offsets)


def _is_sure(collection: Collection, field: str, ranking: Ranking, hits: Hits, k: int, limit: int) -> bool:
    """True if no row outside the hits can change the best k texts."""
    if len(hits[0]) < limit:
        return True
    if len(ranking[0]) < k:
        return False
    return not collection.index.is_exact(field) or bool(ranking[1][-1] > hits[1][-1])


@dataclass(frozen=True)
class Fusion:
    """Milvus's fusion of several rankings.

    Attributes:
        weights: Weight of each field, in order, 0 to 1, for summing scores; () = reciprocal rank fusion.
        smoothing: Constant added to each rank; 60 in the paper.
    """

    weights: tuple[float, ...] = ()
    smoothing: float = 60

    @classmethod
    def parse(cls, text: str) -> Fusion | None:
        """Parse the option `hybrid`: rrf, rrf:K or weighted:W,W; None = no fusion.

        Raises:
            OptionError: The text has none of these forms.
        """
        kind, _, rest = text.strip().partition(":")
        try:
            numbers = tuple(map(float, rest.split(","))) if rest else ()
        except ValueError:
            numbers = (-1.0,)
        if kind == "rrf" and len(numbers) < 2 and all(0 < number < 16_384 for number in numbers):
            return cls(smoothing=numbers[0] if numbers else 60)
        if kind == "weighted" and any(numbers) and all(0 <= number <= 1 for number in numbers):
            return cls(weights=numbers)
        if not text:
            return None
        msg = (
            f"option 'hybrid' is '{text}', but must be rrf, rrf:K or weighted:W,W with a weight from 0 to 1 for each "
            f"part of the index: vectors, weights and words, in this order."
        )
        raise OptionError(msg)

    def rank(
        self, collection: Collection, inputs: Mapping[str, Sequence[Any]], candidates: int, k: int
    ) -> list[Ranking]:
        """Rank the best `k` texts for each query; `inputs` has the vectors, terms or words of the queries by field.

        Raises:
            OptionError: The number of weights differs from the number of fields.
        """
        if self.weights and len(self.weights) != len(inputs):
            known = ", ".join(inputs)
            msg = f"option 'hybrid' has {len(self.weights)} weights, but the index has {known}. Give each a weight."
            raise OptionError(msg)
        fields = [field for number, field in enumerate(inputs) if not self.weights or self.weights[number]]
        if len(fields) == 1:
            return best_texts(collection, fields[0], inputs[fields[0]], k)
        rankings: list[Ranking] = [(np.empty(0, np.int64), np.empty(0, np.float32))] * len(inputs[fields[0]])
        groups: dict[tuple[str, ...], list[int]] = {}
        for query in range(len(rankings)):
            # Milvus refuses requests without any term.
            groups.setdefault(tuple(field for field in fields if len(inputs[field][query])), []).append(query)
        pymilvus = import_pymilvus()
        for group, queries in groups.items():
            if group:
                parts = {field: [inputs[field][query] for query in queries] for field in group}
                weights = [weight for field, weight in zip(inputs, self.weights, strict=False) if field in group]
                ranker = pymilvus.RRFRanker(self.smoothing)
                if weights:
                    ranker = pymilvus.WeightedRanker(*weights, norm_score=False)
                for query, ranking in zip(queries, collection.fused(parts, ranker, candidates, k), strict=True):
                    rankings[query] = ranking
        return rankings
