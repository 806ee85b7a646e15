"""The re-ranker `my_name`: scores pairs of a query and a passage."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from retrievalkit.contracts import Reranker


class MyName(Reranker):
    """The share of a query's words that occur in a passage."""

    # Scores left by a killed command are reused if this is the same: identify the model's content here.
    fingerprint = "my_name 1"

    @classmethod
    def load(cls, source: str, *, max_length: int | None = None) -> Self:
        """Load the re-ranker; `source` is the part after `my_name:`, such as a model's folder."""
        return cls()

    # Optional: `tokenize` runs in another thread while earlier pairs are scored. `score` receives its result for each
    # pair; by default (query, (title, text)).

    def score(
        self,
        pairs: Sequence[Any],
        *,
        batch_tokens: int | None = None,
        precision: str = "fp32",
        advance: Callable[[int], None] | None = None,
    ) -> NDArray[np.float32]:
        """(pairs,): each pair is scored independently of its batch."""
        scores = [_overlap(query, f"{title} {text}") for query, (title, text) in pairs]
        if advance is not None:
            advance(len(pairs))  # after each batch, for the progress bar
        return np.array(scores, dtype=np.float32)


def _overlap(query: str, passage: str) -> float:
    words = set(query.lower().split())
    return len(words & set(passage.lower().split())) / max(1, len(words))
