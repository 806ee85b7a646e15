"""Fields of passages: metadata such as a year, a source or tags, for filtering searches.

    fields.parquet     one row per text: its id in `_id`, and a column for each field

A value is a text, a number, a boolean, or a list of texts. Dates become ISO texts; other values are dropped. A column
that mixes integers and floats becomes float, texts and lists become lists, and any other mixture becomes text.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrievalkit.data.records import HALF_CHARACTER
from retrievalkit.errors import ArtifactError
from retrievalkit.storage import MappedFile

if TYPE_CHECKING:
    import numpy as np

Value = str | int | float | bool | list[str]
FIELDS = "fields.parquet"
_ID = "_id"
_METADATA = ("metadata", "fields")  # of BEIR, and of our own rows
_ROWS = 65_536


def fields_of(values: Mapping[str, Any], known: Collection[str] = ()) -> dict[str, Value]:
    """Return the metadata fields of a record: all except `known` fields, plus the fields in BEIR's `metadata`."""
    fields: dict[str, Value] = {}
    for name, value in values.items():
        if name in _METADATA and isinstance(value, Mapping):
            fields |= fields_of(value)
        elif name not in known and name != _ID and isinstance(name, str) and (converted := _value(value)) is not None:
            fields[name] = converted
    return fields


def _value(value: object) -> Value | None:
    if isinstance(value, str):
        return HALF_CHARACTER.sub("\ufffd", value) or None
    if isinstance(value, int):  # includes bool
        return value if abs(value) < 1 << 63 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, date):  # includes datetime
        return value.isoformat()
    if isinstance(value, list | tuple) and value and all(isinstance(item, str) for item in value):
        return [HALF_CHARACTER.sub("\ufffd", item) for item in value]
    return None


def write_fields(path: Path, rows: Iterable[tuple[str, Mapping[str, Value]]]) -> bool:
    """Write the ids and fields of texts; returns False, and writes nothing, if no text has a field."""
    kinds: dict[str, set[type]] = {}
    # The type of a column is known only after all rows.
    with tempfile.TemporaryFile("w+", encoding="utf-8", dir=path.parent) as spilled:
        for identifier, fields in rows:
            for name, value in fields.items():
                kinds.setdefault(name, set()).add(type(value))
            spilled.write(json.dumps([identifier, dict(fields)]) + "\n")
        if not kinds:
            return False
        import pyarrow
        from pyarrow import parquet

        spilled.seek(0)
        columns = {name: _column_kind(kinds[name]) for name in sorted(kinds)}
        of_arrow = {str: pyarrow.string(), bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64()}
        of_arrow[list] = pyarrow.list_(pyarrow.string())
        types = [(_ID, of_arrow[str]), *((name, of_arrow[kind]) for name, kind in columns.items())]
        with parquet.ParquetWriter(path, pyarrow.schema(types), compression="zstd") as writer:
            while batch := [json.loads(line) for line in islice(spilled, _ROWS)]:
                table: dict[str, list[Any]] = {_ID: [identifier for identifier, _ in batch]}
                for name, kind in columns.items():
                    table[name] = [_as(kind, fields.get(name)) for _, fields in batch]
                writer.write_table(pyarrow.table(table, schema=writer.schema))
    return True


def _column_kind(kinds: set[type]) -> type:
    if len(kinds) == 1:
        return next(iter(kinds))
    return float if kinds == {int, float} else list if kinds == {str, list} else str


def _as(kind: type, value: Value | None) -> Value | None:
    if value is None or isinstance(value, kind):
        return value
    if kind is list:
        return [str(value)]
    if kind is float:
        return float(value)  # type: ignore[arg-type]
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class FieldTable:
    """The fields of the texts in a folder; columns are read on demand, from `file` if it is already open."""

    def __init__(self, path: Path, file: MappedFile | None = None) -> None:
        from pyarrow import ArrowException

        try:
            self._file = file or MappedFile.of(path)
            opened = self._opened()
            opened.schema_arrow.field(_ID)
        except (OSError, KeyError, ArrowException) as error:
            msg = f"'{path}' cannot be read ({error}): it is damaged. Index again."
            raise ArtifactError(msg) from error
        self.names: list[str] = [name for name in opened.schema_arrow.names if name != _ID]
        self._texts = int(opened.metadata.num_rows)
        self._columns: dict[str, tuple[np.ndarray, Any]] = {}

    def _opened(self) -> Any:
        """Open the file for one reader: several threads may search concurrently."""
        from pyarrow import BufferReader, parquet, py_buffer

        return parquet.ParquetFile(BufferReader(py_buffer(self._file.buffer)))

    def __len__(self) -> int:
        return self._texts

    @cached_property
    def ids(self) -> list[str]:
        """The ids of the texts."""
        ids: list[str] = self._opened().read([_ID]).column(_ID).to_pylist()
        return ids

    def values(self, name: str) -> tuple[np.ndarray, Any]:
        """(values,) the row of each value's text, and the values of a field; lists are flattened."""
        if name not in self._columns:
            import numpy as np
            import pyarrow.compute as pc

            column, rows = self._opened().read([name]).column(name).combine_chunks(), np.arange(len(self))
            if str(column.type).startswith("list"):
                column, rows = column.flatten(), pc.list_parent_indices(column).to_numpy()
            valid = np.asarray(column.is_valid())
            self._columns[name] = rows[valid], column.drop_null()
        return self._columns[name]

    def rows(self) -> Iterator[tuple[str, dict[str, Value]]]:
        """Yield the id and the fields of each text."""
        for batch in self._opened().iter_batches(_ROWS):
            for row in batch.to_pylist():
                yield row.pop(_ID), {name: value for name, value in row.items() if value is not None}

    def facets(self, most: int) -> dict[str, list[tuple[Any, int]]]:
        """Return values and text counts of each field with 2 to `most` distinct values, most frequent first."""
        facets = {}
        for name in self.names:
            counts = self.values(name)[1].value_counts()
            if 2 <= len(counts) <= most:
                pairs = [(row["values"], row["counts"]) for row in counts.to_pylist()]
                facets[name] = sorted(pairs, key=lambda pair: (-pair[1], str(pair[0])))
        return facets
