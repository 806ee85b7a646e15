"""What is asked of the indexers' options, and how many threads an indexer runs in."""

from __future__ import annotations

import os

from retrievalkit.errors import OptionError


def check(holds: bool, problem: str) -> None:
    """Refuse an option that does not fit.

    Args:
        holds: Whether it fits.
        problem: What is wrong where it does not: a sentence without its full stop.

    Raises:
        OptionError: It does not fit.
    """
    if not holds:
        msg = f"{problem}."
        raise OptionError(msg)


def thread_count(threads: int | None) -> int:
    """How many threads the option `threads` stands for; none = one for each processor.

    Raises:
        OptionError: It is less than 1.
    """
    check(threads is None or threads > 0, f"threads is {threads}, and must be 1 or more")
    return threads or _processors()


def _processors() -> int:
    """How many threads can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
