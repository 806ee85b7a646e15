"""Atomic writes of folders and files: next to their final place, and renamed at the end."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from retrievalkit.errors import ArtifactError, InputError, RetrievalkitError
from retrievalkit.storage.locks import held, is_internal
from retrievalkit.storage.places import check_output_file, check_parents, is_stream, named, place_of, pour

MANIFEST = "manifest.json"

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors: the disk is full, the user's quota is used up, or the file has reached a limit."""

_ALMOST_FULL = 1 << 16
_CUT_OFF = re.compile(r"requested and \d+ written|file write failed|failed writing|unexpected pos|write error")
"""Messages of numpy, torch and faiss when they cannot write a file."""


@contextmanager
def write_folder(path: str | Path, *, overwrite: bool = False, keep_partial: bool = False) -> Iterator[Path]:
    """Yield a staging folder that becomes `path` when the block ends, and is removed when the block fails.

    Args:
        path: The folder to create, with its parents.
        overwrite: Replace an existing folder, if rkit wrote it.
        keep_partial: Keep the staging folder after a failure and start from an earlier one: for commands that resume.
            After an input error nothing is kept, since the same command would fail again.
    """
    check_output(path, overwrite=overwrite)
    with held(path):
        restore(path)
        # Another process may have finished meanwhile.
        check_output(path, overwrite=overwrite)
        staging = partial_folder(path)
        if not keep_partial:
            discard(staging)
        staging.mkdir(parents=True, exist_ok=True)
        try:
            with full_disk_named(staging):
                yield staging
        except BaseException as error:
            keep = keep_partial and not isinstance(error, InputError)
            if not keep:
                shutil.rmtree(staging, ignore_errors=True)
            _note(error, path, staging if keep else None)
            raise
        with _naming(staging, path):
            _replace_folder(place_of(path), staging)


@contextmanager
def work_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder next to an output for intermediate files; the caller must hold the output.

    After a failure it is kept, unless the same command would fail again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with full_disk_named(folder):
            yield folder
    except BaseException as error:
        if isinstance(error, RetrievalkitError):
            shutil.rmtree(folder, ignore_errors=True)
        else:
            _note(error, folder, folder)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def partial_folder(path: str | Path) -> Path:
    """Return the folder that is renamed to `path` at the end."""
    return _hidden(path, "partial")


def replaced_folder(path: str | Path) -> Path:
    """Return the place of an existing folder while it is replaced."""
    return _hidden(path, "old")


def _hidden(path: str | Path, ending: str) -> Path:
    """Return a folder next to an output; a link there would lead to files that are then replaced or removed."""
    place = place_of(path)
    folder = place.with_name(f".{place.name}.{ending}")
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        msg = f"'{folder}' is a link or a file, but rkit keeps a folder there while it writes '{path}'. Remove it."
        raise ArtifactError(msg)
    return folder


def restore(path: str | Path) -> bool:
    """Restore the name of a folder after a process was killed while replacing it; return True if restored.

    The caller must hold the output, as another process may be about to rename a new folder.
    """
    place, old = place_of(path), replaced_folder(path)
    if place.exists() or not (old / MANIFEST).exists():
        return False
    old.rename(place)
    return True


def discard(path: Path) -> None:
    """Remove a file, a link or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _naming(staging: Path, path: str | Path) -> Iterator[None]:
    """Report where a finished output is if it cannot be renamed."""
    try:
        yield
    except OSError as error:
        where = f"It is at '{staging}': move it from there" if staging.exists() else "Run the command again"
        msg = (
            f"'{path}' is complete, but could not be renamed ({error.strerror or error}). {where} before another "
            f"command writes there, or choose another --output."
        )
        raise RetrievalkitError(msg) from error


def _replace_folder(place: Path, new: Path) -> None:
    """Rename `new` to `place`; the existing folder is renamed first, so that one of the two is always complete."""
    if not place.exists():
        new.rename(place)
        return
    old = replaced_folder(place)
    shutil.rmtree(old, ignore_errors=True)
    place.rename(old)
    try:
        new.rename(place)
    except OSError:
        old.rename(place)
        raise
    shutil.rmtree(old, ignore_errors=True)


def check_output(path: str | Path, *, overwrite: bool = False) -> None:
    """Refuse an existing output folder, unless it is empty or may be overwritten."""
    place = place_of(path)
    check_parents(place.parent, path)
    if not place.exists() or (place.is_dir() and not any(place.iterdir())):
        return
    if not place.is_dir():
        msg = f"output '{path}' is a file, but a folder is written there. Choose another --output."
        raise ArtifactError(msg)
    if not overwrite:
        msg = f"output folder '{path}' exists already. Choose another --output, or replace it with --overwrite."
        raise ArtifactError(msg)
    if not (place / MANIFEST).exists():
        msg = f"'{path}' was not written by rkit (it has no {MANIFEST}), so --overwrite does not replace it. Remove it."
        raise ArtifactError(msg)


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a temporary folder that messages do not name."""
    with tempfile.TemporaryDirectory(prefix="rkit-") as folder:
        try:
            yield Path(folder)
        except RetrievalkitError as error:
            # The folder will not exist when the message is read.
            error.args = (str(error).replace(f"{folder}{os.sep}", ""),)
            raise


