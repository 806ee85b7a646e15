"""An index as a LlamaIndex retriever, for query engines and agents."""

from __future__ import annotations

import asyncio
from typing import Any

from retrievalkit_adapters import metadata, missing, open_index
from retrievalkit_adapters.filters import combined, comparison

try:
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
except ImportError as error:
    raise missing("llama-index-core", "LlamaIndex") from error


class IndexRetriever(BaseRetriever):
    """Retrieves nodes from an index, with scores, and fields, titles and ranks as metadata.

    Args:
        index: An open index or hybrid, an index folder, or a list of folders, fused by reciprocal rank fusion.
        similarity_top_k: Nodes per query.
        filters: Conditions on the nodes' fields.
        explain: True to add the reasons for the score to the metadata, under "why".
        **options: Options of LlamaIndex's `BaseRetriever`, such as `callback_manager`.

    Raises:
        InputError: The index does not exist, or a filter cannot be translated.
    """

    def __init__(
        self,
        index: Any,
        similarity_top_k: int = 10,
        filters: MetadataFilters | None = None,
        explain: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.index = open_index(index)
        self.similarity_top_k = similarity_top_k
        self._filter = _expression(filters) if filters is not None and filters.filters else None
        self.explain = explain

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        k, text = self.similarity_top_k, query_bundle.query_str
        hits = self.index.search(text, k, filter=self._filter, by="passage", explain=self.explain)
        # Language models read the other metadata.
        keys = ["rank", "why"]
        hidden = {"excluded_llm_metadata_keys": keys, "excluded_embed_metadata_keys": keys}
        nodes = [TextNode(id_=hit.id, text=hit.text, metadata=metadata(hit, self.explain), **hidden) for hit in hits]
        return [NodeWithScore(node=node, score=hit.score) for node, hit in zip(nodes, hits, strict=True)]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def _expression(filters: MetadataFilter | MetadataFilters) -> str:
    """Translate filters to a filter of `index.search`."""
    if isinstance(filters, MetadataFilter):
        return comparison(filters.key, filters.operator.value, filters.value)
    word = (filters.condition or "and").replace("not", "nor")  # none of the filters matches
    return combined(word, map(_expression, filters.filters))
