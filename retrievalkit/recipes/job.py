"""Jobs: steps with their command lines, validated against the commands' declarations before any step starts.

So a misspelt option of the tenth training is reported immediately, not a day later.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from retrievalkit import registry, storage
from retrievalkit.contracts.declarations import Command, Named, mark
from retrievalkit.errors import InputError, RetrievalkitError, UnknownNameError, nearest
from retrievalkit.recipes.log import StepLog
from retrievalkit.recipes.recipe import Recipe
from retrievalkit.recipes.settings import flatten, parse_set
from retrievalkit.recipes.step import Step
from retrievalkit.registry.trust import recipe_step

_NOT_STEPS = ("run", "quickstart", "plugins", "doctor", "serve", "sync")


class StepError(RetrievalkitError):
    """Error of a failed step; the exit code is the command's."""

    def __init__(self, step: Step, reason: str, exit_code: int) -> None:
        super().__init__(f"step '{step.name}' (rkit {step.command}) failed: {reason}")
        self.reason = reason
        self.exit_code = exit_code


@dataclass(frozen=True)
class Job:
    """A step with its output file or folder, if any, and its command line without "rkit"."""

    step: Step
    command: click.Command
    output: Path | None
    words: tuple[str, ...]

    @classmethod
    def plan(cls, recipe: Recipe, step: Step, folder: Path, cli: click.Group) -> Job:
        """Build a step's command line and check it; errors name the line of the recipe."""
        known = commands(cli)
        if step.command not in known:
            step.fail(str(UnknownNameError("command", step.command, known)))
        command = known[step.command]
        output = folder / step.output if step.output is not None else None
        words = _words(step, command, recipe.options_in(step, str(folder)), output)
        for word in filter(storage.is_address, words):
            if not any(word == text or word.startswith(f"{text}/") for text in recipe.named) or "::" in word:
                step.fail(f"opening '{word}' would send your credentials. If you trust this store, name it by --set.")
        return cls(step, command, output, (*step.command.split(), *words))

    @property
    def prints(self) -> bool:
        """True if the output is the command's standard output, because it has no parameter for an output."""
        return self.output is not None and not self._has("output")

    @property
    def resumes(self) -> bool:
        """True if the command can resume after an interruption."""
        return self._has("resume")

    def _has(self, name: str) -> bool:
        return any(parameter.name == name for parameter in self.command.params)

    @property
    def typed(self) -> str:
        """Command line as typed in a shell."""
        line = shlex.join(["rkit", *self.words])
        return f"{line} > {shlex.quote(str(self.output))}" if self.prints else line

    def run(self, cli: click.Group, log: StepLog, *, resume: bool) -> None:
        """Run the command, replacing the output of an earlier run; with `resume`, continue an interrupted run."""
        words, resume = [*self.words], resume and self.resumes
        # The output also counts as a folder if an earlier run was killed while replacing it.
        replaces = self.output and (self.output.is_dir() or storage.replaced_folder(self.output).is_dir())
        words += ["--overwrite"] if replaces and self._has("overwrite") else []
        words += ["--resume"] if resume else []
        try:
            with recipe_step(), contextlib.ExitStack() as stack:
                stream = None
                if self.output is not None and self.prints:
                    staging = stack.enter_context(storage.write_file(self.output))
                    stream = stack.enter_context(staging.open("w", encoding="utf-8"))
                stack.enter_context(log.collecting(self.typed, resume=resume, stdout=stream))
                code = cli.main(args=words, prog_name="rkit", standalone_mode=False)
        except RetrievalkitError as error:
            raise StepError(self.step, str(error), error.exit_code) from error
        except click.ClickException as error:
            raise StepError(self.step, error.format_message(), error.exit_code) from error
        except click.Abort as error:  # click's exception for Ctrl-C
            raise error.__cause__ or KeyboardInterrupt from error
        if isinstance(code, int) and code:
            raise StepError(self.step, f"it ended with exit code {code}.", code)
        if self.output is not None and not self.output.exists():
            raise StepError(self.step, f"it did not write '{self.output}'.", 1)


def commands(group: click.Group, before: str = "") -> dict[str, click.Command]:
    """Return the commands that a step may run, by name; commands of a group as typed: "rerank train"."""
    known: dict[str, click.Command] = {}
    for name, command in group.commands.items():
        if before + name in _NOT_STEPS:
            continue
        if isinstance(command, click.Group):
            known |= commands(command, f"{before}{name} ")
        else:
            known[before + name] = command
    return known


