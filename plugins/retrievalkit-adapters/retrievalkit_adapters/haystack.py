"""An index as a Haystack retriever, for pipelines (docs/how-to/frameworks.md)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from retrievalkit.errors import InputError
from retrievalkit_adapters import lacking, metadata, opened
from retrievalkit_adapters.filters import combined, comparison

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ImportError as error:
    raise lacking("haystack-ai", "Haystack") from error


@component
class IndexRetriever:
    """Retrieves documents from an index, with scores, and fields, titles and ranks as metadata.

    Args:
        index: An index folder, or a list of folders, fused by reciprocal rank fusion; or an open index or hybrid, with
            which a pipeline cannot be saved.
        top_k: Documents per query.
        explain: True to add the reasons for the score to the metadata, under "why".
        filters: Only documents whose fields match, in Haystack's format: `{"field": "meta.year", "operator": ">=",
            "value": 2020}`, or `{"operator": "AND", "conditions": [...]}`.

    Raises:
        InputError: The index does not exist, or a filter cannot be translated.
    """

    def __init__(
        self, index: Any, top_k: int = 10, explain: bool = False, filters: dict[str, Any] | None = None
    ) -> None:
        self.index = opened(index)
        self.places = index
        self.top_k = top_k
        self.explain = explain
        self.filters = filters
        self.filter = _translated(filters)

    def warm_up(self) -> None:
        """Load the models before the first query."""
        self.index.warm()

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """The documents of a query, best first, as "documents".

        Args:
            query: Its text.
            filters: Filters that replace the component's; None = the component's setting.
            top_k: Number of documents; None = the component's setting.

        Raises:
            InputError: The query is empty, or a filter cannot be translated.
        """
        wanted = self.filter if filters is None else _translated(filters)
        count = self.top_k if top_k is None else top_k
        hits = self.index.search(query, count, filter=wanted, by="passage", explain=self.explain)
        return {
            "documents": [
                Document(id=hit.id, content=hit.text, score=hit.score, meta=metadata(hit, self.explain)) for hit in hits
            ]
        }

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Search in a thread, so that other components run meanwhile; see `run`."""
        documents: dict[str, list[Document]] = await asyncio.to_thread(self.run, query, filters, top_k)
        return documents

    def to_dict(self) -> dict[str, Any]:
        """The component in the format of a saved pipeline.

        Raises:
            InputError: It was created from an open index.
        """
        places = self.places if isinstance(self.places, list | tuple) else [self.places]
        if not all(isinstance(place, str | os.PathLike) for place in places):
            msg = "the retriever was created from an open index, which cannot be saved. Create it from index folders."
            raise InputError(msg)
        names = [os.fspath(place) for place in places]
        index = names if self.places is places else names[0]
        options = {"top_k": self.top_k, "explain": self.explain, "filters": self.filters}
        saved: dict[str, Any] = default_to_dict(self, index=index, **options)
        return saved

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> IndexRetriever:
        """Restore the component from a saved pipeline."""
        restored: IndexRetriever = default_from_dict(cls, data)
        return restored


def _translated(filters: Any) -> str | None:
    """Translate filters; an empty dict filters nothing."""
    if not filters:
        return None
    match filters:
        case {"field": str(field), "operator": str(operator), "value": value}:
            return comparison(field.removeprefix("meta."), operator, value)
        case {"operator": str(operator), "conditions": [*conditions]} if all(conditions):
            word = operator.lower()
            return combined("nand" if word == "not" else word, (_translated(part) or "" for part in conditions))
    msg = f"the filter is {filters!r:.80}. Give field, operator and value, or operator and conditions."
    raise InputError(msg)
