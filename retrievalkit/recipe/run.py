"""The program behind `rkit run`: the steps of a recipe in order, each of them a command as one would type it.

    rkit run RECIPE --output DIR [--variants NAME,...] [--set NAME=VALUE] [--set STEP.OPTION=VALUE] [--force]

A step is skipped while its command line and everything it reads are what they were, and what it wrote is there. So a
run that was cut off goes on where it was (a training with --resume), and a changed value runs again what depends on it.
What is known of each step is in DIR/run.json; the table of a recipe that has one is in DIR/results.json and results.md.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from filelock import FileLock, Timeout

from retrievalkit import __version__, artifacts
from retrievalkit.errors import ArtifactError, RetrievalkitError, UnknownNameError
from retrievalkit.model.pretrained import locate_model
from retrievalkit.recipe.check import check_components
from retrievalkit.recipe.command_line import command_line, has
from retrievalkit.recipe.recipe import Recipe, Step, flatten, load_recipe
from retrievalkit.recipe.results import Results, aligned, tabulate

STATE = "run.json"
LOCK = ".run.lock"


class StepError(RetrievalkitError):
    """A step of a recipe failed; has the exit code of what failed."""

    def __init__(self, step: Step, reason: str, exit_code: int) -> None:
        super().__init__(f"step '{step.name}' (rkit {step.command}) failed: {reason}")
        self.exit_code = exit_code


@dataclass(frozen=True)
class StepResult:
    """What became of a step.

    Attributes:
        name: The step.
        command_line: What one would type.
        output: The file or folder that it wrote, if it writes any.
        seconds: How long it took, in the run that did the work; resumed work is added up.
        skipped: Whether an earlier run had done it.
        figures: Name -> number, where the output is a JSON file of figures.
        expected: The recipe's reference figures, and their "source".
    """

    name: str
    command_line: str
    output: Path | None
    seconds: float
    skipped: bool
    figures: Mapping[str, float] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What became of a recipe: of its steps, and the table if it has one."""

    steps: Sequence[StepResult]
    results: Results | None = None

    def to_json(self) -> Any:
        """What `rkit run --json` prints: the steps, or the table with the steps beside it."""
        steps = [asdict(one) for one in self.steps]
        return steps if self.results is None else {**self.results.to_json(), "steps": steps}

    def text(self) -> str:
        """The table, or the steps' times and reference figures where there is none."""
        return summary(self.steps) if self.results is None else self.results.text()


def run(
    recipe: str | Path | Recipe,
    output: str | Path,
    *,
    cli: click.Group,
    overrides: Mapping[str, Any] | None = None,
    variants: Sequence[str] | None = None,
    force: bool = False,
) -> Outcome:
    """Run a recipe.

    Args:
        recipe: A file, the name of a recipe that comes along, or a recipe that has been read.
        output: The folder for all that the steps write.
        cli: The command line, whose commands are run in this process.
        overrides: What `parse_set` made of `--set`.
        variants: Which of its variants to run, by name or pattern; None = all.
        force: Run every step again.

    Returns:
        One result a step, and the table.

    Raises:
        InputError: The recipe or its command lines are wrong, or another run is at work in the folder; nothing was run.
        StepError: A step failed; what the earlier ones wrote stays.
    """
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, overrides, variants)
    folder = Path(output)
    jobs = plan(recipe, folder, cli)
    state = _State.open(folder, recipe)
    with state.held():
        return _run_jobs(jobs, state, cli, force=force)


def _run_jobs(jobs: Sequence[Job], state: _State, cli: click.Group, *, force: bool) -> Outcome:
    read = _Inputs()
    done: list[StepResult] = []
    table: Results | None = None
    for number, job in enumerate(jobs, 1):
        click.echo(f"[{number}/{len(jobs)}] {job.step.name}: {job.typed}", err=True)
        key = job.key(read, state)
        skipped = not force and state.is_done(job, key)
        if skipped:
            click.echo("      unchanged, skipped", err=True)
        else:
            _run_step(job, key, state, cli)
        done.append(job.result(state.steps[job.step.name]["seconds"], skipped=skipped))
        if done[-1].figures and state.recipe.table:
            # After each row, so that a run that is cut off leaves those that it did.
            table = _tabulated(state.recipe, done)
            table.write(state.folder)
    return Outcome(done, table)


def plan(recipe: Recipe, folder: Path, cli: click.Group) -> list[Job]:
    """The command lines of a recipe, checked as far as that can be done before the first one runs.

    Raises:
        InputError: One of them is wrong; names the line of the recipe.
    """
    return [Job.plan(recipe, step, folder, cli) for step in recipe.steps]


def _tabulated(recipe: Recipe, done: Sequence[StepResult]) -> Results:
    figures = {one.name: one.figures for one in done}
    return tabulate(recipe, figures, {one.name: one.seconds for one in done})


