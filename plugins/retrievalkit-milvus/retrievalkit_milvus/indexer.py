"""The indexer `milvus`: vectors and weights in Milvus, embedded in a folder or on a server or cluster.

    rkit index vectors --indexer milvus --output index
    rkit index vectors --indexer milvus --set uri=http://localhost:19530 --output index

Without a URI, Milvus Lite keeps its files in the index folder. With a URI, the folder holds a reference: the
collection's name and the ids of its texts. Both share the code for building and searching.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from retrievalkit.contracts import Indexer, Representation
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import ArtifactError, InputError, OptionError, RetrievalkitError, UnsupportedError
from retrievalkit.score import best_of_candidates, check_k, is_single, scores_of, viewed
from retrievalkit_milvus.collection import MOST_HITS, Collection, VectorIndex, write
from retrievalkit_milvus.layout import FOLDER, VECTOR, WEIGHTS, Layout, fingerprint
from retrievalkit_milvus.ranking import best_texts
from retrievalkit_milvus.server import Connection, check_uri, connect, embedded, embedded_view

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,239}")


class Milvus(Indexer):
    """Inner-product search with Milvus, embedded in this process or on a server or cluster.

    Supports one or many vectors per text, weights over a vocabulary, vectors and weights together, and queries with
    several vectors (MaxSim). With the index type FLAT, search is exact for queries with a single vector and for queries
    of weights. For queries with several vectors, and for vectors and weights together, each part retrieves candidates,
    which are then scored exactly; texts that no part retrieves are missed.

    The server's token is read from the environment variable MILVUS_TOKEN, and never stored. It is sent to addresses
    that the user gave, never to one that only a manifest or a recipe names, and beyond this machine only over https.

    Args:
        uri: Address of a Milvus server, such as http://localhost:19530; "" = Milvus Lite, files in the index folder.
        collection: Name of the collection; "" = derived from the indexed data and the index parameters.
        index_type: Milvus's index of the vectors: FLAT is exact; HNSW, IVF_FLAT, AUTOINDEX and others are approximate.
        parameters: Build parameters as comma-separated NAME=NUMBER pairs, such as "M=16,efConstruction=200".
        search_parameters: Search parameters, such as "nprobe=16" or "ef=200"; ef is raised to the number of hits.
        view: Which part of texts with vectors and weights to store and compare: "all", "vectors" or "weights". An index
            of both can also be searched by either.
        candidates: Minimum number of candidates per part: texts when vectors and weights are compared together, rows
            per vector for queries with several vectors.
        batch: Rows per request when building the index.
        replace: Replace a collection of the same name that has other contents.
        timeout: Seconds to wait for a server when connecting.
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
        candidates: int = 1000,
        batch: int = 2000,
        replace: bool = False,
        timeout: float = 10.0,
    ) -> None:
        for name, value in (("candidates", candidates), ("batch", batch), ("timeout", timeout)):
            _check(value > 0, f"option '{name}' of indexer 'milvus' is {value}, and must be above 0.")
        fitting = not collection or _NAME.fullmatch(collection)
        rule = "of letters, digits and underscores, not start with a digit, and have 240 characters at most"
        _check(bool(fitting), f"option 'collection' is '{collection}', and must consist {rule}.")
        if uri:
            check_uri(uri)
        self.uri = uri
        # A segment on a server would be another collection there, which nobody removes with the folder.
        self.segmented = not uri
        self.collection = collection
        built, searched = _numbers("parameters", parameters), _numbers("search_parameters", search_parameters)
        # Below 2, the library behind Milvus Lite's HNSW crashes the whole process.
        _check(built.get("M", 2) in range(2, 2049), f"the parameter M is {built.get('M')}, and must be from 2 to 2048.")
        self.index = VectorIndex(index_type.strip().upper(), built, searched)
        self.view = view
        self.candidates = candidates
        self.batch = batch
        self.replace = replace
        self.timeout = timeout
        self._opened: Collection | None = None
        self._ids: Any = None

    def build(self, source: VectorStore | Any, index_dir: Path) -> Mapping[str, int]:
        """Write the vectors and weights to Milvus, and their layout to the index folder."""
        source = VectorStore(source.folder, view=self.view)
        identity = fingerprint(source.fingerprint, self.index.type, self.index.parameters, self.view)
        layout = Layout.of(source, identity, self.collection or f"rkit_{identity}")
        if self.uri:
            connection = self._connect()
            try:
                write(connection, source, layout, self.index, batch=self.batch, replace=self.replace)
            finally:
                connection.close()
        else:
            with embedded(index_dir / FOLDER) as connection:
                write(connection, source, layout, self.index, batch=self.batch, replace=True)
        layout.write(index_dir, source.ids, index=[self.index.type, self.index.parameters])
        return {"texts": layout.texts, **({"vectors": layout.rows} if layout.dim else {})}

    def open(self, index_dir: Path) -> None:
        """Connect to the collection, or start Milvus Lite over its files."""
        layout, self._ids, built = Layout.read(index_dir, embedded=not self.uri)
        if built != [self.index.type, self.index.parameters]:
            msg = f"'{index_dir}' was built with another index type or other parameters. To change these, index again."
            raise OptionError(msg)
        layout = changed(layout.viewed(self.view), collection=self.collection or layout.collection)
        connection = self._connect() if self.uri else embedded_view(index_dir / FOLDER)
        try:
            self._opened = Collection(connection, layout, self.index)
        except BaseException as error:
            connection.close()
            if self.uri or isinstance(error, InputError) or not isinstance(error, RetrievalkitError):
                raise
            msg = f"'{index_dir}' is damaged: {error}. Index the vectors again."
            raise ArtifactError(msg) from error

    def search(self, queries: Representation | Any, k: int) -> tuple[list[list[str]], list[np.ndarray]]:
        """The best texts: exact with FLAT for queries of one vector or only weights, otherwise among candidates."""
        check_k(k)
        opened = self._collection()
        queries = viewed(queries, self.view).float().to("cpu")
        _check_comparable(queries, opened.layout)
        k, fields = min(k, opened.layout.texts), opened.layout.fields
        if len(fields) == 1 and (fields[0] == WEIGHTS or is_single(queries)):
            found = best_texts(opened, fields[0], _asked(queries)[fields[0]], k)
        else:
            found = best_of_candidates(queries, opened, self._candidates(queries, max(k, self.candidates)), k)
        return [self._ids.take(texts) for texts, _ in found], [scores for _, scores in found]

    def scores(self, queries: Representation | Any, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """The exact scores of given texts, computed from the vectors and weights stored in Milvus."""
        opened = self._collection()
        queries = viewed(queries, self.view).float().to("cpu")
        _check_comparable(queries, opened.layout)
        return scores_of(queries, opened, [self._ids.rows(one) for one in ids])

    def _candidates(self, queries: Representation, wanted: int) -> list[np.ndarray]:
        """For each query, the texts that any of its parts retrieves, in ascending order."""
        opened, layout = self._collection(), self._collection().layout
        if wanted >= layout.texts:
            return [np.arange(layout.texts)] * len(queries)
        parts: list[list[np.ndarray]] = [[] for _ in range(len(queries))]
        for field, asked in _asked(queries).items():
            if field == WEIGHTS or is_single(queries):
                for query, (texts, _) in enumerate(best_texts(opened, field, asked, wanted)):
                    parts[query].append(texts)
                continue
            hits = opened.nearest(field, asked, min(wanted, layout.rows, MOST_HITS))
            for query, (rows, _) in zip(_owners(queries), hits, strict=True):
                parts[query].append(layout.texts_of(rows))
        return [np.unique(np.concatenate(one)) for one in parts]

    def _connect(self) -> Connection:
        return connect(self.uri, timeout=self.timeout, confirmed="uri" not in self.from_files)

    def _collection(self) -> Collection:
        assert self._opened is not None, "open comes before search"
        return self._opened


def _check(fitting: bool, problem: str) -> None:
    if not fitting:
        raise OptionError(problem)


def _numbers(option: str, text: str) -> dict[str, Any]:
    """Parse parameters such as "M=16,efConstruction=200"."""
    values: dict[str, Any] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, equals, value = (one.strip() for one in part.partition("="))
        if not (name and equals and value):
            msg = f"option '{option}' is '{text}', and must be NAME=VALUE pairs with commas: M=16,efConstruction=200."
            raise OptionError(msg)
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value
    return values


def _check_comparable(queries: Representation, layout: Layout) -> None:
    sizes = {"vectors": (queries.vectors, layout.dim), "weights": (queries.weights, layout.vocabulary)}
    for what, (tensor, size) in sizes.items():
        has = 0 if tensor is None else tensor.shape[-1]
        if has != size:
            msg = f"queries have {what} of size {has} and the index has {size}. Encode both with the same model."
            raise UnsupportedError(msg)


def _asked(queries: Representation) -> dict[str, list[Any]]:
    """The search inputs by field: all vectors of all queries, and the terms of each query."""
    asked: dict[str, list[Any]] = {}
    if queries.vectors is not None:
        vectors, mask = queries.vectors.flatten(0, 1), queries.vector_mask
        vectors = vectors if mask is None else vectors[mask.flatten()]
        asked[VECTOR] = list(vectors.to(torch.float32).numpy())
    if queries.weights is not None:
        terms = [(one.nonzero().flatten(), one) for one in queries.weights]
        asked[WEIGHTS] = [dict(zip(at.tolist(), one[at].tolist(), strict=True)) for at, one in terms]
    return asked


def _owners(queries: Representation) -> list[int]:
    """The query that each vector of `_asked` belongs to."""
    assert queries.vectors is not None
    mask = torch.ones(queries.vectors.shape[:2]) if queries.vector_mask is None else queries.vector_mask
    owners: list[int] = mask.nonzero()[:, 0].tolist()
    return owners
