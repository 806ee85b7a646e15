"""Search over several sources: hits are joined by query, and scores that a source lacks are filled in."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from retrievalkit.contracts import Allowed, Candidates, declarations
from retrievalkit.contracts.cluster import RANKS, ClusterOptions, check_same, spread_map
from retrievalkit.data.corpus import Corpus, open_corpus
from retrievalkit.data.passage_parts import DocumentScore, by_document, documents_of
from retrievalkit.data.queries import Query
from retrievalkit.data.runs import Hits, Ranking
from retrievalkit.errors import ArtifactError, InputError, OptionError, UnsupportedError, shortlist
from retrievalkit.indexing.filter import passing_texts
from retrievalkit.indexing.open_indexes import (
    OpenIndex,
    OpenRun,
    Options,
    Place,
    Source,
    corpus_of,
    open_sources,
)
from retrievalkit.indexing.query_encoders import EncodedBatch, Encoders, QueryBatch
from retrievalkit.registry.component_options import convert
from retrievalkit.reporting import notices
from retrievalkit.reporting.progress import ProgressBar
from retrievalkit.reporting.terminal import counted
from retrievalkit.search.fusion import Fusion, as_hits, gather
from retrievalkit.search.options import Missing, OpenOptions
from retrievalkit.storage import kind_of, read_manifest

if TYPE_CHECKING:
    from retrievalkit.models.precision import Precision

BATCH_QUERIES = 1024
FUSION_DEPTH = 1000
HITS, HITS_TO_READ = 1000, 10
HITS_AT_ONCE = 1 << 21
PASSAGES = 10
"""Passages to retrieve per requested document, and the factor by which a search deepens until it has enough."""

Note = Callable[[str], None]
Answer = tuple[Hits, Candidates | None, Mapping[str, Hits]]
"""A query's hits, the hits of each source if several were fused, and the passages of documents."""


class Findings(NamedTuple):
    """Search results: each query's ids and scores, best first, and the hits of all sources if several were fused.

    If hits are documents, also the passages of each document.
    """

    rankings: Sequence[Ranking]
    candidates: Sequence[Candidates] | None = None
    passages: Sequence[Mapping[str, Hits]] | None = None

    def of(self, row: int) -> Answer:
        """Return the answer to the query at `row`."""
        candidates = None if self.candidates is None else self.candidates[row]
        return as_hits(*self.rankings[row]), candidates, {} if self.passages is None else self.passages[row]


