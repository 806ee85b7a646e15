"""`rkit search`: searches one or several indexes, and writes a run or prints readable hits.

    rkit search INDEX... --queries FILE|--query TEXT|--interactive [--k N] [--fusion rrf|sum|linear] [--output RUN]
    rkit search INDEX INDEX --fusion linear --tune QRELS --tune-queries FILE

Queries for a vector index are encoded by the checkpoint that encoded its texts; any other checkpoint is refused.
Indexes of different kinds and checkpoints may be searched together: their hits are fused. A run file may replace an
index.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from retrievalkit import storage
from retrievalkit.contracts.declarations import Argument, Flag, Place, Reads, Rest, command
from retrievalkit.data import inputs, sources
from retrievalkit.data.runs import Hits, write_run
from retrievalkit.data.same_text import normal_form
from retrievalkit.errors import InputError, OptionError
from retrievalkit.reporting import notices
from retrievalkit.reporting.page import PAGES
from retrievalkit.reporting.terminal import counted, printable, printable_json, say
from retrievalkit.search.options import METRIC, DocumentOptions, HybridOptions, OpenOptions

if TYPE_CHECKING:
    from retrievalkit.data.passage_parts import DocumentScore
    from retrievalkit.data.qrels import Qrels
    from retrievalkit.data.queries import Query
    from retrievalkit.search.fusion import Fusion
    from retrievalkit.search.fusion_tuning import Tuned
    from retrievalkit.search.searcher import Searcher


@dataclass(frozen=True)
class SearchOptions(DocumentOptions, HybridOptions, OpenOptions):
    """Options of `search`.

    Args:
        indexes: Index folders (rkit index), or TREC runs to fuse with other sources.
        queries: Queries: a file, a BEIR folder or pydoc:PACKAGES; in Python also a list, a dict or a table.
        split: Only the queries judged in this split, if the queries are a folder.
        query: A single query; prints readable hits.
        interactive: Read queries from a prompt, or line by line from a pipe.
        k: Hits per query; by default 1000 in a run, 10 in readable hits.
        filter: Only texts whose fields match, as in "year >= 2020 and source = faq".
        tune: Tune the weights on these judgements (of a BEIR folder, the dev split).
        tune_queries: The queries to tune on; by default the queries in the folder of judgements, or else `queries`.
        tune_metric: The metric to tune for, by its ir-measures name; nDCG@10 by default.
        explain: Explain the scores of readable hits (the default).
        output: The run to write (TREC) instead of printing it; for a single query also a page (.html) or .json of its
            hits; with tune alone, the weights.
        as_json: Print a machine-readable result.
        named_options: Options for some of the indexes, by the name of their indexer or folder.
    """

    indexes: Annotated[
        tuple[Place, ...], Argument(several=True), Flag(metavar="INDEX..."), Reads(storage.indexes_of, ("index", "run"))
    ]
    _: KW_ONLY
    queries: Annotated[Any, Reads(inputs.queries)] = None
    split: str | None = None
    query: str | None = None
    interactive: Annotated[bool, Flag(("--interactive", "-i"))] = False
    k: Annotated[int, Ge(1)] | None = None
    filter: str | None = None
    tune: Annotated[Any, Flag(metavar="QRELS"), Reads(inputs.judgements)] = None
    tune_queries: Annotated[Any, Reads(inputs.queries)] = None
    tune_metric: str | None = None
    explain: Annotated[bool | None, Flag(("--explain/--no-explain",))] = None
    output: Annotated[Place | None, Flag(("--output", "-o"))] = None
    as_json: Annotated[bool, Flag(("--json",))] = False
    named_options: Annotated[Mapping[str, Any], Rest(sections=True)] = field(default_factory=dict)

    @property
    def shows_hits(self) -> bool:
        """True if hits are printed with their texts, instead of a run."""
        return self.query is not None or self.interactive

    @property
    def runs_alone(self) -> bool:
        """True if all sources are run files."""
        return all(Path(place).is_file() for place in self.indexes)


@command("search", SearchOptions)
def search(options: SearchOptions) -> None:
    """Search one INDEX, or several and combine their hits.

    Fused scores are 32-bit floats; ties are ordered by document id. --set indexer.OPTION applies to all indexes that
    have the option, NAME.OPTION to the indexes whose indexer or folder has that name; encoder.query_length=N truncates
    queries to N tokens instead of the checkpoint's limit.

    \b
    rkit search dense --queries test.jsonl --output dense.trec
    rkit search dense bm25 --query "eigenvalues of a symmetric matrix"
    rkit search dense bm25 --query "how to cancel" --filter "year >= 2020 and source = faq"
    rkit search dense --queries test.jsonl --by document --output documents.trec
    rkit search dense bm25 --fusion linear --tune dev.tsv --tune-queries dev.jsonl --output weights.json
    rkit search dense bm25 --weights weights.json --queries test.jsonl --output hybrid.trec
    rkit search dense.trec bm25.trec --fusion rrf --output hybrid.trec
    """  # noqa: D301 - click needs the literal backspace to keep the lines apart
    from retrievalkit.data.queries import read_queries
    from retrievalkit.search.searcher import HITS, find, opened

    # Refuse invalid options, and read the queries, before any index is opened.
    count = len(options.indexes)
    tunes_linear = options.tune is not None and options.fusion is None and count > 1
    fused = replace(options, fusion="linear") if tunes_linear else options
    fused.fused(count)
    _check(options)
    readable = options.output is None or Path(options.output).suffix in (".json", *PAGES)
    documents = options.scored("document" if options.shows_hits and readable else "passage")
    queries = None if options.queries is None else read_queries(options.queries, options.split)
    dev = None if options.tune is None else _read_judged(options)

    searcher = opened(options.indexes, options, options.named_options)
    if documents is not None and options.requires_documents:
        searcher.require_documents(options.corpus)
    fusion = fused.fused(count, searcher.identities)  # a weights file must have been tuned for the same indexes
    if options.shows_hits:
        _show_hits(options, searcher, fusion, documents)
        return
    about: dict[str, Any] = {}
    if dev is not None:
        tuned = _tune(options, searcher, fusion, *dev, queries)
        if queries is None:
            return
        fusion, about = tuned.best.fusion, {"tuned": tuned.to_json()}
    if fusion is not None:
        about = {"fusion": asdict(fusion), **about}
    k, depth = options.k or HITS, options.depth
    _write_run(
        options, find(searcher, queries, k, fusion, depth=depth, filter=options.filter, documents=documents), about
    )


def _read_judged(options: SearchOptions) -> tuple[Qrels, list[Query] | None]:
    """Read the judgements to tune on and their queries; None = the queries of the runs."""
    from retrievalkit.data.qrels import read_qrels
    from retrievalkit.data.queries import read_queries

    place = str(options.tune)
    qrels = read_qrels(place, "dev")
    holds_queries = Path(place).is_dir() or sources.split_prefix(place)[0]
    source = options.tune_queries or (place if holds_queries else options.queries)
    if source is None and not options.runs_alone:
        msg = f"'{place}' has judgements but no queries. Give the queries with tune_queries."
        raise InputError(msg)
    return qrels, None if source is None else read_queries(source)


def _show_hits(
    options: SearchOptions, searcher: Searcher, fusion: Fusion | None, documents: DocumentScore | None
) -> None:
    """Print the hits of a query with their texts, or those of each query of an interactive session."""
    from rich.console import Console

    from retrievalkit.search.hits import DescribedHit, render, write_hits
    from retrievalkit.search.interactive import converse
    from retrievalkit.search.searcher import HITS_TO_READ
    from retrievalkit.search.searching import Searching

    searching = Searching("", searcher, fusion=fusion, depth=options.depth, corpus=options.corpus)
    # On a terminal the query is already visible.
    echoes = options.interactive and not sys.stdin.isatty() and not options.as_json
    why = options.explain is not False

    def answer(text: str, k: int) -> Sequence[DescribedHit]:
        sys.stdout.write(f"{printable(text)}\n" if echoes else "")
        hits = searching.each(text, k, filter=options.filter, documents=documents, explain=why)
        if options.as_json:
            shown: Sequence[DescribedHit] = list(hits)
            value = {"query": text, "hits": [hit.to_json() for hit in shown]}
            sys.stdout.write(_json(value, indent=None if options.interactive else 2))
        else:
            shown = render(hits, Console(highlight=False))
            sys.stdout.write("\n" if options.interactive else "")
        sys.stdout.flush()
        return shown

    k = options.k or HITS_TO_READ
    if options.query is None:
        # Notes are printed immediately, as a session may be long.
        searcher.note = notices.at_once
        searching.warm()
        converse(answer, k)
        return
    hits = answer(options.query, k)
    if options.output is not None:
        write_hits(str(options.output), options.query, hits, searcher.labels)


def _tune(
    options: SearchOptions,
    searcher: Searcher,
    fusion: Fusion | None,
    qrels: Qrels,
    dev: list[Query] | None,
    queries: list[Query] | None,
) -> Tuned:
    """Tune the weights, and print them; without queries to search, write them too."""
    from retrievalkit.search.fusion_tuning import tune
    from retrievalkit.search.searcher import HITS

    if fusion is None:
        msg = "tune needs several indexes, but there is only one. Give more."
        raise OptionError(msg)
    dev = searcher.queries_of_runs() if dev is None else dev
    metric, k = options.tune_metric or METRIC, options.k or HITS
    tuned = tune(searcher, dev, qrels, fusion, metric=metric, k=k, depth=options.depth)
    if not options.as_json:
        # If a run is printed, standard output is reserved for it.
        tuned.render(list(map(str, options.indexes)), err=queries is not None and options.output is None)
    elif queries is None:
        sys.stdout.write(_json(tuned.to_json()))
    if queries is None and options.output is not None:
        storage.write_json(str(options.output), tuned.to_json())
        if not options.as_json:
            output = storage.named(str(options.output))
            say(f"{output}: the best weights; search with --weights {output}")
    searched, known = queries or [], {normal_form(query.text) for query in dev if query.id in qrels}
    if seen := sum(normal_form(query.text) in known for query in searched):
        notices.note(
            f"{seen:,} of the {len(searched):,} queries are among the {tuned.queries:,} that the weights were tuned "
            "on: metrics on these are better than on new queries."
        )
    return tuned


def _check(options: SearchOptions) -> None:
    """Refuse incompatible options before anything is opened."""
    from retrievalkit.search.searcher import check_effect

    modes = {"queries": options.queries, "query": options.query, "interactive": options.interactive or None}
    selected = [name for name, value in modes.items() if value is not None]
    if len(selected) > 1:
        msg = f"{' and '.join(selected)} exclude each other. Give one of them."
        raise OptionError(msg)
    places = list(map(str, options.indexes))
    for place in places:
        if not Path(place).exists():
            do = f'Give a text to search for as --query "{place}".' if " " in place else "Give indexes and runs."
            msg = f"'{place}' does not exist. {do}"
            raise InputError(msg)
    if not selected and options.tune is None and not options.runs_alone:
        folder = next(place for place in places if not Path(place).is_file())
        msg = f"there is nothing to search for in '{folder}'. Give queries, a query, or interactive."
        raise OptionError(msg)
    if options.shows_hits and options.runs_alone:
        msg = f"{selected[0]} needs an index folder to search, but '{places[0]}' is a file. Give an index."
        raise OptionError(msg)
    check_effect({"explain": options.explain}, options.shows_hits, "hits to read (query, interactive)")
    read = options.shows_hits or (options.runs_alone and options.requires_documents)
    check_effect({"corpus": options.corpus}, read, "hits to read (query, interactive), or runs by document")
    check_effect({"ray": options.cluster}, not options.runs_alone, "an index")
    check_effect({"split": options.split}, options.queries is not None, "queries")
    check_effect({"split": options.split}, not Path(options.queries or "").is_file(), "a folder of queries")
    check_effect({"output": options.output}, not options.interactive, "queries, query or tune")
    searched = {"filter": options.filter, "by": options.by, "document_score": options.document_score}
    check_effect(searched, bool(selected) or options.runs_alone, "queries, query or interactive")
    check_effect({"tune": options.tune}, not options.shows_hits, "queries, or without any")
    tuned_by = {"tune_queries": options.tune_queries, "tune_metric": options.tune_metric}
    check_effect(tuned_by, options.tune is not None, "tune")
    if options.output is not None:
        storage.check_output_file(str(options.output), stream=True)
    if options.output is not None and Path(options.output).suffix in PAGES and options.query is None:
        msg = f"output '{options.output}' is a page, which shows the hits of one query. Give a query."
        raise OptionError(msg)


def _write_run(options: SearchOptions, rankings: Iterator[tuple[str, Hits]], about: Mapping[str, Any]) -> None:
    """Write or print a run during the search, so that only one batch of hits is in memory."""
    queries, lines = 0, 0

    def passed() -> Iterator[tuple[str, Hits]]:
        nonlocal queries, lines
        for query_id, hits in rankings:
            queries, lines = queries + 1, lines + len(hits)
            yield query_id, hits

    if options.output is not None:
        write_run(os.fspath(options.output), passed())
        output = storage.named(os.fspath(options.output))
        if options.as_json:
            sys.stdout.write(_json({"queries": queries, "hits": lines, "run": output, **about}))
        else:
            say(f"{output}: {counted(queries, 'queries')}, {counted(lines, 'hits')}")
        return
    if options.as_json:
        # The counts come first.
        results = dict(passed())
        sys.stdout.write(_json({"queries": queries, "hits": lines, "run": None, **about, "results": results}))
        return
    import numpy as np

    # Programs get the raw ids; a terminal gets no control characters.
    shown = printable if sys.stdout.isatty() else str
    for query_id, hits in rankings:
        scores = np.array([score for _, score in hits], dtype=np.float32).astype(str).tolist()
        sys.stdout.writelines(
            shown(f"{query_id} Q0 {document_id} {rank} {score} rkit") + "\n"
            for rank, ((document_id, _), score) in enumerate(zip(hits, scores, strict=True), 1)
        )


def _json(value: Any, indent: int | None = 2) -> str:
    return printable_json(json.dumps(value, indent=indent, ensure_ascii=False)) + "\n"
