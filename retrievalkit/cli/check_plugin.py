"""`rkit plugins check`: tries the properties of a component or a distribution, and prints what became of each."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any

from annotated_types import Ge

from retrievalkit.contracts.declarations import Argument, CommandOptions, Flag, Rest, command
from retrievalkit.errors import InputError
from retrievalkit.recipes.settings import flatten, nested


@dataclass(frozen=True)
class CheckOptions(CommandOptions):
    """Options of `plugins check`.

    Args:
        name: A component, or a distribution with all of its components.
        model: The model to check encoders, poolers and pretrainers with; by default tiny ones.
        properties: Try this property alone; repeatable.
        seconds: Most seconds for a property.
        set: Options of the component, such as pooler.layers=4,6.
    """

    name: Annotated[str, Argument()]
    _: KW_ONLY
    model: str | None = None
    properties: Annotated[tuple[str, ...], Flag(("--property",), metavar="NAME")] = ()
    seconds: Annotated[float, Ge(1)] = 120.0
    set: Annotated[Mapping[str, Any], Rest()] = field(default_factory=dict)


@dataclass(frozen=True)
class Checked:
    """A row for each property of all that was checked, failures with problem, numbers and place."""

    rows: Sequence[dict[str, Any]]
    summary: str

    def as_json(self) -> Sequence[dict[str, Any]]:
        """The rows, by what was checked."""
        return self.rows

    @property
    def exit_code(self) -> int:
        """1 if a property failed."""
        return int(any(row["result"] == "failed" for one in self.rows for row in one["properties"]))


@command("plugins check", CheckOptions)
def check_plugin(options: CheckOptions) -> Checked:
    """Check that a component or distribution keeps the contract, property by property; exits with 1 if not."""
    try:
        conforming = importlib.import_module("retrievalkit_testing.conforming")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "retrievalkit_testing":
            raise
        msg = "The conformance tests are a distribution of their own. Install it: pip install retrievalkit-testing"
        raise InputError(msg) from error
    settings = nested(flatten(options.set).items())
    rows = conforming.check(
        options.name, model=options.model, options=settings, properties=options.properties, seconds=options.seconds
    )
    return Checked(rows, conforming.table(rows, shutil.get_terminal_size().columns if sys.stdout.isatty() else 120))
