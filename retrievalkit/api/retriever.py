"""A model that turns texts into vectors."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from retrievalkit.api.options import options_of, settled
from retrievalkit.api.vectors import Vectors
from retrievalkit.cli.cluster import taken_cluster
from retrievalkit.cli.encode import encode_options
from retrievalkit.contracts import Side
from retrievalkit.data import inputs as given
from retrievalkit.encode import EncodeOptions, encode, encoded_shards
from retrievalkit.errors import OptionError
from retrievalkit.model import retriever as program
from retrievalkit.model.dimensions import note_untrained_dimensions
from retrievalkit.report import notebook

_OF_MODEL = ("encoder", "pooler")
_OF_VECTORS = ("dimensions", "stored")
_OF_CLUSTER = ("ray", "ray_workers", "ray_cpus", "ray_gpus")
_OF_CALL = ("model", "texts", "side", "output", *_OF_MODEL, "set")
_NOT_FLAGS = ("model", "texts", "side", "output", "overwrite", "as_json", "settings")


class Retriever:
    """A loaded model that encodes queries and documents; `Retriever.load` makes it.

    Threads may use it at once: they take turns.

    Attributes:
        source: The folder or the name that it was loaded from.
        model: The loaded towers and the pooler, a torch module.
    """

    def __init__(self, source: str, model: program.Retriever, options: EncodeOptions) -> None:
        self.source = source
        self.model = model
        self.lock = threading.RLock()
        self._options = options

    @classmethod
    @options_of("encode", without=("model", "texts", "side", "output", "overwrite", *_OF_VECTORS, *_OF_CLUSTER))
    def load(cls, model: str | os.PathLike[str], **options: Any) -> Retriever:
        """Load a checkpoint of `rk.train`, or a model of the hub or of sentence-transformers.

        Args:
            model: A folder or a name. A checkpoint holds its own encoder, pooler and options; for another model they
                may be named.
            **options: `encoder`, `pooler` and `set`, for a model that was not trained here; `precision` and
                `batch_tokens`, to encode with where `encode_documents` is not given others.

        Raises:
            InputError: There is no such model, or an option does not fit.
        """
        source = given.place(model, "the model")
        with settled("encode", {"model": source, "texts": "", "output": "", **options}) as values:
            chosen = _settings(values)
            loaded = program.open_retriever(
                source,
                encoder=chosen.encoder,
                pooler=chosen.pooler,
                encoder_options=chosen.encoder_options,
                pooler_options=chosen.pooler_options,
                lean=True,
            )
        return cls(source, loaded, chosen)

    @options_of("encode", without=_OF_CALL)
    def encode_documents(self, texts: Any, output: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Encode passages: vectors in memory, or a vectors folder.

        Args:
            texts: A list of texts or of dicts with `title` and `text`, a dict by id, a table, a data set, or the
                address of a corpus.
            output: The vectors folder to write, for more texts than memory holds; interrupted and called again it
                goes on. None = in memory.
            **options: Of `rkit encode`; `stored`, `ray`, `ray_workers`, `ray_cpus` and `ray_gpus` go with `output`,
                and a Ray cluster encodes texts of files.

        Returns:
            `Vectors`, or the folder as a `Path`.

        Raises:
            InputError: A text is damaged, or an option does not fit.
        """
        return self._encode(given.passages(texts), "document", output, options)

    @options_of("encode", without=_OF_CALL)
    def encode_queries(self, texts: Any, output: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """Encode queries; see `encode_documents`.

        Args:
            texts: A list of texts or dicts, a dict id -> text, a table, a data set, or the address of queries.
            output: The vectors folder to write; None = in memory.
            **options: Of `rkit encode`; `stored`, `ray`, `ray_workers`, `ray_cpus` and `ray_gpus` go with `output`,
                and a Ray cluster encodes texts of files.
        """
        return self._encode(given.queries(texts), "query", output, options)

    def _encode(self, texts: str, side: Side, output: Any, options: dict[str, Any]) -> Vectors | Path:
        overwrite = options.pop("overwrite", None)
        words = {"model": self.source, "texts": texts, "side": side, "output": output or "", "overwrite": overwrite}
        chosen = {"precision": self._options.precision, "batch_tokens": self._options.batch_tokens} | options
        with settled("encode", words | chosen) as values, self.lock:
            cluster = taken_cluster(values)
            settings = _settings(values)
            if output is None:
                if settings.stored is not None:
                    msg = "stored is the number format of a vectors folder. Give output, or leave it out."
                    raise OptionError(msg)
                if cluster is not None:
                    msg = "ray writes a vectors folder. Give output, or leave it out."
                    raise OptionError(msg)
                note_untrained_dimensions(self.source, settings.dimensions)
                shards = encoded_shards(self.model, texts, side, settings)
                return Vectors.joined(shards, settings.dimensions)
            if cluster is not None:
                if not Path(texts).exists():
                    msg = "with ray another process reads the texts. Give a file or a folder of them, or leave it out."
                    raise OptionError(msg)
                parts = ("encoder", "pooler", "encoder_options", "pooler_options")
                settings = replace(settings, **{name: getattr(self._options, name) for name in parts})
            encode(
                self.source,
                texts,
                side=side,
                output=output,
                options=settings,
                overwrite=values["overwrite"],
                opened=self.model,
                cluster=cluster,
            )
            return Path(output)

    @property
    def pooler(self) -> str:
        """The name of the pooler, such as "mean"."""
        return str(self.model.description["pooler"]["name"])

    @property
    def named(self) -> dict[str, Any]:
        """The encoder, the pooler and their options that were given to `load`, as `rk.train` takes them."""
        parts = ("encoder", "pooler", "encoder_options", "pooler_options")
        return {name: value for name in parts if (value := getattr(self._options, name))}

    def __repr__(self) -> str:
        return f"Retriever.load({self.source!r})"

    def _repr_html_(self) -> str:
        parts = [f"{kind} {self.model.description[kind]['name']}" for kind in _OF_MODEL]
        return notebook.lines(f"Retriever {self.source}", [", ".join(parts), f"on {self.model.device}"])


def _settings(values: dict[str, Any]) -> EncodeOptions:
    flags = {name: value for name, value in values.items() if name not in (*_NOT_FLAGS, *_OF_CLUSTER)}
    return encode_options(values["settings"], flags)
