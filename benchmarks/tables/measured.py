"""Measurements: the rows of a run by seed, and the difference of two rows with its interval and test.

Differences are computed per question within each seed, and then averaged over the seeds: questions are the sample,
seeds are strata.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plan import Run

from retrievalkit import storage
from retrievalkit.evaluation.significance import bootstrap_intervals, randomisation_test
from retrievalkit.recipes.outcome import read_figures, read_per_query
from retrievalkit.recipes.recipe import Recipe, load_recipe
from retrievalkit.recipes.results import Cell, ResultRow, tabulate

_NO_TERMS = ("step", "loss", "grad_norm", "learning_rate", "epoch")

Rows = Mapping[int, Mapping[str, ResultRow]]
"""Rows by seed and name."""


def rows_of(run: Run, folder: Path, seeds: Sequence[int]) -> Rows:
    """The completed rows by seed; a row without seeds is included for each."""
    steps = _done(folder)
    rows = {}
    for seed in seeds:
        recipe = load_recipe(run.recipe, {**run.values, "seeds": [seed]})
        rows[seed] = {row.name: row for row in _table(recipe, folder, steps)}
    return rows


def terms_of(run: Run, folder: Path, seed: int, rows: Mapping[str, ResultRow]) -> dict[str, dict[str, list[float]]]:
    """The terms of each row's loss, as logged first and last by its last training."""
    recipe = load_recipe(run.recipe, {**run.values, "seeds": [seed]})
    logs = {step.name: folder / (step.output or "") / "training.jsonl" for step in recipe.steps}
    terms = {}
    for name, row in rows.items():
        trained = [logs[step.name] for step in recipe.steps if step.name in row.steps and logs[step.name].is_file()]
        terms[name] = _terms(trained[-1]) if trained else {}
    return terms


def _terms(log: Path) -> dict[str, list[float]]:
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if "loss" in line]
    return {name: [lines[0][name], lines[-1][name]] for name in (lines[0] if lines else ()) if name not in _NO_TERMS}


def seconds_of(folder: Path) -> dict[str, int]:
    """The seconds of each completed step of a run; rows share some steps."""
    return {name: round(entry.get("seconds", 0)) for name, entry in sorted(_done(folder).items())}


class Kept(NamedTuple):
    """The stored part of a run: rows by seed, the loss terms and seconds of each row, and the commits."""

    rows: Rows
    terms: Mapping[str, Mapping[str, Sequence[float]]]
    steps: Mapping[str, Mapping[str, int]]
    commits: Sequence[str]


def keep(row: ResultRow, folder: Path, seed: int, columns: Collection[str], **more: Any) -> None:
    """Write a row of a seed as FOLDER/ROW.SEED.json.gz, with each question's figures, so that its run can be deleted.

    The questions are in the order of their ids, which are not stored: a digest identifies them.
    """
    cells = {}
    for name in sorted(set(columns) & set(row.cells)):
        queries = row.cells[name].queries
        digest = hashlib.sha256("\n".join(sorted(queries)).encode()).hexdigest()[:16]
        values = [round(queries[query], 5) for query in sorted(queries)]
        cells[name] = {"mean": row.cells[name].mean, "questions": digest, "values": values}
    folder.mkdir(parents=True, exist_ok=True)
    content = json.dumps({**more, "cells": cells}, separators=(",", ":"))
    (folder / f"{row.name}.{seed}.json.gz").write_bytes(gzip.compress(content.encode(), mtime=0))


