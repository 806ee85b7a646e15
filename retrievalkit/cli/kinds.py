"""Kinds of data that command arguments accept, for error messages about an argument of the wrong kind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import click

from retrievalkit.contracts.declarations import Argument, Command, Reads, mark
from retrievalkit.errors import DataError, InputError, RetrievalkitError
from retrievalkit.registry.component_options import options

_NOTHING = "nothing"
_KINDS = {
    "corpus": "a corpus",
    "collection": "a BEIR folder",
    "queries": "a file of queries",
    "examples": "a file of training examples",
    "qrels": "a file of judgements (qrels)",
    "run": "a run",
    "documents": "text",
    "model": "a model",
    "checkpoint": "a checkpoint",
    "reranker": "a re-ranker",
    "vectors": "a vectors folder",
    "index": "an index",
}
_OF_DATA = ("corpus", "queries", "examples", "qrels", "run")
_MODEL = ("checkpoint", "model", _NOTHING)  # nothing stands for the name of a model on a hub
_ACCEPTED = {
    "passages": ("corpus", "collection", "documents"),
    "queries": ("queries", "examples", "collection"),
    "examples": ("examples", "collection"),
    "judgements": ("qrels", "collection"),
    "run": ("run",),
    "runs": ("run",),
    "model": _MODEL,
    "checkpoint": ("checkpoint",),
    "reranker": ("reranker", "model", _NOTHING),
    "vectors": ("vectors",),
    "index": ("index",),
}
"""Input (a function of `data.inputs`, or a name in `Reads.accepts`) -> kinds of data."""
_WRITERS = {"run": "rkit search", "vectors": "rkit encode", "index": "rkit index", "checkpoint": "rkit train"}


@contextmanager
def explained(context: click.Context, values: Mapping[str, Any]) -> Iterator[None]:
    """Explain a failure of the block that is due to an argument of the wrong kind, or to swapped arguments."""
    try:
        yield
    except InputError as error:
        if getattr(error, "line", None) in (None, 1) and (problem := _problem(context, values, str(error))):
            raise DataError(problem) from error
        raise


def option_for_extra(error: click.UsageError) -> str:
    """Return a sentence with the option that accepts an extra argument; "" for other errors or without an option."""
    extra = re.fullmatch(r"Got unexpected extra argument \((.+)\)", error.message)
    if extra is None or error.ctx is None or (kind := _kind(extra[1])) not in _KINDS:
        return ""
    option = _option_for(kind, error.ctx, error.ctx.params)
    return f"'{extra[1]}' {_is(kind)}. Give it as {option}." if option else ""


def _problem(context: click.Context, values: Mapping[str, Any], message: str) -> str | None:
    wrong = []
    for parameter in context.command.params:
        expected = _expected(str(parameter.name), context)
        if parameter.name == "source" and values.get("add"):
            expected = ("index",)
        value = values.get(str(parameter.name))
        for place in value if isinstance(value, tuple) else (value,):
            if expected and place and type(place) is str and (kind := _kind(place)) and kind not in expected:
                wrong.append((_label(parameter, context), place, kind, expected))
    for label, place, kind, expected in wrong:
        for other, other_place, other_kind, others in wrong:
            if kind in others and other_kind in expected:
                return f"{label} '{place}' {_is(kind)}, and {other} '{other_place}' {_is(other_kind)}. Swap them."
    for label, place, kind, expected in wrong:
        concerns = place in message or not label.startswith("--")
        if kind == "qrels" and concerns and (option := _option_for(kind, context, values)):
            return f"{label} '{place}' {_is(kind)}. Give it as {option}."
        # An example whose positives have an unknown key looks like a query; the original message has the known keys.
        if kind in _OF_DATA and place in message and not (kind == "queries" and "examples" in expected):
            names = [
                f"{_KINDS[name]} ({_WRITERS[name]})" if name in _WRITERS else _KINDS[name]
                for name in expected
                if name not in ("documents", _NOTHING)
            ]
            return f"'{place}' {_is(kind)}, but {label} should be {' or '.join(names)}."
    return None


def _option_for(kind: str, context: click.Context, values: Mapping[str, Any]) -> str | None:
    """Return an unset option that accepts data of this kind."""
    for option in context.command.params:
        name = str(option.name)
        if isinstance(option, click.Option) and values.get(name) is None and kind in _expected(name, context):
            return _label(option, context)
    return None


def _expected(name: str, context: click.Context) -> tuple[str, ...]:
    """Return the kinds of data that a parameter accepts, by its declaration; () if unknown."""
    declared: Command[..., Any, Any] | None = getattr(context.command, "declared", None)
    if declared is None or (option := options(declared.declaration).get(name)) is None:
        return ()
    if name == "output" and mark(option.annotation, Argument):
        return (_NOTHING,)
    if (reads := mark(option.annotation, Reads)) is None:
        return ()
    inputs = reads.accepts or [getattr(reads.convert, "__name__", "")]
    return tuple(kind for known in inputs for kind in _ACCEPTED.get(known, ()))


def _is(kind: str) -> str:
    return "does not exist" if kind == _NOTHING else f"is {_KINDS[kind]}"


def _label(parameter: click.Parameter, context: click.Context) -> str:
    """Return the name of a parameter as a flag, or as in the usage line."""
    name = next((word for word in parameter.opts if word.startswith("--")), "")
    return name or parameter.make_metavar(context).split()[0].strip("[].")


def _kind(place: str) -> str | None:
    """Return the kind of data at a path or source; None if unknown."""
    from retrievalkit import storage
    from retrievalkit.data import kinds, sources

    if place.startswith("package:"):
        return "model"
    if sources.split_prefix(place)[0]:
        return "collection"
    if not os.path.exists(place):
        return _NOTHING
    with suppress(RetrievalkitError, OSError):
        if not os.path.isdir(place):
            return "documents" if sources.as_documents(place) != place else kinds.kind_of(place)
        if (kind := storage.kind_of(place)) in _KINDS:
            return kind
        if kind is None and os.path.lexists(os.path.join(place, storage.MANIFEST)):
            return None  # the command reports why it cannot be read
        if os.path.isfile(os.path.join(place, "config.json")):
            return "model"
        if sources.as_documents(place) != place:
            return "documents"
        opened = sources.open_source(place)
        return "collection" if opened.holds("queries") else "corpus" if opened.holds("passages") else None
    return None
