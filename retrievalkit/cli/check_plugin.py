"""`rkit plugins check`: tries the properties of a component or a distribution, and prints what became of each."""

from __future__ import annotations

import faulthandler
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from retrievalkit.declarations import Argument, CommandOptions, Flag, Others, Sections, command
from retrievalkit.errors import UnsupportedError
from retrievalkit.recipe.settings import flatten, nested

if TYPE_CHECKING:
    from retrievalkit.testing.properties import Outcome

_TOTAL_TIMES = 10
"""A whole check takes at most so many times the limit of a property."""


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
    set: Annotated[Mapping[str, Any], Others(), Sections()] = field(default_factory=dict)


@dataclass(frozen=True)
class Checked:
    """A row for each property of all that was checked, failures with problem, numbers and place."""

    rows: Sequence[dict[str, Any]]

    def as_json(self) -> Sequence[dict[str, Any]]:
        """The rows, by what was checked."""
        return self.rows

    @property
    def exit_code(self) -> int:
        """1 if a property failed."""
        return int(any(row["result"] == "failed" for one in self.rows for row in one["properties"]))

    @property
    def summary(self) -> str:
        """As a table."""
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 120
        lines: list[str] = []
        for one in self.rows:
            results = [row["result"] for row in one["properties"]]
            counts = {result: results.count(result) for result in ("passed", "failed", "left out")}
            outcome = ", ".join(f"{count} {result}" for result, count in counts.items() if count)
            lines.append(f"{one['checked']}: {outcome or one.get('left_out', '')}")
            wide = max((len(row["property"]) for row in one["properties"]), default=0)
            for row in one["properties"]:
                start = f"  {row['property']:<{wide}}  {row['result']:<8}  "
                texts = [row["measured"]]
                if row["result"] == "failed":
                    numbers = f": {row['measured']}" if row["measured"] else ""
                    where = [f"look at {row['file']}:{row['line']}"] if row["file"] else []
                    texts = [f"{row['problem']} [{row['case']}]{numbers}.", row["states"], *where]
                room = max(40, width - len(start))
                wrapped = [line for text in texts for line in textwrap.wrap(text, room, break_long_words=False) or [""]]
                lines += [start + wrapped[0], *(" " * len(start) + line for line in wrapped[1:])]
        return "\n".join(lines)


@command("plugins check", CheckOptions)
def check_plugin(options: CheckOptions) -> Checked:
    """Check that a component or distribution keeps the contract, property by property; exits with 1 if not."""
    from retrievalkit.testing.kits import tried_with

    # Code that is not Python cannot be interrupted; then this says where it is, and ends the process.
    faulthandler.dump_traceback_later(_TOTAL_TIMES * options.seconds, exit=True, file=2)
    settings = nested(flatten(options.set).items())
    try:
        rows: list[dict[str, Any]] = []
        for one in tried_with(options.name, model=options.model, options=settings):
            only = [other for other in options.properties if other in one.kit.properties]
            if options.properties and not only:
                continue
            try:
                report = one.kit.report(one.name, only=only or None, seconds=options.seconds, **one.settings)
            except UnsupportedError as error:
                rows.append({"checked": one.label, "properties": [], "left_out": str(error)})
            else:
                rows.append({"checked": one.label, "properties": [_row(outcome) for outcome in report.outcomes]})
    finally:
        faulthandler.cancel_dump_traceback_later()
    return Checked(rows)


def _row(outcome: Outcome) -> dict[str, Any]:
    failure = outcome.failure
    row: dict[str, Any] = {
        "property": outcome.property,
        "states": outcome.statement,
        "result": "failed" if failure else "left out" if outcome.left_out else "passed",
        "measured": outcome.measured or outcome.left_out,
    }
    if failure is not None:
        place = failure.place
        row |= {
            "problem": failure.problem,
            "measured": failure.numbers,
            "case": failure.case,
            "file": place.file if place else None,
            "line": place.line if place else None,
        }
    return row