def _words(step: Step, command: click.Command, options: Mapping[str, Any], output: Path | None) -> list[str]:
    """Return the command-line words for a command's options, and for its output if it has such a parameter."""
    known: dict[str, tuple[click.Parameter, str]] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            known[str(parameter.name)] = parameter, ""
        for word in (*parameter.opts, *parameter.secondary_opts):
            if word.startswith("--"):
                known[word.removeprefix("--").replace("-", "_")] = parameter, word
    arguments: dict[str, list[str]] = {}
    words: list[str] = []
    for name, value in options.items():
        if name == "output":
            step.fail("'output' belongs next to 'with', not under it.", name)
        if name not in known or name in ("overwrite", "resume"):
            close = nearest(name, known)
            offer = f"did you mean '{close}'?" if close else f"it has {', '.join(sorted(known))}."
            step.fail(f"rkit {step.command} has no option '{name}' in a recipe; {offer}", name)
        if value is None:
            continue
        parameter, word = known[name]
        if name == "set":
            if not isinstance(value, Mapping):
                step.fail(f"'set' is {value!r}, but should be a mapping, such as {{pooler.layers: [4, 6]}}.", name)
            words += [part for key, inner in flatten(value).items() for part in (word, f"{key}={_typed(inner)}")]
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            if not isinstance(value, bool):
                step.fail(f"'{name}' is {value!r}, but should be true or false.", name)
            opposite = parameter.secondary_opts if word in parameter.opts else parameter.opts
            words += [word] if value else opposite[:1] if parameter.secondary_opts else []
        else:
            # An option with a callback accepts a single value, which may be a list.
            several = parameter.nargs == -1 or (getattr(parameter, "multiple", False) and not parameter.callback)
            texts = [_typed(item) for item in (value if several and isinstance(value, list) else [value])]
            if word:
                words += [part for text in texts for part in (word, text)]
                continue
            arguments[name] = texts
            # Otherwise it could be an --output outside the run's folder.
            if option := next((text for text in texts if text.startswith("-")), None):
                advice = "Put ./ before a file's name."
                step.fail(f"'{name}' is '{option}', which the command would read as an option. {advice}", name)
    if output is not None and "output" in known:
        if known["output"][1]:
            words += ["--output", str(output)]
        else:
            arguments["output"] = [str(output)]
    words = [*(word for param in command.params for word in arguments.get(str(param.name), [])), *words]
    try:
        with command.make_context(f"rkit {step.command}", [*words]) as context:
            _check_settings(step, command, context.params)
    except click.UsageError as error:
        name = next((name for name, (param, _) in known.items() if param is getattr(error, "param", None)), "")
        if not isinstance(error, click.MissingParameter):
            step.fail(f"'{name}': {error.message}", name)
        where = "next to" if name == "output" else "under"
        step.fail(f"rkit {step.command} needs '{name}'. Add it {where} 'with'.")
    return words


def _typed(value: Any) -> str:
    """Format a value as typed on the command line."""
    if isinstance(value, list | tuple):
        return ",".join(map(_typed, value))
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _check_settings(step: Step, command: click.Command, flags: Mapping[str, Any]) -> None:
    """Refuse unknown settings, unknown components, and unknown options of components."""
    settings = parse_set(flags.get("settings", ()))
    declared: Command[..., Any, Any] | None = getattr(command, "declared", None)
    if declared is None:  # a click command of a plugin, which checks its options itself
        return
    option = "set"
    try:
        fields = registry.options(declared.declaration)
        values = {**flags, **declared.settings(settings)}
        for name, field in fields.items():
            marker = mark(field.annotation, Named)
            if marker is None or f"{name}_options" not in fields:
                continue
            option = name if name in step.places else "set"
            component, component_values = values.get(name) or marker.usual, values.get(f"{name}_options") or {}
            if marker.kind == "loss":
                from retrievalkit.training.objective import options_by_loss

                pooler: Any = registry.get("pooler", values.get("pooler") or "cls")
                component = component or pooler.default_loss
                # For some poolers, the default loss depends on their options.
                components = options_by_loss(component, component_values) if isinstance(component, str) else {}
            else:
                components = {component: component_values} if component else {}
            for part, options in components.items():
                registry.check_options(f"{marker.kind} '{part}'", registry.get(marker.kind, part), options)
    except InputError as error:
        step.fail(str(error), option)
