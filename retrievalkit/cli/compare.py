"""`rkit compare`: options and hand-off."""

from __future__ import annotations

import json
from typing import Any

import click

from retrievalkit.cli.options import (
    exclude_self_option,
    is_called,
    json_option,
    metrics_option,
    over_option,
    overwrite_option,
    reserved,
    strict_option,
    ties_option,
)


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN...")
@click.option("--qrels", required=True, help="Judgements.")
@metrics_option("nDCG@10")
@click.option("--baseline", help="The run that the others are compared with [default: the first], or 'all'.")
@click.option("--queries", help="Texts of the queries, to show those that differ most.")
@click.option("--corpus", help="Texts of the passages, to show what each run ranks first for these queries.")
@click.option(
    "--output",
    "-o",
    type=click.Path(),
    help="A page (.html), a table (.csv, .md, .tex), all figures (.json), or else a folder with page and figures.",
)
@click.option("--plot/--no-plot", default=True, help="Draw plots for the page, which needs matplotlib.")
@click.option("--examples", type=click.IntRange(min=0), default=5, show_default=True, help="Wins and losses to list.")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Confidence of the intervals.")
@ties_option
@over_option
@exclude_self_option
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of tests and intervals.")
@overwrite_option
@strict_option
@json_option
@reserved
def compare(runs: tuple[str, ...], output: str | None, plot: bool, overwrite: bool, as_json: bool, **flags: Any) -> Any:
    """Compare runs: paired significance tests, wins and losses; with --output as a page or a table."""
    from pathlib import Path

    from rich.console import Console

    from retrievalkit.evaluate.compare.output import Output
    from retrievalkit.evaluate.compare.program import Sampling
    from retrievalkit.evaluate.compare.program import compare as program
    from retrievalkit.evaluate.compare.result import render
    from retrievalkit.evaluate.metrics import Conventions
    from retrievalkit.report.terminal import say

    place = None if output is None else Output(Path(output), plot, overwrite)
    conventions = Conventions(flags.pop("ties"), flags.pop("over"), flags.pop("ignore_same_id"))
    sampling = Sampling(confidence=flags.pop("confidence"), seed=flags.pop("seed"))
    comparison = program(runs, conventions=conventions, sampling=sampling, output=place, **flags)
    if is_called():
        return comparison
    if as_json:
        click.echo(json.dumps(comparison.to_json(), indent=2))
        return comparison
    render(comparison, Console())
    if place is None and len(runs) > 2:
        click.echo("The queries that differ most, and all figures: --output compare.html")
    if place is not None:
        say(f"{output}: written" + (f"; open {place.page} in a browser" if place.page else ""))
    return comparison
