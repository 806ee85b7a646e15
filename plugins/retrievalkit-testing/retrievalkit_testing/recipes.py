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
from retrievalkit_testing.properties import Kit, Place, fail, leave_out
from retrievalkit_testing.shared import captured


@dataclass
class RecipeCase:
    """A recipe of a folder."""

    label: str
    file: Path
    origin: Any = field(default=None)

    def read(self) -> Recipe:
        """The recipe, with any value that it asks for."""
        return load_with_any_values(self.file)


def load_with_any_values(source: str | Path, **values: Any) -> Recipe:
    """Load a recipe, with any value that it asks for."""
    # Most ask for this, at the end of reading them.
    values.setdefault("data", "somewhere")
    while True:
        try:
            return load_recipe(source, values)
        except UnknownNameError:
            if values.pop("data", None) is None:
                raise
        except DataError as error:
            asked = re.search(r"needs a value for '(\w+)'", str(error))
            if asked is None or asked[1] in values:
                raise
            values[asked[1]] = "somewhere"


def _folder(name: str) -> Path:
    folder: Path = registry.component("recipe", name).load()
    return folder


def _recipes(name: str) -> list[RecipeCase]:
    folder = _folder(name)
    return [RecipeCase(str(path.relative_to(folder).with_suffix("")), path) for path in sorted(folder.rglob("*.yaml"))]


RECIPES: Kit[RecipeCase] = Kit("recipe", _recipes, find=lambda _: RecipeCase, unchecked="the steps: none is run")


@RECIPES.property()
def folder(case: RecipeCase) -> None:
    """It can be read, and says in a sentence what it compares."""
    try:
        recipe = case.read()
    except InputError as error:
        fail(str(error).rstrip("."), Place(str(case.file), getattr(error, "line", None) or 1))
    if not recipe.description:
        fail("the recipe has no description", Place(str(case.file), 1))


@RECIPES.property(after=("folder",))
def command_lines(case: RecipeCase) -> str:
    """Every step is a command, with options that it has, components that exist, and inputs of earlier steps."""
    with TemporaryDirectory(prefix="rkit-check-") as output:
        try:
            jobs = plan(case.read(), Path(output) / "out", main.with_all_commands())
        except MissingDependencyError as error:
            leave_out(str(error))
        except InputError as error:
            if "not installed" in str(error):
                leave_out(" ".join(str(error).split()))
            fail(str(error).rstrip("."), Place(str(case.file), getattr(error, "line", None) or 1))
    return f"{len(jobs)} steps"


@dataclass
class CommandCase:
    """A command of `rkit`."""

    label: str
    name: str
    origin: Any = field(default=None)

    def run(self, *words: str) -> Any:
        """Run the command in this process."""
        return CliRunner().invoke(main, [self.name, *words])

    @property
    def command(self) -> click.Command:
        """The click command."""
        found = main.get_command(click.Context(main), self.name)
        assert found is not None
        return found


def _target(name: str) -> Any:
    loaded = registry.component("command", name).load()
    return type("Command", (), {"__module__": getattr(loaded, "__module__", __name__)})


COMMANDS: Kit[CommandCase] = Kit(
    "command", lambda name: [CommandCase(name, name)], find=_target, unchecked="what it does with valid input"
)


@COMMANDS.property()
def loads_quietly(case: CommandCase) -> None:
    """It can be imported, and prints nothing then."""
    with captured() as printed:
        registry.component("command", case.name).load()
        case.command  # noqa: B018 - made of its declaration
    if printed[0]:
        fail("importing it prints", expected="nothing", found=printed[0][:80])


@COMMANDS.property(after=("loads_quietly",))
def help_text(case: CommandCase) -> str:
    """`--help` shows a sentence, and each option with its own."""
    done = case.run("--help")
    if done.exit_code != 0:
        fail("--help fails", expected=0, found=f"{done.exit_code}: {done.exception or done.output[-200:]}")
    commands = list(getattr(case.command, "commands", {"": case.command}).values())
    for command in commands:
        if not (command.help or "").strip():
            fail(f"the command '{command.name}' has no help text")
        for one in command.params:
            if isinstance(one, click.Option) and not one.hidden and not (one.help or "").strip():
                fail(f"the option {one.opts[0]} has no help text", source=re.escape(one.name or ""))
    return f"{sum(len(one.params) for one in commands)} arguments and options"


@COMMANDS.property(after=("loads_quietly",))
def wrong_usage(case: CommandCase) -> None:
    """An option that it lacks is wrong usage: exit code 2, and a message without a traceback."""
    done = case.run("--no-such-option", "1")
    if done.exit_code != 2 or (done.exception is not None and not isinstance(done.exception, SystemExit)):
        fail("an unknown option is not refused", expected=2, found=f"{done.exit_code} {done.exception or ''}".strip())
