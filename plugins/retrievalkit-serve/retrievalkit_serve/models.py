"""Encoding texts and scoring pairs, for requests that share a model: what `Batcher` runs in threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from retrievalkit.contracts import Side, Text
from retrievalkit.errors import UnsupportedError
from retrievalkit.search.public import OpenIndex, score_pairs
from retrievalkit_serve.collection import Collection

if TYPE_CHECKING:
    from retrievalkit import contracts
    from retrievalkit.contracts.commands import Precision


@dataclass(frozen=True)
class Embedded:
    """The vectors of a request.

    Attributes:
        vectors: (texts, dim) float32.
        tokens: How many tokens the texts have together, as far as the model reads them.
    """

    vectors: np.ndarray
    tokens: int


@dataclass(frozen=True)
class EmbedTask:
    """Texts of one side, for one model."""

    collection: Collection
    model: str
    side: Side
    dimensions: int | None
    kind = "embed"

    def size(self, item: Sequence[str]) -> int:
        """As many texts as it has."""
        return len(item)

    def run(self, items: Sequence[Sequence[str]]) -> list[Embedded]:
        """Encode the texts of all requests together."""
        index: OpenIndex = self.collection.models[self.model]
        texts: list[Text] = [("", text) for item in items for text in item]
        with self.collection.encoders.using(index) as retriever:
            retriever.dimensions = self.dimensions or retriever.dimensions  # set again at the next use
            lengths = [len(ids) for ids in retriever.tower(self.side).tokenize(texts, self.side)]
            encoded = retriever.encode(texts, self.side, precision=self.collection.encoders.precision)
        vectors = encoded.vectors
        if vectors is None or encoded.weights is not None or vectors.shape[1] != 1:
            msg = f"'{self.model}' gives a text several vectors or weights of terms, and an embedding is one vector."
            raise UnsupportedError(msg)
        rows = vectors[:, 0].numpy()
        ends = np.cumsum([len(item) for item in items]).tolist()
        return [
            Embedded(rows[end - len(item) : end], sum(lengths[end - len(item) : end]))
            for item, end in zip(items, ends, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class Reranker:
    """A cross-encoder, used by one thread at a time."""

    name: str
    model: contracts.Reranker
    precision: Precision
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class ToRerank:
    """A query, and the (title, text) of documents."""

    query: str
    documents: Sequence[Text]


@dataclass(frozen=True)
class RerankTask:
    """Pairs of queries and documents for one cross-encoder."""

    reranker: Reranker
    kind = "rerank"

    def size(self, item: ToRerank) -> int:
        """As many as there are documents."""
        return len(item.documents)

    def run(self, items: Sequence[ToRerank]) -> list[list[float]]:
        """The scores of the documents of each query."""
        queries = [item.query for item in items for _ in item.documents]
        documents = [document for item in items for document in item.documents]
        model = self.reranker.model
        with self.reranker.lock:
            scores = score_pairs(model, model.tokenize(queries, documents), precision=self.reranker.precision).tolist()
        values = iter(scores)
        return [[next(values) for _ in item.documents] for item in items]
