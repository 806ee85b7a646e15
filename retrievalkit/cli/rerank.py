"""`rkit rerank`: options and hand-off."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.cluster import cluster_options, taken_cluster
from retrievalkit.cli.group import RkitGroup
from retrievalkit.cli.options import (
    echo,
    given_flags,
    json_option,
    output_option,
    parse,
    precision_option,
    strict_option,
    training_options,
    verify_option,
)
from retrievalkit.report.counts import counted


@click.group(cls=RkitGroup)
def rerank() -> None:
    """Train a cross-encoder, and apply it to a run or to training examples."""


@rerank.command("train")
@click.option(
    "--model", required=True, help="Pretrained encoder to start from: a hub name, a folder, package:NAME/FOLDER."
)
@click.option("--examples", required=True, help="Training examples with negatives (rkit mine-negatives).")
@click.option("--corpus", help="The passages that the examples name.")
@click.option("--dev", help="Held-out examples for selecting the best state.")
@output_option
@click.option("--loss", type=click.Choice(["listwise", "pointwise"]), help="Over a query's list, or pair by pair.")
@click.option("--epochs", type=float)
@click.option("--batch-size", type=int, help="Queries per step.")
@click.option("--negatives", type=int, help="Hard negatives per query in a step.")
@click.option("--learning-rate", type=float)
@click.option("--max-length", type=int, help="Maximum number of tokens of a query and a passage together.")
@strict_option
@training_options("reranker_training", purpose="the model is trained in (held-out examples are ranked in fp32)")
def rerank_train(
    model: str,
    examples: str,
    corpus: str | None,
    dev: str | None,
    output: str,
    report_to: str,
    resume: bool,
    overwrite: bool,
    as_json: bool,
    settings: tuple[str, ...],
    **flags: Any,
) -> dict[str, Any]:
    """Train a re-ranker on examples (several GPUs: torchrun --nproc-per-node 2 --no-python rkit rerank train ...)."""
    from retrievalkit import registry
    from retrievalkit.train import processes
    from retrievalkit.train.options import RerankerOptions
    from retrievalkit.train.reranker import RerankerSpec, train_reranker

    with processes.joined():
        with processes.together():
            values = parse(settings) | given_flags(flags)
            options = RerankerOptions(**registry.check_options("rkit rerank train", RerankerOptions, values))
        spec = RerankerSpec(model=model, examples=examples, corpus=corpus, dev=dev)
        manifest = train_reranker(spec, output, options, resume=resume, overwrite=overwrite, report_to=report_to)
        counts = manifest["counts"]
        dropped = f", {counts['without_negatives']:,} without negatives dropped" if counts["without_negatives"] else ""
        examples, steps = counted(counts["examples"], "examples"), counted(counts["steps"], "steps")
        line = f"{output}: trained on {examples} in {steps}{dropped}"
        if processes.is_main():
            echo(as_json, manifest, line)
        return manifest


@rerank.command("apply")
@click.argument("reranker")
@click.option("--run", help="The run to rank anew.")
@click.option("--queries", help="The texts of its queries.")
@click.option("--k", type=click.IntRange(min=1), help="Documents of a query to look at; 100 where not given.")
@click.option("--examples", help="Training examples to score for distillation, instead of --run.")
@click.option("--corpus", required=True, help="The texts of the documents.")
@output_option
@click.option("--max-length", type=int, help="For a cross-encoder that was not trained here; ours has its own.")
@precision_option("pairs are scored in", "fp32", encodes=False)
@click.option("--batch-tokens", type=click.IntRange(min=1), help="Most tokens of a batch, padding included.")
@cluster_options("Score")
@verify_option
@strict_option
@json_option
def rerank_apply(
    reranker: str,
    run: str | None,
    queries: str | None,
    k: int | None,
    examples: str | None,
    corpus: str,
    output: str,
    as_json: bool,
    **flags: Any,
) -> dict[str, Any]:
    """Rank a run anew with RERANKER (a folder or a hub name), or give training examples a teacher's scores."""
    from retrievalkit.rerank import Settings, rerank_run, score_examples

    if (run is None) == (examples is None):
        msg = "give either --run RUN with --queries QUERIES, or --examples EXAMPLES."
        raise click.UsageError(msg)
    cluster = taken_cluster(flags)
    settings = Settings(**flags)
    if examples is not None:
        if queries is not None or k is not None:
            msg = f"{'--k' if queries is None else '--queries'} goes with --run, and --examples has its own."
            raise click.UsageError(msg)
        found = score_examples(
            reranker, examples=examples, corpus=corpus, output=output, settings=settings, cluster=cluster
        )
        rest = f" ({found['without_negatives']:,} without negatives)" if found["without_negatives"] else ""
        line = f"{output}: {counted(found['examples'], 'examples')}, {counted(found['pairs'], 'pairs')} scored{rest}"
        return echo(as_json, found, line)
    if queries is None:
        msg = "--run holds no texts: give its queries, --queries QUERIES."
        raise click.UsageError(msg)
    found = rerank_run(
        reranker, run=run or "", queries=queries, corpus=corpus, output=output, k=k, settings=settings, cluster=cluster
    )
    line = f"{output}: {counted(found['queries'], 'queries')}, {counted(found['pairs'], 'pairs')} scored"
    return echo(as_json, found, line)
