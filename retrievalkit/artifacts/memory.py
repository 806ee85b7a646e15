"""Which files were found whole: remembered from one command to the next, as long as nobody writes to them.

A file that passed a check leaves an empty file in the user's cache folder, whose name is a hash of the check and of the
file's device, inode, size, times and a sample of its blocks. Empty files need no lock: they exist or they do not.
Where the cache folder cannot be written to, nothing is remembered.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

_BLOCKS = 4
_BLOCK_BYTES = 1 << 14
# A write within one tick of the file system's clock changes no time; the coarsest clocks in use have two seconds.
_TICK_SECONDS = 2.0
_MOST = 1 << 15

_known: set[str] = set()


@dataclass(frozen=True)
class State:
    """What a file looked like when it passed a check.

    Attributes:
        mark: The hash that it is remembered by.
        content: The hash without the time of the inode, which a new link changes too.
        settled: Whether a later write would change the file's times.
    """

    mark: str
    content: str
    settled: bool


def state_of(path: Path, what: str) -> State:
    """The state of a file, for a check named `what`."""
    sample = hashlib.blake2b(digest_size=16)
    with path.open("rb", buffering=0) as stream:
        found = os.fstat(stream.fileno())
        last = max(0, found.st_size - _BLOCK_BYTES)
        for number in range(_BLOCKS):
            stream.seek(last * number // (_BLOCKS - 1))
            sample.update(stream.read(_BLOCK_BYTES))
    content = _hash(what, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, sample.hexdigest())
    settled = abs(time.time() - found.st_mtime) > _TICK_SECONDS
    return State(_hash(content, found.st_ctime_ns), content, settled)


def is_remembered(state: State, *, in_this_process: bool = False) -> bool:
    """Whether a file passed a check in this state.

    Args:
        state: Its state now.
        in_this_process: Count only what this process has checked itself.
    """
    if state.mark in _known:
        return True
    folder = _folder()
    return not in_this_process and folder is not None and (folder / state.mark).exists()


def remember(state: State) -> None:
    """Remember that a file passed a check."""
    folder = _folder()
    if not state.settled:
        return
    _known.add(state.mark)
    if folder is None:
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _forget_oldest(folder)
        (folder / state.mark).touch()
    except OSError:
        # The cache folder is read-only, or the disk is full: the file is read again the next time.
        pass


def _folder() -> Path | None:
    # An XDG path that is not absolute is to be ignored, and "~" stays as it is where a user has no home.
    place = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(place):
        place = os.path.expanduser("~/.cache")
    return Path(place) / "retrievalkit" / "verified" if os.path.isabs(place) else None


@functools.cache
def _forget_oldest(folder: Path) -> None:
    """Keep the newer half where there are too many, once in a process."""
    with os.scandir(folder) as entries:
        marks = list(entries)
    if len(marks) > _MOST:
        marks.sort(key=lambda entry: entry.stat().st_mtime)
        for entry in marks[: len(marks) // 2]:
            Path(entry.path).unlink(missing_ok=True)


def _hash(*parts: object) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
