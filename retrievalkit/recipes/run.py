"""`rkit run`: the steps of a recipe in order, each an `rkit` command.

A step is skipped if its command line and all of its inputs are unchanged and its output exists. So an interrupted run
continues where it stopped (a training with --resume), and after a changed value only the steps that depend on it run
again. DIR/run.json records the steps, DIR/logs/ has the output of each, and a recipe with a table writes
DIR/results.json and results.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path

import click

from retrievalkit import storage
from retrievalkit.errors import InputError
from retrievalkit.recipes.display import Display
from retrievalkit.recipes.job import Job
from retrievalkit.recipes.log import StepLog
from retrievalkit.recipes.outcome import Outcome, Plan, StepResult, read_figures, read_per_query
from retrievalkit.recipes.recipe import Recipe
from retrievalkit.recipes.results import Results, tabulate
from retrievalkit.recipes.schedule import run_steps
from retrievalkit.recipes.state import STATE, State
from retrievalkit.recipes.step import texts
from retrievalkit.registry import DISTRIBUTIONS, names
from retrievalkit.registry.modules import package_folder
from retrievalkit.reporting.terminal import holds_credentials


def run(
    recipe: Recipe, output: str | Path, *, cli: click.Group, force: bool = False, parallel: int | None = None
) -> Outcome:
    """Run a recipe; `parallel` is the number of concurrent steps, each in its own process; None = one at a time.

    Raises:
        InputError: The recipe or its command lines are wrong, a package is missing, or another run uses the folder;
            nothing was run.
        StepError: A step failed; the outputs of earlier steps are kept.
    """
    folder = Path(output)
    jobs = plan(recipe, folder, cli)
    state = State(folder, recipe)
    results: dict[str, StepResult] = {}

    def in_order() -> list[StepResult]:
        return [results[job.step.name] for job in jobs if job.step.name in results]

    def done(job: Job, skipped: bool) -> None:
        results[job.step.name] = StepResult(
            name=job.step.name,
            title=job.step.heading,
            command_line=job.typed,
            output=job.output,
            log=StepLog(folder, job.step.name).path,
            seconds=state.steps[job.step.name]["seconds"],
            skipped=skipped,
            figures=read_figures(job.output),
        )
        if results[job.step.name].figures and recipe.table:
            # After each row, so that an interrupted run leaves its complete rows.
            _table(recipe, in_order(), folder, tested=False)

    # The lock is inside the folder, because its parent may not be writable.
    with storage.held(folder, lock=storage.place_of(folder) / ".run.lock"):
        display = Display(jobs, str(output), parallel=parallel is not None)
        run_steps(jobs, state, display, cli=cli, parallel=parallel, force=force, done=done)
        return Outcome(in_order(), _table(recipe, in_order(), folder) if recipe.table else None)


def preview(recipe: Recipe, output: str | Path, *, cli: click.Group, force: bool = False) -> Plan:
    """Return the plan of `run` with the same arguments; nothing is run or written."""
    jobs = plan(recipe, Path(output), cli)
    state = State(Path(output), recipe)
    kept: set[str] = set()
    for job in jobs:
        # The inputs of a step are known only after the steps before it are done.
        if not force and kept.issuperset(job.step.uses) and state.is_done(job, state.key(job)):
            kept.add(job.step.name)
    steps = [(job.step.name, job.step.heading, job.typed, job.output, job.step.name in kept) for job in jobs]
    return Plan([dict(zip(("name", "title", "command_line", "output", "kept"), step, strict=True)) for step in steps])


def plan(recipe: Recipe, folder: Path, cli: click.Group) -> list[Job]:
    """Build the command lines of a recipe, and check them before the first step runs; errors name file and line."""
    missing = dict(recipe.requires)
    for name in recipe.requires:
        with suppress(metadata.PackageNotFoundError):
            metadata.version(name)
            del missing[name]
    # Packages that only some settings need are not in the recipe's `requires`.
    for text in (text for step in recipe.steps for text in texts(step.options)):
        prefix, _, name = text.partition(":")
        package = name.partition("/")[0]
        if prefix == "package" and package and package_folder(package) is None:
            missing[package.replace("_", "-")] = "the pretrained encoder"
        elif prefix not in names("source") and (distribution := DISTRIBUTIONS.get(f"{prefix}:")):
            missing[distribution] = f"the source '{prefix}:'"
    for name in sorted(DISTRIBUTIONS.keys() - names("command")):
        if " " not in name and any(step.command == name for step in recipe.steps):
            missing[DISTRIBUTIONS[name]] = f"the command '{name}'"
    if missing:
        listed = "".join(f"\n  {name}: {use}" for name, use in missing.items())
        msg = f"the recipe '{recipe.name}' needs packages that are not installed:{listed}\nInstall: pip install "
        raise InputError(msg + " ".join(missing))
    jobs = [Job.plan(recipe, step, folder, cli) for step in recipe.steps]
    if any(map(holds_credentials, (*texts(recipe.values), *(word for job in jobs for word in job.words)))):
        msg = (
            f"an address in the recipe '{recipe.name}' or its settings contains a user or a password, which would "
            f"be written to {STATE} and the logs. Use the environment variable of that service instead."
        )
        raise InputError(msg)
    return jobs


def _table(recipe: Recipe, steps: Sequence[StepResult], folder: Path, *, tested: bool = True) -> Results:
    """Write the table of the completed steps; significance tests are slow, so they are run only at the end."""
    figures = {step.name: step.figures for step in steps}
    per_query = {step.name: read_per_query(step.output) for step in steps if step.figures} if tested else {}
    table = tabulate(recipe, figures, {step.name: step.seconds for step in steps}, per_query)
    if tested:
        table = table.tested()
    table.write(folder)
    return table
