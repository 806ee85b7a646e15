"""The C library's allocator, asked to keep the memory of tensors that were freed, but not to hoard it.

As it comes, it gives large blocks back to the system, and gets as many new ones for the next batch, page by page: a
tenth of the time of encoding, and the first steps of training. Steps of ever new sizes, on the other hand, leave gaps
that later tensors do not fit into, and the process grows by megabytes a step: these pages are given back now and then.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

# Of glibc's malloc.h: blocks from this size on come from the system one by one, and so much stays when it is freed.
_MMAP_THRESHOLD, _LARGEST_KEPT = -3, 1 << 28
_TRIM_THRESHOLD, _KEPT = -1, 1 << 30
_STATUS = Path("/proc/self/status")


@cache
def keep_freed_memory() -> bool:
    """Keep up to 1 GiB of freed memory in this process; False where the C library lacks the setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl; Windows
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_TRIM_THRESHOLD, _KEPT))


class Surplus:
    """Gives freed memory back whenever a process has grown by more than it needs for a step.

    Args:
        allowed: Bytes by which the process may grow before.
    """

    def __init__(self, allowed: int = _KEPT) -> None:
        self.allowed = allowed
        self._needed: int | None = None
        self._given_back = True

    def after_step(self) -> bool:
        """Measure the process, and give back what it holds beyond its need; True if it did."""
        held = held_memory()
        if held is None:
            return False
        if self._given_back or self._needed is None:
            # The first step after all was given back shows what a step needs.
            self._needed = max(held, self._needed or 0)
        self._given_back = held > self._needed + self.allowed and bool(ctypes.CDLL(None).malloc_trim(0))
        return self._given_back


def held_memory() -> int | None:
    """Bytes that this process holds in memory, without those of mapped files; None where the system does not say."""
    try:
        lines = _STATUS.read_text().splitlines()
        ctypes.CDLL(None).malloc_trim  # noqa: B018 - absent but in glibc
    except (OSError, AttributeError, TypeError):
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:")), None)
