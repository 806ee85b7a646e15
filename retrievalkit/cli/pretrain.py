"""`rkit pretrain`: options and hand-off."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.options import (
    PRECISION,
    echo,
    given_flags,
    json_option,
    output_option,
    overwrite_option,
    parse,
    section,
    set_option,
)


@click.command()
@click.option("--pretrainer", required=True, help="Objective (rkit plugins list).")
@click.option("--model", required=True, help="Model to start from: a hub name, a folder, package:NAME/FOLDER.")
@click.option("--corpus", required=True, help="The documents: a file, a folder, pydoc:PACKAGES.")
@output_option
@click.option("--steps", type=int, help="Optimiser steps, instead of epochs.")
@click.option("--epochs", type=float)
@click.option("--batch-size", type=int, help="Samples of a step.")
@click.option("--micro-batch-size", type=int, help="Samples computed at once.")
@click.option("--learning-rate", type=float)
@click.option("--max-length", type=int, help="Most tokens of a text.")
@click.option("--precision", type=PRECISION)
@click.option("--seed", type=int)
@click.option("--resume", is_flag=True, help="Go on with a pre-training that was cut off.")
@overwrite_option
@json_option
@set_option
def pretrain(
    pretrainer: str,
    model: str,
    corpus: str,
    output: str,
    resume: bool,
    overwrite: bool,
    as_json: bool,
    settings: tuple[str, ...],
    **flags: Any,
) -> None:
    """Pre-train a model on documents."""
    from retrievalkit import registry
    from retrievalkit.train.pretrain import PretrainingOptions
    from retrievalkit.train.pretrain import pretrain as program

    values = parse(settings)
    pretrainer_options, encoder_options = section(values, "pretrainer"), section(values, "encoder")
    training = registry.check_options("rkit pretrain", PretrainingOptions, values | given_flags(flags))
    manifest = program(
        pretrainer=pretrainer,
        model=model,
        corpus=corpus,
        output=output,
        pretrainer_options=pretrainer_options,
        encoder_options=encoder_options,
        options=PretrainingOptions(**training),
        resume=resume,
        overwrite=overwrite,
    )
    counts = manifest["counts"]
    taken = f"{counts['samples']:,} samples of {counts['documents']:,} documents"
    dropped = f"; {counts['dropped']:,} without {manifest['wants']} were dropped" if counts["dropped"] else ""
    echo(as_json, manifest, f"{output}: pre-trained on {taken} in {counts['steps']:,} steps{dropped}")
