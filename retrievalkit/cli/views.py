"""`rkit analyse-views`: options and hand-off."""

from __future__ import annotations

import json
from typing import Any

import click

from retrievalkit.cli.options import (
    PRECISION,
    json_option,
    output_option,
    overwrite_option,
    parse,
    refuse,
    section,
    set_option,
)


@click.command("analyse-views")
@click.argument("model")
@click.option("--corpus", help="The passages.")
@click.option("--queries", help="The queries that the judgements are of.")
@click.option("--qrels", help="Judgements; documents judged above 0 are analysed.")
@click.option("--examples", help="Training examples, instead of --queries and --qrels.")
@output_option
@click.option("--scores", type=click.Choice(["cosine", "softmax", "raw"]), default="cosine", show_default=True)
@click.option("--temperature", type=float, help="Of --scores softmax; 1 where not given.")
@click.option("--limit", type=click.IntRange(min=1), help="Only the first so many documents, with all their queries.")
@click.option("--encoder", help="For a pretrained model; a checkpoint has its own.")
@click.option("--pooler", help="For a pretrained model; a checkpoint has its own.")
@click.option("--precision", type=PRECISION, default="auto", show_default=True)
@click.option("--plot/--no-plot", default=True, help="Draw views.png, which needs matplotlib.")
@overwrite_option
@json_option
@set_option
def analyse_views(model: str, as_json: bool, settings: tuple[str, ...], **flags: Any) -> None:
    """Show which of a document's vectors (viewers, layers, tokens) answers which query, with MODEL."""
    from rich.console import Console

    from retrievalkit.evaluate.views.program import analyse_views as program
    from retrievalkit.evaluate.views.result import render

    values = parse(settings)
    encoder_options, pooler_options = section(values, "encoder"), section(values, "pooler")
    refuse(values, "analyse-views", "encoder.OPTION and pooler.OPTION")
    found = program(model, encoder_options=encoder_options, pooler_options=pooler_options, **flags)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        render(found, Console())
