"""An index as a LangChain retriever, for chains and agents.

from retrievalkit_adapters.langchain import IndexRetriever

retriever = IndexRetriever(index="my-index", k=4)
retriever.invoke("pairwise distances")
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field, SkipValidation, field_validator

import retrievalkit as rk
from retrievalkit_adapters import lacking, opened

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
except ImportError as error:
    raise lacking("langchain-core", "LangChain") from error


class IndexRetriever(BaseRetriever):
    """Retrieves documents from an index, with titles, scores and ranks as metadata.

    Attributes:
        index: An open index or hybrid, an index folder, or a list of folders, fused by reciprocal rank fusion.
        k: Documents per query; `invoke(query, k=...)` overrides it.
        explain: Whether to include the explanation of the score in the metadata, under "why".

    Raises:
        InputError: The index does not exist.
    """

    model_config = ConfigDict(extra="forbid")

    index: SkipValidation[rk.Index | rk.Hybrid]
    k: int = Field(default=10, ge=1)
    explain: bool = False

    @field_validator("index", mode="before")
    @classmethod
    def _open(cls, value: Any) -> rk.Index | rk.Hybrid:
        return opened(value)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002
        k: int | None = None,
    ) -> list[Document]:
        hits = self.index.search(query, self.k if k is None else k, by="passage", explain=self.explain)
        return [
            Document(
                id=hit.id,
                page_content=hit.text,
                metadata={"id": hit.id, "title": hit.title, "score": hit.score, "rank": hit.rank}
                | ({"why": list(hit.why)} if self.explain else {}),
            )
            for hit in hits
        ]
