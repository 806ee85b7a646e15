"""Result table of a recipe: a row per variant, with our figures, the reference, and the difference to the baseline.

Absolute figures are comparable only if data and settings match the reference. The second table, the difference of each
row to the baseline, shows whether a difference is significant, and whether it has the sign of the reference's.

A difference is tested over seeds by the paired t-test, and over queries by the paired randomisation test on the values
of each query, averaged over seeds; both with Holm's correction over the rows. If both tests apply, a difference has to
pass both: the first generalises to other seeds, the second to other queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from retrievalkit import storage
from retrievalkit.recipes.recipe import Recipe, Row
from retrievalkit.recipes.step import closure
from retrievalkit.reporting.table import markdown_table, text_table

LEVEL = 0.05

PerQuery = Mapping[str, Mapping[str, float]]
"""Figure -> query -> value."""


@dataclass(frozen=True)
class Verdict:
    """Corrected p-values of a difference; None if there is nothing to test on."""

    seeds: float | None = None
    queries: float | None = None

    @property
    def p(self) -> float | None:
        """Larger of the two p-values."""
        return max((p for p in (self.seeds, self.queries) if p is not None), default=None)

    @property
    def significant(self) -> bool | None:
        """True if the difference is significant; None if it was not tested."""
        return None if self.p is None else self.p < LEVEL


@dataclass(frozen=True)
class Cell:
    """A figure of a row, or the difference of two figures.

    Attributes:
        ours: Seed -> value.
        reference: Published value.
        seedless: True if a single run stands for all seeds, because it does not depend on the seed.
        queries: Query -> value, averaged over the seeds; {} if only the mean is known.
        verdict: Significance, for a difference.
    """

    ours: Mapping[int | None, float]
    reference: float | None = None
    seedless: bool = False
    queries: Mapping[str, float] = field(default_factory=dict)
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return fmean(self.ours.values())

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the seeds; None for a single seed."""
        return stdev(self.ours.values()) if len(self.ours) > 1 and not self.seedless else None

    def minus(self, other: Cell) -> Cell:
        """Return the difference to another cell, per seed and per query."""
        ours = {seed: value - other.ours[seed] for seed, value in self.ours.items() if seed in other.ours}
        known = self.reference is not None and other.reference is not None
        reference = self.reference - other.reference if known else None  # type: ignore[operator]
        shared = ((query, value) for query, value in self.queries.items() if query in other.queries)
        queries = {query: value - other.queries[query] for query, value in shared}
        return Cell(ours, reference, self.seedless and other.seedless, queries)

    @property
    def direction(self) -> str:
        """For a difference: "same" or "opposite" sign as the reference; "" if either is 0 or unknown."""
        if not self.reference or not self.mean:
            return ""
        return "same" if (self.mean > 0) == (self.reference > 0) else "opposite"

    def to_json(self) -> dict[str, Any]:
        """Return a value for `json.dumps`."""
        value: dict[str, Any] = {"ours": self.mean}
        if self.deviation is not None:
            value |= {"deviation": self.deviation, "seeds": {str(seed): figure for seed, figure in self.ours.items()}}
        if self.reference is not None:
            value |= {"reference": self.reference, "difference": self.mean - self.reference}
        return value

    def text(self) -> str:
        """Format our value, with the reference and the difference in parentheses."""
        reference = self.reference
        more = "" if reference is None else f" ({reference:.4f}, {self.mean - reference:+.4f})"
        return f"{self.mean:.4f}{self._spread}{more}"

    def difference_text(self) -> str:
        """Format a difference, with the reference's difference, its sign or significance, and p in parentheses."""
        reference = "" if self.reference is None else f"{self.reference:+.4f}"
        direction = "no difference shown" if self.verdict.significant is False else self.direction
        p = "" if self.verdict.p is None else f"p {self.verdict.p:.4f}"
        text = ", ".join(filter(None, (reference, direction, p)))
        return f"{self.mean:+.4f}{self._spread}" + (f" ({text})" if text else "")

    @property
    def _spread(self) -> str:
        return "" if self.deviation is None else f" ± {self.deviation:.4f}"


@dataclass(frozen=True)
class ResultRow:
    """A variant and its cells, by column; `steps` are all steps that it depends on, with their total `seconds`."""

    name: str
    title: str
    source: str
    cells: Mapping[str, Cell]
    steps: frozenset[str]
    seconds: float
    baseline: str = ""


