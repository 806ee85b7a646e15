"""What is found about the views of documents, their several vectors, and how it is shown: a table and a plot.

See `retrievalkit.evaluate.views.program` for what the figures mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console

SHOWN_VIEWS = 24
_BLUE, _LIGHT, _INK = "#1f5fa8", "#9dbde0", "#333333"


@dataclass(frozen=True)
class View:
    """One of the vectors that documents have.

    Attributes:
        number: Its place among a document's vectors, from 0.
        label: What the pooler calls it.
        offered: How often it was there to be chosen: short documents may lack it.
        answered: How often it was the best.
        share: Of all queries, those that it answered.
        mean_score: Its mean inner product, where it was offered.
    """

    number: int
    label: str
    offered: int
    answered: int
    share: float
    mean_score: float


@dataclass(frozen=True)
class Analysis:
    """What `analyse_views` found.

    Attributes:
        views: Every view, in order.
        pairs: Pairs of a query and a judged document.
        queries: Different queries among them; `documents` likewise.
        compared: Query vectors compared: as many as pairs where a query has one vector.
        local_variation: The mean; None where no document has two vectors.
        perplexity: The mean over documents; `perplexity_bound` is the mean of the most that it could be.
        perplexity_pooled: Of all pairs as one distribution.
        local_variations: One for each query vector compared.
        perplexities: One for each document.
        options: How the scores of Local Variation were normalised.
        notes: What a reader of the numbers should know, as sentences.
    """

    views: list[View]
    pairs: int
    queries: int
    documents: int
    compared: int
    local_variation: float | None
    perplexity: float
    perplexity_bound: float
    perplexity_pooled: float
    local_variations: list[float]
    perplexities: list[float]
    options: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """A value that `json.dumps` takes, without the figures of each pair and document."""
        return {name: value for name, value in asdict(self).items() if name not in ("local_variations", "perplexities")}


def local_variation(scores: Tensor) -> Tensor:
    """How far the best of a document's views stands out: its score less the mean of the others'.

    Args:
        scores: (..., m) scores of m >= 2 views.

    Returns:
        (...) Local Variations.
    """
    best = scores.amax(dim=-1)
    return best - (scores.sum(dim=-1) - best) / (scores.shape[-1] - 1)


def perplexity(views: Iterable[int]) -> float:
    """How many views share the work: exp of the entropy of the views that answer, given one for each query."""
    counts = Counter(views).values()
    shares = [count / sum(counts) for count in counts]
    return math.exp(-math.fsum(share * math.log(share) for share in shares))


def mean(values: Sequence[float]) -> float:
    """The mean, whatever the order."""
    return math.fsum(values) / len(values)


def render(analysis: Analysis, console: Console) -> None:
    """Print the analysis as people read it: a table of views, then the figures."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("view")
    for name in ("queries", "share", "mean score"):
        table.add_column(name, justify="right")
    table.add_column("")
    shown = analysis.views
    if len(shown) > SHOWN_VIEWS:
        busiest = sorted(shown, key=lambda view: (-view.answered, view.number))[:SHOWN_VIEWS]
        shown = sorted(busiest, key=lambda view: view.number)
    for view in shown:
        cells = (view.label, f"{view.answered:,}", f"{view.share:.1%}", f"{view.mean_score:.4f}")
        table.add_row(*map(Text, cells), Text("█" * round(20 * view.share), style="blue"))
    console.print(table)
    hidden = len(analysis.views) - len(shown)
    answered = sum(view.answered for view in shown)
    rest = [f"{hidden} more views answer {analysis.compared - answered:,} queries."] if hidden else []
    for line in [*rest, *_figures(analysis), *(f"Note: {note}" for note in analysis.notes)]:
        console.print(Text(line))


def _figures(analysis: Analysis) -> list[str]:
    """The figures in words."""
    vectors = "" if analysis.compared == analysis.pairs else f", {analysis.compared:,} query vectors"
    variation = "-" if analysis.local_variation is None else f"{analysis.local_variation:.4f}"
    temperature = analysis.options["temperature"]
    kinds = {"softmax": f"a softmax at temperature {temperature}", "cosine": "cosines", "raw": "inner products"}
    kind = kinds[analysis.options["scores"]]
    return [
        f"{analysis.pairs:,} pairs of {analysis.queries:,} queries and {analysis.documents:,} documents{vectors}",
        f"Local Variation {variation}  (of {kind}: the best view less the mean of the others)",
        f"Perplexity {analysis.perplexity:.4f}  (mean over documents; at most {analysis.perplexity_bound:.4f}), "
        f"{analysis.perplexity_pooled:.4f} over all pairs as one",
    ]


def draw(analysis: Analysis, path: Path, *, title: str) -> None:
    """Draw a PNG: the share of queries that each view answers, and how the two figures are distributed."""
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
    """Bars: level with labels for a few views, upright over their numbers for many."""
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
    """How the values are distributed, with a line at their mean."""
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
    """No frame but the axes, and small figures."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9, colors=_INK)
    axes.xaxis.label.set_fontsize(9)
    axes.yaxis.label.set_fontsize(9)
