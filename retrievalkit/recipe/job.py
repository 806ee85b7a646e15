"""A step that is ready to run: its command line, built and checked before the first step starts."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from retrievalkit import __version__, artifacts
from retrievalkit.consent import recipe_step
from retrievalkit.errors import RetrievalkitError, UnknownNameError
from retrievalkit.recipe.check import check_components
from retrievalkit.recipe.command_line import command_line, has
from retrievalkit.recipe.log import StepLog
from retrievalkit.recipe.recipe import Recipe
from retrievalkit.recipe.step import Step

_NOT_STEPS = ("run", "quickstart", "plugins", "doctor", "serve")


class StepError(RetrievalkitError):
    """A step of a recipe failed; its exit code is that of the command."""

    def __init__(self, step: Step, reason: str, exit_code: int) -> None:
        super().__init__(f"step '{step.name}' (rkit {step.command}) failed: {reason}")
        self.reason = reason
        self.exit_code = exit_code

    def add(self, sentence: str) -> None:
        """Say more."""
        self.args = (f"{self.args[0]} {sentence}",)


@dataclass(frozen=True)
class Job:
    """A step and its command line.

    Attributes:
        step: The step.
        command: Its command.
        output: The file or folder that it writes, if any.
        words: The command line, without "rkit".
    """

    step: Step
    command: click.Command
    output: Path | None
    words: tuple[str, ...]

    @classmethod
    def plan(cls, recipe: Recipe, step: Step, folder: Path, cli: click.Group) -> Job:
        """Build a step's command line and check it.

        Raises:
            InputError: The command line is wrong; names the line of the recipe.
        """
        known = _commands(cli)
        if step.command not in known:
            raise step.error(str(UnknownNameError("command", step.command, known)))
        command = known[step.command]
        output = folder / step.output if step.output is not None else None
        options = recipe.options_in(step, str(folder))
        words = command_line(step, command, options, output)
        for word in filter(artifacts.is_address, words):
            if not any(word == one or word.startswith(f"{one}/") for one in recipe.named) or "::" in word:
                msg = f"'{word}' would get your credentials of that store. If you know it, name it yourself, by --set."
                raise step.error(msg)
        check_components(step, command, options)
        return cls(step, command, output, words)

    @classmethod
    def apart(cls, name: str, command: str, words: Sequence[str], output: str | None, cli: click.Group) -> Job:
        """A step that was planned in another process, which knows the rest of it."""
        return cls(
            Step(name, command, {}), _commands(cli)[command], None if output is None else Path(output), tuple(words)
        )

    @property
    def prints(self) -> bool:
        """Whether the output is what the command prints, because it has no parameter for one."""
        return self.output is not None and not has(self.command, "output")

    @property
    def resumes(self) -> bool:
        """Whether the command goes on where it was cut off."""
        return has(self.command, "resume")

    @property
    def typed(self) -> str:
        """The line that one would type."""
        line = shlex.join(["rkit", *self.words])
        return f"{line} > {shlex.quote(str(self.output))}" if self.prints else line

    def key(self, inputs: Mapping[str, str | None]) -> str:
        """A fingerprint of the step and of its inputs."""
        return artifacts.fingerprint_value(
            [__version__, self.step.command, self.step.options, self.step.output, dict(inputs)]
        )

    def run(self, cli: click.Group, log: StepLog, *, resume: bool) -> None:
        """Run the command, replacing what an earlier run left.

        Args:
            cli: The command line.
            log: Where its prints go.
            resume: Whether to go on with a command that was cut off, if it can.

        Raises:
            StepError: The command failed, or did not write its output.
        """
        words = [*self.words]
        if self._replaces() and has(self.command, "overwrite"):
            words.append("--overwrite")
        if resume and self.resumes:
            words.append("--resume")
        with _as_step_errors(self.step), recipe_step(), self._printing(log, resume=resume and self.resumes):
            code = cli.main(args=words, prog_name="rkit", standalone_mode=False)
        if isinstance(code, int) and code:
            raise StepError(self.step, f"it ended with exit code {code}.", code)
        if self.output is not None and not self.output.exists():
            raise StepError(self.step, f"it did not write '{self.output}'.", 1)

    def _replaces(self) -> bool:
        """Whether the output is a folder already, or was one until a run was killed while replacing it."""
        return self.output is not None and (self.output.is_dir() or artifacts.replaced_folder(self.output).is_dir())

    @contextlib.contextmanager
    def _printing(self, log: StepLog, *, resume: bool) -> Iterator[None]:
        if self.output is None or not self.prints:
            with log.collecting(self.typed, resume=resume):
                yield
            return
        with (
            artifacts.write_file(self.output) as staging,
            staging.open("w", encoding="utf-8") as stream,
            log.collecting(self.typed, resume=resume, stdout=stream),
        ):
            yield


@contextlib.contextmanager
def _as_step_errors(step: Step) -> Iterator[None]:
    """Name the step in every error that a user can meet; bugs keep their traceback."""
    try:
        yield
    except RetrievalkitError as error:
        raise StepError(step, str(error), error.exit_code) from error
    except click.ClickException as error:
        raise StepError(step, error.format_message(), error.exit_code) from error
    except SystemExit as error:
        if error.code:
            raise StepError(step, f"it ended with {error.code}.", 1) from error
    except click.Abort as error:  # what click makes of Ctrl-C
        raise error.__cause__ or KeyboardInterrupt from error


def _commands(group: click.Group, before: str = "") -> dict[str, click.Command]:
    """The commands that a step may run, by name; those of a group as one would type them: "rerank train"."""
    commands: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        if before + name in _NOT_STEPS:
            continue
        if isinstance(command, click.Group):
            commands |= _commands(command, f"{before}{name} ")
        else:
            commands[before + name] = command
    return commands