def _run_step(job: Job, key: str, state: _State, cli: click.Group) -> None:
    resumed, before = state.begin(job, key)
    start = time.perf_counter()
    try:
        job.run(cli, resume=resumed)
    except BaseException:
        state.interrupt(job, before + time.perf_counter() - start)
        raise
    seconds = before + time.perf_counter() - start
    state.finish(job, seconds)
    click.echo(f"      {seconds:.1f} s", err=True)


@contextlib.contextmanager
def _errors_named(step: Step) -> Iterator[None]:
    """Say in every error that a user can meet which step it was; others keep their traceback."""
    try:
        yield
    except RetrievalkitError as error:
        raise StepError(step, str(error), error.exit_code) from error
    except click.ClickException as error:
        raise StepError(step, error.format_message(), error.exit_code) from error
    except SystemExit as error:
        if error.code:
            raise StepError(step, f"it ended with {error.code}.", 1) from error
    except BaseException as error:
        click.echo(f"step '{step.name}' (rkit {step.command}) did not end.", err=True)
        if isinstance(error, click.Abort):  # what click makes of Ctrl-C
            raise KeyboardInterrupt from error
        raise


@dataclass(frozen=True)
class Job:
    """A step with its command line, which is built before the first step runs, so that every mistake shows then."""

    step: Step
    command: click.Command
    output: Path | None
    words: tuple[str, ...]

    @classmethod
    def plan(cls, recipe: Recipe, step: Step, folder: Path, cli: click.Group) -> Job:
        """Build a step's command line and check it."""
        known = _commands(cli)
        if step.command not in known:
            raise step.error(str(UnknownNameError("command", step.command, known)))
        command = known[step.command]
        output = folder / step.output if step.output is not None else None
        options = recipe.options_in(step, str(folder))
        words = command_line(step, command, options, output)
        check_components(step, command, options)
        return cls(step, command, output, words)

    @property
    def prints(self) -> bool:
        """Whether the output is what the command prints, because it has no parameter for one."""
        return self.output is not None and not has(self.command, "output")

    @property
    def typed(self) -> str:
        """What one would type."""
        line = shlex.join(["rkit", *self.words])
        return f"{line} > {shlex.quote(str(self.output))}" if self.prints else line

    def run(self, cli: click.Group, *, resume: bool) -> None:
        """Run the command; it goes on with one that was cut off, and replaces what an earlier one left."""
        words = [*self.words]
        if self.output is not None and self.output.is_dir() and has(self.command, "overwrite"):
            words.append("--overwrite")
        if resume and has(self.command, "resume"):
            words.append("--resume")
        with _errors_named(self.step), self._printed():
            code = cli.main(args=words, prog_name="rkit", standalone_mode=False)
        if isinstance(code, int) and code:
            raise StepError(self.step, f"it ended with exit code {code}.", code)
        if self.output is not None and not self.output.exists():
            raise StepError(self.step, f"it did not write '{self.output}'.", 1)

    @contextlib.contextmanager
    def _printed(self) -> Iterator[None]:
        if self.output is None or not self.prints:
            # Standard output is for the results of the whole.
            with contextlib.redirect_stdout(sys.stderr):
                yield
            return
        with (
            artifacts.write_file(self.output) as staging,
            staging.open("w", encoding="utf-8") as stream,
            contextlib.redirect_stdout(stream),
        ):
            yield

    def key(self, read: _Inputs, state: _State) -> str:
        """A fingerprint of the step and of all that it reads; the run's folder may be moved."""
        step = self.step
        inputs: dict[str, Any] = {name: state.steps[name].get("fingerprint") for name in step.uses}
        inputs |= {text: read.fingerprint(text) for text in _texts(step.options)}
        return artifacts.fingerprint_value([__version__, step.command, step.options, step.output, inputs])

    def result(self, seconds: float, *, skipped: bool) -> StepResult:
        """What became of it."""
        figures = read_figures(self.output) if self.output is not None else {}
        return StepResult(self.step.name, self.typed, self.output, seconds, skipped, figures, self.step.expected)


def _commands(group: click.Group, before: str = "") -> dict[str, click.Command]:
    """The commands that a step may run, by name; those of a group as one would type them: "rerank train"."""
    found: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            found |= _commands(command, f"{before}{name} ")
        elif name != "run":
            found[before + name] = command
    return found


def read_figures(path: Path) -> dict[str, float]:
    """The numbers of a JSON file: its "metrics" where it has them, as `rkit evaluate --json` prints; {} for none."""
    if path.suffix != ".json" or not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}
    found = found.get("metrics", found) if isinstance(found, dict) else {}
    found = flatten(found) if isinstance(found, dict) else {}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def summary(results: Sequence[StepResult]) -> str:
    """A table of the steps and their times, and one of the figures beside the steps' own reference figures."""
    text = _times(results)
    compared = [("step", "figure", "reference", "ours", "difference", "source")]
    for one in results:
        source = str(one.expected.get("source", ""))
        for name, reference in one.expected.items():
            if name != "source":
                compared.append(
                    (one.name, name, str(reference), *_difference(one.figures.get(name), reference), source)
                )
    return f"{text}\n\n{aligned(compared)}" if len(compared) > 1 else text


