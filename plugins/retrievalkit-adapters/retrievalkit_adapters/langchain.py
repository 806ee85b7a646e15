"""An index as a LangChain retriever, for chains and agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ConfigDict, Field, SkipValidation, field_validator

import retrievalkit as rk
from retrievalkit.errors import InputError
from retrievalkit_adapters import metadata, missing, open_index, search
from retrievalkit_adapters.filters import combined, comparison

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.structured_query import Comparison, Operation, StructuredQuery
except ImportError as error:
    raise missing("langchain-core", "LangChain") from error


class IndexRetriever(BaseRetriever):
    """Retrieves documents from an index, with their fields, titles and ids as metadata.

    Equal passages are equal documents, so that MultiQueryRetriever and EnsembleRetriever drop duplicates.

    Attributes:
        index: An open index or hybrid, an index folder, or a list of folders, fused by reciprocal rank fusion.
        k: Documents per query; `invoke(query, k=...)` overrides it.
        filter: Conditions on the documents' fields: a filter of `index.search`, a dict such as
            `{"year": {"$gte": 2020}}`, or a filter of `langchain_core.structured_query`; `invoke(query, filter=...)`
            overrides it.
        explain: True to add rank, score and the reasons for the score ("why") to the metadata.

    Raises:
        InputError: The index does not exist, or the filter cannot be translated.
    """

    model_config = ConfigDict(extra="forbid")

    index: SkipValidation[rk.Index | rk.Hybrid]
    k: int = Field(default=10, ge=1)
    filter: SkipValidation[Any] = None
    explain: bool = False

    @field_validator("index", mode="before")
    @classmethod
    def _open(cls, value: Any) -> rk.Index | rk.Hybrid:
        return open_index(value)

    @field_validator("filter", mode="before")
    @classmethod
    def _translate(cls, value: Any) -> str | None:
        return _expression(value)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002
        k: int | None = None,
        filter: Any = None,
    ) -> list[Document]:
        chosen = self.filter if filter is None else _expression(filter)
        return [document for document, _ in self._search(query, k, chosen)]

    def similarity_search_with_score(
        self, query: str, k: int | None = None, filter: Any = None
    ) -> list[tuple[Document, float]]:
        """Return documents with their scores, as LangChain's vector stores do.

        Raises:
            InputError: The filter cannot be translated.
        """
        return self._search(query, k, self.filter if filter is None else _expression(filter))

    def _search(self, query: str, k: int | None, filter: str | None) -> list[tuple[Document, float]]:
        hits = search(self.index, query, self.k if k is None else k, filter=filter, explain=self.explain)
        return [
            (Document(id=hit.id, page_content=hit.text, metadata=metadata(hit, self.explain)), hit.score)
            for hit in hits
        ]


def _expression(filter: Any) -> str | None:
    """Translate a filter to a filter of `index.search`; None if it has no conditions."""
    match filter:
        case None | str():
            return filter
        case StructuredQuery():
            return _expression(filter.filter)
        case Comparison():
            return comparison(filter.attribute, filter.comparator.value, filter.value)
        case Operation():
            word = filter.operator.value
            return combined("nand" if word == "not" else word, map(_required, filter.arguments))
        case Mapping():
            return combined("and", map(_entry, filter, filter.values())) if filter else None
    msg = f"the filter is {filter!r:.80}. Give a string, a dict or a filter of langchain_core.structured_query."
    raise InputError(msg)


def _entry(name: str, value: Any) -> str:
    """Translate an item of a dict: a field with its value or comparisons, or a logical operator with filters."""
    if name == "$not":
        return combined("nand", [_required(value)])
    if name.startswith("$"):
        return combined(name[1:], map(_required, value))
    if isinstance(value, Mapping):
        parts = (
            combined("nand", [_entry(name, operand)]) if operator == "$not" else comparison(name, operator[1:], operand)
            for operator, operand in value.items()
        )
        return combined("and", parts)
    return comparison(name, "eq", value)


def _required(filter: Any) -> str:
    """Translate a filter that must have conditions."""
    return _expression(filter) or combined("and", [])
