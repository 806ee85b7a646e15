"""Fields of passages: metadata such as a year, a source or tags, for filtering searches.

A value is a text, a number, a boolean, or a list of these, and keeps its type. Dates and times are texts in ISO format,
as in JSON; `indexing.filter` compares them as dates and times.

    fields.parquet     one row per text: its id in `_id`, its title in `_title`, a column for each common field, and the
                       rare fields in `_rare`

A column of texts, 64-bit integers, floats, booleans or lists of texts has that type. A column of other or of mixed
values has JSON texts, and `json` in its metadata. `_rare` has JSON objects: a field that few texts have would otherwise
be a mostly empty column. The names of rare fields are in the metadata of the file.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from enum import Enum
from functools import cached_property, partial
from itertools import islice
from numbers import Integral, Real
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from uuid import UUID

from retrievalkit.data.json_text import shown
from retrievalkit.data.records import HALF_CHARACTER
from retrievalkit.errors import ArtifactError, shortlist
from retrievalkit.reporting import notices
from retrievalkit.storage import MappedFile

if TYPE_CHECKING:
    import numpy as np

Value = str | int | float | bool | list[str | int | float | bool]
FIELDS = "fields.parquet"
OF_TEXTS = ("id", "title", "document")
"""Ids, titles and documents of texts in filters, unless a field has this name; then as `_id`, `_title`, `_document`."""
_ID, _TITLE, _RARE = "_id", "_title", "_rare"
_TITLES = {"titles": ""}
"""The metadata of the column of titles: an older version may have a field of this name."""
_METADATA = ("metadata", "fields")  # of BEIR, and of our own rows
_ROWS = 65_536
# A field is a column if at least one text in _COMMON has it, so the cells are at most _COMMON times the values.
_COMMON, _MOST_COLUMNS = 16, 256
_MOST_NAMES, _LONGEST_NAME = 65_536, 256
_MOST_NUMBERS = 256  # in a list; more are probably a vector
_MOST_BITS = 1024  # of an integer, as of the largest float
_WORD = 63
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class LeftOut:
    """Counts the values of records that cannot be fields, by field and reason, with an example of each."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], str] = {}

    def see(self, name: object, value: object, reason: str) -> None:
        """Count a value."""
        key = shown(name), reason
        self._counts[key] += 1
        self._examples.setdefault(key, shown(value))

    def report(self, source: str) -> None:
        """Note the number of values that were left out.

        Raises:
            InputError: There are some, and the command is strict.
        """
        if self._counts:
            parts = (f"{self._counts[key]:,} of {key[0]} ({key[1]}: {text})" for key, text in self._examples.items())
            notices.note(
                f"Left out of the fields of '{source}': {shortlist(parts, 5)}. A field is a text, a finite number, "
                "a boolean, a date, a time, or a list of these. Convert the values, or remove them."
            )


def fields_of(
    values: Mapping[Any, Any], known: Collection[str] = (), left_out: LeftOut | None = None
) -> dict[str, Value]:
    """Return the metadata fields of a record: all except `known` fields, plus the fields in BEIR's `metadata`.

    Null and empty values are ignored; `left_out` counts the other values that cannot be fields.
    """
    fields: dict[str, Value] = {}
    left_out = left_out or LeftOut()
    for outer, whole in values.items():
        nested = outer in _METADATA and isinstance(whole, Mapping)
        for name, value in whole.items() if nested else [(outer, whole)]:
            if name in known and not nested:
                continue
            if not isinstance(name, str) or len(name) > _LONGEST_NAME:
                left_out.see(name, value, f"the name is not a text of up to {_LONGEST_NAME} characters")
                continue
            drop = partial(left_out.see, name)
            converted = _value(value, drop)
            if converted is not None and fields.setdefault(_whole(name), converted) != converted:
                drop(value, "the record has another value")
    return fields


def _whole(text: str) -> str:
    return text if text.isascii() else HALF_CHARACTER.sub("\ufffd", text)


