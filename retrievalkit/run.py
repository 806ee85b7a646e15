"""The program behind `rkit run`: the steps of a recipe in order, each of them a command as one would type it.

    rkit run RECIPE --output DIR [--set NAME=VALUE] [--set STEP.OPTION=VALUE] [--force]

A step is skipped while its command line and everything it reads are what they were, and what it wrote is there. So a
run that was cut off goes on where it was (a training with --resume), and a changed value runs again what depends on it.
What is known of each step is in DIR/run.json.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from retrievalkit import __version__, artifacts
from retrievalkit.errors import ArtifactError, RetrievalkitError, UnknownNameError, nearest
from retrievalkit.recipe import Recipe, Step, flatten, load_recipe

STATE = "run.json"


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


def run(
    recipe: str | Path | Recipe,
    output: str | Path,
    *,
    cli: click.Group,
    overrides: Mapping[str, Any] | None = None,
    force: bool = False,
) -> list[StepResult]:
    """Run a recipe.

    Args:
        recipe: A file, the name of a recipe that comes along, or a recipe that has been read.
        output: The folder for all that the steps write.
        cli: The command line, whose commands are run in this process.
        overrides: What `parse_set` made of `--set`.
        force: Run every step again.

    Returns:
        One result a step.

    Raises:
        InputError: The recipe or its command lines are wrong; nothing was run.
        StepError: A step failed; what the earlier ones wrote stays.
    """
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe, overrides)
    folder = Path(output)
    jobs = [_Job.plan(recipe, step, folder, cli) for step in recipe.steps]
    state = _State.open(folder, recipe)
    read = _Inputs()
    results = []
    for number, job in enumerate(jobs, 1):
        click.echo(f"[{number}/{len(jobs)}] {job.step.name}: {job.typed}", err=True)
        key = job.key(read, state)
        skipped = not force and state.is_done(job, key)
        if skipped:
            click.echo("      unchanged, skipped", err=True)
        else:
            _run_step(job, key, state, cli)
        results.append(job.result(state.steps[job.step.name]["seconds"], skipped=skipped))
    return results


def _run_step(job: _Job, key: str, state: _State, cli: click.Group) -> None:
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
class _Job:
    """A step with its command line, which is built before the first step runs, so that every mistake shows then."""

    step: Step
    command: click.Command
    output: Path | None
    words: tuple[str, ...]

    @classmethod
    def plan(cls, recipe: Recipe, step: Step, folder: Path, cli: click.Group) -> _Job:
        known = cli.commands.keys() - {"run"}
        if step.command not in known:
            raise step.error(str(UnknownNameError("command", step.command, known)))
        command = cli.commands[step.command]
        output = folder / step.output if step.output is not None else None
        return cls(step, command, output, command_line(step, command, recipe.options_in(step, str(folder)), output))

    @property
    def prints(self) -> bool:
        """Whether the output is what the command prints, because it has no parameter for one."""
        return self.output is not None and not _has(self.command, "output")

    @property
    def typed(self) -> str:
        """What one would type."""
        line = shlex.join(["rkit", *self.words])
        return f"{line} > {shlex.quote(str(self.output))}" if self.prints else line

    def run(self, cli: click.Group, *, resume: bool) -> None:
        """Run the command; it goes on with one that was cut off, and replaces what an earlier one left."""
        words = [*self.words]
        if self.output is not None and self.output.is_dir() and _has(self.command, "overwrite"):
            words.append("--overwrite")
        if resume and _has(self.command, "resume"):
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
        figures = read_figures(self.output) if self.output is not None else {}
        return StepResult(self.step.name, self.typed, self.output, seconds, skipped, figures, self.step.expected)


def command_line(
    step: Step, command: click.Command, options: Mapping[str, Any], output: Path | None = None
) -> tuple[str, ...]:
    """The words that give a command these options, and its output where it has a parameter for one.

    Raises:
        DataError: The command has no such option, it needs one that is missing, or a value is of the wrong type.
    """
    context = click.Context(command, info_name=f"rkit {step.command}")
    known = _parameters(command)
    arguments: dict[str, list[str]] = {}
    words: list[str] = []
    given = set()
    for name, value in options.items():
        if name not in known or known[name].name in ("output", "overwrite", "resume"):
            raise _unknown_option(step, name, sorted(known))
        if value is None:
            continue
        parameter = known[name]
        given.add(parameter.name)
        if isinstance(parameter, click.Argument):
            arguments[str(parameter.name)] = _values(parameter, value)
        else:
            assert isinstance(parameter, click.Option)
            words += _option_words(step, name, parameter, value)
        _check_type(step, name, parameter, value, context)
    for parameter in command.params:
        if parameter.name == "output" and output is not None:
            if isinstance(parameter, click.Argument):
                arguments["output"] = [str(output)]
            else:
                words += ["--output", str(output)]
        elif parameter.required and parameter.name not in given:
            where = "beside" if parameter.name == "output" else "under"
            msg = f"rkit {step.command} needs '{_shown(parameter)}'. Add it {where} 'with'."
            raise step.error(msg)
    in_order = [word for one in command.params for word in arguments.get(str(one.name), [])]
    return (step.command, *in_order, *words)


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
    """A table of the steps and their times, and one of the figures beside the reference figures."""
    rows = [("step", "seconds", "")]
    rows += [(one.name, f"{one.seconds:.1f}", "skipped" if one.skipped else "") for one in results]
    text = _aligned(rows)
    compared = [("step", "figure", "reference", "ours", "difference", "source")]
    for one in results:
        source = str(one.expected.get("source", ""))
        for name, reference in one.expected.items():
            if name != "source":
                compared.append(
                    (one.name, name, str(reference), *_difference(one.figures.get(name), reference), source)
                )
    return f"{text}\n\n{_aligned(compared)}" if len(compared) > 1 else text


def _difference(ours: float | None, reference: Any) -> tuple[str, str]:
    if ours is None or not isinstance(reference, int | float):
        return "missing" if ours is None else f"{ours:.4f}", ""
    return f"{ours:.4f}", f"{ours - reference:+.4f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


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
            value = artifacts.locate_model(value)
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

    def is_done(self, job: _Job, key: str) -> bool:
        """Whether an earlier run did the same, and what it wrote is there."""
        entry = self.steps.get(job.step.name, {})
        if entry.get("key") != key or not entry.get("done"):
            return False
        return job.output is None or (job.output.exists() and _sizes(job.output) == entry["sizes"])

    def begin(self, job: _Job, key: str) -> tuple[bool, float]:
        """Note that a step runs; returns whether it goes on with one that was cut off, and how long that had run."""
        entry = self.steps.get(job.step.name, {})
        resumed = entry.get("key") == key and not entry.get("done")
        seconds: float = entry["seconds"] if resumed else 0.0
        self._write(job, {"key": key, "done": False, "seconds": seconds})
        return resumed, seconds

    def interrupt(self, job: _Job, seconds: float) -> None:
        """Note how long a step ran that did not end."""
        with contextlib.suppress(OSError):  # a full disk must not hide why the step ended
            self._write(job, self.steps[job.step.name] | {"seconds": seconds})

    def finish(self, job: _Job, seconds: float) -> None:
        """Note that a step is done."""
        entry = {"key": self.steps[job.step.name]["key"], "done": True, "seconds": seconds, "command": job.typed}
        if job.output is not None:
            entry |= {"fingerprint": _content(job.output), "sizes": _sizes(job.output)}
        self._write(job, entry)

    def _write(self, job: _Job, entry: dict[str, Any]) -> None:
        self.steps[job.step.name] = entry
        found = {"recipe": self.recipe.name, "values": dict(self.recipe.values), "steps": self.steps}
        with artifacts.write_file(self.folder / STATE) as staging:
            staging.write_text(json.dumps(found, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8")


def _parameters(command: click.Command) -> dict[str, click.Parameter]:
    """A command's parameters by the names that a recipe may use: long options and arguments, with underscores."""
    found: dict[str, click.Parameter] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            found[str(parameter.name)] = parameter
        for word in (*parameter.opts, *parameter.secondary_opts):
            if word.startswith("--"):
                found[word.removeprefix("--").replace("-", "_")] = parameter
    return found


