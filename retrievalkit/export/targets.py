"""The targets of an export by name, and what each hands back. Imports nothing heavy: the help lists the names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from retrievalkit.model.retriever import Retriever

TARGETS: Mapping[str, str] = {
    "sentence-transformers": "retrievalkit.export.sentence_transformers",
    "sparse-encoder": "retrievalkit.export.sparse_encoder",
    "pylate": "retrievalkit.export.pylate",
    "pyserini": "retrievalkit.export.pyserini",
    "onnx": "retrievalkit.export.onnx",
}


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What an export is to be.

    Attributes:
        to: A key of `TARGETS`.
        length: Most tokens of a text of either side, in place of the checkpoint's two lengths.
        quantize: Also write the weights as 8-bit integers (onnx).
        texts: A corpus whose vectors state the loss of quantisation.
        queries: Queries that state it as metrics, with `qrels`.
        qrels: Judgements of the queries.
        license: The licence that the model card names, such as "apache-2.0".
        figures: Files of `rkit evaluate --json`, whose figures the model card shows.
    """

    to: str
    length: int | None = None
    quantize: Literal["int8"] | None = None
    texts: str | None = None
    queries: str | None = None
    qrels: str | None = None
    license: str | None = None
    figures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Written:
    """What a target wrote.

    Attributes:
        library: The library that opens it, as the Hugging Face hub names it.
        language: Of `example`.
        example: Code or commands that use the folder, which they call FOLDER.
        notes: What the user has to know.
        tags: Tags of the model card.
        pipeline: The task that the hub shows.
        figures: Measurements, by name.
    """

    library: str
    example: str
    language: Literal["python", "bash"] = "python"
    notes: Sequence[str] = ()
    tags: Sequence[str] = ()
    pipeline: str = "feature-extraction"
    figures: Mapping[str, Any] = field(default_factory=dict)


Write = Callable[["Retriever", Path], Written]


def writer(target: str) -> Write:
    """The function that writes a target."""
    write: Write = importlib.import_module(TARGETS[target]).write
    return write
