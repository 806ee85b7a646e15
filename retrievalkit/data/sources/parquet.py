"""Parquet files, whose columns have the names of any known form: `corpus.parquet`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from retrievalkit.data import files
from retrievalkit.data.files import reading
from retrievalkit.data.sources.source import Part, Source
from retrievalkit.errors import DataError

_ROWS = 1024


class Parquet(Source):
    """A Parquet file of passages, queries, judgements or training examples, by the names of its columns."""

    reads_files = True
    content_hashed = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.path = files.existing(name)

    def parts(self) -> tuple[Part, ...] | None:
        """None: it depends on the columns."""
        return None

    def _rows(self, part: Part, split: str) -> Iterator[dict[str, Any]]:
        """The rows, some of which are in memory at a time: a file has one part and one split."""
        del part, split
        with self._opened() as table:
            for batch in table.iter_batches(batch_size=_ROWS):
                yield from batch.to_pylist()

    def fingerprint(self) -> str:
        """A hash of the file."""
        return files.fingerprint(self.path)

    def size(self) -> int:
        """The number of rows."""
        with self._opened() as table:
            return int(table.metadata.num_rows)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        import pyarrow
        from pyarrow import parquet

        try:
            with reading(self.path), parquet.ParquetFile(self.path) as table:
                yield table
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0].rstrip(".")[:300] if str(error) else type(error).__name__
            msg = f"the Parquet file cannot be read: {reason}. Write or fetch it again."
            raise DataError(msg, file=self.path) from None
