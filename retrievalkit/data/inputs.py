"""Conversion of data from Python programs to source addresses: passages, queries, judgements, examples and runs.

Data may be a file or another source (`pydoc:numpy`, `hf:NAME`), or in memory: lists of texts or dicts, dicts by id,
tables (pandas, polars, Arrow), data sets of the package `datasets`, arrays of texts, and our own rows. Rows have the
keys of any known file format (`retrievalkit.data.forms`). Nothing is copied or checked here: rows are read like rows of
files, and errors name the row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import asdict, is_dataclass
from typing import Any

from retrievalkit.data.forms import JUDGED_DOCUMENTS, JUDGED_QUERIES, PASSAGE_IDS, QUERY_IDS
from retrievalkit.data.runs import Hits, open_run
from retrievalkit.data.sources import InMemory
from retrievalkit.errors import DataError, InputError

Row = Mapping[str, Any]

_HIT = {"query_id": JUDGED_QUERIES, "document_id": (*JUDGED_DOCUMENTS, "id"), "score": ("score",)}
_KNOWN = (
    "Give the address of a file or another source, a list of texts or dicts, a dict by id, a table (pandas, polars, "
    "Arrow), or a data set of the package datasets."
)


def passages(data: Any, *, numbered: bool = True) -> str:
    """Return the address of passages; passages without ids are numbered from 0, or refused when read."""
    if isinstance(data, Mapping):
        if (split := next((name for name, value in data.items() if hasattr(value, "column_names")), None)) is not None:
            msg = f"this is a dict of several data sets. Choose a split: data['{split}']."
            raise InputError(msg)
        # Id -> text, or id -> BEIR's dict of title and text.
        data = [
            {"id": name, **(value if isinstance(value, Mapping) else {"text": value})} for name, value in data.items()
        ]
    return _address(data) or InMemory.of("the passages", passages=Rows(data, "passages", PASSAGE_IDS, numbered))


def queries(data: Any) -> str:
    """Return the address of queries; queries without ids, such as plain texts, are numbered from 0."""
    if isinstance(data, Mapping):
        data = [{"id": name, "text": text} for name, text in data.items()]
    # DPR's questions have no ids; their ids are hashes.
    return _address(data) or InMemory.of("the queries", queries=Rows(data, "queries", (*QUERY_IDS, "question")))


def judgements(data: Any) -> str:
    """Return the address of judgements: rows, or a dict query -> document -> grade (or query -> relevant documents)."""
    if isinstance(data, Mapping):
        rows = []
        for query, judged in data.items():
            if isinstance(judged, str) or not isinstance(judged, Iterable):
                msg = f"the judgements of query '{query}' are {judged!r:.80}, but should be a dict document -> grade."
                raise InputError(msg)
            grades = judged if isinstance(judged, Mapping) else dict.fromkeys(judged, 1)
            rows += [{"query_id": query, "doc_id": document, "score": grade} for document, grade in grades.items()]
        data = rows
    return _address(data) or InMemory.of("the judgements", judgements=Rows(data, "judgements"))


def examples(data: Any) -> str:
    """Return the address of training examples."""
    if hasattr(data, "address"):
        address: str = data.address  # rk.Examples
        return address
    return _address(data) or InMemory.of("the examples", examples=Rows(data, "examples"))


def run(data: Any) -> str:
    """Return the address of a run: a file, an `rk.Run`, or any input of `hits`."""
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    address: str = data.address if hasattr(data, "address") else InMemory.of("run", run=hits(data))
    return address


def runs(data: Any) -> tuple[str, ...]:
    """Return the addresses of runs, in a list or by name; in-memory runs with the same name are numbered."""
    if isinstance(data, Mapping) and not hasattr(data, "address"):
        return tuple(InMemory.of(str(name), run=open_run(run(value))) for name, value in data.items())
    items = data if isinstance(data, Iterable) and not isinstance(data, str | Mapping) else [data]
    addresses = [run(item) for item in items]
    in_memory = [address for address in addresses if isinstance(address, InMemory)]
    return tuple(
        InMemory.of(f"{name} {number}", run=name.run)
        if isinstance(name, InMemory) and in_memory.count(name) > 1
        else name
        for number, name in enumerate(addresses, 1)
    )


def hits(data: Any) -> dict[str, Hits]:
    """Return the hits of each query, best first, from a dict query -> hits, a table or rows."""
    if isinstance(data, Mapping):
        return {str(query): _ordered(ranking, str(query)) for query, ranking in data.items()}
    rows: dict[str, list[tuple[Any, Any]]] = {}
    for number, row in enumerate(Rows(data, "run"), 1):
        names = [next((name for name in known if name in row), "") for known in _HIT.values()]
        if not all(names):
            missing = [*_HIT][names.index("")]
            msg = (
                f"the row has no {missing}, but {', '.join(map(str, row))}. Rows have query_id, document_id and score."
            )
            raise DataError(msg, file=InMemory("the run"), line=number)
        query, document, score = (row[name] for name in names)
        rows.setdefault(str(query), []).append((document, score))
    return {query: _ordered(pairs, query) for query, pairs in rows.items()}


def model(value: Any) -> str:
    """Return the path or name of a model; a loaded `rk.Retriever` is read again, because it can only encode."""
    return place(getattr(value, "source", value), "the model")


def with_corpus(values: Mapping[str, Any]) -> dict[str, Any]:
    """Training arguments, with the corpus of `rk.Examples` if no corpus is set."""
    corpus = getattr(values.get("examples"), "corpus", None)
    return {**values, **({"corpus": corpus} if corpus is not None and values.get("corpus") is None else {})}


def place(value: Any, what: str) -> str:
    """Return a path, or a name in place of a path."""
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    msg = f"{what} is {value!r:.80}, but should be a path."
    raise InputError(msg)


def are_vectors(data: Any) -> bool:
    """True if data is vectors, not texts: our `Vectors`, an array of numbers, a tensor or a sparse matrix."""
    if hasattr(data, "representation") or type(data).__module__.partition(".")[0] in ("torch", "scipy"):
        return True
    return getattr(getattr(data, "dtype", None), "kind", "") in ("f", "i", "u") and hasattr(data, "ndim")


class Rows:
    """Rows as dicts, created at every iteration: a data set on disk stays there.

    Args:
        data: A table, a data set, or any iterable.
        what: The kind of the rows, for messages.
        ids: The fields that may hold the id of a row. () = rows are dicts with any fields.
        numbered: True to number texts and rows without an id from 0; False to refuse them.
    """

    def __init__(self, data: Any, what: str, ids: tuple[str, ...] = (), numbered: bool = True) -> None:
        self._data, self._what, self._ids, self._numbered = _iterable(data, what), what, ids, numbered

    def __len__(self) -> int:
        return len(self._data)

    def __iter__(self) -> Iterator[Row]:
        data = self._data
        batches = data.to_batches(max_chunksize=1024) if hasattr(data, "to_batches") else None
        rows = data if batches is None else (row for batch in batches for row in batch.to_pylist())
        for number, value in enumerate(rows):
            yield self._row(number, value)

    def _row(self, number: int, value: Any) -> Row:
        if isinstance(value, str) and self._ids:
            return self._named(number, {"text": value})
        row = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        if isinstance(row, tuple) and hasattr(row, "_asdict"):
            row = row._asdict()  # rows of ir_measures
        if not isinstance(row, Mapping):
            should = "a text or a dict" if self._ids else "a dict"
            msg = f"the row is {value!r:.80}, but should be {should}."
            raise DataError(msg, file=InMemory(f"the {self._what}"), line=number + 1)
        if self._ids and not any(str(name).lower() in self._ids for name in row):
            return self._named(number, row)
        return row

    def _named(self, number: int, row: Row) -> Row:
        if not self._numbered:
            msg = "the row has no id, and its number could replace another text. Pass dicts with 'id' and 'text'."
            raise DataError(msg, file=InMemory(f"the {self._what}"), line=number + 1)
        return {"id": str(number), **row}


def _iterable(data: Any, what: str) -> Any:
    """Convert data to a sized collection that can be iterated any number of times."""
    if hasattr(data, "column_names") and hasattr(data, "features"):
        return data  # a data set: dicts, read from disk
    if hasattr(data, "columns"):
        import pyarrow  # pandas and polars support its interface

        try:
            return pyarrow.table(data)
        except (pyarrow.ArrowException, TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            msg = f"the table of {what} cannot be read: {reason} Give each column values of one type."
            raise InputError(msg) from error
    for values in ("to_pylist", "tolist", "to_list"):
        if hasattr(data, values):
            return getattr(data, values)()
    if isinstance(data, str | bytes | Mapping) or not isinstance(data, Iterable):
        msg = f"cannot read {what} from {type(data).__name__}, which is not a supported type. {_KNOWN}"
        raise InputError(msg)
    return data if isinstance(data, Sized) else list(data)


def _address(data: Any) -> str | None:
    """Return the address or path as text; None for data in memory."""
    if isinstance(data, str):
        # Distinguish a text from a misspelt address, as far as possible.
        if not isinstance(data, InMemory) and len(data.split()) > 1 and ":" not in data and not os.path.exists(data):
            msg = f"'{data:.60}' is not a file, and a single text is read as an address. Pass texts in a list: [text]."
            raise InputError(msg)
        return data
    return os.fspath(data) if isinstance(data, os.PathLike) else None


def _ordered(hits: Any, query: str) -> Hits:
    """Sort the hits by score; ties keep their order."""
    try:
        ordered = [
            (str(document), float(score)) for document, score in (hits.items() if isinstance(hits, Mapping) else hits)
        ]
    except (TypeError, ValueError):
        msg = (
            f"the hits of query '{query}' are {hits!r:.80}. Give a dict document -> score, or (document, score) pairs."
        )
        raise InputError(msg) from None
    if len(dict(ordered)) < len(ordered):
        msg = f"query '{query}' has a document twice. List each once."
        raise InputError(msg)
    return sorted(ordered, key=lambda hit: -hit[1])
