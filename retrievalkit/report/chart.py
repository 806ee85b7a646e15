"""Line charts as SVG, in the colours of the reader's screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT, _MARGIN = 640, 240, 48
_COLOURS = ("#2a6fdb", "#d2691e", "#2e8b57", "#b03060", "#8a6fdf", "#808000")


def line_chart(series: Mapping[str, Sequence[tuple[float, float]]], *, x: str, y: str) -> str:
    """A chart of one or several curves, with a legend.

    Args:
        series: Name -> its (x, y) points.
        x: Name of the horizontal axis.
        y: Name of the vertical axis.

    Returns:
        The text of an SVG.
    """
    points = [point for curve in series.values() for point in curve if point[1] == point[1]]
    left, right = min(p[0] for p in points), max(p[0] for p in points)
    low, high = min(p[1] for p in points), max(p[1] for p in points)
    across, up = (right - left) or 1.0, (high - low) or 1.0

    def place(point: tuple[float, float]) -> str:
        column = _MARGIN + (point[0] - left) / across * (_WIDTH - 2 * _MARGIN)
        return f"{column:.1f},{_HEIGHT - _MARGIN - (point[1] - low) / up * (_HEIGHT - 2 * _MARGIN):.1f}"

    lines = []
    for number, (name, curve) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(place(point) for point in curve if point[1] == point[1])
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"/>')
        lines.append(f'<text x="{_MARGIN + 110 * number}" y="14" fill="{colour}">{escape(name)}</text>')
    base = _HEIGHT - _MARGIN
    labels = [(4, _MARGIN, f"{high:.4g}"), (4, base, f"{low:.4g}"), (_MARGIN, base + 18, f"{left:g}")]
    labels += [(_WIDTH - _MARGIN, base + 18, f"{right:g}"), (_WIDTH // 2, base + 34, x), (4, 30, y)]
    lines += [f'<text x="{a}" y="{b}" fill="currentColor">{escape(text)}</text>' for a, b, text in labels]
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-size="12" width="100%">'
    return f"{start}{''.join(lines)}</svg>"