def _has(command: click.Command, name: str) -> bool:
    return any(parameter.name == name for parameter in command.params)


def _option_words(step: Step, name: str, option: click.Option, value: Any) -> list[str]:
    word = next(one for one in (*option.opts, *option.secondary_opts) if _plain(one) == name)
    if name == "set":
        if not isinstance(value, Mapping):
            msg = f"'set' is {value!r}, and should be a mapping, such as {{pooler.layers: [4, 6]}}."
            raise step.error(msg, name)
        return [part for key, one in flatten(value).items() for part in (word, f"{key}={_setting(one)}")]
    if option.is_flag:
        if not isinstance(value, bool):
            msg = f"'{name}' is {value!r}, and is switched on or off: true or false."
            raise step.error(msg, name)
        if value:
            return [word]
        opposite = option.secondary_opts if word in option.opts else option.opts
        return [opposite[0]] if opposite and option.secondary_opts else []
    return [part for one in _values(option, value) for part in (word, one)]


def _values(parameter: click.Parameter, value: Any) -> list[str]:
    several = parameter.nargs == -1 or getattr(parameter, "multiple", False)
    if isinstance(value, list) and several:
        return [_setting(one) for one in value]
    return [_setting(value)]


def _setting(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, list | tuple):
        return ",".join(map(_setting, value))
    return {True: "true", False: "false", None: "null"}.get(value, str(value)) if _is_constant(value) else str(value)


def _is_constant(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _check_type(step: Step, name: str, parameter: click.Parameter, value: Any, context: click.Context) -> None:
    # A path may be what an earlier step will have written.
    if name == "set" or isinstance(parameter.type, click.Path | click.File):
        return
    try:
        for word in [value] if isinstance(value, bool) else _values(parameter, value):
            parameter.type.convert(word, parameter, context)
    except click.BadParameter as error:
        msg = f"'{name}': {error.message}"
        raise step.error(msg, name) from None


def _unknown_option(step: Step, name: str, known: Sequence[str]) -> Exception:
    if name == "output":
        return step.error("'output' stands beside 'with', not in it.", name)
    close = nearest(name, known)
    offer = f"did you mean '{close}'?" if close else f"it has {', '.join(known)}."
    return step.error(f"rkit {step.command} has no option '{name}' in a recipe; {offer}", name)


def _shown(parameter: click.Parameter) -> str:
    return str(parameter.name) if isinstance(parameter, click.Argument) else _plain(parameter.opts[0])


def _plain(word: str) -> str:
    return word.lstrip("-").replace("-", "_")


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
