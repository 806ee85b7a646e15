"""`rkit run`: options and hand-off."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.options import echo, json_option, parse, root_group, set_option, strict_option


@click.command()
@click.argument("recipe")
@click.option("--output", "-o", required=True, type=click.Path(), help="Where to write.")
@click.option("--variants", help="Only these rows of its table: names or patterns, such as mlr,dpr_*.")
@click.option("--force", is_flag=True, help="Run every step again, also those whose inputs have not changed.")
@click.option("--verbose", "-v", is_flag=True, help="Show the command line of each step.")
@strict_option
@json_option
@set_option
def run(
    recipe: str,
    output: str,
    variants: str | None,
    as_json: bool,
    settings: tuple[str, ...],
    force: bool,
    verbose: bool,
) -> Any:
    """Run the steps of a RECIPE: a file, or the name of one that comes with retrievalkit or (PLUGIN/NAME) a plugin."""
    from retrievalkit.recipe import run as program

    wanted = None if variants is None else [name.strip() for name in variants.split(",") if name.strip()]
    outcome = program.run(
        recipe,
        output,
        cli=root_group(),
        overrides=parse(settings),
        variants=wanted,
        force=force,
        verbose=verbose,
    )
    return echo(as_json, outcome.to_json(), outcome.text())
