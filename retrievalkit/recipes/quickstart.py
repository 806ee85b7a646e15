"""The recipe `quickstart`, and its results as a table.

Each system is compared with the system that it should beat, by the difference in nDCG@10 and a paired significance
test. The summary ends with the recommended system, the comparison page, and a search command with a test question.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrievalkit import storage
from retrievalkit.data.qrels import Qrels, read_qrels
from retrievalkit.data.queries import Query, read_queries
from retrievalkit.data.runs import Run, read_run
from retrievalkit.recipes.outcome import Outcome, times
from retrievalkit.recipes.recipe import Recipe
from retrievalkit.recipes.results import LEVEL
from retrievalkit.recipes.step import closure
from retrievalkit.reporting.table import Table, text_table

RESULTS = "results.json"
METRICS = ("nDCG@10", "RR@10", "R@100", "Success@5", "Success@20")
COLUMNS = ("nDCG@10", "RR@10", "R@100", "top5", "top20")
_READABLE = range(4, 13)  # number of words of a question that fits a line and is informative


# System -> the step that searches the test questions with it, and the system that it should beat. Simplest first: of
# systems without a significant difference, the first is recommended.
SYSTEMS = {
    "BM25": ("bm25_run", ""),
    "untrained encoder": ("untrained_run", "BM25"),
    "dual encoder": ("plain_run", "untrained encoder"),
    "self-contrastive 1": ("stage1_run", "dual encoder"),
    "self-contrastive 2": ("stage2_run", "self-contrastive 1"),
    "hybrid BM25 + stage 2": ("hybrid_run", "BM25"),
}


class Quickstart(Table):
    """Results of the quickstart: a row per system."""

    def __init__(self, folder: Path, rows: Iterable[Mapping[str, Any]], summary: str) -> None:
        super().__init__(f"Quickstart in {folder}", rows)
        self.summary = summary

    def as_json(self) -> list[dict[str, Any]]:
        """Return the content of `results.json`."""
        return list(self)


def results(recipe: Recipe, outcome: Outcome, folder: Path, title: str) -> Quickstart:
    """Collect the figures of all systems from the outputs of the steps, and write `results.json`."""
    steps = {step.name: step for step in outcome.steps}
    comparison = storage.read_json(folder / "comparison.json", do="Run the quickstart again, with --force.")
    # A comparison identifies runs by their file names.
    runs = {name: Path(str(steps[step].output)).stem for name, (step, _) in SYSTEMS.items()}
    means = {(mean["metric"], mean["run"]): mean["mean"] for mean in comparison["means"]}
    pairs = [pair for pair in comparison["differences"] if pair["metric"] == METRICS[0]]
    uses = {step.name: step.uses for step in recipe.steps}
    rows = []
    table: list[tuple[str, ...]] = [("system", *COLUMNS, "seconds")]
    differences = [("system", "against", "difference", "p", "")]
    for name, (search_step, other) in SYSTEMS.items():
        run, against = runs[name], runs.get(other)
        row: dict[str, Any] = {"system": name}
        row |= {column: round(means[metric, run], 4) for column, metric in zip(COLUMNS, METRICS, strict=True)}
        row["seconds"] = round(sum(steps[step].seconds for step in closure(uses, [search_step])), 1)
        rows.append(row)
        table.append((name, *(f"{row[column]:.3f}" for column in COLUMNS), f"{row['seconds']:.0f}"))
        if against is None:
            continue
        pair = next(pair for pair in pairs if {pair["run"], pair["against"]} == {run, against})
        sign = 1 if pair["run"] == run else -1  # each pair is listed in one direction only
        p, corrected = pair["p_value"], pair["p_corrected"]
        row |= {"against": other, "difference": round(sign * pair["difference"], 4)}
        row |= {"p": p, "p_corrected": corrected}
        verdict = "" if corrected < LEVEL else "no difference shown"
        differences.append((name, other, f"{row['difference']:+.4f}", f"{corrected:.4f}", verdict))
    storage.write_json(folder / RESULTS, rows)

    by_run = {run: name for name, run in runs.items()}
    values = {run: means[METRICS[0], run] for run in by_run}
    chosen, best, p = recommend(list(by_run), values, pairs)
    value = f"{METRICS[0]} {values[chosen]:.3f}"
    if p is None:
        why = f", the best by {METRICS[0]} on these questions ({value})"
    else:
        why = f" ({value}): not significantly worse than {by_run[best]} ({values[best]:.3f}, p {p:.2f}), and simpler"
    parts = [
        f"\n{times(outcome.steps)}",
        title,
        text_table(table, right=range(1, len(table[0]))),
        "seconds: all steps that the system needs, training included.",
        f"Difference in {METRICS[0]}",
        text_table(differences, right=(2, 3)),
        "p: paired randomisation test over the questions, Holm's correction over all pairs.",
        f"Recommended: {by_run[chosen]}{why}.\nQuestion by question: open {folder / 'compare.html'} in a browser.",
    ]

    # A command that searches with the recommended system, for a test question that it answers.
    step = next(step for step in recipe.steps if step.name == SYSTEMS[by_run[chosen]][0])
    options = recipe.options_in(step, str(folder))
    hits, baseline = (read_run(str(steps[name].output)) for name in (step.name, SYSTEMS["BM25"][0]))
    if text := question(read_queries(options["queries"]), read_qrels(recipe.values["qrels"]), hits, baseline):
        indexes = options["indexes"] if isinstance(options["indexes"], list) else [options["indexes"]]
        fusion = ["--fusion", options["fusion"]] if "fusion" in options else []
        # After `make quickstart`, rkit is in a virtual environment that is not active.
        program = [sys.argv[0]] if Path(sys.argv[0]).name == "rkit" else [sys.executable, "-m", "retrievalkit"]
        program = ["rkit"] if shutil.which("rkit") else program
        line = shlex.join([*program, "search", *indexes, *fusion, "--query", text])
        parts[-1] += f"\nSearch with it, for one of these questions:\n\n  {line}\n"
    return Quickstart(folder, rows, "\n\n".join(parts))


def recommend(
    systems: Sequence[str], means: Mapping[str, float], differences: Iterable[Mapping[str, Any]]
) -> tuple[str, str, float | None]:
    """Return the simplest system that no other system significantly outperforms.

    Args:
        systems: Names of the runs, simplest first.
        means: Run -> mean of the decisive metric.
        differences: All pairs of runs in this metric: {"run", "against", "p_corrected"}.

    Returns:
        This system, the best system, and the corrected p-value of their difference; None if they are the same.
    """
    best = max(systems, key=lambda name: means[name])  # of equal systems, the simplest
    p_values = {frozenset((pair["run"], pair["against"])): pair["p_corrected"] for pair in differences}
    for system in systems[: systems.index(best)]:
        better = [other for other in systems if means[other] > means[system]]
        if all(p_values[frozenset((system, other))] >= LEVEL for other in better):
            return system, best, p_values[frozenset((system, best))]
    return best, best, None


def question(queries: Iterable[Query], qrels: Qrels, run: Run, baseline: Run) -> str | None:
    """Return the text of a test question whose first hit is relevant; None if there is none.

    Questions on which the baseline fails are preferred, then questions of readable length, then the order of the file.
    """

    def succeeds(hits: Run, query: Query) -> bool:
        first = hits.get(query.id) or [("", 0.0)]
        return qrels.get(query.id, {}).get(first[0][0], 0) > 0

    solved = [query for query in queries if succeeds(run, query)]
    solved.sort(key=lambda query: (succeeds(baseline, query), len(query.text.split()) not in _READABLE))
    return solved[0].text if solved else None
