"""Encoding of queries, for each index with the checkpoint that encoded its texts.

Vectors of different checkpoints are not comparable, so any other checkpoint is refused.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from retrievalkit import registry, storage
from retrievalkit.contracts import Text
from retrievalkit.data.queries import Query
from retrievalkit.errors import ArtifactError, InputError, OptionError, UnsupportedError
from retrievalkit.indexing.open_indexes import OpenIndex, locate_input
from retrievalkit.registry.trust import anonymously

if TYPE_CHECKING:
    import numpy as np

    from retrievalkit.contracts import Representation, Side
    from retrievalkit.contracts.backends import QueryEncoder
    from retrievalkit.models.precision import Precision
    from retrievalkit.models.retriever import Retriever


@dataclass
class Encoders:
    """The retrievers that encode queries, loaded on first use."""

    model: str | Path | None
    indexes: Sequence[OpenIndex]
    precision: Precision = "fp32"
    query_length: int | None = None
    backend: str = "auto"
    # Held while a retriever is loaded or used: tokenizers and poolers are not thread-safe.
    lock: threading.RLock = field(default_factory=threading.RLock)
    _loaded: dict[str, Retriever] = field(default_factory=dict)
    _compiled: dict[str, QueryEncoder | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Locate the checkpoint of each index, so that mistakes are reported before any search."""
        if self.backend not in ("auto", "torch"):
            registry.component("backend", self.backend)
        encoded = [index for index in self.indexes if index.needs_encoding]
        if self.model is not None and not encoded:
            msg = f"--model {self.model} encodes queries, but none of the indexes needs that. Leave it out."
            raise OptionError(msg)
        self._fingerprint = None
        if self.model is not None:
            from retrievalkit.models.checkpoint import checkpoint_folder

            self.model = checkpoint_folder(self.model)
            self._fingerprint = _fingerprint_of(self.model)
        if self._fingerprint is not None and not any(self._fits(index) for index in encoded):
            raise _wrong_checkpoint(encoded[0], str(self.model), self._fingerprint)
        self._folders = {
            str(index.folder): self._locate(index)
            for index in encoded
            if index.checkpoint is not None or self.model is not None
        }

    def check(self) -> None:
        """Refuse text queries if the model that encodes them for an index is unknown."""
        for index in self.indexes:
            if index.needs_encoding and index.checkpoint is None and self.model is None:
                msg = f"index '{index.folder}' does not record the checkpoint that encoded it. Set --model to it."
                raise ArtifactError(msg)

    def of(self, index: OpenIndex) -> Retriever:
        """Return the retriever of an index."""
        with self.using(index) as retriever:
            return retriever

    @contextmanager
    def using(self, index: OpenIndex) -> Iterator[Retriever]:
        """Lock and yield the retriever of an index; see `of`."""
        with self.lock:
            self.check()
            folder, key, options = self.place_of(index), self._key(index), self.options_for(index)
            if key not in self._loaded:
                # A place named only by the manifest is untrusted: no token is sent to fetch it.
                with anonymously(folder != str(self.model)):
                    self._loaded[key] = _load(folder, index, options, self.backend)
            retriever = self._loaded[key]
            # Set at each use: a shared retriever also encodes for others.
            retriever.dimensions = self.dimensions_for(index)
            if index.checkpoint is not None and retriever.fingerprint != index.checkpoint["fingerprint"]:
                raise _wrong_checkpoint(index, folder, retriever.fingerprint)
            yield retriever

    def encode(self, index: OpenIndex, texts: Sequence[Text], side: Side) -> Representation:
        """Encode texts with the retriever of an index."""
        with self.using(index) as retriever:
            return retriever.encode(texts, side, precision=self.precision)

    def compiled(self, index: OpenIndex) -> QueryEncoder | None:
        """Return the retriever of an index without torch; None if torch encodes for the index, or is loaded already."""
        size, cut, checkpoint = index.indexer.array_size, self.dimensions_for(index), index.checkpoint
        # A search of several retrievers has no folders of its own.
        known = size and cut is None and self.precision == "fp32" and str(index.folder) in self._folders
        if not known or checkpoint is None:
            return None
        key, identity = self._key(index), [checkpoint["fingerprint"], self.options_for(index)]
        with self.lock:
            if key not in self._compiled and key not in self._loaded:
                from retrievalkit.models.backends import resolve_backend
                from retrievalkit.models.pretrained import locate_model

                model, load = locate_model(self.place_of(index)), partial(self.of, index)
                backend = resolve_backend(self.backend, "cpu")
                self._compiled[key] = None if backend is None else backend.open_queries(model, identity, load)
            return self._compiled.get(key)

    def lend(self, retriever: Retriever, lock: threading.RLock) -> None:
        """Use an already loaded retriever for the indexes that it encoded."""
        encoded, fits = [index for index in self.indexes if index.needs_encoding], False
        for index in encoded:
            if index.checkpoint is not None and index.checkpoint["fingerprint"] != retriever.fingerprint:
                continue
            fits, self.lock = True, lock
            # The fingerprint does not cover the length: for another length, the model is loaded again.
            if self.options_for(index).get("query_length") == retriever.changed.get("query_length"):
                self._loaded[self._key(index)] = retriever
        if not fits:
            raise _wrong_checkpoint(encoded[0], str(self.model), retriever.fingerprint)

    def adopt(self, other: Encoders) -> None:
        """Reuse the retrievers that other encoders loaded, where they match the indexes."""
        self.lock = other.lock
        for index in self.indexes:
            if index.needs_encoding and index.checkpoint is not None:
                loaded = other._loaded.get(key := self._key(index))
                if loaded is not None and loaded.fingerprint == index.checkpoint["fingerprint"]:
                    self._loaded[key] = loaded

    def _key(self, index: OpenIndex) -> str:
        # An untrained model may have been used with several poolers.
        description = (index.checkpoint or {}).get("description")
        return storage.fingerprint_value([self._folders[str(index.folder)], description, self.options_for(index)])

    def place_of(self, index: OpenIndex) -> str:
        """Return the location of an index's model: a folder, or the name of a pretrained model."""
        return self._folders[str(index.folder)]

    def options_for(self, index: OpenIndex) -> dict[str, Any]:
        """Return the encoder options for an index's queries that differ from its model's."""
        recorded = (index.checkpoint or {}).get("encoder_options", {}).get("query_length")
        length = recorded if self.query_length is None else self.query_length
        return {} if length is None else {"query_length": length}

    def dimensions_for(self, index: OpenIndex) -> int | None:
        """Return the number of dimensions to keep of query vectors, as in the index's vectors; None = all."""
        dimensions: int | None = (index.checkpoint or index.manifest).get("dimensions")
        return dimensions

    def _fits(self, index: OpenIndex) -> bool:
        if index.checkpoint is None:
            return True
        if "description" in index.checkpoint:
            return self._fingerprint == ""
        return bool(index.checkpoint["fingerprint"] == self._fingerprint)

    def _locate(self, index: OpenIndex) -> str:
        if self.model is not None and self._fits(index):
            return str(self.model)
        assert index.checkpoint is not None
        try:
            folder = locate_input(index.checkpoint, index.folder)
        except InputError as error:
            msg = f"{error} Set --model to it."
            raise InputError(msg) from error
        if "description" in index.checkpoint:
            # A pretrained model with an untrained pooler.
            from retrievalkit.models.checkpoint import untrained_fingerprint
            from retrievalkit.models.pretrained import locate_model

            described = index.checkpoint["description"]
            folder = folder or str(described["model"])
            # A folder is loaded only if its fingerprint matches: the manifest is untrusted.
            if not os.path.isdir(locate_model(folder)):
                return folder
            fingerprint = untrained_fingerprint(described, folder)
        elif folder is None:
            path = index.checkpoint["path"]
            msg = f"the checkpoint '{path}' of index '{index.folder}' no longer exists. Set --model to its new path."
            raise ArtifactError(msg)
        else:
            fingerprint = _fingerprint_of(folder)
        if fingerprint != index.checkpoint["fingerprint"]:
            raise _wrong_checkpoint(index, folder, fingerprint)
        return folder


