"""A cell of a recipe's table: our figure by seeds, beside the published one; differences and means of cells."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from retrievalkit.recipe.noise import Verdict


@dataclass(frozen=True)
class Cell:
    """A figure of a row.

    Attributes:
        ours: Seed -> value.
        reference: The published value.
        seedless: Whether one run stands for all seeds, because they make no difference to it.
        queries: Query -> value, averaged over the seeds; {} where only the mean is known.
        verdict: Of a difference: whether it is more than noise.
    """

    ours: Mapping[int | None, float]
    reference: float | None = None
    seedless: bool = False
    queries: Mapping[str, float] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.fmean(self.ours.values())

    @property
    def deviation(self) -> float | None:
        """The standard deviation of a seed (of the sample); None for a single one."""
        return statistics.stdev(self.ours.values()) if len(self.ours) > 1 and not self.seedless else None

    @property
    def difference(self) -> float | None:
        """Ours less the reference."""
        return None if self.reference is None else self.mean - self.reference

    def less(self, other: Cell) -> Cell:
        """The difference to another cell, seed by seed and query by query."""
        ours = {seed: value - other.ours[seed] for seed, value in self.ours.items() if seed in other.ours}
        known = self.reference is not None and other.reference is not None
        reference = self.reference - other.reference if known else None  # type: ignore[operator]
        queries = {
            query: value - other.queries[query] for query, value in self.queries.items() if query in other.queries
        }
        return Cell(ours, reference, self.seedless and other.seedless, queries)

    @property
    def direction(self) -> str:
        """Of a difference: whether ours has the sign of the reference; "" where one of them has none."""
        if not self.reference or not self.mean:
            return ""
        return "same" if (self.mean > 0) == (self.reference > 0) else "opposite"

    def to_json(self) -> dict[str, Any]:
        """A value that `json.dumps` takes."""
        value: dict[str, Any] = {"ours": self.mean}
        if self.deviation is not None:
            value |= {"deviation": self.deviation, "seeds": {str(seed): one for seed, one in self.ours.items()}}
        if self.reference is not None:
            value |= {"reference": self.reference, "difference": self.difference}
        return value


def mean_cell(cells: Sequence[Cell], reference: float | None = None) -> Cell:
    """The mean of the cells of several rows, each of which counts the same however many queries it has.

    The values of queries are weighted so that their mean is that of the rows: a test over them is one by strata.

    Args:
        cells: At least one, in the order of the sets.
        reference: The published value.
    """
    seeds = set.intersection(*(set(cell.ours) for cell in cells))
    first = cells[0]
    ours = {seed: statistics.fmean(cell.ours[seed] for cell in cells) for seed in first.ours if seed in seeds}
    queries: dict[str, float] = {}
    if all(cell.queries for cell in cells):
        total = sum(len(cell.queries) for cell in cells)
        # By the place of a row and not by its name: those of the baseline have other names.
        for place, cell in enumerate(cells):
            weight = total / (len(cells) * len(cell.queries))
            queries |= {f"{place}/{query}": value * weight for query, value in cell.queries.items()}
    return Cell(ours, reference, all(cell.seedless for cell in cells), queries)
