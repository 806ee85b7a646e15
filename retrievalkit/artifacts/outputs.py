"""Writing folders and files whole or not at all: beside their final place, and renamed at the end."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from retrievalkit.errors import ArtifactError, InputError

MANIFEST = "manifest.json"

_NEXT_TO_NOTHING = 1 << 16


@contextmanager
def write_folder(path: str | Path, *, overwrite: bool = False, keep_partial: bool = False) -> Iterator[Path]:
    """Yield a staging folder that becomes `path` when the block ends, and is removed when the block fails.

    Args:
        path: The folder to make. Parents are created.
        overwrite: Replace an existing folder, if rkit wrote it.
        keep_partial: Keep the staging folder after a failure and start from an earlier one: for commands that resume.
            After wrong input nothing is kept, since the same command would fail again.

    Raises:
        ArtifactError: `path` exists and may not be replaced.
    """
    path = Path(path).absolute()
    check_output(path, overwrite=overwrite)
    staging = partial_folder(path)
    if staging.exists() and not keep_partial:
        shutil.rmtree(staging)
    staging.mkdir(parents=True, exist_ok=True)
    try:
        with full_disk_named(staging):
            yield staging
    except BaseException as error:
        if not keep_partial or isinstance(error, InputError):
            shutil.rmtree(staging, ignore_errors=True)
        raise
    _replace_folder(path, staging)


@contextmanager
def full_disk_named(folder: Path) -> Iterator[None]:
    """Raise OSError for a full disk even where the library that writes weights raises something else."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        full = shutil.disk_usage(folder).free < _NEXT_TO_NOTHING if folder.exists() else False
        if full or os.strerror(errno.ENOSPC) in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)) from error
        raise


def partial_folder(path: str | Path) -> Path:
    """Where a folder is written before it is renamed to `path`."""
    path = Path(path).absolute()
    return path.with_name(f".{path.name}.partial")


def _replace_folder(path: Path, new: Path) -> None:
    """Rename `new` to `path`; the existing folder is renamed first, so that one of the two is always whole."""
    if not path.exists():
        new.rename(path)
        return
    old = path.with_name(f".{path.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    path.rename(old)
    new.rename(path)
    shutil.rmtree(old)


def check_output(path: str | Path, *, overwrite: bool = False) -> None:
    """Refuse an existing output folder, unless it is empty or may be overwritten.

    Raises:
        ArtifactError: The folder's contents would be lost.
    """
    path = Path(path).absolute()
    _check_parents(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    if not path.is_dir():
        msg = f"output '{path}' is a file, but a folder is to be written there. Choose another --output."
        raise ArtifactError(msg)
    if not overwrite:
        msg = f"output folder '{path}' exists already. Choose another --output, or replace it with --overwrite."
        raise ArtifactError(msg)
    if not (path / MANIFEST).exists():
        msg = f"'{path}' was not written by rkit (it has no {MANIFEST}), so --overwrite leaves it alone. Remove it."
        raise ArtifactError(msg)


def check_output_file(path: str | Path) -> None:
    """Refuse an output file whose place a folder takes.

    Raises:
        ArtifactError: Names it.
    """
    if Path(path).is_dir():
        msg = f"output '{path}' is a folder, and a file is to be written there. Choose another --output."
        raise ArtifactError(msg)


def _check_parents(path: Path) -> None:
    for parent in path.parents:
        if parent.exists() and not parent.is_dir():
            msg = f"output '{path}' cannot be written: '{parent}' is a file, not a folder. Choose another --output."
            raise ArtifactError(msg)


@contextmanager
def write_file(path: str | Path) -> Iterator[Path]:
    """Yield a staging file that becomes `path` when the block ends, and is removed when the block fails."""
    check_output_file(path)
    path = Path(path).absolute()
    _check_parents(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Keeps the suffix, by which writers choose a compression.
    staging = path.with_name(f".partial.{path.name}")
    try:
        yield staging
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
    os.replace(staging, path)


def write_json(path: str | Path, value: Any, *, indent: int | None = 2) -> None:
    """Write a JSON file; values that JSON lacks are written as text. It appears whole or not at all.

    Args:
        path: The file.
        value: Its content.
        indent: Spaces for each level; None = one line, for files that people do not read.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    with write_file(path) as staging:
        staging.write_text(text + "\n", encoding="utf-8")
