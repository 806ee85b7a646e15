"""Temporary folders for results that Python keeps in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retrievalkit.errors import RetrievalkitError


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder, which messages do not name."""
    with tempfile.TemporaryDirectory(prefix="rkit-") as folder:
        try:
            yield Path(folder)
        except RetrievalkitError as error:
            # The caller does not know the folder, which is gone when the message is read.
            error.args = (str(error).replace(f"{folder}{os.sep}", ""),)
            raise
