"""`rkit plugins check`: tries the properties of a component or a distribution, and prints what became of each."""

from __future__ import annotations

import faulthandler
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from retrievalkit.cli.options import echo, is_called, json_option, parse, set_option
from retrievalkit.errors import RetrievalkitError, UnsupportedError

if TYPE_CHECKING:
    from retrievalkit.testing.properties import Outcome

_TOTAL_TIMES = 10
"""A whole check takes at most so many times the limit of a property."""


@click.command("check")
@click.argument("name")
@click.option("--model", help="The model to check encoders, poolers and pretrainers with; by default tiny ones.")
@click.option("--property", "properties", multiple=True, metavar="NAME", help="Try this property alone; repeatable.")
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=120.0, show_default=True, help="Most seconds for a property."
)
@set_option
@json_option
def check_plugin(
    name: str, model: str | None, properties: tuple[str, ...], seconds: float, settings: tuple[str, ...], as_json: bool
) -> list[dict[str, Any]]:
    """Check that the component or distribution NAME keeps the contract, property by property; exits with 1 if not."""
    from retrievalkit.testing.kits import tried_with

    # Code that is not Python cannot be interrupted; then this says where it is, and ends the process.
    faulthandler.dump_traceback_later(_TOTAL_TIMES * seconds, exit=not is_called(), file=2)
    try:
        rows: list[dict[str, Any]] = []
        for one in tried_with(name, model=model, options=parse(settings)):
            only = [other for other in properties if other in one.kit.properties]
            if properties and not only:
                continue
            try:
                report = one.kit.report(one.name, only=only or None, seconds=seconds, **one.settings)
            except UnsupportedError as error:
                rows.append({"checked": one.label, "properties": [], "left_out": str(error)})
            else:
                rows.append({"checked": one.label, "properties": [_row(outcome) for outcome in report.outcomes]})
    finally:
        faulthandler.cancel_dump_traceback_later()
    echo(as_json, rows, table(rows, shutil.get_terminal_size().columns if sys.stdout.isatty() else 120))
    failures = [row for checked in rows for row in checked["properties"] if row["result"] == "failed"]
    if failures and is_called():
        msg = f"{len(failures)} properties of '{name}' failed, the first: {failures[0]['property']}."
        raise RetrievalkitError(msg)
    if failures:
        click.get_current_context().exit(1)
    return rows


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


def table(checked: Sequence[dict[str, Any]], width: int) -> str:
    """The rows of all that was checked, failures with problem, numbers and place."""
    lines: list[str] = []
    for one in checked:
        rows = one["properties"]
        counts = {result: sum(row["result"] == result for row in rows) for result in ("passed", "failed", "left out")}
        told = ", ".join(f"{count} {result}" for result, count in counts.items() if count) or one.get("left_out", "")
        lines.append(f"{one['checked']}: {told}")
        wide = max((len(row["property"]) for row in rows), default=0)
        for row in rows:
            start = f"  {row['property']:<{wide}}  {row['result']:<8}  "
            lines += _wrapped(start, _words(row), width)
    return "\n".join(lines)


def _words(row: dict[str, Any]) -> list[str]:
    if row["result"] != "failed":
        return [row["measured"]]
    numbers = f": {row['measured']}" if row["measured"] else ""
    where = [f"look at {row['file']}:{row['line']}"] if row["file"] else []
    return [f"{row['problem']} [{row['case']}]{numbers}.", row["states"], *where]


def _wrapped(start: str, texts: Sequence[str], width: int) -> list[str]:
    room = max(40, width - len(start))
    lines = [line for text in texts for line in textwrap.wrap(text, room, break_long_words=False) or [""]]
    return [(start if row == 0 else " " * len(start)) + line for row, line in enumerate(lines)]
