"""`rkit quickstart`: options and hand-off."""

from __future__ import annotations

from typing import Any, Literal

import click

from retrievalkit.cli.options import is_called, json_option, parse, root_group, set_option, strict_option


@click.command()
@click.option("--output", "-o", default="quickstart", show_default=True, type=click.Path())
@click.option("--model", help="The pretrained encoder to start from.")
@click.option("--corpus", help="Your own passages instead of the documentation of installed packages.")
@click.option("--examples", help="Your own training examples.")
@click.option("--queries", help="Your own test queries.")
@click.option("--qrels", help="Your own judgements of the test queries.")
@click.option("--force", is_flag=True, help="Run every step again, also those whose inputs have not changed.")
@click.option("--verbose", "-v", is_flag=True, help="Show the command line of each step.")
@strict_option
@json_option
@set_option
def quickstart(as_json: bool, settings: tuple[str, ...], **flags: Any) -> Any:
    """Train, index, search and compare on real text: all steps, a table of results, a page and a search line."""
    from retrievalkit.recipe.quickstart import quickstart as program

    shown: Literal["text", "json"] | None = None if is_called() else "json" if as_json else "text"
    return program(cli=root_group(), overrides=parse(settings), shown=shown, **flags)
