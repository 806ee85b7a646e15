"""Settings of the C library's allocator: keep the memory of freed tensors, but not forever.

By default, it returns large blocks to the system and requests new blocks for the next batch, page by page: a tenth of
the time of encoding, and of the first steps of training. If steps vary in size, however, kept memory has gaps that
later tensors do not fit into, and the process grows by megabytes per step: training returns it from time to time.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from pathlib import Path

# From glibc's malloc.h: minimum size of blocks that the system allocates one by one, and freed memory to keep.
_MMAP_THRESHOLD, _LARGEST_KEPT = -3, 1 << 28
_TRIM_THRESHOLD, _KEPT = -1, 1 << 30
_STATUS = Path("/proc/self/status")
# macOS and musl lack the functions of glibc; Windows has no handle of the process itself.
_MISSING = (AttributeError, OSError, TypeError)


@cache
def keep_freed_memory() -> bool:
    """Keep up to 1 GiB of freed memory in this process; False if the C library lacks the setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except _MISSING:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_TRIM_THRESHOLD, _KEPT))


def return_freed_memory() -> None:
    """Return all freed memory to the system, if the C library can."""
    with suppress(*_MISSING):
        ctypes.CDLL(None).malloc_trim(0)


def held_memory() -> int | None:
    """Return the bytes of this process in memory, without mapped files; None if the system does not report them."""
    lines = _STATUS.read_text().splitlines() if _STATUS.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), None)
