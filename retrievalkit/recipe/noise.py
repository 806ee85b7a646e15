"""Is the difference of two rows more than noise? Tests over seeds and over queries, for one column of a table.

Over seeds: the paired t-test on the rows' differences, seed by seed. Over queries: the paired randomisation test on the
values of each query, averaged over seeds. Both are corrected by Holm's rule over the rows. Where both can be made, a
difference has to pass both: one says that another seed would show it, the other that other queries would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LEVEL = 0.05


@dataclass(frozen=True)
class Verdict:
    """The p-values of a difference, corrected; None where there is nothing to test by."""

    seeds: float | None = None
    queries: float | None = None

    @property
    def p(self) -> float | None:
        """The larger of the two."""
        return max((p for p in (self.seeds, self.queries) if p is not None), default=None)

    @property
    def shown(self) -> bool | None:
        """Whether there is a difference; None where no test could be made."""
        return None if self.p is None else self.p < LEVEL

    def to_json(self) -> dict[str, Any]:
        """A value that `json.dumps` takes."""
        return {"p_seeds": self.seeds, "p_queries": self.queries, "shown": self.shown}


def verdicts(seeds: Mapping[str, Sequence[float]], queries: Mapping[str, Sequence[float]]) -> dict[str, Verdict]:
    """Test the differences of several rows to one baseline.

    Args:
        seeds: Row -> a difference for each seed; rows with fewer than two are not tested over seeds.
        queries: Row -> a difference for each query; rows with none are not tested over queries.
    """
    from retrievalkit.evaluate.significance import randomisation_test, t_test

    by_seeds = _corrected({row: t_test(gaps) for row, gaps in seeds.items() if len(gaps) > 1})
    by_queries = _corrected({row: randomisation_test(gaps) for row, gaps in queries.items() if gaps})
    return {row: Verdict(by_seeds.get(row), by_queries.get(row)) for row in dict.fromkeys((*seeds, *queries))}


def _corrected(p_values: Mapping[str, float]) -> dict[str, float]:
    from retrievalkit.evaluate.significance import holm

    return dict(zip(p_values, holm(list(p_values.values())), strict=True))