@contextmanager
def write_file(path: str | Path) -> Iterator[Path]:
    """Yield a staging file that becomes `path` when the block ends, and is removed when the block fails.

    Output to a pipe or a device, such as /dev/stdout, is copied there when the block ends. A link remains a link.
    """
    check_output_file(path, stream=True)
    if is_stream(path):
        with tempfile.TemporaryDirectory(prefix="rkit-") as folder:
            staging = Path(folder) / Path(path).name
            with full_disk_named(staging):
                yield staging
            pour(staging, path)
        return
    # Several processes may write the same file of a cache: the last one wins.
    with held(path, wait=True):
        place = place_of(path)
        check_parents(place.parent, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        # Keeps the suffix, from which writers choose a compression.
        staging = place.with_name(f".partial.{place.name}")
        try:
            with full_disk_named(staging):
                yield staging
        except BaseException as error:
            with suppress(OSError):
                staging.unlink(missing_ok=True)
            if not is_internal(place):
                _note(error, path)
            raise
        # A finished file within an unfinished output is useless.
        with nullcontext() if is_internal(place) else _naming(staging, path):
            os.replace(staging, place)


def write_json(path: str | Path, value: Any, *, indent: int | None = 2) -> None:
    """Write a JSON file atomically; values that JSON lacks are written as text. Indent None = one line."""
    text = named(json.dumps(value, indent=indent, ensure_ascii=False, default=str))
    with write_file(path) as staging:
        staging.write_text(text + "\n", encoding="utf-8")


def _note(error: BaseException, path: str | Path, partial: Path | None = None) -> None:
    """Add a note about the rest of an output to an exception; the innermost note wins."""
    if getattr(error, "__notes__", None):
        return
    if partial is not None and partial.is_dir():
        note = "finished parts are kept: run the same command again to continue."
    else:
        note = f"nothing was written to '{path}'."
    error.add_note(f"Interrupted; {note}" if isinstance(error, KeyboardInterrupt) else note[0].upper() + note[1:])


@contextmanager
def full_disk_named(place: Path) -> Iterator[None]:
    """Raise an OSError with a number and a file name if any library cannot write a file."""
    try:
        yield
    except RetrievalkitError:
        raise
    except Exception as error:
        known = isinstance(error, OSError) and error.errno is not None
        if not known and (number := _reason(error, place)) is not None:
            raise _as_written(OSError(number, os.strerror(number)), place) from error
        if isinstance(error, OSError):
            name = error.filename
            inside = isinstance(name, str | os.PathLike) and Path(name).absolute().is_relative_to(place)
            if error.errno in NO_ROOM or inside:
                _as_written(error, place)
        raise


def was_written(error: OSError) -> bool:
    """True if the file of an error was being written, not read."""
    return error.errno in (*NO_ROOM, errno.EROFS) or getattr(error, "_rkit_written", False)


def _as_written(error: OSError, place: Path) -> OSError:
    error.__dict__["_rkit_written"] = True
    if error.filename is None:
        # A file at the size limit is the cause; otherwise only the folder is known.
        error.filename = str(next(filter(_at_limit, _files(place)), place))
    return error


def _reason(error: Exception, place: Path) -> int | None:
    """Return the error number for a file that could not be written; None if the error has another cause."""
    text = str(error)
    for number in NO_ROOM:
        if os.strerror(number) in text:
            return number
    with suppress(OSError):
        if shutil.disk_usage(place if place.exists() else place.parent).free < _ALMOST_FULL:
            return errno.ENOSPC
    if any(map(_at_limit, _files(place))):
        return errno.EFBIG
    return errno.EIO if _CUT_OFF.search(text) else None


def _at_limit(file: Path) -> bool:
    """True if a file has reached the size limit of this process."""
    with suppress(OSError, ImportError):  # no such limits on Windows
        import resource

        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return limit != resource.RLIM_INFINITY and file.stat().st_size >= limit
    return False


def _files(place: Path) -> list[Path]:
    return [path for path in ([place, *place.rglob("*")] if place.is_dir() else [place]) if path.is_file()]
