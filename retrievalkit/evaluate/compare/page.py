"""A comparison as one page to read in a browser: verdicts, the figures behind them, and the queries themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from retrievalkit.evaluate.compare.result import Comparison, Difference, Mean, judgement
from retrievalkit.report.counts import counted
from retrievalkit.report.page import render

MOST_ROWS = 1_000
"""More rows make a browser slow; the rest is in per_query.tsv."""

_MOST_VERDICTS = 12


@dataclass(frozen=True)
class Picture:
    """A PNG, and its twin for a dark screen.

    Attributes:
        width: Of both, in CSS pixels (96 per inch).
    """

    light: bytes
    dark: bytes
    width: int


def comparison_page(
    comparison: Comparison,
    *,
    means: Picture | None = None,
    differences: Mapping[str, Picture] | None = None,
    alone: bool = False,
) -> str:
    """The page of a comparison, as HTML.

    Args:
        comparison: What to show.
        means: The plot of the means.
        differences: Metric -> the plot of the differences.
        alone: Whether the page stands alone, without the other files of a folder.
    """
    names, metrics = comparison.runs, comparison.metrics
    count = max(mean.queries for mean in comparison.means)
    queries = _by_spread(comparison, metrics[0])
    return render(
        "compare.html.j2",
        title=f"Comparison of {' and '.join(names) if len(names) == 2 else f'{len(names)} runs'}",
        subtitle=f"{', '.join(metrics)} over {counted(count, 'queries')}",
        comparison=comparison,
        verdicts=_verdicts(comparison),
        means=means,
        differences=differences or {},
        means_of=_means_of(comparison),
        best={metric: max(mean.mean for mean in comparison.means if mean.metric == metric) for metric in metrics},
        rows={metric: list(_rows(comparison, metric)) for metric in metrics},
        queries=queries[:MOST_ROWS],
        left_out=max(0, len(queries) - MOST_ROWS),
        in_words=judgement,
        alone=alone,
    )


def _verdicts(comparison: Comparison) -> list[Difference]:
    """The differences to put into words: all, or those of the first metric if they are many."""
    every = comparison.differences
    return every if len(every) <= _MOST_VERDICTS else [one for one in every if one.metric == comparison.metrics[0]]


def _means_of(comparison: Comparison) -> dict[tuple[str, str], tuple[Mean, Difference | None]]:
    """{(run, metric): (its mean, its difference from the baseline)}."""
    differences = {(one.run, one.metric): one for one in comparison.differences}
    keys = [(mean.run, mean.metric) for mean in comparison.means]
    return {key: (mean, differences.get(key)) for key, mean in zip(keys, comparison.means, strict=True)}


def _rows(comparison: Comparison, metric: str) -> Iterator[tuple[Mean, Difference | None]]:
    """A row per run, or per pair if a run is compared with several."""
    for mean in comparison.means:
        if mean.metric == metric:
            own = [one for one in comparison.differences if (one.metric, one.run) == (metric, mean.run)]
            differences: list[Difference | None] = [*own] or [None]
            yield from ((mean, one) for one in differences)


def _by_spread(comparison: Comparison, metric: str) -> list[tuple[str, list[Any]]]:
    """(query id, a value per run), the queries first on which the runs differ most."""
    by_run = comparison.per_query[metric]
    found = [(query_id, [by_run[run][query_id] for run in comparison.runs]) for query_id in by_run[comparison.runs[0]]]
    return sorted(found, key=lambda row: (min(row[1]) - max(row[1]), row[0]))