def _times(results: Sequence[StepResult]) -> str:
    rows = [("step", "seconds", "")]
    return aligned(rows + [(one.name, f"{one.seconds:.1f}", "skipped" if one.skipped else "") for one in results])


def _difference(ours: float | None, reference: Any) -> tuple[str, str]:
    if ours is None or not isinstance(reference, int | float):
        return "missing" if ours is None else f"{ours:.4f}", ""
    return f"{ours:.4f}", f"{ours - reference:+.4f}"


class _Inputs:
    """Fingerprints of what steps read; each is computed once a run."""

    def __init__(self) -> None:
        self.known: dict[str, str | None] = {}

    def fingerprint(self, value: str) -> str | None:
        """The fingerprint of a file, a folder or a source; None for text that names none of them."""
        if value not in self.known:
            self.known[value] = self._compute(value)
        return self.known[value]

    def _compute(self, value: str) -> str | None:
        if value.startswith("pydoc:"):
            from retrievalkit.data.corpus import open_corpus

            return open_corpus(value).fingerprint()
        if value.startswith("package:"):
            value = locate_model(value)
        path = Path(value)
        try:
            return _content(path) if path.is_file() or path.is_dir() else None
        except OSError:  # a text too long for a path
            return None


def _content(path: Path) -> str:
    """A fingerprint of what a file or folder holds."""
    if not path.is_dir():
        return artifacts.fingerprint_file(path)
    if artifacts.kind_of(path) == "checkpoint":
        # That of the weights: the log of a training holds times.
        recorded = artifacts.read_manifest(path).get("fingerprint")
        if isinstance(recorded, str):
            return recorded
    return artifacts.fingerprint_folder(path)


def _sizes(path: Path) -> str:
    """A quick look at whether a file or folder is still what a step left."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return artifacts.fingerprint_value(
        [(one.relative_to(path).as_posix(), one.stat().st_size) for one in files if one.is_file()]
    )


class _State:
    """What is known of the steps: DIR/run.json, written after each change."""

    def __init__(self, folder: Path, recipe: Recipe, steps: dict[str, dict[str, Any]]) -> None:
        self.folder = folder
        self.recipe = recipe
        self.steps = steps

    @classmethod
    def open(cls, folder: Path, recipe: Recipe) -> _State:
        """Read the state of an earlier run of the same recipe, or start one in a new folder."""
        path = folder / STATE
        if not path.exists():
            artifacts.check_output(folder)
            return cls(folder, recipe, {})
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            name, steps = found["recipe"], dict(found["steps"])
        except (ValueError, KeyError, TypeError):
            msg = f"'{path}' cannot be read. Remove it, and what the steps wrote, or choose another --output."
            raise ArtifactError(msg) from None
        if name != recipe.name:
            msg = f"'{folder}' holds what the recipe '{name}' wrote, not '{recipe.name}'. Choose another --output."
            raise ArtifactError(msg)
        return cls(folder, recipe, steps)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs out of the folder until this one ends, however it ends.

        Raises:
            ArtifactError: Another run is at work there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            msg = f"another run is writing to '{self.folder}'. Wait until it ends, or choose another --output."
            raise ArtifactError(msg) from None
        try:
            yield
        finally:
            # While it is held: a run that begins now makes a new one.
            (self.folder / LOCK).unlink(missing_ok=True)
            lock.release()

    def is_done(self, job: Job, key: str) -> bool:
        """Whether an earlier run did the same, and what it wrote is there."""
        entry = self.steps.get(job.step.name, {})
        if entry.get("key") != key or not entry.get("done"):
            return False
        return job.output is None or (job.output.exists() and _sizes(job.output) == entry["sizes"])

    def begin(self, job: Job, key: str) -> tuple[bool, float]:
        """Note that a step runs; returns whether it goes on with one that was cut off, and how long that had run."""
        entry = self.steps.get(job.step.name, {})
        resumed = entry.get("key") == key and not entry.get("done")
        seconds: float = entry["seconds"] if resumed else 0.0
        self._write(job, {"key": key, "done": False, "seconds": seconds})
        return resumed, seconds

    def interrupt(self, job: Job, seconds: float) -> None:
        """Note how long a step ran that did not end."""
        with contextlib.suppress(OSError):  # a full disk must not hide why the step ended
            self._write(job, self.steps[job.step.name] | {"seconds": seconds})

    def finish(self, job: Job, seconds: float) -> None:
        """Note that a step is done."""
        entry = {"key": self.steps[job.step.name]["key"], "done": True, "seconds": seconds, "command": job.typed}
        if job.output is not None:
            entry |= {"fingerprint": _content(job.output), "sizes": _sizes(job.output)}
        self._write(job, entry)

    def _write(self, job: Job, entry: dict[str, Any]) -> None:
        self.steps[job.step.name] = entry
        found = {"recipe": self.recipe.name, "values": dict(self.recipe.values), "steps": self.steps}
        artifacts.write_json(self.folder / STATE, found)


def _texts(value: Any) -> Iterator[str]:
    """Every text among the values of options."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