class Searcher:
    """Open indexes and runs.

    Args:
        places: Index folders and run files.
        model: The checkpoint that encodes queries, if it is not at the path that the index records.
        options: Indexer options that differ from the options at indexing: under "indexer" for all indexes, under the
            name of an indexer or of an index folder for these indexes only.
        query_length: Maximum tokens per query; None = the limit in each index's manifest or checkpoint.
        backend: The library that runs the query encoders.
        note: Called with messages for the user, one sentence at a time.
        cluster: The Ray cluster whose workers search the indexes; None = this process.
    """

    def __init__(
        self,
        places: Sequence[Place],
        *,
        model: Place | None = None,
        options: Options | None = None,
        precision: Precision = "fp32",
        query_length: int | None = None,
        backend: str = "auto",
        note: Note = lambda _: None,
        cluster: ClusterOptions | None = None,
    ) -> None:
        if not places:
            msg = "there is no index to search. Give one or more index folders."
            raise InputError(msg)
        sources = open_sources([Path(place) for place in places], options or {}, cluster)
        indexes = [source for source in sources if isinstance(source, OpenIndex)]
        self._begin(sources, Encoders(model, indexes, precision, query_length, backend), note)

    @classmethod
    def of(cls, sources: Sequence[Source], encoders: Encoders, note: Note) -> Searcher:
        """Return a searcher over sources that are already open."""
        searcher = cls.__new__(cls)
        searcher._begin(sources, encoders, note)
        return searcher

    def _begin(self, sources: Sequence[Source], encoders: Encoders, note: Note) -> None:
        self.sources = sources
        self.encoders = encoders
        self.note = note
        # Opens the same sources in another process that torchrun started.
        self.elsewhere: Callable[[], Searcher] | None = None
        # Sources that were reported because they cannot compute scores, or lack documents.
        self._without_scores: set[int] = set()
        self._lacking_documents: set[int] = set()
        # True once it was reported that the indexes record no documents of their passages.
        self._without_documents = False
        known = [index for index in self.indexes if "corpus" in index.manifest]
        for index in known[1:]:
            first, second = known[0].manifest["corpus"], index.manifest["corpus"]
            if first["fingerprint"] != second["fingerprint"]:
                home, changed = index.folder.parent, (read_manifest(i.folder) != i.manifest for i in (known[0], index))
                if kind_of(home) == "collection" and ("replacing" in read_manifest(home) or any(changed)):
                    msg = f"'{home}' was being replaced by a sync. Try again, or sync again: rkit sync FOLDER {home}"
                    raise ArtifactError(msg)
                note(
                    f"'{known[0].label}' and '{index.label}' are indexes of different corpora, by their fingerprints: "
                    f"'{first['source']}' and '{second['source']}'."
                )
                break
        if len({source.place.resolve() for source in sources}) < len(sources):
            note("an index or run is listed twice, so its hits count twice. List each once, and set --weights instead.")

    @property
    def indexes(self) -> list[OpenIndex]:
        """The sources that are indexes."""
        return [source for source in self.sources if isinstance(source, OpenIndex)]

    @cached_property
    def documents(self) -> Mapping[str, int]:
        """The documents that rkit cut into the texts of the indexes -> number of passages."""
        documents: dict[str, int] = {}
        for index in self.indexes:
            for document, count in index.documents.items():
                documents[document] = max(count, documents.get(document, 0))
        return documents

    def require_documents(self, corpus: declarations.Place | None) -> None:
        """Look up the documents of passages, for runs in the corpus; note, or refuse, if they are not recorded."""
        if not self.indexes and corpus is not None:
            self.documents = documents_of(open_corpus(str(corpus)))
        if self.documents or self._without_documents:
            return
        do = "rkit convert --passages and rkit sync cut documents into passages, and record it."
        if not self.indexes:
            named = "give the corpus that was searched" if corpus is None else f"'{corpus}' does not record them"
            msg = f"a run has the ids of passages, not of their documents: {named}. {do}"
            raise InputError(msg)
        self._without_documents = True
        labels = ", ".join(f"'{index.label}'" for index in self.indexes)
        self.note(f"no documents are recorded in {labels}, so each text is a hit of its own. {do}")

    @property
    def labels(self) -> list[str]:
        """The display names of the sources."""
        return [source.label for source in self.sources]

    @property
    def identities(self) -> list[str]:
        """A fingerprint of each source."""
        return [source.identity for source in self.sources]

    def note_short_runs(self, depth: int | None) -> None:
        """Report runs that ended before the requested depth; call it after the search."""
        for source in self.sources:
            if isinstance(source, OpenRun) and 0 < source.deepest < (depth or 0):
                self.note(f"the run '{source.label}' ends before rank {depth:,}, the --depth of the fusion.")

    def check_runs(self, queries: Sequence[Query]) -> None:
        """Refuse a run that has none of the queries, or that is the only source."""
        for source in self.sources:
            if not isinstance(source, OpenRun):
                continue
            lacking = [query.id for query in queries if query.id not in source.run]
            if len(self.sources) == 1:
                msg = f"'{source.label}' is a run, but there is nothing to fuse it with. Give an index too."
                raise InputError(msg)
            if len(lacking) == len(queries):
                msg = (
                    f"the run '{source.label}' has none of the {counted(len(queries), 'queries')}: its ids are like "
                    f"'{next(iter(source.run))}', the queries' like '{queries[0].id}'. Give the run of these queries."
                )
                raise InputError(msg)
            if lacking:
                self.note(
                    f"the run '{source.label}' has no hits for {len(lacking):,} of {len(queries):,} queries: "
                    f"{shortlist(lacking, 3)}."
                )

    def queries_of_runs(self) -> list[Query]:
        """Return the queries of the runs, without texts; an index, which needs texts, is refused."""
        if self.indexes:
            msg = f"'{self.indexes[0].label}' is an index to search, but there are no queries. Give queries or a query."
            raise InputError(msg)
        ids = dict.fromkeys(query_id for run in self.sources if isinstance(run, OpenRun) for query_id in run.run)
        return [Query(query_id, "") for query_id in ids]

    def ask(self, queries: Sequence[Query]) -> QueryBatch:
        """Prepare queries for `search`."""
        self.encoders.check()
        return QueryBatch(queries, self.encoders)

    def search(
        self,
        queries: QueryBatch,
        k: int,
        fusion: Fusion | None,
        depth: int | None = None,
        filter: str | None = None,
        documents: DocumentScore | None = None,
    ) -> Findings:
        """Return the k best hits of each query of `ask`: documents if `documents` names a score, else passages.

        A text that was not cut from a document, according to the record of its index, is a document.
        The best `depth` hits of each source are fused: by default 1,000, or k if that is more.
        """
        if documents is not None and self.documents:
            return self._documents(queries, k, fusion, depth, filter, documents)
        if fusion is None:
            return Findings(_rankings(self.sources[0], queries, k, *self.allowed(filter)))
        candidates = self.candidates(queries, k, fusion, depth, filter)
        return Findings([fusion(hits, k) for hits in candidates], candidates)

    def _documents(
        self,
        queries: QueryBatch,
        k: int,
        fusion: Fusion | None,
        depth: int | None,
        filter: str | None,
        score: DocumentScore,
    ) -> Findings:
        """Search for passages, going deeper for each query until it has k documents or no passages are left."""
        deep = max(PASSAGES * k, FUSION_DEPTH if score == "sum" else 0)
        answers: dict[int, tuple[Ranking, Candidates, dict[str, Hits]]] = {}
        waiting = [(list(range(len(queries))), queries, deep)]
        while waiting:
            rows, batch, depth_now = waiting.pop()
            results, incomplete = self.search(batch, depth_now, fusion, depth, filter), list[int]()
            # Passages have their ranks among all passages, even with a single source.
            candidates = results.candidates or [
                gather([ranking], query.id) for ranking, query in zip(results.rankings, batch, strict=True)
            ]
            for number, ranking in enumerate(results.rankings):
                best = by_document(as_hits(*ranking), self.documents, score)[:k]
                if len(ranking[0]) == depth_now and len(best) < k:
                    incomplete.append(number)
                    continue
                passages = {hit.id: hit.passages for hit in best if hit.passages != [(hit.id, hit.score)]}
                documents = [hit.id for hit in best], [hit.score for hit in best]
                answers[rows[number]] = documents, candidates[number], passages
            deeper = depth_now * PASSAGES
            for start in range(0, len(incomplete), size := queries_at_once(deeper, depth)):
                group = incomplete[start : start + size]
                waiting.append(([rows[number] for number in group], batch.take(group), deeper))
        final = [answers[row] for row in range(len(queries))]
        return Findings([hits for hits, _, _ in final], [hits for _, hits, _ in final], [hits for *_, hits in final])

    def candidates(
        self, queries: QueryBatch, k: int, fusion: Fusion, depth: int | None = None, filter: str | None = None
    ) -> list[Candidates]:
        """Return each query's hits of all sources, with the scores that the fusion needs; see `search`."""
        depth = max(k, FUSION_DEPTH) if depth is None else depth
        pairs = zip(self.sources, self.allowed(filter), strict=True)
        rankings = [_rankings(source, queries, depth, allowed) for source, allowed in pairs]
        candidates = [gather([ranking[row] for ranking in rankings], query.id) for row, query in enumerate(queries)]
        if fusion.looks_at_scores and fusion.missing in (None, "computed"):
            for number in range(len(self.sources)):
                self._fill_in(number, queries, candidates, fusion.missing)
        return candidates

    def allowed(self, filter: str | None) -> list[Allowed | None]:
        """Return each source's texts that match a filter, by its own fields or the fields of an index of its corpus."""
        if not filter:
            return [None] * len(self.sources)
        with_fields = [index for index in self.indexes if index.fields is not None]
        of_corpus = {index.manifest.get("corpus", {}).get("fingerprint"): index for index in reversed(with_fields)}
        matching: list[Allowed | None] = []
        for source in self.sources:
            corpus = source.manifest.get("corpus", {}).get("fingerprint") if isinstance(source, OpenIndex) else None
            other = next(iter(with_fields), None) if corpus is None else of_corpus.get(corpus)
            index = source if source in with_fields else other
            if index is None:
                msg = f"'{source.label}' has no fields to filter by: it holds vectors without passages, or an older "
                msg += "version wrote it. Index the passages again, or leave the filter out."
                raise InputError(msg)
            assert index.fields is not None
            texts, notes = passing_texts(index.fields, filter)
            for sentence in notes:
                self.note(sentence)
            matching.append(texts)
        return matching

    def _fill_in(
        self, number: int, queries: QueryBatch, candidates: Sequence[Candidates], missing: Missing | None
    ) -> None:
        """Let a source score the documents that only other sources retrieved."""
        source = self.sources[number]
        lacking = [hits.missing(number) for hits in candidates]
        if number in self._without_scores or not any(lacking):
            return
        try:
            scores = source.scores(queries, lacking)
        except UnsupportedError as error:
            if missing is not None:
                msg = f"'{source.label}' cannot compute the missing scores: {error} Choose another --missing."
                raise UnsupportedError(msg) from error
            self._without_scores.add(number)
            self.note(f"documents that '{source.label}' did not retrieve get its lowest score for the query: {error}")
            return
        for hits, values in zip(candidates, scores, strict=True):
            hits.fill(number, values)
        if number not in self._lacking_documents and any(np.isnan(values).any() for values in scores):
            self._lacking_documents.add(number)
            self.note(f"'{source.label}' lacks documents that others retrieved; they get its lowest score.")


