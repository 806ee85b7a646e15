"""Plots of a comparison: means with their intervals, and the difference on each query.

The two colours (blue and orange of Okabe and Ito's palette) are safe for colour-blind readers, and position repeats
their meaning: wins are above the line, losses below.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrievalkit.evaluation.compare.compare import ALL_PAIRS
from retrievalkit.evaluation.compare.comparison import Comparison

PANELS_PER_ROW = 3
_NAMED_QUERIES = 40
_MAX_PAIRS = 12
_MAX_TIED = 0.6
_WON, _LOST = "#0072B2", "#E07B00"
_LIGHT = {"paper": "#ffffff", "ink": "#1c2126", "soft": "#5a6570", "line": "#b5bcc3"}
_DARK = {"paper": "#14181c", "ink": "#e4e8eb", "soft": "#9aa5af", "line": "#4a545e"}


@dataclass(frozen=True)
class Picture:
    """A PNG and its dark-mode version; the width of both is in CSS pixels (96 per inch)."""

    light: bytes
    dark: bytes
    width: int


def draw_means(comparison: Comparison) -> Picture:
    """Draw one panel per metric, with each run's mean and interval."""
    metrics, runs = comparison.metrics, comparison.runs
    columns = min(len(metrics), PANELS_PER_ROW)
    rows = -(-len(metrics) // columns)

    def draw(axes: Any, colours: dict[str, str]) -> None:
        for place, panel in enumerate(axes.flat):
            if place >= len(metrics):
                panel.set_visible(False)
                continue
            means = [mean for mean in comparison.means if mean.metric == metrics[place]]
            middle = np.array([mean.mean for mean in means])
            reach = np.abs(np.array([[mean.low, mean.high] for mean in means]).T - middle)
            for mean in means:
                if mean.run == comparison.baseline != ALL_PAIRS:
                    panel.axvline(mean.mean, color=colours["line"], linewidth=1, linestyle=(0, (4, 3)), zorder=0)
            style: dict[str, Any] = {"fmt": "o", "color": _WON, "ecolor": _WON, "elinewidth": 2, "markersize": 6}
            panel.errorbar(middle, np.arange(len(means)), xerr=reach, capsize=4, zorder=2, **style)
            for row, mean in enumerate(means):
                panel.annotate(
                    f"{mean.mean:.4f}", (mean.mean, row), (0, 7), textcoords="offset points", ha="center", fontsize=9,
                    color=colours["ink"],
                )  # fmt: skip
            panel.set_ylim(len(means) - 0.5, -0.75)
            panel.margins(x=0.12)
            panel.set_title(metrics[place], loc="left", fontsize=11, weight="bold", color=colours["ink"])
            panel.tick_params(axis="y", length=0, labelsize=10)
            panel.spines[["top", "right", "left"]].set_visible(False)
            if place % columns == 0:
                panel.set_yticks(range(len(runs)), [_short(run) for run in runs])

    size = (max(5.5, 3.4 * columns + 1.2), rows * (0.9 + 0.36 * len(runs)) + 0.2)
    return _picture(size, rows, columns, draw)


def draw_differences(comparison: Comparison, metric: str) -> Picture:
    """Draw one panel per pair of runs, with the difference on each query in descending order."""
    pairs = [pair for pair in comparison.differences if pair.metric == metric][:_MAX_PAIRS]
    by_run = comparison.per_query[metric]

    def draw(axes: Any, colours: dict[str, str]) -> None:
        for panel, pair in zip(axes.flat, pairs, strict=True):
            gaps = {query_id: value - by_run[pair.against][query_id] for query_id, value in by_run[pair.run].items()}
            ties_left_out = pair.ties > _MAX_TIED * len(gaps) and pair.wins + pair.losses > 0
            shown = [query_id for query_id in gaps if gaps[query_id] or not ties_left_out]
            order = sorted(shown, key=lambda query_id: (-gaps[query_id], query_id))
            values = np.array([gaps[query_id] for query_id in order])
            places = np.arange(len(values))
            if len(values) <= 400:
                panel.bar(places, values, width=0.85, color=np.where(values > 0, _WON, _LOST), zorder=2)
            else:  # bars narrower than a pixel would differ in width by chance
                for colour, part in ((_WON, np.maximum(values, 0)), (_LOST, np.minimum(values, 0))):
                    panel.fill_between(places, part, step="mid", color=colour, linewidth=0, zorder=2)
            panel.axhline(0, color=colours["line"], linewidth=1)
            panel.axhspan(pair.low, pair.high, color=colours["soft"], alpha=0.22, linewidth=0, zorder=0)
            panel.axhline(pair.difference, color=colours["soft"], linewidth=1.2, linestyle=(0, (4, 3)), zorder=3)
            panel.set_xlim(-0.7, len(values) - 0.3)
            if len(values) <= _NAMED_QUERIES:
                panel.set_xticks(places, [_short(query_id, 14) for query_id in order], rotation=90, fontsize=8)
                panel.tick_params(axis="x", length=0)
            else:
                which = f"the {len(order):,} queries that differ" if ties_left_out else "queries"
                panel.set_xlabel(f"{which}, by difference", fontsize=9)
            panel.set_ylabel(f"difference of {pair.metric}", fontsize=9)
            score = f"{pair.wins} won, {pair.ties} tied, {pair.losses} lost; mean {pair.difference:+.4f}"
            title = f"{_short(pair.run)} minus {_short(pair.against)}"
            panel.set_title(title, loc="left", fontsize=11, weight="bold", color=colours["ink"])
            panel.set_title(score, loc="right", fontsize=9, color=colours["soft"])
            panel.spines[["top", "right", "bottom"]].set_visible(False)

    return _picture((9.5, 2.7 * len(pairs)), len(pairs), 1, draw)


def _picture(
    size: tuple[float, float], rows: int, columns: int, draw: Callable[[Any, dict[str, str]], None]
) -> Picture:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    light, dark = io.BytesIO(), io.BytesIO()
    for stream, colours in ((light, _LIGHT), (dark, _DARK)):
        figure = Figure(figsize=size, dpi=160, layout="constrained", facecolor=colours["paper"])
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
        for panel in axes.flat:
            panel.set_facecolor(colours["paper"])
            panel.tick_params(labelsize=9, colors=colours["soft"])
            panel.spines[:].set_color(colours["line"])
            panel.xaxis.label.set_color(colours["soft"])
            panel.yaxis.label.set_color(colours["soft"])
        draw(axes, colours)
        figure.savefig(stream, format="png", metadata={"Software": None})
    return Picture(light.getvalue(), dark.getvalue(), round(96 * size[0]))


def _short(name: str, limit: int = 28) -> str:
    """Shorten a name, and escape dollar signs, which matplotlib would typeset as formulas."""
    name = name if len(name) <= limit else f"{name[: limit // 2 - 1]}…{name[-(limit - limit // 2) :]}"
    return name.replace("$", r"\$")
