"""Outcome of a recipe and of each step, as text and JSON; and the plan of a run."""

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
from retrievalkit.reporting.table import text_table
from retrievalkit.reporting.terminal import counted

# Figures include the values of each query.
_FIGURES_BYTES = 1 << 30


@dataclass(frozen=True)
class StepResult:
    """Outcome of a step.

    Attributes:
        seconds: Time of the run that did the work, summed over interruptions.
        figures: Name -> number, if the output has figures.
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
    """Outcome of a recipe: its steps, and its table if it has one."""

    steps: Sequence[StepResult]
    results: Results | None = None

    def as_json(self) -> Any:
        """Return the output of `rkit run --json`: the steps, or the table including the steps."""
        steps = [asdict(step) for step in self.steps]
        return steps if self.results is None else {**self.results.to_json(), "steps": steps}

    @property
    def summary(self) -> str:
        """Times of the steps, then the recipe's table."""
        return times(self.steps) if self.results is None else f"{times(self.steps)}\n\n{self.results.text()}"

    def __repr__(self) -> str:
        return self.summary


@dataclass(frozen=True)
class Plan:
    """Plan of a run, without running it.

    Attributes:
        steps: Name, title, command line and output of each step, and whether it is kept, because an earlier run has
            completed it and all of its inputs.
    """

    steps: Sequence[Mapping[str, Any]]

    def as_json(self) -> Any:
        """Return the output of `rkit run --plan --json`."""
        return self.steps

    @property
    def summary(self) -> str:
        """Steps as shown by a run, with their command lines, and the number that would run."""
        lines = []
        for place, step in enumerate(self.steps, 1):
            lines.append(f"[{place}/{len(self.steps)}] {step['title']}" + (" (kept)" if step["kept"] else ""))
            lines.append(f"      {step['command_line']}")
        count = sum(not step["kept"] for step in self.steps)
        return "\n".join([*lines, f"{count} of {counted(len(self.steps), 'steps')} would run; nothing was run."])

    def __repr__(self) -> str:
        return self.summary


def read_figures(path: Path | None) -> dict[str, float]:
    """Read the numbers in a step's output; {} if there are none.

    Args:
        path: A JSON file (its "metrics" if present, as in `rkit evaluate --json`), or the folder of an analysis, whose
            figures are the numbers that are not counts.
    """
    if path is not None and path.is_dir():
        content = _read_json(path / "analysis.json") if storage.kind_of(path) == "analysis" else {}
        return {name: value for name, value in content.items() if isinstance(value, float)}
    content = _read_json(path)
    content = content.get("metrics", content)
    content = flatten(content) if isinstance(content, dict) else {}
    return {name: value for name, value in content.items() if isinstance(value, int | float)}


def read_per_query(path: Path | None) -> dict[str, dict[str, float]]:
    """Read the values of each query: metric -> query -> value; {} if there are none.

    Args:
        path: Output of `rkit evaluate --per-query --json`, or the folder of an analysis, whose lines have the figures
            of a (query, document) pair and are averaged per query.
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
        is_analysis = storage.kind_of(path) == "analysis" and lines.is_file()
        records = [record.fields for record in json_lines(lines)] if is_analysis else []
    except DataError:
        return {}
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        for name, value in record.items():
            if isinstance(value, float):
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
    """Return a table of the steps: seconds, share of the total, and title."""
    total = sum(step.seconds for step in steps) or 1.0
    rows = [("step", "seconds", "share", "")]
    for step in steps:
        mark = " (kept)" if step.skipped else ""
        purpose = step.title.partition(": ")[0]  # without the reason after the colon
        rows.append((step.name, f"{step.seconds:.1f}", f"{step.seconds / total:.0%}", purpose + mark))
    rows.append(("all", f"{sum(step.seconds for step in steps):.1f}", "", ""))
    return text_table(rows, right=(1, 2))
