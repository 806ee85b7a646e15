"""Searching and explaining, for requests that share indexes and options: what `Batcher` runs in threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrievalkit.contracts import Candidates
from retrievalkit.data.queries import Query
from retrievalkit.errors import UnsupportedError
from retrievalkit.search.public import (
    DescribedHit,
    Fusion,
    QueryBatch,
    Searcher,
    as_hits,
    describe_hits,
    explain,
    gather,
)
from retrievalkit_serve.collection import Choice, Collection
from retrievalkit_serve.failures import NotFoundError

Pairs = Sequence[tuple[str, float]]


@dataclass(frozen=True)
class Asked:
    """A query to search for.

    Attributes:
        text: Its text.
        describe: Whether texts and scores of each index are wanted at once; if not, only ids and scores.
        why: Whether the reasons for the scores are wanted.
    """

    text: str
    describe: bool = True
    why: bool = True


@dataclass(frozen=True)
class Answer:
    """What was found.

    Attributes:
        pairs: Ids and scores, best first.
        candidates: The hits of each index, if several were searched or nothing is described yet.
        hits: With texts and reasons, if they were wanted.
        together: How many queries were answered together.
    """

    pairs: Pairs
    candidates: Candidates | None
    hits: Sequence[DescribedHit]
    together: int


@dataclass(frozen=True)
class SearchTask:
    """Queries for the best `k` of the same choice."""

    collection: Collection
    choice: Choice
    k: int
    kind = "search"

    def size(self, item: Asked) -> int:
        """Each query counts the same."""
        del item
        return 1

    def run(self, items: Sequence[Asked]) -> list[Answer]:
        """Search for all, then describe the hits of each."""
        searcher = self.collection.searcher(self.choice.labels)
        queries = [Query(str(number), item.text) for number, item in enumerate(items)]
        found = searcher.search(searcher.ask(queries), self.k, self.choice.fusion, self.choice.depth)
        answers = []
        for row, item in enumerate(items):
            pairs = as_hits(*found.rankings[row])
            candidates = None if found.candidates is None else found.candidates[row]
            hits: Sequence[DescribedHit] = ()
            if candidates is None and not item.describe:
                # What is done with the hits meanwhile, such as re-ranking, must not change their ranks in the index.
                candidates = gather([found.rankings[row]], "query")
            if item.describe:
                task = DescribeTask(self.collection, self.choice)
                hits = task.described(ToDescribe(item.text, pairs, candidates, item.why))
            answers.append(Answer(pairs, candidates, hits, len(items)))
        return answers


@dataclass(frozen=True)
class ToDescribe:
    """Hits of a query that need their texts and reasons."""

    text: str
    pairs: Pairs
    candidates: Candidates | None
    why: bool = True


@dataclass(frozen=True)
class DescribeTask:
    """Hits of the same choice, to be described."""

    collection: Collection
    choice: Choice
    kind = "describe"

    def size(self, item: ToDescribe) -> int:
        """Each query counts the same."""
        del item
        return 1

    def run(self, items: Sequence[ToDescribe]) -> list[Sequence[DescribedHit]]:
        """Describe the hits of each query."""
        return [self.described(item) for item in items]

    def described(self, item: ToDescribe) -> list[DescribedHit]:
        """The hits with their texts and the reasons for their scores."""
        searcher = self.collection.searcher(self.choice.labels)
        texts = self.collection.texts(self.choice.labels, [document for document, _ in item.pairs])
        query = Query("query", item.text)
        found = explain(searcher, query, item.pairs, corpus=texts, candidates=item.candidates, why=item.why)
        return describe_hits(item.pairs, item.text, texts, found)


@dataclass(frozen=True)
class ToExplain:
    """Documents that a query may or may not find."""

    text: str
    ids: Sequence[str]


@dataclass(frozen=True)
class Explained:
    """A document with the reasons for its score.

    Attributes:
        rank: Among the hits of the search; None if it is not among the candidates.
        hit: The document.
    """

    rank: int | None
    hit: DescribedHit


@dataclass(frozen=True)
class ExplainTask:
    """Documents to be explained by the same choice, whether they are among the best or not."""

    collection: Collection
    choice: Choice
    kind = "explain"

    def size(self, item: ToExplain) -> int:
        """Each query counts the same."""
        del item
        return 1

    def run(self, items: Sequence[ToExplain]) -> list[list[Explained]]:
        """Explain the documents of each query, in the order of their scores."""
        return [self._explained(item) for item in items]

    def _explained(self, item: ToExplain) -> list[Explained]:
        searcher = self.collection.searcher(self.choice.labels)
        batch = searcher.ask([Query("query", item.text)])
        fusion = self.choice.fusion or Fusion("sum", missing="minimum")  # of one index: its own scores
        found = searcher.candidates(batch, 1, fusion, self.choice.depth)[0]
        ranked = dict(as_hits(*fusion(found, len(found.ids))))
        ranks = {document: rank for rank, document in enumerate(ranked, 1)}
        whole = with_documents(found, item.ids)
        _fill_in(searcher, batch, whole)
        self._check_known(item.ids, whole)
        totals = dict(zip(whole.ids, fusion.total(fusion.parts(whole)).tolist(), strict=True)) | ranked
        pairs = sorted(((document, totals[document]) for document in item.ids), key=lambda hit: -hit[1])
        task = DescribeTask(self.collection, self.choice)
        hits = task.described(ToDescribe(item.text, pairs, whole))
        return [Explained(ranks.get(hit.id), hit) for hit in hits]

    def _check_known(self, ids: Sequence[str], whole: Candidates) -> None:
        scores = dict(zip(whole.ids, whole.scores, strict=True))
        unscored = [document for document in ids if np.isnan(scores[document]).all()]
        texts = self.collection.texts(self.choice.labels, unscored) if unscored else None
        lacking = set(unscored) if texts is None else texts.missing(unscored)
        for document in unscored:
            if document in lacking:
                msg = f"unknown document id '{document:.200}'. No index that is searched here has it."
                raise NotFoundError(msg)


def with_documents(found: Candidates, ids: Sequence[str]) -> Candidates:
    """The hits with more documents, which no index has found so far."""
    more = [document for document in dict.fromkeys(ids) if document not in set(found.ids)]
    sources = found.scores.shape[1]
    return Candidates(
        [*found.ids, *more],
        np.concatenate([found.scores, np.full((len(more), sources), np.nan)]),
        np.concatenate([found.ranks, np.zeros((len(more), sources), found.ranks.dtype)]),
    )


def _fill_in(searcher: Searcher, batch: QueryBatch, found: Candidates) -> None:
    """Let each index compute the scores that it lacks, if it can."""
    for number, source in enumerate(searcher.sources):
        lacking: list[Any] = found.missing(number)
        if not lacking:
            continue
        try:
            found.fill(number, source.scores(batch, [lacking])[0])
        except UnsupportedError:
            continue
