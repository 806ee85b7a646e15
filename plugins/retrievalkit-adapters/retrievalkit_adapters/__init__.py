"""Indexes and models in other toolkits: LangChain, LlamaIndex, Haystack, PyTerrier and MTEB, each in its own module."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from retrievalkit.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    import retrievalkit as rk

__version__ = "0.1.0"

Hits = list[tuple[str, float]]


def open_index(index: Any) -> rk.Index | rk.Hybrid:
    """Open an index for searching.

    Args:
        index: An open index or hybrid, an index folder, or a list of folders, fused by reciprocal rank fusion.

    Raises:
        InputError: The index does not exist, or is something else.
    """
    import retrievalkit as rk

    if isinstance(index, rk.Index | rk.Hybrid):
        return index
    if isinstance(index, str | os.PathLike):
        return rk.Index.open(index)
    if isinstance(index, list | tuple):
        if len(index) == 1:
            return open_index(index[0])
        return rk.Hybrid(index, fusion="rrf")
    msg = f"the index is {index!r:.80}. Give an open index or hybrid, an index folder, or a list of folders."
    raise InputError(msg)


def scores_of(index: rk.Index | rk.Hybrid, query: str, documents: Iterable[str], filter: str | None = None) -> Hits:
    """Score documents for a query, best first, without documents that the index does not retrieve.

    This ranks the whole index, because a document may be anywhere in the ranking.
    """
    import retrievalkit as rk

    parts = index.parts if isinstance(index, rk.Hybrid) else [index]
    size = max(len(part) for part in parts if isinstance(part, rk.Index))
    (hits,) = index.search([query], size, filter=filter).values()
    candidates = set(documents)
    return [hit for hit in hits if hit[0] in candidates]


def metadata(hit: rk.Hit, explain: bool) -> dict[str, Any]:
    """Return the metadata of a hit: fields, title and rank, and with `explain` the reasons for its score."""
    return {**hit.fields, "title": hit.title, "rank": hit.rank} | ({"why": list(hit.why)} if explain else {})


def missing(package: str, toolkit: str) -> MissingDependencyError:
    """Return the error of an adapter whose toolkit is not installed."""
    return MissingDependencyError(package, f"an adapter for {toolkit}", f"'retrievalkit[{toolkit.lower()}]'")