def _rankings(source: Source, queries: QueryBatch, k: int, allowed: Allowed | None) -> list[Ranking]:
    """Return the ids and scores of each query's hits; an index has none for a blank query."""
    if isinstance(source, OpenRun) or isinstance(queries, EncodedBatch):
        return source.rankings(queries, k, allowed)
    rows = [row for row, query in enumerate(queries) if source.form(query.text).strip()]
    if len(rows) == len(queries):
        return source.rankings(queries, k, allowed)
    rankings: list[Ranking] = [([], np.empty(0, dtype=np.float32))] * len(queries)
    for row, ranking in zip(rows, source.rankings(queries.take(rows), k, allowed) if rows else [], strict=True):
        rankings[row] = ranking
    return rankings


def opened(
    places: Sequence[declarations.Place], options: OpenOptions, named: Options | None = None, note: Note = notices.note
) -> Searcher:
    """Open indexes and runs for searching."""
    if "document_length" in options.encoder_options:
        msg = "encoder.document_length has no effect on a search, whose documents are encoded already. Give it to rkit "
        msg += "encode."
        raise OptionError(msg)
    # An index folder may be named "encoder", too.
    rest = {name: value for name, value in options.encoder_options.items() if name != "query_length"}
    settings = {"indexer": options.indexer_options, "encoder": rest, **(named or {})}
    length = options.encoder_options.get("query_length")
    length = None if length is None else convert("encoder.query_length", int, length)
    loaded = options.model if hasattr(options.model, "encode_queries") else None
    if loaded is not None and length is None:
        length = loaded.model.changed.get("query_length")
    searcher = Searcher(
        list(map(Path, places)),
        model=options.model if loaded is None else loaded.source,
        options={name: values for name, values in settings.items() if values},
        precision=options.precision or "fp32",
        query_length=length,
        backend=options.backend,
        note=note,
        cluster=None if options.ray == RANKS else options.cluster,
    )
    if options.ray == RANKS:
        searcher.elsewhere = partial(opened, places, replace(options, ray=None), named)
    encoded = any(index.needs_encoding for index in searcher.indexes)
    check_effect({"precision": options.precision, "encoder.query_length": length}, encoded, "an index of vectors")
    if loaded is not None:
        searcher.encoders.lend(loaded.model, loaded.lock)
    return searcher