@dataclass(frozen=True)
class Results:
    """Result table of a recipe.

    Attributes:
        rows: Complete rows.
        baseline: Row that the others are compared with, if it is complete.
        missing: Reference figures that were not measured.
        verdicts: (row, column) -> significance of the difference to the baseline; None = not tested.
    """

    recipe: str
    rows: Sequence[ResultRow]
    baseline: str = ""
    missing: Sequence[str] = ()
    verdicts: Mapping[tuple[str, str], Verdict] | None = None

    def differences(self) -> Iterator[tuple[ResultRow, dict[str, Cell]]]:
        """Yield the difference of each row to its baseline."""
        rows, known = {row.name: row for row in self.rows}, self.verdicts or {}
        for row in self.rows:
            base = rows.get(row.baseline)
            if base is not None and row is not base:
                shared = [name for name in row.cells if name in base.cells]
                cells = {name: row.cells[name].minus(base.cells[name]) for name in shared}
                verdicts = {name: known.get((row.name, name), Verdict()) for name in shared}
                yield row, {name: replace(cell, verdict=verdicts[name]) for name, cell in cells.items()}

    def tested(self) -> Results:
        """Return the table with significance tests of the differences to a baseline, per column."""
        from retrievalkit.evaluation.significance import holm, randomisation_test, t_test

        against: dict[tuple[str, str], dict[str, Cell]] = {}
        for row, cells in self.differences():
            for column, cell in cells.items():
                against.setdefault((row.baseline, column), {})[row.name] = cell
        known: dict[tuple[str, str], Verdict] = {}
        for (_, column), of_rows in against.items():
            over_seeds = {
                row: t_test(list(cell.ours.values())) for row, cell in of_rows.items() if cell.deviation is not None
            }
            over_queries = {
                row: randomisation_test(list(cell.queries.values())) for row, cell in of_rows.items() if cell.queries
            }
            seeds, queries = (
                dict(zip(p_values, holm(list(p_values.values())), strict=True))
                for p_values in (over_seeds, over_queries)
            )
            known |= {(row, column): Verdict(seeds.get(row), queries.get(row)) for row in of_rows}
        return replace(self, verdicts=known)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `results.json`."""
        against = {row.name: cells for row, cells in self.differences()}
        rows = []
        for row in self.rows:
            value: dict[str, Any] = {"variant": row.name, "title": row.title, "source": row.source}
            value["seconds"] = round(row.seconds, 1)
            value["figures"] = {name: cell.to_json() for name, cell in row.cells.items()}
            if row.name in against:
                value["against_baseline"] = {
                    name: {
                        **cell.to_json(),
                        "direction": cell.direction,
                        "p_seeds": cell.verdict.seeds,
                        "p_queries": cell.verdict.queries,
                        "shown": cell.verdict.significant,
                    }
                    for name, cell in against[row.name].items()
                }
            rows.append(value)
        return {"recipe": self.recipe, "baseline": self.baseline, "rows": rows, "not_measured": list(self.missing)}

    def text(self, render: Callable[[list[Sequence[str]]], str] = text_table) -> str:
        """Format the tables for a terminal, or by another `render` function."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row.cells))
        sources = list(dict.fromkeys(row.source for row in self.rows if row.source))
        several = len(sources) > 1
        table: list[Sequence[str]] = [("variant", *columns, "seconds", *(["source"] if several else []))]
        for row in self.rows:
            cells = (row.cells[name].text() if name in row.cells else "" for name in columns)
            table.append((row.title, *cells, f"{row.seconds:.0f}", *([row.source] if several else [])))
        parts = [render(table)]
        measured = [cell for row in self.rows for cell in row.cells.values()]
        if any(cell.reference is not None for cell in measured):
            parts.append("Ours (reference, difference)." + (f" Reference: {sources[0]}." if len(sources) == 1 else ""))
        seeds = list(dict.fromkeys(seed for cell in measured for seed in cell.ours))
        if len(seeds) > 1:
            parts.append(f"Mean and standard deviation over the seeds {', '.join(map(str, seeds))}.")
        if self.missing:
            parts.append(f"Not measured: {', '.join(self.missing)}.")
        differences = list(self.differences())
        if not differences:
            return "\n\n".join(parts)
        bases = list(dict.fromkeys(row.baseline for row, _ in differences))
        base = next(row.title for row in self.rows if row.name == bases[0])
        what = f"'{base}'" if len(bases) == 1 else f"the row of '{self.baseline}' of the same set"
        table = [("variant", *columns)]
        for row, gaps in differences:
            table.append((row.title, *(gaps[name].difference_text() if name in gaps else "" for name in columns)))
        parts += [f"Difference to {what} (the reference's, and whether ours has its sign):", render(table)]
        if self.verdicts is None:
            return "\n\n".join(parts)
        tests = {
            "t-test over seeds": [verdict.seeds for verdict in self.verdicts.values()],
            "randomisation test over queries": [verdict.queries for verdict in self.verdicts.values()],
        }
        applied = [name for name, p_values in tests.items() if any(p is not None for p in p_values)]
        larger = "; the larger of the two" if len(applied) > 1 else ""
        parts.append(
            f"p: paired {' and '.join(applied)}, corrected by Holm over the rows{larger}."
            if applied
            else "Not tested for significance. Set several seeds, such as --set seeds=42,43,44."
        )
        return "\n\n".join(parts)

    def write(self, folder: Path) -> None:
        """Write `results.json` and `results.md` to a folder."""
        storage.write_json(folder / "results.json", self.to_json())
        tables = self.text(lambda table: markdown_table(table, right=range(1, len(table[0]))))
        with storage.write_file(folder / "results.md") as staging:
            staging.write_text(f"# {self.recipe}\n\n{tables}\n", encoding="utf-8")