def _value(value: Any, drop: Callable[[Any, str], None], *, listed: bool = False) -> Any:
    """Convert a value to a field; None if it is null or empty, or unfit, for which `drop` is called with the reason."""
    value = _plain(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _whole(value) if value or listed else None
    if isinstance(value, int):
        if value.bit_length() <= _MOST_BITS:
            return value
        reason = f"a number of more than {_MOST_BITS} bits"
    elif isinstance(value, float):
        if math.isfinite(value):
            return value
        reason = "not finite"
    elif isinstance(value, list) and not listed:
        items = [item for item in (_value(item, drop, listed=True) for item in value) if item is not None]
        if len(items) <= _MOST_NUMBERS or any(isinstance(item, str) for item in items):
            return items or None
        reason = f"more than {_MOST_NUMBERS} numbers"
    else:
        reason = f"a nested {type(value).__name__}" if isinstance(value, dict | list) else type(value).__name__
    drop(value, reason)
    return None


def _plain(value: Any) -> Any:
    """Convert a value of another type, as of numpy or pandas, to a text, number, boolean or list, if it is like one."""
    if value is None or type(value) in (str, int, float, bool, list):
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, str):
        return "".join(value)
    dtype, dimensions = getattr(value, "dtype", None), getattr(value, "ndim", 0)
    kind = "" if dimensions else getattr(dtype, "kind", "")
    if kind == "M" or isinstance(value, date | time):  # numpy's; includes datetime and pandas' NaT
        text = str(value) if kind else value.isoformat()
        return math.nan if text == "NaT" else text
    if isinstance(value, Decimal):
        whole = value.is_finite() and "." not in str(value) and 0 <= value.adjusted() <= _MOST_BITS
        return int(value) if whole else float(value)
    if isinstance(value, Integral) and kind != "m":
        return int(value)
    if isinstance(value, Real) and kind != "m":
        return float(str(value) if kind else value)  # .1 for numpy's 32-bit .1
    if isinstance(value, UUID | PurePath):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, tuple | list) or dimensions:
        return list(value)
    return value.tolist() if hasattr(value, "tolist") and kind != "m" else value


def write_fields(path: Path, rows: Iterable[tuple[str, str, Mapping[str, Value]]]) -> None:
    """Write the ids, titles and fields of texts."""
    kinds: dict[str, Counter[type | None]] = {}
    texts, beyond = 0, set[str]()
    # The type of a column is known only after all rows.
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=path.parent) as spilled:
        for identifier, title, fields in rows:
            texts += 1
            for name, value in fields.items():
                if name not in kinds and len(kinds) == _MOST_NAMES:
                    beyond.add(name)
                    continue
                kinds.setdefault(name, Counter())[_kind(value)] += 1
            kept = {name: value for name, value in fields.items() if name in kinds} if beyond else dict(fields)
            spilled.write(json.dumps([identifier, title or None, kept]) + "\n")
        if beyond:
            notices.note(
                f"Left out: {len(beyond):,} fields, such as '{min(beyond)}', beyond the first {_MOST_NAMES:,} names. "
                "Store keys as values, for example in a list, instead of as names."
            )
        import pyarrow
        from pyarrow import parquet

        of_arrow = {str: "string", bool: "bool", int: "int64", float: "double", list: pyarrow.list_(pyarrow.string())}
        counts = Counter({name: types.total() for name, types in kinds.items()}).most_common(_MOST_COLUMNS)
        columns = sorted({name for name, count in counts if count * _COMMON >= texts} - {_ID, _TITLE, _RARE})
        schema = [pyarrow.field(_ID, "string"), pyarrow.field(_TITLE, "string", metadata=_TITLES)]
        for name in columns:
            typed = of_arrow.get(next(iter(kinds[name])) or object) if len(kinds[name]) == 1 else None
            marked = None if typed else {"json": ""}
            schema.append(pyarrow.field(name, typed or "string", metadata=marked))
        if rare := sorted(kinds.keys() - {*columns}):
            schema.append(pyarrow.field(_RARE, "string", metadata={"names": _dumps(rare)}))
        spilled.seek(0)
        with parquet.ParquetWriter(path, pyarrow.schema(schema), compression="zstd") as writer:
            while batch := [json.loads(line) for line in islice(spilled, _ROWS)]:
                table: dict[str, list[Any]] = {_ID: [row[0] for row in batch], _TITLE: [row[1] for row in batch]}
                for name in columns:
                    table[name] = [row[2].pop(name, None) for row in batch]
                table |= {_RARE: [row[2] or None for row in batch]} if rare else {}
                for name in (part.name for part in schema[2:] if part.metadata):
                    table[name] = [None if cell is None else _dumps(cell) for cell in table[name]]
                writer.write_table(pyarrow.table(table, schema=writer.schema))


