"""An index as a LlamaIndex retriever, for query engines and agents."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

import retrievalkit as rk
from retrievalkit.contracts import Text
from retrievalkit.reporting import notices
from retrievalkit_adapters import metadata, missing, open_index, search
from retrievalkit_adapters.filters import combined, comparison

try:
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.core.vector_stores.types import MetadataFilter, MetadataFilters
except ImportError as error:
    raise missing("llama-index-core", "LlamaIndex") from error


class IndexRetriever(BaseRetriever):
    """Retrieves nodes from an index, with scores, and fields, titles and ids as metadata.

    A query's `custom_embedding_strs` (HyDE) and `embedding` replace its text in a dense index with one vector per text;
    the vectors of several strings are averaged. Other indexes are searched by the text, with a note.

    Args:
        index: An open index or hybrid, an index folder, or a list of folders, fused by reciprocal rank fusion.
        similarity_top_k: Nodes per query.
        filters: Conditions on the nodes' fields.
        explain: True to add rank, score and the reasons for the score ("why") to the metadata.
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
        k, vector = self.similarity_top_k, self._vector(query_bundle)
        hits: Sequence[rk.Hit]
        if vector is None:
            hits = search(self.index, query_bundle.query_str, k, filter=self._filter, explain=self.explain)
        else:
            hits = cast("Sequence[rk.Hit]", self.index.search(vector, k, filter=self._filter, by="passage"))
        # Language models read the other metadata.
        keys = ["id", "rank", "score", "why"]
        hidden = {"excluded_llm_metadata_keys": keys, "excluded_embed_metadata_keys": keys}
        nodes = [TextNode(id_=hit.id, text=hit.text, metadata=metadata(hit, self.explain), **hidden) for hit in hits]
        return [NodeWithScore(node=node, score=hit.score) for node, hit in zip(nodes, hits, strict=True)]

    def _vector(self, query: QueryBundle) -> np.ndarray | None:
        """Return the vector to search for instead of the text, (dim,); None = the text."""
        texts = [text for text in query.custom_embedding_strs or () if text.strip()]
        if query.embedding is None and texts in ([], [query.query_str]):
            return None
        (first, *others) = self.index.searcher.indexes
        if first.needs_encoding and not others:
            if query.embedding is not None:
                return np.asarray(query.embedding, np.float32)
            queries = [first.formed(Text("", text)) for text in texts]
            encoded = self.index.searcher.encoders.encode(first, queries, "query")
            if encoded.weights is None and encoded.vectors is not None and encoded.vectors.shape[1] == 1:
                mean: np.ndarray = encoded.vectors[:, 0].float().mean(0).cpu().numpy()
                return mean
        name = "embedding" if query.embedding is not None else "custom_embedding_strs"
        notices.note(
            f"'{self.index.name}' is searched by the query's text: {name} needs a dense index with a vector per text. "
            "Combine retrievers of single indexes by QueryFusionRetriever."
        )
        return None

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def _expression(filters: MetadataFilter | MetadataFilters) -> str:
    """Translate filters to a filter of `index.search`."""
    if isinstance(filters, MetadataFilter):
        return comparison(filters.key, filters.operator.value, filters.value)
    word = (filters.condition or "and").replace("not", "nor")  # none of the filters matches
    return combined(word, map(_expression, filters.filters))