class JoinedEncoders(Encoders):
    """The encoders of several searchers; each searcher keeps its own."""

    def __init__(self, parts: Sequence[Encoders]) -> None:
        super().__init__(None, [])
        self.indexes = [index for encoders in parts for index in encoders.indexes]
        self._owners = {id(index.indexer): encoders for encoders in parts for index in encoders.indexes}

    @contextmanager
    def using(self, index: OpenIndex) -> Iterator[Retriever]:
        """Delegate to the index's encoders."""
        with self._owners[id(index.indexer)].using(index) as retriever:
            yield retriever

    def encode(self, index: OpenIndex, texts: Sequence[Text], side: Side) -> Representation:
        """Delegate to the index's encoders."""
        return self._owners[id(index.indexer)].encode(index, texts, side)

    def options_for(self, index: OpenIndex) -> dict[str, Any]:
        """Delegate to the index's encoders."""
        return self._owners[id(index.indexer)].options_for(index)

    def check(self) -> None:
        """Check the encoders of all indexes."""
        for encoders in self._owners.values():
            encoders.check()


@dataclass
class QueryBatch:
    """Queries searched together; each model encodes them once, when the first of its indexes is searched."""

    queries: Sequence[Query]
    encoders: Encoders
    _encoded: dict[str, Representation] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.queries)

    def __iter__(self) -> Iterator[Query]:
        return iter(self.queries)

    def take(self, rows: Sequence[int]) -> Self:
        """Return a subset of the queries, with their encodings."""
        encoded = {key: _rows(queries, rows) for key, queries in self._encoded.items()}
        return replace(self, queries=[self.queries[row] for row in rows], _encoded=encoded)

    def vector_for(self, index: OpenIndex) -> np.ndarray | None:
        """Encode a single query without torch: its vector (1, dim), or None if torch is needed."""
        query = index.formed(self.queries[0].content) if len(self) == 1 else Text("", "")  # "" if it is a vector
        compiled = self.encoders.compiled(index) if query.body else None
        vector = None if compiled is None else compiled.encode([query], "query")
        return vector if vector is not None and vector.shape[1] == index.indexer.array_size else None

    def encoded_for(self, index: OpenIndex) -> Representation | list[str]:
        """Return the queries in the form that an index searches: encoded, or as texts."""
        queries = [index.formed(query.content) for query in self.queries]
        texts = [query.body for query in queries]
        if not index.needs_encoding:
            return texts
        retriever = self.encoders.of(index)
        form = index.manifest.get("text_form")
        differing = [self.encoders.options_for(index), self.encoders.dimensions_for(index), form]
        key = storage.fingerprint_value([retriever.fingerprint, *differing])
        if key not in self._encoded:
            encoded = self.encoders.encode(index, queries, "query")
            for tensor in (encoded.vectors, encoded.weights):
                finite = [True] if tensor is None else tensor.isfinite().flatten(1).all(dim=1).tolist()
                if not all(finite):
                    query = texts[finite.index(False)][:80]
                    msg = f"the encoding of the query {query!r} is not finite. Check the model, or use fp32."
                    raise InputError(msg)
            self._encoded[key] = encoded
        encoded = self._encoded[key]
        return replace(encoded, texts=texts) if index.indexer.reads_texts else encoded


