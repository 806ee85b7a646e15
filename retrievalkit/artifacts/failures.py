"""Why an output could not be written: libraries say so in ways of their own, or not at all."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from retrievalkit.errors import RetrievalkitError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The disk is full, the user's share of it is used up, or the file has reached a limit."""

_NEXT_TO_NOTHING = 1 << 16
_CUT_OFF = re.compile(r"requested and \d+ written|file write failed|failed writing|unexpected pos|write error")
"""What numpy, torch and faiss say of a file that they could not write."""


@contextmanager
def full_disk_named(place: Path) -> Iterator[None]:
    """Raise OSError with a number and a file where a file cannot be written, whichever library writes it."""
    try:
        yield
    except RetrievalkitError:
        raise
    except OSError as error:
        if error.errno is None and (number := _reason(error, place)) is not None:
            raise _as_written(OSError(number, os.strerror(number)), place) from error
        name = error.filename
        inside = isinstance(name, str | os.PathLike) and Path(name).absolute().is_relative_to(place)
        if error.errno in NO_ROOM or inside:
            _as_written(error, place)
        raise
    except Exception as error:
        if (number := _reason(error, place)) is not None:
            raise _as_written(OSError(number, os.strerror(number)), place) from error
        raise


def was_written(error: OSError) -> bool:
    """Whether the file of an error was being written, rather than read."""
    return error.errno in (*NO_ROOM, errno.EROFS) or getattr(error, "_rkit_written", False)


def _as_written(error: OSError, place: Path) -> OSError:
    error.__dict__["_rkit_written"] = True
    if error.filename is None:
        # A file at the limit is the one, if that is the error; else only the folder is certain.
        error.filename = str(next((one for one in _files(place) if _at_limit(one)), place))
    return error


def _reason(error: Exception, place: Path) -> int | None:
    """The number of the error for a file that could not be written; None if the error is about something else."""
    text = str(error)
    for number in NO_ROOM:
        if os.strerror(number) in text:
            return number
    with suppress(OSError):
        if shutil.disk_usage(place if place.exists() else place.parent).free < _NEXT_TO_NOTHING:
            return errno.ENOSPC
    if any(map(_at_limit, _files(place))):
        return errno.EFBIG
    return errno.EIO if _CUT_OFF.search(text) else None


def _at_limit(file: Path) -> bool:
    """Whether a file has the size at which this process may write no more of it."""
    with suppress(OSError, ImportError):  # no such limits on Windows
        import resource

        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        return limit != resource.RLIM_INFINITY and file.stat().st_size >= limit
    return False


def _files(place: Path) -> list[Path]:
    return [one for one in place.rglob("*") if one.is_file()] if place.is_dir() else [place] if place.exists() else []
