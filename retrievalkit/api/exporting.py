"""Models and vectors in the forms of other libraries."""

from __future__ import annotations

import os
from typing import Any

from retrievalkit.api.index import Index
from retrievalkit.api.options import call, options_of
from retrievalkit.artifacts.folder import Folder
from retrievalkit.data import inputs as given

Place = str | os.PathLike[str]


@options_of("export", without=("source", "output"))
def export(
    source: Place | Index,
    output: Place | None = None,
    *,
    to: str | None = None,
    texts: Any = None,
    queries: Any = None,
    qrels: Any = None,
    **options: Any,
) -> Folder:
    """Write a model as another library opens it, or for Pyserini vectors or an index.

    Args:
        source: A checkpoint, the name or folder of a model, a vectors folder, or an index.
        output: The folder to write.
        to: The library that is to open it, such as "sentence-transformers"; "onnx".
        texts: The passages on whose vectors the loss of `quantize` is stated.
        queries: Queries, to state it as metrics too.
        qrels: The judgements of the queries.
        **options: Of `rkit export`.

    Returns:
        The folder; its manifest has the `figures` of a quantisation, `notes`, and with `push` what is uploaded.

    Raises:
        InputError: The target cannot say what the source does, or an option is not the target's.
    """
    words = {
        "source": source.folder if isinstance(source, Index) else given.place(source, "the source"),
        "output": None if output is None else given.place(output, "the output"),
        "to": to,
        "texts": None if texts is None else given.passages(texts),
        "queries": None if queries is None else given.queries(queries),
        "qrels": None if qrels is None else given.judgements(qrels),
    }
    manifest = call("export", words | options)
    return Folder(str(words["output"]), manifest)
