"""Lucene queries restricted to some documents by a FILTER clause on their ids, which does not change scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrievalkit_pyserini.handles import as_interface, bind, constructor, method, supply, then
from retrievalkit_pyserini.java import java_class

_LUCENE = "org.apache.lucene.search"
_BYTES, _BUILDER = "org.apache.lucene.util.BytesRef", f"{_LUCENE}.BooleanQuery$Builder"


def with_ids(ids: Sequence[str]) -> Any:
    """Return a Lucene query for the documents with these ids."""
    texts = java_class("java.lang.String")("".join(f"{document}\n" for document in ids).encode(), "UTF-8").lines()
    as_bytes = as_interface("java.util.function.Function", constructor(_BYTES, "java.lang.CharSequence"))
    return java_class(f"{_LUCENE}.TermInSetQuery")("id", texts.map(as_bytes).toList())


def among(queries: Any, only: Any) -> Any:
    """Restrict a handle (position -> Lucene query) to the documents of another query; None = all."""
    if only is None:
        return queries
    occur = java_class(f"{_LUCENE}.BooleanClause$Occur")
    add = method(_BUILDER, "add", _BUILDER, f"{_LUCENE}.Query", f"{_LUCENE}.BooleanClause$Occur")
    scored = then(queries, supply(bind(add, 2, occur.MUST), constructor(_BUILDER)))
    filtered = then(scored, bind(bind(add, 2, occur.FILTER), 1, only))
    return then(filtered, method(_BUILDER, "build", f"{_LUCENE}.BooleanQuery"))
