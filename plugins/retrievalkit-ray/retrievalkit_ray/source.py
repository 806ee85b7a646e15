"""Items and results in Ray Data's tables, with the errors of workers."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from retrievalkit.reporting.notices import gathered

COLUMN = "packed"


class Items(Datasource):
    """A data source with one block per item, which a single task reads in order.

    Args:
        items: Returns the items.
    """

    def __init__(self, items: Callable[[], Iterable[Any]]) -> None:
        super().__init__()
        self._items = items
        self._folder = Path.cwd()

    def estimate_inmemory_data_size(self) -> int | None:
        """Return None: the size is unknown."""
        return None

    def get_read_tasks(self, parallelism: int, *_: Any, **__: Any) -> list[ReadTask]:  # noqa: ARG002 - Ray's signature
        """Return the single read task."""
        unknown = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(self._read, unknown)]

    def _read(self) -> Iterator[pa.Table]:
        # Relative file names start at the command's folder.
        os.chdir(self._folder)
        try:
            for item in self._items():
                yield packed(item)
        except Exception as error:  # noqa: BLE001 - the command raises it
            yield packed(Failure.of(error))


@dataclass
class Failure:
    """An error in a worker, which the command raises."""

    error: Exception
    trace: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Wrap the exception that is being handled."""
        trace = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001 - an exception's own reduction may raise anything
            error = RuntimeError(f"{type(error).__name__}: {error}")
        return cls(error, trace)


class Worker:
    """Applies a function to items.

    Args:
        make: Returns the function; called at the first item.
        threads: Number of threads of torch.
    """

    def __init__(self, make: Callable[[], Callable[[Any], Any]], threads: int) -> None:
        self._make = make
        self._threads = threads
        self._function: Callable[[Any], Any] | None = None

    def __call__(self, table: pa.Table) -> pa.Table:
        """Compute the result for the item in a table of one row."""
        item = unpacked(table)[0]
        if isinstance(item, Failure):
            return packed(item)
        try:
            with gathered() as notes:
                result = self._apply(item)
            return packed((result, notes))
        except Exception as error:  # noqa: BLE001 - the command raises it
            return packed(Failure.of(error))

    def _apply(self, item: Any) -> Any:
        if self._function is None:
            import torch

            torch.set_num_threads(self._threads)
            self._function = self._make()
        return self._function(item)


def packed(value: Any) -> pa.Table:
    """Pack a value into a table of one row."""
    return pa.table({COLUMN: pa.array([pickle.dumps(value, protocol=5)], type=pa.large_binary())})


def unpacked(table: pa.Table) -> list[Any]:
    """Return the values of a table's rows."""
    return [pickle.loads(cell.as_py()) for cell in table[COLUMN]]
