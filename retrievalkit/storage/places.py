"""Output places: links are resolved to the real place; pipes and devices are written through."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
from pathlib import Path

from retrievalkit.errors import ArtifactError

ADDRESSES: dict[str, str] = {}
"""Local places of objects and folders in a store (see `object_cache`) -> their addresses."""

_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://.+", re.DOTALL)
_WEB = ("http", "https")
_DESCRIPTOR = re.compile(r"/(?:dev/fd|proc/self/fd)/(\d+)")
_MOST_LINKS = 40
# Most file systems allow 255; hidden files next to the output have longer names, such as .NAME.partial.
_LONGEST_NAME = 230


def is_address(place: object) -> bool:
    """True if a text is the address of an object or a folder in a store, not of a web page."""
    match = _ADDRESS.fullmatch(place) if isinstance(place, str) else None
    return match is not None and match[1] not in _WEB


def named(text: str) -> str:
    """Replace local places in a text by their addresses."""
    for place in sorted(ADDRESSES, key=len, reverse=True):
        text = text.replace(place, ADDRESSES[place])
    return text


def absolute(place: str | Path) -> str | Path:
    """Return the absolute path of a file or folder, also valid in other processes; other names are unchanged."""
    if str(place) in ADDRESSES:
        return ADDRESSES[str(place)]
    return Path(place).absolute() if os.path.exists(place) else place


def place_of(path: str | Path) -> Path:
    """Return the absolute place of an output, with links resolved, so that a link itself is never replaced."""
    text = os.fspath(path)
    if is_address(text):
        msg = f"this command cannot write to a store, '{text}'. Write to a local folder, and copy it to the store."
        raise ArtifactError(msg)
    try:
        longest = max(len(name.encode()) for name in text.split(os.sep))
    except UnicodeEncodeError:
        problem = "contains bytes that are not text"
    else:
        problem = f"has a name of {longest} bytes, more than {_LONGEST_NAME}" if longest > _LONGEST_NAME else ""
    if problem or not text:
        msg = f"output {text[:100]!r} {problem or 'is empty'}. Choose another --output."
        raise ArtifactError(msg)
    if os.path.islink(path) and not os.path.exists(path):
        msg = f"output '{path}' is a link to '{os.readlink(path)}', which does not exist. Choose another --output."
        raise ArtifactError(msg)
    place = Path(os.path.realpath(path))
    if not place.name:
        msg = f"output '{path}' is the root of the file system. Choose another --output."
        raise ArtifactError(msg)
    return place


def check_parents(folder: Path, output: str | Path) -> None:
    """Refuse an output below a file."""
    for parent in (folder, *folder.parents):
        if parent.exists() and not parent.is_dir():
            msg = f"output '{output}' cannot be written: '{parent}' is a file, not a folder. Choose another --output."
            raise ArtifactError(msg)


def is_stream(path: str | Path) -> bool:
    """True if a path is a pipe, a character device such as /dev/null, or an open file such as /dev/stdout.

    These are written through, as renaming a file to their name would replace them.
    """
    if descriptor(path) is not None:
        return True
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def descriptor(path: str | Path) -> int | None:
    """Return the file descriptor that a path names: 1 for /dev/stdout, 63 for /dev/fd/63; None for other paths."""
    text = os.path.abspath(path)
    for _ in range(_MOST_LINKS):
        if match := _DESCRIPTOR.fullmatch(text):
            return int(match[1])
        if not os.path.islink(text):
            return None
        text = os.path.normpath(os.path.join(os.path.dirname(text), os.readlink(text)))
    return None


def check_output_file(path: str | Path, *, stream: bool = False) -> None:
    """Refuse an output that cannot become a file; `stream` allows a pipe or a device, which is written through."""
    through = is_stream(path)
    if not through:
        place_of(path)
    if os.path.isdir(path):
        msg = f"output '{path}' is a folder, but a file is written there. Choose another --output."
        raise ArtifactError(msg)
    if through and not stream:
        msg = f"output '{path}' is a pipe or a device, but other files are written next to it. Choose a file."
        raise ArtifactError(msg)
    if not through and os.path.exists(path) and not os.path.isfile(path):
        msg = f"output '{path}' is not a regular file. Choose another --output."
        raise ArtifactError(msg)


def pour(source: Path, path: str | Path) -> None:
    """Write a complete file through to a pipe, a device or an open file."""
    number = descriptor(path)
    if number == 1:
        sys.stdout.flush()
    # A duplicate descriptor keeps the position, so that `>> file` appends; opening the name would truncate the file.
    with source.open("rb") as whole, open(path if number is None else os.dup(number), "wb") as target:
        shutil.copyfileobj(whole, target)
