"""Temporary folders for what Python keeps in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder; `rkit clean` knows those of processes that were killed."""
    with tempfile.TemporaryDirectory(prefix="rkit-") as folder, FileLock(Path(folder) / ".lock"):
        yield Path(folder)
