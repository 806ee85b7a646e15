"""Trainings: of retrievers, of language models on documents, and of re-rankers."""

from __future__ import annotations

import os
from typing import Any

from retrievalkit.api import given
from retrievalkit.api.mining import Examples
from retrievalkit.api.options import call, options_of
from retrievalkit.api.places import Folder

Place = str | os.PathLike[str]


@options_of("train", without=("model", "examples"))
def train(
    model: Any, examples: Any, *, corpus: Any = None, dev: Any = None, output: Place | None = None, **options: Any
) -> Folder:
    """Train a retriever on examples.

    Args:
        model: The model to start from: a name, a folder, or a loaded `Retriever`, with the pooler it was loaded with.
        examples: Training examples: a file or another source, rows (dicts, a table, a data set), or `Examples`.
        corpus: The passages that the examples name; None = those of `Examples`, or the examples bring their own.
        dev: Held-out examples for selecting the best state.
        output: The checkpoint folder to write.
        **options: Of `rkit train`; `set` has those of parts, such as {"pooler.layers": [4, 6], "warmup_ratio": 0.1}.

    Returns:
        The checkpoint, which `Retriever.load` loads.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
    """
    named = dict(getattr(model, "named", {}))
    settings = named.pop("set", {}) | (options.pop("set", None) or {})
    options = named | options | ({"set": settings} if settings else {})
    return _train("train", model, examples, corpus, {"dev": dev, "output": output} | options)


@options_of("rerank train", without=("model", "examples"))
def train_reranker(
    model: Any, examples: Any, *, corpus: Any = None, dev: Any = None, output: Place | None = None, **options: Any
) -> Folder:
    """Train a cross-encoder on examples with negatives.

    Args:
        model: The encoder to start from: a name or a folder.
        examples: As for `train`, with negatives.
        corpus: As for `train`.
        dev: As for `train`.
        output: The folder to write.
        **options: Of `rkit rerank train`.

    Returns:
        The re-ranker, which `rerank` takes.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
    """
    return _train("rerank train", model, examples, corpus, {"dev": dev, "output": output} | options)


@options_of("pretrain", without=("model", "corpus"))
def pretrain(model: Any, corpus: Any, *, output: Place | None = None, **options: Any) -> Folder:
    """Pre-train a model on documents.

    Args:
        model: The model to start from: a name or a folder.
        corpus: The documents: a file or another source, texts, dicts, a table, a data set.
        output: The folder to write.
        **options: Of `rkit pretrain`; `pretrainer` is the objective.

    Returns:
        The model, which `train` starts from.

    Raises:
        InputError: Something about the input is wrong; nothing was written.
    """
    words = {"model": _place(model), "corpus": given.passages(corpus), "output": output}
    return Folder(_written(output), call("pretrain", words | options))


def _train(command: str, model: Any, examples: Any, corpus: Any, options: dict[str, Any]) -> Folder:
    words = {"model": _place(model), "examples": _examples(examples)}
    if corpus is not None:
        words["corpus"] = given.passages(corpus)
    elif isinstance(examples, Examples) and examples.corpus is not None:
        words["corpus"] = examples.corpus
    if options["dev"] is not None:
        options["dev"] = _examples(options["dev"])
    manifest = call(command, words | options)
    return Folder(_written(options["output"]), manifest)


def _examples(data: Any) -> str:
    return data.address if isinstance(data, Examples) else given.examples(data)


def _place(model: Any) -> Any:
    """The place of a model; a loaded one is read again, as it can only encode."""
    return getattr(model, "source", model)


def _written(output: Place | None) -> str:
    assert output is not None, "the command refuses to run without"
    return os.fspath(output)
