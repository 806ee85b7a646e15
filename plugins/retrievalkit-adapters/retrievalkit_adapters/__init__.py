"""Indexes and models in other toolkits: LangChain, LlamaIndex, Haystack, PyTerrier and MTEB, each in its own module.

Sources: data sets of Hugging Face (`hf:`) and of ir_datasets (`irds:`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from retrievalkit import hookimpl
from retrievalkit.errors import InputError, MissingDependencyError
from retrievalkit.reporting import notices

if TYPE_CHECKING:
    import retrievalkit as rk

__version__ = "0.1.0"
retrievalkit_contract = "0.1"

Hits = list[tuple[str, float]]


@hookimpl
def register_sources(register: Callable[[str, str], None]) -> None:
    """Register the sources `hf:` and `irds:`."""
    register("hf", "retrievalkit_adapters.data_sets:HuggingFace")
    register("irds", "retrievalkit_adapters.data_sets:IrDatasets")


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

    if is_blank(query):
        return []
    parts = index.parts if isinstance(index, rk.Hybrid) else [index]
    size = max(len(part) for part in parts if isinstance(part, rk.Index))
    (hits,) = index.search([query], size, filter=filter).values()
    candidates = set(documents)
    return [hit for hit in hits if hit[0] in candidates]


def search(
    index: rk.Index | rk.Hybrid, query: str, k: int, *, filter: str | None = None, explain: bool = False
) -> Sequence[rk.Hit]:
    """Return the best passages for a query; none for a blank query, which would otherwise end a batch."""
    if is_blank(query):
        note_blank(1, 1)
        return []
    return index.search(query, k, filter=filter, by="passage", explain=explain)


def is_blank(query: Any) -> bool:
    """True for a query without words; an empty cell of a table is NaN."""
    return query is None or query != query or (isinstance(query, str) and not query.strip())


def note_blank(count: int, among: int) -> None:
    """Note the number of blank queries, which have no hits."""
    if count:
        verb, them = ("is", "it") if count == 1 else ("are", "them")
        notices.note(f"{count:,} of {among:,} queries {verb} blank, without hits. Fill {them} or drop {them}.")


def metadata(hit: rk.Hit, explain: bool) -> dict[str, Any]:
    """Return the metadata of a hit: fields, place, title and id, with `explain` rank, score and the reasons for it.

    Without `explain` a passage has the same metadata for every query: toolkits drop duplicates by it. As in filters, a
    field that is named "title" or "id" keeps its name, and the passage's own is `_title` or `_id`.
    """
    own = {"title": hit.title, "id": hit.id}
    own = {f"_{name}" if name in hit.fields else name: value for name, value in own.items()}
    why = {"rank": hit.rank, "score": hit.score, "why": list(hit.why)} if explain else {}
    place = {name: value for name, value in (("heading", hit.heading), ("page", hit.page)) if value}
    return {**hit.fields, **place, **own, **why}


def missing(package: str, toolkit: str) -> MissingDependencyError:
    """Return the error of an adapter whose toolkit is not installed."""
    return MissingDependencyError(package, f"an adapter for {toolkit}", f"'retrievalkit[{toolkit.lower()}]'")
