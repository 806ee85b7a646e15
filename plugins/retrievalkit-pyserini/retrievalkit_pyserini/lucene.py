"""Writes and searches a Lucene index in bulk: one call into Java per batch of texts or queries.

A call from Python into Java costs about ten microseconds, and reading a hit takes several. Therefore a batch of
queries is a single Java program (see `bulk`), composed of method handles: query text -> Lucene query -> best hits.
Hits are returned as Lucene's document numbers, which `Searcher.ids` maps to ids, so that Lucene need not read a stored
document per hit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit.errors import ArtifactError, RetrievalkitError
from retrievalkit_pyserini.analysis import Analysis
from retrievalkit_pyserini.bulk import best, joining, lucene_errors, run, strings
from retrievalkit_pyserini.documents import IndexWriting, write_buffer
from retrievalkit_pyserini.filtering import among
from retrievalkit_pyserini.handles import as_interface, bind, gather, method, then
from retrievalkit_pyserini.java import java_class, java_path, java_text
from retrievalkit_pyserini.rescoring import TOP, rescored

IDS_IN_A_CALL = 500_000
_CONTRIBUTION = re.compile(r"^ *(\S+) = weight\(contents:(.*) in \d+\) \[", re.MULTILINE)

SPARE = 10
"""One extra hit is requested per this many, because Lucene does not break ties by id."""

ROUNDING = 1e4
CLOSE = np.float32(1e-4)
STEP = np.float32(1e-6)

_SEARCHER, _QUERY = "org.apache.lucene.search.IndexSearcher", "org.apache.lucene.search.Query"

MOST_TERMS = 1 << 20
"""Maximum number of terms per query: a long document is a valid query, and can exceed Lucene's default of 1,024."""


class Writer(IndexWriting):
    """Writes an index with Anserini's indexer."""

    def __init__(self, folder: Path, analysis: Analysis, *, threads: int, term_vectors: bool, store: bool) -> None:
        place = java_path(folder)
        arguments = ["-input", "", "-collection", "JsonCollection", "-index", place, "-threads", str(threads)]
        arguments += analysis.arguments()
        arguments += ["-storeDocvectors"] * term_vectors + ["-storeRaw"] * store
        with lucene_errors(f"start an index in '{folder}'"):
            self._indexer = java_class("io.anserini.index.SimpleIndexer")(arguments)
            writer = self._indexer.writer
            writer.getConfig().setRAMBufferSizeMB(write_buffer())
        # Closed by Lucene's writer: Anserini's close only logs a full disk and continues.
        super().__init__(folder, writer)
        self._analysis, self._threads, self._store = analysis, threads, store

    def add(self, texts: Sequence[tuple[str, str]]) -> None:
        """Add texts as pairs of id and content."""
        documents = self._analysis.documents([contents for _, contents in texts], self._threads)
        rows = []
        for (name, text), document in zip(texts, documents, strict=True):
            # If terms are indexed, they are not the text to store.
            stored = {"text": text} if self._store and document != text else {}
            rows.append(json.dumps({"id": name, "contents": document, **stored}))
        with lucene_errors(f"write the index '{self._folder}'"):
            added = self._indexer.addRawDocuments(rows)
            if added == len(rows):
                return
            # Anserini discards the reason, but Lucene's writer keeps the exception that aborted it.
            reason = self._writer.getTragicException()
        msg = f"Lucene indexed only {added} of the {len(rows)} texts from '{texts[0][0]}' to '{texts[-1][0]}'"
        raise RetrievalkitError(f"{msg}: {reason.toString()}" if reason else msg)