def kept(folder: Path, seeds: Sequence[int]) -> Kept:
    """The rows that `keep` wrote."""
    rows: dict[int, dict[str, ResultRow]] = {seed: {} for seed in seeds}
    terms: dict[str, Mapping[str, Sequence[float]]] = {}
    commits = []
    steps: dict[str, dict[str, int]] = {}
    for seed in seeds:
        for path in sorted(folder.glob(f"*.{seed}.json.gz")):
            stored = json.loads(gzip.decompress(path.read_bytes()))
            name = path.name.partition(".")[0]
            cells = {column: _cell(seed, **cell) for column, cell in stored["cells"].items()}
            rows[seed][name] = ResultRow(name, name, "", cells, frozenset(), sum(stored["steps"].values()))
            terms.setdefault(name, stored["terms"])
            commits.append(stored["commit"])
            steps.setdefault(name, {}).update(stored["steps"])
    return Kept(rows, terms, steps, list(dict.fromkeys(commits)))


def _cell(seed: int, mean: float, questions: str, values: Sequence[float]) -> Cell:
    return Cell({seed: mean}, queries={f"{questions} {place}": value for place, value in enumerate(values)})


def titles_of(run: Run) -> dict[str, str]:
    """The labels of all rows of a run's recipe."""
    return {row.name: row.title for row in load_recipe(run.recipe, run.values).rows}


def level(rows: Rows, name: str, column: str) -> dict[str, Any] | None:
    """A row's mean over its seeds, their deviation, and the seeds; None if it was not run."""
    cells = {seed: own[name].cells[column] for seed, own in rows.items() if name in own and column in own[name].cells}
    if not cells:
        return None
    values = [cell.mean for cell in cells.values()]
    return {
        "mean": statistics.fmean(values),
        "deviation": statistics.stdev(values) if len(values) > 1 else None,
        "seeds": list(cells),
    }


def difference(rows: Rows, row: str, over: str, column: str) -> dict[str, Any] | None:
    """The difference between a figure of two rows; None if they have no seed in common.

    Returns:
        `mean`, `seeds` (the difference in each), and if the values of questions are known `low`, `high` (the
        bootstrap interval of 95 %), `p` (randomisation test) and `questions`.
    """
    cells = {seed: gap for seed, own in rows.items() if (gap := _gap(own, row, over, column)) is not None}
    if not cells:
        return None
    result: dict[str, Any] = {
        "mean": statistics.fmean(cell.mean for cell in cells.values()),
        "seeds": {str(seed): cell.mean for seed, cell in cells.items()},
    }
    shared = set.intersection(*(set(cell.queries) for cell in cells.values()))
    if shared:
        values = [statistics.fmean(cell.queries[query] for cell in cells.values()) for query in sorted(shared)]
        ((result["low"], result["high"]),) = bootstrap_intervals(values)
        result |= {"p": randomisation_test(values), "questions": len(values)}
    return result


def _gap(rows: Mapping[str, ResultRow], row: str, over: str, column: str) -> Cell | None:
    if not all(name in rows and column in rows[name].cells for name in (row, over)):
        return None
    return rows[row].cells[column].minus(rows[over].cells[column])


def _done(folder: Path) -> dict[str, dict[str, Any]]:
    """The completed steps of a run, from its run.json."""
    path = folder / "run.json"
    steps = storage.read_json(path, do="")["steps"] if path.is_file() else {}
    return {name: entry for name, entry in steps.items() if entry["done"]}


def _table(recipe: Recipe, folder: Path, done: Mapping[str, Mapping[str, Any]]) -> Sequence[ResultRow]:
    """The completed rows of a recipe, with the names of figures as columns."""
    paths = {step.name: folder / step.output for step in recipe.steps if step.name in done and step.output is not None}
    figures = {name: values for name, path in paths.items() if (values := read_figures(path))}
    per_query = {name: read_per_query(paths[name]) for name in figures}
    seconds = {step.name: float(done.get(step.name, {}).get("seconds", 0)) for step in recipe.steps}
    return [_plain(row) for row in tabulate(recipe, figures, seconds, per_query).rows]


def _plain(row: ResultRow) -> ResultRow:
    """The row with "nDCG@10" for "figures nDCG@10"."""
    cells = {name.rpartition(" ")[2]: cell for name, cell in row.cells.items()}
    return ResultRow(row.name, row.title, row.source, cells, row.steps, row.seconds, row.baseline)
