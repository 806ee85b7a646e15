"""The folder of an index: `lucene/` with Lucene's own files, and next to it the files that the indexer needs."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from retrievalkit.contracts.commands import read_document
from retrievalkit.errors import ArtifactError

INDEX = "lucene"
"""The subfolder that Lucene writes and Pyserini can open."""

Part = TypeVar("Part")


@contextlib.contextmanager
def undone_on_failure(folder: Path, *files: str) -> Iterator[None]:
    """Remove Lucene's index and the files next to it if the block that builds them fails or is interrupted."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder / INDEX, ignore_errors=True)
        for name in files:
            (folder / name).unlink(missing_ok=True)
        raise


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write the settings of an index, for `read_settings`."""
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def read_settings(path: Path, form: type[Part]) -> Part:
    """Read the settings written by `write_settings`, checked against a schema; call inside `index_expected`."""
    return read_document(path, form, do="Index again.")


@contextlib.contextmanager
def index_expected(folder: Path, indexer: str, lacks: str, source: Literal["CORPUS", "VECTORS"]) -> Iterator[None]:
    """Turn failures to read or parse the files of an index into the error of `no_index`."""
    try:
        yield
    except (OSError, ValueError, ArtifactError):
        raise no_index(folder, indexer, lacks, source) from None


def no_index(folder: Path, indexer: str, lacks: str, source: Literal["CORPUS", "VECTORS"]) -> ArtifactError:
    """Return the error for a folder without an index; `lacks` is the evidence: "its bm25.json is missing"."""
    msg = f"'{folder}' is not a {indexer} index: {lacks}. Build an index: rkit index {source} --indexer {indexer}"
    return ArtifactError(msg)
