"""The system to take, and a question to try it with: both from the user's own test questions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from retrievalkit.data.qrels import Qrels
from retrievalkit.data.queries import Query
from retrievalkit.data.runs import Run
from retrievalkit.recipe.noise import LEVEL

_READABLE = range(4, 13)  # words of a question that fits a line and says something


@dataclass(frozen=True)
class Recommendation:
    """The simplest system that nothing is shown to be better than.

    Attributes:
        system: The recommended run.
        best: The run with the highest mean, which may be another one.
        p: The corrected p-value of the difference between them; None if they are the same.
    """

    system: str
    best: str
    p: float | None = None


def recommend(
    systems: Sequence[str], means: Mapping[str, float], differences: Iterable[Mapping[str, Any]]
) -> Recommendation:
    """The simplest system that none is shown to be better than: not the best one, and no other.

    Args:
        systems: The names of the runs, simplest first.
        means: Run -> its mean in the metric that counts.
        differences: Of all pairs of runs in this metric: {"run", "against", "p_corrected"}.
    """
    best = max(systems, key=lambda name: means[name])  # of equal ones the simplest
    p_values = {frozenset((one["run"], one["against"])): one["p_corrected"] for one in differences}
    for system in systems[: systems.index(best)]:
        better = [other for other in systems if means[other] > means[system]]
        if all(p_values[frozenset((system, other))] >= LEVEL for other in better):
            return Recommendation(system, best, p_values[frozenset((system, best))])
    return Recommendation(best, best)


def question(queries: Iterable[Query], qrels: Qrels, run: Run, baseline: Run) -> str | None:
    """The text of a test question whose first hit is relevant; None if there is none.

    Questions that the baseline fails on come first, then those of a readable length, then the order of the file.

    Args:
        queries: The test questions.
        qrels: Their judgements.
        run: The recommended system's run.
        baseline: The run of the system that it should beat.
    """

    def succeeds(hits: Run, query: Query) -> bool:
        first = hits.get(query.id) or [("", 0.0)]
        return qrels.get(query.id, {}).get(first[0][0], 0) > 0

    solved = [query for query in queries if succeeds(run, query)]
    solved.sort(key=lambda query: (succeeds(baseline, query), len(query.text.split()) not in _READABLE))
    return solved[0].text if solved else None
