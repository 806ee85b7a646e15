"""`rkit plugins check`, the conformance test, and the list of this distribution's commands.

Imported at every start of `rkit`, so it imports nothing heavy.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any

from annotated_types import Ge

from retrievalkit.contracts.declarations import Argument, Command, CommandOptions, Flag, Rest, command
from retrievalkit_testing.new_plugin import new_plugin, package_plugin


@dataclass(frozen=True)
class CheckOptions(CommandOptions):
    """Options of `plugins check`.

    Args:
        name: A component, or a distribution with all its components.
        model: The model to check encoders, poolers, pretrainers and re-rankers with; by default tiny models.
        properties: Check only this property; repeatable.
        seconds: Maximum seconds per property.
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
    """One row per property of everything checked; failures with problem, numbers and place."""

    rows: Sequence[dict[str, Any]]
    summary: str

    def as_json(self) -> Sequence[dict[str, Any]]:
        """Return the rows, grouped by component or package."""
        return self.rows

    @property
    def exit_code(self) -> int:
        """1 if a property failed."""
        return int(any(row["result"] == "failed" for each in self.rows for row in each["properties"]))


@command("plugins check", CheckOptions)
def check_plugin(options: CheckOptions) -> Checked:
    """Check each property of the contract of a component or distribution; exit with 1 if one fails."""
    from retrievalkit_testing import conforming

    rows = conforming.rows_of(
        options.name, model=options.model, options=options.set, properties=options.properties, seconds=options.seconds
    )
    return Checked(rows, conforming.table(rows, shutil.get_terminal_size().columns if sys.stdout.isatty() else 120))


COMMANDS: list[Command[..., Any, Any]] = [new_plugin, package_plugin, check_plugin]
"""Commands of the group `plugins`."""
