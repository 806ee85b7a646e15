"""The conformance tests of recipes and commands: they are read, planned and documented; no step is run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from click.testing import CliRunner

from retrievalkit import registry
from retrievalkit.cli.main import main
from retrievalkit.errors import DataError, InputError, MissingDependencyError, UnknownNameError
from retrievalkit.recipes.recipe import Recipe, load_recipe
from retrievalkit.recipes.run import plan
from retrievalkit_testing.properties import Kit, Place, expect, fail, leave_out
from retrievalkit_testing.shared import captured


@dataclass
class RecipeCase:
    """A recipe of a folder."""

    label: str
    file: Path
    origin: Any = field(default=None)


def load_with_any_values(source: str | Path, **values: Any) -> Recipe:
    """Load a recipe, with any value that it needs."""
    # Most recipes need this value; each missing value costs another reading.
    values.setdefault("data", "somewhere")
    while True:
        try:
            return load_recipe(source, values)
        except UnknownNameError:
            if values.pop("data", None) is None:
                raise
        except DataError as error:
            missing = re.search(r"needs a value for '(\w+)'", str(error))
            if missing is None or missing[1] in values:
                raise
            values[missing[1]] = "somewhere"


def _recipes(name: str) -> list[RecipeCase]:
    folder: Path = registry.component("recipe", name).load()
    return [RecipeCase(str(path.relative_to(folder).with_suffix("")), path) for path in sorted(folder.rglob("*.yaml"))]


RECIPES: Kit[RecipeCase] = Kit("recipe", _recipes, find=lambda _: RecipeCase, unchecked="its steps, which are not run")


@RECIPES.property()
def steps(case: RecipeCase) -> None:
    """It has a description; every step is a command with its options, known components and inputs of earlier steps."""
    try:
        recipe = load_with_any_values(case.file)
        with TemporaryDirectory(prefix="rkit-check-") as output:
            plan(recipe, Path(output) / "out", main.with_all_commands())
    except InputError as error:
        if isinstance(error, MissingDependencyError) or "not installed" in str(error):
            leave_out(" ".join(str(error).split()))
        fail(str(error).rstrip("."), Place(str(case.file), getattr(error, "line", None) or 1))
    expect(recipe.description, "the recipe has no description", place=Place(str(case.file), 1))


@dataclass
class CommandCase:
    """A command of `rkit`."""

    label: str
    origin: Any = field(default=None)

    def run(self, *words: str) -> Any:
        """Run the command in this process."""
        return CliRunner().invoke(main, [self.label, *words])

    @property
    def command(self) -> click.Command:
        """The click command."""
        command = main.get_command(click.Context(main), self.label)
        assert command is not None
        return command


def _target(name: str) -> Any:
    loaded = registry.component("command", name).load()
    return type("Command", (), {"__module__": getattr(loaded, "__module__", __name__)})


COMMANDS: Kit[CommandCase] = Kit(
    "command", lambda name: [CommandCase(name)], find=_target, unchecked="its behaviour with valid input"
)


@COMMANDS.property()
def loads_quietly(case: CommandCase) -> None:
    """It can be imported, and prints nothing then."""
    with captured() as printed:
        registry.component("command", case.label).load()
        case.command  # noqa: B018 - created from its declaration
    expect(not printed[0], "importing it prints", expected="nothing", actual=printed[0][:80])


@COMMANDS.property(after=("loads_quietly",))
def help_text(case: CommandCase) -> str:
    """`--help` shows a sentence, and one for each option."""
    run = case.run("--help")
    expect(run.exit_code == 0, "--help fails", expected=0, actual=f"{run.exit_code}: {run.output[-200:]}")
    commands = list(getattr(case.command, "commands", {"": case.command}).values())
    for command in commands:
        expect((command.help or "").strip(), f"the command '{command.name}' has no help text")
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden and not (option.help or "").strip():
                fail(f"the option {option.opts[0]} has no help text", source=re.escape(option.name or ""))
    return f"{sum(len(command.params) for command in commands)} arguments and options"


@COMMANDS.property(after=("loads_quietly",))
def wrong_usage(case: CommandCase) -> None:
    """An unknown option is wrong usage: exit code 2, and a message without a traceback."""
    run = case.run("--no-such-option", "1")
    refused = run.exit_code == 2 and isinstance(run.exception, SystemExit | None)
    expect(refused, "an unknown option is not refused", expected=2, actual=f"{run.exit_code} {run.exception or ''}")
