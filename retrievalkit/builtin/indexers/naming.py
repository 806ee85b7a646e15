"""From rows of an index to the ids of its texts."""

from __future__ import annotations

import numpy as np

from retrievalkit.data.vectors import Ids


def named(ids: Ids, scores: np.ndarray, rows: np.ndarray) -> tuple[list[list[str]], list[np.ndarray]]:
    """Turn (queries, k) scores and rows, best first and -1 past the last, into the result of `Indexer.search`."""
    counts = (rows >= 0).sum(axis=1)
    texts = ids.take(rows[rows >= 0])
    ends = np.cumsum(counts).tolist()
    lists = [texts[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]
    return lists, [one[:count] for one, count in zip(scores, counts.tolist(), strict=True)]
