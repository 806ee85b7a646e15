"""Drawn values: the sizes and settings that components are tested with, the same at every run and on every machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from retrievalkit.errors import UnsupportedError

Drawn = Mapping[str, Any]
Draws = Mapping[str, Sequence[Any]]
"""Name of a value -> its possible values, ascending."""

EXAMPLES, LEAST = 16, 4
"""Number of drawn inputs for a property, and for each of its cases. The first two are the smallest and the largest."""

SEEDS = range(100)


def sizes(least: int, most: int) -> Sequence[int]:
    """Sizes to draw from: a third at powers of two, where code has thresholds, a third the largest, a third any."""
    edges = [2**power + offset for power in range(most.bit_length()) for offset in (-1, 0, 1)]
    edges = [edge for edge in edges if least < edge < most]
    steps = range(least, most, max(1, (most - least) // (1 + len(edges))))
    return sorted([least, *edges, *steps, *[most] * (1 + len(edges))])


def for_all(draws: Draws, check: Callable[[Drawn], object], *, name: str, examples: int, reduce: bool) -> None:
    """Check drawn values, the same for the same name; raise the first error, with the values as its attribute `drawn`.

    With `reduce`, the values are the smallest that fail. A check raises UnsupportedError if it is not applicable to
    some values; if it is not applicable to any, this is raised.
    """
    draw, reasons = random.Random(name), list[UnsupportedError]()
    for number in range(examples):
        drawn: Drawn = {
            key: values[0] if number == 0 else values[-1] if number == 1 else draw.choice(values)
            for key, values in draws.items()
        }
        if isinstance(error := _error(check, drawn), UnsupportedError):
            reasons.append(error)
        elif error is not None:
            if reduce and not isinstance(error, TimeoutError):
                drawn, error = _reduced(draws, drawn, check, error)
            error.drawn = ", ".join(f"{key}={value}" for key, value in drawn.items())  # type: ignore[attr-defined]
            raise error
    if len(reasons) == examples:
        raise reasons[0]


def _error(check: Callable[[Drawn], object], drawn: Drawn) -> Exception | None:
    try:
        check(drawn)
    except Exception as error:  # noqa: BLE001 - a component may raise anything
        return error
    return None


def _reduced(draws: Draws, drawn: Drawn, check: Callable[[Drawn], object], error: Exception) -> tuple[Drawn, Exception]:
    """Replace each value by the smallest that fails too, by bisection; returns the values and their error."""
    for key, values in draws.items():
        low, high, middle = 0, values.index(drawn[key]), 0
        while low < high:
            smaller = {**drawn, key: values[middle]}
            failure = _error(check, smaller)
            if failure is None or isinstance(failure, UnsupportedError):
                low = middle + 1
            else:
                drawn, error, high = smaller, failure, middle
            middle = (low + high) // 2
    return drawn, error
