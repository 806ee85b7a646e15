"""The program behind `rkit quickstart`: runs the recipe `quickstart`, and prints its results as one table.

    rkit quickstart [--corpus ... --examples ... --queries ... --qrels ...] [--output quickstart]

Each system is compared with the one that it should beat, by the difference in nDCG@10 and a paired significance test.
At the end come the recommended system, the comparison page, and a search line with one of the test questions.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import click

from retrievalkit import artifacts
from retrievalkit.errors import InputError
from retrievalkit.evaluate.compare.comparison import Difference, Mean
from retrievalkit.recipe.noise import LEVEL
from retrievalkit.recipe.outcome import StepResult, times
from retrievalkit.recipe.recipe import Recipe, load_recipe
from retrievalkit.recipe.recommend import Recommendation, question, recommend
from retrievalkit.recipe.run import run as run_recipe
from retrievalkit.recipe.step import closure
from retrievalkit.report.table import text_table
from retrievalkit.report.terminal import say

RECIPE = "quickstart"
RESULTS = "results.json"
METRICS = ("nDCG@10", "RR@10", "R@100", "Success@5", "Success@20")
COLUMNS = ("nDCG@10", "RR@10", "R@100", "top5", "top20")
PAGE = "compare.html"
TITLE = "Questions about a package that was not trained on"
OWN_TITLE = "Your questions"
_DATA = ("corpus", "examples", "queries", "qrels")


@dataclass(frozen=True)
class System:
    """One row of the table.

    Attributes:
        name: Its label.
        step: The step that searched the test questions.
        against: The system that it should beat.
    """

    name: str
    step: str
    against: str = ""


# Simplest first: of systems that show no difference, the first is recommended.
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
    verbose: bool = False,
    shown: Literal["text", "json"] | None = "text",
) -> list[dict[str, Any]]:
    """Run the quickstart and print its results.

    Args:
        cli: The command line, whose commands are the steps.
        output: The folder for everything that the steps write.
        model: The pretrained encoder to start from.
        corpus: Own passages; then examples, queries and qrels must be given too.
        examples: Own training examples.
        queries: Own test queries.
        qrels: Own judgements of the test queries.
        overrides: Other values of the recipe.
        force: Run every step again.
        verbose: Show the command line of each step.
        shown: How the results are printed: as tables, or as JSON; None = not at all.

    Returns:
        The content of `results.json`: one row a system.

    Raises:
        InputError: A package is missing, or only some of the own files were given; nothing was run.
    """
    values = _values(model, dict(zip(_DATA, (corpus, examples, queries, qrels), strict=True)))
    # The page has plots where matplotlib is installed.
    plot = {"plot": importlib.util.find_spec("matplotlib") is not None}
    recipe = load_recipe(RECIPE, {**plot, **(overrides or {}), **values})
    steps = run_recipe(recipe, output, cli=cli, force=force, verbose=verbose).steps
    results = _Results(recipe, steps, Path(output))
    rows = results.rows()
    artifacts.write_json(Path(output) / RESULTS, rows)
    if shown == "json":
        click.echo(json.dumps(rows, indent=2))
    elif shown == "text":
        click.echo(f"\n{times(steps)}\n")
        _print_tables(rows, TITLE if corpus is None else OWN_TITLE)
        _print_closing(results)
    return rows


def _values(model: str | None, data: Mapping[str, str | None]) -> dict[str, Any]:
    given = {name: value for name, value in data.items() if value is not None}
    missing = [name for name in data if name not in given]
    if given and missing:
        msg = f"--{' --'.join(given)} given without --{' --'.join(missing)}: your own data needs all four. Add them."
        raise InputError(msg)
    if given:
        # Negatives of the user's own data are mined in the whole corpus.
        given["train_corpus"] = given["corpus"]
    return given | ({"model": model} if model else {})


_DO = "Run the quickstart anew, with --force."


@dataclass(frozen=True)
class _Comparison:
    """What is read of comparison.json."""

    means: list[Mean]
    differences: list[Difference]


class _Results:
    """The figures of all systems, from the outputs of the steps."""

    def __init__(self, recipe: Recipe, steps: Sequence[StepResult], folder: Path) -> None:
        self.recipe = recipe
        self.folder = folder
        self.steps = {step.name: step for step in steps}
        self.comparison = artifacts.read_json(folder / "comparison.json", _Comparison, do=_DO)
        # A comparison names runs by their files.
        self.runs = {system.name: Path(str(self.steps[system.step].output)).stem for system in SYSTEMS}

    def rows(self) -> list[dict[str, Any]]:
        uses = {step.name: step.uses for step in self.recipe.steps}
        rows = []
        for system in SYSTEMS:
            row: dict[str, Any] = {"system": system.name}
            for column, metric in zip(COLUMNS, METRICS, strict=True):
                row[column] = round(self.means(metric)[self.runs[system.name]], 4)
            seconds = (self.steps[name].seconds for name in closure(uses, [system.step]))
            row["seconds"] = round(sum(seconds), 1)
            if system.against:
                row |= {"against": system.against, **self.difference(system)}
            rows.append(row)
        return rows

    def means(self, metric: str) -> dict[str, float]:
        """Run -> its mean."""
        return {mean["run"]: mean["mean"] for mean in self.comparison["means"] if mean["metric"] == metric}

    def difference(self, system: System) -> dict[str, float]:
        """The difference in nDCG@10 to the system that it should beat, and its p-values."""
        run, against = self.runs[system.name], self.runs[system.against]
        for pair in self.differences():
            if {pair["run"], pair["against"]} == {run, against}:
                sign = 1 if pair["run"] == run else -1  # each pair is listed one way round
                difference = round(sign * pair["difference"], 4)
                return {"difference": difference, "p": pair["p_value"], "p_corrected": pair["p_corrected"]}
        msg = f"the comparison has no pair of '{run}' and '{against}'"
        raise KeyError(msg)

    def differences(self) -> list[dict[str, Any]]:
        """Those of all pairs of runs in nDCG@10."""
        return [pair for pair in self.comparison["differences"] if pair["metric"] == METRICS[0]]

    def recommendation(self) -> Recommendation:
        """The recommended system and the best one, by their names in the table."""
        by_run = recommend(list(self.runs.values()), self.means(METRICS[0]), self.differences())
        names = {run: name for name, run in self.runs.items()}
        return Recommendation(names[by_run.system], names[by_run.best], by_run.p)

    def search_line(self, name: str) -> str | None:
        """A command that searches a system for a test question that it answers; None if it answers none."""
        from retrievalkit.data.qrels import read_qrels
        from retrievalkit.data.queries import read_queries
        from retrievalkit.data.runs import read_run

        system = next(system for system in SYSTEMS if system.name == name)
        step = next(step for step in self.recipe.steps if step.name == system.step)
        options = self.recipe.options_in(step, str(self.folder))
        run, baseline = (read_run(str(self.steps[searched.step].output)) for searched in (system, SYSTEMS[0]))
        judged = read_qrels(self.recipe.values["qrels"])
        text = question(read_queries(options["queries"]), judged, run, baseline)
        indexes = options["indexes"] if isinstance(options["indexes"], list) else [options["indexes"]]
        fusion = ["--fusion", options["fusion"]] if "fusion" in options else []
        # As it can be typed here: `make quickstart` leaves rkit in a virtual environment that is not active.
        return text and shlex.join([*_program(), "search", *indexes, *fusion, "--query", text])


def _print_tables(rows: Sequence[Mapping[str, Any]], title: str) -> None:
    table = [("system", *COLUMNS, "seconds")]
    differences = [("system", "against", "difference", "p", "")]
    for row in rows:
        table.append((row["system"], *(f"{row[name]:.3f}" for name in COLUMNS), f"{row['seconds']:.0f}"))
        if "against" in row:
            verdict = "" if row["p_corrected"] < LEVEL else "no difference shown"
            difference = (f"{row['difference']:+.4f}", f"{row['p_corrected']:.4f}", verdict)
            differences.append((row["system"], row["against"], *difference))
    click.echo(f"{title}\n\n{text_table(table, right=range(1, len(table[0])))}\n")
    click.echo("seconds: all steps that the system needs, training included.\n")
    click.echo(f"Difference in {METRICS[0]}\n\n{text_table(differences, right=(2, 3))}\n")
    click.echo("p: paired randomisation test over the questions, Holm's correction over all pairs.")


def _print_closing(results: _Results) -> None:
    recommended, means = results.recommendation(), results.means(METRICS[0])
    value = f"{METRICS[0]} {means[results.runs[recommended.system]]:.3f}"
    if recommended.p is None:
        say(f"\nRecommended: {recommended.system}, the best by {METRICS[0]} on these questions ({value}).")
    else:
        best = f"{recommended.best} ({means[results.runs[recommended.best]]:.3f})"
        reason = f"no difference to {best} is shown (p {recommended.p:.2f}), and it is simpler"
        say(f"\nRecommended: {recommended.system} ({value}): {reason}.")
    say(f"Question by question: open {results.folder / PAGE} in a browser.")
    if line := results.search_line(recommended.system):
        say(f"Search with it, for one of these questions:\n\n  {line}\n")


def _program() -> list[str]:
    """How to call rkit here: by name, by the path it was started with, or as a module."""
    if shutil.which("rkit"):
        return ["rkit"]
    return [sys.argv[0]] if Path(sys.argv[0]).name == "rkit" else [sys.executable, "-m", "retrievalkit"]
