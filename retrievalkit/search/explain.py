"""Why a hit was found: the terms that make up its score, its nearest vector, or the pairs of similar tokens.

An index of texts explains its own scores. For an index of vectors the few texts of the hits are encoded again with the
checkpoint that made it, which is cheap and works with every indexer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from retrievalkit.contracts import Candidates
from retrievalkit.data.corpus import Corpus
from retrievalkit.data.queries import Query
from retrievalkit.errors import UnsupportedError
from retrievalkit.search.hits import Found
from retrievalkit.search.searcher import Searcher
from retrievalkit.search.sources import OpenIndex, Source

RankAndScore = tuple[int | None, float | None]


def explain(
    searcher: Searcher,
    query: Query,
    hits: Sequence[tuple[str, float]],
    *,
    corpus: Corpus | None,
    candidates: Candidates | None = None,
    why: bool = True,
) -> list[tuple[Found, ...]]:
    """Explain each hit, source by source.

    Args:
        searcher: The sources that were searched.
        query: The query.
        hits: Its hits.
        corpus: The texts; without them, the scores of vectors are not explained.
        candidates: The hits of each source, if several were searched.
        why: Whether to explain the scores; if not, only ranks and scores are reported.
    """
    ids = [document for document, _ in hits]
    columns, rows = [], None if candidates is None else _rows(candidates, ids)
    for number, source in enumerate(searcher.sources):
        reasons = _reasons(searcher, source, query, ids, corpus) if why else [Found("")] * len(hits)
        ranked = _ranks_and_scores(number, hits, candidates, rows)
        column = [
            replace(reason, index=source.label, rank=rank, score=score)
            for reason, (rank, score) in zip(reasons, ranked, strict=True)
        ]
        columns.append(column)
    return list(zip(*columns, strict=True))


def _rows(candidates: Candidates, ids: Sequence[str]) -> list[int]:
    """The places of some documents, of perhaps thousands of candidates."""
    wanted = set(ids)
    row_of = {document: row for row, document in enumerate(candidates.ids) if document in wanted}
    return [row_of[document] for document in ids]


def _ranks_and_scores(
    number: int, hits: Sequence[tuple[str, float]], candidates: Candidates | None, rows: Sequence[int] | None
) -> list[RankAndScore]:
    """The rank and score of each hit in one source; a hit with a score but no rank was not found there, only scored."""
    if candidates is None:
        return [(rank, score) for rank, (_, score) in enumerate(hits, 1)]
    pairs = zip(candidates.ranks[rows, number].tolist(), candidates.scores[rows, number].tolist(), strict=True)
    return [(rank or None, None if math.isnan(score) else score) for rank, score in pairs]


def _reasons(
    searcher: Searcher, source: Source, query: Query, ids: Sequence[str], corpus: Corpus | None
) -> list[Found]:
    """The explanation of each document's score in one source; empty if unknown."""
    unknown = Found("")
    if not isinstance(source, OpenIndex) or not ids:
        return [unknown] * len(ids)
    if not source.needs_encoding:
        try:
            return [Found("", terms=terms) for terms in source.indexer.contributions(query.text, ids)]
        except UnsupportedError:
            return [unknown] * len(ids)
    if source.label in searcher.without_reasons:
        return [unknown] * len(ids)
    lacking = set(ids) if corpus is None else corpus.missing(ids)
    passages = {} if corpus is None else {document: corpus.get(document) for document in ids if document not in lacking}
    texts = [(passage.title, passage.text) for passage in passages.values()]
    reasons: list[Found] = []
    if texts:
        # Of a search of texts alone, the import of torch would take most of the time.
        from retrievalkit.search.similarities import compared

        reasons = compared(searcher, query.text, texts, source)
        if not reasons:
            # One vector per text and query: another query need not be encoded to find that out.
            searcher.without_reasons.add(source.label)
    by_id = dict(zip(passages, reasons, strict=False))
    return [by_id.get(document, unknown) for document in ids]
