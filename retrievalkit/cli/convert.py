"""`rkit convert`: options and hand-off."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.hard_negatives import hard_negative_options
from retrievalkit.cli.options import echo, given_flags, json_option, reserved, strict_option
from retrievalkit.cli.own_files import own_file_options
from retrievalkit.report.counts import counted


@click.command()
@click.argument("source")
@click.argument("output", type=click.Path())
@click.option("--kind", type=click.Choice(["corpus", "queries", "examples", "qrels", "run", "collection"]))
@click.option("--split", help="Which split of a collection with several.")
@click.option("--form", type=click.Choice(["trec", "msmarco", "beir"]), help="The format to write a run or qrels in.")
@hard_negative_options
@click.option(
    "--parts",
    metavar="sentences|K",
    help="Cut passages into sentences or K equal parts, ID#1, ID#2 ...; judgements and examples follow them.",
)
@own_file_options
@click.option(
    "--root",
    metavar="FOLDER",
    help="The folder that ids of documents are relative to; by default SOURCE. Name it to convert a part of a folder.",
)
@click.option("--merge-parts", is_flag=True, help="Of a run of such parts make one of passages, by their best part.")
@click.option("--corpus", help="The passages that examples or judgements name, if SOURCE does not hold them.")
@strict_option
@json_option
@reserved
def convert(
    source: str,
    output: str,
    parts: str | None,
    merge_parts: bool,
    reading: dict[str, Any],
    as_json: bool,
    **flags: Any,
) -> dict[str, Any]:
    """Read SOURCE in any known format, or a folder of .txt, .md, .html and .pdf, and write it in ours."""
    from retrievalkit.data.convert import convert as program
    from retrievalkit.passage_parts import contents_of

    counts = program(source, output, contents=contents_of(parts, merge=merge_parts, **reading), **given_flags(flags))
    return echo(as_json, counts, f"{output}: " + ", ".join(counted(value, name) for name, value in counts.items()))
