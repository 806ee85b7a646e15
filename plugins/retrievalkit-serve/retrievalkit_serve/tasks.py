"""Tasks that `Batcher` runs in threads for batches of requests: search, describe, explain, embed and re-rank."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from retrievalkit.contracts import Candidates, Side, Text
from retrievalkit.data.passage_parts import by_document
from retrievalkit.data.queries import Query
from retrievalkit.errors import UnsupportedError
from retrievalkit.reporting.notices import gathered
from retrievalkit.search.public import DescribedHit, Fusion, OpenIndex, as_hits, gather, score_pairs
from retrievalkit.search.public import described as described_hits
from retrievalkit_serve.collection import Choice, Collection
from retrievalkit_serve.failures import RefusedError

if TYPE_CHECKING:
    from retrievalkit import contracts
    from retrievalkit.contracts.commands import Precision
    from retrievalkit.data.passage_parts import DocumentScore

Pairs = list[tuple[str, float]]
Passages = Mapping[str, Pairs]


@dataclass(frozen=True)
class QueryItem:
    """A query to search for.

    Attributes:
        text: Text of the query.
        describe: Add texts and the scores of each index to the hits; otherwise hits have only ids and scores.
        why: Add explanations of the scores.
    """

    text: str
    describe: bool = True
    why: bool = True


@dataclass(frozen=True)
class Answer:
    """The result of a search.

    Attributes:
        pairs: Ids and scores, best first.
        candidates: The hits of each index, if several were searched or nothing is described yet.
        passages: The passages of each hit that is a document.
        hits: Hits with texts and explanations, if requested.
        best: The best score of each index; minus infinity if it has no hits.
        notes: Sentences for the user, for example about values that the filter cannot compare.
    """

    pairs: Pairs
    candidates: Candidates | None
    passages: Passages
    hits: Sequence[DescribedHit]
    best: Sequence[float]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class SearchTask:
    """Searches with the same options, for the best `k` documents or, without a document score, passages."""

    collection: Collection
    choice: Choice
    k: int
    documents: DocumentScore | None = None
    kind = "search"

    def size(self, _: QueryItem) -> int:
        """Return 1: a batch has a maximum number of queries."""
        return 1

    def run(self, items: Sequence[QueryItem]) -> list[Answer]:
        """Search for all queries, then describe the hits of each."""
        searcher = self.collection.searcher(self.choice.labels)
        queries = [Query(str(number), item.text) for number, item in enumerate(items)]
        batch, choice = searcher.ask(queries), self.choice
        with gathered() as noted:
            results = searcher.search(batch, self.k, choice.fusion, choice.depth, choice.filter, self.documents)
        answers = []
        for row, item in enumerate(items):
            pairs, candidates, passages = results.of(row)
            hits: Sequence[DescribedHit] = ()
            ranked = candidates or gather([results.rankings[row]], "query")
            best = np.nanmax(ranked.scores, axis=0, initial=-np.inf).tolist()
            if item.describe:
                hits = describe(self.collection, choice, item.text, pairs, candidates, passages, item.why)
            elif candidates is None:
                # Later processing of the hits, such as re-ranking, must not change their ranks in the index.
                candidates = ranked
            answers.append(Answer(pairs, candidates, passages, hits, best, [*noted.sentences]))
        return answers


@dataclass(frozen=True)
class CallTask:
    """Calls of a function (`describe`, `explain`) with the same options; each request has its own arguments."""

    kind: str
    function: Callable[..., Any]
    collection: Collection
    choice: Choice

    def size(self, _: Sequence[Any]) -> int:
        """Return 1: a batch has a maximum number of queries."""
        return 1

    def run(self, items: Sequence[Sequence[Any]]) -> list[Any]:
        """Call the function for each request."""
        return [self.function(self.collection, self.choice, *item) for item in items]


def describe(
    collection: Collection,
    choice: Choice,
    text: str,
    pairs: Pairs,
    candidates: Candidates | None,
    passages: Passages,
    why: bool = True,
) -> list[DescribedHit]:
    """Return the hits of a query with texts, and explanations of their scores."""
    ids = [passage for hit in pairs for passage, _ in passages.get(hit[0], [hit])]
    hits = described_hits(
        collection.searcher(choice.labels),
        Query("query", text),
        pairs,
        corpus=collection.texts(choice.labels, ids),
        candidates=candidates,
        passages=passages,
        why=why,
    )
    return list(hits)


def explain(
    collection: Collection, choice: Choice, text: str, ids: Sequence[str]
) -> list[tuple[int | None, DescribedHit]]:
    """Return documents by descending score, each with its rank in the search; None if it is not a candidate."""
    parts = dict(collection.passages(choice.labels, identifier) for identifier in ids)
    ids = [passage for names in parts.values() for passage in names]
    searcher = collection.searcher(choice.labels)
    batch = searcher.ask([Query("query", text)])
    fusion = choice.fusion or Fusion("sum", missing="minimum")  # for one index: its own scores
    candidates = searcher.candidates(batch, 1, fusion, choice.depth)[0]
    ranked = dict(as_hits(*fusion(candidates, len(candidates.ids))))
    ranks = {hit.id: rank for rank, hit in enumerate(by_document(ranked.items(), searcher.documents), 1)}
    ranks |= {passage: rank for rank, passage in enumerate(ranked, 1)}
    more = [document for document in dict.fromkeys(ids) if document not in set(candidates.ids)]
    sources = candidates.scores.shape[1]
    whole = Candidates(
        [*candidates.ids, *more],
        np.concatenate([candidates.scores, np.full((len(more), sources), np.nan)]),
        np.concatenate([candidates.ranks, np.zeros((len(more), sources), candidates.ranks.dtype)]),
    )
    for number, source in enumerate(searcher.sources):
        if lacking := whole.missing(number):
            try:
                whole.fill(number, source.scores(batch, [lacking])[0])
            except UnsupportedError:
                continue
    scores = dict(zip(whole.ids, whole.scores, strict=True))
    if unscored := [document for document in ids if np.isnan(scores[document]).all()]:
        texts = collection.texts(choice.labels, unscored)
        if unknown := unscored if texts is None else texts.missing(unscored):
            msg = f"unknown document id '{min(unknown):.200}'. No index of this service has it. Send the id of a hit."
            raise RefusedError(404, msg)
    totals = dict(zip(whole.ids, fusion.total(fusion.parts(whole)).tolist(), strict=True)) | ranked
    scored = {
        identifier: sorted(((passage, totals[passage]) for passage in names), key=lambda hit: -hit[1])
        for identifier, names in parts.items()
    }
    pairs = sorted(((identifier, hits[0][1]) for identifier, hits in scored.items()), key=lambda hit: -hit[1])
    passages = {identifier: hits for identifier, hits in scored.items() if parts[identifier] != [identifier]}
    return [(ranks.get(hit.id), hit) for hit in describe(collection, choice, text, pairs, whole, passages)]


@dataclass(frozen=True)
class EmbedTask:
    """Encodes texts of one side with one model: float32 vectors (texts, dim) and the number of tokens."""

    collection: Collection
    model: str
    side: Side
    dimensions: int | None
    kind = "embed"

    def size(self, item: Sequence[str]) -> int:
        """Return the number of texts."""
        return len(item)

    def run(self, items: Sequence[Sequence[str]]) -> list[tuple[np.ndarray, int]]:
        """Encode the texts of all requests together."""
        index: OpenIndex = self.collection.models[self.model]
        texts = [index.formed(Text("", text)) for item in items for text in item]
        with self.collection.encoders.using(index) as retriever:
            retriever.dimensions = self.dimensions or retriever.dimensions  # set again at the next use
            lengths = [len(ids) for ids in retriever.tower(self.side).tokenize(texts, self.side)]
            encoded = retriever.encode(texts, self.side, precision=self.collection.encoders.precision)
        vectors = encoded.vectors
        if vectors is None or encoded.weights is not None or vectors.shape[1] != 1:
            msg = f"'{self.model}' computes several vectors or term weights per text, but an embedding is one vector."
            raise UnsupportedError(msg)
        rows = vectors[:, 0].numpy()
        ends = np.cumsum([len(item) for item in items]).tolist()
        parts = [slice(end - len(item), end) for item, end in zip(items, ends, strict=True)]
        return [(rows[part], sum(lengths[part])) for part in parts]


@dataclass(frozen=True, eq=False)
class RerankTask:
    """Scores pairs of a query and the (title, text) of a document, with a cross-encoder in one thread at a time."""

    name: str
    model: contracts.Reranker
    precision: Precision
    lock: threading.Lock = field(default_factory=threading.Lock)
    kind = "rerank"

    def size(self, item: tuple[str, Sequence[tuple[str, str]]]) -> int:
        """Return the number of documents."""
        return len(item[1])

    def run(self, items: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> list[list[float]]:
        """Score the documents of each query."""
        queries = [query for query, documents in items for _ in documents]
        texts = [document for _, documents in items for document in documents]
        with self.lock:
            scores = score_pairs(self.model, self.model.tokenize(queries, texts), precision=self.precision).tolist()
        values = iter(scores)
        return [[next(values) for _ in documents] for _, documents in items]
