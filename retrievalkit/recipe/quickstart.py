"""The program behind `rkit quickstart`: runs the recipe `quickstart`, and prints what came out as one table.

    rkit quickstart [--corpus ... --examples ... --queries ... --qrels ...] [--output quickstart]

Each system stands beside the one that it should beat, with the difference in nDCG@10 and a paired significance test,
whatever it says.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from retrievalkit import artifacts
from retrievalkit.errors import InputError
from retrievalkit.recipe.recipe import Recipe, load_recipe
from retrievalkit.recipe.run import StepResult
from retrievalkit.recipe.run import run as run_recipe

RECIPE = "quickstart"
RESULTS = "results.json"
METRICS = ("nDCG@10", "RR@10", "R@100", "Success@5", "Success@20")
COLUMNS = ("nDCG@10", "RR@10", "R@100", "top5", "top20")
TITLE = "Questions about packages that were not trained on"
_DATA = ("corpus", "examples", "queries", "qrels")


@dataclass(frozen=True)
class System:
    """One row of the table: its name, the step that searched, and the system that it is compared with."""

    name: str
    step: str
    against: str = ""


SYSTEMS = (
    System("BM25", "bm25_run"),
    System("untrained encoder", "untrained_run", "BM25"),
    System("dual encoder", "plain_run", "untrained encoder"),
    System("self-contrastive 1", "stage1_run", "dual encoder"),
    System("self-contrastive 2", "stage2_run", "self-contrastive 1"),
    System("hybrid BM25 + stage 2", "hybrid_run", "BM25"),
)


def quickstart(
    *,
    cli: click.Group,
    output: str | Path = "quickstart",
    model: str | None = None,
    corpus: str | None = None,
    examples: str | None = None,
    queries: str | None = None,
    qrels: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    force: bool = False,
    as_json: bool = False,
) -> list[dict[str, Any]]:
    """Run the quickstart and print its results.

    Args:
        cli: The command line, whose commands are the steps.
        output: The folder for all that is made.
        model: The pretrained encoder to start from.
        corpus: Own passages; then examples, queries and qrels must be given too.
        examples: Own training examples.
        queries: Own test queries.
        qrels: Own judgements of the test queries.
        overrides: Other values of the recipe.
        force: Run every step again.
        as_json: Print JSON and not a table.

    Returns:
        What `results.json` holds: one row a system.

    Raises:
        InputError: Only some of the own files were given.
    """
    values = _values(model, dict(zip(_DATA, (corpus, examples, queries, qrels), strict=True)))
    recipe = load_recipe(RECIPE, {**(overrides or {}), **values})
    results = run_recipe(recipe, output, cli=cli, force=force).steps
    found = _rows(recipe, results, Path(output))
    artifacts.write_json(Path(output) / RESULTS, found)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        own = corpus is not None
        _print(found, results, Path(output), "Your questions" if own else TITLE)
    return found


def _values(model: str | None, data: Mapping[str, str | None]) -> dict[str, Any]:
    given = {name: value for name, value in data.items() if value is not None}
    missing = [name for name in data if name not in given]
    if given and missing:
        msg = f"--{' --'.join(given)} given without --{' --'.join(missing)}: own data needs all four of them."
        raise InputError(msg)
    if given:
        # Negatives of own data are mined in the whole of it.
        given["train_corpus"] = given["corpus"]
    return given | ({"model": model} if model else {})


def _rows(recipe: Recipe, results: Sequence[StepResult], output: Path) -> list[dict[str, Any]]:
    comparison = json.loads((output / "comparison.json").read_text(encoding="utf-8"))
    seconds = {one.name: one.seconds for one in results}
    runs = {one.name: str(one.output) for one in results}
    rows = []
    for system in SYSTEMS:
        stem = Path(runs[system.step]).stem
        means = {one["metric"]: one["mean"] for one in comparison["means"] if one["run"] == stem}
        row: dict[str, Any] = {"system": system.name}
        row |= {column: round(means[metric], 4) for column, metric in zip(COLUMNS, METRICS, strict=True)}
        row["seconds"] = round(sum(seconds[step] for step in needed(recipe, system.step)), 1)
        if system.against:
            against = Path(runs[_step_of(system.against)]).stem
            row["against"] = system.against
            row |= _difference(comparison["differences"], stem, against)
        rows.append(row)
    return rows


def needed(recipe: Recipe, step: str) -> set[str]:
    """A step and all steps that it builds on: what would have to be run for it alone."""
    uses = {one.name: one.uses for one in recipe.steps}
    found: set[str] = set()
    waiting = [step]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(uses[name])
    return found


def _step_of(system: str) -> str:
    return next(one.step for one in SYSTEMS if one.name == system)


def _difference(differences: Iterable[Mapping[str, Any]], run: str, against: str) -> dict[str, float]:
    """The difference of two runs in nDCG@10 and its p-values; pairs are stored one way round only."""
    for one in differences:
        if one["metric"] == METRICS[0] and {one["run"], one["against"]} == {run, against}:
            sign = 1 if one["run"] == run else -1
            return {
                "difference": round(sign * one["difference"], 4),
                "p": one["p_value"],
                "p_corrected": one["p_corrected"],
            }
    msg = f"the comparison has no pair of '{run}' and '{against}'"
    raise KeyError(msg)


def _print(rows: Sequence[Mapping[str, Any]], results: Sequence[StepResult], output: Path, title: str) -> None:
    console = Console()
    table = Table(title=title, title_justify="left")
    table.add_column("system")
    for name in (*COLUMNS, "seconds"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row["system"], *(f"{row[name]:.3f}" for name in COLUMNS), f"{row['seconds']:.0f}")
    console.print(table)
    differences = Table(title="Difference in nDCG@10", title_justify="left")
    for name in ("system", "against"):
        differences.add_column(name)
    for name in ("difference", "p"):
        differences.add_column(name, justify="right")
    for row in rows:
        if "against" in row:
            cells = (f"{row['difference']:+.4f}", f"{row['p_corrected']:.4f}")
            differences.add_row(row["system"], row["against"], *cells)
    console.print(differences)
    total = sum(one.seconds for one in results)
    console.print(
        "seconds: all steps that the system needs, training included. p: paired randomisation test, Holm's correction "
        f"over all pairs.\nAll steps together: {total:.0f} s. Written: {output / RESULTS}",
        highlight=False,
    )
    console.print("\nSearch it:", highlight=False)
    # As it can be typed here: `make quickstart` leaves rkit in a virtual environment that is not active.
    program = "rkit" if shutil.which("rkit") else sys.argv[0]
    click.echo(
        f"  {program} search {output / 'stage2-index'} {output / 'bm25'} --fusion rrf "
        '--query "pairwise distances between two sets of points"'
    )
