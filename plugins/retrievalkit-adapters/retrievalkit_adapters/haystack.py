"""An index as a Haystack retriever, for pipelines (docs/how-to/frameworks.md)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from retrievalkit.errors import InputError
from retrievalkit_adapters import metadata, missing, open_index, search
from retrievalkit_adapters.filters import combined, comparison

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ImportError as error:
    raise missing("haystack-ai", "Haystack") from error


@component
class IndexRetriever:
    """Retrieves documents from an index, with scores, and fields, titles and ids as metadata.

    Args:
        index: An index folder, or a list of folders, fused by reciprocal rank fusion; or an open index or hybrid, but
            then the pipeline cannot be saved.
        top_k: Documents per query.
        explain: True to add rank, score and the reasons for the score ("why") to the metadata.
        filters: Conditions on the documents' fields, in Haystack's format: `{"field": "meta.year", "operator": ">=",
            "value": 2020}`, or `{"operator": "AND", "conditions": [...]}`.

    Raises:
        InputError: The index does not exist, or a filter cannot be translated.
    """

    def __init__(
        self, index: Any, top_k: int = 10, explain: bool = False, filters: dict[str, Any] | None = None
    ) -> None:
        self.index = open_index(index)
        self._source = index
        self.top_k = top_k
        self.explain = explain
        self.filters = filters
        self._filter = _expression(filters)

    def warm_up(self) -> None:
        """Load the models before the first query."""
        self.index.warm()

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Return the best documents for a query, as "documents"; none for a blank query.

        Args:
            query: Query text.
            filters: Conditions on the documents' fields; None = the component's filters.
            top_k: Number of documents; None = the component's number.

        Raises:
            InputError: A filter cannot be translated.
        """
        filter = self._filter if filters is None else _expression(filters)
        k = self.top_k if top_k is None else top_k
        hits = search(self.index, query, k, filter=filter, explain=self.explain)
        return {
            "documents": [
                Document(id=hit.id, content=hit.text, score=hit.score, meta=metadata(hit, self.explain)) for hit in hits
            ]
        }

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """Search in a thread, so that other components can run meanwhile; see `run`."""
        documents: dict[str, list[Document]] = await asyncio.to_thread(self.run, query, filters, top_k)
        return documents

    def to_dict(self) -> dict[str, Any]:
        """Return the component in the format of saved pipelines.

        Raises:
            InputError: The component was created from an open index.
        """
        several = isinstance(self._source, list | tuple)
        folders = self._source if several else [self._source]
        if not all(isinstance(folder, str | os.PathLike) for folder in folders):
            msg = "the retriever was created from an open index, which cannot be saved. Create it from index folders."
            raise InputError(msg)
        paths = [os.fspath(folder) for folder in folders]
        index = paths if several else paths[0]
        options = {"top_k": self.top_k, "explain": self.explain, "filters": self.filters}
        saved: dict[str, Any] = default_to_dict(self, index=index, **options)
        return saved

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> IndexRetriever:
        """Restore the component from a saved pipeline."""
        restored: IndexRetriever = default_from_dict(cls, data)
        return restored


def _expression(filters: Any) -> str | None:
    """Translate filters to a filter of `index.search`; None if there are no conditions."""
    if not filters:
        return None
    match filters:
        case {"field": str(field), "operator": str(operator), "value": value}:
            return comparison(field.removeprefix("meta."), operator, value)
        case {"operator": str(operator), "conditions": [*conditions]} if all(conditions):
            word = operator.lower()
            return combined("nand" if word == "not" else word, (_expression(part) or "" for part in conditions))
    msg = f"the filter is {filters!r:.80}. Give field, operator and value, or operator and conditions."
    raise InputError(msg)
