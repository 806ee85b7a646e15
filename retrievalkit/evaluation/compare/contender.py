"""A run reduced to the data for a comparison, so that only one whole run is in memory at a time."""

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
from retrievalkit.evaluation.metrics import (
    PerQuery,
    PossibleMistakes,
    WithoutSameId,
    check_overlap,
    first_ids,
    per_query,
)
from retrievalkit.reporting.terminal import counted

TOP_HITS = 5


@dataclass(frozen=True)
class Contender:
    """The data of a run for a comparison; each problem is a sentence, split where the names of runs are inserted."""

    values: PerQuery
    rankings: dict[str, Ranking]
    problems: list[tuple[str, str]]


def measure(
    name: str, place: str | Path, qrels: Qrels, metrics: str | Sequence[str], conventions: Conventions
) -> Contender:
    """Compute the metrics of a run; keeps about 2 KB per query of the qrels in memory, for a run of any size."""
    whole = open_run(place, conventions.ties)
    run = WithoutSameId(whole) if conventions.exclude_self else whole
    check_overlap(run, qrels, f"run '{name}'")
    mistakes = PossibleMistakes(run, qrels)
    rankings = {query_id: _ranking(Columns([], []), {}, judged) for query_id, judged in qrels.items()}

    def visit(query_id: str, columns: Columns, ranks: dict[str, int]) -> None:
        mistakes.visit(query_id, columns, ranks)
        rankings[query_id] = _ranking(columns, ranks, qrels[query_id])

    values = per_query(run, qrels, metrics, ties=conventions.ties, over=conventions.over, visit=visit)
    check_run(whole)
    problems = []
    if absent := [query_id for query_id in qrels if query_id not in run]:
        consequence = "count 0" if conventions.over == "qrels" else "are left out for all runs"
        start = f"{len(absent)} of {len(qrels)} queries of the qrels are not in run"
        problems.append((start, f" and {consequence}: {first_ids(absent)}."))
    if unjudged := [query_id for query_id in run if query_id not in qrels]:
        end = f" are not in the qrels and are left out: {first_ids(unjudged)}."
        problems.append((f"{counted(len(unjudged), 'queries')} of run", end))
    problems += [("run", f": {mistake}") for mistake in mistakes.sentences(metrics)]
    return Contender(values, rankings, problems)


def _ranking(columns: Columns, ranks: Mapping[str, int], judged: Mapping[str, int]) -> Ranking:
    relevant = {document for document, grade in judged.items() if grade > 0}
    top = list(islice(ranks, TOP_HITS))
    scores = {document: score for document, score in zip(*columns, strict=True) if document in top}
    first = [TopHit(rank, document, scores[document], judged.get(document)) for rank, document in enumerate(top, 1)]
    return Ranking(first, sorted(ranks[document] for document in relevant & ranks.keys()), len(relevant))


def add_rankings(
    differences: Sequence[Difference],
    contenders: Mapping[str, Contender],
    texts: Mapping[str, str],
    corpus: str | Path | None,
) -> None:
    """Add the top hits of both runs to the queries that differ most."""
    shown = [
        (query, name, contenders[name].rankings[query.query_id])
        for pair in differences
        for query in pair.largest
        for name in (pair.run, pair.against)
    ]
    # Document id -> a run that ranks it among the first.
    wanted = {hit.document_id: name for _, name, ranking in shown for hit in ranking.first}
    passages: dict[str, Passage] = {}
    if corpus is not None and wanted:
        opened = open_corpus(corpus)
        # A single pass over the corpus, so that it may be of any size.
        hits = (passage for passage in opened if passage.id in wanted)
        passages = {passage.id: passage for passage in islice(hits, len(wanted))}
        if missing := sorted(wanted.keys() - passages.keys()):
            raise opened.unknown(missing[0], file=f"run '{wanted[missing[0]]}'")
    for query, name, ranking in shown:
        first, query_text = [], texts.get(query.query_id, "")
        for hit in ranking.first:
            if (passage := passages.get(hit.document_id)) is not None:
                text = snippet(passage.text, query_text)
                hit = replace(hit, title=passage.title, snippet=text, matches=tuple(matches(text, query_text)))
            first.append(hit)
        query.rankings[name] = replace(ranking, first=first)
