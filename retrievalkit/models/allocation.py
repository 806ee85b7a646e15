"""Settings of the C library's allocator: keep the memory of freed tensors, but limit its growth.

By default, it returns large blocks to the system and requests new blocks for the next batch, page by page: a tenth of
the time of encoding, and of the first steps of training. If steps vary in size, however, kept memory has gaps that
later tensors do not fit into, and the process grows by megabytes per step: surplus memory is then returned.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

# From glibc's malloc.h: minimum size of blocks that the system allocates one by one, and freed memory to keep.
_MMAP_THRESHOLD, _LARGEST_KEPT = -3, 1 << 28
_TRIM_THRESHOLD, _KEPT = -1, 1 << 30
_STATUS = Path("/proc/self/status")


@cache
def keep_freed_memory() -> bool:
    """Keep up to 1 GiB of freed memory in this process; False if the C library lacks the setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl; Windows
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_TRIM_THRESHOLD, _KEPT))


class Surplus:
    """Returns freed memory to the system whenever the process has grown too far beyond the needs of a step.

    Args:
        allowed: Permitted growth in bytes.
    """

    def __init__(self, allowed: int = _KEPT) -> None:
        self.allowed = allowed
        self._needed: int | None = None
        self._returned = True

    def after_step(self) -> bool:
        """Measure the process; return True if surplus memory was returned to the system."""
        held = held_memory()
        if held is None:
            return False
        if self._returned or self._needed is None:
            # The first step after memory was returned shows the needs of a step.
            self._needed = max(held, self._needed or 0)
        self._returned = held > self._needed + self.allowed and bool(ctypes.CDLL(None).malloc_trim(0))
        return self._returned


def held_memory() -> int | None:
    """Return the bytes of this process in memory, without mapped files; None if the system does not report them."""
    try:
        lines = _STATUS.read_text().splitlines()
        ctypes.CDLL(None).malloc_trim  # noqa: B018 - only in glibc
    except (OSError, AttributeError, TypeError):
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), None)
