"""A run that takes part in a comparison: the little that is kept of it, so that memory holds one run at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.qrels import Qrels
from retrievalkit.data.runs import Run, Ties
from retrievalkit.data.snippets import matches, snippet
from retrievalkit.errors import DataError
from retrievalkit.evaluate.compare.result import Difference, Ranking, TopHit
from retrievalkit.evaluate.metrics import Over, PerQuery, check_overlap, doubts, per_query, ranking, some

TOP_HITS = 5


@dataclass(frozen=True)
class Contender:
    """What is kept of a run.

    Attributes:
        values: Metric -> query -> value.
        rankings: Of the judged queries, without titles and texts.
        absent: The judged queries that it lacks.
        doubts: What may be wrong with it, as sentences.
    """

    values: PerQuery
    rankings: dict[str, Ranking]
    absent: list[str]
    doubts: list[str]


def measured(
    name: str, run: Run, qrels: Qrels, metrics: str | Sequence[str], *, ties: Ties = "document_id", over: Over = "qrels"
) -> Contender:
    """A run, measured.

    Raises:
        InputError: No query of it is in the qrels, or it is damaged.
        UnknownNameError: A metric is unknown.
    """
    check_overlap(run, qrels, f"run '{name}'")
    values = per_query(run, qrels, metrics, ties=ties, over=over)
    rankings = {query_id: _ranking(query_id, run.get(query_id, []), judged, ties) for query_id, judged in qrels.items()}
    return Contender(values, rankings, [query_id for query_id in qrels if query_id not in run], doubts(run, qrels))


def _ranking(query_id: str, hits: Sequence[tuple[str, float]], judged: Mapping[str, int], ties: Ties) -> Ranking:
    ids = ranking(query_id, hits, ties)
    relevant = {one for one, grade in judged.items() if grade > 0}
    top = ids[:TOP_HITS]
    scores = {one: score for one, score in hits if one in top}
    first = [TopHit(rank, one, scores[one], judged.get(one)) for rank, one in enumerate(top, 1)]
    return Ranking(first, [rank for rank, one in enumerate(ids, 1) if one in relevant], len(relevant))


def with_rankings(
    differences: Sequence[Difference],
    contenders: Mapping[str, Contender],
    texts: Mapping[str, str],
    corpus: Iterable[Passage] | str | Path | None,
) -> list[Difference]:
    """The differences, with what the two runs have first for the queries that are listed.

    Raises:
        DataError: A document is not in the corpus.
    """
    pairs = {(name, query.query_id) for one in differences for query in one.largest for name in (one.run, one.against)}
    shown = {(name, query_id): contenders[name].rankings[query_id] for name, query_id in pairs}
    passages = _passages({hit.document_id for one in shown.values() for hit in one.first}, corpus)
    told = {
        (name, query_id): replace(one, first=[_told(hit, passages, texts.get(query_id, "")) for hit in one.first])
        for (name, query_id), one in shown.items()
    }
    return [
        replace(
            one,
            largest=[
                replace(query, rankings={name: told[name, query.query_id] for name in (one.run, one.against)})
                for query in one.largest
            ],
        )
        for one in differences
    ]


def _told(hit: TopHit, passages: Mapping[str, Passage], query: str) -> TopHit:
    """The hit with its title and the part of its text that has most to do with the query."""
    if hit.document_id not in passages:
        return hit
    passage = passages[hit.document_id]
    text = snippet(passage.text, query)
    return replace(hit, title=passage.title, snippet=text, matches=tuple(matches(text, query)))


def _passages(wanted: set[str], corpus: Iterable[Passage] | str | Path | None) -> dict[str, Passage]:
    """The passages that are wanted, by one look through the corpus, which so may be of any size."""
    if corpus is None or not wanted:
        return {}
    opened = open_corpus(corpus) if isinstance(corpus, str | Path) else corpus
    found: dict[str, Passage] = {}
    for passage in opened:
        if passage.id in wanted:
            found[passage.id] = passage
            if len(found) == len(wanted):
                return found
    lacking = sorted(wanted - found.keys())
    if isinstance(opened, Corpus):
        raise opened.unknown(lacking[0])
    msg = f"unknown document ids: {some(lacking)}. Give the passages that were searched."
    raise DataError(msg)
