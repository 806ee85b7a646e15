"""The indexer `milvus`: vectors and weights in Milvus, embedded in a folder or on a server or cluster.

    rkit index vectors --indexer milvus --output index
    rkit index vectors --indexer milvus --set uri=http://localhost:19530 --output index

Without a URI, Milvus Lite keeps its files in the index folder. With a URI, the folder contains a reference: the
collection's name and the ids of its texts. Both share the code for building and searching.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt, Le

from retrievalkit.contracts import Allowed, Indexer, Representation
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import ArtifactError, InputError, OptionError, RetrievalkitError, UnsupportedError
from retrievalkit.scoring import best_of_candidates, check_k, is_single, scores_of, viewed
from retrievalkit_milvus.collection import MOST_HITS, Collection, Serving, VectorIndex
from retrievalkit_milvus.layout import FOLDER, MOST_PARTITIONS, VECTOR, WEIGHTS, WORDS, Layout, fingerprint
from retrievalkit_milvus.ranking import Fusion, Ranking, best_texts
from retrievalkit_milvus.server import Connection, check_uri, connect, embedded, embedded_view
from retrievalkit_milvus.writing import Words, analyzer_json, write

MOST_FILTERED = 1 << 16
"""Maximum number of texts that a filter lists; if more texts pass, the search retrieves more hits and filters them."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,239}")


