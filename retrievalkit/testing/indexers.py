"""The conformance kit of indexers: the properties of their answers, of their folders, and of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Each adds its properties, in this order.
import retrievalkit.testing.index_answers
import retrievalkit.testing.index_texts
import retrievalkit.testing.index_folders  # noqa: F401
from retrievalkit.testing.indexer_cases import INDEXERS


def check_indexer(name: str, folder: str | Path | None = None, *, recall: float = 1.0, **options: Any) -> None:
    """Check that an indexer keeps the contract: it finds what brute force finds, and its folder is all that it needs.

    It is tried with each form of texts that it takes: one vector a text, several, weights, both, or words.

    Args:
        name: Registered name of the indexer.
        folder: For indexes; None = a temporary one.
        recall: For one that is approximate by design: the least share of the best ten texts that it has to find. Below
            1, scores may be off by 5 %.
        options: Of the indexer.

    Raises:
        PropertyError: Says what it does wrong.
    """
    INDEXERS.check(name, folder=folder, recall=recall, **options)
