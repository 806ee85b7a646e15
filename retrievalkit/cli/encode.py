"""`rkit encode`: options and hand-off."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.options import (
    PRECISION,
    echo,
    json_option,
    output_option,
    overwrite_option,
    parse,
    refuse,
    section,
    set_option,
)


@click.command()
@click.argument("model")
@click.argument("texts")
@click.option("--side", type=click.Choice(["document", "query"]), default="document", show_default=True)
@output_option
@click.option("--encoder", help="For a pretrained model; a checkpoint has its own.")
@click.option("--pooler", help="For a pretrained model; a checkpoint has its own.")
@click.option("--precision", type=PRECISION, default="auto", show_default=True)
@click.option("--batch-tokens", type=int, help="Most tokens of a batch, padding included.")
@overwrite_option
@json_option
@set_option
def encode(
    model: str,
    texts: str,
    encoder: str | None,
    pooler: str | None,
    as_json: bool,
    settings: tuple[str, ...],
    **flags: Any,
) -> None:
    """Encode TEXTS (a corpus or queries) with MODEL (a checkpoint or a pretrained model)."""
    from retrievalkit.encode import encode as program

    values = parse(settings)
    encoder_options, pooler_options = section(values, "encoder"), section(values, "pooler")
    refuse(values, "encode", "encoder.OPTION and pooler.OPTION")
    manifest = program(
        model,
        texts,
        encoder=encoder,
        pooler=pooler,
        encoder_options=encoder_options,
        pooler_options=pooler_options,
        **flags,
    )
    echo(as_json, manifest, f"{flags['output']}: {manifest['counts']['texts']:,} texts encoded")
