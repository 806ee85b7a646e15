"""The program behind `rkit search`: queries and one or several indexes in, a run or readable hits out.

    rkit search INDEX... --queries FILE|--query TEXT|--interactive [--k N] [--fusion rrf|sum|linear] [--output RUN]
    rkit search INDEX INDEX --fusion linear --tune QRELS --tune-queries FILE

Queries for an index of vectors are encoded by the checkpoint that made it; any other is refused. Several indexes may be
of different kinds and made by different checkpoints: each is searched, and their hits are fused. A run file may replace
an index.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from retrievalkit import artifacts, oddities
from retrievalkit.contracts import Candidates
from retrievalkit.data import sources
from retrievalkit.data.qrels import Qrels, read_qrels
from retrievalkit.data.queries import Query, check_queries, read_queries
from retrievalkit.data.runs import Hits
from retrievalkit.errors import InputError, OptionError, shortlist
from retrievalkit.report.counts import counted
from retrievalkit.report.progress import ProgressBar
from retrievalkit.report.terminal import printable_json, say
from retrievalkit.search.encoders import QueryBatch
from retrievalkit.search.fusion import Fusion, as_hits
from retrievalkit.search.hits import write_hits
from retrievalkit.search.interactive import Reader
from retrievalkit.search.output import write_found
from retrievalkit.search.request import Request, check_effect
from retrievalkit.search.searcher import BATCH_QUERIES, Note, Searcher
from retrievalkit.search.sources import OpenRun
from retrievalkit.search.tuning import METRIC, Tuned, write_choice
from retrievalkit.search.tuning import tune as tune_fusion

HITS, HITS_TO_READ = 1000, 10
HITS_AT_ONCE = 1 << 21

_DEV = "dev"


def find(
    searcher: Searcher,
    queries: Sequence[Query] | None,
    k: int,
    fusion: Fusion | None,
    *,
    depth: int | None = None,
    batch_size: int = BATCH_QUERIES,
    ask: Callable[[Sequence[Query]], QueryBatch] | None = None,
) -> Iterator[tuple[str, Hits]]:
    """Search open indexes; gives each query's id with its hits, of which one batch is in memory; see `search`.

    Args:
        searcher: The indexes.
        queries: As for `search`.
        k: As for `search`.
        fusion: How the indexes are fused; None for one.
        depth: As for `search`.
        batch_size: As for `search`.
        ask: Prepares a batch of queries; None = their texts are encoded.

    Raises:
        InputError: There are no queries, or a run has none of them.
    """
    wanted = _all_queries(searcher) if queries is None else queries
    _check_runs(searcher, wanted)
    for batch in _batches(wanted, queries_at_once(k, depth, batch_size)):
        found = searcher.search((ask or searcher.ask)(batch), k, fusion, depth)
        for query, hits in zip(batch, found.rankings, strict=True):
            yield query.id, as_hits(*hits)
    if depth is not None:
        searcher.note_short_runs(depth)


def hit_count(k: Any, default: int) -> int:
    """The number of hits that a Python program or a request asks for; None = the default.

    Raises:
        OptionError: It is not a whole number, or less than 1.
    """
    if k is None:
        return default
    if isinstance(k, bool) or not hasattr(k, "__index__") or k < 1:
        msg = f"k is {k!r}, and must be a whole number of hits, at least 1."
        raise OptionError(msg)
    return int(k)


def queries_at_once(k: int, depth: int | None = None, most: int = BATCH_QUERIES) -> int:
    """How many queries are searched at once, at most: fewer if each has many hits, which are in memory together."""
    return max(1, min(most, HITS_AT_ONCE // max(k, depth or 0)))


def tune(
    searcher: Searcher,
    queries: Sequence[Query],
    qrels: Qrels,
    fusion: Fusion,
    *,
    metric: str = METRIC,
    k: int = 1000,
    depth: int | None = None,
    batch_size: int = BATCH_QUERIES,
) -> Tuned:
    """Find the best fusion of the indexes; see `retrievalkit.search.tuning`.

    Args:
        searcher: The indexes.
        queries: The queries; those without judgements are not searched.
        qrels: The judgements.
        fusion: The options that stay fixed.
        metric: The metric to maximise.
        k: How many hits per query the metric is computed on.
        depth: As for `search`.
        batch_size: As for `search`.

    Raises:
        InputError: No query is judged, or there is nothing to tune.
    """
    judged = [query for query in queries if query.id in qrels]
    if not judged:
        msg = (
            f"of {counted(len(queries), 'queries')} to tune on none is judged: ids like '{queries[0].id}', and the "
            f"judgements like '{next(iter(qrels))}'. Give the queries of these judgements with --tune-queries."
        )
        raise InputError(msg)
    if searcher.indexes:
        check_queries(judged)
    if lacking := len(qrels) - len(judged):
        searcher.note(
            f"{lacking:,} of the {len(qrels):,} judged queries are not among the queries to tune on and are left out."
        )
    _check_runs(searcher, judged)
    names: dict[str, str] = {}
    found: dict[str, Candidates] = {}
    for batch in _batches(judged, queries_at_once(k, depth, batch_size)):
        for query, hits in zip(batch, searcher.candidates(searcher.ask(batch), k, fusion, depth), strict=True):
            # One string per id, however many queries found it: ids take most of the memory.
            hits.ids = [names.setdefault(name, name) for name in hits.ids]
            found[query.id] = hits
    if depth is not None:
        searcher.note_short_runs(depth)
    with ProgressBar("tune") as bar:
        return tune_fusion(
            found,
            qrels,
            fusion=fusion,
            labels=searcher.labels,
            identities=searcher.identities,
            metric=metric,
            k=k,
            progress=lambda trial: bar.update(label=f"tune: {trial}"),
        )


def _batches(queries: Sequence[Query], size: int) -> Iterator[Sequence[Query]]:
    with ProgressBar("search", len(queries), unit="queries") as progress:
        for start in range(0, len(queries), size):
            batch = queries[start : start + size]
            yield batch
            progress.advance(len(batch))


def _all_queries(searcher: Searcher) -> list[Query]:
    """The queries of the runs."""
    if searcher.indexes:
        msg = (
            f"'{searcher.indexes[0].label}' is an index to search, but there are no queries. Give --queries or --query."
        )
        raise InputError(msg)
    ids = dict.fromkeys(query_id for run in searcher.sources if isinstance(run, OpenRun) for query_id in run.run)
    return [Query(query_id, "") for query_id in ids]


def _check_runs(searcher: Searcher, queries: Sequence[Query]) -> None:
    """Refuse runs that share no query, or that have nothing to be fused with."""
    for source in searcher.sources:
        if not isinstance(source, OpenRun):
            continue
        lacking = [query.id for query in queries if query.id not in source.run]
        if len(searcher.sources) == 1:
            msg = f"'{source.label}' is a run, but there is nothing to fuse it with. Give an index to search."
            raise InputError(msg)
        if len(lacking) == len(queries):
            msg = (
                f"the run '{source.label}' has none of the {counted(len(queries), 'queries')}: its ids are like "
                f"'{next(iter(source.run))}', theirs like '{queries[0].id}'. Give the run of these queries."
            )
            raise InputError(msg)
        if lacking:
            searcher.note(
                f"the run '{source.label}' has no hits for {len(lacking):,} of {len(queries):,} queries: "
                f"{shortlist(lacking, 3)}."
            )


def perform(request: Request, note: Note = oddities.note) -> None:
    """Search, and print or write the result.

    Raises:
        InputError: Options or inputs do not fit; nothing is written.
    """
    request.check()
    request.fusion_by_options()
    wanted = None if request.queries is None else read_queries(request.queries, request.split)
    judged = None if request.tune is None else _judged(request)
    options, query_length = request.divided_options()
    searcher = Searcher(
        request.places,
        model=request.model,
        options=options,
        precision=request.precision or "fp32",
        query_length=query_length,
        note=note,
        cluster=request.cluster,
    )
    encoded = any(index.needs_encoding for index in searcher.indexes)
    of_queries = {"--precision": request.precision, "--set encoder.query_length": query_length}
    check_effect(of_queries, encoded, "an index of vectors")
    fusion = request.fusion_for(searcher)
    if request.shows_hits:
        _read(request, searcher, fusion)
        return
    k, tuned = request.k or HITS, None
    if judged is not None:
        if fusion is None:
            msg = "--tune weights several indexes, but there is only one. Give more."
            raise OptionError(msg)
        qrels, dev = judged
        dev = _all_queries(searcher) if dev is None else dev
        tuned = tune(searcher, dev, qrels, fusion, metric=request.tune_metric or METRIC, k=k, depth=request.depth)
        _report(request, tuned, wanted, [query.text for query in dev if query.id in qrels], note)
        fusion = tuned.best.fusion
    if judged is None or wanted is not None:
        write_found(request, find(searcher, wanted, k, fusion, depth=request.depth), fusion, tuned)


def _read(request: Request, searcher: Searcher, fusion: Fusion | None) -> None:
    k, why = request.k or HITS_TO_READ, request.why is not False
    reader = Reader(searcher, fusion, request.corpus, request.depth, why=why, as_json=request.as_json)
    if request.query is None:
        # Told now, as a conversation may be long.
        searcher.note = oddities.at_once
        reader.converse(k)
        return
    hits = reader(request.query, k)
    if request.output is not None:
        write_hits(request.output, request.query, hits, searcher.labels)


def _judged(request: Request) -> tuple[Qrels, list[Query] | None]:
    """The judgements to tune by and the queries to tune on; None = those of the runs."""
    tune = str(request.tune)
    qrels = read_qrels(tune, _DEV)
    holds_queries = Path(tune).is_dir() or sources.split_prefix(tune)[0]
    source = request.tune_queries or (tune if holds_queries else request.queries)
    if source is not None:
        return qrels, read_queries(source)
    if all(Path(place).is_file() for place in request.places):
        return qrels, None
    msg = f"'{tune}' has judgements but no queries. Give the queries with --tune-queries FILE."
    raise InputError(msg)


def _report(request: Request, tuned: Tuned, wanted: Sequence[Query] | None, texts: Sequence[str], note: Note) -> None:
    """Print the result of tuning, and write it if no run is written."""
    if wanted is not None:
        known = set(texts)
        if seen := sum(query.text in known for query in wanted):
            note(
                f"{seen:,} of the {len(wanted):,} queries are among the {tuned.queries:,} that the weights were tuned "
                "on: metrics on these are better than on new queries."
            )
    elif request.output:
        write_choice(request.output, tuned)
    if request.as_json:
        if wanted is None:
            sys.stdout.write(printable_json(json.dumps(tuned.to_json(), indent=2, ensure_ascii=False)) + "\n")
        return
    # If a run is printed, standard output is reserved for it.
    to_run = wanted is not None and request.output is None
    tuned.render(Console(highlight=False, stderr=to_run), request.places)
    if wanted is None and request.output:
        output = artifacts.named(request.output)
        say(f"{output}: the best weights; search with --weights {output}")
