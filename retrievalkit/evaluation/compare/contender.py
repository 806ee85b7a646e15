"""A run in a comparison, reduced to the little that is needed, so that only one whole run is in memory at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from retrievalkit.data.corpus import Passage, open_corpus
from retrievalkit.data.qrels import Qrels
from retrievalkit.data.runs import Columns, check_run, open_run
from retrievalkit.data.snippets import matches, snippet
from retrievalkit.evaluation.compare.comparison import Difference, Ranking, TopHit
from retrievalkit.evaluation.evaluate import Conventions
from retrievalkit.evaluation.metrics import Doubts, Found, PerQuery, WithoutSameId, check_overlap, per_query

TOP_HITS = 5


@dataclass(frozen=True)
class Contender:
    """The parts of a run that a comparison needs."""

    values: PerQuery
    rankings: dict[str, Ranking]
    absent: list[str]
    unjudged: list[str]
    doubts: list[str]


def measured(
    name: str, place: str | Path, qrels: Qrels, metrics: str | Sequence[str], conventions: Conventions
) -> Contender:
    """Compute the metrics of a run; about 2 KB for each query of the qrels stay in memory, whatever the run's size."""
    whole = open_run(place, conventions.ties)
    run = WithoutSameId(whole) if conventions.exclude_self else whole
    check_overlap(run, qrels, f"run '{name}'")
    doubts = Doubts(run, qrels)
    nothing = Found(Columns([], []), {})
    rankings = {query_id: _ranking(nothing, judged) for query_id, judged in qrels.items()}

    def visit(query_id: str, found: Found) -> None:
        doubts.visit(query_id, found)
        rankings[query_id] = _ranking(found, qrels[query_id])

    values = per_query(run, qrels, metrics, ties=conventions.ties, over=conventions.over, visit=visit)
    absent = [query_id for query_id in qrels if query_id not in run]
    unjudged = [query_id for query_id in run if query_id not in qrels]
    check_run(whole)
    return Contender(values, rankings, absent, unjudged, doubts.sentences(metrics))


def _ranking(found: Found, judged: Mapping[str, int]) -> Ranking:
    relevant = {document for document, grade in judged.items() if grade > 0}
    top = list(islice(found.ranks, TOP_HITS))
    scores = {document: score for document, score in zip(*found.columns, strict=True) if document in top}
    first = [TopHit(rank, document, scores[document], judged.get(document)) for rank, document in enumerate(top, 1)]
    return Ranking(first, sorted(found.ranks[one] for one in relevant & found.ranks.keys()), len(relevant))


def with_rankings(
    differences: Sequence[Difference],
    contenders: Mapping[str, Contender],
    texts: Mapping[str, str],
    corpus: str | Path | None,
) -> list[Difference]:
    """The differences, with the top hits of both runs for the queries listed."""
    # Document id -> a run that ranks it among the first.
    wanted = {
        hit.document_id: name
        for one in differences
        for query in one.largest
        for name in (one.run, one.against)
        for hit in contenders[name].rankings[query.query_id].first
    }
    passages: dict[str, Passage] = {}
    if corpus is not None and wanted:
        opened = open_corpus(corpus)
        # A single pass over the corpus, which may therefore be of any size.
        passages = {one.id: one for one in islice((one for one in opened if one.id in wanted), len(wanted))}
        if lacking := sorted(wanted.keys() - passages.keys()):
            raise opened.unknown(lacking[0], file=f"run '{wanted[lacking[0]]}'")

    def shown(name: str, query_id: str) -> Ranking:
        ranking, query, first = contenders[name].rankings[query_id], texts.get(query_id, ""), []
        for hit in ranking.first:
            if (passage := passages.get(hit.document_id)) is not None:
                text = snippet(passage.text, query)
                hit = replace(hit, title=passage.title, snippet=text, matches=tuple(matches(text, query)))
            first.append(hit)
        return replace(ranking, first=first)

    return [
        replace(
            one,
            largest=[
                replace(query, rankings={name: shown(name, query.query_id) for name in (one.run, one.against)})
                for query in one.largest
            ],
        )
        for one in differences
    ]
