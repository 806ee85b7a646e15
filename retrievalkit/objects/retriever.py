"""A loaded model for encoding texts."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from retrievalkit import storage
from retrievalkit.contracts import Side
from retrievalkit.contracts.cluster import RayOptions
from retrievalkit.contracts.declarations import Place, ReadingOptions, Reads, method
from retrievalkit.data import inputs
from retrievalkit.errors import ArtifactError, OptionError, UnsupportedError
from retrievalkit.indexing.corpus_encoding import encode, encoded_shards
from retrievalkit.indexing.options import Count, EncodingOptions, ModelOptions, Precision, VectorOptions
from retrievalkit.indexing.vectors import Vectors
from retrievalkit.models import retriever as program
from retrievalkit.models.checkpoint import note_untrained_dimensions
from retrievalkit.models.opening import open_retriever


@dataclass(frozen=True)
class LoadOptions(ModelOptions, ReadingOptions):
    """Options of `Retriever.load`.

    Args:
        model: A folder or a name. A checkpoint has its own encoder, pooler and options; set them for other models.
        precision: Number format for encoding, unless `encode_documents` sets it.
        batch_tokens: Maximum tokens in a batch, unless `encode_documents` sets it.
    """

    model: Annotated[Any, Reads(inputs.model)]
    _: KW_ONLY
    precision: Precision = "auto"
    batch_tokens: Count | None = None


@dataclass(frozen=True)
class DocumentsOptions(VectorOptions, RayOptions, ReadingOptions):
    """Options of `Retriever.encode_documents`; `stored` and the Ray options need `output`.

    Args:
        texts: A list of texts or of dicts with `title` and `text`, a dict by id, a table, a data set, or the address of
            a corpus.
        output: Vectors folder to write, for more texts than fit in memory; an interrupted call resumes when
            repeated. None = in memory.
        overwrite: Replace an existing output folder.
        precision: Number format for encoding; None = as loaded.
        batch_tokens: Maximum tokens in a batch, with padding; None = as loaded.
    """

    texts: Annotated[Any, Reads(inputs.passages)]
    output: Place | None = None
    _: KW_ONLY
    overwrite: bool = False

    @staticmethod
    def adapted(values: Mapping[str, Any]) -> dict[str, Any]:
        """Refuse an output in a store, because the result is a path."""
        if values.get("output") is not None:
            storage.place_of(values["output"])
        return dict(values)


@dataclass(frozen=True)
class QueriesOptions(DocumentsOptions):
    """Options of `Retriever.encode_queries`.

    Args:
        texts: A list of texts or dicts, a dict id -> text, a table, a data set, or the address of queries.
    """

    texts: Annotated[Any, Reads(inputs.queries)]


def _versions(model: program.Retriever) -> list[Any]:
    """Return the numbers of changes of the weights."""
    return [(name, weights._version, weights.dtype) for name, weights in model.state_dict(keep_vars=True).items()]


def _reloaded(options: LoadOptions, fingerprint: str) -> Retriever:
    """Load the model of a pickled `Retriever`."""
    retriever = Retriever(options.model, open_retriever(options.model, **options.parts), options)
    if retriever.model.fingerprint != fingerprint:
        msg = f"'{options.model}' has changed since the retriever was pickled. Load it again, and pickle that."
        raise ArtifactError(msg)
    return retriever


class Retriever:
    """A loaded model that encodes queries and documents; create it with `Retriever.load`.

    Several threads may use it: they take turns.

    Attributes:
        source: The folder or name of the model.
        model: The loaded towers and the pooler, a torch module.
    """

    def __init__(self, source: str, model: program.Retriever, options: LoadOptions) -> None:
        self.source = source
        self.model = model
        self.lock = threading.RLock()
        self._options = options
        self._loaded = _versions(model)

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process loads the model again, and refuses another model.
        if _versions(self.model) != self._loaded:
            msg = f"the weights of '{self.source}' were changed in memory, so another process cannot load them. "
            msg += "Save the model to a folder, and load it from there."
            raise UnsupportedError(msg)
        source = os.path.abspath(self.source) if os.path.exists(self.source) else self.source
        return _reloaded, (replace(self._options, model=source), self.model.fingerprint)

    def __copy__(self) -> Retriever:
        """Return a retriever that shares the model."""
        copied = object.__new__(Retriever)
        copied.__dict__ |= self.__dict__
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Retriever:
        """Return a retriever with a model of its own."""
        return Retriever(self.source, copy.deepcopy(self.model, memo), self._options)

    @classmethod
    @method(LoadOptions)
    def load(cls, options: LoadOptions) -> Retriever:
        """Load a checkpoint of `rk.train`, a hub model or a sentence-transformers model.

        Raises:
            InputError: The model does not exist, or an option is invalid.
        """
        return cls(options.model, open_retriever(options.model, **options.parts), options)

    @method(DocumentsOptions)
    def encode_documents(self, options: DocumentsOptions) -> Any:
        """Encode passages: vectors in memory, or a vectors folder.

        Returns:
            `Vectors`, or the folder as a `Path`.

        Raises:
            InputError: A text is damaged, or an option is invalid.
        """
        return self._encode(options, "document")

    @method(QueriesOptions)
    def encode_queries(self, options: QueriesOptions) -> Any:
        """Encode queries; see `encode_documents`."""
        return self._encode(options, "query")

    def _encode(self, options: DocumentsOptions, side: Side) -> Vectors | Path:
        cluster, output = options.cluster, options.output
        # This process has loaded the model; workers of a cluster load it themselves.
        parts = {} if cluster is None else self._options.parts
        encoding = EncodingOptions(
            precision=options.precision or self._options.precision,
            dimensions=options.dimensions,
            compressor=options.compressor,
            stored=options.stored,
            batch_tokens=options.batch_tokens or self._options.batch_tokens,
            shard_texts=options.shard_texts,
            **parts,
        )
        with self.lock:
            if output is not None:
                encode(
                    self.source,
                    options.texts,
                    side=side,
                    output=Path(output),
                    options=encoding,
                    overwrite=options.overwrite,
                    opened=self.model,
                    cluster=cluster,
                )
                return Path(output)
            if options.stored is not None or options.compressor is not None or cluster is not None:
                msg = "compressor, stored and ray apply to a vectors folder. Set output, or leave them out."
                raise OptionError(msg)
            note_untrained_dimensions(self.source, options.dimensions)
            return Vectors.joined(encoded_shards(self.model, options.texts, side, encoding), options.dimensions)

    @property
    def pooler(self) -> str:
        """The name of the pooler, such as "mean"."""
        return str(self.model.description["pooler"]["name"])

    @property
    def named(self) -> dict[str, Any]:
        """The encoder, pooler and options passed to `load`, as arguments of `rk.train`."""
        return {name: value for name, value in self._options.parts.items() if value and name != "backend"}

    def __repr__(self) -> str:
        return f"Retriever.load({self.source!r})"
