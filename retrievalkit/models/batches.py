"""Batches of texts by a token budget, and threads that prepare and compute batches ahead.

Padding costs as much as text. Texts of similar length share a batch, and a batch is full when its padded size reaches
the budget: short texts form large batches and long texts form small batches.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def token_budget_batches(lengths: Sequence[int], budget: int, *, most: int = 4096) -> list[list[int]]:
    """Group positions in `lengths` into batches of at most `budget` tokens, padding included, and `most` texts.

    The longest texts come first, so that memory peaks at the start and a batch that is too large fails immediately.
    Texts of equal length keep their order; a text longer than the budget gets its own batch.
    """
    order = sorted(range(len(lengths)), key=lambda position: -lengths[position])
    batches: list[list[int]] = []
    longest = 0
    for position in order:
        if not batches or len(batches[-1]) >= most or (len(batches[-1]) + 1) * longest > budget:
            batches.append([])
            longest = max(1, lengths[position])
        batches[-1].append(position)
    return batches


def in_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield the results of a function for each item, in order, computed a few items ahead by several threads."""
    if threads == 1:
        yield from map(function, items)
        return
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                pending.append(pool.submit(function, item))
                if len(pending) > 2 * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


def prefetch(source: Iterable[Item], *, ahead: int = 1) -> Iterator[Item]:
    """Yield the items of `source`, produced by a thread that stays `ahead` items ahead of the consumer.

    The thread starts with the first request for an item, and ends when the consumer stops.
    """
    done = object()
    items: queue.Queue[Any] = queue.Queue(maxsize=ahead)
    stopped = threading.Event()

    def fill() -> None:
        try:
            for item in source:
                items.put(item)
                if stopped.is_set():
                    return
            items.put(done)
        except BaseException as error:  # noqa: BLE001 - raised again in the consumer
            items.put(error)

    threading.Thread(target=fill, daemon=True).start()
    try:
        while (item := items.get()) is not done:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        # Make room for a thread that waits to put an item.
        with contextlib.suppress(queue.Empty):
            items.get_nowait()
