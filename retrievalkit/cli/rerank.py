"""`rkit rerank`: options and hand-off."""

from __future__ import annotations

from typing import Any

import click

from retrievalkit.cli.cluster import cluster_options, taken_cluster
from retrievalkit.cli.derived import DerivedCommand
from retrievalkit.cli.group import RkitGroup
from retrievalkit.cli.options import (
    echo,
    json_option,
    output_option,
    precision_option,
    strict_option,
    verify_option,
)
from retrievalkit.report.counts import counted
from retrievalkit.training.train_reranker import train_reranker


@click.group(cls=RkitGroup)
def rerank() -> None:
    """Train a cross-encoder, and apply it to a run or to training examples."""


rerank.add_command(DerivedCommand(train_reranker))


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
