"""The table of a recipe: a row a variant, our figures beside the reference figures, and what each row changes.

Levels are comparable only where data and settings are those of the reference. The second table, each row less the
baseline, tells whether a change goes the same way here and there.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrievalkit import artifacts
from retrievalkit.recipe.recipe import Recipe, Row

Table = list[tuple[str, ...]]


@dataclass(frozen=True)
class Cell:
    """A figure of a row.

    Attributes:
        ours: Seed -> value.
        reference: What it is compared with.
        seedless: Whether one run stands for all seeds, because they make no difference to it.
    """

    ours: Mapping[int | None, float]
    reference: float | None = None
    seedless: bool = False

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
        """What this one has more than another, seed by seed."""
        ours = {seed: value - other.ours[seed] for seed, value in self.ours.items() if seed in other.ours}
        known = self.reference is not None and other.reference is not None
        reference = self.reference - other.reference if known else None  # type: ignore[operator]
        return Cell(ours, reference, self.seedless and other.seedless)

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


@dataclass(frozen=True)
class ResultRow:
    """A variant and its cells, by column."""

    name: str
    title: str
    source: str
    cells: Mapping[str, Cell]
    seconds: float


@dataclass(frozen=True)
class Results:
    """What came out of a recipe.

    Attributes:
        recipe: Its name.
        rows: Those that are complete.
        baseline: The row that the others are compared with, if it is among them.
        missing: Reference figures that were not measured.
    """

    recipe: str
    rows: Sequence[ResultRow]
    baseline: str = ""
    missing: Sequence[str] = field(default_factory=tuple)

    @property
    def columns(self) -> list[str]:
        """The figures, in the order that they come in."""
        return list(dict.fromkeys(name for row in self.rows for name in row.cells))

    def differences(self) -> Iterator[tuple[ResultRow, dict[str, Cell]]]:
        """Each other row less the baseline."""
        base = next((row for row in self.rows if row.name == self.baseline), None)
        for row in self.rows:
            if base is not None and row is not base:
                yield row, {name: cell.less(base.cells[name]) for name, cell in row.cells.items() if name in base.cells}

    def to_json(self) -> dict[str, Any]:
        """What `results.json` holds."""
        against = {row.name: cells for row, cells in self.differences()}
        rows = []
        for row in self.rows:
            value: dict[str, Any] = {"variant": row.name, "title": row.title, "source": row.source}
            value["seconds"] = round(row.seconds, 1)
            value["figures"] = {name: cell.to_json() for name, cell in row.cells.items()}
            if row.name in against:
                value["against_baseline"] = {
                    name: {**cell.to_json(), "direction": cell.direction} for name, cell in against[row.name].items()
                }
            rows.append(value)
        return {"recipe": self.recipe, "baseline": self.baseline, "rows": rows, "not_measured": list(self.missing)}

    def text(self) -> str:
        """For a terminal."""
        return self._document(aligned)

    def markdown(self) -> str:
        """For a file."""
        return f"# {self.recipe}\n\n{self._document(_markdown)}\n"

    def _document(self, render: Callable[[Table], str]) -> str:
        parts = [render(self._table()), *self._notes()]
        if differences := list(self.differences()):
            base = next(row.title for row in self.rows if row.name == self.baseline)
            table = [("variant", *self.columns)]
            table += [(row.title, *self._cells(found, compared)) for row, found in differences]
            parts += [
                f"Difference to '{base}' (that of the reference, and whether it goes the same way):",
                render(table),
            ]
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

    def write(self, folder: Path) -> None:
        """Leave `results.json` and `results.md` in a folder."""
        artifacts.write_json(folder / "results.json", self.to_json())
        with artifacts.write_file(folder / "results.md") as staging:
            staging.write_text(self.markdown(), encoding="utf-8")


def tabulate(recipe: Recipe, figures: Mapping[str, Mapping[str, float]], seconds: Mapping[str, float]) -> Results:
    """The table of a recipe, as far as its steps have been run.

    Args:
        recipe: With a table.
        figures: Step -> what it measured.
        seconds: Step -> how long it took.
    """
    done = [row for row in recipe.rows if all(one in figures for cells in row.cells.values() for one in cells.values())]
    uses = {step.name: step.uses for step in recipe.steps}
    rows = [_row(recipe, row, figures, sum(seconds[step] for step in _needed(row, uses))) for row in done]
    measured = {name for row in rows for name in row.cells}
    wanted = dict.fromkeys(_column(recipe, step, name) for row in done for step, name in row.expected)
    missing = [name for name in wanted if name not in measured]
    return Results(recipe.name, rows, recipe.baseline, missing)


def _row(recipe: Recipe, row: Row, figures: Mapping[str, Mapping[str, float]], seconds: float) -> ResultRow:
    cells = {}
    for step in recipe.table:
        ran = {seed: figures[names[step]] for seed, names in row.cells.items()}
        seedless = len({names[step] for names in row.cells.values()}) == 1
        for name in dict.fromkeys(name for found in ran.values() for name in found):
            ours = {seed: found[name] for seed, found in ran.items() if name in found}
            cells[_column(recipe, step, name)] = Cell(ours, row.expected.get((step, name)), seedless)
    return ResultRow(row.name, row.title, row.source, cells, seconds)


def _column(recipe: Recipe, step: str, figure: str) -> str:
    return figure if len(recipe.table) == 1 else f"{step} {figure}"


def _needed(row: Row, uses: Mapping[str, Sequence[str]]) -> set[str]:
    """All steps that a row is made of."""
    found: set[str] = set()
    waiting = [step for cells in row.cells.values() for step in cells.values()]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(uses[name])
    return found


def beside_reference(cell: Cell) -> str:
    """Ours, and in parentheses the reference and the difference."""
    text = f"{cell.mean:.4f}{_spread(cell)}"
    return text if cell.reference is None else f"{text} ({cell.reference:.4f}, {cell.difference:+.4f})"


def compared(cell: Cell) -> str:
    """A difference of ours, and in parentheses that of the reference and whether it has the same sign."""
    text = f"{cell.mean:+.4f}{_spread(cell)}"
    if cell.reference is None:
        return text
    return f"{text} ({', '.join(filter(None, (f'{cell.reference:+.4f}', cell.direction)))})"


def _spread(cell: Cell) -> str:
    return "" if cell.deviation is None else f" ± {cell.deviation:.4f}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows as lines, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    header, *others = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    rule = ["---", *("---:" for _ in header[1:])]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *others))
