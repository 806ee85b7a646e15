"""The C library's allocator, asked to keep the memory of tensors that were freed.

As it comes, it gives large blocks back to the system, and gets as many new ones for the next batch, page by page: a
tenth of the time of encoding, and the first steps of training.
"""

from __future__ import annotations

import ctypes
from functools import cache

# Of glibc's malloc.h: blocks from this size on come from the system one by one, and so much stays when it is freed.
_MMAP_THRESHOLD, _LARGEST_KEPT = -3, 1 << 28
_TRIM_THRESHOLD, _KEPT = -1, 1 << 30


@cache
def keep_freed_memory() -> bool:
    """Keep up to 1 GiB of freed memory in this process; False where the C library lacks the setting."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS, musl; Windows
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT) and mallopt(_TRIM_THRESHOLD, _KEPT))