def check_effect(options: Mapping[str, object], has_effect: bool, with_: str) -> None:
    """Refuse options that would have no effect."""
    if not has_effect and (named := [name for name, value in options.items() if value is not None]):
        msg = f"{', '.join(named)} has no effect here. Use it with {with_}, or leave it out."
        raise OptionError(msg)


def find(
    searcher: Searcher,
    queries: Sequence[Query] | None,
    k: int,
    fusion: Fusion | None,
    *,
    depth: int | None = None,
    filter: str | None = None,
    documents: DocumentScore | None = None,
    ask: Callable[[Sequence[Query]], QueryBatch] | None = None,
) -> Iterator[tuple[str, Hits]]:
    """Yield each query's id and hits, with one batch in memory.

    Without queries, the runs' queries are used. The hits are documents if `documents` names a score. `ask` prepares a
    batch; by default its texts are encoded. Processes that torchrun started share the batches.
    """
    queries = searcher.queries_of_runs() if queries is None else queries
    searcher.check_runs(queries)
    waiting = batches(queries, k if documents is None else PASSAGES * k, depth)
    search = partial(_hits, (k, fusion, depth, filter, documents))
    if searcher.elsewhere is None:
        rankings: Iterator[list[tuple[str, Hits]]] = (search(searcher, batch, ask and ask(batch)) for batch in waiting)
    else:
        make = partial(opened_elsewhere, searcher.elsewhere, searcher.identities, search)
        rankings = spread_map(make, lambda: waiting, ClusterOptions(ray=RANKS), here=partial(search, searcher))
    for hits in rankings:
        yield from hits
    searcher.note_short_runs(depth)


