"""A run in a comparison, reduced to the little that is needed, so that only one whole run is in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.qrels import Qrels
from retrievalkit.data.runs import Columns, Hits, Ties
from retrievalkit.data.snippets import matches, snippet
from retrievalkit.errors import DataError
from retrievalkit.evaluate.compare.result import Difference, Ranking, TopHit
from retrievalkit.evaluate.metrics import Doubts, Found, PerQuery, check_overlap, first_ids, per_query
from retrievalkit.evaluate.options import Over

TOP_HITS = 5


@dataclass(frozen=True)
class Contender:
    """The parts of a run that a comparison needs.

    Attributes:
        values: Metric -> query -> value.
        rankings: Those of the judged queries, without titles and texts.
        absent: The judged queries that the run lacks.
        unjudged: Its queries without judgements.
        doubts: Possible mistakes in it, as sentences.
    """

    values: PerQuery
    rankings: dict[str, Ranking]
    absent: list[str]
    unjudged: list[str]
    doubts: list[str]


def measured(
    name: str,
    run: Mapping[str, Hits],
    qrels: Qrels,
    metrics: str | Sequence[str],
    *,
    ties: Ties = "document_id",
    over: Over = "qrels",
) -> Contender:
    """Compute the metrics of a run.

    Raises:
        InputError: No query of it is in the qrels, or it is damaged.
        UnknownNameError: A metric is unknown.
    """
    check_overlap(run, qrels, f"run '{name}'")
    doubts = Doubts(run, qrels)
    nothing = Found(Columns([], []), {})
    rankings = {query_id: _ranking(nothing, judged) for query_id, judged in qrels.items()}

    def visit(query_id: str, found: Found) -> None:
        doubts.visit(query_id, found)
        rankings[query_id] = _ranking(found, qrels[query_id])

    values = per_query(run, qrels, metrics, ties=ties, over=over, visit=visit)
    absent = [query_id for query_id in qrels if query_id not in run]
    unjudged = [query_id for query_id in run if query_id not in qrels]
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
    corpus: Iterable[Passage] | str | Path | None,
) -> list[Difference]:
    """The differences, with the top hits of both runs for the queries listed.

    Raises:
        DataError: A document is not in the corpus.
    """
    pairs = {
        (name, query.query_id)
        for difference in differences
        for query in difference.largest
        for name in (difference.run, difference.against)
    }
    shown = {(name, query_id): contenders[name].rankings[query_id] for name, query_id in pairs}
    wanted = {hit.document_id: name for (name, _), kept in sorted(shown.items()) for hit in kept.first}
    passages = _passages(wanted, corpus)
    rankings = {
        (name, query_id): replace(
            kept, first=[_with_text(hit, passages, texts.get(query_id, "")) for hit in kept.first]
        )
        for (name, query_id), kept in shown.items()
    }
    return [_with_rankings(difference, rankings) for difference in differences]


def _with_rankings(difference: Difference, rankings: Mapping[tuple[str, str], Ranking]) -> Difference:
    runs = (difference.run, difference.against)
    largest = [
        replace(query, rankings={name: rankings[name, query.query_id] for name in runs}) for query in difference.largest
    ]
    return replace(difference, largest=largest)


def _with_text(hit: TopHit, passages: Mapping[str, Passage], query: str) -> TopHit:
    """The hit with its title and the part of its text that is closest to the query."""
    if hit.document_id not in passages:
        return hit
    passage = passages[hit.document_id]
    text = snippet(passage.text, query)
    return replace(hit, title=passage.title, snippet=text, matches=tuple(matches(text, query)))


def _passages(wanted: Mapping[str, str], corpus: Iterable[Passage] | str | Path | None) -> dict[str, Passage]:
    """The wanted passages, from a single pass over the corpus, which may therefore be of any size.

    Args:
        wanted: Document id -> a run that has found it.
        corpus: The corpus.
    """
    if corpus is None or not wanted:
        return {}
    opened = open_corpus(corpus) if isinstance(corpus, str | Path) else corpus
    found: dict[str, Passage] = {}
    for passage in opened:
        if passage.id in wanted:
            found[passage.id] = passage
            if len(found) == len(wanted):
                return found
    lacking = sorted(wanted.keys() - found.keys())
    if isinstance(opened, Corpus):
        raise opened.unknown(lacking[0], file=f"run '{wanted[lacking[0]]}'")
    msg = f"unknown document ids: {first_ids(lacking)}. Give the passages that were searched."
    raise DataError(msg)
