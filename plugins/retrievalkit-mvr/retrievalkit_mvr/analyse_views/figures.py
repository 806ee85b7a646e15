"""Result of an analysis of views: its figures, and the table that is printed.

See `retrievalkit_mvr.analyse_views.program` for the definitions.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from rich.console import Console

SHOWN_VIEWS = 24


@dataclass(frozen=True)
class View:
    """A view: the vectors at one position among the vectors of documents.

    Attributes:
        number: Its position among a document's vectors, from 0.
        label: The pooler's name for it.
        offered: Number of query vectors it was compared with: short documents may lack this view.
        answered: Number of query vectors for which it was the best view.
        share: Share of all query vectors that it answered.
        mean_score: Its mean inner product with the query vectors it was compared with.
    """

    number: int
    label: str
    offered: int
    answered: int
    share: float
    mean_score: float


@dataclass(frozen=True)
class Analysis:
    """Result of `analyse_views`.

    Attributes:
        views: All views, in order.
        pairs: Number of pairs of a query and a judged document.
        queries: Number of distinct queries among the pairs.
        documents: Number of distinct documents among the pairs.
        compared: Number of query vectors compared: equal to `pairs` if a query has one vector.
        local_variation: The mean; None if no document has two vectors.
        perplexity: The mean over documents.
        perplexity_bound: The mean of its upper bound over documents.
        perplexity_pooled: The perplexity of all pairs pooled.
        local_variations: Local Variation of each query vector compared.
        perplexities: Perplexity of each document.
        options: Normalisation of the scores of Local Variation.
        notes: Caveats, as sentences.
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

    def as_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable value, without the figures of each pair and document."""
        return {name: value for name, value in asdict(self).items() if name not in ("local_variations", "perplexities")}

    @property
    def summary(self) -> str:
        """Table of the views, followed by the figures as sentences."""
        from rich.console import Console

        console = Console(file=io.StringIO())
        with console.capture() as captured:
            render(self, console)
        return captured.get().rstrip("\n")


def local_variation(scores: Tensor) -> Tensor:
    """Return the margin of a document's best view: its score minus the mean score of the others.

    Args:
        scores: (..., m) scores of m >= 2 views.

    Returns:
        (...) Local Variations.
    """
    best = scores.amax(dim=-1)
    return best - (scores.sum(dim=-1) - best) / (scores.shape[-1] - 1)


def perplexity(views: Iterable[int]) -> float:
    """Return the effective number of answering views: exp of the entropy of their shares.

    Args:
        views: The answering view of each query.
    """
    counts = Counter(views).values()
    shares = [count / sum(counts) for count in counts]
    return math.exp(-math.fsum(share * math.log(share) for share in shares))


def mean(values: Sequence[float]) -> float:
    """Return the mean, exactly rounded: it does not depend on the order."""
    return math.fsum(values) / len(values)


def render(analysis: Analysis, console: Console) -> None:
    """Print a table of the views, then the figures as sentences."""
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
    for line in [*rest, *_figures(analysis)]:
        console.print(Text(line))


def _figures(analysis: Analysis) -> list[str]:
    """Return the figures as sentences."""
    vectors = "" if analysis.compared == analysis.pairs else f", {analysis.compared:,} query vectors"
    variation = "-" if analysis.local_variation is None else f"{analysis.local_variation:.4f}"
    temperature = analysis.options["temperature"]
    kinds = {"softmax": f"a softmax at temperature {temperature}", "cosine": "cosines", "raw": "inner products"}
    kind = kinds[analysis.options["scores"]]
    return [
        f"{analysis.pairs:,} pairs of {analysis.queries:,} queries and {analysis.documents:,} documents{vectors}",
        f"Local Variation {variation}  (of {kind}: the best view less the mean of the others)",
        f"Perplexity {analysis.perplexity:.4f}  (mean over documents; at most {analysis.perplexity_bound:.4f}), "
        f"{analysis.perplexity_pooled:.4f} pooled over all pairs",
    ]