@dataclass
class EncodedBatch(QueryBatch):
    """Queries encoded elsewhere: vectors, for indexes whose vectors come from one model."""

    encoded: Representation = field(kw_only=True)

    def __post_init__(self) -> None:
        """Refuse indexes whose vectors come from different models."""
        indexes = [index for index in self.encoders.indexes if index.needs_encoding]
        if len({(index.checkpoint or {}).get("fingerprint") for index in indexes}) > 1:
            msg = "the indexes were encoded by different models, but queries are vectors of one model. Search each."
            raise UnsupportedError(msg)

    def take(self, rows: Sequence[int]) -> Self:
        """Return a subset of the queries."""
        return replace(self, queries=[self.queries[row] for row in rows], encoded=_rows(self.encoded, rows))

    def encoded_for(self, index: OpenIndex) -> Representation | list[str]:
        """Return the representation of the queries."""
        if not index.needs_encoding:
            msg = f"the index '{index.label}' searches words, but the queries are vectors. Search with texts."
            raise UnsupportedError(msg)
        return self.encoded


def _rows(encoded: Representation, rows: Sequence[int]) -> Representation:
    import torch

    return encoded.rows(torch.tensor(rows))


def _fingerprint_of(model: str | Path) -> str:
    """Return the fingerprint of a checkpoint; "" for an untrained model, which would have to be loaded."""
    from retrievalkit.models.checkpoint import checkpoint_fingerprint, is_checkpoint

    if is_checkpoint(model):
        return checkpoint_fingerprint(model)
    kind = storage.kind_of(model)
    if kind is not None:
        msg = f"--model '{model}' is of kind '{kind}', but must be a checkpoint (rkit train)."
        raise ArtifactError(msg)
    return ""


def _load(folder: str, index: OpenIndex, options: Mapping[str, Any], backend: str) -> Retriever:
    # An index of texts needs no model, and torch takes seconds to import.
    from retrievalkit.models.checkpoint import is_checkpoint, length_explained
    from retrievalkit.models.retriever import Retriever

    if is_checkpoint(folder) or index.checkpoint is None or "description" not in index.checkpoint:
        with length_explained():
            return Retriever.load(folder, backend=backend, encoder_options=options)
    described = {**index.checkpoint["description"], "model": folder}
    try:
        with length_explained():
            return Retriever.from_description(described, backend=backend, encoder_options=options)
    except OptionError as error:
        msg = f"'{index.folder / storage.MANIFEST}' is damaged: {error} Encode and index again."
        raise ArtifactError(msg) from error


def _wrong_checkpoint(index: OpenIndex, folder: str, fingerprint: str) -> ArtifactError:
    assert index.checkpoint is not None
    recorded = f"'{index.checkpoint['path']}' (fingerprint {index.checkpoint['fingerprint'][:12]})"
    loaded = f"'{folder}' (fingerprint {fingerprint[:12] or 'unknown'}): their vectors are not comparable"
    return ArtifactError(f"'{index.folder}' was encoded with {recorded}, not with {loaded}. Set --model to the former.")