class Milvus(Indexer):
    """Inner-product search with Milvus, embedded in this process or on a server or cluster.

    Supports one or many vectors per text, weights over a vocabulary, vectors and weights together, and queries with
    several vectors (MaxSim). With the index type FLAT, search is exact for queries with a single vector and for queries
    of weights. For queries with several vectors, and for vectors and weights together, each part retrieves candidates,
    which are then scored exactly; texts that no part retrieves are missed.

    The server's token is read from the environment variable MILVUS_TOKEN, or from the file that MILVUS_TOKEN_FILE
    names, and never stored. It is sent only to addresses that the user set, not to addresses of manifests or recipes,
    and to other machines only over https.

    Args:
        uri: Address of a Milvus server, such as http://localhost:19530; "" = Milvus Lite, files in the index folder.
        collection: Name of the collection; "" = derived from the indexed data and the index parameters.
        index_type: Milvus's index of the vectors: FLAT is exact; HNSW, IVF_FLAT, AUTOINDEX and others are approximate.
        parameters: Build parameters as comma-separated NAME=NUMBER pairs, such as "M=16,efConstruction=200".
        search_parameters: Search parameters, such as "nprobe=16" or "ef=200"; ef is 100, or the number of hits.
        view: Part of texts with vectors and weights to store and compare: "all", "vectors" or "weights". An index
            of both can also be searched by either.
        candidates: Minimum number of candidates per part: texts when vectors and weights are compared together, rows
            per vector for queries with several vectors.
        replace: Replace a collection that has the same name but other contents.
        timeout: Seconds to wait for a server when connecting.
        search_timeout: Seconds to wait for a server's response to a search request.
        partitions: Number of partitions, each with a range of the texts; 0 = no partitions.
        search_partitions: Partitions to search, such as "0,2-5"; "" = all.
        consistency: Consistency level of searches on a server: strong, bounded, session, eventually.
        texts: The corpus that the vectors were encoded from, to search its words too (BM25); "" = none.
        analyzer: Milvus analyzer that splits words: standard, english, or its JSON. Milvus Lite has standard and jieba.
        k1: BM25's term frequency saturation: the higher, the longer repetitions of a term add to the score.
        b: BM25's length normalisation, 0 to 1.
        hybrid: Milvus's own fusion of vectors, weights and words: rrf, rrf:60, or weighted:0.7,0.3 with a weight for
            each part of the index, in this order; "" = vectors and weights are summed exactly.
    """

    indexes = "vectors"

    def __init__(
        self,
        *,
        uri: str = "",
        collection: str = "",
        index_type: str = "FLAT",
        parameters: str = "",
        search_parameters: str = "",
        view: Literal["all", "vectors", "weights"] = "all",
        candidates: Annotated[int, Gt(0)] = 1000,
        replace: bool = False,
        timeout: Annotated[float, Gt(0)] = 10.0,
        search_timeout: Annotated[float, Gt(0)] = 120.0,
        partitions: Annotated[int, Ge(0), Le(MOST_PARTITIONS)] = 0,
        search_partitions: str = "",
        consistency: Literal["strong", "bounded", "session", "eventually"] = "strong",
        texts: str = "",
        analyzer: str = "standard",
        k1: Annotated[float, Gt(0)] = 0.9,
        b: Annotated[float, Ge(0), Le(1)] = 0.4,
        hybrid: str = "",
    ) -> None:
        if collection and not _NAME.fullmatch(collection):
            msg = f"option 'collection' is '{collection}', but must be a name of letters, digits and underscores."
            raise OptionError(msg)
        if uri:
            check_uri(uri)
        self.uri = uri
        # On a server, a segment would be a collection that remains when its folder is deleted. Scores of words and
        # ranks depend on all texts.
        self.segmented = not (uri or texts or hybrid)
        self.collection = collection
        built, searched = _numbers("parameters", parameters), _numbers("search_parameters", search_parameters)
        if built.get("M", 2) not in range(2, 2049):
            # Below 2, the library behind Milvus Lite's HNSW crashes the whole process.
            msg = f"the parameter M is {built['M']}, but must be from 2 to 2048."
            raise OptionError(msg)
        self.index = VectorIndex(index_type.strip().upper(), built, searched)
        self.view = view
        self.candidates = candidates
        self.replace = replace
        self.timeout, self.search_timeout = timeout, search_timeout
        self.partitions = partitions
        self.consistency = consistency
        self.serving = Serving(consistency.capitalize(), _ranges(search_partitions))
        self.words = Words(texts, analyzer_json(analyzer), k1, b) if texts else None
        self.fusion = Fusion.parse(hybrid)
        self.reads_texts = self.fusion is not None
        if not uri:
            self._check_server("Milvus Lite, which is used without the option 'uri',")
        self._opened: Collection | None = None
        self._ids: Any = None

    def build(self, source: VectorStore | Any, index_dir: Path) -> Mapping[str, int]:
        """Write the vectors and weights to Milvus, and their layout to the index folder."""
        source = VectorStore(source.folder, view=self.view)
        parts = [self.index.type, self.index.parameters, self.view, self.partitions]
        identity = fingerprint(source.fingerprint, *parts, self.words and self.words.identity)
        layout = Layout.of(
            source,
            identity,
            self.collection or f"rkit_{identity}",
            partitions=min(self.partitions, len(source)),
            analyzer=self.words.analyzer if self.words else "",
        )
        if self.words:
            _check_one_row(layout, "texts")
        connection = self._connect() if self.uri else embedded(index_dir / FOLDER)
        replace = self.replace or not self.uri
        try:
            write(connection, source, layout, self.index, replace=replace, words=self.words)
        finally:
            connection.close()
        layout.write(index_dir, source.ids, index=[self.index.type, self.index.parameters])
        return {"texts": layout.texts, **({"vectors": layout.rows} if layout.dim else {})}

    def open(self, index_dir: Path) -> None:
        """Connect to the collection, or start Milvus Lite on its files."""
        layout, self._ids, built = Layout.read(index_dir, embedded=not self.uri)
        if built != [self.index.type, self.index.parameters]:
            msg = f"'{index_dir}' was built with the index type {built[0]} and the parameters {built[1]}. Set both."
            raise OptionError(msg)
        layout = changed(layout.viewed(self.view), collection=self.collection or layout.collection)
        if (chosen := self.serving.partitions) and chosen[-1] >= layout.partitions:
            known = f"partitions 0 to {layout.partitions - 1}" if layout.partitions else "no partitions"
            msg = f"option 'search_partitions' names {chosen[-1]}, but the index has {known}. Choose others."
            raise OptionError(msg)
        connection = self._connect() if self.uri else embedded_view(index_dir / FOLDER)
        try:
            self._opened = Collection(connection, layout, self.index, self.serving)
        except BaseException as error:
            connection.close()
            if self.uri or isinstance(error, InputError) or not isinstance(error, RetrievalkitError):
                raise
            msg = f"'{index_dir}' is damaged: {error}. Index the vectors again."
            raise ArtifactError(msg) from error

    def search(self, queries: Representation | Any, k: int) -> tuple[list[list[str]], list[np.ndarray]]:
        """Return the best texts: exact with FLAT for queries of one vector or only weights, else among candidates."""
        check_k(k)
        opened, texts = self._collection(), queries.texts
        queries = viewed(queries, self.view).float().to("cpu")
        _check_comparable(queries, opened.layout)
        if self.fusion is not None:
            return self._named(self._fused(queries, texts, min(k, opened.layout.texts, MOST_HITS)))
        k, fields = min(k, opened.layout.texts), opened.layout.fields
        if len(fields) == 1 and (fields[0] == WEIGHTS or is_single(queries)):
            return self._named(best_texts(opened, fields[0], _inputs(queries)[fields[0]], k))
        candidates = self._candidates(queries, max(k, self.candidates))
        return self._named(best_of_candidates(queries, opened, candidates, k))

    def _named(self, rankings: Sequence[Ranking]) -> tuple[list[list[str]], list[np.ndarray]]:
        return [self._ids.take(texts) for texts, _ in rankings], [scores for _, scores in rankings]

    def search_among(
        self, queries: Representation | Any, k: int, allowed: Allowed
    ) -> tuple[list[list[str]], list[np.ndarray]]:
        """Search among the allowed texts; Milvus filters if a query searches a single field with a single vector."""
        opened, viewed_queries = self._collection(), viewed(queries, self.view).float().to("cpu")
        field, *more = opened.layout.fields
        single = not more and self.fusion is None and (field == WEIGHTS or is_single(viewed_queries))
        if not single or len(allowed) > MOST_FILTERED:
            return super().search_among(queries, k, allowed)
        check_k(k)
        _check_comparable(viewed_queries, opened.layout)
        if not (only := np.flatnonzero(allowed.mask(self._ids)).tolist()):
            return [[] for _ in range(len(queries))], [np.empty(0, np.float32) for _ in range(len(queries))]
        return self._named(best_texts(opened, field, _inputs(viewed_queries)[field], min(k, len(only)), only))

    def scores(self, queries: Representation | Any, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Compute the exact scores of texts from the vectors and weights in Milvus."""
        opened = self._collection()
        if self.fusion is not None:
            msg = "option 'hybrid', Milvus's own fusion, has scores for its hits only. Fuse with --fusion rrf instead."
            raise UnsupportedError(msg)
        queries = viewed(queries, self.view).float().to("cpu")
        _check_comparable(queries, opened.layout)
        return scores_of(queries, opened, list(map(self._ids.rows, ids)))

    def _fused(self, queries: Representation, texts: Sequence[str] | None, k: int) -> list[Ranking]:
        """Rank texts by all fields of the index, in Milvus."""
        assert self.fusion is not None
        opened = self._collection()
        layout = opened.layout
        _check_one_row(layout, "hybrid")
        if queries.vectors is not None and not is_single(queries):
            msg = "the queries have several vectors each, which option 'hybrid' does not support. Leave it out."
            raise UnsupportedError(msg)
        inputs = _inputs(queries)
        if layout.analyzer:
            if texts is None:
                msg = "the index searches words too, but the queries are only vectors. Give texts, or drop 'hybrid'."
                raise UnsupportedError(msg)
            inputs[WORDS] = list(texts)
        return self.fusion.rank(opened, inputs, min(max(k, self.candidates), layout.texts, MOST_HITS), k)

    def _candidates(self, queries: Representation, count: int) -> list[np.ndarray]:
        """Return the texts that any part of a query retrieves, in ascending order, for each query."""
        opened = self._collection()
        layout = opened.layout
        if count >= layout.texts:
            chosen = self.serving.partitions
            return [layout.texts_in(chosen) if chosen else np.arange(layout.texts)] * len(queries)
        parts: list[list[np.ndarray]] = [[] for _ in range(len(queries))]
        for field, inputs in _inputs(queries).items():
            if field == WEIGHTS or is_single(queries):
                for query, (texts, _) in enumerate(best_texts(opened, field, inputs, count)):
                    parts[query].append(texts)
                continue
            assert queries.vectors is not None
            mask = torch.ones(queries.vectors.shape[:2]) if queries.vector_mask is None else queries.vector_mask
            hits = opened.nearest(field, inputs, min(count, layout.rows, MOST_HITS))
            for query, (rows, _) in zip(mask.nonzero()[:, 0].tolist(), hits, strict=True):
                parts[query].append(layout.texts_of(rows))
        return [np.unique(np.concatenate(texts)) for texts in parts]

    def _connect(self) -> Connection:
        confirmed = "uri" not in self.from_files
        connection = connect(self.uri, timeout=self.timeout, search_timeout=self.search_timeout, confirmed=confirmed)
        if connection.lite:
            self._check_server(f"{connection.place} is Milvus Lite, which")
        return connection

    def _check_server(self, subject: str) -> None:
        """Refuse an option that only servers support."""
        if self.consistency != "strong":
            msg = f"{subject} has no option 'consistency'. Give the address of a Milvus server, or leave it out."
            raise OptionError(msg)

    def _collection(self) -> Collection:
        assert self._opened is not None, "open comes before search"
        return self._opened


def _numbers(option: str, text: str) -> dict[str, Any]:
    """Parse parameters such as "M=16,efConstruction=200"."""
    values: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = map(str.strip, part.partition("="))
        if not (name and equals and value):
            msg = f"option '{option}' is '{text}', but must be NAME=VALUE pairs with commas: M=16,efConstruction=200."
            raise OptionError(msg)
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


def _ranges(text: str) -> tuple[int, ...]:
    """Parse numbers such as "0,2-5"."""
    numbers: set[int] = set()
    for part in filter(None, map(str.strip, text.split(","))):
        first, dash, last = map(str.strip, part.partition("-"))
        if not first.isdigit() or (dash and not last.isdigit()) or int(last or first) >= MOST_PARTITIONS:
            msg = f"option 'search_partitions' is '{text}', but must be numbers with commas: 0,2-5."
            raise OptionError(msg)
        numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


def _check_one_row(layout: Layout, option: str) -> None:
    if layout.rows != layout.texts:
        msg = f"option '{option}' only applies to texts with one vector each, but these have several. Leave it out."
        raise UnsupportedError(msg)


def _check_comparable(queries: Representation, layout: Layout) -> None:
    sizes = {"vectors": (queries.vectors, layout.dim), "weights": (queries.weights, layout.vocabulary)}
    for part, (tensor, expected) in sizes.items():
        size = 0 if tensor is None else tensor.shape[-1]
        if size != expected:
            msg = f"queries have {part} of size {size}, but the index of size {expected}. Encode both with one model."
            raise UnsupportedError(msg)


def _inputs(queries: Representation) -> dict[str, list[Any]]:
    """Return the search inputs by field: all vectors of all queries, and the terms of each query."""
    inputs: dict[str, list[Any]] = {}
    if queries.vectors is not None:
        vectors, mask = queries.vectors.flatten(0, 1), queries.vector_mask
        vectors = vectors if mask is None else vectors[mask.flatten()]
        inputs[VECTOR] = list(vectors.to(torch.float32).numpy())
    if queries.weights is not None:
        terms = [(row.nonzero().flatten(), row) for row in queries.weights]
        inputs[WEIGHTS] = [dict(zip(at.tolist(), row[at].tolist(), strict=True)) for at, row in terms]
    return inputs
