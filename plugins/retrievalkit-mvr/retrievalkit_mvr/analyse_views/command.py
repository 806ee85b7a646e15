"""The command `rkit analyse-views`: options and hand-off."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.commands import (
    echo,
    is_called,
    json_option,
    output_option,
    overwrite_option,
    parse,
    precision_option,
    refuse,
    section,
    set_option,
    strict_option,
)


@click.command("analyse-views")
@click.argument("model")
@click.option("--corpus", help="The passages.")
@click.option("--queries", help="The judged queries.")
@click.option("--qrels", help="Judgements; documents judged above 0 are analysed.")
@click.option("--examples", help="Training examples, instead of --queries and --qrels.")
@output_option
@click.option(
    "--scores",
    type=click.Choice(["cosine", "softmax", "raw"]),
    default="cosine",
    show_default=True,
    help="The scores that Local Variation is computed on.",
)
@click.option("--temperature", type=float, help="Temperature of --scores softmax; default 1.")
@click.option("--limit", type=click.IntRange(min=1), help="Analyse only this many documents, with all their queries.")
@click.option("--encoder", help="For a pretrained model only; a checkpoint has its own.")
@click.option("--pooler", help="For a pretrained model only; default: its own (modules.json), else cls.")
@precision_option("texts are encoded in", "auto")
@click.option("--plot/--no-plot", default=True, help="Draw views.png, which needs matplotlib.")
@overwrite_option
@strict_option
@json_option
@set_option
def analyse_views(model: str, as_json: bool, settings: tuple[str, ...], **flags: Any) -> dict[str, Any]:
    """Show which of a document's vectors (viewers, layers, tokens) answers which query.

    MODEL is a checkpoint, or a pretrained model with --pooler. Writes a table, a plot and a line for each pair.
    """
    from rich.console import Console

    from retrievalkit_mvr.analyse_views.figures import render
    from retrievalkit_mvr.analyse_views.program import analyse_views as program

    values = parse(settings)
    encoder_options, pooler_options = section(values, "encoder"), section(values, "pooler")
    refuse(values, "analyse-views", "encoder.OPTION and pooler.OPTION")
    found = program(model, encoder_options=encoder_options, pooler_options=pooler_options, **flags)
    if as_json:
        return echo(as_json, found.to_json(), "")
    if not is_called():
        render(found, Console())
    return found.to_json()
