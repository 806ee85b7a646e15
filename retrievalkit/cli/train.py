"""`rkit train`: options and hand-off."""

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
@click.option(
    "--model", required=True, help="Pretrained model to start from: a hub name, a folder, package:NAME/FOLDER."
)
@click.option("--examples", required=True, help="Training examples: a file, a BEIR folder, pydoc:PACKAGES.")
@click.option("--corpus", help="The passages that the examples name.")
@click.option("--dev", help="Held-out examples, by which the best state is chosen.")
@output_option
@click.option("--encoder", default="transformer", show_default=True, help="Encoder (rkit plugins list).")
@click.option("--pooler", default="cls", show_default=True, help="Pooler (rkit plugins list).")
@click.option("--loss", help="Loss, or a sum of them such as contrastive+flops; the pooler's own where not given.")
@click.option("--epochs", type=float)
@click.option("--batch-size", type=int, help="Queries of a step.")
@click.option("--micro-batch-size", type=int, help="Texts encoded at once, with gradient caching.")
@click.option("--learning-rate", type=float)
@click.option("--negatives", type=int, help="Hard negatives of a query in a step.")
@click.option(
    "--refresh-negatives",
    metavar="every=N",
    help="Mine new negatives with the model as it is, after every N epochs; more by --set refresh.depth=100 and the "
    "other options of mine-negatives.",
)
@click.option("--separate-towers/--shared-tower", default=False, help="An encoder for each side, or one for both.")
@click.option("--query-length", type=int, help="Most tokens of a query.")
@click.option("--document-length", type=int, help="Most tokens of a passage.")
@click.option("--precision", type=PRECISION)
@click.option("--seed", type=int)
@click.option("--resume", is_flag=True, help="Go on with a training that was cut off.")
@overwrite_option
@json_option
@set_option
def train(
    model: str,
    examples: str,
    corpus: str | None,
    dev: str | None,
    output: str,
    encoder: str,
    pooler: str,
    loss: str | None,
    query_length: int | None,
    document_length: int | None,
    refresh_negatives: str | None,
    separate_towers: bool,
    resume: bool,
    overwrite: bool,
    as_json: bool,
    settings: tuple[str, ...],
    **flags: Any,
) -> None:
    """Train a retriever on examples (on several GPUs: torchrun --nproc-per-node 2 --no-python rkit train ...)."""
    from retrievalkit import registry
    from retrievalkit.train import processes
    from retrievalkit.train.refresh import refresh_options
    from retrievalkit.train.retriever import TrainingOptions
    from retrievalkit.train.retriever import train as program

    processes.join()
    with processes.together():
        values = parse(settings)
        encoder_options = section(values, "encoder") | given_flags(
            {"query_length": query_length, "document_length": document_length}
        )
        pooler_options, loss_options = section(values, "pooler"), section(values, "loss")
        refresh = refresh_options(refresh_negatives, section(values, "refresh"))
        training = registry.check_options("rkit train", TrainingOptions, values | given_flags(flags))
    manifest = program(
        model=model,
        examples=examples,
        corpus=corpus,
        dev=dev,
        output=output,
        encoder=encoder,
        pooler=pooler,
        loss=loss,
        encoder_options=encoder_options,
        pooler_options=pooler_options,
        loss_options=loss_options,
        separate_towers=separate_towers,
        options=TrainingOptions(**training),
        refresh=refresh,
        resume=resume,
        overwrite=overwrite,
    )
    counts = manifest["counts"]
    if processes.is_main():
        echo(as_json, manifest, f"{output}: trained on {counts['examples']:,} examples in {counts['steps']:,} steps")
    processes.leave()
