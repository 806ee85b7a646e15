"""The plot of an analysis: the share of queries that each view answers, and two histograms. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrievalkit.errors import MissingDependencyError
from retrievalkit_mvr.analyse_views.figures import SHOWN_VIEWS, Analysis, mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BLUE, _LIGHT, _INK = "#1f5fa8", "#9dbde0", "#333333"


def check_matplotlib() -> None:
    """Refuse a plot without matplotlib, before anything is computed.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        needed_for = "the plot (--no-plot leaves it out)"
        raise MissingDependencyError("matplotlib", needed_for, "'retrievalkit[plot]'") from error


def draw(analysis: Analysis, path: Path, *, title: str) -> None:
    """Draw a PNG: the share of queries that each view answers, and the distributions of the two figures."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 4.8), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels: Any = figure.subfigures(1, 2, width_ratios=[3, 2])
    _draw_shares(panels[0].subplots(), analysis)
    upper, lower = panels[1].subplots(2, 1)
    scores, bound = analysis.options["scores"], analysis.perplexity_bound
    unit = "pairs" if analysis.compared == analysis.pairs else "query vectors"
    _draw_histogram(upper, analysis.local_variations, f"Local Variation ({scores})", unit)
    most = max(2.0, bound, *analysis.perplexities)
    name = f"Perplexity of a document (its mean at most {bound:.2f})"
    _draw_histogram(lower, analysis.perplexities, name, "documents", limits=(1.0, most))
    pairs = f"{analysis.pairs:,} pairs of {analysis.queries:,} queries and {analysis.documents:,} documents"
    figure.suptitle(f"{title}: which view answers ({pairs})", x=0.01, ha="left", fontsize=11, weight="bold")
    figure.savefig(path, format="png", metadata={"Software": None})


def _draw_shares(axes: Axes, analysis: Analysis) -> None:
    """Draw bars: horizontal with labels for a few views, vertical over their numbers for many."""
    shares = [100 * view.share for view in analysis.views]
    if len(shares) > SHOWN_VIEWS:
        axes.bar([view.number for view in analysis.views], shares, width=1.0, color=_BLUE)
        axes.set_xlabel(f"number of the view (0 = {analysis.views[0].label})")
        axes.set_ylabel("share of queries answered, %")
        _bare(axes)
        return
    colors = [_BLUE if share == max(shares) else _LIGHT for share in shares]
    bars = axes.barh([view.label for view in analysis.views], shares, color=colors, height=0.72)
    axes.bar_label(bars, labels=[f"{share:.1f}%" for share in shares], padding=4, fontsize=9, color=_INK)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.14 * max(shares))
    axes.set_xlabel("share of queries answered, %")
    axes.tick_params(axis="y", length=0)
    _bare(axes)


def _draw_histogram(
    axes: Axes, values: Sequence[float], name: str, unit: str, limits: tuple[float, float] | None = None
) -> None:
    """Draw the distribution of the values, with a line at their mean."""
    axes.set_xlabel(name)
    axes.set_ylabel(unit)
    _bare(axes)
    if not values:
        return
    axes.hist(values, bins=30, range=limits, color=_LIGHT, edgecolor="white", linewidth=0.4)
    middle = mean(values)
    axes.axvline(middle, color=_BLUE, linewidth=1.6)
    axes.set_title(f"mean {middle:.4g}", loc="right", fontsize=9, color=_BLUE)


def _bare(axes: Axes) -> None:
    """Keep only the two axes of the frame, and small tick labels."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, colors=_INK)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)
