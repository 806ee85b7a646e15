"""The program behind `rkit run`: the steps of a recipe in order, each of them a command as one would type it.

    rkit run RECIPE --output DIR [--variants NAME,...] [--set NAME=VALUE] [--set STEP.OPTION=VALUE] [--force] [--jobs N]
    rkit run RECIPE --output DIR --plan

A step is skipped while its command line and everything it reads are unchanged and its output is there. So a run that
was cut off goes on where it was (a training with --resume), and a changed value runs again only what depends on it.
DIR/run.json records the steps, DIR/logs/ has what each printed, and a recipe with a table leaves it in DIR/results.json
and results.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from retrievalkit.errors import InputError
from retrievalkit.recipe.apart import Runner
from retrievalkit.recipe.display import Display
from retrievalkit.recipe.job import Job
from retrievalkit.recipe.log import StepLog
from retrievalkit.recipe.outcome import Outcome, Plan, PlannedStep, StepResult, read_figures, read_per_query
from retrievalkit.recipe.recipe import Recipe, load_recipe
from retrievalkit.recipe.requirements import check_installed
from retrievalkit.recipe.results import Results, tabulate
from retrievalkit.recipe.side_by_side import SideBySide
from retrievalkit.recipe.state import STATE, State
from retrievalkit.recipe.step import texts
from retrievalkit.report.terminal import holds_credentials


def run(
    recipe: str | Path | Recipe,
    output: str | Path,
    *,
    cli: click.Group,
    overrides: Mapping[str, Any] | None = None,
    variants: Sequence[str] | None = None,
    force: bool = False,
    verbose: bool = False,
    runner: Callable[[], Runner] | None = None,
) -> Outcome:
    """Run a recipe.

    Args:
        recipe: A file, the name of a recipe that comes with retrievalkit, or a recipe that has been read.
        output: The folder for everything that the steps write.
        cli: The command line, whose commands are run in this process.
        overrides: The settings of `--set`, as `parse_set` returns them.
        variants: Which of its variants to run, by name or pattern; None = all.
        force: Run every step again.
        verbose: Show the command line of each step.
        runner: Gives what runs steps side by side, in processes of their own; None = one after the other, in this one.

    Returns:
        The result of each step, and the table.

    Raises:
        InputError: The recipe or its command lines are wrong, a package is missing, or another run is at work in the
            folder; nothing was run.
        StepError: A step failed; the outputs of the earlier ones stay.
    """
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, overrides, variants)
    folder = Path(output)
    jobs = plan(recipe, folder, cli)
    state = State.open(folder, recipe)
    with state.held():
        display = Display(jobs, str(output), verbose=verbose, together=runner is not None)
        if runner is None:
            steps = _run_jobs(jobs, state, cli, display, force=force)
        else:
            steps = _run_side_by_side(jobs, state, runner, display, force=force)
        return Outcome(steps, _table(recipe, steps, folder) if recipe.table else None)


def preview(recipe: Recipe, output: str | Path, *, cli: click.Group, force: bool = False) -> Plan:
    """What `run` would do with the same arguments; nothing is run or written.

    Raises:
        InputError: As of `run`.
    """
    folder = Path(output)
    jobs = plan(recipe, folder, cli)
    state = State.open(folder, recipe)
    kept: set[str] = set()
    for job in jobs:
        # What a step would read is known only where the steps before it are done.
        if not force and kept.issuperset(job.step.uses) and state.is_done(job, state.key(job)):
            kept.add(job.step.name)
    return Plan(
        [
            PlannedStep(job.step.name, job.step.heading, job.typed, job.output, kept=job.step.name in kept)
            for job in jobs
        ]
    )


def plan(recipe: Recipe, folder: Path, cli: click.Group) -> list[Job]:
    """The command lines of a recipe, checked as far as possible before the first one runs.

    Raises:
        InputError: A package is missing, or a command line is wrong; names the line of the recipe.
    """
    check_installed(recipe.name, recipe.requires, recipe.steps)
    jobs = [Job.plan(recipe, step, folder, cli) for step in recipe.steps]
    if any(map(holds_credentials, (*texts(recipe.values), *(word for job in jobs for word in job.words)))):
        msg = (
            f"an address in the recipe '{recipe.name}' or its settings holds a user or a password, which would be "
            f"written to {STATE} and the logs. Give it by the environment variable of that service instead."
        )
        raise InputError(msg)
    return jobs


def _run_jobs(
    jobs: Sequence[Job], state: State, cli: click.Group, display: Display, *, force: bool
) -> list[StepResult]:
    done: list[StepResult] = []
    for job in jobs:
        key = state.key(job)
        skipped = not force and state.is_done(job, key)
        if skipped:
            display.keep(job)
        else:
            _run_step(job, key, state, cli, display)
        done.append(_result(job, state, skipped=skipped))
        if done[-1].figures and state.recipe.table:
            # After each row, so that a run that is cut off leaves the rows it finished.
            _table(state.recipe, done, state.folder, tested=False)
    display.show_kept()
    return done


def _run_side_by_side(
    jobs: Sequence[Job], state: State, runner: Callable[[], Runner], display: Display, *, force: bool
) -> list[StepResult]:
    results: dict[str, StepResult] = {}

    def done(job: Job, skipped: bool) -> None:
        results[job.step.name] = _result(job, state, skipped=skipped)
        if results[job.step.name].figures and state.recipe.table:
            _table(state.recipe, in_order(), state.folder, tested=False)

    def in_order() -> list[StepResult]:
        return [results[job.step.name] for job in jobs if job.step.name in results]

    state.order = [job.step.name for job in jobs]
    SideBySide(jobs, state, runner, display, force=force, done=done).run()
    return in_order()


def _run_step(job: Job, key: str, state: State, cli: click.Group, display: Display) -> None:
    log = StepLog(state.folder, job.step.name)
    resumed, before = state.begin(job, key)
    display.start(job, resumed=resumed, seconds=before)
    start = time.perf_counter()
    try:
        job.run(cli, log, resume=resumed)
    except BaseException as error:
        state.interrupt(job, before + time.perf_counter() - start)
        display.fail(job, log, error)
        raise
    seconds = before + time.perf_counter() - start
    state.finish(job, seconds)
    display.finish(job, log, seconds)


def _result(job: Job, state: State, *, skipped: bool) -> StepResult:
    return StepResult(
        name=job.step.name,
        title=job.step.heading,
        command_line=job.typed,
        output=job.output,
        log=StepLog(state.folder, job.step.name).path,
        seconds=state.steps[job.step.name]["seconds"],
        skipped=skipped,
        figures=read_figures(job.output),
        expected=job.step.expected,
    )


def _table(recipe: Recipe, steps: Sequence[StepResult], folder: Path, *, tested: bool = True) -> Results:
    """Write the table of the steps that are done; the significance tests take their time and come last."""
    figures = {step.name: step.figures for step in steps}
    per_query = {step.name: read_per_query(step.output) for step in steps if step.figures} if tested else {}
    table = tabulate(recipe, figures, {step.name: step.seconds for step in steps}, per_query)
    if tested:
        table = table.tested()
    table.write(folder)
    return table
