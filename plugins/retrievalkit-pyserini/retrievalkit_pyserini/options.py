"""Validation of the indexers' options, and their number of threads."""

from __future__ import annotations

import os

from retrievalkit.errors import OptionError


def check(holds: bool, problem: str) -> None:
    """Reject an invalid option.

    Args:
        holds: Whether the option is valid.
        problem: The message if it is not, without the final full stop.

    Raises:
        OptionError: The option is invalid.
    """
    if not holds:
        msg = f"{problem}."
        raise OptionError(msg)


def thread_count(threads: int | None) -> int:
    """The number of threads for the option `threads`; none = one per processor.

    Raises:
        OptionError: `threads` is less than 1.
    """
    check(threads is None or threads > 0, f"threads is {threads}, and must be 1 or more")
    return threads or processors()


def processors() -> int:
    """How many threads can run at once."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
