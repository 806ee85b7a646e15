"""From rows of an index to the ids of its texts."""

from __future__ import annotations

import numpy as np

from retrievalkit.data.vectors import Ids


def named(ids: Ids, scores: np.ndarray, rows: np.ndarray) -> tuple[list[list[str]], list[np.ndarray]]:
    """What `Indexer.search` returns, of (queries, k) scores and rows, best first; -1 where fewer were found."""
    counts = (rows >= 0).sum(axis=1)
    texts = ids.take(rows[rows >= 0])
    ends = np.cumsum(counts).tolist()
    lists = [texts[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]
    return lists, [one[:count] for one, count in zip(scores, counts.tolist(), strict=True)]
