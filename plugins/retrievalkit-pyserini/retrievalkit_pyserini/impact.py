"""The indexer `impact`: learned sparse weights in a Lucene impact index, as integers.

    rkit index VECTORS --indexer impact --output impact
    rkit search impact --queries QUERIES --k 1000 --output impact.trec

The folder holds `lucene/` (an index that Pyserini's LuceneImpactSearcher opens too: its terms are the columns of the
weights, and a term's frequency in a document is its weight, rounded to an integer), `ids.txt` and `impact.json` (the
scale applied to the weights).
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le

from retrievalkit.contracts import Allowed, Indexer, Representation
from retrievalkit.data.vectors import IDS, Ids, VectorStore
from retrievalkit.errors import UnsupportedError
from retrievalkit.scoring import check_k, viewed
from retrievalkit_pyserini.bulk import HITS_IN_A_CALL, lines, strings
from retrievalkit_pyserini.documents import DocumentSearcher, DocumentWriter
from retrievalkit_pyserini.filtering import among, with_ids
from retrievalkit_pyserini.handles import bind, constructor, method, returning, then
from retrievalkit_pyserini.index_folder import INDEX, index_expected, read_settings, undone_on_failure, write_settings
from retrievalkit_pyserini.java import alone, java_class, java_type, processors
from retrievalkit_pyserini.lucene import allow_long_queries
from retrievalkit_pyserini.quantization import Loss, Quantizer
from retrievalkit_pyserini.rescoring import rescored, scores_in_calls

TEXTS_AT_ONCE = 8192

FIELD = "contents"

_SETTINGS = "impact.json"


@dataclass(frozen=True)
class _Settings:
    """Schema of impact.json."""

    scale: float
    vocabulary: int


class Impact(Indexer):
    """Learned sparse retrieval (SPLADE, uniCOIL) with Lucene's impact index; weights are rounded to integers.

    Impact indexes follow Mackenzie et al. (2021, https://arxiv.org/abs/2110.11540). A score is the sum of query weight
    times rounded text weight, on the scale of the original weights; queries are not rounded. A text that shares no term
    with a query is never a hit. The posting lists are compressed and on disk; a query reads the lists of its
    terms. Vectors in the same folder are ignored. Building the index reports the quantisation loss.

    Args:
        bits: Bits per impact: the largest is 2**bits - 1.
        scale: Factor that weights are multiplied by before rounding; none = the largest weight becomes the largest
            impact. If a few weights are far larger than all others, a larger scale rounds the others more finely and
            clips the few.
        sample: Number of texts used as queries over weights and over impacts, to report the share of common hits.
        threads: Threads for searching; none = one per processor. Does not affect hits.
    """

    indexes = "vectors"
    view = "weights"

    _searcher: ImpactSearcher
    _ids: Ids

    def __init__(
        self,
        *,
        bits: Annotated[int, Ge(1), Le(16)] = 8,
        scale: Annotated[float, Gt(0)] | None = None,
        sample: Annotated[int, Ge(0)] = 100,
        threads: Annotated[int, Ge(1)] | None = None,
    ) -> None:
        self.threads = threads or processors()
        self.levels = 2**bits - 1
        self.scale = scale
        # Without a scale, it follows from the largest weight, which differs between segments.
        self.segmented = scale is not None
        self.sample = sample

    @alone
    def build(self, source: VectorStore | Any, index_dir: Path) -> Mapping[str, float]:
        """Round the weights of all texts and index them.

        Returns:
            Counts of "texts", "terms" (impacts above 0), "terms_dropped" (weights rounded to 0), "terms_clipped";
            "relative_error", the change by rounding relative to the total weight; "overlap_at_10", the share of their
            ten nearest texts that the sampled texts keep; "vectors_left_aside", if the folder has vectors.

        Raises:
            UnsupportedError: The folder has no weights, has negative weights, or all weights round to 0.
        """
        folder = Path(index_dir)
        with undone_on_failure(folder):
            return self._build(source, folder)

    def _build(self, source: VectorStore, folder: Path) -> dict[str, float]:
        quantizer = self._quantizer(source)
        rows = np.sort(np.random.default_rng(0).permutation(len(source))[: self.sample])
        loss = Loss(quantizer, source.take(rows).weights, rows)
        with ImpactWriter(folder / INDEX) as writer:
            for block in source.blocks(TEXTS_AT_ONCE):
                impacts = quantizer(block.weights)
                loss.add(block.first, block.weights, impacts)
                writer.add_impacts(block.first, source.ids[block.first : block.first + block.texts], impacts)
            if not loss.terms:
                msg = (
                    f"all weights of '{source.folder}' are 0 when multiplied by {quantizer.scale:g} and rounded. "
                    "Set a larger scale, or leave it out."
                )
                raise UnsupportedError(msg)
        shutil.copyfile(source.folder / IDS, folder / IDS)
        write_settings(folder / _SETTINGS, {"scale": quantizer.scale, "vocabulary": source.vocabulary})
        aside = {"vectors_left_aside": source.rows} if source.dim else {}
        return {"texts": len(source), **loss.report(), **aside}

    def _quantizer(self, source: VectorStore) -> Quantizer:
        if not source.vocabulary:
            msg = (
                f"'{source.folder}' has vectors, but no weights over a vocabulary, which indexer 'impact' needs. "
                "Use --indexer flat or lucene_hnsw, or encode with a model that computes weights."
            )
            raise UnsupportedError(msg)
        least = greatest = 0.0
        for block in source.blocks(TEXTS_AT_ONCE):
            least = min(least, float(block.weights.data.min(initial=0)))
            greatest = max(greatest, float(block.weights.data.max(initial=0)))
        if least < 0:
            msg = f"'{source.folder}' has negative weights, but an impact cannot be below 0. Use --indexer flat."
            raise UnsupportedError(msg)
        if not greatest:
            msg = f"'{source.folder}' has no weights above 0. Encode with a model that computes weights."
            raise UnsupportedError(msg)
        return Quantizer(self.scale or self.levels / greatest, self.levels)

    @alone
    def open(self, index_dir: Path) -> None:
        """Open an index; its folder may have been moved.

        Raises:
            ArtifactError: The index does not exist, or is damaged.
        """
        folder = Path(index_dir)
        with index_expected(folder, "impact", f"its {_SETTINGS} or {IDS} is missing or damaged", "VECTORS"):
            settings = read_settings(folder / _SETTINGS, _Settings)
            self._scale, self._vocabulary = settings.scale, settings.vocabulary
            self._ids = Ids(folder / IDS)
        self._searcher = ImpactSearcher(folder / INDEX, len(self._ids))

    @alone
    def search(self, queries: Representation | Any, k: int) -> tuple[list[list[str]], list[np.ndarray]]:
        """For each query, the best texts, with ties in index order; exact with respect to impacts."""
        return self._search(queries, k)

    @alone
    def search_among(
        self, queries: Representation | Any, k: int, allowed: Allowed
    ) -> tuple[list[list[str]], list[np.ndarray]]:
        """Like `search`, with a filter."""
        return self._search(queries, k, allowed)

    def _search(
        self, queries: Representation, k: int, allowed: Allowed | None = None
    ) -> tuple[list[list[str]], list[np.ndarray]]:
        check_k(k)
        k = min(k, len(self._ids if allowed is None else allowed))
        only = None if allowed is None else with_ids(allowed.ids)
        weights = self._weights_of(queries)
        step = max(1, HITS_IN_A_CALL // k)
        hits: list[tuple[np.ndarray, np.ndarray]] = []
        for start in range(0, weights.shape[0], step):
            hits += self._searcher.rows_and_scores(weights[start : start + step], k, threads=self.threads, only=only)
        return [self._ids.take(rows) for rows, _ in hits], [scores for _, scores in hits]

    @alone
    def scores(self, queries: Representation | Any, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """The scores of the requested texts as in `search`; 0 for a text that shares no term, NaN for an unknown id."""
        weights = self._weights_of(queries)

        def score(start: int, end: int, inside: list[np.ndarray]) -> list[np.ndarray]:
            return self._searcher.scores(weights[start:end], inside, threads=self.threads)

        return scores_in_calls(list(map(self._ids.rows, ids)), score, most=HITS_IN_A_CALL)

    def _weights_of(self, queries: Representation) -> Any:
        """A CSR of the queries' weights, divided by the scale so that scores match the original weights' scores."""
        import scipy.sparse

        weights = viewed(queries, "weights").weights
        assert weights is not None
        weights = scipy.sparse.csr_matrix(weights.float().cpu().numpy())
        if weights.shape[1] != self._vocabulary:
            msg = f"queries have weights over {weights.shape[1]} terms, but documents over {self._vocabulary}."
            raise UnsupportedError(msg)
        if weights.data.min(initial=0) < 0:
            msg = "a query has negative weights, which Lucene cannot search for. Use --indexer flat."
            raise UnsupportedError(msg)
        weights.data = (weights.data / self._scale).astype(np.float32)
        return weights


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
        """Add texts starting at a row, with a CSR of their impacts."""
        self.add(first, ids, then(lines(as_text(impacts)), self._field))


class ImpactSearcher(DocumentSearcher):
    """Searches an index of impacts, many queries at a time."""

    def __init__(self, folder: Path, texts: int) -> None:
        super().__init__(folder, texts)
        _use_impacts(self._searcher)
        allow_long_queries()

    def rows_and_scores(
        self, queries: Any, k: int, *, threads: int, only: Any = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each row of a CSR of query weights, the rows and scores of its best texts, at most k; see `among`."""
        results = self.hits(among(_queries(queries), only), queries.shape[0], k, threads=threads)
        return [(hits[:, 0].astype(np.int64), hits[:, 1].astype(np.float32)) for hits in results]

    def scores(self, queries: Any, rows: Sequence[np.ndarray], *, threads: int) -> list[np.ndarray]:
        """For each row of a CSR of query weights, the scores of the texts with these distinct, ascending rows."""
        return rescored(self._searcher, _queries(queries), rows, threads=threads)


def as_text(impacts: Any) -> str:
    """A line per row of a CSR, such as "37|12 105|3", built by vectorised operations."""
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
    """The numbers from 0 to the last as characters, one row of bytes each."""
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
