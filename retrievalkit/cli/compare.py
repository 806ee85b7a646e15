"""`rkit compare`: options and hand-off."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from retrievalkit.cli.options import (
    exclude_self_option,
    json_option,
    over_option,
    overwrite_option,
    ties_option,
)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@click.option("--qrels", required=True, help="Judgements.")
@click.option("--metrics", default="nDCG@10", show_default=True, help="Names as ir-measures writes them.")
@click.option("--baseline", help="The run that the others are compared with; the first where not given, or 'all'.")
@click.option("--queries", help="To show the texts of the queries that differ most.")
@click.option("--corpus", help="To show what each run has first for them.")
@click.option("--output", "-o", type=click.Path(), help="A page (.html), the figures (.json), or a folder.")
@click.option("--plot/--no-plot", default=True, help="Draw plots for the page, which needs matplotlib.")
@click.option("--examples", type=click.IntRange(min=0), default=5, show_default=True, help="Wins and losses to list.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Of the intervals.")
@ties_option
@over_option
@exclude_self_option
@click.option("--seed", type=int, default=0, show_default=True)
@overwrite_option
@json_option
def compare(runs: tuple[str, ...], output: str | None, as_json: bool, **flags: Any) -> None:
    """Compare runs: paired significance tests, wins and losses; with --output as a page."""
    from rich.console import Console

    from retrievalkit.evaluate.compare.program import PAGE
    from retrievalkit.evaluate.compare.program import compare as program
    from retrievalkit.evaluate.compare.result import render

    comparison = program(runs, output=output, **flags)
    if as_json:
        click.echo(json.dumps(comparison.to_json(), indent=2))
        return
    render(comparison, Console())
    if output is not None:
        page = os.path.join(output, PAGE) if os.path.isdir(output) else output
        click.echo(f"{output}: written" + (f"; open {page} in a browser" if page.endswith(".html") else ""))
