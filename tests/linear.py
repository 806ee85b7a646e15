"""Check of linear run time, generous, by processor time."""

from __future__ import annotations

import time


def assert_linear(work, small, large):
    """Check that eight times the input takes at most 24 times as long; quadratic work would take 64 times.

    Args:
        work: The function under test.
        small: Its input.
        large: An input of the same kind, eight times as large.
    """
    assert len(large) >= 8 * len(small)

    def seconds(value):
        start = time.process_time()
        work(value)
        return time.process_time() - start

    first = min(seconds(small) for _ in range(3))
    # A few milliseconds cannot be measured precisely.
    assert seconds(large) < max(24 * first, 0.5)
