"""The result of a command that writes a folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from retrievalkit.storage.manifest import read_manifest


class Folder(os.PathLike[str]):
    """A folder that a command wrote; any function that takes a path takes it too.

    Attributes:
        path: Its path.
        manifest: The content of its `manifest.json`: options, inputs, counts, versions.
        summary: What was done.
        notes: What the user has to know.
    """

    def __init__(
        self, path: str | os.PathLike[str], manifest: dict[str, Any] | None = None, summary: str | None = None
    ) -> None:
        self.path = Path(path)
        self.manifest = read_manifest(self.path) if manifest is None else manifest
        self.summary = str(path) if summary is None else summary
        self.notes: list[str] = self.manifest.get("notes", [])

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return self.manifest

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        return f"Folder({str(self.path)!r}, kind={self.manifest.get('kind')!r})"
