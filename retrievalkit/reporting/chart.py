"""Line charts as inline SVG, sharp at any size, with colours for light and dark screens.

    chart = line_chart({"train": [(0, 2.3), (100, 1.1)], "dev": [(0, 2.4), (100, 1.6)]}, x="step", y="loss")

The colours are the Okabe-Ito palette, distinguishable with any colour vision; further series are dashed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from retrievalkit.reporting.page import render

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 44
_COLOURS = 6
_TICKS = 6
_MOST_POINTS = 2 * WIDTH
"""More than two points per unit of width are invisible, and would make the page large."""


@dataclass(frozen=True)
class _Axis:
    """Maps values from low ... high to positions from start ... end."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the ticks as (position, label), 1, 2 or 5 times a power of ten apart."""
        least = (self.high - self.low) / _TICKS
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        return [(self(number * step), _label(number * step, decimals)) for number in range(first, last + 1)]


def line_chart(series: Mapping[str, Points], *, x: str, y: str) -> str:
    """Draw an SVG with one line per series.

    Args:
        series: Name -> (x, y) pairs in the order of x. Values that are not finite are skipped.
        x: Label of the horizontal axis, with its unit.
        y: Label of the vertical axis, with its unit.
    """
    finite = {
        name: [(a, b) for a, b in points if math.isfinite(a) and math.isfinite(b)] for name, points in series.items()
    }
    across = _axis([a for points in finite.values() for a, _ in points], _LEFT, WIDTH - _RIGHT)
    up = _axis([b for points in finite.values() for _, b in points], HEIGHT - _BOTTOM, _TOP)
    lines = [
        {
            "name": name,
            "colour": 1 + number % _COLOURS,
            "dashed": number >= _COLOURS,
            "points": [(round(across(a), 1), round(up(b), 1)) for a, b in _thinned(points)],
        }
        for number, (name, points) in enumerate(finite.items())
    ]
    return render(
        "line_chart.svg.j2", lines=lines, across=across, up=up, x=x, y=y, width=WIDTH, height=HEIGHT
    ).strip()  # fmt: skip


def _axis(values: Sequence[float], start: float, end: float) -> _Axis:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    return _Axis(low, high, start, end)


def _label(value: float, decimals: int) -> str:
    if decimals > 4:  # a learning rate: no room for more digits
        return f"{value:.1e}" if value else "0"
    return f"{value + 0.0:,.{decimals}f}"


def _thinned(points: Points) -> Points:
    """Return every n-th point and the last point, few enough to draw."""
    stride = -(-len(points) // _MOST_POINTS) or 1
    return [*points[:-1:stride], *points[-1:]]
