"""Rankings by several fields made one by Milvus itself: vectors, weights and words (BM25) in one request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrievalkit.errors import OptionError
from retrievalkit_milvus.collection import Collection
from retrievalkit_milvus.ranking import Found, best_texts
from retrievalkit_milvus.server import import_pymilvus


@dataclass(frozen=True)
class Fusion:
    """How Milvus makes one ranking of several.

    Attributes:
        weights: Of each field, in their order, 0 to 1: scores are summed; () = by reciprocal ranks.
        smoothing: What is added to each rank; 60 in the paper.
    """

    weights: tuple[float, ...] = ()
    smoothing: float = 60

    @classmethod
    def parse(cls, text: str) -> Fusion | None:
        """The option `hybrid`: rrf, rrf:K or weighted:W,W; None = none.

        Raises:
            OptionError: It is none of these.
        """
        kind, _, rest = text.strip().partition(":")
        try:
            numbers = tuple(float(one) for one in rest.split(",")) if rest else ()
        except ValueError:
            numbers = (-1.0,)
        if kind == "rrf" and len(numbers) < 2 and all(0 < one < 16_384 for one in numbers):
            return cls(smoothing=numbers[0] if numbers else 60)
        if kind == "weighted" and any(numbers) and all(0 <= one <= 1 for one in numbers):
            return cls(weights=numbers)
        if not text:
            return None
        msg = (
            f"option 'hybrid' is '{text}', and must be rrf, rrf:K or weighted:W,W with a weight from 0 to 1 for each "
            f"of vectors, weights and words that the index holds, in this order."
        )
        raise OptionError(msg)

    def rank(self, collection: Collection, asked: Mapping[str, Sequence[Any]], candidates: int, k: int) -> list[Found]:
        """The best texts of each query, of which each has one row.

        Args:
            collection: Collection to search.
            asked: Field -> for each query a vector, its terms with their weights, or its words.
            candidates: Texts that each field retrieves.
            k: Maximum number of texts per query.

        Raises:
            OptionError: There is not a weight for each field.
        """
        if self.weights and len(self.weights) != len(asked):
            held = ", ".join(asked)
            msg = f"option 'hybrid' has {len(self.weights)} weights, and the index holds {held}. Give each a weight."
            raise OptionError(msg)
        counted = [field for place, field in enumerate(asked) if not self.weights or self.weights[place]]
        if len(counted) == 1:
            return best_texts(collection, counted[0], asked[counted[0]], k)
        found: list[Found] = [(np.empty(0, np.int64), np.empty(0, np.float32))] * len(asked[counted[0]])
        groups: dict[tuple[str, ...], list[int]] = {}
        for query in range(len(found)):
            # Milvus refuses a request without any term.
            groups.setdefault(tuple(field for field in counted if len(asked[field][query])), []).append(query)
        for fields, queries in groups.items():
            if fields:
                parts = {field: [asked[field][query] for query in queries] for field in fields}
                hits = collection.fused(parts, self._ranker(fields, list(asked)), candidates, k)
                for query, one in zip(queries, hits, strict=True):
                    found[query] = one
        return found

    def _ranker(self, fields: Sequence[str], order: Sequence[str]) -> Any:
        pymilvus = import_pymilvus()
        if not self.weights:
            return pymilvus.RRFRanker(self.smoothing)
        return pymilvus.WeightedRanker(*(self.weights[order.index(field)] for field in fields), norm_score=False)
