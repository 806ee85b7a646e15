"""An index as a Haystack retriever, for pipelines.

from retrievalkit_adapters.haystack import IndexRetriever

pipeline.add_component("retriever", IndexRetriever(index="my-index", top_k=4))
pipeline.run({"retriever": {"query": "pairwise distances"}})
"""

from __future__ import annotations

import os
from typing import Any

from retrievalkit.errors import InputError
from retrievalkit_adapters import lacking, opened

try:
    from haystack import Document, component, default_from_dict, default_to_dict
except ImportError as error:
    raise lacking("haystack-ai", "Haystack") from error


@component
class IndexRetriever:
    """Retrieves documents from an index, with scores, and titles and ranks as metadata.

    Args:
        index: An index folder, or a list of folders, fused by reciprocal rank fusion; or an open index or hybrid, with
            which a pipeline cannot be saved.
        top_k: Documents per query.
        explain: Whether to include the explanation of the score in the metadata, under "why".

    Raises:
        InputError: The index does not exist.
    """

    def __init__(self, index: Any, top_k: int = 10, explain: bool = False) -> None:
        self.index = opened(index)
        self.places = index
        self.top_k = top_k
        self.explain = explain

    def warm_up(self) -> None:
        """Load everything that the first query would load."""
        self.index.warm()

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, query: str, top_k: int | None = None) -> dict[str, list[Document]]:
        """The documents of a query, best first, as "documents".

        Args:
            query: Its text.
            top_k: Number of documents; None = the component's setting.

        Raises:
            InputError: The query is empty.
        """
        hits = self.index.search(query, self.top_k if top_k is None else top_k, by="passage", explain=self.explain)
        return {
            "documents": [
                Document(
                    id=hit.id,
                    content=hit.text,
                    score=hit.score,
                    meta={"title": hit.title, "rank": hit.rank} | ({"why": list(hit.why)} if self.explain else {}),
                )
                for hit in hits
            ]
        }

    def to_dict(self) -> dict[str, Any]:
        """The component in the format of a saved pipeline.

        Raises:
            InputError: It was created from an open index.
        """
        places = self.places if isinstance(self.places, list | tuple) else [self.places]
        if not all(isinstance(one, str | os.PathLike) for one in places):
            msg = "the retriever was made of an open index, which cannot be saved. Make it of index folders."
            raise InputError(msg)
        names = [os.fspath(one) for one in places]
        index = names if self.places is places else names[0]
        made: dict[str, Any] = default_to_dict(self, index=index, top_k=self.top_k, explain=self.explain)
        return made

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> IndexRetriever:
        """Restore the component from a saved pipeline."""
        made: IndexRetriever = default_from_dict(cls, data)
        return made
