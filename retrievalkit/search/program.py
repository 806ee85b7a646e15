"""The program behind `rkit search`: queries are searched in open indexes, and their hits fused, printed or written."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from retrievalkit import artifacts, oddities
from retrievalkit.artifacts import check_output_file
from retrievalkit.contracts import Candidates
from retrievalkit.data import sources
from retrievalkit.data.qrels import Qrels, read_qrels
from retrievalkit.data.queries import Query, check_queries, read_queries
from retrievalkit.data.runs import Hits
from retrievalkit.declarations import Place
from retrievalkit.errors import InputError, OptionError, shortlist
from retrievalkit.options import convert
from retrievalkit.report.counts import counted
from retrievalkit.report.page import PAGES
from retrievalkit.report.progress import ProgressBar
from retrievalkit.report.terminal import printable_json, say
from retrievalkit.search.encoders import QueryBatch
from retrievalkit.search.fusion import Fusion, as_hits
from retrievalkit.search.hits import write_hits
from retrievalkit.search.interactive import Reader
from retrievalkit.search.options import OpenOptions
from retrievalkit.search.output import write_found
from retrievalkit.search.search import SearchOptions
from retrievalkit.search.searcher import BATCH_QUERIES, Note, Searcher
from retrievalkit.search.sources import OpenRun, Options
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
            f"judgements like '{next(iter(qrels))}'. Give the queries of these judgements with tune_queries."
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
        msg = f"'{searcher.indexes[0].label}' is an index to search, but there are no queries. Give queries or a query."
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


def opened(
    places: Sequence[Place], options: OpenOptions, named: Options | None = None, note: Note = oddities.note
) -> Searcher:
    """The searcher of indexes and runs.

    Args:
        places: Index folders and run files.
        options: How they are opened.
        named: Options of some of the indexes, by the name of their indexer or of their folder.
        note: Called with messages for the user.

    Raises:
        OptionError: An option has no effect, or does not fit.
        InputError: A place is neither an index nor a run, or the model did not make the indexes.
    """
    if "document_length" in options.encoder_options:
        msg = (
            "encoder.document_length has no effect on a search, whose documents are encoded already. Give it to rkit "
            "encode."
        )
        raise OptionError(msg)
    # An index folder may be called "encoder", too.
    rest = {name: value for name, value in options.encoder_options.items() if name != "query_length"}
    settings = {"indexer": options.indexer_options, "encoder": rest, **(named or {})}
    length = options.encoder_options.get("query_length")
    length = None if length is None else convert("encoder.query_length", int, length)
    lent = options.model if hasattr(options.model, "encode_queries") else None
    if lent is not None and length is None:
        length = lent.model.changed.get("query_length")
    searcher = Searcher(
        list(map(Path, places)),
        model=options.model if lent is None else lent.source,
        options={name: values for name, values in settings.items() if values},
        precision=options.precision or "fp32",
        query_length=length,
        note=note,
        cluster=options.cluster,
    )
    encoded = any(index.needs_encoding for index in searcher.indexes)
    check_effect({"precision": options.precision, "encoder.query_length": length}, encoded, "an index of vectors")
    if lent is not None:
        searcher.encoders.lend(lent.model, lent.lock)
    return searcher


def perform(options: SearchOptions) -> None:
    """Search, and print or write the result.

    Raises:
        InputError: Options or inputs do not fit; nothing is written.
    """
    tuned_fusion = options.tune is not None and options.fusion is None and len(options.indexes) > 1
    fused = replace(options, fusion="linear") if tuned_fusion else options
    fused.fused(len(options.indexes))
    _check(options)
    wanted = None if options.queries is None else read_queries(options.queries, options.split)
    judged = None if options.tune is None else _judged(options)
    searcher = opened(options.indexes, options, options.named_options)
    fusion = fused.fused(len(options.indexes), searcher.identities)
    if options.shows_hits:
        _read(options, searcher, fusion)
        return
    k, tuned = options.k or HITS, None
    if judged is not None:
        if fusion is None:
            msg = "tune weights several indexes, but there is only one. Give more."
            raise OptionError(msg)
        qrels, dev = judged
        dev = _all_queries(searcher) if dev is None else dev
        tuned = tune(searcher, dev, qrels, fusion, metric=options.tune_metric or METRIC, k=k, depth=options.depth)
        _report(options, tuned, wanted, [query.text for query in dev if query.id in qrels])
        fusion = tuned.best.fusion
    if judged is None or wanted is not None:
        write_found(options, find(searcher, wanted, k, fusion, depth=options.depth), fusion, tuned)


def _check(options: SearchOptions) -> None:
    """Refuse incompatible options before anything is opened.

    Raises:
        InputError: An option would have no effect, there are no queries, or the output is a folder.
    """
    places = [str(place) for place in options.indexes]
    runs_alone = all(Path(place).is_file() for place in places)
    modes = {"queries": options.queries, "query": options.query, "interactive": options.interactive or None}
    given = [name for name, value in modes.items() if value is not None]
    if len(given) > 1:
        msg = f"{' and '.join(given)} exclude each other. Give one of them."
        raise OptionError(msg)
    for place in places:
        if not Path(place).exists():
            do = f'Give a text to search for as --query "{place}".' if " " in place else "Give indexes and runs."
            msg = f"'{place}' does not exist. {do}"
            raise InputError(msg)
    if not given and options.tune is None and not runs_alone:
        folder = next(place for place in places if not Path(place).is_file())
        msg = f"there is nothing to search for in '{folder}'. Give queries, a query, or interactive."
        raise OptionError(msg)
    if options.shows_hits and runs_alone:
        msg = f"{given[0]} needs an index folder to search, but '{places[0]}' is a file. Give an index."
        raise OptionError(msg)
    shown = {"corpus": options.corpus, "explain": options.explain}
    check_effect(shown, options.shows_hits, "hits to read (query, interactive)")
    check_effect({"ray": options.cluster}, not runs_alone, "an index")
    check_effect({"split": options.split}, options.queries is not None, "queries")
    check_effect({"split": options.split}, not Path(options.queries or "").is_file(), "a folder of queries")
    check_effect({"output": options.output}, not options.interactive, "queries, query or tune")
    check_effect({"tune": options.tune}, not options.shows_hits, "queries, or stands alone")
    tuned_by = {"tune_queries": options.tune_queries, "tune_metric": options.tune_metric}
    check_effect(tuned_by, options.tune is not None, "tune")
    if options.output is not None:
        check_output_file(str(options.output), stream=True)
    if options.output is not None and Path(options.output).suffix in PAGES and options.query is None:
        msg = f"output '{options.output}' is a page, which shows the hits of one query. Give a query."
        raise OptionError(msg)


def check_effect(options: Mapping[str, object], has_effect: bool, with_: str) -> None:
    """Refuse options that would have no effect.

    Raises:
        OptionError: Names them.
    """
    if not has_effect and (named := [name for name, value in options.items() if value is not None]):
        msg = f"{', '.join(named)} has no effect here: it goes with {with_}."
        raise OptionError(msg)


def _read(options: SearchOptions, searcher: Searcher, fusion: Fusion | None) -> None:
    k, why = options.k or HITS_TO_READ, options.explain is not False
    reader = Reader(searcher, fusion, options.corpus, options.depth, why=why, as_json=options.as_json)
    if options.query is None:
        # Told now, as a conversation may be long.
        searcher.note = oddities.at_once
        reader.converse(k)
        return
    hits = reader(options.query, k)
    if options.output is not None:
        write_hits(str(options.output), options.query, hits, searcher.labels)


def _judged(options: SearchOptions) -> tuple[Qrels, list[Query] | None]:
    """The judgements to tune by and the queries to tune on; None = those of the runs."""
    tune = str(options.tune)
    qrels = read_qrels(tune, _DEV)
    holds_queries = Path(tune).is_dir() or sources.split_prefix(tune)[0]
    source = options.tune_queries or (tune if holds_queries else options.queries)
    if source is not None:
        return qrels, read_queries(source)
    if all(Path(place).is_file() for place in list(map(str, options.indexes))):
        return qrels, None
    msg = f"'{tune}' has judgements but no queries. Give the queries with tune_queries."
    raise InputError(msg)


def _report(options: SearchOptions, tuned: Tuned, wanted: Sequence[Query] | None, texts: Sequence[str]) -> None:
    """Print the result of tuning, and write it if no run is written."""
    if wanted is not None:
        known = set(texts)
        if seen := sum(query.text in known for query in wanted):
            oddities.note(
                f"{seen:,} of the {len(wanted):,} queries are among the {tuned.queries:,} that the weights were tuned "
                "on: metrics on these are better than on new queries."
            )
    elif options.output:
        write_choice(str(options.output), tuned)
    if options.as_json:
        if wanted is None:
            sys.stdout.write(printable_json(json.dumps(tuned.to_json(), indent=2, ensure_ascii=False)) + "\n")
        return
    # If a run is printed, standard output is reserved for it.
    to_run = wanted is not None and options.output is None
    tuned.render(Console(highlight=False, stderr=to_run), list(map(str, options.indexes)))
    if wanted is None and options.output:
        output = artifacts.named(str(options.output))
        say(f"{output}: the best weights; search with --weights {output}")
