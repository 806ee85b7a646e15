"""`rkit train`: options and hand-off."""

from __future__ import annotations

from typing import Any, Literal

import click

from retrievalkit.cli.options import echo, given_flags, output_option, parse, section, strict_option, training_options
from retrievalkit.modules import large_imports
from retrievalkit.report.counts import counted


@click.command()
@click.option(
    "--model",
    required=True,
    help="Pretrained model to start from: a hub name, a folder, package:NAME/FOLDER; or a checkpoint, which goes on "
    "with its pooler and its options.",
)
@click.option(
    "--examples", required=True, help="Training examples: a file, a folder of files, a BEIR folder, pydoc:PACKAGES."
)
@click.option("--corpus", help="The passages that the examples name.")
@click.option("--dev", help="Held-out examples for selecting the best state.")
@output_option
@click.option("--encoder", help="Encoder (rkit plugins list); by default the checkpoint's, else transformer.")
@click.option(
    "--pooler",
    help="Pooler (rkit plugins list); by default the checkpoint's or the model's own (modules.json), else cls.",
)
@click.option(
    "--loss",
    help="Loss, a sum (contrastive+flops), or one of another ('matryoshka(contrastive)'); by default the pooler's.",
)
@click.option("--epochs", type=float)
@click.option("--batch-size", type=int, help="Queries per step.")
@click.option("--micro-batch-size", type=int, help="Texts encoded at once, with gradient caching.")
@click.option("--learning-rate", type=float)
@click.option("--negatives", type=int, help="Hard negatives per query in a step.")
@click.option(
    "--refresh-negatives",
    metavar="every=N",
    help="Mine new negatives with the current model every N epochs; --set refresh.depth=100 and the like set the "
    "options of mine-negatives.",
)
@click.option(
    "--separate-towers/--shared-tower",
    default=None,
    help="One encoder per side, or one for both; by default as the checkpoint, else one.",
)
@click.option(
    "--sharding",
    type=click.Choice(["none", "full"]),
    default="none",
    help="Of several processes: full divides weights, gradients and optimizer states among them (FSDP).",
)
@click.option("--query-length", type=int, help="Maximum number of tokens per query.")
@click.option("--document-length", type=int, help="Maximum number of tokens per passage.")
@strict_option
@training_options("trainer")
def train(
    model: str,
    examples: str,
    corpus: str | None,
    dev: str | None,
    output: str,
    report_to: str,
    encoder: str | None,
    pooler: str | None,
    loss: str | None,
    query_length: int | None,
    document_length: int | None,
    refresh_negatives: str | None,
    separate_towers: bool | None,
    sharding: Literal["none", "full"],
    resume: bool,
    overwrite: bool,
    as_json: bool,
    settings: tuple[str, ...],
    **flags: Any,
) -> dict[str, Any]:
    """Train a retriever on examples.

    On several GPUs: torchrun --nproc-per-node 2 --no-python rkit train ...
    """
    from retrievalkit import registry

    with large_imports():
        from retrievalkit.train import processes
        from retrievalkit.train.options import TrainingOptions
        from retrievalkit.train.refresh import refresh_options
        from retrievalkit.train.retriever import RetrieverSpec
        from retrievalkit.train.retriever import train as program

    with processes.joined():
        with processes.together():
            values = parse(settings)
            lengths = given_flags({"query_length": query_length, "document_length": document_length})
            spec = RetrieverSpec(
                model=model,
                examples=examples,
                corpus=corpus,
                dev=dev,
                encoder=encoder,
                pooler=pooler,
                loss=loss,
                encoder_options=section(values, "encoder") | lengths,
                pooler_options=section(values, "pooler"),
                loss_options=section(values, "loss"),
                separate_towers=separate_towers,
                sharding=sharding,
                refresh=refresh_options(refresh_negatives, section(values, "refresh")),
            )
            options = TrainingOptions(
                **registry.check_options("rkit train", TrainingOptions, values | given_flags(flags))
            )
        manifest = program(spec, output, options, resume=resume, overwrite=overwrite, report_to=report_to)
        counts = manifest["counts"]
        if processes.is_main():
            taken = f" ({manifest['options']['pooling']})" if "pooling" in manifest["options"] else ""
            read, steps = counted(counts["examples"], "examples"), counted(counts["steps"], "steps")
            line = f"{output}: trained on {read} in {steps}{taken}"
            echo(as_json, manifest, line)
        return manifest
