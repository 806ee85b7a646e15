"""The table of a recipe: a row for each variant, our figures beside the reference, and the difference to the baseline.

Levels are comparable only where data and settings are those of the reference. The second table, each row less the
baseline, shows whether a difference is more than noise, and whether it has the sign of the reference's.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from retrievalkit import artifacts
from retrievalkit.recipe.cell import Cell, mean_cell
from retrievalkit.recipe.noise import Verdict, verdicts
from retrievalkit.recipe.recipe import Recipe
from retrievalkit.recipe.step import closure
from retrievalkit.recipe.variants import Row
from retrievalkit.report.table import markdown_table, text_table

PerQuery = Mapping[str, Mapping[str, float]]
"""Figure -> query -> value."""

Table = list[tuple[str, ...]]


@dataclass(frozen=True)
class ResultRow:
    """A variant and its cells, by column.

    Attributes:
        name: Its name.
        title: Its label.
        source: Where the references were published.
        cells: Column -> cell.
        steps: All that it builds on.
        seconds: How long these took.
        baseline: The row that it is compared with; "" = none.
    """

    name: str
    title: str
    source: str
    cells: Mapping[str, Cell]
    steps: frozenset[str]
    seconds: float
    baseline: str = ""


@dataclass(frozen=True)
class Results:
    """The table of a recipe.

    Attributes:
        recipe: Its name.
        rows: Those that are complete.
        baseline: The row that the others are compared with, if it is among them.
        missing: Reference figures that were not measured.
        verdicts: (row, column) -> whether the difference to the baseline is more than noise; None = not tested.
    """

    recipe: str
    rows: Sequence[ResultRow]
    baseline: str = ""
    missing: Sequence[str] = field(default_factory=tuple)
    verdicts: Mapping[tuple[str, str], Verdict] | None = None

    @property
    def columns(self) -> list[str]:
        """The names of the figures, in the order of the steps."""
        return list(dict.fromkeys(name for row in self.rows for name in row.cells))

    def differences(self) -> Iterator[tuple[ResultRow, dict[str, Cell]]]:
        """Each other row less its baseline."""
        rows = {row.name: row for row in self.rows}
        for row in self.rows:
            base = rows.get(row.baseline)
            if base is not None and row is not base:
                known = self.verdicts or {}
                cells = {name: cell.less(base.cells[name]) for name, cell in row.cells.items() if name in base.cells}
                yield (
                    row,
                    {
                        name: replace(cell, verdict=known.get((row.name, name), cell.verdict))
                        for name, cell in cells.items()
                    },
                )

    def tested(self) -> Results:
        """The table with significance tests of the differences to a baseline, column by column."""
        against: dict[tuple[str, str], dict[str, Cell]] = {}
        for row, found in self.differences():
            for column, cell in found.items():
                against.setdefault((row.baseline, column), {})[row.name] = cell
        known: dict[tuple[str, str], Verdict] = {}
        for (_, column), cells in against.items():
            seeds = {row: [] if cell.deviation is None else list(cell.ours.values()) for row, cell in cells.items()}
            queries = {row: list(cell.queries.values()) for row, cell in cells.items()}
            known |= {(row, column): verdict for row, verdict in verdicts(seeds, queries).items()}
        return replace(self, verdicts=known)

    def to_json(self) -> dict[str, Any]:
        """The content of `results.json`."""
        against = {row.name: cells for row, cells in self.differences()}
        rows = []
        for row in self.rows:
            value: dict[str, Any] = {"variant": row.name, "title": row.title, "source": row.source}
            value["seconds"] = round(row.seconds, 1)
            value["figures"] = {name: cell.to_json() for name, cell in row.cells.items()}
            if row.name in against:
                value["against_baseline"] = {
                    name: {**cell.to_json(), "direction": cell.direction, **cell.verdict.to_json()}
                    for name, cell in against[row.name].items()
                }
            rows.append(value)
        return {"recipe": self.recipe, "baseline": self.baseline, "rows": rows, "not_measured": list(self.missing)}

    def text(self) -> str:
        """For a terminal."""
        return self._document(text_table)

    def markdown(self) -> str:
        """For a file."""
        return (
            f"# {self.recipe}\n\n{self._document(lambda table: markdown_table(table, right=range(1, len(table[0]))))}\n"
        )

    def _document(self, render: Callable[[Table], str]) -> str:
        parts = [render(self._table()), *self._notes()]
        if differences := list(self.differences()):
            bases = list(dict.fromkeys(row.baseline for row, _ in differences))
            base = next(row.title for row in self.rows if row.name == bases[0])
            what = f"'{base}'" if len(bases) == 1 else f"the row of '{self.baseline}' of the same set"
            table = [("variant", *self.columns)]
            table += [(row.title, *self._cells(found, compared)) for row, found in differences]
            parts += [f"Difference to {what} (the reference's, and whether ours has its sign):", render(table)]
            parts += self._test_notes()
        return "\n\n".join(parts)

    def _table(self) -> Table:
        several = len(self._sources()) > 1
        table = [("variant", *self.columns, "seconds", *(["source"] if several else []))]
        for row in self.rows:
            last = (f"{row.seconds:.0f}", *([row.source] if several else []))
            table.append((row.title, *self._cells(row.cells, beside_reference), *last))
        return table

    def _cells(self, cells: Mapping[str, Cell], show: Callable[[Cell], str]) -> list[str]:
        return [show(cells[name]) if name in cells else "" for name in self.columns]

    def _sources(self) -> list[str]:
        return list(dict.fromkeys(row.source for row in self.rows if row.source))

    def _notes(self) -> Iterator[str]:
        sources = self._sources()
        if any(cell.reference is not None for row in self.rows for cell in row.cells.values()):
            yield "Ours (reference, difference)." + (f" Reference: {sources[0]}." if len(sources) == 1 else "")
        seeds = list(dict.fromkeys(seed for row in self.rows for cell in row.cells.values() for seed in cell.ours))
        if len(seeds) > 1:
            yield f"Mean and standard deviation over the seeds {', '.join(map(str, seeds))}."
        if self.missing:
            yield f"Not measured: {', '.join(self.missing)}."

    def _test_notes(self) -> Iterator[str]:
        """By which tests the differences were judged."""
        if self.verdicts is None:
            return
        names = []
        if any(verdict.seeds is not None for verdict in self.verdicts.values()):
            names.append("t-test over seeds")
        if any(verdict.queries is not None for verdict in self.verdicts.values()):
            names.append("randomisation test over queries")
        if names:
            larger = "; the larger of the two" if len(names) > 1 else ""
            yield f"p: paired {' and '.join(names)}, corrected by Holm over the rows{larger}."
        else:
            yield "Not tested for significance: give several seeds, such as --set seeds=42,43,44."

    def write(self, folder: Path) -> None:
        """Leave `results.json` and `results.md` in a folder."""
        artifacts.write_json(folder / "results.json", self.to_json())
        with artifacts.write_file(folder / "results.md") as staging:
            staging.write_text(self.markdown(), encoding="utf-8")


def tabulate(
    recipe: Recipe,
    figures: Mapping[str, Mapping[str, float]],
    seconds: Mapping[str, float],
    per_query: Mapping[str, PerQuery] | None = None,
) -> Results:
    """The table of a recipe, as far as its steps have been run.

    Args:
        recipe: With a table.
        figures: Step -> its figures.
        seconds: Step -> how long it took.
        per_query: Step -> the values of each query, where they are known; only significance tests use them.
    """
    uses = {step.name: step.uses for step in recipe.steps}
    rows: dict[str, ResultRow] = {}
    for row in recipe.rows:
        if any(name not in rows for name in row.of):
            continue
        if any(step not in figures for cells in row.cells.values() for step in cells.values()):
            continue
        if row.of:
            members = [rows[name] for name in row.of]
            cells = _means(recipe, row, members)
            steps = frozenset().union(*(member.steps for member in members))
        else:
            cells = _cells(recipe, row, figures, per_query or {})
            steps = frozenset(closure(uses, (step for cells in row.cells.values() for step in cells.values())))
        baseline = row.baseline or recipe.baseline
        taken = sum(seconds[step] for step in steps)
        rows[row.name] = ResultRow(row.name, row.title, row.source, cells, steps, taken, baseline)
    done = [row for row in recipe.rows if row.name in rows]
    measured = {name for row in rows.values() for name in row.cells}
    wanted = dict.fromkeys(_column(recipe, step, name) for row in done for step, name in row.expected)
    missing = [name for name in wanted if name not in measured]
    return Results(recipe.name, list(rows.values()), recipe.baseline, missing)


def _cells(
    recipe: Recipe, row: Row, figures: Mapping[str, Mapping[str, float]], per_query: Mapping[str, PerQuery]
) -> dict[str, Cell]:
    cells = {}
    for step in recipe.table:
        ran = {seed: names[step] for seed, names in row.cells.items()}
        seedless = len(set(ran.values())) == 1
        for name in dict.fromkeys(name for one in ran.values() for name in figures[one]):
            ours = {seed: figures[one][name] for seed, one in ran.items() if name in figures[one]}
            queries = _averaged([per_query.get(one, {}).get(name, {}) for one in ran.values()])
            cells[_column(recipe, step, name)] = Cell(ours, row.expected.get((step, name)), seedless, queries)
    return cells


def _means(recipe: Recipe, row: Row, members: Sequence[ResultRow]) -> dict[str, Cell]:
    """The cells of a row that averages others, in the columns that all of these have."""
    references = {_column(recipe, step, figure): value for (step, figure), value in row.expected.items()}
    shared = [name for name in members[0].cells if all(name in one.cells for one in members)]
    return {name: mean_cell([member.cells[name] for member in members], references.get(name)) for name in shared}


def _averaged(seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The values of each query averaged over the seeds, for the queries that all of them have."""
    shared = [query for query in seeds[0] if all(query in values for values in seeds)]
    return {query: statistics.fmean(values[query] for values in seeds) for query in shared}


def _column(recipe: Recipe, step: str, figure: str) -> str:
    return figure if len(recipe.table) == 1 else f"{step} {figure}"


def beside_reference(cell: Cell) -> str:
    """Ours, and in parentheses the reference and the difference."""
    text = f"{cell.mean:.4f}{_spread(cell)}"
    return text if cell.reference is None else f"{text} ({cell.reference:.4f}, {cell.difference:+.4f})"


def compared(cell: Cell) -> str:
    """A difference of ours; in parentheses the reference's, and whether ours has its sign or is within the noise."""
    reference = "" if cell.reference is None else f"{cell.reference:+.4f}"
    direction = "no difference shown" if cell.verdict.shown is False else cell.direction
    p = "" if cell.verdict.p is None else f"p {cell.verdict.p:.4f}"
    text = ", ".join(filter(None, (reference, direction, p)))
    return f"{cell.mean:+.4f}{_spread(cell)}" + (f" ({text})" if text else "")


def _spread(cell: Cell) -> str:
    return "" if cell.deviation is None else f" ± {cell.deviation:.4f}"