def tabulate(
    recipe: Recipe,
    figures: Mapping[str, Mapping[str, float]],
    seconds: Mapping[str, float],
    per_query: Mapping[str, PerQuery] | None = None,
) -> Results:
    """Build the table of a recipe from the steps run so far: step -> figures, seconds, values of each query."""

    def column(step: str, figure: str) -> str:
        return figure if len(recipe.table) == 1 else f"{step} {figure}"

    uses = {step.name: step.uses for step in recipe.steps}
    rows: dict[str, ResultRow] = {}
    expected: dict[str, None] = {}
    for row in recipe.rows:
        ran = [step for cells in row.cells.values() for step in cells.values()]
        if any(name not in rows for name in row.of) or any(step not in figures for step in ran):
            continue
        references = {column(step, figure): value for (step, figure), value in row.expected.items()}
        if members := [rows[name] for name in row.of]:
            shared = [name for name in members[0].cells if all(name in member.cells for member in members)]
            cells = {name: _mean([member.cells[name] for member in members], references.get(name)) for name in shared}
            steps = frozenset().union(*(member.steps for member in members))
        else:
            cells = {}
            for step in recipe.table:
                for figure, cell in _cells(row, step, figures, per_query or {}):
                    cells[column(step, figure)] = replace(cell, reference=references.get(column(step, figure)))
            steps = frozenset(closure(uses, ran))
        total = sum(seconds[step] for step in steps)
        baseline = row.baseline or recipe.baseline
        rows[row.name] = ResultRow(row.name, row.title, row.source, cells, steps, total, baseline)
        expected |= dict.fromkeys(references)
    measured = {name for row in rows.values() for name in row.cells}
    missing = [name for name in expected if name not in measured]
    return Results(recipe.name, list(rows.values()), recipe.baseline, missing)


def _cells(
    row: Row, step: str, figures: Mapping[str, Mapping[str, float]], per_query: Mapping[str, PerQuery]
) -> Iterator[tuple[str, Cell]]:
    ran = {seed: names[step] for seed, names in row.cells.items()}
    for name in dict.fromkeys(name for run in ran.values() for name in figures[run]):
        ours = {seed: figures[run][name] for seed, run in ran.items() if name in figures[run]}
        seeds = [per_query.get(run, {}).get(name, {}) for run in ran.values()]
        shared = [query for query in seeds[0] if all(query in values for values in seeds)]
        queries = {query: fmean(values[query] for values in seeds) for query in shared}
        yield name, Cell(ours, seedless=len(set(ran.values())) == 1, queries=queries)


def _mean(cells: Sequence[Cell], reference: float | None) -> Cell:
    """Return the macro-average of the cells of several rows: each row has equal weight for any number of queries.

    Query values are weighted so that their mean is the mean of the rows: a test over them is stratified.
    """
    seeds = set.intersection(*(set(cell.ours) for cell in cells))
    ours = {seed: fmean(cell.ours[seed] for cell in cells) for seed in cells[0].ours if seed in seeds}
    queries: dict[str, float] = {}
    if all(cell.queries for cell in cells):
        total = sum(len(cell.queries) for cell in cells)
        # By the position of a row, not by its name: the rows of the baseline have other names.
        for place, cell in enumerate(cells):
            weight = total / (len(cells) * len(cell.queries))
            queries |= {f"{place}/{query}": value * weight for query, value in cell.queries.items()}
    return Cell(ours, reference, all(cell.seedless for cell in cells), queries)