def _kind(value: Value) -> type | None:
    """Return the type of a column of such values; None if it is a column of JSON texts."""
    if isinstance(value, list):
        return list if all(isinstance(item, str) for item in value) else None
    return None if isinstance(value, int) and value.bit_length() > _WORD else type(value)


@dataclass(eq=False)
class Column:
    """The values of a field.

    Attributes:
        parts: Type -> the row of each value's text, (values,) int64, and the values: a numpy array of numbers or
            booleans, an Arrow array of texts. Lists are flattened.
    """

    parts: Mapping[type, tuple[np.ndarray, Any]]
    _parsed: dict[Callable[[str], Any], np.ndarray] = field(default_factory=dict)

    def parsed(self, parse: Callable[[str], Any], kind: str) -> np.ndarray:
        """Return the texts converted by a function, as an array of a numpy type; each distinct text is parsed once."""
        if parse not in self._parsed:
            import numpy as np
            import pyarrow.compute as pc

            texts = self.parts[str][1]
            distinct = texts.unique()
            places = pc.index_in(texts, value_set=distinct).to_numpy()
            self._parsed[parse] = np.array([parse(text) for text in distinct.to_pylist()], dtype=kind)[places]
        return self._parsed[parse]


class FieldTable:
    """The fields of the texts in a folder; columns are read on demand, from the file as it was when it was opened.

    Args:
        path: The file.
        form: Puts a text into the form of the ids, titles and fields.
        document_of: Returns the document that a text was cut from; None if there is none.
    """

    def __init__(self, path: Path, form: Callable[[str], str] = str, document_of: Any = lambda _: None) -> None:
        self._path, self.form, self._document_of = path, form, document_of
        self._columns: dict[str, Column] = {}
        try:
            self._file = MappedFile.of(path)
        except OSError as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> ArtifactError:
        return ArtifactError(f"'{self._path}' cannot be read ({error}): it is damaged. Index again.")

    def _opened(self, metadata: Any = None) -> Any:
        """Open the content for one reader: several threads may search concurrently."""
        import pyarrow
        from pyarrow import parquet

        return parquet.ParquetFile(pyarrow.BufferReader(pyarrow.py_buffer(self._file.buffer)), metadata=metadata)

    @cached_property
    def _metadata(self) -> Any:
        from pyarrow import ArrowException

        try:
            file = self._opened()
            file.schema_arrow.field(_ID)
        except (OSError, KeyError, ArrowException) as error:
            raise self._damaged(error) from error
        return file.metadata

    @cached_property
    def _types(self) -> dict[str, Any]:
        """Name -> Arrow field, of the columns of fields."""
        columns = self._metadata.schema.to_arrow_schema()
        return {part.name: part for part in columns if part.name != _ID and not _holds_titles(part)}

    @cached_property
    def _has_titles(self) -> bool:
        return any(map(_holds_titles, self._metadata.schema.to_arrow_schema()))

    @cached_property
    def _rare(self) -> list[str]:
        """The names of the rare fields."""
        marks = self._types[_RARE].metadata if _RARE in self._types else None
        names: list[str] = json.loads(marks[b"names"]) if marks else []
        return names

    @cached_property
    def names(self) -> list[str]:
        """The names of the fields."""
        return [*(name for name in self._types if not self._rare or name != _RARE), *self._rare]

    def __len__(self) -> int:
        return int(self._metadata.num_rows)

    @cached_property
    def ids(self) -> list[str]:
        """The ids of the texts."""
        ids: list[str] = self._cells(_ID).to_pylist()
        return ids

    def _cells(self, name: str) -> Any:
        return self._opened(self._metadata).read([name]).column(name)

    def column(self, name: str) -> Column:
        """Return the values of a field, kept for the next filter."""
        if name not in self._columns:
            self._columns[name] = self._read(name)
        return self._columns[name]

    def _read(self, name: str) -> Column:
        import numpy as np
        import pyarrow
        import pyarrow.compute as pc

        if name not in self.names:
            return self._read_of_texts(name.removeprefix("_"))
        rare = name in self._rare
        cells = self._cells(_RARE if rare else name)
        if rare or self._types[name].metadata:
            held = pc.match_substring(cells, f"{_dumps(name)}:") if rare else cells.is_valid()
            rows = np.flatnonzero(held.fill_null(False).to_numpy())
            values = json.loads(f"[{','.join(cells.take(rows).to_pylist())}]")
            return Column(_by_type(rows.tolist(), [value.get(name) for value in values] if rare else values))
        rows = np.arange(len(self))
        if pyarrow.types.is_list(cells.type):
            lists = cells.combine_chunks()
            rows, cells = pc.list_parent_indices(lists).to_numpy(), pyarrow.chunked_array([lists.flatten()])
        rows, cells = rows[cells.is_valid().to_numpy()], cells.drop_null()
        kinds = {"int64": int, "double": float, "bool": bool}
        kind = kinds.get(str(cells.type), str)
        return Column({kind: (rows, cells if kind is str else cells.to_numpy())})

    def _read_of_texts(self, name: str) -> Column:
        """Read the titles, the documents, or the ids; a text that was cut from a document has also its id."""
        import numpy as np

        if name == "title":
            if not self._has_titles:
                msg = f"'{self._path}' has no titles: an older version wrote it. Index again to filter by title."
                raise ArtifactError(msg)
            cells = self._cells(_TITLE)
            return Column({str: (np.flatnonzero(cells.is_valid().to_numpy()), cells.drop_null())})
        cut = [(own, self._document_of(own)) for own in self.ids]
        ids: list[Value] = [
            [document or own] if name == "document" or not document else [own, document] for own, document in cut
        ]
        return Column(_by_type(range(len(self)), ids))

    def rows(self) -> Iterator[tuple[str, str, dict[str, Value]]]:
        """Yield the id, the title and the fields of each text."""
        marked = [name for name, part in self._types.items() if part.metadata]
        for batch in self._opened(self._metadata).iter_batches(_ROWS):
            for row in batch.to_pylist():
                values = {name: value for name, value in row.items() if value is not None}
                values |= {name: json.loads(values[name]) for name in marked if name in values}
                rare = values.pop(_RARE, {}) if self._rare else {}
                title = values.pop(_TITLE, "") if self._has_titles else ""
                yield values.pop(_ID), title, values | rare

    def facets(self, most: int) -> dict[str, list[tuple[Any, int]]]:
        """Return values and text counts of each common field with 2 to `most` distinct values, most frequent first.

        Equal numbers, and the text that is written like a number or boolean, which a filter does not distinguish, are
        one value.
        """
        import pyarrow

        facets = {}
        for name in self.names[: len(self.names) - len(self._rare)]:
            counts: dict[str, tuple[Any, int]] = {}
            for kind, (_, values) in sorted(self._read(name).parts.items(), key=lambda part: part[0] is str):
                distinct = (values if kind is str else pyarrow.array(values)).value_counts()
                for pair in distinct.to_pylist() if len(distinct) <= most else ():
                    value = pair["values"]
                    key = _dumps(int(value) if kind is float and value.is_integer() else value).strip('"')
                    first, count = counts.get(key, (value, 0))
                    counts[key] = first, count + pair["counts"]
                if len(distinct) > most:
                    counts = {}
                    break
            if 2 <= len(counts) <= most:
                facets[name] = sorted(counts.values(), key=lambda pair: (-pair[1], str(pair[0])))
        return facets


def _holds_titles(part: Any) -> bool:
    return part.name == _TITLE and b"titles" in (part.metadata or {})


def _by_type(rows: Iterable[int], values: Iterable[Value | None]) -> dict[type, tuple[np.ndarray, Any]]:
    """Flatten lists, and separate the values and their rows by type; null values are left out."""
    import numpy as np
    import pyarrow

    pairs: dict[type, tuple[list[int], list[Any]]] = {}
    for row, value in zip(rows, values, strict=True):
        for item in value if isinstance(value, list) else () if value is None else (value,):
            places, items = pairs.setdefault(type(item), ([], []))
            places.append(row)
            items.append(item)
    parts = {}
    for kind, (places, items) in pairs.items():
        if kind is str:
            array: Any = pyarrow.chunked_array([pyarrow.array(items, pyarrow.string())])
        else:
            large = kind is int and max(map(int.bit_length, items)) > _WORD
            array = np.array(items, dtype=object if large else kind)
        parts[kind] = np.array(places), array
    return parts
