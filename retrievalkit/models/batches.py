"""Batches of texts by a token budget, the memory that limits it, and threads that compute batches ahead.

Padding costs as much as text. Texts of similar length share a batch, and a batch is full when its padded size reaches
the budget: short texts form large batches and long texts form small batches. On a GPU the budget comes from its free
memory, and is halved whenever that runs out.
"""

from __future__ import annotations

import faulthandler
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar

import torch

from retrievalkit.reporting import notices

# Bytes of the intermediate values of a token in a layer, per column of its hidden state: in float32, eight values as
# wide as the hidden state and three as wide as the feed-forward layer, which is four times as wide.
_VALUE_BYTES = 4 * (8 + 3 * 4)
# Larger batches keep no GPU busier.
_MOST_TOKENS = 1 << 18
MOST_TEXTS = 4096
_STUCK = 600  # seconds

Item = TypeVar("Item")
Result = TypeVar("Result")


def token_budget_batches(lengths: Sequence[int], budget: int, *, most: int = MOST_TEXTS) -> list[list[int]]:
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


class TokenLimit:
    """Maximum number of tokens, padding included, that a model computes at a time on its device.

    Args:
        width: Width of the hidden states.
        layers: Number of layers whose intermediate values are kept, as for a backward pass.

    Attributes:
        reduced: The limit since the device ran out of memory; None = it has not.
    """

    def __init__(self, width: int, layers: int = 1) -> None:
        self.token_bytes = _VALUE_BYTES * width * layers
        self.reduced: int | None = None
        self._fitting: int | None = None

    def budget(self, device: torch.device, on_cpu: int, *, reserved: int = 0) -> int:
        """Return the default budget: `on_cpu`, or on a GPU half of its free memory after `reserved` bytes.

        A power of two, and the same in later calls: slightly different batches would change the last digits.
        """
        if device.type == "cpu":
            return on_cpu
        if self._fitting is None:
            torch.cuda.empty_cache()  # memory that torch keeps for later tensors is free
            free, _ = torch.cuda.mem_get_info(device)
            tokens = (free - reserved) // (2 * self.token_bytes)
            self._fitting = min(_MOST_TOKENS, 1 << max(1, tokens).bit_length() - 1)
        return self._fitting

    def reduce(self, tokens: int) -> None:
        """Limit batches to half of the size that did not fit."""
        self.reduced = tokens // 2
        notices.note(
            "The device ran out of memory, so texts were computed in smaller batches from then on. "
            "Set batch_tokens to a size that fits."
        )

    def entries(self) -> dict[str, int]:
        """Return the manifest's entry for a limit that the memory of the device has set."""
        return {} if self.reduced is None else {"batch_tokens": self.reduced}

    def compute(self, function: Callable[[list[int]], Result], lengths: Sequence[int], rows: list[int]) -> list[Result]:
        """Compute a batch of texts, in parts if it exceeds the limit or the device runs out of memory.

        Args:
            function: Computes the texts at these positions.
            lengths: Number of tokens of all texts.
            rows: Positions of the batch, the longest text first.
        """
        tokens = len(rows) * lengths[rows[0]]
        if len(rows) == 1 or tokens <= (self.reduced or tokens):
            try:
                return [function(rows)]
            except torch.OutOfMemoryError:
                if len(rows) == 1:
                    raise
                self.reduce(tokens)
        # Outside of the handler, since its traceback keeps the tensors of the batch.
        half = len(rows) // 2
        return [result for part in (rows[:half], rows[half:]) for result in self.compute(function, lengths, part)]


def in_threads(function: Callable[[Item], Result], items: Iterable[Item], threads: int) -> Iterator[Result]:
    """Yield the results of a function for each item, in order, computed a few items ahead by several threads.

    If a result takes ten minutes, the place where each thread waits is printed: by faulthandler, because a deadlock in
    a library may keep Python from running.
    """
    if threads <= 1:
        yield from map(function, items)
        return
    pending: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for item in items:
                pending.append(pool.submit(copy_context().run, function, item))
                if len(pending) > 2 * threads:
                    yield _awaited(pending.popleft())
            while pending:
                yield _awaited(pending.popleft())
        finally:
            for future in pending:
                future.cancel()


def _awaited(future: Future[Result]) -> Result:
    with suppress(AttributeError, OSError, RuntimeError, ValueError):  # no standard error
        faulthandler.dump_traceback_later(_STUCK, file=sys.__stderr__ or sys.stderr)
    try:
        return future.result()
    finally:
        faulthandler.cancel_dump_traceback_later()
