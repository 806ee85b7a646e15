"""A Lucene impact index, in which a term's frequency in a document is its weight, rounded to an integer.

Terms are the column numbers of the weights. Anserini's and Pyserini's impact searchers can open the index: a document's
score is the sum over terms of query weight times impact.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit_pyserini.bulk import lines, strings
from retrievalkit_pyserini.documents import DocumentSearcher, DocumentWriter
from retrievalkit_pyserini.handles import bind, constructor, method, returning, then
from retrievalkit_pyserini.java import java_class, java_type
from retrievalkit_pyserini.lucene import allow_long_queries
from retrievalkit_pyserini.rescoring import given_scores

FIELD = "contents"


class ImpactWriter(DocumentWriter):
    """Writes an index of impacts."""

    def __init__(self, folder: Path) -> None:
        options = java_class("java.util.HashMap")
        analyzer = java_class("org.apache.lucene.analysis.custom.CustomAnalyzer").builder()
        analyzer = analyzer.withTokenizer("whitespace", options())
        # The filter reads "37|12" as term 37 with frequency 12.
        analyzer = analyzer.addTokenFilter("delimitedTermFrequency", options()).build()
        super().__init__(folder, _use_impacts, analyzer=analyzer)
        type_ = java_class("org.apache.lucene.document.FieldType")()
        type_.setTokenized(True)
        type_.setOmitNorms(True)
        type_.setIndexOptions(java_class("org.apache.lucene.index.IndexOptions").DOCS_AND_FREQS)
        type_.freeze()
        types = ("java.lang.String", "java.lang.CharSequence", "org.apache.lucene.index.IndexableFieldType")
        self._field = bind(bind(constructor("org.apache.lucene.document.Field", *types), 2, type_), 0, FIELD)

    def add_impacts(self, first: int, ids: Sequence[str], impacts: Any) -> None:
        """Add texts from a row on, with a CSR of their impacts."""
        self.add(first, ids, then(lines(as_text(impacts)), self._field))


class ImpactSearcher(DocumentSearcher):
    """Searches an index of impacts, many queries at a time."""

    def __init__(self, folder: Path, texts: int) -> None:
        super().__init__(folder, texts)
        _use_impacts(self._searcher)
        allow_long_queries()

    def rows_and_scores(self, queries: Any, k: int, *, threads: int) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each row of a CSR of query weights, the rows and scores of its best texts, at most k."""
        found = self.hits(_queries(queries), queries.shape[0], k, threads=threads)
        return [(one[:, 0].astype(np.int64), one[:, 1].astype(np.float32)) for one in found]

    def scores(self, queries: Any, rows: Sequence[np.ndarray], *, threads: int) -> list[np.ndarray]:
        """For each row of a CSR of query weights, the scores of the texts with these distinct, ascending rows."""
        return given_scores(self._searcher, _queries(queries), rows, threads=threads)


def as_text(impacts: Any) -> str:
    """A line for each row of a CSR, such as "37|12 105|3", built by vectorised operations."""
    ends = impacts.indptr[1:] + np.arange(impacts.shape[0])
    entry = np.ones(impacts.nnz + impacts.shape[0], dtype=bool)
    entry[ends] = False
    terms = _numerals(impacts.shape[1] - 1)[impacts.indices]
    levels = _numerals(int(impacts.data.max(initial=0)))[impacts.data]
    wide = terms.shape[1]
    # One row of bytes per entry, padded with zeros that are removed at the end.
    characters = np.zeros((len(entry), wide + levels.shape[1] + 2), dtype=np.uint8)
    characters[entry, :wide] = terms
    characters[entry, wide] = ord("|")
    characters[entry, wide + 1 : -1] = levels
    characters[:, -1] = np.where(entry, ord(" "), ord("\n"))
    return characters[characters > 0].tobytes().decode("ascii")


def _numerals(last: int) -> np.ndarray:
    """The numbers from 0 to the last as characters, a row of bytes each."""
    width = len(str(last))
    return np.arange(last + 1).astype(f"S{width}").view(np.uint8).reshape(-1, width)


def _use_impacts(config: Any) -> None:
    config.setSimilarity(java_class("io.anserini.search.similarity.ImpactSimilarity")())


def _queries(weights: Any) -> Any:
    """The handle (position -> Lucene query) of a CSR of weights."""
    mapper = java_class("com.fasterxml.jackson.databind.ObjectMapper")()
    types = [java_type(name) for name in ("java.util.HashMap", "java.lang.String", "java.lang.Float")]
    parsed = mapper.getTypeFactory().constructMapType(*types)
    read = method(
        "com.fasterxml.jackson.databind.ObjectMapper",
        "readValue",
        object,
        "java.lang.String",
        "com.fasterxml.jackson.databind.JavaType",
    )
    read = returning("java.util.Map", bind(bind(read, 0, mapper), 1, parsed))
    generator = "io.anserini.search.query.BagOfWordsQueryGenerator"
    build = method(generator, "buildQuery", "org.apache.lucene.search.Query", "java.lang.String", "java.util.Map")
    build = bind(build, 0, java_class(generator)(), FIELD)
    return then(then(strings(list(map(json.dumps, _as_maps(weights)))), read), build)


def _as_maps(weights: Any) -> list[dict[int, float]]:
    ends = weights.indptr.tolist()
    terms, values = weights.indices.tolist(), weights.data.tolist()
    return [dict(zip(terms[a:b], values[a:b], strict=True)) for a, b in itertools.pairwise(ends)]
