"""Folders that programs write, and temporary ones for what Python keeps in memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock

from retrievalkit import artifacts
from retrievalkit.api import notebook
from retrievalkit.errors import RetrievalkitError


class Folder(os.PathLike[str]):
    """A folder that a program wrote: wherever a path is taken, it is taken too.

    Attributes:
        path: Where it is.
        manifest: What made it: options, inputs, counts, versions.
    """

    def __init__(self, path: str | os.PathLike[str], manifest: dict[str, Any] | None = None) -> None:
        self.path = Path(path)
        self.manifest = artifacts.read_manifest(self.path) if manifest is None else manifest

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Folder({str(self.path)!r}, kind={self.manifest.get('kind')!r})"

    def _repr_html_(self) -> str:
        counts = [f"{name.replace('_', ' ')}: {value}" for name, value in self.manifest.get("counts", {}).items()]
        return notebook.lines(f"{self.manifest.get('kind', 'folder')} {self.path}", [", ".join(counts)])


@contextmanager
def scratch() -> Iterator[Path]:
    """A temporary folder; `rkit clean` knows those of processes that were killed."""
    with tempfile.TemporaryDirectory(prefix="rkit-") as folder, FileLock(Path(folder) / ".lock"):
        try:
            yield Path(folder)
        except RetrievalkitError as error:
            # The caller does not know the folder, which is gone when the message is read.
            error.args = (str(error).replace(f"{folder}{os.sep}", ""),)
            raise