def allow_long_queries() -> None:
    """Allow queries of up to `MOST_TERMS` terms in all subsequent searches."""
    java_class("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(MOST_TERMS)


class Searcher:
    """BM25 search equivalent to Anserini's searcher, many queries at a time."""

    def __init__(self, folder: Path, analysis: Analysis, *, k1: float, b: float) -> None:
        with lucene_errors(f"open the index '{folder}'", ArtifactError):
            searcher = java_class("io.anserini.search.SimpleSearcher")
            self._anserini = searcher(java_path(folder), analysis.analyzer())
            self._anserini.set_bm25(k1, b)
        self._analysis = analysis
        allow_long_queries()

    def __len__(self) -> int:
        return int(self._anserini.get_total_num_docs())

    def close(self) -> None:
        """Close the index's files."""
        self._anserini.close()

    def use_rm3(self, *, terms: int, documents: int, original_weight: float, english_only: bool) -> None:
        """Expand queries by RM3 in all subsequent calls of `ids_and_scores`."""
        self._anserini.set_rm3(None, terms, documents, original_weight, False, english_only)

    def ids(self) -> list[str]:
        """Return the ids of all texts in the order of Lucene's document numbers."""
        read = method("org.apache.lucene.index.StoredFields", "document", "org.apache.lucene.document.Document", int)
        id_of = method("org.apache.lucene.document.Document", "get", "java.lang.String", "java.lang.String")
        read_id = then(bind(read, 0, self._anserini.reader.storedFields()), bind(id_of, 1, "id"))
        function = as_interface("java.util.function.IntFunction", read_id)
        ids: list[str] = []
        with lucene_errors("read the ids of the index"):
            for start in range(0, len(self), IDS_IN_A_CALL):
                numbers = java_class("java.util.stream.IntStream").range(start, min(start + IDS_IN_A_CALL, len(self)))
                ids += numbers.mapToObj(function).collect(joining("\n")).split("\n")
        return ids

    def numbers_and_scores(
        self, queries: Sequence[str], k: int, *, threads: int, only: Any = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the document numbers and float32 scores of each query's best texts, at most k.

        `only` is a Lucene query that restricts the texts; None = all.

        Best first, ties in any order; of texts tied for the last place, the first by id are returned.
        """
        most = min(k + k // SPARE + 1, len(self))
        # Breaking ties by number takes three quarters of the time of ties by id, which Lucene has to read.
        search = method(_SEARCHER, "search", TOP, _QUERY, int)
        search = bind(bind(search, 0, self._anserini.searcher), 1, most)
        hits = self._best(search, queries, threads, only)
        unsure = [
            row for row, (_, scores) in enumerate(hits) if k < most == len(scores) and scores[k - 1] == scores[-1]
        ]
        by_id = self._by_id([queries[row] for row in unsure], k, threads, only)
        for row, ranking in zip(unsure, by_id, strict=True):
            hits[row] = ranking
        return hits

    def _by_id(self, queries: Sequence[str], k: int, threads: int, only: Any) -> list[tuple[np.ndarray, np.ndarray]]:
        """Search like `numbers_and_scores`, with Lucene breaking ties by id."""
        if not queries:
            return []
        types = (_QUERY, int, "org.apache.lucene.search.Sort", bool)
        search = method(_SEARCHER, "search", "org.apache.lucene.search.TopFieldDocs", *types)
        # True: compute the score of each hit in addition to its sort values.
        search = bind(bind(search, 0, self._anserini.searcher), 1, k, self._anserini.BREAK_SCORE_TIES_BY_DOCID, True)
        return self._best(search, queries, threads, only)

    def _best(
        self, search: Any, queries: Sequence[str], threads: int, only: Any
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        results = best(then(among(self._queries(queries, threads), only), search), len(queries), threads)
        return [(hits[:, 0].astype(np.int64), hits[:, 1].astype(np.float32)) for hits in results]

    def few(self, query: str, k: int) -> list[tuple[str, float]]:
        """Return the hits of a query as (id, score) from Anserini's full pipeline, with a few calls into Java per hit.

        For few hits, this takes a fifth of the time of a program for a batch of queries.
        """
        (analyzed,) = self._analysis.queries([query], 1)
        with lucene_errors("search"):
            return [(hit.docid, hit.score) for hit in self._anserini.search(java_text(analyzed), k)]

    def scores(self, queries: Sequence[str], numbers: Sequence[np.ndarray], *, threads: int) -> list[np.ndarray]:
        """Return each query's float32 scores of texts by document number; 0 for texts that share no term."""
        return rescored(self._anserini.searcher, self._queries(queries, threads), numbers, threads=threads)

    def contributions(self, query: str, numbers: Sequence[int | None]) -> list[dict[str, float]]:
        """Return each query term's contribution to documents' scores, largest first; {} for the number None."""
        searcher = self._anserini
        (analyzed,) = self._analysis.queries([query], 1)
        built = searcher.generator.buildQuery("contents", searcher.analyzer, java_text(analyzed))
        with lucene_errors("explain a score"):
            return [{} if number is None else self._contributions(built, number) for number in numbers]

    def _contributions(self, query: Any, number: int) -> dict[str, float]:
        """Parse Lucene's explanation."""
        text = str(self._anserini.searcher.explain(query, number).toString())
        values = {match[2]: float(match[1]) for match in _CONTRIBUTION.finditer(text)}
        return dict(sorted(values.items(), key=lambda item: -item[1]))

    def ids_and_scores(self, queries: Sequence[str], k: int, *, threads: int) -> list[list[tuple[str, float]]]:
        """Return each query's hits as (id, score) from Anserini's full pipeline, including RM3; slower."""
        anserini = "io.anserini.search.SimpleSearcher"
        search = method(anserini, "search", "[Lio.anserini.search.ScoredDoc;", "java.lang.String", int)
        search = bind(bind(search, 0, self._anserini), 1, k)
        results = run(gather(search, strings(self._analysis.queries(queries, threads))), len(queries), threads)
        return [[(name, score) for name, _, score in hits] for hits in results]

    def _queries(self, texts: Sequence[str], threads: int) -> Any:
        """Return a handle (position -> Lucene query) of these texts."""
        build = method(
            "io.anserini.search.query.BagOfWordsQueryGenerator",
            "buildQuery",
            "org.apache.lucene.search.Query",
            "java.lang.String",
            "org.apache.lucene.analysis.Analyzer",
            "java.lang.String",
        )
        texts = self._analysis.queries(texts, threads)
        return then(strings(texts), bind(build, 0, self._anserini.generator, "contents", self._anserini.analyzer))


def part_ties(scores: np.ndarray) -> np.ndarray:
    """Round scores, best first, to four decimals, and lower each by a millionth per tie with the preceding score.

    Computed sequentially in float32, as in Anserini: each score is compared with the preceding, already lowered score.
    """
    parted = rounded(scores)
    position = 0
    for first in np.flatnonzero(parted[:-1] - parted[1:] <= CLOSE) + 1:
        if first < position:
            continue
        position, ties = int(first), 0
        while position < len(parted) and parted[position - 1] - parted[position] <= CLOSE:
            ties += 1
            parted[position] -= STEP * np.float32(ties)
            position += 1
    return parted


def rounded(scores: np.ndarray) -> np.ndarray:
    """Round scores to four decimals, in float32."""
    return (np.floor(scores.astype(np.float64) * ROUNDING + 0.5) / ROUNDING).astype(np.float32)
