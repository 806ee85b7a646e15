"""`rkit pretrain`: options and hand-off."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.options import echo, given_flags, output_option, parse, section, strict_option, training_options
from retrievalkit.modules import large_imports
from retrievalkit.report.counts import counted


@click.command()
@click.option("--pretrainer", required=True, help="Objective (rkit plugins list).")
@click.option("--model", required=True, help="Model to start from: a hub name, a folder, package:NAME/FOLDER.")
@click.option("--corpus", required=True, help="The documents: a file, a folder, pydoc:PACKAGES.")
@click.option("--dev", help="Documents to hold out: their loss is measured, and the best state kept.")
@output_option
@click.option("--encoder", default="transformer", show_default=True, help="Encoder (rkit plugins list).")
@click.option("--steps", type=int, help="Optimiser steps, instead of epochs.")
@click.option("--epochs", type=float)
@click.option("--batch-size", type=int, help="Samples per step.")
@click.option("--micro-batch-size", type=int, help="Samples computed at once.")
@click.option("--learning-rate", type=float)
@click.option("--max-length", type=int, help="Maximum number of tokens per text.")
@strict_option
@training_options("pretraining", training="pre-training")
def pretrain(
    pretrainer: str,
    model: str,
    corpus: str,
    dev: str | None,
    output: str,
    encoder: str,
    report_to: str,
    resume: bool,
    overwrite: bool,
    as_json: bool,
    settings: tuple[str, ...],
    **flags: Any,
) -> dict[str, Any]:
    """Pre-train a model on documents.

    On several GPUs: torchrun --nproc-per-node 2 --no-python rkit pretrain ...
    """
    from retrievalkit import registry

    with large_imports():
        from retrievalkit.train import processes
        from retrievalkit.train.options import PretrainingOptions
        from retrievalkit.train.pretrain import PretrainingSpec
        from retrievalkit.train.pretrain import pretrain as program

    with processes.joined():
        with processes.together():
            values = parse(settings)
            spec = PretrainingSpec(
                pretrainer=pretrainer,
                model=model,
                corpus=corpus,
                dev=dev,
                encoder=encoder,
                pretrainer_options=section(values, "pretrainer"),
                encoder_options=section(values, "encoder"),
            )
            checked = registry.check_options("rkit pretrain", PretrainingOptions, values | given_flags(flags))
        manifest = program(
            spec, output, PretrainingOptions(**checked), resume=resume, overwrite=overwrite, report_to=report_to
        )
        counts = manifest["counts"]
        samples = f"{counted(counts['samples'], 'samples')} of {counted(counts['documents'], 'documents')}"
        dropped = f"; {counts['dropped']:,} without {manifest['wants']} were dropped" if counts["dropped"] else ""
        if processes.is_main():
            best = "" if dev is None else f"; held-out loss {manifest['selection']['value']:.4f}"
            steps = counted(counts["steps"], "steps")
            echo(as_json, manifest, f"{output}: pre-trained on {samples} in {steps}{dropped}{best}")
        return manifest
