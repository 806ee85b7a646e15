"""`rkit convert`: options and hand-off."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.options import echo, given_flags, json_option, reserved, strict_option


@click.command()
@click.argument("source")
@click.argument("output", type=click.Path())
@click.option("--kind", type=click.Choice(["corpus", "queries", "examples", "qrels", "run", "collection"]))
@click.option("--split", help="Which split of a collection with several.")
@click.option("--form", type=click.Choice(["trec", "msmarco", "beir"]), help="The format to write a run or qrels in.")
@strict_option
@json_option
@reserved
def convert(source: str, output: str, as_json: bool, **flags: Any) -> dict[str, Any]:
    """Read SOURCE in any known format and write it in ours."""
    from retrievalkit.data.convert import convert as program

    counts = program(source, output, **given_flags(flags))
    return echo(as_json, counts, f"{output}: " + ", ".join(f"{value:,} {name}" for name, value in counts.items()))