def _hits(
    options: tuple[Any, ...], searcher: Searcher, batch: Sequence[Query], prepared: QueryBatch | None = None
) -> list[tuple[str, Hits]]:
    rankings = searcher.search(prepared or searcher.ask(batch), *options).rankings
    return [(query.id, as_hits(*hits)) for query, hits in zip(batch, rankings, strict=True)]


def opened_elsewhere(
    opened: Callable[[], Searcher], identities: Sequence[str], search: Callable[[Searcher, Any], Any]
) -> Callable[[Any], Any]:
    """Open the command's sources in another process, and return a function that searches them."""
    try:
        searcher = opened()
    except InputError as error:
        msg = (
            f"on {socket.gethostname()}: {error} Workers open the same paths as the command. Use a shared disk, "
            "also for the output of mining from bm25 or a checkpoint."
        )
        raise ArtifactError(msg) from error
    for source, expected in zip(searcher.sources, identities, strict=True):
        check_same("index", source.place, source.identity, expected)
    return partial(search, searcher)


def batches(queries: Sequence[Query], k: int, depth: int | None) -> Iterator[Sequence[Query]]:
    """Yield the queries in batches of `queries_at_once`, with a progress bar."""
    size = queries_at_once(k, depth)
    with ProgressBar("search", len(queries), unit="queries") as progress:
        for start in range(0, len(queries), size):
            batch = queries[start : start + size]
            yield batch
            progress.advance(len(batch))


def queries_at_once(k: int, depth: int | None = None) -> int:
    """Return the maximum number of queries per batch, whose hits are in memory: fewer if each has many hits."""
    return max(1, min(BATCH_QUERIES, HITS_AT_ONCE // max(k, depth or 0)))


def hit_count(k: Any, default: int) -> int:
    """Validate the number of hits in a request; None = the default."""
    if k is None:
        return default
    if isinstance(k, bool) or not hasattr(k, "__index__") or k < 1:
        msg = f"k is {k!r}, and must be a whole number of hits, at least 1."
        raise OptionError(msg)
    return int(k)


def facets(searcher: Searcher, most: int = 20) -> dict[str, list[tuple[Any, int]]]:
    """Count the texts by the values of each field that has 2 to `most` values, most frequent first."""
    tables = (index.fields for index in searcher.indexes if index.fields is not None)
    return next((table.facets(most) for table in tables), {})


def open_texts(searcher: Searcher, corpus: Place | None = None) -> Corpus | None:
    """Open the corpus with the hits' texts, by default the indexed corpus; None, with a note, if not available."""
    if corpus is not None:
        return open_corpus(corpus)
    problem = "no index is searched"
    for index in searcher.indexes:
        try:
            return corpus_of(index)
        except InputError as error:
            problem = str(error)
    searcher.note(f"the texts are not available: {problem.rstrip('.')}. Give them with --corpus.")
    return None
