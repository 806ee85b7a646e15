"""Batches of texts by a budget of tokens, and threads that prepare and compute them ahead.

Padding costs as much as text does. Texts of similar length share a batch, and a batch is full when its padded size
reaches the budget, so that short texts come in large batches and long texts in small ones.
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
    """Positions in `lengths` in batches of at most `budget` tokens, padding included, and at most `most` texts.

    The longest texts come first, so that memory peaks at the start and a batch that is too large fails at once. Equal
    lengths stay in their order; a text longer than the budget gets a batch of its own.
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
    """The results of a function for each item, in order, computed by several threads a few items ahead."""
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
    """The items of `source`, produced by a thread that stays `ahead` items ahead of the consumer.

    The thread starts when the first item is requested, and ends when the consumer stops.
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
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, which raises it
            items.put(error)

    threading.Thread(target=fill, daemon=True).start()
    try:
        while (item := items.get()) is not done:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        # Makes room for a thread that waits to put an item.
        with contextlib.suppress(queue.Empty):
            items.get_nowait()
