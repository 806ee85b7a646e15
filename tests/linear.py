"""Work that grows as its input does, not as its square: checked by processor time, generously."""

from __future__ import annotations

import time


def assert_linear(work, small, large):
    """Eight times the input takes at most 24 times as long, where quadratic work takes 64 times.

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
    # What is done in a few milliseconds is measured too roughly.
    assert seconds(large) < max(24 * first, 0.5)
