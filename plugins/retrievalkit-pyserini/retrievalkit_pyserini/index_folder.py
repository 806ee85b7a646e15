"""The folder of an index: `lucene/` with Lucene's own files, and beside it what the indexer needs to open them."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from retrievalkit.errors import ArtifactError

INDEX = "lucene"
"""The folder in it that Lucene writes, and Pyserini opens too."""

Part = TypeVar("Part")


@contextlib.contextmanager
def undone_on_failure(folder: Path, *files: str) -> Iterator[None]:
    """Remove Lucene's index, and these files beside it, where the block that builds them fails or is interrupted."""
    try:
        yield
    except BaseException:
        shutil.rmtree(folder / INDEX, ignore_errors=True)
        for name in files:
            (folder / name).unlink(missing_ok=True)
        raise


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write what an index was built with, for `read_settings`."""
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def read_settings(path: Path) -> Any:
    """What `write_settings` wrote; to be read, and taken apart, inside `index_expected`."""
    return json.loads(path.read_text(encoding="utf-8"))


@contextlib.contextmanager
def index_expected(folder: Path, indexer: str, lacks: str, source: Literal["CORPUS", "VECTORS"]) -> Iterator[None]:
    """Say that a folder holds no index of this kind where the block fails to read or to understand its files.

    Raises:
        ArtifactError: As `no_index` makes it.
    """
    try:
        yield
    except (OSError, ValueError, TypeError, KeyError):
        raise no_index(folder, indexer, lacks, source) from None


def no_index(folder: Path, indexer: str, lacks: str, source: Literal["CORPUS", "VECTORS"]) -> ArtifactError:
    """The error of a folder that holds no index of this kind.

    Args:
        folder: The folder.
        indexer: The indexer's name.
        lacks: What shows it, such as "its bm25.json is missing".
        source: What the indexer indexes.
    """
    msg = f"'{folder}' holds no {indexer} index: {lacks}. Build one: rkit index {source} --indexer {indexer}"
    return ArtifactError(msg)


def opened(part: Part | None) -> Part:
    """What an indexer has of the index that it opened.

    Raises:
        RuntimeError: It has not opened one.
    """
    if part is None:
        msg = "open an index before searching it"
        raise RuntimeError(msg)
    return part
