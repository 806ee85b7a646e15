"""The outcome of a recipe, of each step and of the whole, as text and JSON; and what a run would do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from retrievalkit import storage
from retrievalkit.data.records import json_lines
from retrievalkit.errors import ArtifactError, DataError
from retrievalkit.recipes.results import Results
from retrievalkit.recipes.settings import flatten
from retrievalkit.reporting.counts import counted
from retrievalkit.reporting.table import text_table

# The values of each query are among them.
_FIGURES_BYTES = 1 << 30
# Of a figure: greater integers are no floats.
_MOST = 1e300


@dataclass(frozen=True)
class StepResult:
    """The outcome of a step.

    Attributes:
        seconds: How long it took, in the run that did the work; resumed work is added up.
        figures: Name -> number, where the output is a JSON file of figures.
    """

    name: str
    title: str
    command_line: str
    output: Path | None
    log: Path
    seconds: float
    skipped: bool
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a recipe: its steps, and its table if it has one."""

    steps: Sequence[StepResult]
    results: Results | None = None

    def as_json(self) -> Any:
        """What `rkit run --json` prints: the steps, or the table with the steps in it."""
        steps = [asdict(step) for step in self.steps]
        return steps if self.results is None else {**self.results.to_json(), "steps": steps}

    @property
    def summary(self) -> str:
        """The steps' times, then the recipe's table."""
        return times(self.steps) if self.results is None else f"{times(self.steps)}\n\n{self.results.text()}"

    def __repr__(self) -> str:
        return self.summary


@dataclass(frozen=True)
class Plan:
    """What a run would do.

    Attributes:
        steps: Of each step its name, title, command line and output, and whether it is kept: an earlier run has done it
            and all that it reads.
    """

    steps: Sequence[Mapping[str, Any]]

    def as_json(self) -> Any:
        """What `rkit run --plan --json` prints."""
        return self.steps

    @property
    def summary(self) -> str:
        """The steps as a run shows them, with their command lines, and how many would run."""
        lines = []
        for place, step in enumerate(self.steps, 1):
            lines.append(f"[{place}/{len(self.steps)}] {step['title']}" + (" (kept)" if step["kept"] else ""))
            lines.append(f"      {step['command_line']}")
        left = sum(not step["kept"] for step in self.steps)
        return "\n".join([*lines, f"{left} of {counted(len(self.steps), 'steps')} would run; nothing was run."])

    def __repr__(self) -> str:
        return self.summary


def read_figures(path: Path | None) -> dict[str, float]:
    """The numbers of what a step wrote; {} for none.

    Args:
        path: A JSON file: its "metrics" where it has them, as `rkit evaluate --json` prints. Or the folder of an
            analysis, whose figures are those numbers that are no counts.
    """
    if path is not None and path.is_dir():
        content = _read_json(path / "analysis.json") if storage.kind_of(path) == "analysis" else {}
        return {name: value for name, value in content.items() if isinstance(value, float) and abs(value) < _MOST}
    content = _read_json(path)
    content = content.get("metrics", content)
    content = flatten(content) if isinstance(content, dict) else {}
    return {name: value for name, value in content.items() if isinstance(value, int | float) and abs(value) < _MOST}


def read_per_query(path: Path | None) -> dict[str, dict[str, float]]:
    """The values of each query, metric -> query -> value; {} without them.

    Args:
        path: What `rkit evaluate --per-query --json` prints. Or the folder of an analysis, whose lines have the figures
            of a query with one of its documents: a query has their mean.
    """
    if path is None or not path.is_dir():
        try:
            return storage.check_document(
                _read_json(path).get("per_query", {}), dict[str, dict[str, float]], file=str(path), do=""
            )
        except ArtifactError:
            return {}
    lines = path / "answers.jsonl"
    try:
        analysed = storage.kind_of(path) == "analysis" and lines.is_file()
        records = [record.fields for record in json_lines(lines)] if analysed else []
    except DataError:
        return {}
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for name, value in record.items():
            if isinstance(value, float) and abs(value) < _MOST:
                figures[name][str(record.get("query_id"))].append(value)
    return {name: {query: fmean(values) for query, values in queries.items()} for name, queries in figures.items()}


def _read_json(path: Path | None) -> dict[str, Any]:
    if path is None or path.suffix != ".json" or not path.is_file():
        return {}
    try:
        content = storage.read_json(path, do="", most=_FIGURES_BYTES)
    except ArtifactError:
        return {}
    return content if isinstance(content, dict) else {}


def times(steps: Sequence[StepResult]) -> str:
    """A table of the steps: seconds, share of the whole, and what each did."""
    total = sum(step.seconds for step in steps) or 1.0
    rows = [("step", "seconds", "share", "")]
    for step in steps:
        kept = " (kept)" if step.skipped else ""
        what = step.title.partition(": ")[0]  # without the reason, which follows a colon
        rows.append((step.name, f"{step.seconds:.1f}", f"{step.seconds / total:.0%}", what + kept))
    rows.append(("all", f"{sum(step.seconds for step in steps):.1f}", "", ""))
    return text_table(rows, right=(1, 2))
